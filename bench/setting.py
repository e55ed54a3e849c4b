"""The setting of a run of benchmarks: which broker, how much, how often."""

import math
from dataclasses import dataclass
from pathlib import Path

from bench.processors import process_cpu_s

__all__ = ["Setting"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Where and how much: W has 5,000,000 changes over 1,000,000 keys. A broker of the run's own has a directory and a
    process.
    """

    bootstrap: str
    root: Path
    changes: int
    keys: int
    rounds: int
    commits: int
    broker_directory: Path | None = None
    broker_pid: int | None = None

    def scaled(self, share: float) -> int:
        """That share of the changes, at least 1,000."""
        return max(1000, int(self.changes * share))

    def kept_bytes(self, topic: str) -> int | None:
        """What the broker keeps of a topic on its disk; None of a broker that is somebody else's."""
        if self.broker_directory is None:
            return None
        return sum(file.stat().st_size for file in self.broker_directory.rglob(f"{topic}-*/*.log"))

    def broker_cpu_s(self) -> float:
        """Return the seconds of the processors that the broker has taken; nan of a broker that is somebody else's."""
        return math.nan if self.broker_pid is None else process_cpu_s(self.broker_pid)
