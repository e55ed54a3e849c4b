"""Progress of a recovery, and its statistics: how much was read and loaded, how fast, and the estimated time left.

Reading counts as one half of a recovery, loading as the other: a dict, for example, takes longer to fill than to read.

Invariants:
- Done never exceeds the total, and neither rate nor remaining time is ever negative.
- The fraction is 1 only when everything was read and loaded. The rate is of bytes read. The remaining time follows from
  both halves, and is unknown before any progress.
"""

from collections.abc import Callable
from dataclasses import dataclass

from statelog.errors import Misuse
from statelog.reading import HeldPlan
from statelog.recovery.plan_reader import Phase, PlanReader


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One report. Bytes are of run files and of record values; changes are rows of runs and changes of the tail.

    `loaded` is the share of the wanted key groups in the target, from 0 to 1. In the phase DONE nothing is left.
    """

    phase: Phase
    bytes_done: int
    bytes_total: int
    changes_done: int
    changes_total: int
    loaded: float
    elapsed_s: float

    def __post_init__(self) -> None:
        is_done = self.phase is Phase.DONE
        for name, most in (("bytes_done", self.bytes_total), ("changes_done", self.changes_total), ("loaded", 1.0)):
            object.__setattr__(self, name, most if is_done else min(getattr(self, name), most))
        object.__setattr__(self, "elapsed_s", max(0.0, self.elapsed_s))

    @property
    def fraction(self) -> float:
        """The progress from 0 to 1: half for the bytes read, half for the share loaded."""
        read = self.bytes_done / self.bytes_total if self.bytes_total else 1.0
        return (read + self.loaded) / 2

    @property
    def rate_bytes_s(self) -> float:
        """Bytes per second since the start."""
        return self.bytes_done / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def eta_s(self) -> float | None:
        """The remaining seconds; None while unknown."""
        fraction = self.fraction
        if fraction == 1.0:
            return 0.0
        return self.elapsed_s * (1.0 - fraction) / fraction if fraction > 0 and self.elapsed_s > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryStatistics:
    """The numbers of one filled target. Times are in seconds.

    `rows`: the rows of the target.
    `run_rows`, `tail_changes`: the input.
    `tail_is_local`: whether the tail was read from local copies; change sets that vanished meanwhile came from Kafka.
    `plan_s`: the time of planning, with the ledger fold, the lease and the checks.
    `plans`: how often it was planned.
    `damaged_snapshots`: how many snapshots were skipped.
    `has_lease`: whether truncation waited for it.
    """

    position: int
    manifest: int
    rows: int
    run_rows: int
    run_bytes: int
    tail_changes: int
    tail_bytes: int
    tail_is_local: bool
    plan_s: float
    total_s: float
    plans: int
    damaged_snapshots: int
    has_lease: bool

    @property
    def changes_per_s(self) -> float:
        """Rows of runs and changes of the tail, per second of the whole recovery."""
        return (self.run_rows + self.tail_changes) / self.total_s if self.total_s > 0 else 0.0

    @property
    def bytes_per_s(self) -> float:
        """Bytes of runs and of the tail, per second of the whole recovery."""
        return (self.run_bytes + self.tail_bytes) / self.total_s if self.total_s > 0 else 0.0


OnProgress = Callable[[Progress], None]
"""Called in the thread that fills a target, or takes from a stream."""


class Monitor:
    """Reports the progress of the targets and streams of one held plan, and has the statistics of the last one."""

    def __init__(self, held: HeldPlan, on_progress: OnProgress | None, interval_s: float) -> None:
        self._held = held
        self._on_progress = on_progress
        self._interval_s = interval_s
        self._clock, self._observers = held.environment.clock, held.environment.observers
        self._asked_s = self._started_s = self._reported_s = 0.0
        self._phase = Phase.READ
        self._statistics: RecoveryStatistics | None = None

    @property
    def statistics(self) -> RecoveryStatistics:
        """The numbers of the last filled target. Raises Misuse before the first."""
        if self._statistics is None:
            raise Misuse("no target was filled yet", hint="Fill a target first, for example with to_dict")
        return self._statistics

    def start(self) -> None:
        """Start the time of a target or stream."""
        self._asked_s = self._clock()

    def begin(self) -> None:
        """Start the progress of a plan."""
        self._started_s = self._reported_s = self._clock()
        self._phase = Phase.READ

    def report(self, reader: PlanReader, phase: Phase, loaded: float) -> None:
        """Report the input read, and the share of key groups loaded, if the interval has passed or the phase is new."""
        now_s = self._clock()
        is_due = phase is not self._phase or now_s - self._reported_s >= self._interval_s
        if not is_due or (self._on_progress is None and not self._observers):
            return
        self._reported_s, self._phase = now_s, phase
        found = Progress(
            phase=phase,
            bytes_done=reader.runs_read.size_bytes + reader.tail_read.size_bytes,
            bytes_total=reader.plan.size_bytes,
            changes_done=reader.runs_read.changes + reader.tail_read.changes,
            changes_total=reader.plan.changes,
            loaded=loaded,
            elapsed_s=now_s - self._started_s,
        )
        for one in self._observers:
            one.progress(self, self._held.log.name, found.fraction, found.eta_s)
        if self._on_progress is not None:
            self._on_progress(found)

    def done(self, reader: PlanReader, rows: int) -> None:
        """Report the end, and save the statistics."""
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
            total_s=self._clock() - self._asked_s,
            plans=self._held.plans,
            damaged_snapshots=len(self._held.snapshots.failed),
            has_lease=self._held.had_lease,
        )
