"""Producers of a log: one that is made ahead (`WarmProducer`), and many equal records (`append_all`)."""

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from statelog.closing import undone_by_errors
from statelog.environment import Clock
from statelog.errors import OutcomeUnknown, StatelogError
from statelog.kafka.port import Delivery, DeliveryStatus, Producer, report_limit_s

_FRESH_S = 180.0
"""So long a connection that is hardly used is trusted: load balancers drop idle ones after 4 minutes and more, brokers
after 10."""
_PAUSE_S, _MOST_PAUSE_S = 5.0, 3600.0
"""How soon another one is made; twice as late after each that went bad, or could not be made: a client may have no
right to write yet."""


class _Warm(NamedTuple):
    producer: Producer
    made_s: float

    def is_good(self, now_s: float) -> bool:
        if now_s - self.made_s >= _FRESH_S:
            return False
        with suppress(StatelogError):
            self.producer.poll(0)  # What its client has to tell.
            return self.producer.is_sound
        return False


class WarmProducer:
    """At most one producer, made ahead for an Open that has to be quick: a new client connects before its first send. A
    takeover takes 57 ms in the median with it, and 125 without (a broker on loopback, no TLS).

    Belongs to a log, and is closed with it. Whoever may have to open keeps one (`keep`), and an Open takes it (`take`);
    a log that nobody keeps one for has none, and an Open makes its producer itself. `keep` is called by one thread at a
    time; `take` and `close` by any meanwhile.

    Invariants:
    - What is taken has sent nothing, and is nobody else's: it is as good as a new one.
    - One that is old, or whose client has told of any error, is never taken. A network drops idle connections without a
      word, so "old" comes before that.
    - That none can be made is no failure here: whoever needs a producer makes one, and hears why.
    """

    def __init__(self, make: Callable[[], Producer]) -> None:
        self._make = make
        # Taken out by whoever looks at it: no lock, so nothing stays locked in a fork.
        self._held: deque[_Warm] = deque()
        self._next_s = float("-inf")
        self._pause_s = _PAUSE_S
        self._is_closed = False

    def keep(self, now_s: float) -> None:
        """Have one that is good, or make it. Waits for nothing; the client connects on threads of its own."""
        held = self._pop()
        if held is not None:
            if held.is_good(now_s):
                self._put(held)
                return
            self._pause_s = _PAUSE_S if now_s - held.made_s >= _FRESH_S else min(2 * self._pause_s, _MOST_PAUSE_S)
            self._next_s = held.made_s + self._pause_s
            held.producer.close()
        if now_s >= self._next_s:
            self._next_s = now_s + self._pause_s
            if not self._connect(now_s):
                self._pause_s = min(2 * self._pause_s, _MOST_PAUSE_S)

    def take(self, now_s: float) -> Producer | None:
        """The one that is there, for the caller to close; None if there is none that is good."""
        held = self._pop()
        if held is None:
            return None
        if held.is_good(now_s):
            return held.producer
        held.producer.close()
        return None

    def close(self) -> None:
        """Release it, and whatever is kept later. Idempotent."""
        self._is_closed = True
        held = self._pop()
        if held is not None:
            held.producer.close()

    def _connect(self, now_s: float) -> bool:
        with suppress(StatelogError):
            producer = self._make()
            with undone_by_errors(producer.close):
                producer.connect()
            self._put(_Warm(producer, now_s))
            return True
        return False

    def _put(self, held: _Warm) -> None:
        self._held.append(held)
        if self._is_closed:  # By another thread, which may have looked before.
            self.close()

    def _pop(self) -> _Warm | None:
        with suppress(IndexError):
            return self._held.pop()
        return None


_AT_ONCE = 100_000


def append_all(
    producer: Producer, topic: str, partition: int, value: bytes, count: int, *, clock: Clock = time.monotonic
) -> list[int]:
    """Append `value` `count` times, as many in flight as the client takes; returns the offsets.

    Waits for as long as they flow. Raises OutcomeUnknown if one of them may be missing: the producer must not be used
    again.
    """
    stall_s = report_limit_s(producer)
    reports: list[Delivery] = []
    sent, heard, deadline_s = 0, 0, clock() + stall_s
    while len(reports) < count and clock() < deadline_s:
        while sent < count and producer.send(topic, partition, value, reports.append):
            sent += 1
        producer.poll(0.2)
        if len(reports) > heard:
            heard, deadline_s = len(reports), clock() + stall_s
    failed = [report for report in reports if report.status is not DeliveryStatus.OK]
    if failed or len(reports) < count:
        what, hint = "whether all void records are there is not known", "Try again: what is there already does no harm"
        reason = failed[0].reason if failed else "no delivery report"
        raise OutcomeUnknown(what, topic=topic, partition=partition, reason=reason, hint=hint)
    return [report.offset for report in reports]


def append_up_to(producer: Producer, topic: str, partition: int, value: bytes, last: int, offset: int) -> int:
    """Append `value` behind the offset `last` until a record lies at `offset` or above; returns the last one's offset.

    Raises OutcomeUnknown.
    """
    while last < offset:
        last = max(append_all(producer, topic, partition, value, min(_AT_ONCE, offset - last)))
    return last
