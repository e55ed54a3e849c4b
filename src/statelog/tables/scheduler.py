"""`CommitScheduler`: when a table commits, and the way of a commit: from the layers to the writer, and once it is
history to the state.

    seal a layer ─► Arrow ─► persist ─► durable ─► Commit sent ─► valid ─► state.apply, with its place ─► drop the layer
                             several at a time     one at a time; it takes all that are durable by then

One Commit can make several checkpoints history at once, with the progress of the newest. So the ledger's round trip
limits how fine commits come, not how many there are.

Invariants:
- Outcomes come in the order of the commits. Once one is not "committed", none behind it is.
- A layer is dropped only after the state has it, so a read misses nothing in between.
- What is refused before anything is sent leaves the layers as they were. Whatever else is raised ends the table, of
  whichever class it is: a store that refuses may do so behind a commit that is history.
- A progress is committed with the changes that were made when it was named, and never with later ones: neither what
  `commit_every` put off, nor the last one in a call that names none.
- Everything happens in the table's thread, while it puts, commits or waits: there is no other.
"""

import math
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from statelog.errors import InvalidMetadata, Misuse
from statelog.pending import Pending
from statelog.producer import Writer
from statelog.producer.change_maker import ChangeMaker
from statelog.producer.guard import Life, is_refusal
from statelog.schemas.descriptor import HashRule
from statelog.schemas.key_groups import KeyType
from statelog.schemas.ledger.handle import Handle
from statelog.schemas.ledger.place import Metadata, Place, check_metadata
from statelog.schemas.ledger.state import LastCommit
from statelog.tables.layers import Layer, Layers
from statelog.tables.setup import TableSetup
from statelog.tables.state.state import State
from statelog.tables.state.store import StatePlace

LARGE = 1 << 19
"""From here on a change is measured when it is put, and not when it is committed: no log's limit is as low."""

_FEW = 200
_LOOK_S = 0.001
"""How often `commit_every` looks for answers to pending commits."""
_PROGRESS_BYTES_MAX = 1 << 20
"""A place to resume at takes less; and so does a quarter of a ledger record."""
_MOST_UTF8 = 4

Named: TypeAlias = tuple[Metadata, int, int, Metadata]
"""The progress that was named last; how often the table was changed then, and how many keys its active layer had; and
what the last commit says, be it history or pending: the same object, unless the progress was put off. A plain tuple, as
each `commit_every` makes one.
"""


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    """A checkpoint that is persisted or about to be, and what its caller waits for. Without a handle it was sent with
    its commit.
    """

    handle: Pending[Handle] | None
    progress: Metadata
    commit: Pending[LastCommit]


class _SentCommit(NamedTuple):
    """A Commit that was sent, and how many checkpoints it makes history."""

    commit: Pending[LastCommit]
    checkpoints: int


class CommitScheduler:
    """The commits of one table. `advance` is the table's own way to `step`, for whoever holds a pending commit."""

    def __init__(
        self, setup: TableSetup, writer: Writer, state: State, layers: Layers, advance: Callable[[float | None], None]
    ) -> None:
        self._setup = setup
        self._clock = setup.environment.clock
        self._writer = writer
        self._opened = StatePlace.of(writer)
        """With the losses that were accepted when the state was opened: what was lost since is in it."""
        self._state = state
        self._layers = layers
        self._advance = advance
        self._checkpoints: deque[_Checkpoint] = deque()
        self._sent: _SentCommit | None = None
        self.applied = 0
        """How many commits the state has taken."""
        self.refusal: Misuse | None = None
        """What a commit was refused with, before anything of it was sent."""
        progress: Metadata = dict(writer.last_commit.metadata) if writer.last_commit else {}
        self._named: Named = (progress, 0, 0, progress)
        self._quiet = math.nan, -math.inf, 0
        """A call with this interval has nothing to do before this time, and below this number of changes."""
        self._put_bytes = 0
        self._committed_s = self._clock()
        of, schema = writer.grant.descriptor, writer.grant.value_schema
        self._is_plain = schema.id == 0 and of.key_type is KeyType.BYTES
        """Whether keys and values are bytes, which a writer takes as they are."""
        self._is_placed = of.hash_rule is HashRule.CALLER

    # ---- which progress

    def last_named(self, count: int) -> Metadata:
        """The progress of a call that names none, of a table that was changed so often. Raises Misuse if it was changed
        since one was named: that is the place of an older state.
        """
        named, named_count, _, committed = self._named
        if count == named_count:
            return named
        if named or committed:
            raise Misuse(
                "the table was changed since a progress was named, and this call names none",
                **self._writer.grant.facts,
                hint="Name the place that the changes lead to; `table.progress`, if it is the one of the last commit",
            )
        return {}

    def undone(self, count: int) -> None:
        """The state is that of the last commit again."""
        committed = self._named[3]
        self._named = committed, count, 0, committed

    def undone_since(self, count: int, now_count: int) -> None:
        """The state is what it was at that count again."""
        named, named_count, keys, committed = self._named
        if named_count == count:
            self._named = named, now_count, keys, committed

    # ---- when

    def note(self, interval_s: float, progress: Metadata | None, count: int, keys: int) -> Named | None:
        """Note the progress of a call of `commit_every`, and that the active layer has so many keys. Returns what was
        named before, for `commit_if_due`, if the call has more to do. Raises Misuse.
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

    def look_at_once(self) -> None:
        """The next call of `commit_every` has something to do."""
        interval_s, _, count = self._quiet
        self._quiet = interval_s, -math.inf, count

    def check_size(self, key: Any, value: Any) -> int:
        """About how large a change is. Raises ValueTooLarge if no chunk could hold it; a value of None deletes."""
        keys = self._setup.keys
        size = keys.size(key) + (0 if value is None else self._state.values.size(value))
        if size >= LARGE:
            grant = self._writer.grant
            maker = ChangeMaker(grant.descriptor, grant.value_schema.stored, grant.partitions)
            maker.of_rows([keys.plain(key)], [value], [keys.group(key)])
        return size

    def weigh(self, put_bytes: int) -> None:
        """So many bytes more were put."""
        self._put_bytes += put_bytes
        if self._put_bytes >= self._setup.settings.uncommitted_bytes_max:
            self.look_at_once()

    def commit_if_due(self, interval_s: float, before: Named) -> None:
        """Commit the noted progress if it is time to, or too much has come in. `before`: what was named before it.

        Raises what `commit` names.
        """
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
                    if layers.suspended:  # It was never named: what it is the place of may be undone.
                        self._named = before
                    raise
            self._put_bytes, self._committed_s = 0, now_s
        until_s = min(self._committed_s + interval_s, now_s + _LOOK_S if self._checkpoints else math.inf)
        left = settings.uncommitted_changes_max - len(layers.active.changes)
        self._quiet = interval_s, -math.inf if layers.suspended else until_s, count + left

    def finish(self, count: int) -> None:
        """Commit the deferred progress with its changes, or, where no progress was ever named, all of them; then wait
        for all pending commits. Changes behind the progress stay in the active layer.
        """
        named, named_count, keys, committed = self._named
        if not (named or committed or self._layers.suspended):
            later: Layer | None = Layer()
        else:
            later = self._layers.cut(keys, count - named_count) if named is not committed else None
        if later is not None:
            if self._is_news(named):
                self.commit(named, count)
            self._layers.active = later
        while self._checkpoints:
            self.step(None)

    def _is_news(self, progress: Metadata) -> bool:
        return not self._layers.is_clean or progress != self._named[3]

    # ---- commit

    def commit(self, progress: Metadata, count: int) -> Pending[LastCommit]:
        """Make the active layer the next checkpoint, once there is room for it. `count` is how often the table changed.

        Raises InvalidMetadata, InvalidChange, Misuse, after which the table goes on; any other error ends it.
        """
        with self.refusing():
            _check_progress(progress, self._writer.grant.descriptor.record_bytes_max)
        while len(self._checkpoints) >= self._setup.settings.commits_under_way_max:
            self.step(None)
        with self.refusing():
            layer = self._layers.seal()
            try:
                self._log(layer)
            except Misuse as refusal:
                if is_refusal(refusal):
                    self._layers.unseal()
                raise
        self._setup.environment.crash("sealed")
        progress = dict(progress)
        commit = self._send(progress)
        self._named = progress, count, 0, progress
        self._put_bytes, self._committed_s = 0, self._clock()
        self.step()
        return commit

    def _send(self, progress: Metadata) -> Pending[LastCommit]:
        """Send what was logged: with its commit, if nothing else is under way and it is little; else ahead of that."""
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
        """Take what has come in, or wait this long for what the oldest commit needs next. Raises what it fails with."""
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
        """The table has ended, and its pending commits with it."""
        while self._checkpoints:
            self._checkpoints.popleft().commit.fail(error)
        self._sent = None

    @contextmanager
    def refusing(self) -> Generator[None]:
        """What is refused inside changed nothing."""
        try:
            yield
        except Misuse as refusal:
            self.refusal = refusal if is_refusal(refusal) else None
            raise

    # ---- what is logged

    def _log(self, layer: Layer) -> None:
        """Give a layer's changes to the writer, in bulk. Raises InvalidChange before any of them is taken."""
        keys, values = self._logged(layer)
        if len(keys) <= _FEW and self._is_plain:  # Of few, Arrow's calls would take longer than the work.
            if self._is_placed:
                for (group, key), value in zip(self._setup.keys.placed(keys), values, strict=True):
                    self._writer.append(group, key, value)
                return
            for key, value in zip(keys, values, strict=True):
                if value is None:
                    self._writer.delete(key)
                else:
                    self._writer.put(key, value)
        elif keys:
            columns = {**self._setup.keys.columns(keys), "value": self._state.values.column(values)}
            self._writer.append_batch(pa.table(columns))

    def _logged(self, layer: Layer) -> tuple[list[Any], list[Any]]:
        settings = self._setup.settings
        if not settings.every_change and not settings.skip_equal:
            return list(layer.changes), list(layer.changes.values())
        changes = layer.history if settings.every_change else list(layer.changes.items())
        if settings.skip_equal:
            changes = self._without_equal(changes)
        return [key for key, _ in changes], [value for _, value in changes]

    def _without_equal(self, changes: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """The changes that change something, one after the other."""
        now: dict[Any, Any] = {}
        kept: list[tuple[Any, Any]] = []
        below = self._layers.below[1:]
        for key, value in changes:
            if key not in now:
                holding = next((one for one in below if key in one), None)
                now[key] = self._state.get(key) if holding is None else holding[key]
            if not self._state.values.is_same(now[key], value):
                kept.append((key, value))
                now[key] = value
        return kept

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
        """Send a Commit of all checkpoints that are durable; False if in so long not even the oldest one is."""
        oldest = self._checkpoints[0].handle
        assert oldest is not None, "what went with its commit is not confirmed again"
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
        """The Commit that was sent is history: the state takes its changes, and then the waiting caller is told."""
        commit = sent.commit.result()
        self._sent = None
        changes: dict[Any, Any] = {}
        for layer in self._layers.oldest(sent.checkpoints):
            changes = {**changes, **layer.changes} if changes else layer.changes
        # Right behind the Commit, or behind the Open that settled it. What an overtaken writer has read is another's.
        place = self._writer.place if self._writer.life is Life.OPEN else Place(commit.offset + 1)
        self._setup.environment.crash("history")
        self._state.apply(changes, replace(self._opened, ledger=place))
        self._setup.environment.crash("applied")
        self._layers.committed(sent.checkpoints)
        self.applied += 1
        for _ in range(sent.checkpoints):
            self._checkpoints.popleft().commit.end(commit)


def check_interval(interval_s: object) -> None:
    """Raise Misuse for what is no number of seconds."""
    if not isinstance(interval_s, int | float) or math.isnan(interval_s):
        raise Misuse(f"an interval is a number of seconds, and not {interval_s!r}", hint="commit_every(1.0)")


def _check_progress(progress: Metadata, record_bytes_max: int) -> None:
    check_metadata(progress)
    bytes_max = min(_PROGRESS_BYTES_MAX, record_bytes_max // 4)
    texts = [*progress, *(value for value in progress.values() if isinstance(value, str))]
    if _MOST_UTF8 * sum(map(len, texts)) > bytes_max:
        raise InvalidMetadata(
            "the progress is too large",
            characters=sum(map(len, texts)),
            characters_max=bytes_max // _MOST_UTF8,
            hint="It says where to resume; what is larger belongs in the state",
        )
