"""`PartitionLog`: the records of one partition of the in-memory Kafka, and what its leaders believe of it. Pure.

Invariant: offsets only grow, except where a test cuts the log off, as a leader does that never had its end.
"""

import bisect
from dataclasses import dataclass, field

from statelog.storage.kafka import OffsetRange
from statelog.storage.kafka.positions import Listed

__all__ = ["PartitionLog"]


@dataclass(slots=True)
class PartitionLog:
    """One partition. Records below `start` are kept, because a crash of a real broker can bring them back."""

    start: int = 0
    end: int = 0
    offsets: list[int] = field(default_factory=list[int])
    values: list[bytes] = field(default_factory=list[bytes])
    timestamps_ms: list[int] = field(default_factory=list[int])
    leader_epoch: int = 1
    ends: list[int] = field(default_factory=list[int])
    """The ends that it had before, oldest first: what a deposed leader may still believe."""
    spoilt: list[OffsetRange] = field(default_factory=list[OffsetRange])
    """Batches that no client unpacks."""

    def listed(self) -> Listed:
        """Start, end and leader as they are now."""
        return Listed(self.start, self.end, self.leader_epoch)

    def listed_before(self, changes: int) -> Listed:
        """The answer of an older leader, from so many appends ago."""
        past = self.ends[-changes:] if changes > 0 else []
        end = past[0] if past else self.end
        return Listed(min(self.start, end), end, self.leader_epoch - 1)

    def append(self, value: bytes, timestamp_ms: int = -1) -> int:
        """Append a record; returns its offset."""
        offset = self.end
        self.ends.append(offset)
        self.offsets.append(offset)
        self.values.append(value)
        self.timestamps_ms.append(timestamp_ms)
        self.end += 1
        return offset

    def first_from(self, offset: int) -> tuple[int, bytes, int] | None:
        """Offset, value and timestamp of the first record at or above `offset`, or None."""
        at = bisect.bisect_left(self.offsets, offset)
        return (self.offsets[at], self.values[at], self.timestamps_ms[at]) if at < len(self.offsets) else None

    def cut_from(self, offset: int) -> None:
        """Drop everything at and above `offset`, as a leader does that never had it."""
        self.leader_epoch += 1
        at = bisect.bisect_left(self.offsets, offset)
        del self.offsets[at:], self.values[at:], self.timestamps_ms[at:]
        del self.ends[bisect.bisect_left(self.ends, offset) :]
        self.end = min(self.end, offset)
        self.start = min(self.start, self.end)
        self.spoilt = [batch for batch in self.spoilt if batch.end <= offset]
