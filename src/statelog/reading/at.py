"""A state of a log: that at a ledger position, at a writer's checkpoint, or at a time. Pure.

A range of committed changes lies between two states: it has the commits behind the first and up to the second.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

from statelog.errors import Misuse
from statelog.schemas.names import check_name

__all__ = ["At", "AtCheckpoint", "AtPosition", "AtTime", "Bound"]


@dataclass(frozen=True, slots=True)
class AtPosition:
    """The state at a ledger position: all commits below that offset. Raises Misuse if it is negative."""

    position: int

    def __post_init__(self) -> None:
        if self.position < 0:
            raise Misuse("a ledger position is negative", position=self.position)

    def __str__(self) -> str:
        return f"position {self.position}"


@dataclass(frozen=True, slots=True)
class AtCheckpoint:
    """The state right after a writer's checkpoint was committed; everybody's earlier commits included.

    If a writer took an id again after it had ended (its row in the ledger starts anew), the newest one is meant.
    Raises InvalidName.
    """

    writer: str
    checkpoint_id: int

    def __post_init__(self) -> None:
        check_name("writer", self.writer)

    def __str__(self) -> str:
        return f"checkpoint {self.checkpoint_id} of {self.writer}"


At = AtPosition | AtCheckpoint
"""Which state to recover."""


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
