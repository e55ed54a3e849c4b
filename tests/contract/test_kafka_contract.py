"""The promises of both implementations of the Kafka port on topics and truncation, in the same words.

`MemoryKafka` earns its use in simulations here; `ConfluentKafka` must pass the same tests on a real broker.
"""

import uuid

import pytest

from statelog.errors import (
    AlreadyExists,
    BeyondEnd,
    ClosedError,
    NotFound,
)
from statelog.kafka.port import GroupOffset, Kafka, OffsetRange
from tests.support.rigs.kafka import World, numbered, read_all, spec_of, write_all


class TestTopics:
    """Identity, creation and deletion of topics."""

    def test_cluster_id_is_stable_and_not_empty(self, kafka: Kafka) -> None:
        """The cluster has one id for every client."""
        assert kafka.cluster_id()
        assert kafka.cluster_id() == kafka.cluster_id()

    def test_describe_tells_what_was_created(self, kafka: Kafka, topic: str) -> None:
        """A description names partitions, replication and every effective setting, defaults included."""
        described = kafka.describe_topic(topic)
        assert described is not None
        assert (described.name, described.partitions, described.replication_factor) == (topic, 3, 1)
        assert described.in_sync == (1, 1, 1)
        assert described.config["retention.ms"] == "-1"
        assert described.config["cleanup.policy"] == "delete"
        assert int(described.config["max.message.bytes"]) > 0
        assert described.config["unclean.leader.election.enable"] == "false"
        assert described.config["min.insync.replicas"] == "1"

    def test_a_missing_topic_is_none(self, kafka: Kafka) -> None:
        """A missing topic is None, not an error."""
        assert kafka.describe_topic(f"absent-{uuid.uuid4().hex}") is None

    def test_a_topic_is_created_once(self, kafka: Kafka, topic: str) -> None:
        """A second creation of a topic is refused by type."""
        with pytest.raises(AlreadyExists):
            kafka.create_topic(spec_of(topic))

    def test_a_new_topic_answers_at_once(self, kafka: Kafka) -> None:
        """After create_topic returns, offsets and writes need no waiting."""
        for _ in range(3):
            name = f"contract-{uuid.uuid4().hex[:12]}"
            kafka.create_topic(spec_of(name, 8))
            assert kafka.offsets(name, range(8)) == dict.fromkeys(range(8), OffsetRange(0, 0))
            assert write_all(kafka, name, 7, [b"x"]) == [0]
            kafka.delete_topic(name)

    def test_a_topic_made_anew_has_another_id(self, kafka: Kafka, topic: str) -> None:
        """A re-created topic has its name, but neither its identity nor its records."""
        write_all(kafka, topic, 0, [b"old"])
        before = kafka.describe_topic(topic)
        kafka.delete_topic(topic)
        assert kafka.describe_topic(topic) is None
        kafka.create_topic(spec_of(topic))
        after = kafka.describe_topic(topic)
        assert before is not None
        assert after is not None
        assert before.topic_id != after.topic_id
        assert kafka.offsets(topic, [0]) == {0: OffsetRange(0, 0)}

    def test_deleting_what_is_not_there_is_fine(self, kafka: Kafka) -> None:
        """Deletion is idempotent."""
        kafka.delete_topic(f"absent-{uuid.uuid4().hex}")

    def test_offsets_of_what_is_not_there_are_not_found(self, kafka: Kafka, topic: str) -> None:
        """Offsets of a missing topic or a missing partition are NotFound."""
        with pytest.raises(NotFound):
            kafka.offsets(f"absent-{uuid.uuid4().hex}", [0])
        with pytest.raises(NotFound):
            kafka.offsets(topic, [0, 3])

    def test_a_closed_port_refuses_work(self, kafka_world: World) -> None:
        """After close every call is a ClosedError, and closing again is fine."""
        another = kafka_world.another()
        another.cluster_id()
        another.close()
        another.close()
        for call in (
            another.cluster_id,
            another.producer,
            lambda: another.reader("t"),
            lambda: another.offsets("t", [0]),
        ):
            with pytest.raises(ClosedError):
                call()

    def test_a_published_offset_is_kept_for_the_group(self, kafka_world: World, topic: str) -> None:
        """Kafka's own tools see the group's offset, and the latest one wins."""
        group = f"group-{uuid.uuid4().hex[:8]}"
        kafka_world.kafka.publish_offset(group, topic, 1, 0)
        kafka_world.kafka.publish_offset(group, topic, 1, 7)
        assert kafka_world.published(group, topic, 1) == 7
        assert kafka_world.kafka.published(group, topic, 1) == GroupOffset(7)
        kafka_world.kafka.publish_offset(group, topic, 1, 8, '{"root":"file:///ä"}')
        assert kafka_world.another().published(group, topic, 1) == GroupOffset(8, '{"root":"file:///ä"}')
        assert kafka_world.kafka.published(group, topic, 0) == GroupOffset()
        assert kafka_world.kafka.published(f"{group}-of-nobody", topic, 1) == GroupOffset()


class TestTruncation:
    """DeleteRecords, the only way in which the log gets shorter."""

    def test_records_below_are_gone_and_the_rest_stays(self, kafka: Kafka, topic: str) -> None:
        """Truncation answers with the new log start of each partition, and never moves the log end."""
        for partition in range(2):
            write_all(kafka, topic, partition, numbered(10))
        assert kafka.delete_records(topic, {0: 4, 1: 10}) == {0: 4, 1: 10}
        assert kafka.offsets(topic, [0, 1]) == {0: OffsetRange(4, 10), 1: OffsetRange(10, 10)}
        assert [r.offset for r in read_all(kafka, topic, {0: OffsetRange(4, 10)})] == list(range(4, 10))
        assert write_all(kafka, topic, 1, [b"next"]) == [10]

    def test_truncating_again_or_below_changes_nothing(self, kafka: Kafka, topic: str) -> None:
        """Truncation is idempotent and monotone."""
        write_all(kafka, topic, 0, numbered(10))
        kafka.delete_records(topic, {0: 6})
        assert kafka.delete_records(topic, {0: 6}) == {0: 6}
        assert kafka.delete_records(topic, {0: 2}) == {0: 6}
        assert kafka.delete_records(topic, {}) == {}

    def test_truncating_above_the_end_is_refused(self, kafka: Kafka, topic: str) -> None:
        """A truncation above the end is refused by a typed error, and drops nothing."""
        write_all(kafka, topic, 0, numbered(3))
        with pytest.raises(BeyondEnd):
            kafka.delete_records(topic, {0: 4})
        assert kafka.offsets(topic, [0]) == {0: OffsetRange(0, 3)}

    def test_truncating_nothing_is_not_found(self, kafka: Kafka) -> None:
        """Truncation of a missing topic is NotFound."""
        with pytest.raises(NotFound):
            kafka.delete_records(f"absent-{uuid.uuid4().hex}", {0: 1})
