"""The two implementations of the Kafka port, each with what the port itself does not show, for the contract suite."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition, admin

from statelog.storage.kafka import Kafka
from statelog.storage.kafka.client import ConfluentKafka
from statelog.storage.kafka.config import client_config
from statelog.storage.kafka.memory import MemoryKafka
from statelog.storage.kafka.memory_cluster import MemoryCluster
from tests.support.services.transactions import write_marker

__all__ = ["World", "broker_world", "memory_world"]

_TIMEOUT_S = 60.0
_MAX_LOOKS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One implementation under test: the port, and what the port itself does not show."""

    kafka: Kafka
    another: Callable[[], Kafka]
    published: Callable[[str, str, int], int | None]
    make_gap: Callable[[str, int], None]
    """Makes the last offset of a partition one that holds no record."""


def memory_world() -> World:
    """The in-memory twin."""
    memory = MemoryKafka(cluster=MemoryCluster(clock=time.time))
    return World(
        kafka=memory,
        another=memory.join,
        published=lambda group, topic, partition: memory.cluster.published.get((group, topic, partition)),
        make_gap=lambda topic, partition: memory.cluster.insert_gap(topic, partition, 1),
    )


def broker_world(bootstrap: str) -> World:
    """The real client on a broker."""
    config = client_config({"bootstrap.servers": bootstrap})
    kafka = ConfluentKafka(config)
    return World(
        kafka=kafka,
        another=lambda: ConfluentKafka(config),
        published=lambda group, topic, partition: _published(bootstrap, group, topic, partition),
        make_gap=lambda topic, partition: _write_gap(kafka, bootstrap, topic, partition),
    )


def _published(bootstrap: str, group: str, topic: str, partition: int) -> int | None:
    client = admin.AdminClient({"bootstrap.servers": bootstrap})
    request = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, partition)])
    answers = client.list_consumer_group_offsets([request])
    (entry,) = answers[group].result(timeout=_TIMEOUT_S).topic_partitions or []
    return entry.offset


def _write_gap(kafka: Kafka, bootstrap: str, topic: str, partition: int) -> None:
    """A transaction's record and its marker, which the broker writes some time after the commit returns."""
    marker = write_marker(bootstrap, topic, partition)
    for _ in range(_MAX_LOOKS):
        if kafka.offsets(topic, [partition])[partition].end > marker:
            return
    raise AssertionError("the marker did not arrive")
