"""The setting of a run of benchmarks: which broker, how much, how often."""

from dataclasses import dataclass
from pathlib import Path

__all__ = ["Setting"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Where and how much: W has 5,000,000 changes over 1,000,000 keys. `broker_pid` is of a broker of the run's own."""

    bootstrap: str
    root: Path
    changes: int
    keys: int
    rounds: int
    commits: int
    broker_pid: int | None = None

    def scaled(self, share: float) -> int:
        """That share of the changes, at least 1,000."""
        return max(1000, int(self.changes * share))
