"""`Standby`: the state of a table that another process owns, followed, read here, and promoted to a table.

    with statelog.standby("orders", where) as standby:
        print(standby.look(b"alice"))             # its value, position and age
        table = standby.promote()                 # fences the owner; the state is the table's, without a copy

    follower   moves the state on             standing/follower.py
    state      what is read meanwhile         standing/followed.py
    promote    the owner's Open, and the rest standing/promotion.py

Invariants:
- It writes nothing to Kafka before it is promoted; a producer that it keeps ready has sent nothing.
- Several standbys of a table do not know of each other.
- What is read is the state of one position, and never more than what is committed.
- Any thread of its process may read it. The thread that promotes it owns the table.
"""

import warnings
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import RLock
from typing import Any, Generic, TypeVar

from statelog.closing import Closing
from statelog.errors import NestedCall
from statelog.producer.guard import Life
from statelog.schemas.ledger.state import LastCommit
from statelog.storage.local.own_process import OwnProcess
from statelog.tables.changes.views import Keyed
from statelog.tables.opening.share import Share
from statelog.tables.standing.follower import Follower
from statelog.tables.standing.promotion import promote
from statelog.tables.state.opening import Opening
from statelog.tables.state.state import State
from statelog.tables.table import Table

__all__ = ["Look", "Standby"]

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Look(Generic[V]):
    """A value, None if the key is not there; the ledger position of the state that it was read from; and how many
    seconds ago that state was last known to be level with the ledger's end.
    """

    value: V | None
    position: int
    age_s: float


class Standby(Closing, Keyed[K, V]):
    """A read-only mapping of keys to values that follows its table. Made by `statelog.standby`.

        standby.get(b"alice", max_age_s=1.0)
        standby.progress

    Any thread may read; `promote`, `refresh` and `close` are called by one at a time. Every read raises what following
    failed with, if it did, and ClosedError after `promote`, `close` or a fork. A scan (`items`, `range`, iteration) is
    of one position, at which the state stays until the scan ends: end it, or drop it.
    """

    def __init__(self, follower: Follower, share: Share) -> None:
        self._follower, self._of = follower, follower.builder
        self._share = share
        self._keys = self._of.keys
        self._state = follower.state
        self._owner = OwnProcess("the standby")
        self._one = RLock()  # Reentrant, so that a signal's handler is refused, and does not wait for itself.
        self._is_called = False
        self._follower.start()
        self._forgotten = weakref.finalize(self, _drop_forgotten, follower, self._owner)

    # ---- what it is

    @property
    def position(self) -> int:
        """The ledger position of the state."""
        return self._state.version.place.position

    @property
    def age_s(self) -> float:
        """Seconds since the state was last known to be level with the ledger's end."""
        return self._state.age_s

    @property
    def last_commit(self) -> LastCommit | None:
        """The owner's last commit in the state: checkpoint, ledger offset, progress. None before the first."""
        self._owner.check()
        with self._state.reading() as version:
            return version.last_commit

    @property
    def opening(self) -> Opening:
        """How the state was made: from what, how much was read, what was set aside; anew, if it had to be."""
        return self._state.version.opening

    @property
    def life(self) -> Life:
        """Whether it is open, failed or closed."""
        return self._state.life

    def __repr__(self) -> str:
        return f"Standby({self._of.log.name!r}, writer={self._of.owner!r}, position={self.position}, {self.life.value})"

    # ---- one key

    def get(self, key: K, default: Any = None, *, max_age_s: float | None = None) -> Any:
        """The value of a key, or the default. Raises TooOld for a state that is older than `max_age_s`; InvalidChange
        for a key of another type, KeyGroupMismatch for one that is not the table's; and as the class says.
        """
        self._owner.check()
        admitted = self._keys.admit(key)
        with self._state.reading(max_age_s) as version:
            value = version.state.get(admitted)
            return default if value is None else version.values.copy(value)

    def look(self, key: K, *, max_age_s: float | None = None) -> Look[V]:
        """The value of a key, None if it is not there, with the state's position and age. Raises as `get`."""
        self._owner.check()
        admitted = self._keys.admit(key)
        with self._state.reading(max_age_s) as version:
            value = version.state.get(admitted)
            found = None if value is None else version.values.copy(value)
            return Look(found, version.place.position, self._state.age_s)

    # ---- many keys

    def __len__(self) -> int:
        """How many keys there are. The first time RocksDB counts them one by one, and again after each move."""
        self._owner.check()
        with self._state.reading() as version:
            return len(version.state)

    def range(self, start: K | None = None, end: K | None = None) -> Iterator[tuple[K, V]]:
        """Keys and values from `start` on and below `end` (None: no bound), in the order of the keys, as of a table."""
        first, behind = self._keys.bound(start), self._keys.bound(end)
        return self._scanned(lambda state: state.range(first, behind))

    def _scan(self, key_groups: Sequence[int] | None) -> Iterator[tuple[K, V]]:
        return self._scanned(lambda state: state.items(key_groups))

    def _scanned(self, items: Callable[[State], Iterator[tuple[Any, Any]]]) -> Iterator[tuple[K, V]]:
        self._owner.check()
        return self._state.scan(items)

    # ---- moves

    def refresh(self) -> bool:
        """Read what was committed by now, and return whether the state is level with it; False if Kafka gave no answer.

        A standby without a pace moves in no other way. Raises as a read does, and BrokerUnavailable; Misuse while this
        thread iterates it.
        """
        self._owner.check()
        self._state.check_movable()
        with self._turn():
            return self._follower.refresh(self._of.settings.recovery.stall_timeout_s)

    def promote(self) -> Table[K, V]:
        """Fence the owner, read what it had committed by then, and be its table. The standby is closed, and its
        directory is the table's.

            table = standby.promote()
            source.seek(table.progress)

        Raises Fenced, OutcomeUnknown, Unavailable, ConfigError as opening a writer does: then the standby goes on, and
        may be promoted again. What goes wrong behind that Open closes the standby, and is raised: Damaged, Unavailable.
        The owner is fenced then; open the table.
        """
        self._owner.check()
        with self._turn():
            self._state.check()
            try:
                opened = promote(self._follower, self._share)
            except BaseException:
                if self.life is not Life.OPEN:
                    self._end()
                raise
            self._forgotten.detach()
            return Table(opened)

    # ---- end

    def close(self) -> None:
        """Stop following, and release everything. Idempotent; void in a fork."""
        if not self._owner.is_foreign:
            with self._turn():
                self._end()

    @contextmanager
    def _turn(self) -> Generator[None]:
        with self._one:
            self._state.check_alone()
            if self._is_called:
                raise NestedCall("the standby is called inside of another call of it")
            try:
                self._is_called = True
                yield
            finally:
                self._is_called = False

    def _end(self) -> None:
        if self._forgotten.detach() is not None:
            self._state.let_go()
            self._follower.end()


def _drop_forgotten(follower: Follower, owner: OwnProcess) -> None:
    """Clean up after a standby that was dropped without a close, and say so. In a fork it is the parent's."""
    if owner.is_foreign:
        return
    follower.state.let_go()
    follower.end()
    warnings.warn(f"unclosed standby of statelog ({follower.builder.log.name})", ResourceWarning, stacklevel=1)
