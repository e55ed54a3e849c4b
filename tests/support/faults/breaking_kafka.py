"""An in-memory Kafka whose readers break once, in the middle of a read."""

from collections.abc import Iterator, Mapping

from statelog.kafka.port import OffsetRange, Record
from statelog.testing.cluster import MemoryCluster
from statelog.testing.kafka import MemoryKafka, MemoryReader

__all__ = ["BreakingKafka"]


class _BreakingReader(MemoryReader):
    def __init__(self, kafka: MemoryKafka, topic: str, after: int, error: BaseException) -> None:
        super().__init__(kafka, topic)
        self._left: int | None = after
        self._error = error

    def read(self, ranges: Mapping[int, OffsetRange], *, stall_timeout_s: float) -> Iterator[Record]:
        """Yield records, and raise the error in their middle."""
        for record in super().read(ranges, stall_timeout_s=stall_timeout_s):
            if self._left == 0:
                self._left = None
                raise self._error
            self._left = None if self._left is None else self._left - 1
            yield record


class BreakingKafka(MemoryKafka):
    """A view of `cluster`, each of whose readers raises `error` once, instead of its record number `after`."""

    def __init__(self, cluster: MemoryCluster, after: int, error: BaseException) -> None:
        super().__init__(cluster=cluster)
        self._after = after
        self._error = error

    def reader(self, topic: str) -> MemoryReader:
        """Return a reader that breaks."""
        return _BreakingReader(self, topic, self._after, self._error)
