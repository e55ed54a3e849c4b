"""`Backend`: the port behind which the committed state of a table is. Small, so that there may be others.

    MemoryBackend    a dict                                  backends/memory.py
    RocksdbBackend   a RocksDB directory, kept between lives backends/rocksdb.py

Above it is `Layers`, with all that no commit holds; so a backend sees committed changes only, each with its place in
the ledger: those of its own table with `apply`, a commit at a time; what was committed elsewhere with `load` and
`move`, in bulk. Nothing here says that all of a state has to be local: `get` and the scans may fetch what they lack, as
long as changes are heard first; then a delete has to be remembered as one.

Invariants:
- After `apply`, and after `move`, it holds the state at that place, exactly. A kill in the middle of `apply` leaves the
  state before it, or after it, together with the place of the one it is; a kill between `load` and `move` leaves the
  older place under newer changes, which are loaded once more; where a state is in memory only, a kill leaves nothing.
- What it gives is what it was given: keys and values as the rules of the table have them. Who gets them copies them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import pyarrow as pa

from statelog.schemas.ledger.place import LastRecord, Place

__all__ = ["Backend", "BackendKind", "StatePlace"]


class BackendKind(StrEnum):
    """The backends that there are."""

    DICT = "dict"
    ROCKSDB = "rocksdb"


@dataclass(frozen=True, slots=True)
class StatePlace:
    """How far a state is: its place in the ledger, and how many losses a person had accepted by then."""

    ledger: Place
    losses: int = 0

    @property
    def position(self) -> int:
        """The ledger position."""
        return self.ledger.position

    @property
    def last(self) -> LastRecord | None:
        """The ledger record right below it, if it is known."""
        return self.ledger.last


class Backend(Protocol):
    """The committed state of one table. Belongs to one thread.

    Keys are those that `KeyRule.admit` gives, values those of `ValueRule.admit`. A state that is changed while it is
    scanned is its caller's mistake, and told by the table.
    """

    @property
    def get(self) -> Callable[[Any], Any]:
        """A function that gives the value of a key; None if it is not there."""
        ...

    def __len__(self) -> int:
        """How many keys there are."""
        ...

    def items(self, key_groups: Sequence[int] | None) -> Iterator[tuple[Any, Any]]:
        """Keys and values of these key groups (None: of all), in any order."""
        ...

    def range(self, start: Any, end: Any) -> Iterator[tuple[Any, Any]]:
        """Keys and values from `start` on and below `end` (None: no bound), in the order of the keys."""
        ...

    def apply(self, changes: Mapping[Any, Any], place: StatePlace) -> None:
        """Take committed changes, None deletes, and the place of the state that they make. Raises StorageFull,
        StoreUnavailable.
        """
        ...

    def load(self, changes: pa.Table) -> None:
        """Take committed changes (key_group, op, key, value) in bulk, ahead of the place that they lead to.

        They are the newest of each key between the place that it has and the one that `move` gives next, those of the
        table's key groups only, with values in the table's value schema. Any number of tables may come before `move`,
        also of several commits, oldest first. Until then what is read is of no place. Raises as `apply`.
        """
        ...

    def move(self, place: StatePlace) -> None:
        """What was loaded is the state at this place. Raises as `apply`."""
        ...

    def close(self) -> None:
        """Release what is held, and keep what outlives the process. Idempotent."""
        ...
