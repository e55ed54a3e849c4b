"""Looks at the tail beside the rounds: the age of changes that no snapshot holds, and how long a restore would take.

Each look runs on its own thread, one at a time. It serves alarms and the restore budget; rounds do not need it.

Invariants:
- No more looks may hang than failures are tolerated; beyond that none begins until one returns, and the age grows.
- A look counts only if no round ended meanwhile: else its gauge started from an older manifest.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator

from statelog.errors import OffsetGone, StoreRefused, Unavailable
from statelog.materializer.daemon.background_task import BackgroundTask, ThreadStarter
from statelog.materializer.daemon.restore_time import RestoreEstimate, RestoreOutlook, outlook
from statelog.materializer.daemon.schedule import look_every_s
from statelog.materializer.daemon.tail import Tail, TailGauge
from statelog.materializer.settings import MaterializerSettings
from statelog.seams import Seams
from statelog.storage.log.log import Log

__all__ = ["TailWatch"]


class TailWatch:
    """Belongs to the daemon's thread. `ring` is called on a look's own thread, once it is over."""

    def __init__(
        self,
        log: Log,
        settings: MaterializerSettings,
        *,
        start: ThreadStarter,
        ring: Callable[[], None],
        seams: Seams,
    ) -> None:
        self._log = log
        self._settings = settings
        self._clock = seams.clock
        self._wall_clock = seams.wall_clock
        self._start = start
        self._ring = ring
        self._over: deque[BackgroundTask[Tail]] = deque()
        self._under_way: BackgroundTask[Tail] | None = None
        self._out = 0
        self._gauge: TailGauge | None = None
        self._due_s = seams.clock()
        self._outlook = RestoreOutlook.IN_TIME

    @property
    def outlook(self) -> RestoreOutlook:
        """What the last look says of the restore budget."""
        return self._outlook

    @property
    def is_any_over(self) -> bool:
        """Whether a look has ended that was not collected yet."""
        return bool(self._over)

    @property
    def due_s(self) -> float:
        """When the next look is due; never while one is under way, or too many hang."""
        has_room = self._under_way is None and self._out <= self._settings.failures_tolerated
        return self._due_s if has_room else math.inf

    def begin(self) -> None:
        """Begin a look."""
        gauge = self._gauge = self._gauge or TailGauge(self._log, clock=self._wall_clock)
        self._under_way = BackgroundTask(gauge.look, started_s=self._clock(), on_end=self._came_back)
        self._out += 1
        self._start(self._under_way.run)

    def take_in(self) -> Iterator[tuple[Tail, float]]:
        """The tails found since the last call, each with the time its look began. Raises Damaged."""
        while self._over:
            look = self._over.popleft()
            self._out -= 1
            if look is self._under_way:
                tail = self._result(look)
                if tail is not None:
                    yield tail, look.started_s

    def judge(self, found: RestoreEstimate, budget_s: float) -> bool:
        """Compare an estimate with the budget; returns whether it has just gone beyond what a round can fix."""
        before, self._outlook = self._outlook, outlook(found, budget_s)
        return self._outlook is RestoreOutlook.OUT_OF_REACH and before is not RestoreOutlook.OUT_OF_REACH

    def start_over(self) -> None:
        """A round ended: the next look is due now, and starts from the manifest that is newest then."""
        self.drop()
        self._due_s = self._clock()

    def drop(self) -> None:
        """Release the gauge. A look under way is not waited for, and not taken in."""
        if self._gauge is not None:
            self._gauge.close()
        self._gauge = self._under_way = None
        if self._outlook is RestoreOutlook.ROUND_DUE:
            self._outlook = RestoreOutlook.IN_TIME

    def _came_back(self, look: BackgroundTask[Tail]) -> None:
        self._over.append(look)
        self._ring()

    def _result(self, look: BackgroundTask[Tail]) -> Tail | None:
        self._under_way = None
        self._due_s = self._clock() + look_every_s(self._settings)
        try:
            return look.result()
        except (Unavailable, StoreRefused, OffsetGone):
            # Transient or not: the next round finds out, or else the watchdog does.
            self.drop()
            return None
