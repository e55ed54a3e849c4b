"""Sending many equal records: a silent broker ends the wait."""

from collections.abc import Callable

import pytest

from statelog.errors import OutcomeUnknown
from statelog.kafka.port import STALL_TIMEOUT_S, Delivery, DeliveryStatus
from statelog.log.producers import append_all

_QUIET_S = STALL_TIMEOUT_S / 2


class _Slow:
    """A producer that reports one record in `_QUIET_S`, and only the first `reported` ones."""

    delivery_timeout_s = 305.0

    def __init__(self, reported: int) -> None:
        self.now_s = 0.0
        self.in_flight = 0
        self.is_sound = True
        self._left = reported
        self._waiting: list[Callable[[Delivery], None]] = []

    def clock(self) -> float:
        return self.now_s

    def connect(self) -> None:
        """Do nothing: it is connected."""

    def send(self, topic: str, partition: int, value: bytes, on_delivery: Callable[[Delivery], None]) -> bool:
        self._waiting.append(on_delivery)
        return True

    def poll(self, timeout_s: float) -> int:
        self.now_s += _QUIET_S
        if self._left == 0:
            return 0
        self._left -= 1
        self._waiting.pop(0)(Delivery(DeliveryStatus.OK, 7, ""))
        return 1

    def close(self) -> None:
        pass


def test_records_that_flow_are_waited_for() -> None:
    """Records that are reported steadily are waited for, however long all of them take."""
    producer = _Slow(reported=100)
    assert append_all(producer, "topic", 0, b"v", 100, clock=producer.clock) == [7] * 100


def test_silence_ends_the_wait_long_before_the_client_gives_up() -> None:
    """A silent broker ends the wait for one void record long before the client's own timeout."""
    producer = _Slow(reported=0)
    with pytest.raises(OutcomeUnknown):
        append_all(producer, "topic", 0, b"v", 1, clock=producer.clock)
    assert producer.now_s < producer.delivery_timeout_s / 2
