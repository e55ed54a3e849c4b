"""All threads of a process follow a ledger through one client, which is made on demand and closed when idle."""

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
    """Return False, so that nothing ends a wait early."""
    return False


class _None:
    """A log without snapshots."""

    def newest_sound(self, *, max_age_s: float = 0.0) -> None:
        """Return None."""

    def at(self, position: int) -> None:
        """Return None."""


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
        """Return a follower of the ledger."""
        identity = LogIdentity(cluster_id="c", data_topic_id="d", ledger_topic_id="l")
        source = LedgerSource(
            kafka=kafka or self.kafka, topic=_TOPIC, identity=identity, snapshots=_None(), clock=lambda: self.now_s
        )
        return SharedFollower(source)


class Counted(MemoryKafka):
    """A Kafka that records where followers were made."""

    def __init__(self) -> None:
        super().__init__(idle=self.passed)
        self.made: list[int] = []
        self.polls = 0

    def passed(self, _: float) -> None:
        """Let time pass."""
        self.polls += 1

    def follower(self, topic: str, offset: int) -> MemoryFollower:
        """Record the offset, and return the twin's follower."""
        self.made.append(offset)
        return super().follower(topic, offset)


def offsets_of(follower: SharedFollower, position: int) -> list[int]:
    """Return the offsets that a follower takes from a position on."""
    records, end = follower.take(position, 0.0)
    offsets = [one.offset for one in records]
    assert offsets == list(range(position, end))
    return offsets


def test_what_a_wait_has_dropped_is_read_again() -> None:
    """A record that a waiting thread skipped is read again for a fold that is behind."""
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
    """One client serves waits and verdicts, from the first request on. Only a lower request makes another client."""
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
    """A simulated wait lasts its full time in polls of the twin, whatever the caller's clock does."""
    kafka = Counted()
    follower = World(kafka).follower()
    began_s = time.monotonic()
    assert not follower.wait(10, 600.0, never)
    assert 2_999 <= kafka.polls <= 3_001
    assert time.monotonic() - began_s < _WAIT_S


def test_an_error_ends_a_wait_and_the_client() -> None:
    """An error ends a wait and its client. The reader finds the cause, and no other client is made for a while."""
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
    """A reported problem ends a wait, but not the client: one broker of several may be away for long."""

    kafka = Counted()
    follower = World(kafka).follower()
    assert not follower.wait(10, 1.0, never)
    kafka.cluster.lose_tail(_TOPIC, 0, 10)
    assert follower.wait(10, 1.0, never)
    assert not follower.wait(10, 1.0, never)
    assert kafka.made == [10]


def test_a_client_that_nobody_uses_is_closed() -> None:
    """An idle client is closed after a minute by the next user. A client with a waiting thread is in use."""
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
    """A client that is replaced during a wait is closed by the waiting thread.

    The wait continues with another client, or ends on close.
    """
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
