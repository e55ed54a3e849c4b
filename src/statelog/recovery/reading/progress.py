"""Progress of a recovery: how much was read and loaded, how fast, and the estimated time left. Pure.

To read everything is one half of a recovery, to load it the other: a dict, for example, takes longer to fill than its
bytes take to come.

Invariants:
- Done never exceeds the total, and neither rate nor remaining time is ever negative.
- The whole is done only when everything was read and loaded. The rate is of bytes read; the remaining time follows from
  both halves, and before anything was done there is none.
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

    `loaded` is the share of the wanted key groups that the target has, from 0 to 1. `rate_bytes_s` is bytes per second
    since the start; `eta_s` is None as long as nothing can be said.
    """

    phase: Phase
    bytes_done: int
    bytes_total: int
    changes_done: int
    changes_total: int
    loaded: float
    elapsed_s: float
    rate_bytes_s: float
    eta_s: float | None

    @property
    def fraction(self) -> float:
        """From 0 to 1: half for the bytes read, half for what was loaded."""
        return _fraction(self.bytes_done, self.bytes_total, self.loaded)


class ProgressTracker:
    """Counts what was read and says when a report is due. The caller brings the time."""

    def __init__(self, *, bytes_total: int, changes_total: int, started_s: float, interval_s: float) -> None:
        self._bytes_total = bytes_total
        self._changes_total = changes_total
        self._started_s = started_s
        self._interval_s = interval_s
        self._reported_s = started_s
        self._reported_phase = Phase.READ

    def report(self, phase: Phase, *, bytes_done: int, changes_done: int, loaded: float, now_s: float) -> Progress:
        """The report for what is done at `now_s`. Done as a phase means that nothing is left."""
        is_done = phase is Phase.DONE
        loaded = 1.0 if is_done else min(1.0, loaded)
        bytes_done = self._bytes_total if is_done else min(bytes_done, self._bytes_total)
        elapsed_s = max(0.0, now_s - self._started_s)
        fraction = _fraction(bytes_done, self._bytes_total, loaded)
        return Progress(
            phase=phase,
            bytes_done=bytes_done,
            bytes_total=self._bytes_total,
            changes_done=self._changes_total if is_done else min(changes_done, self._changes_total),
            changes_total=self._changes_total,
            loaded=loaded,
            elapsed_s=elapsed_s,
            rate_bytes_s=bytes_done / elapsed_s if elapsed_s > 0 else 0.0,
            eta_s=_left_s(fraction, elapsed_s),
        )

    def due(self, phase: Phase, now_s: float) -> bool:
        """Whether a report is due: a new phase, or the interval has passed. Asking counts as reporting."""
        is_due = phase is not self._reported_phase or now_s - self._reported_s >= self._interval_s
        if is_due:
            self._reported_s, self._reported_phase = now_s, phase
        return is_due


def _fraction(bytes_done: int, bytes_total: int, loaded: float) -> float:
    read = bytes_done / bytes_total if bytes_total else 1.0
    return (read + loaded) / 2


def _left_s(fraction: float, elapsed_s: float) -> float | None:
    if fraction == 1.0:
        return 0.0
    return elapsed_s * (1.0 - fraction) / fraction if fraction > 0 and elapsed_s > 0 else None
