"""`Expiry`: the rows of a table that have a due: the table's clock, what it hides, what it deletes, and its timers.

    put with a due ─► hidden from the due on ─┬─► deleted by the next commit      `sweep`
                                              └─► handed to a function instead    `timers`, of `Table.run_due`

The delete is an ordinary one. So whoever reads the log needs no clock: a row is there until its delete is committed.

Invariants:
- The time of a table never goes back, whatever the machine's clock does. The dues that a log's `ttl_s` gives are of the
  same time that they are compared with.
- A row is never hidden, deleted or handed out before it is due.
- A sweep leaves out rows that a layer has changed: they are not what is committed, and may have another due by now.
- Once there are timers, nothing is swept.
- A table without dues does nothing of this. Its callers ask `is_timed` first.
"""

import math
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Any

from statelog.errors import ConfigError, Misuse
from statelog.schemas.changes.due import When, due_ms_of
from statelog.tables.layers import Layer, Layers
from statelog.tables.setup import Loading, TableSetup
from statelog.tables.state.dues import DueIndex, DueKey
from statelog.tables.state.state import State
from statelog.tables.statistics import TableStatistics

SWEPT_MAX = 10_000
"""How many rows a commit deletes because they are due, in addition to as many as it changes itself."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NEVER_ALL = "a row has a due, and a table that loads on demand never has all rows that are to be deleted"
_LOCAL_HINT = 'Use loading="behind", which opens as fast'


class Expiry:
    """The dues of one table. Belongs to its thread, but for `overdue_s`."""

    def __init__(self, setup: TableSetup, state: State, layers: Layers) -> None:
        self._wall_clock = setup.environment.wall_clock
        self._is_local = setup.settings.loading is not Loading.ON_DEMAND
        self._state, self._layers, self.values = state, layers, state.values
        self._every = setup.settings.every_change
        self._now_ms, self._is_still = 0, False
        self._oldest_ms: int | None = None
        self._uncommitted: DueIndex | None = None
        """In a table with timers, the dues of all layers, the newest of each key; None if it has to be made again."""
        self.sweeps = True
        """Whether commits delete what is due. False once there are timers."""
        self.ttl_ms = None if (ttl_s := setup.log.descriptor.ttl_s) is None else math.ceil(ttl_s * 1000)
        """What the log adds to the time of a put without a due, if anything."""
        self.is_timed = False
        """Whether any row may have a due."""
        if self.ttl_ms is not None or state.is_timed:
            if not self._is_local:
                raise ConfigError(_NEVER_ALL, log=setup.log.name, hint=_LOCAL_HINT)
            self._begin()

    def _begin(self) -> None:
        self.is_timed = True
        self._state.hide_due(self.now_ms)
        self._note()

    # ---- time

    def now_ms(self) -> int:
        """The table's time, in milliseconds since 1970."""
        now_ms = int(self._wall_clock() * 1000)
        if now_ms > self._now_ms and not self._is_still:
            self._now_ms = now_ms
        return self._now_ms

    @contextmanager
    def still(self) -> Generator[None]:
        """Stop the time inside the block."""
        self.now_ms()
        try:
            self._is_still = True
            yield
        finally:
            self._is_still = False

    def admit(self, due: When | None) -> int | None:
        """Return the due of a put in milliseconds: the given one, or that of the log's `ttl_s`. Raises InvalidChange,
        and Misuse for the first due of a table that loads on demand.
        """
        if due is None:
            return None if self.ttl_ms is None else self.now_ms() + self.ttl_ms
        due_ms = due_ms_of(due)
        if not self.is_timed:
            if not self._is_local:
                raise Misuse(_NEVER_ALL, hint=_LOCAL_HINT)
            self._begin()
        return due_ms

    # ---- one row

    def due_ms(self, key: Any) -> int | None:
        """Return the due of a key, committed or not; None if it has none."""
        holding = self._layers.holding(key)
        return self._state.due_ms(key) if holding is None else holding.dues.get(key)

    def due(self, key: Any) -> datetime | None:
        """Return the same as a time; None if the row is due by now, and so hidden."""
        due_ms = self.due_ms(key)
        return None if due_ms is None or due_ms <= self.now_ms() else _EPOCH + timedelta(milliseconds=due_ms)

    def is_over(self, key: Any) -> bool:
        """Return whether a layer has the row of a key, and it is due."""
        holding = self._layers.holding(key)
        due_ms = None if holding is None else holding.dues.get(key)
        return due_ms is not None and due_ms <= self.now_ms()

    # ---- rows that are due

    @property
    def has_overdue(self) -> bool:
        """Whether the next commit deletes rows that are due."""
        return self.is_timed and self.sweeps and bool(self._overdue(1))

    def _overdue(self, most: int) -> list[DueKey]:
        """Return up to `most` committed rows that are due, and that no layer has changed, oldest first."""
        now_ms, earliest_ms = self.now_ms(), self._state.earliest_due_ms
        if earliest_ms is None or now_ms < earliest_ms:
            return []
        return self._state.overdue(now_ms, most, self._layers.unchanged())

    def sweep(self, layer: Layer) -> list[Any]:
        """Delete rows that are due in a sealed layer, oldest first, and return their keys."""
        if not (self.is_timed and self.sweeps):
            return []
        keys = [key for key, _ in self._overdue(SWEPT_MAX + len(layer.changes))]
        layer.changes.update(dict.fromkeys(keys))
        if self._every:
            layer.history.extend((key, None, None) for key in keys)
        return keys

    def unsweep(self, layer: Layer, keys: list[Any]) -> None:
        """Undo a sweep of the layer, which is sealed no longer."""
        for key in keys:
            del layer.changes[key]
        if self._every:
            del layer.history[len(layer.history) - len(keys) :]

    # ---- timers

    def timers(self, most: int) -> list[DueKey]:
        """Return up to `most` rows that are due, committed or not, oldest first. From now on nothing is swept."""
        self.sweeps = False
        if not self.is_timed:
            return []
        if self._uncommitted is None:
            self._uncommitted = DueIndex(self._layers.dues())
        found = self._overdue(most)
        new = self._uncommitted.overdue(self.now_ms(), most, lambda _: True)
        return sorted([*found, *new], key=itemgetter(1))[:most] if new else found

    def held(self, key: Any, due_ms: int) -> Any:
        """Return the value of a row with this due, as the table holds it; None if the row has changed since."""
        if self.due_ms(key) != due_ms:
            return None
        holding = self._layers.holding(key)
        return self._state.stored(key) if holding is None else holding.changes[key]

    def noted(self, key: Any, due_ms: int | None) -> None:
        """Note the due of a row in the active layer."""
        if self._uncommitted is not None:
            self._uncommitted.change((key,), {} if due_ms is None else {key: due_ms})

    def undone(self) -> None:
        """Note that changes were undone."""
        self._uncommitted = None

    def committed(self) -> None:
        """Note that the state has taken a commit, and its layers are gone."""
        self._uncommitted = None
        if self.is_timed:
            self._note()

    # ---- how far behind

    def _note(self) -> None:
        """Note the earliest committed due, for other threads."""
        self._oldest_ms = self._state.earliest_due_ms

    @property
    def overdue_s(self) -> float:
        """Seconds since the oldest committed row is due; 0.0 if none is. On any thread."""
        oldest_ms = self._oldest_ms
        return 0.0 if oldest_ms is None else max(0.0, self._wall_clock() - oldest_ms / 1000)

    def statistics(self) -> TableStatistics:
        """Return the statistics of the rows that are due."""
        oldest = self._overdue(1) if self.is_timed else []
        if not oldest:
            return TableStatistics()
        now_ms = self.now_ms()
        return TableStatistics(overdue_s=(now_ms - oldest[0][1]) / 1000, overdue=self._state.overdue_count(now_ms))
