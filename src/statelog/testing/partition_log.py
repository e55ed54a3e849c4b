"""One partition of the in-memory cluster, and the accidents that can befall its log."""

from bisect import bisect_left
from dataclasses import dataclass, field
from operator import attrgetter

from statelog.storage.kafka import OffsetRange, Record


@dataclass(slots=True)
class PartitionLog:
    """One partition. Records below `start` are kept, because a crash of a real broker can bring them back."""

    partition: int
    start: int = 0
    end: int = 0
    records: list[Record] = field(default_factory=list[Record])
    leader_epoch: int = 1
    ends: list[int] = field(default_factory=list[int])
    """The ends that it had before, oldest first: what a deposed leader may still believe."""
    spoilt: list[OffsetRange] = field(default_factory=list[OffsetRange])
    """Batches that no client unpacks."""
    lagging: int = 0
    """So many replicas are not in sync."""

    def append(self, value: bytes, timestamp_ms: int = -1) -> int:
        """Append a record; returns its offset."""
        offset = self.end
        self.ends.append(offset)
        self.records.append(Record(self.partition, offset, value, timestamp_ms))
        self.end += 1
        return offset

    def index_from(self, offset: int) -> int:
        """The index of the first record at or above `offset`."""
        return bisect_left(self.records, offset, key=attrgetter("offset"))

    def first_from(self, offset: int) -> Record | None:
        """The first record at or above `offset`, or None."""
        at = self.index_from(offset)
        return self.records[at] if at < len(self.records) else None

    def cut_from(self, offset: int) -> None:
        """Drop everything at and above `offset`, as a leader does that never had it."""
        self.leader_epoch += 1
        del self.records[self.index_from(offset) :]
        del self.ends[bisect_left(self.ends, offset) :]
        self.end = min(self.end, offset)
        self.start = min(self.start, self.end)
        self.spoilt = [batch for batch in self.spoilt if batch.end <= offset]
