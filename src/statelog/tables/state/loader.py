"""`Loader`: the thread that makes a table's state local: it reads the missing key groups in order, and hands over.

    merged rows of the base ─► at most some thousand at a time ─► State.take ─► the store

Invariants:
- It changes nothing but through `take`, which a closed table refuses; so a thread that waits for the store does no harm
  when its table is gone.
- A key group is complete only once a row of a later one, or the end, was read.
- A store that is away is waited for; any other error is the table's.
"""

from collections.abc import Iterator
from concurrent.futures import Future, wait
from threading import Event

import pyarrow as pa

from statelog.environment import GRACE_S, Environment
from statelog.errors import ClosedError, StorageFull, Unavailable
from statelog.schemas.snapshot.runs import key_groups_of
from statelog.tables.remote.base import Base
from statelog.tables.state.state import State

__all__ = ["Loader"]

_ROWS = 8192
"""As many rows are taken at once: a commit waits for no more."""
_PAUSE_S = 1.0


class Loader:
    """Loads what a state lacks. `start` begins; `run` does it in the caller's thread."""

    def __init__(self, state: State, base: Base, environment: Environment) -> None:
        self._state = state
        self._base = base
        self._environment = environment
        self._stop = Event()
        self._done: Future[None] | None = None

    def start(self) -> None:
        """Begin, on a thread of its own, which ends with the state."""
        self._state.on_close(self.stop)
        self._done = self._environment.begin(self._guarded)
        if self._done.done():
            self._done.result()  # Where a simulation had it done at once, it may have died of it.

    def stop(self) -> None:
        """Let the thread end, and wait for it shortly."""
        self._stop.set()
        if self._done is not None:
            wait([self._done], GRACE_S)

    def run(self) -> None:
        """Load all that is missing. Raises Damaged, NotFound, Fenced, Unavailable, StorageFull, ClosedError."""
        while missing := self._state.missing:
            for rows, complete in _steps(self._read(missing), missing, self._base.schema):
                self._state.take(rows, complete)
                self._beat()
                if complete:
                    self._environment.crash("group-loaded")
        self._state.finish()
        self._environment.crash("all-loaded")

    def _read(self, missing: frozenset[int]) -> Iterator[pa.Table]:
        return self._base.tables(lambda snapshot: snapshot.tables(missing, self._beat))

    def _beat(self) -> None:
        if self._stop.is_set():
            raise ClosedError("the table was closed before all of its state was local")
        self._base.renew()

    def _guarded(self) -> None:
        while True:
            try:
                return self.run()
            except ClosedError:
                return None
            except StorageFull as error:
                self._state.fail(error)
                return None
            except Unavailable:
                self._stop.wait(_PAUSE_S)
            except Exception as error:  # noqa: BLE001 - raised again in the table's thread
                self._state.fail(error)
                return None


def _steps(
    tables: Iterator[pa.Table], missing: frozenset[int], schema: pa.Schema
) -> Iterator[tuple[pa.Table, frozenset[int]]]:
    """Rows to take at once, and the key groups that are complete with them. The last step completes the rest."""
    left = missing
    held = schema.empty_table()
    for table in tables:
        for start in range(0, table.num_rows, _ROWS):
            rows = table.slice(start, _ROWS)
            first = int(key_groups_of(rows)[0])
            complete = frozenset(group for group in left if group < first)
            yield held, complete
            left -= complete
            held = rows
    yield held, left
