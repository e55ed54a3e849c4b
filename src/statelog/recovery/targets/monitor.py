"""`Monitor`: reports the progress of a recovery, and keeps the statistics of its last target."""

from collections.abc import Callable

from statelog.errors import Misuse
from statelog.reading.plan import Plan
from statelog.recovery.held_plan import HeldPlan
from statelog.recovery.reading.plan_reader import PlanReader
from statelog.recovery.reading.progress import Phase, Progress, ProgressTracker
from statelog.recovery.targets.statistics import RecoveryStatistics

__all__ = ["Monitor", "OnProgress"]

OnProgress = Callable[[Progress], None]
"""Is called in the thread that fills a target, or takes from a stream."""


class Monitor:
    """What there is to say about the targets and streams of one held plan. `on_progress` None wants no reports."""

    def __init__(self, held: HeldPlan, on_progress: OnProgress | None) -> None:
        self._held = held
        self._on_progress = on_progress
        self._clock = held.environment.clock
        self._started_s = 0.0
        self._tracker: ProgressTracker | None = None
        self._statistics: RecoveryStatistics | None = None

    @property
    def statistics(self) -> RecoveryStatistics:
        """Numbers of the target that was filled last. Raises Misuse before the first."""
        if self._statistics is None:
            raise Misuse("no target was filled yet", hint="Fill a target first, for example with to_dict")
        return self._statistics

    def start(self) -> None:
        """A target or stream was asked for: the time runs."""
        self._started_s = self._clock()

    def follow(self, plan: Plan) -> None:
        """This plan is carried out from now on."""
        self._tracker = ProgressTracker(
            bytes_total=plan.size_bytes,
            changes_total=plan.changes,
            started_s=self._clock(),
            interval_s=self._held.settings.progress_interval_s,
        )

    def report(self, reader: PlanReader, phase: Phase, loaded: float) -> None:
        """Report what was read, and the share of the key groups that was loaded, if a report is due."""
        now_s = self._clock()
        if self._on_progress is None or self._tracker is None or not self._tracker.due(phase, now_s):
            return
        self._on_progress(
            self._tracker.report(
                phase,
                bytes_done=reader.runs_read.size_bytes + reader.tail_read.size_bytes,
                changes_done=reader.runs_read.changes + reader.tail_read.changes,
                loaded=loaded,
                now_s=now_s,
            )
        )

    def done(self, reader: PlanReader, rows: int) -> None:
        """All of it was loaded: report that, and keep the numbers."""
        self.report(reader, Phase.DONE, 1.0)
        self._statistics = RecoveryStatistics(
            position=reader.plan.position,
            manifest=reader.plan.manifest_number,
            rows=rows,
            run_rows=reader.runs_read.changes,
            run_bytes=reader.runs_read.size_bytes,
            tail_changes=reader.tail_read.changes,
            tail_bytes=reader.tail_read.size_bytes,
            tail_is_local=reader.tail_read.is_local,
            plan_s=self._held.take_plan_s(),
            total_s=self._clock() - self._started_s,
            plans=self._held.plans,
            damaged_snapshots=self._held.damaged_snapshots,
            has_lease=self._held.had_lease,
        )
