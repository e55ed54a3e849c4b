"""Progress of a recovery: how much of what it has to read was read, how fast, and how long the rest may take. Pure.

Invariants:
- Done never exceeds the total, and neither rate nor remaining time is ever negative.
- Rate and remaining time are of bytes, over the whole phase; before the first byte there is no remaining time.
"""

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Phase", "Progress", "ProgressTracker"]


class Phase(StrEnum):
    """What a recovery is doing."""

    READ = "read"
    """Reading runs and the tail of the log, at the same time."""
    LOAD = "load"
    """Folding to the last change per key, and filling the target."""
    DONE = "done"
    """The target is complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One report. Bytes are of run files and of record values; changes are rows of runs and changes of the tail.

    `rate_bytes_s` is bytes per second since the start; `eta_s` is None as long as nothing can be said.
    """

    phase: Phase
    bytes_done: int
    bytes_total: int
    changes_done: int
    changes_total: int
    elapsed_s: float
    rate_bytes_s: float
    eta_s: float | None

    @property
    def fraction(self) -> float:
        """From 0 to 1, by bytes; 1 if there is nothing to read."""
        return self.bytes_done / self.bytes_total if self.bytes_total else 1.0


class ProgressTracker:
    """Counts what was read and says when a report is due. The caller brings the time."""

    def __init__(self, *, bytes_total: int, changes_total: int, started_s: float, interval_s: float) -> None:
        self._bytes_total = bytes_total
        self._changes_total = changes_total
        self._started_s = started_s
        self._interval_s = interval_s
        self._reported_s = started_s
        self._reported_phase = Phase.READ

    def report(self, phase: Phase, *, bytes_done: int, changes_done: int, now_s: float) -> Progress:
        """The report for what is done at `now_s`."""
        bytes_done = min(bytes_done, self._bytes_total)
        elapsed_s = max(0.0, now_s - self._started_s)
        rate = bytes_done / elapsed_s if elapsed_s > 0 else 0.0
        left = self._bytes_total - bytes_done
        return Progress(
            phase=phase,
            bytes_done=bytes_done,
            bytes_total=self._bytes_total,
            changes_done=min(changes_done, self._changes_total),
            changes_total=self._changes_total,
            elapsed_s=elapsed_s,
            rate_bytes_s=rate,
            eta_s=left / rate if rate > 0 else (0.0 if left == 0 else None),
        )

    def due(self, phase: Phase, now_s: float) -> bool:
        """Whether a report is due: a new phase, or the interval has passed. Asking counts as reporting."""
        is_due = phase is not self._reported_phase or now_s - self._reported_s >= self._interval_s
        if is_due:
            self._reported_s, self._reported_phase = now_s, phase
        return is_due
