"""Where a range of committed changes begins or ends: at a position, a writer's checkpoint, or a time. Pure.

A range lies between two states of the log: it has the commits behind the first and up to the second.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

from statelog.errors import Misuse
from statelog.recovery.planning.at import AtCheckpoint, AtPosition

__all__ = ["AtTime", "Bound"]


@dataclass(frozen=True, slots=True)
class AtTime:
    """The state right before the first record of the ledger that a broker took at this time or later.

    `timestamp_ms`: milliseconds since 1970, by the brokers' clocks. Raises Misuse if it is negative.
    """

    timestamp_ms: int

    def __post_init__(self) -> None:
        if self.timestamp_ms < 0:
            raise Misuse("a time lies before 1970", timestamp_ms=self.timestamp_ms)

    def __str__(self) -> str:
        return f"time {datetime.fromtimestamp(self.timestamp_ms / 1000, UTC).isoformat(timespec='milliseconds')}"


Bound = AtPosition | AtCheckpoint | AtTime
"""Where a range of changes begins, or ends."""
