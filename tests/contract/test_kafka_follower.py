"""The promises of both implementations of the Kafka port on a follower: every record once, in order, or an error."""

import threading
import time
import uuid
from contextlib import suppress

import pytest

from statelog.errors import BeyondEnd, ClosedError, NotFound, OffsetGone
from statelog.kafka.port import Kafka, PartitionFollower, Record
from tests.support.rigs.kafka import TIMEOUT_S, numbered, spec_of, write_all


def following(follower: PartitionFollower, count: int) -> list[Record]:
    """Return the next `count` records."""
    found: list[Record] = []
    deadline_s = time.monotonic() + TIMEOUT_S
    while len(found) < count and time.monotonic() < deadline_s:
        found += follower.poll(0.2)
    return found


@pytest.fixture
def ledger(kafka: Kafka, topic: str) -> str:
    """Return a topic whose first partition has 20 records."""
    write_all(kafka, topic, 0, numbered(20))
    return topic


def test_it_gives_every_record_from_its_place_on(kafka: Kafka, ledger: str) -> None:
    """A follower gives present and future records once and in order, and nothing while there is nothing."""
    follower = kafka.follower(ledger, 5)
    assert [one.value for one in following(follower, 15)] == numbered(20)[5:]
    assert list(follower.poll(0)) == []
    assert write_all(kafka, ledger, 0, [b"new", b"newer"]) == [20, 21]
    found = following(follower, 2)
    assert [(one.offset, one.value) for one in found] == [(20, b"new"), (21, b"newer")]
    follower.close()


def test_it_may_begin_at_the_end(kafka: Kafka, ledger: str) -> None:
    """A follower may begin at the end: the next record is its first."""
    follower = kafka.follower(ledger, 20)
    assert list(follower.poll(0.3)) == []
    write_all(kafka, ledger, 0, [b"first"])
    assert [one.offset for one in following(follower, 1)] == [20]
    follower.close()


def test_a_record_comes_while_it_waits(kafka: Kafka, ledger: str) -> None:
    """A waiting thread has a record as soon as another thread has appended it, well before its own time is over."""
    follower, found = kafka.follower(ledger, 20), list[Record]()
    thread = threading.Thread(target=lambda: found.extend(following(follower, 1)))
    thread.start()
    write_all(kafka, ledger, 0, [b"soon"])
    thread.join(TIMEOUT_S)
    assert [one.value for one in found] == [b"soon"]
    follower.close()


def test_a_place_that_was_truncated_is_gone(kafka: Kafka, ledger: str) -> None:
    """A truncated position is OffsetGone, whether a follower begins there or truncation overtakes it."""
    kafka.delete_records(ledger, {0: 10})
    follower = kafka.follower(ledger, 9)
    with pytest.raises(OffsetGone):
        following(follower, 1)
    with pytest.raises(ClosedError):
        follower.poll(0)
    follower = kafka.follower(ledger, 10)
    assert len(following(follower, 10)) == 10
    follower.close()


def test_a_place_beyond_the_end_is_told(kafka: Kafka, ledger: str) -> None:
    """A position beyond the end is BeyondEnd: a follower follows only records that existed."""
    follower = kafka.follower(ledger, 21)
    with pytest.raises(BeyondEnd):
        following(follower, 1)


def test_a_topic_that_is_deleted_meanwhile(kafka: Kafka) -> None:
    """A follower of a deleted topic gives no more records or raises; a query for offsets always raises."""
    name = f"contract-{uuid.uuid4().hex[:12]}"
    kafka.create_topic(spec_of(name))
    write_all(kafka, name, 0, [b"one"])
    follower = kafka.follower(name, 0)
    assert len(following(follower, 1)) == 1
    kafka.delete_topic(name)
    with suppress(NotFound, BeyondEnd):
        assert list(follower.poll(0.5)) == []
    with pytest.raises(NotFound):
        kafka.offsets(name, [0])
    follower.close()


def test_a_closed_follower_refuses_work(kafka: Kafka, ledger: str) -> None:
    """Polling after close is a ClosedError, and closing twice is fine."""
    follower = kafka.follower(ledger, 0)
    follower.close()
    follower.close()
    with pytest.raises(ClosedError):
        follower.poll(0)


def test_two_follow_at_their_own_places(kafka: Kafka, ledger: str) -> None:
    """Two followers at their own positions each get all of their records."""
    one, two = kafka.follower(ledger, 0), kafka.follower(ledger, 15)
    assert len(following(one, 20)) == 20
    assert len(following(two, 5)) == 5
    one.close()
    two.close()
