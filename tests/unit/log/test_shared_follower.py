"""The client that follows a ledger for all threads of a process: what it gives whom, and when it is made and closed."""

import threading
import time

import pytest

from statelog.errors import BrokerUnavailable
from statelog.history import LedgerSource
from statelog.history.shared_follower import SharedFollower
from statelog.kafka.port import Kafka
from statelog.schemas.ledger.place import LogIdentity
from statelog.testing.kafka import MemoryFollower, MemoryKafka
from tests.support.rigs.kafka import spec_of, write_all
from tests.support.waiting import wait_for

_TOPIC = "log.ledger"
_WAIT_S = 30.0


def never() -> bool:
    """Nobody ends a wait."""
    return False


class _None:
    """A log without snapshots."""

    def newest_sound(self, *, max_age_s: float = 0.0) -> None:
        """There is none."""

    def at(self, position: int) -> None:
        """There is none."""


class World:
    """A ledger of ten records, and a clock."""

    def __init__(self, kafka: MemoryKafka | None = None) -> None:
        self.now_s = 100.0
        self.kafka = kafka or MemoryKafka()
        self.kafka.create_topic(spec_of(_TOPIC))
        self.write(10)

    def write(self, count: int) -> None:
        """Append so many records."""
        write_all(self.kafka.join(), _TOPIC, 0, [b"x"] * count)

    def follower(self, kafka: Kafka | None = None) -> SharedFollower:
        """Follow it."""
        identity = LogIdentity(cluster_id="c", data_topic_id="d", ledger_topic_id="l")
        source = LedgerSource(
            kafka=kafka or self.kafka, topic=_TOPIC, identity=identity, snapshots=_None(), clock=lambda: self.now_s
        )
        return SharedFollower(source)


class Counted(MemoryKafka):
    """Notes where followers were made."""

    def __init__(self) -> None:
        super().__init__(idle=self.passed)
        self.made: list[int] = []
        self.polls = 0

    def passed(self, _: float) -> None:
        """Let time pass."""
        self.polls += 1

    def follower(self, topic: str, offset: int) -> MemoryFollower:
        """As the twin."""
        self.made.append(offset)
        return super().follower(topic, offset)


def offsets_of(follower: SharedFollower, position: int) -> list[int]:
    """Take what is there."""
    records, end = follower.take(position, 0.0)
    offsets = [one.offset for one in records]
    assert offsets == list(range(position, end))
    return offsets


def test_what_a_wait_has_dropped_is_read_again() -> None:
    """A fold that is behind a thread that waits misses no record."""
    world = World()
    follower = world.follower()
    assert follower.wait(4, 0.0, never)
    assert not follower.wait(10, 0.0, never)
    assert offsets_of(follower, 3) == list(range(3, 10))
    assert offsets_of(follower, 10) == []
    world.write(2)
    assert follower.wait(10, 0.0, never)
    assert offsets_of(follower, 10) == [10, 11]


def test_one_client_serves_waits_and_verdicts() -> None:
    """It begins where it is asked first, and another one is made only for what lies below."""
    kafka = Counted()
    world = World(kafka)
    follower = world.follower()
    for _ in range(3):
        follower.wait(10, 0.0, never)
        world.write(1)
        end = offsets_of(follower, 10)[-1] + 1
        follower.wait(end, 0.0, never)
        follower.rest()
    assert kafka.made == [10, 10, 10]
    kafka.made.clear()
    follower.wait(12, 0.0, never)
    offsets_of(follower, 12)
    offsets_of(follower, 5)
    assert kafka.made == [12, 5]


def test_a_wait_in_a_simulation_lasts_as_long_as_it_says() -> None:
    """The twin's time passes in polls: as many as make up the time, however the clock of its caller goes."""
    kafka = Counted()
    follower = World(kafka).follower()
    began_s = time.monotonic()
    assert not follower.wait(10, 600.0, never)
    assert 2_999 <= kafka.polls <= 3_001
    assert time.monotonic() - began_s < _WAIT_S


def test_an_error_ends_a_wait_and_the_client() -> None:
    """The reader finds out by itself, and no other client is made for a while."""
    world = World()
    follower = world.follower()
    assert not follower.wait(10, 0.0, never)
    world.kafka.cluster.set_down(is_down=True)
    assert follower.wait(10, _WAIT_S, never)
    assert not follower.is_used
    with pytest.raises(BrokerUnavailable):
        follower.take(10, 0.0)
    world.kafka.cluster.set_down(is_down=False)
    assert follower.wait(10, _WAIT_S, never)
    assert not follower.is_used
    world.now_s += 5.0
    assert not follower.wait(10, 0.0, never)
    assert follower.is_used


def test_trouble_that_the_client_tells_of_ends_a_wait() -> None:
    """The client goes on: one broker of several may be away for long."""

    kafka = Counted()
    follower = World(kafka).follower()
    assert not follower.wait(10, 1.0, never)
    kafka.cluster.lose_tail(_TOPIC, 0, 10)
    assert follower.wait(10, 1.0, never)
    assert not follower.wait(10, 1.0, never)
    assert kafka.made == [10]


def test_a_client_that_nobody_uses_is_closed() -> None:
    """After a minute, by whoever needs one; one that a thread waits with is used."""
    world, other = World(), World()
    follower = world.follower()
    assert not follower.wait(10, 0.0, never)
    world.now_s += 59.0
    other.follower().wait(10, 0.0, never)
    assert follower.is_used
    world.now_s += 1.0
    other.follower().wait(10, 0.0, never)
    assert not follower.is_used
    assert not follower.wait(10, 0.0, never)


def test_the_thread_that_waits_closes_a_client_that_was_taken_from_it() -> None:
    """Nobody else touches it meanwhile; the wait goes on with another one, or ends where all is closed."""
    closed = list[int]()

    class Follower(MemoryFollower):
        def close(self) -> None:
            closed.append(threading.get_ident())
            super().close()

    class Kafka(MemoryKafka):
        def follower(self, topic: str, offset: int) -> MemoryFollower:
            return Follower(self, topic, offset)

    follower = World(Kafka()).follower()
    thread = threading.Thread(target=follower.wait, args=(10, _WAIT_S, never))
    thread.start()
    wait_for(lambda: follower.is_used)
    time.sleep(0.05)
    follower.close()
    thread.join(_WAIT_S)
    assert closed == [thread.ident]
    assert follower.wait(10, _WAIT_S, never)
