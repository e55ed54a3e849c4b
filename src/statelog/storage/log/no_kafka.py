"""The Kafka port for when there is no Kafka: every request but an empty read is refused."""

from collections.abc import Generator, Mapping, Sequence
from typing import NoReturn

from statelog.errors import Misuse
from statelog.storage.kafka import OffsetRange, Producer, Reader, Record, TopicDescription, TopicSpec

__all__ = ["NoKafka"]


def _refuse(*asked: object) -> NoReturn:
    raise Misuse(
        "this log was opened without Kafka, to read a snapshot alone",
        asked=", ".join(map(str, asked)) or None,
        hint="Open it with Log.open to follow it, to write, or to recover a newer state",
    )


class NoKafka:
    """A cluster that is not there."""

    def cluster_id(self) -> str:
        """Refused."""
        _refuse()

    def describe_topic(self, topic: str) -> TopicDescription | None:
        """Refused."""
        _refuse(topic)

    def create_topic(self, spec: TopicSpec) -> None:
        """Refused."""
        _refuse(spec)

    def delete_topic(self, topic: str) -> None:
        """Refused."""
        _refuse(topic)

    def offsets(
        self, topic: str, partitions: Sequence[int], *, at_least: Mapping[int, int] | None = None
    ) -> dict[int, OffsetRange]:
        """Refused."""
        _refuse(topic, partitions, at_least)

    def delete_records(self, topic: str, before: Mapping[int, int]) -> dict[int, int]:
        """Refused."""
        _refuse(topic, before)

    def publish_offset(self, group: str, topic: str, partition: int, offset: int, metadata: str = "") -> None:
        """Refused."""
        _refuse(group, topic, partition, offset, metadata)

    def published(self, group: str, topic: str, partition: int) -> str:
        """Refused."""
        _refuse(group, topic, partition)

    def producer(self) -> Producer:
        """Refused."""
        _refuse()

    def reader(self, topic: str) -> Reader:
        """A reader that has nothing to read."""
        return _NothingToRead(topic)

    def close(self) -> None:
        """Nothing to release."""


class _NothingToRead:
    def __init__(self, topic: str) -> None:
        self._topic = topic

    def read(self, ranges: Mapping[int, OffsetRange], *, stall_timeout_s: float) -> Generator[Record]:
        if any(end > start for start, end in ranges.values()):
            _refuse(self._topic, ranges, stall_timeout_s)
        yield from ()

    def close(self) -> None:
        """Nothing to release."""
