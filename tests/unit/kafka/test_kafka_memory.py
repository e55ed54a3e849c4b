"""The in-memory Kafka plays each accident as described, and runs are repeatable."""

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statelog.errors import BeyondEnd, BrokerUnavailable, NotFound, OffsetGone
from statelog.kafka.port import Delivery, DeliveryStatus, OffsetRange, TopicSpec
from statelog.testing.cluster import MemoryCluster
from statelog.testing.faults import Fate, ScriptedFaults
from statelog.testing.kafka import MemoryKafka, MemoryProducer

OK, UNKNOWN = DeliveryStatus.OK, DeliveryStatus.UNKNOWN


def _kafka(*fates: Fate) -> MemoryKafka:
    kafka = MemoryKafka(cluster=MemoryCluster(faults=ScriptedFaults(fates=dict(enumerate(fates)))))
    kafka.create_topic(TopicSpec(name="t", partitions=2, replication_factor=1))
    return kafka


def _send(producer: MemoryProducer, count: int, partition: int = 0, first: int = 0) -> list[Delivery | None]:
    """Send numbered values, and return a list that fills as their reports come."""
    reports: list[Delivery | None] = [None] * count

    def note(at: int, delivery: Delivery) -> None:
        assert reports[at] is None, "reported twice"
        reports[at] = delivery

    for at in range(count):
        assert producer.send("t", partition, str(first + at).encode(), partial(note, at))
    return reports


def _statuses(reports: list[Delivery | None]) -> list[DeliveryStatus | None]:
    return [report and report.status for report in reports]


def _values(kafka: MemoryKafka, partition: int = 0) -> list[bytes]:
    return [record.value for record in kafka.cluster.records("t", partition)]


@pytest.mark.parametrize(
    ("fate", "statuses", "values"),
    [
        (Fate.DELIVER, [OK, OK, OK], [b"0", b"1", b"2"]),
        (Fate.LOSE, [OK, UNKNOWN, UNKNOWN], [b"0"]),
        (Fate.SKIP, [OK, UNKNOWN, OK], [b"0", b"2"]),
        (Fate.APPEND_UNANSWERED, [OK, UNKNOWN, OK], [b"0", b"1", b"2"]),
        (Fate.ACK_WITHOUT_OFFSET, [OK, UNKNOWN, OK], [b"0", b"1", b"2"]),
        (Fate.DELAY, [OK, None, None], [b"0"]),
    ],
)
def test_each_fate_does_what_it_says(fate: Fate, statuses: list[DeliveryStatus | None], values: list[bytes]) -> None:
    """The fate of the middle of three records shows in the reports and in the log."""
    kafka = _kafka(Fate.DELIVER, fate)
    producer = kafka.producer()
    reports = _send(producer, 3)
    assert _values(kafka) == []
    producer.poll(0)
    assert _statuses(reports) == statuses
    assert _values(kafka) == values


def test_delayed_records_arrive_in_order_and_are_reported_then() -> None:
    """Release appends delayed records, oldest first, and the next poll reports them."""
    kafka = _kafka(Fate.DELAY)
    producer = kafka.producer()
    reports = _send(producer, 3)
    producer.poll(0)
    assert kafka.cluster.release(1) == 1
    assert _values(kafka) == [b"0"]
    assert kafka.cluster.release() == 2
    producer.poll(0)
    assert _statuses(reports) == [OK, OK, OK]
    assert _values(kafka) == [b"0", b"1", b"2"]


def test_a_delayed_record_can_arrive_after_its_producer_is_gone() -> None:
    """A delayed record is UNKNOWN when its producer closes, and may be appended behind a newer producer's records."""
    kafka = _kafka(Fate.DELAY)
    old, new = kafka.producer(), kafka.join().producer()
    reports = _send(old, 1)
    old.close()
    assert _statuses(reports) == [UNKNOWN]
    _send(new, 1, first=10)
    new.poll(0)
    kafka.cluster.release()
    assert _values(kafka) == [b"10", b"0"]


def test_an_expired_record_can_still_arrive() -> None:
    """A record whose client timed out is UNKNOWN, and may still be appended later."""
    kafka = _kafka(Fate.DELAY)
    producer = kafka.producer()
    reports = _send(producer, 1)
    producer.poll(0)
    assert kafka.cluster.expire() == 1
    producer.poll(0)
    assert _statuses(reports) == [UNKNOWN]
    kafka.cluster.release()
    producer.poll(0)
    assert _values(kafka) == [b"0"]


def test_a_lost_record_takes_only_its_own_lane_along() -> None:
    """A lost record takes only its own lane along, and no other partition or producer."""
    kafka = _kafka(Fate.LOSE)
    first, second = kafka.producer(), kafka.producer()
    lost, elsewhere = _send(first, 2), _send(first, 1, partition=1)
    others = _send(second, 1)
    first.poll(0)
    second.poll(0)
    assert _statuses(lost) == [UNKNOWN, UNKNOWN]
    assert _statuses(elsewhere) == _statuses(others) == [OK]


def test_records_that_were_never_polled_are_gone_at_close() -> None:
    """Close purges records that were never polled: they are UNKNOWN, and are not appended."""
    kafka = _kafka()
    producer = kafka.producer()
    reports = _send(producer, 2)
    producer.close()
    assert _statuses(reports) == [UNKNOWN, UNKNOWN]
    assert _values(kafka) == []


def test_a_full_queue_is_refused_without_a_trace() -> None:
    """A record that a full queue refuses is not queued, and its callback never runs."""
    kafka = MemoryKafka(queue_limit=1)
    kafka.create_topic(TopicSpec(name="t", partitions=1, replication_factor=1))
    producer = kafka.producer()
    reports = _send(producer, 1)
    assert not producer.send("t", 0, b"more", lambda _: pytest.fail("reported"))
    producer.poll(0)
    assert _statuses(reports) == [OK]
    assert _values(kafka) == [b"0"]


def test_a_cluster_that_is_down_answers_nobody_and_loses_nothing() -> None:
    """While the cluster is down, calls raise BrokerUnavailable and sends wait. Everything continues afterwards."""
    kafka = _kafka()
    producer = kafka.producer()
    reports = _send(producer, 1)
    kafka.cluster.set_down(is_down=True)
    assert producer.poll(1.0) == 0
    for call in (kafka.cluster_id, lambda: kafka.offsets("t", [0]), lambda: kafka.describe_topic("t")):
        with pytest.raises(BrokerUnavailable):
            call()
    kafka.cluster.set_down(is_down=False)
    assert producer.poll(0) == 1
    assert _statuses(reports) == [OK]


def test_log_start_can_rewind_and_bring_records_back() -> None:
    """The log start can move back, as after a crash of a broker that had not recorded the truncation."""
    kafka = _kafka()
    producer = kafka.producer()
    _send(producer, 4)
    producer.poll(0)
    assert kafka.delete_records("t", {0: 3}) == {0: 3}
    kafka.cluster.rewind_log_start("t", 0, 1)
    assert kafka.offsets("t", [0]) == {0: OffsetRange(1, 4)}
    assert _values(kafka) == [b"1", b"2", b"3"]


def test_a_lost_tail_is_written_again_with_the_same_offsets() -> None:
    """After an unclean election, readers of the old end get BeyondEnd, then other records under the same offsets."""
    kafka = _kafka()
    producer = kafka.producer()
    _send(producer, 3)
    producer.poll(0)
    kafka.cluster.lose_tail("t", 0, 1)
    with pytest.raises(BeyondEnd):
        list(kafka.reader("t").read({0: OffsetRange(0, 3)}, stall_timeout_s=1))
    reports = _send(producer, 1, first=90)
    producer.poll(0)
    assert reports[0] == Delivery(OK, 1, "")
    assert _values(kafka) == [b"0", b"90"]


def test_truncation_under_a_reader_is_gone() -> None:
    """A read that a truncation overtakes raises, and never skips."""
    kafka = _kafka()
    producer = kafka.producer()
    _send(producer, 4)
    producer.poll(0)
    read = kafka.reader("t").read({0: OffsetRange(0, 4)}, stall_timeout_s=1)
    assert next(read).offset == 0
    kafka.cluster.truncate("t", 0, 2)
    with pytest.raises(OffsetGone):
        next(read)


def test_operators_accidents_show_in_descriptions() -> None:
    """A re-created topic has another id. Settings and partitions change as an operator orders."""
    kafka = _kafka()
    before = kafka.describe_topic("t")
    kafka.cluster.recreate_topic("t")
    kafka.cluster.set_topic_config("t", {"retention.ms": "1"})
    kafka.cluster.add_partitions("t", 1)
    after = kafka.describe_topic("t")
    assert before is not None
    assert after is not None
    assert before.topic_id != after.topic_id
    assert (after.partitions, after.config["retention.ms"]) == (3, "1")


def test_a_record_can_be_spoiled() -> None:
    """A record can be spoiled to test checksums: its offset then holds another value. A gap has none to spoil."""
    kafka = _kafka()
    producer = kafka.producer()
    _send(producer, 1)
    producer.poll(0)
    kafka.cluster.overwrite("t", 0, 0, b"spoiled")
    assert _values(kafka) == [b"spoiled"]
    kafka.cluster.insert_gap("t", 0, 2)
    with pytest.raises(NotFound):
        kafka.cluster.overwrite("t", 0, 1, b"x")


@settings(deadline=None)
@given(fates=st.lists(st.sampled_from(Fate), max_size=30), data=st.data())
def test_reports_never_lie(fates: list[Fate], data: st.DataObject) -> None:
    """Under any fates, an OK record is in the log at its offset, none is there twice, and order holds."""
    kafka = _kafka(*fates)
    producer = kafka.producer()
    reports = _send(producer, len(fates))
    for step in data.draw(st.lists(st.sampled_from(["poll", "release", "expire"]), max_size=6)):
        {"poll": lambda: producer.poll(0), "release": kafka.cluster.release, "expire": kafka.cluster.expire}[step]()
    producer.close()
    kafka.cluster.release()
    written = {record.value: record.offset for record in kafka.cluster.records("t", 0)}
    assert len(written) == len(_values(kafka))
    assert list(written) == sorted(written, key=int)
    for at, report in enumerate(reports):
        assert report is not None
        assert report.status is not OK or written[str(at).encode()] == report.offset
