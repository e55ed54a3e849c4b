"""The promises of both implementations of the Kafka port on records: sent once and reported, read exactly."""

import random
import threading
import time
import uuid
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest

from statelog.errors import (
    BeyondEnd,
    ClosedError,
    Misuse,
    NotFound,
    OffsetGone,
    ValueTooLarge,
)
from statelog.kafka.port import Delivery, DeliveryStatus, Kafka, OffsetRange, Record
from tests.support.rigs.kafka import TIMEOUT_S, World, numbered, read_all, settle, spec_of, write_all


class TestProducer:
    """Sends and their reports."""

    def test_offsets_are_dense_and_in_order(self, kafka: Kafka, topic: str) -> None:
        """One producer's records of a partition lie in the order in which they were sent."""
        assert write_all(kafka, topic, 1, numbered(50)) == list(range(50))
        assert [record.value for record in read_all(kafka, topic, {1: OffsetRange(0, 50)})] == numbered(50)

    def test_each_record_is_reported_once(self, kafka: Kafka, topic: str) -> None:
        """Each record has one report, at its own callback, and nothing is in flight afterwards."""
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
        """Reports come only from poll and close: a send alone calls nobody back."""
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
        """After a close every record was reported, and the OK ones are in the log."""
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

    def test_to_connect_ahead_writes_nothing(self, kafka: Kafka, topic: str) -> None:
        """Connecting ahead, once or twice, used or not, writes nothing; the next record sent is the first."""
        for is_used in (False, True):
            producer, reports = kafka.producer(), list[Delivery]()
            producer.connect()
            producer.connect()
            assert kafka.offsets(topic, [0])[0].end == producer.in_flight == 0
            if is_used:
                assert producer.send(topic, 0, b"first", reports.append)
                settle(producer, 1, reports)
                assert (reports[0].status, reports[0].offset) == (DeliveryStatus.OK, 0)
            producer.close()

    def test_a_closed_producer_refuses_work(self, kafka: Kafka, topic: str) -> None:
        """Sending and polling after close is a ClosedError."""
        producer = kafka.producer()
        producer.close()
        with pytest.raises(ClosedError):
            producer.connect()
        with pytest.raises(ClosedError):
            producer.send(topic, 0, b"x", lambda _: None)
        with pytest.raises(ClosedError):
            producer.poll(0)

    def test_a_record_over_the_clients_limit_is_refused_at_once(self, kafka: Kafka, topic: str) -> None:
        """A record over the client's limit is refused at once: sixteen MiB do not fit with their framing.

        Nothing is queued, and the producer goes on.
        """
        producer = kafka.producer()
        with pytest.raises(ValueTooLarge) as raised:
            producer.send(topic, 0, bytes(16 << 20), lambda _: None)
        assert raised.value.facts["size_bytes"] == 16 << 20
        assert producer.in_flight == 0
        reports: list[Delivery] = []
        assert producer.send(topic, 0, b"small", reports.append)
        settle(producer, 1, reports)
        assert reports[0].status is DeliveryStatus.OK
        producer.close()

    def test_a_record_over_the_topics_limit_is_told_as_that(self, kafka: Kafka, topic: str) -> None:
        """A record over the topic's limit is reported as that, without certainty: the limit may be new, and an earlier
        try in the log.

        Later records are delivered.
        """
        producer = kafka.producer()
        reports: list[Delivery] = []
        producer.send(topic, 0, random.Random(1).randbytes(2 << 20), reports.append)
        settle(producer, 1, reports)
        producer.send(topic, 0, b"small", reports.append)
        settle(producer, 2, reports)
        producer.close()
        assert [report.status for report in reports] == [DeliveryStatus.UNKNOWN, DeliveryStatus.OK]
        assert reports[0].offset == -1
        assert "MSG_SIZE_TOO_LARGE" in reports[0].reason
        assert f"max.message.bytes of topic {topic}" in reports[0].remedy
        assert [record.value for record in read_all(kafka, topic, {0: OffsetRange(0, 1)})] == [b"small"]

    def test_producers_do_not_disturb_each_other(self, kafka_world: World, topic: str) -> None:
        """Several writers in several threads keep their order, and every acknowledged record is there once."""
        offsets: dict[int, list[int]] = {}

        def write(number: int) -> None:
            offsets[number] = write_all(kafka_world.another(), topic, 2, numbered(40, f"w{number}-".encode()))

        threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT_S)
        records = {r.offset: r.value for r in read_all(kafka_world.kafka, topic, {2: OffsetRange(0, 120)})}
        assert len(records) == 120
        for number in range(3):
            assert offsets[number] == sorted(offsets[number])
            assert [records[offset] for offset in offsets[number]] == numbered(40, f"w{number}-".encode())


class TestReader:
    """Ranges: all of them, in order, or a typed error."""

    def test_ranges_are_half_open(self, kafka: Kafka, topic: str) -> None:
        """Start is read, end is not; partitions may come in any order, offsets within one may not."""
        for partition in range(3):
            write_all(kafka, topic, partition, numbered(20, f"p{partition}-".encode()))
        ranges = {0: OffsetRange(3, 9), 1: OffsetRange(0, 20), 2: OffsetRange(19, 20)}
        records = read_all(kafka, topic, ranges)
        for partition, wanted in ranges.items():
            mine = [record for record in records if record.partition == partition]
            assert [record.offset for record in mine] == list(range(*wanted))
            assert [record.value for record in mine] == numbered(20, f"p{partition}-".encode())[
                wanted.start : wanted.end
            ]

    def test_empty_ranges_yield_nothing(self, kafka: Kafka, topic: str) -> None:
        """Reads of no ranges or of empty ones yield no record, wherever they lie."""
        assert read_all(kafka, topic, {}) == []
        assert read_all(kafka, topic, {0: OffsetRange(0, 0), 1: OffsetRange(7, 7)}) == []

    def test_values_survive_as_they_are(self, kafka: Kafka, topic: str) -> None:
        """Empty, binary and large values come back byte by byte."""
        values = [b"", b"\x00\xff", random.Random(2).randbytes(900_000)]
        write_all(kafka, topic, 0, values)
        assert [record.value for record in read_all(kafka, topic, {0: OffsetRange(0, 3)})] == values

    def test_records_carry_the_time_of_the_broker_alone(self, kafka: Kafka, topic: str) -> None:
        """Records carry the broker's time: not before the first send, not after the last read, in milliseconds since
        1970.

        Where the topic carries its senders' times they have none.
        """
        stamped = f"{topic}-stamped"
        kafka.create_topic(replace(spec_of(stamped), config={"message.timestamp.type": "LogAppendTime"}))
        started_ms = int(time.time() * 1000)
        for name in (stamped, topic):
            write_all(kafka, name, 0, numbered(3))
        times_ms = [record.timestamp_ms for record in read_all(kafka, stamped, {0: OffsetRange(0, 3)})]
        assert started_ms <= min(times_ms) <= max(times_ms) <= time.time() * 1000
        assert [record.timestamp_ms for record in read_all(kafka, topic, {0: OffsetRange(0, 3)})] == [-1, -1, -1]
        kafka.delete_topic(stamped)

    def test_a_start_below_the_log_start_is_gone(self, kafka: Kafka, topic: str) -> None:
        """A start below the log start is OffsetGone before any record, with partition, wanted and present offsets."""
        write_all(kafka, topic, 1, numbered(10))
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
        """An end above the log end is BeyondEnd: no read waits for promised records that do not exist."""
        write_all(kafka, topic, 0, numbered(5))
        reader = kafka.reader(topic)
        with pytest.raises(BeyondEnd) as raised:
            list(reader.read({0: OffsetRange(2, 6)}, stall_timeout_s=TIMEOUT_S))
        assert (raised.value.facts["end_offset"], raised.value.facts["log_end"]) == (6, 5)
        with pytest.raises(BeyondEnd):
            list(reader.read({0: OffsetRange(50, 60)}, stall_timeout_s=TIMEOUT_S))
        reader.close()

    def test_a_missing_topic_or_partition_is_not_found(self, kafka: Kafka, topic: str) -> None:
        """A reader of a missing topic or partition raises NotFound."""
        for name, partition in ((f"absent-{uuid.uuid4().hex}", 0), (topic, 9)):
            with pytest.raises(NotFound):
                read_all(kafka, name, {partition: OffsetRange(0, 1)})

    def test_negative_offsets_are_misuse(self, kafka: Kafka, topic: str) -> None:
        """Negative offsets are misuse: Kafka gives them meanings, and the port gives them none."""
        with pytest.raises(Misuse):
            read_all(kafka, topic, {0: OffsetRange(-1, 1)})
        with pytest.raises(Misuse):
            kafka.delete_records(topic, {0: -1})

    def test_gaps_are_stepped_over(self, kafka_world: World, topic: str) -> None:
        """Offsets without a record, at a range's start, inside it and at its end, neither raise nor stall."""
        write_all(kafka_world.kafka, topic, 0, numbered(3))
        kafka_world.make_gap(topic, 0)
        gap_end = kafka_world.kafka.offsets(topic, [0])[0].end
        (after,) = write_all(kafka_world.kafka, topic, 0, [b"after"])
        kafka_world.make_gap(topic, 0)
        end = kafka_world.kafka.offsets(topic, [0])[0].end
        inside = read_all(kafka_world.kafka, topic, {0: OffsetRange(0, end)})
        assert [r.value for r in inside if r.value.startswith((b"v", b"after"))] == [*numbered(3), b"after"]
        assert end > after + 1
        assert read_all(kafka_world.kafka, topic, {0: OffsetRange(gap_end - 1, gap_end)}) == []
        assert read_all(kafka_world.kafka, topic, {0: OffsetRange(end - 1, end)}) == []
        assert [r.value for r in read_all(kafka_world.kafka, topic, {0: OffsetRange(gap_end - 1, after + 1)})] == [
            b"after"
        ]

    def test_any_sequence_of_reads_is_exact(self, kafka: Kafka, topic: str) -> None:
        """One reader, many reads, some abandoned in the middle: no read is touched by the one before it."""
        for partition in range(3):
            write_all(kafka, topic, partition, numbered(300, f"p{partition}-".encode()))
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
        write_all(kafka, topic, 0, numbered(100))
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
        write_all(kafka, topic, 0, values)
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


def _random_range(chance: random.Random, end: int) -> OffsetRange:
    first, second = sorted((chance.randint(0, end), chance.randint(0, end)))
    return OffsetRange(first, second)


def _assert_exact(records: list[Record], ranges: dict[int, OffsetRange], *, is_complete: bool) -> None:
    for partition, wanted in ranges.items():
        offsets = [record.offset for record in records if record.partition == partition]
        assert offsets == list(range(wanted.start, wanted.start + len(offsets)))
        assert len(offsets) == wanted.end - wanted.start or not is_complete
    assert all(record.value == f"p{record.partition}-{record.offset}".encode() for record in records)
