"""`CommitScheduler`: when a table commits, and the steps of a commit, from the layers to the writer and the state.

    seal a layer ─► Arrow ─► persist ─► durable ─► Commit sent ─► valid ─► state.apply, with its place ─► drop the layer
                             several at a time     one at a time; it takes all that are durable by then

One Commit can make several checkpoints history at once, with the progress of the newest. So the ledger's round trip
limits how often they become history, and not how many there are.

Invariants:
- Outcomes come in the order of the commits. Once one has failed, all later ones fail.
- A layer is dropped only after the state has it, so a read misses nothing in between.
- A refusal before anything is sent leaves the layers as they were. Any other error ends the table, whatever its class:
  a store may refuse the changes of a commit that is history.
- A progress is committed with the changes that were made when it was named, never with later ones. That holds for a
  progress that `commit_every` deferred, and for the last one in a call that names none.
- Rows that are due are deleted by commits, right before the changes of one are logged. A refusal takes that back, too.
- Everything happens on the table's thread, while it puts, commits or waits.
"""

import math
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from statelog.errors import InvalidMetadata, Misuse
from statelog.pending import Pending
from statelog.producer import Writer
from statelog.producer.change_maker import ChangeMaker
from statelog.producer.guard import Life, is_refusal
from statelog.schemas.changes.due import DUE
from statelog.schemas.descriptor import HashRule
from statelog.schemas.key_groups import KeyType
from statelog.schemas.ledger.handle import Handle
from statelog.schemas.ledger.place import Metadata, Place, check_metadata
from statelog.schemas.ledger.state import LastCommit
from statelog.tables.expiry import Expiry
from statelog.tables.layers import Layer, Layers, LoggedChange, dues_behind
from statelog.tables.outputs import TableOutputs
from statelog.tables.setup import TableSetup, tuning_of
from statelog.tables.state.state import State
from statelog.tables.state.store import StatePlace

LARGE = 1 << 19
"""The least change whose exact size is checked at the put, instead of at the commit: every log's limit is higher."""

_FEW = 200
_EXACT_MS = 1 << 42
"""Below it, which is the year 2109, milliseconds come back exactly from seconds as a float."""
_CHECK_S = 0.001
"""How often `commit_every` takes answers to pending commits."""
_PROGRESS_BYTES_MAX = 1 << 20
"""The bound of a progress, besides a quarter of a ledger record. A place to resume at takes less."""
_MOST_UTF8 = 4

Named: TypeAlias = tuple[Metadata, int, int, Metadata]
"""The last named progress; the count of changes and of the active layer's keys at that time; and the progress of the
last commit, pending or history. The latter is the same object, unless the named one was deferred. A plain tuple,
because each `commit_every` makes one.
"""


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    """A checkpoint that is persisted, or about to be, and its pending commit. One without a handle was sent inside its
    commit.
    """

    handle: Pending[Handle] | None
    progress: Metadata
    commit: Pending[LastCommit]


class _SentCommit(NamedTuple):
    """A sent Commit, and how many checkpoints it makes history."""

    commit: Pending[LastCommit]
    checkpoints: int


class CommitScheduler:
    """The commits of one table. `advance`: the table's own `step`, for holders of a pending commit."""

    def __init__(
        self,
        setup: TableSetup,
        writer: Writer,
        state: State,
        layers: Layers,
        expiry: Expiry,
        outputs: TableOutputs,
        advance: Callable[[float | None], None],
    ) -> None:
        self._setup = setup
        self._clock = setup.environment.clock
        self._writer = writer
        self._opened = StatePlace.of(writer)
        """Its count of accepted losses stays that of the opening: the state may have changes that were lost since."""
        self._state = state
        self._layers, self._expiry, self._outputs = layers, expiry, outputs
        self._advance = advance
        self._checkpoints: deque[_Checkpoint] = deque()
        self._sent: _SentCommit | None = None
        self.applied = 0
        """How often commits have changed what a running scan reads: the state took one, or one deleted what is due."""
        self.refusal: Misuse | None = None
        """The error of a commit that was refused before anything was sent."""
        progress: Metadata = dict(writer.last_commit.metadata) if writer.last_commit else {}
        self._named: Named = (progress, 0, 0, progress)
        self._quiet = math.nan, -math.inf, 0
        """With this interval, `commit_every` has nothing to do before this time, and below this count of changes."""
        self._put_bytes = 0
        self._committed_s = self._clock()
        of, schema = writer.grant.descriptor, writer.grant.value_schema
        self._is_plain = schema.id == 0 and of.key_type is KeyType.BYTES
        """Whether keys and values are bytes, so that the writer takes them as they are."""
        self._is_placed = of.hash_rule is HashRule.CALLER

    # ---- which progress

    def last_named(self, count: int) -> Metadata:
        """Return the progress of a call that names none. `count`: how often the table was changed.

        Raises Misuse if the table was changed since a progress was named, which therefore belongs to an older state.
        """
        named, named_count, _, committed = self._named
        if count == named_count:
            return named
        if named or committed:
            raise Misuse(
                "the table was changed since a progress was named, and this call names none",
                **self._writer.grant.facts,
                hint="Name the progress that the changes lead to (`table.progress`, if it is still the last commit's)",
            )
        return {}

    def undone(self, count: int) -> None:
        """Note that all changes since the last commit are undone."""
        committed = self._named[3]
        self._named = committed, count, 0, committed

    def undone_since(self, count: int, now_count: int) -> None:
        """Note that all changes since that count are undone."""
        named, named_count, keys, committed = self._named
        if named_count == count:
            self._named = named, now_count, keys, committed

    def carried_on(self, count: int, now_count: int) -> None:
        """Note that the changes since that count lead to the progress that was named at it, if any was."""
        named, named_count, _, committed = self._named
        if named_count == count != now_count and not self._layers.suspended:
            self._named = {**named}, now_count, len(self._layers.active.changes), committed  # A deferred one.

    # ---- when

    def note(self, interval_s: float, progress: Metadata | None, count: int, keys: int) -> Named | None:
        """Note the progress of a `commit_every` call, with the counts of changes and of the active layer's keys.

        Return the earlier progress, for `commit_if_due`, if the call has more to do. Raises Misuse.
        """
        before, (quiet_interval_s, quiet_until_s, quiet_count) = self._named, self._quiet
        if interval_s != quiet_interval_s:
            check_interval(interval_s)
            quiet_until_s = -math.inf
        try:
            named: Metadata = self.last_named(count) if progress is None else {**progress}
        except TypeError:
            check_metadata(progress)
            raise
        self._named = named, count, keys, self._named[3]  # At once: a signal's handler may commit in between.
        return before if count >= quiet_count or self._clock() >= quiet_until_s else None

    def check_at_once(self) -> None:
        """Have the next call of `commit_every` check whether it has to commit."""
        interval_s, _, count = self._quiet
        self._quiet = interval_s, -math.inf, count

    def check_size(self, key: Any, value: Any, *, is_timed: bool = False) -> int:
        """Estimate the size of a change; the value None deletes. Raises ValueTooLarge if no chunk could hold it, with a
        due if it `is_timed`.
        """
        keys = self._setup.keys
        size = keys.size(key) + (0 if value is None else self._state.values.size(value))
        if size >= LARGE:
            grant = self._writer.grant
            maker = ChangeMaker(grant.descriptor, grant.value_schema.stored, grant.partitions)
            maker.of_rows([keys.plain(key)], [value], [keys.group(key)], [0] if is_timed else None)
        return size

    def weigh(self, put_bytes: int) -> None:
        """Count bytes that were put."""
        self._put_bytes += put_bytes
        if self._put_bytes >= self._setup.settings.uncommitted_bytes_max:
            self.check_at_once()

    def commit_if_due(self, interval_s: float, before: Named) -> None:
        """Commit the noted progress if it is due, or there are too many changes. Raises the errors of `commit`."""
        self._outputs.check()
        self.step()
        now_s, layers, settings = self._clock(), self._layers, self._setup.settings
        named, count, *_ = self._named
        left = settings.uncommitted_changes_max - len(layers.active.changes)
        is_full = left <= 0 or self._put_bytes >= settings.uncommitted_bytes_max
        if is_full or now_s - self._committed_s >= interval_s or layers.suspended:
            if self._is_news(named):
                try:
                    self.commit(named, count)
                except Misuse:
                    if layers.suspended:  # The transaction may undo the changes that the progress belongs to.
                        self._named = before
                    raise
            self._put_bytes, self._committed_s = 0, now_s
        until_s = min(self._committed_s + interval_s, now_s + _CHECK_S if self._checkpoints else math.inf)
        left = settings.uncommitted_changes_max - len(layers.active.changes)
        self._quiet = interval_s, -math.inf if layers.suspended else until_s, count + left

    def finish(self, count: int) -> None:
        """Commit the deferred progress with its changes, and wait for all pending commits.

        If no progress was ever named, commit all changes. Changes after the progress stay in the active layer.
        """
        named, named_count, keys, committed = self._named
        if not (named or committed or self._layers.suspended):
            later: Layer | None = Layer()
        else:
            later = self._layers.cut(keys, named_count, count - named_count) if named is not committed else None
        if later is not None:
            if self._is_news(named):
                self.commit(named, count)
            self._layers.active = later
        while self._checkpoints:
            self.step(None)

    def _is_news(self, progress: Metadata) -> bool:
        return not self._layers.is_clean or progress != self._named[3] or self._expiry.has_overdue

    # ---- commit

    def commit(self, progress: Metadata, count: int) -> Pending[LastCommit]:
        """Make the active layer the next checkpoint, after waiting for older ones if too many are pending. Raises
        InvalidMetadata, InvalidChange, Misuse, after which the table goes on; any other error ends it.
        """
        self._outputs.check()
        with self.refusing():
            _check_progress(progress, self._writer.grant.descriptor.record_bytes_max)
        while len(self._checkpoints) >= tuning_of(self._setup.settings).commits_under_way_max:
            self.step(None)
        with self.refusing():
            layer = self._layers.seal()
            swept = self._expiry.sweep(layer)
            try:
                self._log(layer)
            except Misuse as refusal:
                if is_refusal(refusal):
                    self._expiry.unsweep(layer, swept)
                    self._layers.unseal()
                raise
        self.applied += bool(swept)
        self._outputs.log(layer)
        self._setup.environment.crash("sealed")
        progress = dict(progress)
        commit = self._send(progress)
        self._named = progress, count, 0, progress
        self._put_bytes, self._committed_s = 0, self._clock()
        self.step()
        return commit

    def _send(self, progress: Metadata) -> Pending[LastCommit]:
        """Send the logged changes: inside the commit if they are few and no other is pending; else ahead of it."""
        sent = None if self._checkpoints else self._writer.commit_carried(progress)
        if sent is None:
            handle = self._writer.persist()
            commit = self._promise(handle.checkpoint_id)
            self._checkpoints.append(_Checkpoint(handle, progress, commit))
            return commit
        commit = self._promise(sent.checkpoint_id)
        self._checkpoints.append(_Checkpoint(None, progress, commit))
        self._sent = _SentCommit(sent, 1)
        return commit

    def step(self, timeout_s: float | None = 0.0) -> None:
        """Take answers, and wait up to `timeout_s` for the one that the oldest commit needs. Raises its error."""
        while self._checkpoints:
            if self._sent is None:
                if not self._confirm(timeout_s):
                    return
            elif timeout_s is None or self._sent.commit.wait(timeout_s):
                self._conclude(self._sent)
            else:
                return
            timeout_s = 0.0

    def fail(self, error: BaseException) -> None:
        """End the pending commits with the error that ended the table."""
        while self._checkpoints:
            self._checkpoints.popleft().commit.fail(error)
        self._sent = None

    @contextmanager
    def refusing(self) -> Generator[None]:
        """Note a refusal inside the block, which changed nothing."""
        try:
            yield
        except Misuse as refusal:
            self.refusal = refusal if is_refusal(refusal) else None
            raise

    # ---- logging

    def _log(self, layer: Layer) -> None:
        """Give a layer's changes to the writer, in bulk. Raises InvalidChange before any of them is taken."""
        keys, values, dues = self._logged(layer)
        is_few = len(keys) <= _FEW and max(filter(None, dues or ()), default=0) < _EXACT_MS
        if is_few and self._is_plain:  # For few changes, Arrow's calls take longer than a loop.
            dues_s = repeat(None) if dues is None else [due_ms and due_ms / 1000 for due_ms in dues]
            if self._is_placed:
                for (group, key), value, due_s in zip(self._setup.keys.placed(keys), values, dues_s, strict=False):
                    self._writer.append(group, key, value, due_s)
                return
            for key, value, due_s in zip(keys, values, dues_s, strict=False):
                if value is None:
                    self._writer.delete(key)
                else:
                    self._writer.put(key, value, due_s)
        elif keys:
            columns = {**self._setup.keys.columns(keys), "value": self._state.values.column(values)}
            if dues is not None:
                columns[DUE.name] = pa.array(dues, DUE.type)
            self._writer.append_batch(pa.table(columns))

    def _logged(self, layer: Layer) -> tuple[list[Any], list[Any], list[int | None] | None]:
        """Return the keys, values and dues to log; None for dues if no row has one."""
        settings, dues = self._setup.settings, layer.dues
        if not settings.every_change and not settings.skip_equal:
            keys = list(layer.changes)
            return keys, list(layer.changes.values()), list(map(dues.get, keys)) if dues else None
        changes = layer.history
        if not settings.every_change:
            changes = [(key, value, dues.get(key)) for key, value in layer.changes.items()]
        if settings.skip_equal:
            changes = self._without_equal(changes)
        keys, values, found = ([one[part] for one in changes] for part in range(3))
        return keys, values, found if any(due_ms is not None for due_ms in found) else None

    def _without_equal(self, changes: list[LoggedChange]) -> list[LoggedChange]:
        """Return the changes without those that, in their order, leave a value and its due as they are."""
        now: dict[Any, tuple[Any, int | None]] = {}
        changed: list[LoggedChange] = []
        for key, value, due_ms in changes:
            if key not in now:
                now[key] = self._committed(key)
            if now[key][1] != due_ms or not self._state.values.is_same(now[key][0], value):
                changed.append((key, value, due_ms))
                now[key] = value, due_ms
        return changed

    def _committed(self, key: Any) -> tuple[Any, int | None]:
        """Return the value and the due of a key below the layer that was sealed last, hidden or not."""
        holding = next((one for one in self._layers.sealed_before if key in one.changes), None)
        if holding is not None:
            return holding.changes[key], holding.dues.get(key)
        return self._state.stored(key), self._state.due_ms(key) if self._expiry.is_timed else None

    # ---- outcomes

    def _promise(self, checkpoint_id: int) -> Pending[LastCommit]:
        advance, clock = self._advance, self._clock

        def is_over(timeout_s: float) -> bool:
            until_s = clock() + timeout_s
            advance(timeout_s)
            while not commit.is_over and clock() < until_s:
                advance(until_s - clock())
            return commit.is_over

        def take() -> LastCommit:
            while not commit.is_over:
                advance(None)
            return commit.result()

        commit: Pending[LastCommit] = Pending(f"the commit of checkpoint {checkpoint_id}", checkpoint_id, is_over, take)
        return commit

    def _confirm(self, timeout_s: float | None) -> bool:
        """Send a Commit of all durable checkpoints. Return False if the oldest is not durable within the timeout."""
        oldest = self._checkpoints[0].handle
        assert oldest is not None, "a checkpoint that was sent inside its commit is not confirmed again"
        if timeout_s is not None and not oldest.wait(timeout_s):
            return False
        durable, handle = 1, oldest.result()
        for checkpoint in list(self._checkpoints)[1:]:
            if checkpoint.handle is None or not checkpoint.handle.done():
                break
            durable, handle = durable + 1, checkpoint.handle.result()
        self._sent = _SentCommit(self._writer.confirm_async(handle, self._checkpoints[durable - 1].progress), durable)
        return True

    def _conclude(self, sent: _SentCommit) -> None:
        """Wait until the sent Commit is history, apply its changes to the state, and resolve the pending commits."""
        commit = sent.commit.result()
        self._sent = None
        changes, dues = dict[Any, Any](), dict[Any, int]()
        layers = self._layers.oldest(sent.checkpoints)
        for layer in layers:
            dues = dues_behind(dues, layer)
            changes = {**changes, **layer.changes} if changes else layer.changes
        # Right after the Commit, or after the Open that resolved it. A fenced writer may have read on into another's.
        place = self._writer.place if self._writer.life is Life.OPEN else Place(commit.offset + 1)
        self._setup.environment.crash("history")
        self._state.apply(changes, replace(self._opened, ledger=place), dues)
        self._setup.environment.crash("applied")
        self._layers.committed(sent.checkpoints)
        self._expiry.committed()
        self.applied += 1
        self._outputs.committed(layers)
        for _ in range(sent.checkpoints):
            self._checkpoints.popleft().commit.end(commit)


def check_interval(interval_s: object) -> None:
    """Raise Misuse unless the interval is a number of seconds."""
    if not isinstance(interval_s, int | float) or math.isnan(interval_s):
        raise Misuse(f"the interval is {interval_s!r}, not a number of seconds", hint="Call commit_every(1.0)")


def _check_progress(progress: Metadata, record_bytes_max: int) -> None:
    check_metadata(progress)
    bytes_max = min(_PROGRESS_BYTES_MAX, record_bytes_max // 4)
    texts = [*progress, *(value for value in progress.values() if isinstance(value, str))]
    if _MOST_UTF8 * sum(map(len, texts)) > bytes_max:
        raise InvalidMetadata(
            "the progress is too large",
            characters=sum(map(len, texts)),
            characters_max=bytes_max // _MOST_UTF8,
            hint="Name only the place to resume at, and put other data into the state",
        )
