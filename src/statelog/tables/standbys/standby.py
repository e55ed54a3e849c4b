"""`Standby`: the state of a table that another process owns, followed, read here, and promoted to a table.
`StandbyPool`: the standbys of a worker, for partitions of other processes.

    follower   moves the state on, and brings it to the new owner's Open    follower.py
    state      is read meanwhile                                            followed.py

Invariants:
- The thread that promotes it owns the table.
- If an opening fails, nothing stays open.
- A partition with a table in this worker has no standby. A standby of the pool that fails is logged, and opened again
  after a while; it never ends the worker.
"""

import logging
import math
import warnings
import weakref
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from os import PathLike
from threading import TIMEOUT_MAX, RLock
from types import MappingProxyType
from typing import Any, Generic

from statelog.closing import Closing, OwnProcess
from statelog.errors import ConfigError, NestedCall, NotFound
from statelog.log import Where
from statelog.log.options import K, V
from statelog.producer.guard import Life
from statelog.recovery import RecoverySettings
from statelog.schemas.ledger.state import LastCommit
from statelog.schemas.names import check_kind, settings_or
from statelog.tables.keyed import Keyed
from statelog.tables.setup import BackendKind, TableSettings, TableSetup
from statelog.tables.standbys.follower import Follower
from statelog.tables.state.state import State
from statelog.tables.state_opener import OpenReport
from statelog.tables.table import Table

_LOG = logging.getLogger("statelog.tables")
_QUIET_S = 2.0
"""How long to wait after a decision of the group before a standby opens: the group may be about to decide again."""
_RETRY_S = 10.0


def standby(
    name: str,
    where: Where,
    *,
    backend: BackendKind | str = BackendKind.DICT,
    directory: str | PathLike[str] | None = None,
    writer: str | None = None,
    partitions: Sequence[int] | None = None,
    key_group: int | None = None,
    poll_s: float | None = 0.1,
    settings: TableSettings | None = None,
) -> "Standby[Any, Any]":
    """Open a standby of a table, without fencing its owner: a read-only mapping that follows it, and can take over.

        with statelog.standby("counts", where) as counts:
            print(counts.get(b"alice", max_age_s=1.0), counts.age_s)

    The arguments are those of `statelog.table`: `writer`, `partitions` and `key_group` are the table's. But `directory`
    is the standby's own, no log is made, and `loading` of the settings is always "first". When this returns, the state
    is the newest. A thread then reads new commits, and shows them within `poll_s` seconds, mostly at once. With None
    the state moves only when `refresh` is called.

    It needs the rights of a reader, and those of a writer to be promoted. A lease holds the log for it while it is
    behind. Raises NotFound if there is no such log, ConfigError, LogInUse if the directory is in use, Damaged,
    Unavailable, StorageFull.
    """
    check_kind("poll_s", poll_s, int, float, type(None), example="poll_s=0.1")
    if poll_s is not None and not 0 < poll_s <= TIMEOUT_MAX:
        hint = "Give a number of seconds, or None to move the state with `refresh` only"
        raise ConfigError(f"poll_s is {poll_s} and must be above 0, and finite", hint=hint)
    chosen = settings_or(settings, TableSettings(recovery=RecoverySettings(holder="standby")))
    # Local copies have changes that this process wrote; there are none of the owner's.
    chosen = replace(chosen, recovery=replace(chosen.recovery, local_copies=None, value_schema_id=None))
    with ExitStack() as failing:
        try:
            setup = TableSetup.open(
                name,
                where,
                backend=backend,
                directory=directory,
                writer=writer,
                partitions=partitions,
                key_group=key_group,
                settings=chosen,
            )
        except NotFound as error:  # A standby makes no log.
            raise error.restated(hint="Create it with the owner's statelog.table(..., create=True)") from None
        failing.push(setup)
        follower = Follower(setup, poll_s)
        failing.callback(follower.end)
        made = Standby[Any, Any](follower)
        failing.pop_all()
        return made


@dataclass(frozen=True, slots=True)
class AgedValue(Generic[V]):
    """A value, None if there is no such key, and its state's ledger position. `age_s`: seconds since that state was
    last known to be level with the ledger's end.
    """

    value: V | None
    position: int
    age_s: float


class Standby(Closing, Keyed[K, V]):
    """A read-only mapping of keys to values that follows its table. Made by `statelog.standby`.

        standby.get(b"alice", max_age_s=1.0)
        standby.progress

    Any thread may read. Only one at a time may call `promote`, `refresh` and `close`. Every read raises the error that
    following has failed with, and ClosedError after `promote`, `close` or a fork. A scan (`items`, `range`, iteration)
    shows one position, at which the state stays until the scan ends: end it, or drop it.
    """

    def __init__(self, follower: Follower) -> None:
        self._follower, self._setup = follower, follower.setup
        self._keys = self._setup.keys
        self._state = follower.state
        self._owner = OwnProcess(f"the standby of {self._setup.log.name}")
        self._lock = RLock()  # Reentrant, so that a signal's handler is refused instead of waiting for its own thread.
        self._is_called = False
        self._follower.start()
        self._forgotten = weakref.finalize(self, _drop_forgotten, follower, self._owner)
        self._setup.environment.made(self, self._setup.log.name, self._setup.owner)

    # ---- what it is

    @property
    def position(self) -> int:
        """The ledger position of the state."""
        return self._state.view.place.position

    @property
    def age_s(self) -> float:
        """Seconds since the state was last known to be level with the ledger's end, up to 20 without new commits.
        Reading it triggers another check.
        """
        return self._state.age_s

    @property
    def last_commit(self) -> LastCommit | None:
        """The owner's last commit in the state: checkpoint, ledger offset, progress. None before the first."""
        self._owner.check()
        with self._state.reading() as view:
            return view.last_commit

    @property
    def opening(self) -> OpenReport:
        """How the state was made, or rebuilt: from where, how much was read, what was set aside."""
        return self._state.view.opening

    @property
    def life(self) -> Life:
        """Whether it is open, failed or closed."""
        return self._state.life

    def __repr__(self) -> str:
        log, owner = self._setup.log.name, self._setup.owner
        return f"Standby({log!r}, writer={owner!r}, position={self.position}, {self.life.value})"

    # ---- one key

    def get(self, key: K, default: Any = None, *, max_age_s: float | None = None) -> Any:
        """Return the value of a key, or the default.

        Raises TooOld if the state is older than `max_age_s`, and the errors of the class. Raises InvalidChange for a
        key of another type, KeyGroupMismatch for one that is not the table's.
        """
        self._owner.check()
        admitted = self._keys.admit(key)
        with self._state.reading(max_age_s) as view:
            value = view.state.get(admitted)
            return default if value is None else view.state.values.copy(value)

    def get_with_age(self, key: K, *, max_age_s: float | None = None) -> AgedValue[V]:
        """Return the value of a key, None if there is none, with the state's position and age. Raises as `get`."""
        self._owner.check()
        admitted = self._keys.admit(key)
        with self._state.reading(max_age_s) as view:
            value = view.state.get(admitted)
            found = None if value is None else view.state.values.copy(value)
            return AgedValue(found, view.place.position, self._state.age_s)

    # ---- many keys

    def __len__(self) -> int:
        """Count the keys. RocksDB counts them one by one, the first time and after each move."""
        self._owner.check()
        with self._state.reading() as view:
            return len(view.state)

    def range(self, start: K | None = None, end: K | None = None, *, reverse: bool = False) -> Iterator[tuple[K, V]]:
        """Iterate over keys and values from `start` on and below `end` (None: no bound), in key order or in reverse."""
        first, behind = self._keys.bound(start), self._keys.bound(end)
        return self._scanned(lambda state: state.range(first, behind, reverse=reverse))

    def _scan(self, key_groups: Sequence[int] | None, *, keys_only: bool = False) -> Iterator[tuple[K, V]]:
        return self._scanned(lambda state: state.items(key_groups), keys_only=keys_only)

    def _scanned(
        self, items: Callable[[State], Iterator[tuple[Any, Any]]], *, keys_only: bool = False
    ) -> Iterator[tuple[K, V]]:
        self._owner.check()
        return self._state.scan(items, keys_only=keys_only)

    # ---- moves

    def refresh(self) -> bool:
        """Read all commits up to now, and return whether the state has them; False if Kafka gave no answer.

        A standby with `poll_s=None` moves in no other way. Raises Damaged, Fenced, Unavailable, which end it. Raises
        BrokerUnavailable if another step takes too long, and Misuse while this thread iterates it.
        """
        self._owner.check()
        self._state.check_movable()
        with self._exclusively():
            return self._follower.refresh()

    def promote(self) -> Table[K, V]:
        """Fence the owner, read the rest of its commits, and return the table. The standby is closed; the table has its
        directory.

            table = standby.promote()
            source.seek(table.progress)

        Raises Fenced, OutcomeUnknown, Unavailable, ConfigError as opening a writer does. The standby then goes on, and
        may be promoted again. Raises Damaged, Fenced, Unavailable if something fails later. The owner is then fenced
        and the standby closed: open the table.
        """
        self._owner.check()
        with self._exclusively():
            self._state.check()
            try:
                writer, report = self._follower.promote()
            except BaseException:
                if self.life is not Life.OPEN:
                    self._end()
                raise
            self._forgotten.detach()
            return Table(self._setup, writer, self._state.view.state, report)

    def close(self) -> None:
        """Stop following, and release everything. Idempotent. Does nothing in a forked child."""
        if not self._owner.is_foreign:
            with self._exclusively():
                self._end()

    @contextmanager
    def _exclusively(self) -> Generator[None]:
        with self._lock:
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
            self._follower.end()


def _drop_forgotten(follower: Follower, owner: OwnProcess) -> None:
    """Close a standby that was dropped unclosed, with a warning. In a forked child it is the parent's."""
    if owner.is_foreign:
        return
    follower.end()
    warnings.warn(f"unclosed standby of statelog ({follower.setup.log.name})", ResourceWarning, stacklevel=1)


class StandbyPool:
    """The standbys of one worker, for `wanted` partitions of other processes, so that it can take over soon.

    Nobody may call `maintain` while a standby is promoted, on any thread.

        not ours ─► opened on a thread of its own, which follows ─► assigned ─► promoted, as any table opens ─► a table
            ▲                                                                                                    │
            └────────────────────────────────────── revoked, lost ◄──────────────────────────────────────────────┘
    """

    def __init__(
        self, wanted: Collection[int], open_standby: Callable[[int], Standby[Any, Any]], clock: Callable[[], float]
    ) -> None:
        self._wanted = frozenset(wanted)
        self._open_one = open_standby
        self._clock = clock
        self._due_s = math.inf
        self._made: dict[int, Future[Standby[Any, Any]]] = {}
        self._maker = ThreadPoolExecutor(1, "statelog-standbys") if self._wanted else None

    @property
    def open(self) -> Mapping[int, Standby[Any, Any]]:
        """The standbys that are open and follow, by partition."""
        return MappingProxyType(
            {one: future.result() for one, future in sorted(self._made.items()) if _follows(future)}
        )

    def decided(self) -> None:
        """Wait a little before opening standbys, because the group has decided something."""
        if self._wanted:
            self._due_s = self._clock() + _QUIET_S

    def maintain(self, held: Callable[[int], bool]) -> None:
        """Open missing standbys, on another thread, for partitions that are not `held`. Never waits."""
        if self._maker is None or self._clock() < self._due_s:
            return
        self._due_s = self._clock() + _RETRY_S
        for partition in self._wanted:
            future = self._made.get(partition)
            if future is not None and future.done() and not _follows(future):
                self._drop(partition, future, future.exception())
            if partition not in self._made and not held(partition):
                self._made[partition] = self._maker.submit(self._open_one, partition)

    def promote(self, partition: int) -> Table[Any, Any] | None:
        """Promote the standby of a partition, and return its table; None if there is no standby.

        Raises ConfigError, Fenced, OutcomeUnknown, Unavailable, Damaged.
        """
        future = self._made.get(partition)
        if future is None or future.cancel():
            self._made.pop(partition, None)
            return None
        error = future.exception()  # A standby that still opens has read a part already: wait for the rest.
        if error is not None or future.result().life is not Life.OPEN:
            self._drop(partition, future, error)
            return None
        standby = future.result()
        try:
            return standby.promote()
        finally:
            if standby.life is not Life.OPEN:  # Promoted, or closed by an error after the Open.
                self._made.pop(partition, None)

    def close(self) -> None:
        """Close all standbys; one that still opens, once it is open."""
        made, self._made = self._made, {}
        with ExitStack() as closing:
            for future in made.values():
                closing.callback(future.add_done_callback, _close)  # Later, if this wait is interrupted.
            if self._maker is not None:
                self._maker.shutdown(cancel_futures=True)

    def _drop(self, partition: int, future: "Future[Standby[Any, Any]]", error: BaseException | None) -> None:
        _LOG.warning("the standby of partition %d ended: %s", partition, error or "it does not follow any more")
        del self._made[partition]
        _close(future)


def _is_ready(future: "Future[Standby[Any, Any]]") -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


def _follows(future: "Future[Standby[Any, Any]]") -> bool:
    return _is_ready(future) and future.result().life is Life.OPEN


def _close(future: "Future[Standby[Any, Any]]") -> None:
    if _is_ready(future):
        future.result().close()
