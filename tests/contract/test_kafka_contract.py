"""What both implementations of the Kafka port promise, asked of each in the same words.

`MemoryKafka` earns its place in simulations by passing here; `ConfluentKafka` is held to the same on a real broker.
"""

import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

from statelog.errors import (
    AlreadyExists,
    BeyondEnd,
    ClosedError,
    Misuse,
    NotFound,
    OffsetGone,
    ValueTooLarge,
)
from statelog.storage.kafka import Delivery, DeliveryStatus, Kafka, OffsetRange, Producer, Record, TopicSpec
from tests.support.rigs.kafka import World, broker_world, memory_world

TIMEOUT_S = 60.0


@pytest.fixture(scope="module", params=["memory", pytest.param("confluent", marks=pytest.mark.broker)])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Each implementation in turn; the real one on the session's broker."""
    made = memory_world() if request.param == "memory" else broker_world(request.getfixturevalue("broker").bootstrap)
    yield made
    made.kafka.close()


@pytest.fixture
def kafka(world: World) -> Kafka:
    """The port under test."""
    return world.kafka


@pytest.fixture
def topic(kafka: Kafka) -> Iterator[str]:
    """A new topic of three partitions, gone after the test."""
    name = f"contract-{uuid.uuid4().hex[:12]}"
    kafka.create_topic(_spec(name))
    yield name
    kafka.delete_topic(name)


def _spec(name: str, partitions: int = 3) -> TopicSpec:
    return TopicSpec(name=name, partitions=partitions, replication_factor=1, config={"retention.ms": "-1"})


def _settle(producer: Producer, count: int, reports: list[Delivery]) -> None:
    """Poll until `count` reports are there."""
    for _ in range(2000):
        if len(reports) >= count:
            return
        producer.poll(0.05)
    pytest.fail(f"{len(reports)} of {count} reports came")


def _write(kafka: Kafka, topic: str, partition: int, values: list[bytes]) -> list[int]:
    """Write values, all of which must be acknowledged; returns their offsets."""
    producer = kafka.producer()
    reports: list[Delivery] = []
    for value in values:
        while not producer.send(topic, partition, value, reports.append):
            producer.poll(0.05)
    _settle(producer, len(values), reports)
    producer.close()
    assert {report.status for report in reports} <= {DeliveryStatus.OK}
    return [report.offset for report in reports]


def _read(kafka: Kafka, topic: str, ranges: dict[int, OffsetRange]) -> list[Record]:
    reader = kafka.reader(topic)
    try:
        return list(reader.read(ranges, stall_timeout_s=TIMEOUT_S))
    finally:
        reader.close()


def _numbered(count: int, prefix: bytes = b"v") -> list[bytes]:
    return [prefix + str(number).encode() for number in range(count)]


class TestTopics:
    """Identity, creation and deletion of topics."""

    def test_cluster_id_is_stable_and_not_empty(self, kafka: Kafka) -> None:
        """The cluster has one id, whoever asks."""
        assert kafka.cluster_id()
        assert kafka.cluster_id() == kafka.cluster_id()

    def test_describe_tells_what_was_created(self, kafka: Kafka, topic: str) -> None:
        """A description names partitions, replication and every effective setting, defaults included."""
        described = kafka.describe_topic(topic)
        assert described is not None
        assert (described.name, described.partitions, described.replication_factor) == (topic, 3, 1)
        assert described.config["retention.ms"] == "-1"
        assert described.config["cleanup.policy"] == "delete"
        assert int(described.config["max.message.bytes"]) > 0
        assert described.config["unclean.leader.election.enable"] == "false"
        assert described.config["min.insync.replicas"] == "1"

    def test_a_missing_topic_is_none(self, kafka: Kafka) -> None:
        """No topic is an answer, not an error."""
        assert kafka.describe_topic(f"absent-{uuid.uuid4().hex}") is None

    def test_a_topic_is_created_once(self, kafka: Kafka, topic: str) -> None:
        """A second creation is refused by type."""
        with pytest.raises(AlreadyExists):
            kafka.create_topic(_spec(topic))

    def test_a_new_topic_answers_at_once(self, kafka: Kafka) -> None:
        """After create_topic returns, offsets and writes need no waiting."""
        for _ in range(3):
            name = f"contract-{uuid.uuid4().hex[:12]}"
            kafka.create_topic(_spec(name, 8))
            assert kafka.offsets(name, range(8)) == dict.fromkeys(range(8), OffsetRange(0, 0))
            assert _write(kafka, name, 7, [b"x"]) == [0]
            kafka.delete_topic(name)

    def test_a_topic_made_anew_has_another_id(self, kafka: Kafka, topic: str) -> None:
        """The name returns, the identity does not, and neither do the records."""
        _write(kafka, topic, 0, [b"old"])
        before = kafka.describe_topic(topic)
        kafka.delete_topic(topic)
        assert kafka.describe_topic(topic) is None
        kafka.create_topic(_spec(topic))
        after = kafka.describe_topic(topic)
        assert before is not None
        assert after is not None
        assert before.topic_id != after.topic_id
        assert kafka.offsets(topic, [0]) == {0: OffsetRange(0, 0)}

    def test_deleting_what_is_not_there_is_fine(self, kafka: Kafka) -> None:
        """Deletion is idempotent."""
        kafka.delete_topic(f"absent-{uuid.uuid4().hex}")

    def test_offsets_of_what_is_not_there_are_not_found(self, kafka: Kafka, topic: str) -> None:
        """A missing topic and a missing partition are both NotFound."""
        with pytest.raises(NotFound):
            kafka.offsets(f"absent-{uuid.uuid4().hex}", [0])
        with pytest.raises(NotFound):
            kafka.offsets(topic, [0, 3])

    def test_a_closed_port_refuses_work(self, world: World) -> None:
        """After close every call is a ClosedError, and closing again is fine."""
        another = world.another()
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

    def test_a_published_offset_is_kept_for_the_group(self, world: World, topic: str) -> None:
        """Kafka's own tools see the group's offset, and the latest one wins."""
        group = f"group-{uuid.uuid4().hex[:8]}"
        world.kafka.publish_offset(group, topic, 1, 0)
        world.kafka.publish_offset(group, topic, 1, 7)
        assert world.published(group, topic, 1) == 7


class TestProducer:
    """Sending and the reports on it."""

    def test_offsets_are_dense_and_in_order(self, kafka: Kafka, topic: str) -> None:
        """One producer's records of a partition lie in the order in which they were sent."""
        assert _write(kafka, topic, 1, _numbered(50)) == list(range(50))
        assert [record.value for record in _read(kafka, topic, {1: OffsetRange(0, 50)})] == _numbered(50)

    def test_each_record_is_reported_once(self, kafka: Kafka, topic: str) -> None:
        """As many reports as sends, each to its own callback, and nothing is in flight afterwards."""
        producer = kafka.producer()
        reported: Counter[int] = Counter()

        def note(number: int, delivery: Delivery) -> None:
            reported[number] += 1

        for number in range(100):
            assert producer.send(topic, number % 3, b"x", partial(note, number))
        assert producer.in_flight > 0
        for _ in range(400):
            if not producer.in_flight:
                break
            producer.poll(0.05)
        producer.poll(0)
        assert producer.in_flight == 0
        assert reported == Counter(range(100))
        producer.close()
        assert reported == Counter(range(100))

    def test_reports_come_only_from_poll_and_close(self, kafka: Kafka, topic: str) -> None:
        """Sending alone calls nobody back."""
        producer = kafka.producer()
        reports: list[Delivery] = []
        for _ in range(200):
            producer.send(topic, 0, b"x", reports.append)
        assert reports == []
        producer.close()
        assert len(reports) == 200

    def test_poll_counts_the_callbacks_it_ran(self, kafka: Kafka, topic: str) -> None:
        """The sum of all polls is the number of reports."""
        producer = kafka.producer()
        reports: list[Delivery] = []
        assert producer.poll(0) == 0
        for _ in range(10):
            producer.send(topic, 0, b"x", reports.append)
        ran = 0
        for _ in range(400):
            if ran >= 10:
                break
            ran += producer.poll(0.05)
        assert ran == len(reports) == 10
        producer.close()

    def test_close_reports_the_rest_and_does_not_wait(self, kafka: Kafka, topic: str) -> None:
        """After a close every record was reported, and those that are OK are in the log."""
        producer = kafka.producer()
        reports: list[Delivery] = []
        for number in range(300):
            producer.send(topic, 0, str(number).encode(), reports.append)
        producer.close()
        producer.close()
        assert len(reports) == 300
        assert all((report.offset >= 0) == (report.status is DeliveryStatus.OK) for report in reports)
        end = kafka.offsets(topic, [0])[0].end
        assert all(report.offset < end for report in reports)

    def test_a_closed_producer_refuses_work(self, kafka: Kafka, topic: str) -> None:
        """Sending and polling after close is a ClosedError."""
        producer = kafka.producer()
        producer.close()
        with pytest.raises(ClosedError):
            producer.send(topic, 0, b"x", lambda _: None)
        with pytest.raises(ClosedError):
            producer.poll(0)

    def test_a_record_over_the_clients_limit_is_refused_at_once(self, kafka: Kafka, topic: str) -> None:
        """Sixteen MiB do not fit with their framing; nothing is queued and the producer goes on."""
        producer = kafka.producer()
        with pytest.raises(ValueTooLarge) as raised:
            producer.send(topic, 0, bytes(16 << 20), lambda _: None)
        assert raised.value.facts["size_bytes"] == 16 << 20
        assert producer.in_flight == 0
        reports: list[Delivery] = []
        assert producer.send(topic, 0, b"small", reports.append)
        _settle(producer, 1, reports)
        assert reports[0].status is DeliveryStatus.OK
        producer.close()

    def test_a_record_over_the_topics_limit_is_told_as_that(self, kafka: Kafka, topic: str) -> None:
        """It is no clear no: the limit may be new, and an earlier try in the log. Records after it are delivered."""
        producer = kafka.producer()
        reports: list[Delivery] = []
        producer.send(topic, 0, random.Random(1).randbytes(2 << 20), reports.append)
        _settle(producer, 1, reports)
        producer.send(topic, 0, b"small", reports.append)
        _settle(producer, 2, reports)
        producer.close()
        assert [report.status for report in reports] == [DeliveryStatus.UNKNOWN, DeliveryStatus.OK]
        assert reports[0].offset == -1
        assert "MSG_SIZE_TOO_LARGE" in reports[0].reason
        assert f"max.message.bytes of topic {topic}" in reports[0].remedy
        assert [record.value for record in _read(kafka, topic, {0: OffsetRange(0, 1)})] == [b"small"]

    def test_producers_do_not_disturb_each_other(self, world: World, topic: str) -> None:
        """Several writers in several threads: each one's order holds and every acknowledged record is there once."""
        offsets: dict[int, list[int]] = {}

        def write(number: int) -> None:
            offsets[number] = _write(world.another(), topic, 2, _numbered(40, f"w{number}-".encode()))

        threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT_S)
        records = {r.offset: r.value for r in _read(world.kafka, topic, {2: OffsetRange(0, 120)})}
        assert len(records) == 120
        for number in range(3):
            assert offsets[number] == sorted(offsets[number])
            assert [records[offset] for offset in offsets[number]] == _numbered(40, f"w{number}-".encode())


class TestReader:
    """Ranges: all of them, in order, or a typed error."""

    def test_ranges_are_half_open(self, kafka: Kafka, topic: str) -> None:
        """Start is read, end is not; partitions may come in any order, offsets within one may not."""
        for partition in range(3):
            _write(kafka, topic, partition, _numbered(20, f"p{partition}-".encode()))
        ranges = {0: OffsetRange(3, 9), 1: OffsetRange(0, 20), 2: OffsetRange(19, 20)}
        records = _read(kafka, topic, ranges)
        for partition, wanted in ranges.items():
            mine = [record for record in records if record.partition == partition]
            assert [record.offset for record in mine] == list(range(*wanted))
            assert [record.value for record in mine] == _numbered(20, f"p{partition}-".encode())[
                wanted.start : wanted.end
            ]

    def test_empty_ranges_yield_nothing(self, kafka: Kafka, topic: str) -> None:
        """No ranges and empty ranges are read without a record, wherever they lie."""
        assert _read(kafka, topic, {}) == []
        assert _read(kafka, topic, {0: OffsetRange(0, 0), 1: OffsetRange(7, 7)}) == []

    def test_values_survive_as_they_are(self, kafka: Kafka, topic: str) -> None:
        """Empty, binary and large values come back byte by byte."""
        values = [b"", b"\x00\xff", random.Random(2).randbytes(900_000)]
        _write(kafka, topic, 0, values)
        assert [record.value for record in _read(kafka, topic, {0: OffsetRange(0, 3)})] == values

    def test_records_carry_the_time_of_the_broker_alone(self, kafka: Kafka, topic: str) -> None:
        """Milliseconds since 1970, not before the first was sent and not after the last was read; none, where the topic
        bears the times of who sends.
        """
        stamped = f"{topic}-stamped"
        kafka.create_topic(replace(_spec(stamped), config={"message.timestamp.type": "LogAppendTime"}))
        started_ms = int(time.time() * 1000)
        for name in (stamped, topic):
            _write(kafka, name, 0, _numbered(3))
        times_ms = [record.timestamp_ms for record in _read(kafka, stamped, {0: OffsetRange(0, 3)})]
        assert started_ms <= min(times_ms) <= max(times_ms) <= time.time() * 1000
        assert [record.timestamp_ms for record in _read(kafka, topic, {0: OffsetRange(0, 3)})] == [-1, -1, -1]
        kafka.delete_topic(stamped)

    def test_a_start_below_the_log_start_is_gone(self, kafka: Kafka, topic: str) -> None:
        """The error names the partition, what was wanted and what is there, before any record is yielded."""
        _write(kafka, topic, 1, _numbered(10))
        kafka.delete_records(topic, {1: 4})
        seen: list[Record] = []
        reader = kafka.reader(topic)
        with pytest.raises(OffsetGone) as raised:
            seen.extend(reader.read({1: OffsetRange(3, 10)}, stall_timeout_s=TIMEOUT_S))
        assert seen == []
        facts = raised.value.facts
        assert (facts["topic"], facts["partition"], facts["start_offset"], facts["log_start"]) == (topic, 1, 3, 4)
        assert [r.offset for r in reader.read({1: OffsetRange(4, 10)}, stall_timeout_s=TIMEOUT_S)] == list(range(4, 10))
        reader.close()

    def test_an_end_above_the_log_end_is_beyond(self, kafka: Kafka, topic: str) -> None:
        """Nobody waits for records that were promised and are not there."""
        _write(kafka, topic, 0, _numbered(5))
        reader = kafka.reader(topic)
        with pytest.raises(BeyondEnd) as raised:
            list(reader.read({0: OffsetRange(2, 6)}, stall_timeout_s=TIMEOUT_S))
        assert (raised.value.facts["end_offset"], raised.value.facts["log_end"]) == (6, 5)
        with pytest.raises(BeyondEnd):
            list(reader.read({0: OffsetRange(50, 60)}, stall_timeout_s=TIMEOUT_S))
        reader.close()

    def test_a_missing_topic_or_partition_is_not_found(self, kafka: Kafka, topic: str) -> None:
        """A reader of nothing says so."""
        for name, partition in ((f"absent-{uuid.uuid4().hex}", 0), (topic, 9)):
            with pytest.raises(NotFound):
                _read(kafka, name, {partition: OffsetRange(0, 1)})

    def test_negative_offsets_are_misuse(self, kafka: Kafka, topic: str) -> None:
        """Kafka gives negative offsets meanings; the port gives them none."""
        with pytest.raises(Misuse):
            _read(kafka, topic, {0: OffsetRange(-1, 1)})
        with pytest.raises(Misuse):
            kafka.delete_records(topic, {0: -1})

    def test_gaps_are_stepped_over(self, world: World, topic: str) -> None:
        """Offsets without a record, at a range's start, inside it and at its end, neither raise nor stall."""
        _write(world.kafka, topic, 0, _numbered(3))
        world.make_gap(topic, 0)
        gap_end = world.kafka.offsets(topic, [0])[0].end
        (after,) = _write(world.kafka, topic, 0, [b"after"])
        world.make_gap(topic, 0)
        end = world.kafka.offsets(topic, [0])[0].end
        inside = _read(world.kafka, topic, {0: OffsetRange(0, end)})
        assert [r.value for r in inside if r.value.startswith((b"v", b"after"))] == [*_numbered(3), b"after"]
        assert end > after + 1
        assert _read(world.kafka, topic, {0: OffsetRange(gap_end - 1, gap_end)}) == []
        assert _read(world.kafka, topic, {0: OffsetRange(end - 1, end)}) == []
        assert [r.value for r in _read(world.kafka, topic, {0: OffsetRange(gap_end - 1, after + 1)})] == [b"after"]

    def test_any_sequence_of_reads_is_exact(self, kafka: Kafka, topic: str) -> None:
        """One reader, many reads, some abandoned in the middle: no read is touched by the one before it."""
        for partition in range(3):
            _write(kafka, topic, partition, _numbered(300, f"p{partition}-".encode()))
        reader, chance = kafka.reader(topic), random.Random(7)
        for _ in range(60):
            ranges = {p: _random_range(chance, 300) for p in chance.sample(range(3), chance.randint(1, 3))}
            limit = chance.choice([1, 5, 10_000])
            records: list[Record] = []
            iterator = reader.read(ranges, stall_timeout_s=TIMEOUT_S)
            for record in iterator:
                records.append(record)
                if len(records) == limit:
                    break
            _assert_exact(records, ranges, is_complete=len(records) < limit)
        reader.close()

    def test_a_later_read_ends_an_earlier_one(self, kafka: Kafka, topic: str) -> None:
        """The iterator of an earlier read does not silently end, and the later read is complete."""
        _write(kafka, topic, 0, _numbered(100))
        reader = kafka.reader(topic)
        earlier = reader.read({0: OffsetRange(0, 100)}, stall_timeout_s=TIMEOUT_S)
        next(earlier)
        later = list(reader.read({0: OffsetRange(50, 100)}, stall_timeout_s=TIMEOUT_S))
        assert [record.offset for record in later] == list(range(50, 100))
        with pytest.raises(ClosedError):
            list(earlier)
        reader.close()

    def test_truncation_during_a_read_is_loud(self, kafka: Kafka, topic: str) -> None:
        """A range that loses records while it is read is either read whole or raises OffsetGone; it never skips."""
        chance = random.Random(3)
        values = [chance.randbytes(200_000) for _ in range(200)]
        _write(kafka, topic, 0, values)
        reader = kafka.reader(topic)
        records: list[Record] = []
        try:
            for record in reader.read({0: OffsetRange(0, 200)}, stall_timeout_s=TIMEOUT_S):
                records.append(record)
                if len(records) == 5:
                    kafka.delete_records(topic, {0: 199})
        except OffsetGone as gone:
            assert gone.facts["log_start"] == 199
        else:
            assert len(records) == 200
        assert [record.value for record in records] == values[: len(records)]
        reader.close()

    def test_a_closed_reader_refuses_work(self, kafka: Kafka, topic: str) -> None:
        """Reading after close is a ClosedError, and closing again is fine."""
        reader = kafka.reader(topic)
        reader.close()
        reader.close()
        with pytest.raises(ClosedError):
            list(reader.read({0: OffsetRange(0, 0)}, stall_timeout_s=TIMEOUT_S))


class TestTruncation:
    """DeleteRecords, the only way in which the log gets shorter."""

    def test_records_below_are_gone_and_the_rest_stays(self, kafka: Kafka, topic: str) -> None:
        """The answer is the new log start of each partition, and the log end never moves."""
        for partition in range(2):
            _write(kafka, topic, partition, _numbered(10))
        assert kafka.delete_records(topic, {0: 4, 1: 10}) == {0: 4, 1: 10}
        assert kafka.offsets(topic, [0, 1]) == {0: OffsetRange(4, 10), 1: OffsetRange(10, 10)}
        assert [r.offset for r in _read(kafka, topic, {0: OffsetRange(4, 10)})] == list(range(4, 10))
        assert _write(kafka, topic, 1, [b"next"]) == [10]

    def test_truncating_again_or_below_changes_nothing(self, kafka: Kafka, topic: str) -> None:
        """Truncation is idempotent and monotone."""
        _write(kafka, topic, 0, _numbered(10))
        kafka.delete_records(topic, {0: 6})
        assert kafka.delete_records(topic, {0: 6}) == {0: 6}
        assert kafka.delete_records(topic, {0: 2}) == {0: 6}
        assert kafka.delete_records(topic, {}) == {}

    def test_truncating_above_the_end_is_refused(self, kafka: Kafka, topic: str) -> None:
        """The error is typed, and nothing was dropped."""
        _write(kafka, topic, 0, _numbered(3))
        with pytest.raises(BeyondEnd):
            kafka.delete_records(topic, {0: 4})
        assert kafka.offsets(topic, [0]) == {0: OffsetRange(0, 3)}

    def test_truncating_nothing_is_not_found(self, kafka: Kafka) -> None:
        """A missing topic is NotFound."""
        with pytest.raises(NotFound):
            kafka.delete_records(f"absent-{uuid.uuid4().hex}", {0: 1})


def _random_range(chance: random.Random, end: int) -> OffsetRange:
    first, second = sorted((chance.randint(0, end), chance.randint(0, end)))
    return OffsetRange(first, second)


def _assert_exact(records: list[Record], ranges: dict[int, OffsetRange], *, is_complete: bool) -> None:
    for partition, wanted in ranges.items():
        offsets = [record.offset for record in records if record.partition == partition]
        assert offsets == list(range(wanted.start, wanted.start + len(offsets)))
        assert len(offsets) == wanted.end - wanted.start or not is_complete
    assert all(record.value == f"p{record.partition}-{record.offset}".encode() for record in records)
