"""A topic as another cluster shows it that mirrors this one: the same records, under another id, made in its place."""

from contextlib import closing

from statelog.kafka.port import Kafka, OffsetRange, TopicSpec
from statelog.log.producers import append_all
from tests.support.rigs.kafka import read_all

__all__ = ["mirror"]


def mirror(kafka: Kafka, topic: str, *, missing: int = 0, foreign: int = 0) -> None:
    """Make the topic anew with its records: without the first ones, so many as are `missing`, and behind so many
    `foreign` ones in each partition. They have the same offsets if there are none of either.
    """
    spec = kafka.describe_topic(topic)
    assert spec is not None
    ranges = {p: OffsetRange(*there) for p, there in kafka.offsets(topic, range(spec.partitions)).items()}
    records = read_all(kafka, topic, ranges)
    kafka.delete_topic(topic)
    kafka.create_topic(TopicSpec(name=topic, partitions=spec.partitions, replication_factor=1, config=spec.config))
    with closing(kafka.producer()) as producer:
        for partition in range(spec.partitions):
            append_all(producer, topic, partition, b"another's", foreign)
        for record in records[missing:]:
            append_all(producer, topic, record.partition, record.value, 1)
