"""Readers of ends that this process has read: they query nothing first, and missing records are refused as ever."""

import time
from collections.abc import Iterator, Mapping, Sequence

import pytest

from statelog.errors import BeyondEnd, NotFound, OffsetGone
from statelog.kafka.client import ConfluentKafka
from statelog.kafka.config import client_config
from statelog.kafka.port import OffsetRange, TopicSpec
from statelog.kafka.positions import HighWater
from tests.support.rigs.kafka import numbered, read_all, write_all
from tests.support.services.broker import Broker

pytestmark = pytest.mark.broker


class _Asking(ConfluentKafka):
    """A Kafka port that counts the queries for offsets. It does not know what others have read."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(
            client_config({"bootstrap.servers": broker.bootstrap}), request_timeout_s=5.0, seen=HighWater()
        )
        self.asked = 0

    def offsets(
        self, topic: str, partitions: Sequence[int], *, at_least: Mapping[int, int] | None = None
    ) -> dict[int, OffsetRange]:
        """Count, and ask."""
        self.asked += 1
        return super().offsets(topic, partitions, at_least=at_least)


@pytest.fixture
def kafka(broker: Broker, topic_name: str) -> Iterator[_Asking]:
    """Yield a port that has written five records."""
    made = _Asking(broker)
    _make(made, topic_name, 5)
    made.asked = 0  # Making a topic waits for its offsets.
    yield made
    made.close()


@pytest.fixture
def other(broker: Broker) -> Iterator[_Asking]:
    """Yield another process's port."""
    made = _Asking(broker)
    yield made
    made.close()


def _make(kafka: ConfluentKafka, topic: str, records: int) -> None:
    kafka.create_topic(TopicSpec(name=topic, partitions=1, replication_factor=1))
    write_all(kafka, topic, 0, numbered(records))


def test_nothing_is_asked(kafka: _Asking, other: _Asking, topic_name: str) -> None:
    """Records acknowledged here need no query; another's are queried once, and then they are known."""
    for one, asked in ((kafka, 0), (other, 1), (other, 1)):
        assert [record.value for record in read_all(one, topic_name, {0: OffsetRange(0, 5)})] == numbered(5)
        assert one.asked == asked


def test_a_start_that_is_gone(kafka: _Asking, other: _Asking, topic_name: str) -> None:
    """A start that another process has truncated meanwhile is refused."""
    other.delete_records(topic_name, {0: 2})
    with pytest.raises(OffsetGone) as raised:
        read_all(kafka, topic_name, {0: OffsetRange(1, 5)})
    assert raised.value.facts["log_start"] == 2


def test_an_end_that_is_gone(kafka: _Asking, other: _Asking, topic_name: str) -> None:
    """The end of a topic that was re-created with fewer records is refused, long before a read would stall."""
    other.delete_topic(topic_name)
    _make(other, topic_name, 3)
    started_s = time.monotonic()
    with pytest.raises(BeyondEnd) as raised:
        read_all(kafka, topic_name, {0: OffsetRange(0, 5)})
    assert (raised.value.facts["end_offset"], raised.value.facts["log_end"]) == (5, 3)
    assert time.monotonic() - started_s < 30.0


def test_a_topic_that_is_gone(kafka: _Asking, other: _Asking, topic_name: str) -> None:
    """A missing topic is NotFound, and soon."""
    other.delete_topic(topic_name)
    started_s = time.monotonic()
    with pytest.raises(NotFound):
        read_all(kafka, topic_name, {0: OffsetRange(0, 5)})
    assert time.monotonic() - started_s < 30.0
