"""The promises of both implementations of the Kafka port on output producers: whole transactions, with an offset."""

import os
import uuid
from collections.abc import Iterator
from contextlib import closing

import pytest

from statelog.errors import BrokerUnavailable, ClosedError, Fenced, Misuse, NotFound, ValueTooLarge
from statelog.kafka.port import GroupOffset, OutputProducer
from statelog.schemas.outputs.output import Output
from tests.support.rigs.kafka import World, spec_of

_NOBODY = GroupOffset()
_TRIES = 5


@pytest.fixture
def name() -> str:
    """Return a name for transactions and group that no other test uses."""
    return f"outputs-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def ledger(kafka_world: World) -> Iterator[str]:
    """Yield a topic whose group offset is stored."""
    topic = f"ledger-{uuid.uuid4().hex[:12]}"
    kafka_world.kafka.create_topic(spec_of(topic, 1))
    yield topic
    kafka_world.kafka.delete_topic(topic)


def started(world: World, name: str, ledger: str, *, is_transactional: bool = True) -> OutputProducer:
    """Return a producer that has started; a new broker makes its topics of transactions and groups first."""
    for _ in range(_TRIES):
        producer = world.kafka.output_producer(name, ledger, is_transactional=is_transactional)
        try:
            producer.start()
        except BrokerUnavailable:
            producer.close()
        else:
            return producer
    raise AssertionError("no producer started")


def send(producer: OutputProducer, topic: str, *values: bytes, partition: int | None = 0) -> None:
    """Begin a transaction, and send values."""
    producer.begin()
    for value in values:
        producer.send(Output(topic, value, partition=partition))


def values(world: World, topic: str, partition: int = 0) -> list[bytes | None]:
    """Return the values that a read_committed reader sees."""
    return [record.value for record in world.committed(topic, partition)]


def test_a_record_arrives_as_it_is(kafka_world: World, topic: str, name: str, ledger: str) -> None:
    """Value, key, headers, tombstones and empty texts arrive as sent, in order."""
    records = [
        Output(topic, b"value", b"key", (("statelog", b"log/1/0"), ("empty", b""), ("none", None)), 1),
        Output(topic, None, b"gone", partition=1),
        Output(topic, b"", partition=1),
    ]
    with closing(started(kafka_world, name, ledger)) as producer:
        producer.begin()
        for record in records:
            producer.send(record)
        producer.commit(7, "text")
    assert kafka_world.committed(topic, 1) == records
    assert kafka_world.kafka.published(name, ledger, 0) == GroupOffset(7, "text")


def test_a_key_goes_where_java_puts_it(kafka_world: World, topic: str, name: str, ledger: str) -> None:
    """Without a partition the key's murmur2 hash decides, as in Java's clients."""
    keys = [b"", b"a", b"abc", b"customer-17", b"21", bytes(range(200, 250))]
    with closing(started(kafka_world, name, ledger)) as producer:
        producer.begin()
        for key in keys:
            producer.send(Output(topic, b"x", key))
        producer.commit(1)
    found = {record.key: record.partition for one in range(3) for record in kafka_world.committed(topic, one)}
    assert found == {key: java_partition(key, 3) for key in keys}


def java_partition(key: bytes, partitions: int) -> int:
    """Return the partition by Kafka's Java code, written with signed integers as there."""

    def signed(number: int) -> int:
        return (number + (1 << 31)) % (1 << 32) - (1 << 31)

    m, h = 0x5BD1E995, signed(0x9747B28C ^ len(key))
    for at in range(0, len(key) - 3, 4):
        k = signed(int.from_bytes(key[at : at + 4], "little") * m)
        k = signed((k ^ (k % (1 << 32) >> 24)) * m)
        h = signed(h * m) ^ k
    rest = key[len(key) & ~3 :]
    if rest:
        h = signed((h ^ int.from_bytes(rest, "little")) * m)
    h = signed((h ^ (h % (1 << 32) >> 13)) * m)
    h ^= h % (1 << 32) >> 15
    return (h & 0x7FFFFFFF) % partitions


def test_a_transaction_shows_at_once_and_whole(kafka_world: World, topic: str, name: str, ledger: str) -> None:
    """Readers see nothing of a transaction before its commit, then everything, in every partition."""
    with closing(started(kafka_world, name, ledger)) as producer:
        send(producer, topic, b"1", b"2")
        producer.send(Output(topic, b"3", partition=2))
        assert (values(kafka_world, topic), values(kafka_world, topic, 2)) == ([], [])
        assert kafka_world.kafka.published(name, ledger, 0) == _NOBODY
        producer.commit(5)
        assert (values(kafka_world, topic), values(kafka_world, topic, 2)) == ([b"1", b"2"], [b"3"])
        assert kafka_world.kafka.published(name, ledger, 0) == GroupOffset(5)
        send(producer, topic, b"4")
        producer.commit(6)
    assert values(kafka_world, topic) == [b"1", b"2", b"4"]


def test_what_is_aborted_was_never_there(kafka_world: World, topic: str, name: str, ledger: str) -> None:
    """An aborted transaction, or one that a close ends, leaves nothing, and the producer goes on after an abort."""
    with closing(started(kafka_world, name, ledger)) as producer:
        send(producer, topic, b"void")
        producer.abort()
        producer.abort()
        send(producer, topic, b"1")
        producer.commit(3)
        send(producer, topic, b"void")
    with closing(kafka_world.kafka.output_producer(name, ledger)) as producer:
        assert producer.start() == GroupOffset(3)
        send(producer, topic, b"2")
        producer.commit(4)
    assert values(kafka_world, topic) == [b"1", b"2"]


def test_a_start_fences_and_ends_what_was_open(kafka_world: World, topic: str, name: str, ledger: str) -> None:
    """The first producer's open transaction is void once a second has started, and it can never commit again."""
    first = started(kafka_world, name, ledger)
    send(first, topic, b"1")
    first.commit(1)
    send(first, topic, b"void")
    second = kafka_world.another().output_producer(name, ledger)
    assert second.start() == GroupOffset(1)
    send(second, topic, b"2")
    second.commit(2)
    with pytest.raises(Fenced):
        first.commit(9)
    with pytest.raises(Fenced):
        send(first, topic, b"void")
        first.commit(9)
    first.close()
    second.close()
    assert values(kafka_world, topic) == [b"1", b"2"]
    assert kafka_world.kafka.published(name, ledger, 0) == GroupOffset(2)


def test_two_names_do_not_meet(kafka_world: World, topic: str, name: str, ledger: str) -> None:
    """Producers of two names fence nothing of each other, and have offsets of their own."""
    with (
        closing(started(kafka_world, name, ledger)) as one,
        closing(started(kafka_world, f"{name}-2", ledger)) as two,
    ):
        send(one, topic, b"1")
        send(two, topic, b"2", partition=1)
        one.commit(1)
        two.commit(2)
    assert (values(kafka_world, topic), values(kafka_world, topic, 1)) == ([b"1"], [b"2"])
    assert kafka_world.kafka.published(name, ledger, 0) == GroupOffset(1)
    assert kafka_world.kafka.published(f"{name}-2", ledger, 0) == GroupOffset(2)


@pytest.mark.parametrize("is_transactional", [True, False])
def test_a_refused_record_is_named(
    kafka_world: World, name: str, ledger: str, topic: str, is_transactional: bool
) -> None:
    """A missing topic or partition, and a record that is too large, are typed errors that name the topic.

    In a transaction nothing counts, and without one the offset is not stored.
    """
    missing = f"absent-{uuid.uuid4().hex[:12]}"
    cases = [
        (Output(missing, b"x"), NotFound),
        (Output(topic, b"x", partition=99), NotFound),
        (Output(topic, os.urandom(2 << 20)), ValueTooLarge),
    ]
    for record, error in cases:
        producer = started(kafka_world, name, ledger, is_transactional=is_transactional)
        with pytest.raises(error) as met:
            send(producer, topic, b"void")
            producer.send(record)
            producer.commit(9)
        assert met.value.facts["topic"] == record.topic
        producer.close()
    assert kafka_world.kafka.published(name, ledger, 0) == _NOBODY
    if is_transactional:
        assert values(kafka_world, topic) == []


def test_without_transactions_the_offset_comes_last(kafka_world: World, topic: str, name: str, ledger: str) -> None:
    """Without transactions records and then the offset are stored, and a second producer fences nothing."""
    first = started(kafka_world, name, ledger, is_transactional=False)
    second = started(kafka_world, name, ledger, is_transactional=False)
    for number, producer in enumerate((first, second, first), 1):
        send(producer, topic, b"%d" % number)
        producer.commit(number, f"text {number}")
    assert values(kafka_world, topic) == [b"1", b"2", b"3"]
    assert kafka_world.kafka.published(name, ledger, 0) == GroupOffset(3, "text 3")
    first.close()
    second.close()


def test_an_empty_transaction_stores_its_offset(kafka_world: World, name: str, ledger: str) -> None:
    """A transaction without records moves the offset."""
    with closing(started(kafka_world, name, ledger)) as producer:
        producer.begin()
        producer.commit(4, "moved")
    assert kafka_world.kafka.published(name, ledger, 0) == GroupOffset(4, "moved")


def test_a_large_transaction_comes_whole(kafka_world: World, topic: str, name: str, ledger: str) -> None:
    """Thousands of records are one transaction, in order."""
    expected = [b"%d" % number for number in range(5000)]
    with closing(started(kafka_world, name, ledger)) as producer:
        send(producer, topic, *expected)
        producer.commit(1)
    assert values(kafka_world, topic) == expected


def test_it_refuses_what_it_is_not_ready_for(kafka_world: World, topic: str, name: str, ledger: str) -> None:
    """Before its start, outside of a transaction and after its close a call is refused; close is idempotent."""
    producer = kafka_world.kafka.output_producer(name, ledger)
    with pytest.raises(Misuse):
        producer.begin()
    producer.start()
    with pytest.raises(Misuse):
        producer.send(Output(topic, b"x"))
    producer.close()
    producer.close()
    for call in (producer.start, producer.begin, lambda: producer.commit(1)):
        with pytest.raises(ClosedError):
            call()
    closed = kafka_world.another()
    closed.close()
    with pytest.raises(ClosedError):
        closed.output_producer(name, ledger)
