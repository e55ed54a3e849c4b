"""The outbox waits for records that are reported steadily, however long all of them take, but not through silence."""

from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager

import pytest

from statelog.errors import PersistFailed
from statelog.kafka.port import Delivery, DeliveryStatus
from statelog.producer.epoch import open_epoch
from statelog.producer.outbox import Outbox
from statelog.producer.settings import WriterSettings
from tests.support.rigs.log import twin_rig

CHUNKS = 40


class SlowProducer:
    """A producer that reports one record every `every_s` seconds. Its own clock moves while it is polled."""

    def __init__(self, every_s: float) -> None:
        self.now_s = 0.0
        self._every_s = every_s
        self._next_s = every_s
        self._waiting: deque[Callable[[Delivery], None]] = deque()

    @property
    def in_flight(self) -> int:
        """The records that were not reported yet."""
        return len(self._waiting)

    @property
    def is_sound(self) -> bool:
        """True: the producer is slow, but sound."""
        return True

    @property
    def delivery_timeout_s(self) -> float:
        """Minutes, like the real one's."""
        return 305.0

    def connect(self) -> None:
        """Do nothing: it is connected."""

    def send(self, topic: str, partition: int, value: bytes, on_delivery: Callable[[Delivery], None]) -> bool:
        """Queue it."""
        self._waiting.append(on_delivery)
        return True

    def poll(self, timeout_s: float) -> int:
        """Let time pass, and report what is due."""
        self.now_s += timeout_s
        if self.now_s < self._next_s or not self._waiting:
            return 0
        self._next_s += self._every_s
        self._waiting.popleft()(Delivery(DeliveryStatus.OK, 0, ""))
        return 1

    def fail_all(self) -> None:
        """Report an unknown outcome for the rest, as the client does in the end."""
        while self._waiting:
            self._waiting.popleft()(Delivery(DeliveryStatus.UNKNOWN, -1, "timed out"))

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


@contextmanager
def _outbox(producer: SlowProducer) -> Generator[Outbox]:
    rig = twin_rig("o")
    log = rig.create(partitions=1)
    opened = open_epoch(log, "w")
    outbox = Outbox(producer, opened.grant, WriterSettings(), clock=lambda: producer.now_s)
    for _ in range(CHUNKS):
        outbox.send(1, 0, b"x", lambda offset: None)
    yield outbox
    opened.close()


def test_a_slow_link_makes_progress() -> None:
    """A report every 20 s for 40 records takes 800 s in all, and nothing fails."""
    producer = SlowProducer(20.0)
    with _outbox(producer) as outbox:
        assert outbox.wait(1, lambda: outbox.in_flight_chunks == 0)
        assert outbox.failure is None
        assert producer.now_s >= 20.0 * CHUNKS


def test_silence_fails_at_the_limit() -> None:
    """Without a report for 30 s, records in flight have failed, long before the client gives up."""
    producer = SlowProducer(10_000.0)
    with _outbox(producer) as outbox:
        assert not outbox.wait(1, lambda: outbox.in_flight_chunks == 0)
        with pytest.raises(PersistFailed, match="no delivery report within 30 s"):
            outbox.check()
        assert 30 <= producer.now_s < 31
        assert outbox.meter.failed_chunks == CHUNKS, "an alarm need not wait for the client"
        producer.fail_all()
        assert (outbox.meter.failed_chunks, outbox.in_flight_chunks) == (CHUNKS, 0), "each chunk counts once"


def test_a_time_out_of_the_caller_fails_nothing() -> None:
    """A caller's short time-out fails nothing."""
    producer = SlowProducer(20.0)
    with _outbox(producer) as outbox:
        assert not outbox.wait(1, lambda: outbox.in_flight_chunks == 0, 5.0)
        assert outbox.failure is None
