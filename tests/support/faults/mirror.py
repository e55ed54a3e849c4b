"""A topic as a mirroring cluster shows it: the same records, under another id, in place of the original."""

from contextlib import closing

from statelog.kafka.port import Kafka, OffsetRange, TopicSpec
from statelog.log.producers import append_all
from tests.support.rigs.kafka import read_all

__all__ = ["mirror"]


def mirror(kafka: Kafka, topic: str, *, missing: int = 0, foreign: int = 0) -> None:
    """Re-create the topic with its records, less the first `missing` ones, behind `foreign` other ones in each
    partition.

    The records keep their offsets if both are 0.
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
