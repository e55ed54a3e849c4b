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
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import RLock
from typing import Any, Generic, TypeVar, cast

from statelog.closing import Closing
from statelog.errors import NestedCall
from statelog.producer.guard import Life
from statelog.recovery import Host
from statelog.schemas.ledger.metadata import Metadata
from statelog.schemas.ledger.state import LastCommit
from statelog.storage import Log
from statelog.storage.local.own_process import OwnProcess
from statelog.tables.backends.backend import Backend
from statelog.tables.backends.home import Home
from statelog.tables.changes.keys import KeyRule
from statelog.tables.changes.views import TableItems, TableValues
from statelog.tables.opening.opened import Opening
from statelog.tables.opening.share import Share
from statelog.tables.settings import TableSettings
from statelog.tables.standing.follower import Follower
from statelog.tables.standing.look import Look
from statelog.tables.standing.promotion import promote
from statelog.tables.table import Table

__all__ = ["Standby", "StandbyParts"]

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class StandbyParts:
    """What a standby is made of."""

    log: Log
    owner: str
    share: Share
    keys: KeyRule
    home: Home | None
    follower: Follower
    settings: TableSettings
    host: Host

    def release(self) -> None:
        """Close what is left when the follower has ended."""
        try:
            if self.home is not None:
                self.home.close()
        finally:
            self.log.close()


class Standby(Closing, Mapping[K, V], Generic[K, V]):
    """A read-only mapping of keys to values that follows its table. Made by `statelog.standby`.

        standby.get(b"alice", max_age_s=1.0)
        standby.progress

    Any thread may read; `promote`, `refresh` and `close` are called by one at a time. Every read raises what following
    failed with, if it did, and ClosedError after `promote`, `close` or a fork. A scan (`items`, `range`, iteration) is
    of one position, at which the state stays until the scan ends: end it, or drop it.
    """

    def __init__(self, parts: StandbyParts) -> None:
        self._parts = parts
        self._keys = parts.keys
        self._follower = parts.follower
        self._state = parts.follower.state
        self._owner = OwnProcess("the standby")
        self._one = RLock()  # Reentrant, so that a signal's handler is refused, and does not wait for itself.
        self._is_called = False
        self._follower.start()
        self._forgotten = weakref.finalize(self, _drop_forgotten, parts, self._owner)

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
    def progress(self) -> Metadata:
        """The progress of that commit; empty before the first."""
        last = self.last_commit
        return dict(last.metadata) if last else {}

    @property
    def opening(self) -> Opening:
        """How the state was made: from what, how much was read, what was set aside; anew, if it had to be."""
        return self._state.version.opening

    @property
    def key_groups(self) -> Sequence[int]:
        """The key groups of the state, ascending."""
        return self._keys.groups

    @property
    def life(self) -> Life:
        """Whether it is open, failed or closed."""
        return self._state.life

    def __repr__(self) -> str:
        parts = self._parts
        return f"Standby({parts.log.name!r}, writer={parts.owner!r}, position={self.position}, {self.life.value})"

    # ---- one key

    def get(self, key: K, default: Any = None, *, max_age_s: float | None = None) -> Any:
        """The value of a key, or the default. Raises TooOld for a state that is older than `max_age_s`; InvalidChange
        for a key of another type, KeyGroupMismatch for one that is not the table's; and as the class says.
        """
        self._owner.check()
        admitted = self._keys.admit(key)
        with self._state.reading(max_age_s) as version:
            value = version.backend.get(admitted)
            return default if value is None else version.values.copy(value)

    def look(self, key: K, *, max_age_s: float | None = None) -> Look[V]:
        """The value of a key, None if it is not there, with the state's position and age. Raises as `get`."""
        self._owner.check()
        admitted = self._keys.admit(key)
        with self._state.reading(max_age_s) as version:
            value = version.backend.get(admitted)
            found = None if value is None else version.values.copy(value)
            return Look(found, version.place.position, self._state.age_s)

    def __getitem__(self, key: K) -> V:
        value = self.get(key)
        if value is None:
            raise KeyError(key)
        return cast("V", value)

    def __contains__(self, key: object) -> bool:
        return self.get(cast("K", key)) is not None

    # ---- many keys

    def __len__(self) -> int:
        """How many keys there are. The first time RocksDB counts them one by one, and again after each move."""
        self._owner.check()
        with self._state.reading() as version:
            return len(version.backend)

    def __bool__(self) -> bool:
        """Whether there is a key. Looks for one, and counts none."""
        return next(iter(self), None) is not None

    def __iter__(self) -> Iterator[K]:
        return (key for key, _ in self._scan(lambda backend: backend.items(None)))

    def items(self, key_groups: Sequence[int] | None = None) -> TableItems[K, V]:
        """Keys and values, of all key groups or of these, in no order. Raises KeyGroupMismatch."""
        groups = None if key_groups is None else self._keys.checked_groups(key_groups)
        return TableItems(self, lambda: self._scan(lambda backend: backend.items(groups)), is_part=groups is not None)

    def values(self) -> TableValues[V]:
        """All values, in no order."""
        return TableValues(self, lambda: self._scan(lambda backend: backend.items(None)))

    def range(self, start: K | None = None, end: K | None = None) -> Iterator[tuple[K, V]]:
        """Keys and values from `start` on and below `end` (None: no bound), in the order of the keys, as of a table."""
        first, behind = self._keys.bound(start), self._keys.bound(end)
        return self._scan(lambda backend: backend.range(first, behind))

    def prefix(self, prefix: K) -> Iterator[tuple[K, V]]:
        """Keys and values whose key begins so, in the order of the keys, as of a table."""
        return self.range(*self._keys.prefix_bounds(prefix))

    def _scan(self, items: Callable[[Backend], Iterator[tuple[Any, Any]]]) -> Iterator[tuple[K, V]]:
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
            return self._follower.refresh(self._parts.settings.recovery.stall_timeout_s)

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
        parts = self._parts
        with self._turn():
            self._state.check()
            try:
                opened = promote(
                    parts.log,
                    parts.owner,
                    parts.share,
                    parts.keys,
                    parts.home,
                    parts.follower,
                    parts.settings,
                    parts.host,
                )
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
            self._follower.end(self._parts.release)


def _drop_forgotten(parts: StandbyParts, owner: OwnProcess) -> None:
    """Clean up after a standby that was dropped without a close, and say so. In a fork it is the parent's."""
    if owner.is_foreign:
        return
    parts.follower.state.let_go()
    parts.follower.end(parts.release)
    warnings.warn(f"unclosed standby of statelog ({parts.log.name})", ResourceWarning, stacklevel=1)
