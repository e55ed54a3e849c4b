"""Batches that cannot be unpacked: reported by their offsets, and skipped where nothing in them counts.

On a real broker also batches that its own decoders take and the client's do not.
"""

import pytest

from statelog.errors import BrokerUnavailable, Unreadable
from statelog.kafka.errors import read_past
from statelog.kafka.port import Kafka, OffsetRange
from statelog.testing.faults import ScriptedQuestions, stalled
from statelog.testing.kafka import MemoryKafka
from tests.support.rigs.kafka import TIMEOUT_S, World, broker_world, read_all, spec_of, spoil_memory, write_all
from tests.support.services import stranger
from tests.support.services.broker import Broker

VALUES = [b"0", b"1", b"5", b"6"]


def void(_partition: int, _offsets: OffsetRange) -> bool:
    """Return that nothing counts."""
    return False


@pytest.fixture
def spoilt(kafka_world: World, topic: str) -> str:
    """Return a topic whose first two partitions hold two records, an unreadable batch of three, and two more."""
    for partition in range(2):
        write_all(kafka_world.kafka, topic, partition, VALUES[:2])
        kafka_world.spoil(topic, partition, 3)
        write_all(kafka_world.kafka, topic, partition, VALUES[2:])
    return topic


@pytest.mark.parametrize(
    ("start", "end", "lost"), [(0, 7, (2, 5)), (2, 5, (2, 5)), (3, 6, (3, 5)), (4, 5, (4, 5)), (0, 4, (2, 4))]
)
def test_a_batch_is_told_by_its_offsets(kafka: Kafka, spoilt: str, start: int, end: int, lost: tuple[int, int]) -> None:
    """A batch is reported by all of its requested offsets, and no other; with a hint, after the records before them."""
    reader, before = kafka.reader(spoilt), list[int]()
    with pytest.raises(Unreadable) as told:
        before.extend(record.offset for record in reader.read({0: OffsetRange(start, end)}, stall_timeout_s=TIMEOUT_S))
    reader.close()
    assert told.value.facts == {"topic": spoilt, "partition": 0, "start_offset": lost[0], "end_offset": lost[1]}
    assert "replica" in told.value.hint
    assert before == [0, 1][start:end]


def test_what_lies_around_a_batch_is_read(kafka: Kafka, spoilt: str) -> None:
    """Records before and behind a batch are read, although a client fetches ahead and unpacks all that it fetched."""
    for start, end in ((0, 2), (1, 2), (5, 7), (6, 7)):
        records = read_all(kafka, spoilt, {0: OffsetRange(start, end), 1: OffsetRange(start, end)})
        assert sorted(record.offset for record in records) == sorted([*range(start, end)] * 2)


def test_it_is_stepped_over_where_nothing_counts(kafka: Kafka, spoilt: str) -> None:
    """A batch is skipped where nothing counts, after one check for its offsets; every other record comes once."""
    reader, asked = kafka.reader(spoilt), list[tuple[int, OffsetRange]]()
    ranges = {partition: OffsetRange(0, 7) for partition in range(2)}

    def counts(partition: int, offsets: OffsetRange) -> bool:
        asked.append((partition, offsets))
        return False

    records = list(read_past(reader, ranges, stall_timeout_s=TIMEOUT_S, counts=counts))
    assert {p: [record.value for record in records if record.partition == p] for p in (0, 1)} == {0: VALUES, 1: VALUES}
    assert sorted(asked) == [(0, OffsetRange(2, 5)), (1, OffsetRange(2, 5))]
    with pytest.raises(Unreadable):
        list(read_past(reader, ranges, stall_timeout_s=TIMEOUT_S, counts=lambda p, _: p == 1))
    reader.close()


def test_a_batch_at_the_end_is_stepped_over(kafka_world: World, topic: str) -> None:
    """A batch at the end is skipped: no record lies behind it, and later ones are read."""
    kafka_world.spoil(topic, 0, 2)
    reader = kafka_world.kafka.reader(topic)
    wanted = {0: OffsetRange(0, 2)}
    assert not list(read_past(reader, wanted, stall_timeout_s=TIMEOUT_S, counts=void))
    write_all(kafka_world.kafka, topic, 0, [b"later"])
    found = read_past(reader, {0: OffsetRange(0, 3)}, stall_timeout_s=TIMEOUT_S, counts=void)
    assert [record.value for record in found] == [b"later"]
    reader.close()


def test_a_cut_takes_the_batch_along() -> None:
    """The twin's cut takes the batch along: records that grow again in its place are readable."""
    memory = MemoryKafka()
    memory.create_topic(spec_of("t"))
    spoil_memory(memory, "t", 0, 2)
    memory.cluster.lose_tail("t", 0, 1)
    write_all(memory, "t", 0, [b"new"])
    assert [record.value for record in read_all(memory, "t", {0: OffsetRange(1, 2)})] == [b"new"]


@pytest.mark.broker
@pytest.mark.parametrize(
    ("batch", "patience_s"),
    [(stranger.junk_behind_a_frame(b"x" * 50), TIMEOUT_S), (stranger.cut_gzip(b"x" * 200), 2.0)],
    ids=["told", "silent"],
)
def test_what_the_broker_takes_and_the_client_does_not(
    broker: Broker, topic_name: str, batch: bytes, patience_s: float
) -> None:
    """The broker takes two hand-made batches: the client reports one, and silently drops and refetches the other."""
    kafka = broker_world(broker.bootstrap).kafka
    kafka.create_topic(spec_of(topic_name))
    for value in (b"0", b"2", b"4"):
        write_all(kafka, topic_name, 0, [value])
        stranger.send(broker.bootstrap, topic_name, 0, batch)
    reader, wanted = kafka.reader(topic_name), {0: OffsetRange(0, 6)}
    found = list(read_past(reader, wanted, stall_timeout_s=patience_s, counts=void))
    assert [record.offset for record in found] == [0, 2, 4]
    with pytest.raises((Unreadable, BrokerUnavailable)):
        list(read_past(reader, wanted, stall_timeout_s=patience_s, counts=lambda _, offsets: offsets.start == 3))
    reader.close()
    kafka.delete_topic(topic_name)
    kafka.close()


def test_a_broker_that_answers_for_nothing_is_away() -> None:
    """Silence at one offset proves nothing if the next one is not answered either: the broker is away."""
    memory = MemoryKafka()
    memory.create_topic(spec_of("t"))
    write_all(memory, "t", 0, [b"0", b"1"])
    memory.cluster.questions = ScriptedQuestions(answers=dict.fromkeys(range(1000), stalled(0)))
    with pytest.raises(BrokerUnavailable):
        list(read_past(memory.reader("t"), {0: OffsetRange(0, 2)}, stall_timeout_s=0.0, counts=void))


def test_what_comes_late_is_not_stepped_over() -> None:
    """A late record is not skipped: a broker that was away for as long as a read waits answers for both offsets."""
    memory = MemoryKafka()
    memory.create_topic(spec_of("t"))
    write_all(memory, "t", 0, [b"0", b"1"])
    memory.cluster.questions = ScriptedQuestions(answers={0: stalled(0)})
    found = list(read_past(memory.reader("t"), {0: OffsetRange(0, 2)}, stall_timeout_s=0.0, counts=void))
    assert [record.value for record in found] == [b"0", b"1"]
