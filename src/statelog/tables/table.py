"""`Table`: keyed state that survives. A mapping whose changes are committed together with the caller's progress.

    layers       uncommitted changes                 layers.py
    expiry       rows with a due, and timers         expiry.py, timers.py
    scheduler    when to commit; pending commits     scheduler.py
    writer       sends and commits them              producer
    state        the committed state                 state/state.py

The protocol, with "if we die after step n": docs/protocol-table.md.

Invariant: a commit that failed, or whose outcome is unknown, ends the table. It answers no read any more.
"""

from collections.abc import Callable, Generator, Iterator, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import get_ident
from typing import Any, ParamSpec, Self, TypeVar

from statelog.closing import undone_by_errors
from statelog.errors import ClosedError, Misuse, NotCommitted, UncommittedChanges
from statelog.log.options import K, V
from statelog.pending import Pending
from statelog.producer import Writer
from statelog.producer.guard import NOBODY, Guard, Guarded, Life
from statelog.schemas.changes.due import When
from statelog.schemas.ledger.place import Metadata
from statelog.schemas.ledger.state import LastCommit
from statelog.tables.emitting import Emitting
from statelog.tables.expiry import Expiry
from statelog.tables.layers import Layer, Layers
from statelog.tables.outputs import TableOutputs
from statelog.tables.scheduler import LARGE, CommitScheduler, Named
from statelog.tables.setup import TableSetup
from statelog.tables.state.state import State
from statelog.tables.state_opener import OpenReport
from statelog.warn import warn_caller

P = ParamSpec("P")
R = TypeVar("R")

_MISSING = object()
_APART = "Open one in each, of other partitions"
_WEIGHED = 4 << 10
"""The least put whose bytes are counted; the count of changes bounds smaller ones of bytes well enough."""


class Table(Emitting[K, V], MutableMapping[K, V]):
    """A mapping of keys (bytes, str, int) to values (bytes, dicts by a value schema, JSON values) that survives.

        table[b"alice"] = b"1"
        table.commit({"offset": 42})

    Made by `statelog.table`. Belongs to one thread of one process. Changing it while it is iterated raises Misuse, and
    so does a key or value of another type, in every method. Leaving its `with` block closes it, as `close` says. After
    an error it commits nothing more.
    """

    def __init__(self, setup: TableSetup, writer: Writer, state: State, opening: OpenReport) -> None:
        self.opening = opening
        """How it was opened: from where, how much was read, what was set aside."""
        self._setup, self._writer, self._state = setup, writer, state
        self._layers = Layers()
        self._expiry = Expiry(setup, state, self._layers)  # First: it may refuse the settings.
        self._guard = Guard("table", writer.name, log=setup.log.name, again="Open it again", apart=_APART)
        self._keys, self._values = setup.keys, state.values
        self._quick, self._quick_value = self._keys.quick_class, self._values.quick_class
        self._every = setup.settings.every_change
        self._refresh()
        self._count = self._sends = 0
        self._is_lent = False
        self._outputs = TableOutputs(setup, writer)
        self._commits = CommitScheduler(setup, writer, state, self._layers, self._expiry, self._outputs, self._advance)
        with undone_by_errors(partial(self._end, is_failed=True)):
            self._outputs.begin()
        setup.environment.made(self, setup.log.name, writer.name)

    # ---- what it is

    @property
    def last_commit(self) -> LastCommit | None:
        """The last commit that is history: checkpoint, ledger offset, and `metadata`, the progress. None before the
        first. For `AtPosition` use the table's `position`, not this offset.
        """
        return self._writer.last_commit

    @property
    def position(self) -> int:
        """The ledger position of the committed state, for `recover(at_least=)` elsewhere."""
        return self._writer.position

    @property
    def is_local(self) -> bool:
        """Whether all of the state is local; else some is read from a snapshot (`TableSettings.loading`)."""
        return self._state.is_local

    @property
    def changes(self) -> int:
        """How often this object was changed, and has sent. The same number twice means that neither was in between."""
        return self._count

    @property
    def life(self) -> Life:
        """Whether it is open, failed or closed."""
        return self._guard.life

    def __repr__(self) -> str:
        return f"Table({self._setup.log.name!r}, writer={self._writer.name!r}, {self.life.value})"

    # ---- one key

    def get(self, key: K, default: Any = None) -> Any:
        """Return the value of a key, or the default. A row that is due is none.

        Raises InvalidChange for a key of another type, KeyGroupMismatch for one that is not the table's, ClosedError.
        """
        if get_ident() != self._guard.user:
            self._guard.check()
        if type(key) is not self._quick:
            key = self._keys.admit(key)
        value = self._active.get(key, _MISSING)
        if value is _MISSING:
            value = self._read_below(key) if self._below else self._read(key)
        if value is None:
            return default
        if self._plain:
            return value
        return default if self._timed and self._expiry.is_over(key) else self._values.copy(value)

    def put(self, key: K, value: V, due: When | None = None) -> None:
        """Set a key to a value. It is part of the state at once, and of history with the next commit.

        `due`: when the row expires, in seconds since 1970 or as a datetime with a time zone. No read returns it from
        then on, and the next commit deletes it, unless `run_due` is used. A put without `due` ends an earlier one; in a
        log with `ttl_s` it is due after so many seconds.

        Raises InvalidChange, ValueTooLarge, KeyGroupMismatch, ClosedError; nothing is changed then. Raises Misuse for a
        due in a table that loads on demand.
        """
        if get_ident() != self._guard.user:
            self._guard.check()
        if (
            type(key) is not self._quick or type(value) is not self._quick_value or len(key) + len(value) >= _WEIGHED  # type: ignore[arg-type]  # both are bytes
        ):
            key, value = self._admit(key, value, is_timed=due is not None or self._timed)
        if due is not None or self._noting:
            self._note(key, value, due)
        else:
            self._count += 1
            self._active[key] = value

    __setitem__ = put

    def delete(self, key: K) -> None:
        """Remove a key, if it exists. Raises InvalidChange, ValueTooLarge, KeyGroupMismatch, ClosedError."""
        if get_ident() != self._guard.user:
            self._guard.check()
        if type(key) is not self._quick or len(key) >= LARGE:  # type: ignore[arg-type]  # it is bytes
            key = self._keys.admit(key)
            self._commits.check_size(key, None)
        if self._noting:
            self._note(key, None)
        else:
            self._count += 1
            self._active[key] = None

    def __delitem__(self, key: K) -> None:
        if key not in self:
            raise KeyError(key)
        self.delete(key)

    def _read_below(self, key: Any) -> Any:
        for changes in self._below:
            value = changes.get(key, _MISSING)
            if value is not _MISSING:
                return value
        return self._read(key)

    def _admit(self, key: object, value: object, *, is_timed: bool) -> Any:
        is_bytes = type(key) is self._quick and type(value) is self._quick_value
        size = len(key) + len(value) if is_bytes else LARGE  # type: ignore[arg-type]  # both are bytes
        if size >= LARGE:
            key, value = self._keys.admit(key), self._values.admit(value, key)
            size = self._commits.check_size(key, value, is_timed=is_timed)
        self._commits.weigh(size)
        return key, value

    # ---- many keys

    @Guarded.turn
    def __len__(self) -> int:
        """Count the keys. The first time RocksDB counts them one by one."""
        with self._expiry.still():
            changes = self._layers.merged()
            while True:
                count = committed = len(self._state)
                for key, value in changes.items():
                    is_there = value is not None and not (self._timed and self._expiry.is_over(key))
                    count += is_there - (self._read(key) is not None)
                if len(self._state) == committed:  # Else the snapshot was replaced meanwhile: count again.
                    return count

    @Guarded.turn
    def _scan(self, key_groups: Sequence[int] | None, *, keys_only: bool = False) -> Iterator[tuple[K, V]]:
        wanted = None if key_groups is None else frozenset(key_groups)
        committed = self._state.items(key_groups)
        is_over = self._expiry.is_over if self._timed else None
        found = self._layers.over(committed, lambda key: wanted is None or self._keys.group(key) in wanted, is_over)
        return self._unchanged(found, self._counts, keys_only=keys_only)

    @Guarded.turn
    def range(self, start: K | None = None, end: K | None = None, *, reverse: bool = False) -> Iterator[tuple[K, V]]:
        """Iterate over keys and values from `start` on and below `end` (None: no bound), in key order or in reverse.

        RocksDB seeks in every key group, or in that of the prefix; a dict reads all its keys. Raises InvalidChange.
        """
        first, behind = self._keys.bound(start), self._keys.bound(end)
        committed = self._state.range(first, behind, reverse=reverse)
        is_over = self._expiry.is_over if self._timed else None
        found = self._layers.over_range(committed, first, behind, is_over, reverse=reverse)
        return self._unchanged(found, self._counts)

    def clear(self) -> None:
        """Remove every key."""
        for key in list(self):
            self.delete(key)

    def _unchanged(
        self, found: Iterator[tuple[Any, Any]], counts: tuple[int, int], *, keys_only: bool = False
    ) -> Iterator[tuple[K, V]]:
        """Yield copies of the found items, which are read as they are taken. Raises Misuse once the table has more
        changes and commits than `counts`. Messages are none: their number is compared only when something moved.
        """
        copy, guard, nobody = self._values.copier(keys_only=keys_only), self._guard, NOBODY
        count, sends = counts
        while True:
            user = get_ident()
            if user != guard.user:
                guard.check()
            if self._count + self._commits.applied != count:
                scanned = count - sends
                count, sends = self._counts
                if count - sends == scanned:
                    continue
                raise Misuse(
                    "the table was changed, or committed, while it was iterated",
                    **self._writer.grant.facts,
                    hint="Take a list of the keys first: `for key in list(table)`",
                )
            try:
                try:
                    guard.user = nobody
                    key, value = next(found)
                finally:
                    guard.user = user
            except StopIteration:
                return
            except BaseException:
                guard.break_off()
                raise
            yield key, copy(value)

    # ---- commit

    @Guarded.turn
    def commit(self, progress: Metadata | None = None) -> LastCommit:
        """Make all changes history, in one commit with `progress`, and wait for it.

        Without changes it commits the progress alone. Without `progress` it commits the last named one; the table must
        not have changed since then.

        Raises InvalidMetadata, Misuse for a missing progress, and InvalidChange for a typed value that no schema takes.
        Nothing is sent then, and the table goes on. Any other error ends it: PersistFailed, Fenced, OutcomeUnknown,
        CommitRefused, Unavailable, Damaged. Open the table again, and resume from its `progress`.
        """
        commit = self._send(progress)
        while not commit.is_over:
            self._step(None)
        return commit.result()

    @Guarded.turn
    def commit_async(self, progress: Metadata | None = None) -> Pending[LastCommit]:
        """Commit as `commit` does, without waiting: later changes belong to the next commit.

        Up to four of them may be pending; then it waits for the oldest. Raises PersistFailed,
        Fenced, OutcomeUnknown, CommitRefused, Unavailable, Damaged for earlier commits, and the refusals of `commit`.
        """
        return self._send(progress)

    def _send(self, progress: Metadata | None) -> Pending[LastCommit]:
        self._check_unlent()
        return self._commit(self._commits.last_named(self._count) if progress is None else progress)

    def _commit(self, progress: Metadata) -> Pending[LastCommit]:
        return self._failing(self._commits.commit, progress, self._count)

    def lend(self, *, sweeps: bool = True) -> Callable[[Metadata], Pending[LastCommit]]:
        """Reserve the table for a worker, and return the function that alone commits from now on. Only a transaction
        undoes changes then. `sweeps`: whether commits delete rows that are due.
        """
        self._is_lent = True
        self._expiry.sweeps = sweeps
        return self._commit_lent

    @Guarded.turn
    def _commit_lent(self, progress: Metadata) -> Pending[LastCommit]:
        return self._commit(progress)

    @Guarded.turn
    def hand_over(self) -> Callable[[], None]:
        """Release the table from this thread. The thread that calls the returned function owns it from then on."""
        return self._guard.hand_over(self._writer.hand_over())

    def _check_unlent(self) -> None:
        if self._is_lent:
            raise Misuse(
                "the table belongs to a worker, which commits it with its place in the input",
                **self._writer.grant.facts,
                hint="Commit with the worker's methods, and undo with `with table.transaction():`",
            )

    def commit_every(self, interval_s: float, progress: Metadata | None = None) -> None:
        """Commit, as `commit_async`, if `interval_s` has passed since the last commit. Call it after each message.

        It also commits after many changes (`uncommitted_bytes_max`). In between it only
        notes the progress, and `close`, at the end of the `with` block, commits the last noted one. While there are no
        messages, call it without `progress`, which works as in `commit`. Raises the errors of `commit_async`, and
        Misuse if `interval_s` is no number.
        """
        if get_ident() != self._guard.user:
            self._guard.check()
        if self._is_lent:
            self._check_unlent()
        before = self._commits.note(interval_s, progress, self._count, len(self._active))
        if before is not None:
            self._commit_if_due(interval_s, before)

    @Guarded.turn
    def _commit_if_due(self, interval_s: float, before: Named) -> None:
        self._failing(self._commits.commit_if_due, interval_s, before)

    # ---- undo

    @Guarded.turn
    def rollback(self) -> None:
        """Undo all changes since the last commit, pending or not; inside a transaction, all since it began. Raises
        Misuse for a worker's table outside a transaction.
        """
        is_inside = bool(self._layers.suspended)
        if not is_inside:
            self._check_unlent()
        self._failing(self._undo, is_inside)

    def _undo(self, is_inside: bool) -> None:
        self._layers.active = Layer()
        self._expiry.undone()
        self._count += 1
        if not is_inside:
            self._commits.undone(self._count)

    @contextmanager
    def transaction(self) -> Generator[Self]:
        """Undo the changes of the block if it raises. The block commits nothing, and blocks may be nested.

        with table.transaction():
            table[b"alice"], table[b"bob"] = b"0", b"2"
        """
        count, begun = self._count, list[Layer]()
        try:
            self._begin(begun)
            yield self
            self._end_transaction(begun, count, keep=True)
        except BaseException:  # Also from a signal's handler, anywhere: a begun transaction ends exactly once.
            self._end_transaction(begun, count, keep=False)
            raise

    @Guarded.turn
    def _begin(self, begun: list[Layer]) -> None:
        self._commits.check_at_once()
        self._failing(lambda: begun.append(self._layers.begin()))

    @Guarded.late_turn
    def _end_transaction(self, begun: list[Layer], count: int, *, keep: bool) -> None:
        if self.life is Life.OPEN and begun:
            self._failing(self._end_begun, begun, count, keep=keep)

    def _end_begun(self, begun: list[Layer], count: int, *, keep: bool) -> None:
        with self._commits.refusing():
            is_void = not keep or self._layers.active.is_empty
            if not keep:
                self._expiry.undone()
            try:
                self._layers.end(begun.pop(), keep=keep)
            except Misuse:
                self._expiry.undone()
                self._count += 1
                raise
            if not keep:
                self._count += 1
            if is_void:
                self._commits.undone_since(count, self._count)

    @Guarded.last_turn
    def close(self) -> None:
        """Commit, and release everything. Idempotent.

        If no progress was ever named, all changes are committed. Otherwise those that `commit_every` has deferred are.
        Changes after the last named progress are discarded, and raise NotCommitted; in a worker's table they give an
        UncommittedChanges warning. If they replaced a deferred value, no deferred change is committed.

        A table that has failed commits nothing. Raises PersistFailed, Fenced, OutcomeUnknown, CommitRefused,
        Unavailable, Damaged. The table is released in any case.
        """
        if self.life is not Life.OPEN or not self._guard.is_owned:
            self._end(is_failed=True)
            return
        try:
            self._failing(self._commits.finish, self._count)
        except BaseException:
            self._end(is_failed=True)
            raise
        is_lost, lost, unsent = not self._layers.is_clean, len(self._layers.merged()), self._layers.unsent
        self._end(is_failed=False)
        if is_lost and self._is_lent:
            warn_caller(f"{self._guard} was closed with uncommitted changes; they are discarded", UncommittedChanges)
        elif is_lost:
            raise NotCommitted(
                f"the table {self._setup.log.name} was closed with changes that no commit holds; they are discarded",
                **self._writer.grant.facts,
                changed_keys=lost,
                **({"messages": unsent} if unsent else {}),
                hint="Call `commit` or `commit_every` after the last change, with the progress that it leads to "
                "(`table.progress`, if it is still that of the last commit), or undo it with `rollback`",
            )

    def _end(self, *, is_failed: bool) -> None:
        if self._guard.end():
            closed = ClosedError("the table was closed before this commit was over", **self._writer.grant.facts)
            self._commits.fail(closed)
            self._layers.forget()
            self._refresh()
            with ExitStack() as closing:
                closing.push(self._setup)
                closing.callback(self._state.close)
                closing.callback(self._outputs.close, is_failed=is_failed)
                if is_failed:  # Without a warning of uncommitted changes.
                    self._writer.__exit__(RuntimeError, None, None)
                else:
                    self._writer.close()

    def _failing(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run `work`, and end the table with any error but a refusal: the writer has ended, or the state is behind.

        A function and not a `with` block: a signal's handler may raise at the end of a block. Puts would then go into a
        sealed layer, and never be logged.
        """
        commits = self._commits
        try:
            try:
                return work(*args, **kwargs)
            finally:
                self._refresh()
        except BaseException as error:
            if error is not commits.refusal or self._writer.life is not Life.OPEN:
                commits.fail(error)
                self._guard.fail()
            raise
        finally:
            commits.refusal = None

    @Guarded.turn
    def _advance(self, timeout_s: float | None) -> None:
        """Step, for the holder of a pending commit."""
        self._step(timeout_s)

    def _step(self, timeout_s: float | None) -> None:
        self._failing(self._commits.step, timeout_s)

    def _refresh(self) -> None:
        """Refer to the present layers directly, for the speed of reads and puts."""
        layers = self._layers
        self._active, self._below = layers.active.changes, layers.below
        self._read = self._state.get
        self._timed = timed = self._expiry.is_timed
        self._noting = timed or self._every
        self._plain = self._values.is_plain and not timed
