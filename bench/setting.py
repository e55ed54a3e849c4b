"""The setting of a run of benchmarks: the broker, the amount of work, the repetitions."""

import math
from dataclasses import dataclass
from pathlib import Path

from bench.processors import process_cpu_s

__all__ = ["Setting"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The broker and the amount of work; W has 5,000,000 changes over 1,000,000 keys.

    Only a broker of the run's own has a directory and a process.
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
        """Return this share of the changes, at least 1,000."""
        return max(1000, int(self.changes * share))

    def kept_bytes(self, topic: str) -> int | None:
        """Return the size of a topic on the broker's disk; None for an external broker."""
        if self.broker_directory is None:
            return None
        return sum(file.stat().st_size for file in self.broker_directory.rglob(f"{topic}-*/*.log"))

    def broker_cpu_s(self) -> float:
        """Return the CPU seconds of the broker so far; nan for an external broker."""
        return math.nan if self.broker_pid is None else process_cpu_s(self.broker_pid)
