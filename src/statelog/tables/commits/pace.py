"""`Pace`: when a table commits, and what is handed on: from layers to the writer, and, once history, to the state.

    seal a layer ─► Arrow ─► writer, persisted ─► queue ─► history ─► state.apply, with its place ─► drop the layer

Invariants:
- A layer is dropped only after the state has it, so a read misses nothing in between.
- What is refused before anything is sent leaves the layers as they were. Whatever else is raised ends the table, of
  whichever class it is: a store that refuses may do so behind a commit that is history.
- A progress is committed with the changes that were made when it was named, and never with later ones: neither what
  `commit_every` put off, nor the last one in a call that names none.
"""

import math
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from statelog.errors import InvalidMetadata, Misuse
from statelog.pending import Pending
from statelog.producer.guard import is_refusal
from statelog.schemas.ledger.place import Metadata, Place, check_metadata
from statelog.schemas.ledger.state import LastCommit
from statelog.tables.changes.layers import Layer, Layers
from statelog.tables.commits.queue import CommitQueue
from statelog.tables.opened import Opened
from statelog.tables.state.record import StatePlace

__all__ = ["Pace", "check_interval"]

_LOOK_S = 0.001
"""How often `commit_every` looks for answers to commits that are under way."""
_PROGRESS_BYTES_MAX = 1 << 20
"""A place to resume at takes less; and the ledger, which has to take it, takes much more."""
_MOST_UTF8 = 4


class Pace:
    """Commits of one table. `applied` is called when the state and the layers have changed."""

    def __init__(
        self, opened: Opened, layers: Layers, applied: Callable[[], None], advance: Callable[[float | None], None]
    ) -> None:
        self._opened = opened
        self._settings = opened.settings
        self._layers = layers
        self._changes_max = opened.settings.uncommitted_changes_max
        self._applied = applied
        self._clock = opened.environment.clock
        self._queue = CommitQueue(opened.writer, self._clock, self._take, advance)
        self._committed_s = self._clock()
        last = opened.writer.last_commit
        self.progress: Metadata = dict(last.metadata) if last else {}
        """What the last commit says, be it history or under way."""
        self.named: Metadata = self.progress
        """The progress that was named last, and how often the table was changed by then. Another object than `progress`
        is put off.
        """
        self.named_count = 0
        self.refusal: Misuse | None = None
        """What a commit was refused with, before anything of it was sent."""
        self.interval_s = math.nan
        """Such a call has nothing to do with this interval before this time, and below this number of changes."""
        self.look_s = -math.inf
        self.look_count = 0

    # ---- which progress

    def last_named(self, count: int) -> Metadata:
        """What a call says that names no progress, of a table that was changed so often. Raises Misuse if it was
        changed since one was named: that is the place of an older state.
        """
        if count == self.named_count:
            return self.named
        if self.named:
            raise Misuse(
                "the table was changed since a progress was named, and this call names none",
                writer=self._opened.writer.name,
                hint="Name the place that the changes lead to; `table.progress`, if it is the one of the last commit",
            )
        return {}

    def undone(self, count: int) -> None:
        """The state is that of the last commit again."""
        self.named, self.named_count = self.progress, count

    def undone_since(self, count: int, now_count: int) -> None:
        """The state is what it was at that count again."""
        if self.named_count == count:
            self.named_count = now_count

    # ---- when

    def look_at_once(self) -> None:
        """The next call of `commit_every` has something to do."""
        self.look_s = -math.inf

    def commit_if_due(self, interval_s: float, put_bytes: int) -> bool:
        """Commit what was noted, if it is time to or too much has come by now; whether it was. Raises as `commit`."""
        self.step()
        progress, now_s, layers = self.named, self._clock(), self._layers
        is_full = len(layers.active.changes) >= self._changes_max
        is_full = is_full or put_bytes >= self._settings.uncommitted_bytes_max
        is_due = is_full or now_s - self._committed_s >= interval_s or bool(layers.suspended)
        if is_due:
            if self._is_news(progress):
                self.commit(progress, self.named_count)
            self._committed_s = now_s
        self.interval_s = interval_s
        self.look_s = min(self._committed_s + interval_s, now_s + _LOOK_S if len(self._queue) else math.inf)
        self.look_count = self.named_count + self._changes_max - len(layers.active.changes)
        if layers.suspended:
            self.look_at_once()
        return is_due

    def finish(self, count: int) -> None:
        """Commit what was put off, if it still says what the state is; and wait for all that is under way."""
        if self.named is not self.progress and self.named_count == count and self._is_news(self.named):
            self.commit(self.named, count)
        while len(self._queue):
            self.step(None)

    def _is_news(self, progress: Metadata) -> bool:
        return not self._layers.is_clean or progress != self.progress

    # ---- commit

    def commit(self, progress: Metadata, count: int) -> Pending[LastCommit]:
        """Make the changes of the active layer the next checkpoint, once there is room for it. The table was changed so
        often by now.
        """
        with self.refusing():
            _check_progress(progress)
        while len(self._queue) >= self._settings.commits_under_way_max:
            self.step(None)
        with self.refusing():
            layer = self._layers.seal()
            try:
                self._log(layer)
            except Misuse as refusal:
                if is_refusal(refusal):
                    self._layers.unseal()
                raise
        self._opened.environment.crash("sealed")
        commit = self._queue.add(progress)
        self.progress = dict(progress)
        self.named, self.named_count = self.progress, count
        self._committed_s = self._clock()
        self.step()
        return commit

    def step(self, timeout_s: float | None = 0.0) -> None:
        """Take what has come in, or wait so long for what the oldest commit needs next. Raises as its result."""
        self._queue.step(timeout_s)

    def fail(self, error: BaseException) -> None:
        """The table has ended: so have its commits."""
        self._queue.fail(error)

    @contextmanager
    def refusing(self) -> Generator[None]:
        """What is refused inside changed nothing."""
        try:
            yield
        except Misuse as refusal:
            self.refusal = refusal if is_refusal(refusal) else None
            raise

    def _log(self, layer: Layer) -> None:
        """Give a layer's changes to the writer, in bulk. Raises InvalidChange before any of them is taken."""
        opened = self._opened
        keys, values = self._logged(layer)
        if keys:
            columns = {**opened.keys.columns(keys), "value": opened.values.column(values)}
            opened.writer.append_batch(pa.table(columns))

    def _logged(self, layer: Layer) -> tuple[list[Any], list[Any]]:
        """The keys and the values to log, in their order."""
        if not self._settings.every_change and not self._settings.skip_equal:
            return list(layer.changes), list(layer.changes.values())
        changes = layer.history if self._settings.every_change else list(layer.changes.items())
        if self._settings.skip_equal:
            changes = self._without_equal(changes)
        return [key for key, _ in changes], [value for _, value in changes]

    def _without_equal(self, changes: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """The changes that change something, one after the other."""
        now: dict[Any, Any] = {}
        kept: list[tuple[Any, Any]] = []
        below = self._layers.below[1:]
        for key, value in changes:
            if key not in now:
                now[key] = next((one[key] for one in below if key in one), None)
                if not any(key in one for one in below):
                    now[key] = self._opened.state.get(key)
            if not self._opened.values.is_same(now[key], value):
                kept.append((key, value))
                now[key] = value
        return kept

    def _take(self, checkpoints: int, offset: int) -> None:
        """The oldest checkpoints are history, by the commit at this ledger offset."""
        writer = self._opened.writer
        changes: dict[Any, Any] = {}
        for layer in self._layers.oldest(checkpoints):
            changes = {**changes, **layer.changes} if changes else layer.changes
        last = writer.place.last
        place = Place(offset + 1, last if last and last.offset == offset else None)
        self._opened.environment.crash("history")
        self._opened.state.apply(changes, StatePlace(place, len(writer.accepted_losses)))
        self._opened.environment.crash("applied")
        self._layers.committed(checkpoints)
        self._applied()


def check_interval(interval_s: object) -> None:
    """Raise Misuse for what is no number of seconds."""
    if not isinstance(interval_s, int | float) or math.isnan(interval_s):
        raise Misuse(f"an interval is a number of seconds, and not {interval_s!r}", hint="commit_every(1.0)")


def _check_progress(progress: Metadata) -> None:
    """Raise InvalidMetadata for what no commit can carry."""
    check_metadata(progress)
    texts = [*progress, *(value for value in progress.values() if isinstance(value, str))]
    if _MOST_UTF8 * sum(map(len, texts)) > _PROGRESS_BYTES_MAX:
        raise InvalidMetadata(
            "the progress is too large",
            characters=sum(map(len, texts)),
            characters_max=_PROGRESS_BYTES_MAX // _MOST_UTF8,
            hint="It says where to resume; what is larger belongs in the state",
        )
