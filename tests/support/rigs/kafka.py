"""The two implementations of the Kafka port for the contract suite, each with facts that the port does not show."""

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import confluent_kafka
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, Message, TopicPartition, admin

from statelog.kafka.client import ConfluentKafka
from statelog.kafka.config import client_config
from statelog.kafka.port import (
    Delivery,
    DeliveryStatus,
    Kafka,
    OffsetRange,
    Producer,
    Record,
    TopicSpec,
)
from statelog.schemas.outputs.output import Output
from statelog.testing.cluster import MemoryCluster
from statelog.testing.kafka import MemoryKafka
from tests.support.services import stranger
from tests.support.waiting import wait_for

__all__ = [
    "TIMEOUT_S",
    "World",
    "broker_world",
    "memory_world",
    "numbered",
    "read_all",
    "read_committed",
    "settle",
    "spec_of",
    "spoil_memory",
    "write_all",
]

TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One implementation under test: the port, and facts that the port itself does not show."""

    kafka: Kafka
    another: Callable[[], Kafka]
    published: Callable[[str, str, int], int | None]
    make_gap: Callable[[str, int], None]
    """A function that turns the last offset of a partition into one without a record."""
    spoil: Callable[[str, int, int], None]
    """A function that appends a batch of so many records to a partition, which no client can unpack."""
    committed: Callable[[str, int], list[Output]]
    """A function that reads a partition with `isolation.level=read_committed`, up to its end of now."""


def memory_world() -> World:
    """Return the in-memory twin."""
    memory = MemoryKafka(cluster=MemoryCluster(clock=time.time))
    return World(
        kafka=memory,
        another=memory.join,
        published=lambda group, topic, partition: memory.cluster.published[group, topic, partition][0],
        make_gap=lambda topic, partition: memory.cluster.insert_gap(topic, partition, 1),
        spoil=lambda topic, partition, count: spoil_memory(memory, topic, partition, count),
        committed=memory.cluster.outputs,
    )


def broker_world(bootstrap: str) -> World:
    """Return the real client on a broker."""
    config = client_config({"bootstrap.servers": bootstrap})
    kafka = ConfluentKafka(config)
    return World(
        kafka=kafka,
        another=lambda: ConfluentKafka(config),
        published=lambda group, topic, partition: _published(bootstrap, group, topic, partition),
        make_gap=lambda topic, partition: _write_gap(kafka, bootstrap, topic, partition),
        spoil=lambda topic, partition, count: _spoil(bootstrap, topic, partition, count),
        committed=lambda topic, partition: read_committed(bootstrap, topic, partition),
    )


def spoil_memory(memory: MemoryKafka, topic: str, partition: int, count: int) -> None:
    """Append the same batch on the twin."""
    offsets = write_all(memory, topic, partition, [b""] * count)
    memory.cluster.spoil(topic, partition, offsets[0], offsets[-1] + 1)


def _spoil(bootstrap: str, topic: str, partition: int, count: int) -> None:
    """Append 110 MB and more of zeros, which the client does not take."""
    stranger.send(bootstrap, topic, partition, stranger.bomb(count, (110 << 20) // count))


def _published(bootstrap: str, group: str, topic: str, partition: int) -> int | None:
    client = admin.AdminClient({"bootstrap.servers": bootstrap})
    request = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, partition)])
    answers = client.list_consumer_group_offsets([request])
    (entry,) = answers[group].result(timeout=TIMEOUT_S).topic_partitions or []
    return entry.offset


def read_committed(bootstrap: str, topic: str, partition: int) -> list[Output]:
    """Return the records of a partition in a new reader's eyes, up to the first transaction that is open."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "outputs", "isolation.level": "read_committed"}
    consumer = confluent_kafka.Consumer({**settings, "enable.partition.eof": True, "enable.auto.commit": False})
    found: list[Output] = []
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        while (message := consumer.poll(TIMEOUT_S)) is not None and message.error() is None:
            headers = tuple(message.headers() or ())
            found.append(Output(topic, message.value(), message.key(), headers, partition))
        assert message is not None, "no end of the partition was told"
    finally:
        consumer.close()
    return found


def _write_marker(bootstrap: str, topic: str, partition: int) -> int:
    """Write one record in a transaction of its own; return the offset that the marker behind it takes up.

    Only a transaction leaves an offset that holds no record.
    """
    offsets: list[int] = []

    def note(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        offsets.append(message.offset() or 0)

    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"in a transaction", partition=partition, on_delivery=note)
    producer.flush(60)
    producer.commit_transaction(60)
    producer.close()
    return offsets[0] + 1


def _write_gap(kafka: Kafka, bootstrap: str, topic: str, partition: int) -> None:
    """Write a transaction's record and its marker, which the broker writes some time after the commit returns."""
    marker = _write_marker(bootstrap, topic, partition)
    wait_for(lambda: kafka.offsets(topic, [partition])[partition].end > marker, "the marker did not arrive")


# ---- records that the suites write and read


def spec_of(name: str, partitions: int = 3) -> TopicSpec:
    """Return a topic that keeps everything, on one broker."""
    return TopicSpec(name=name, partitions=partitions, replication_factor=1, config={"retention.ms": "-1"})


def settle(producer: Producer, count: int, reports: list[Delivery]) -> None:
    """Poll until `count` reports have come."""
    for _ in range(2000):
        if len(reports) >= count:
            return
        producer.poll(0.05)
    pytest.fail(f"{len(reports)} of {count} reports came")


def write_all(kafka: Kafka, topic: str, partition: int, values: list[bytes]) -> list[int]:
    """Write values, all of which must be acknowledged; return their offsets."""
    producer = kafka.producer()
    reports: list[Delivery] = []
    for value in values:
        while not producer.send(topic, partition, value, reports.append):
            producer.poll(0.05)
    settle(producer, len(values), reports)
    producer.close()
    assert {report.status for report in reports} <= {DeliveryStatus.OK}
    return [report.offset for report in reports]


def read_all(kafka: Kafka, topic: str, ranges: dict[int, OffsetRange]) -> list[Record]:
    """Return all records of these ranges, read by a reader of their own."""
    reader = kafka.reader(topic)
    try:
        return list(reader.read(ranges, stall_timeout_s=TIMEOUT_S))
    finally:
        reader.close()


def numbered(count: int, prefix: bytes = b"v") -> list[bytes]:
    """Return so many numbered values."""
    return [prefix + str(number).encode() for number in range(count)]
