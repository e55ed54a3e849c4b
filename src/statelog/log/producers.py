"""`WarmProducer`: a log's producer that is made ahead; `append_all`: many equal records."""

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
"""How long an idle connection is trusted: load balancers drop them after 4 minutes or more, brokers after 10."""
_PAUSE_S, _MOST_PAUSE_S = 5.0, 3600.0
"""The pause before another one is made. It doubles after each failure: a client may have no right to write yet."""


class _Warm(NamedTuple):
    producer: Producer
    made_s: float

    def is_good(self, now_s: float) -> bool:
        if now_s - self.made_s >= _FRESH_S:
            return False
        with suppress(StatelogError):
            self.producer.poll(0)  # Takes the client's reports.
            return self.producer.is_sound
        return False


class WarmProducer:
    """At most one producer, made ahead for an Open that has to be quick: a new client connects before its first send. A
    takeover takes 57 ms in the median with it, and 125 without (a broker on loopback, no TLS).

    Belongs to a log, and is closed with it. A process that may have to open calls `keep`, and an Open calls `take`. If
    there is none, the Open makes its producer itself. One thread at a time may call `keep`; any may call `take` and
    `close` meanwhile.

    Invariants:
    - A producer that is taken has sent nothing, and has no other user: it is as good as a new one.
    - An old one, or one whose client reported any error, is never taken. Networks drop idle connections silently, so it
      counts as old before that.
    - A failure to make one raises nothing here: the Open that needs a producer makes one, and raises.
    """

    def __init__(self, make: Callable[[], Producer]) -> None:
        self._make = make
        # Each user takes it out. There is no lock that a fork could leave locked.
        self._held: deque[_Warm] = deque()
        self._next_s = float("-inf")
        self._pause_s = _PAUSE_S
        self._is_closed = False

    def keep(self, now_s: float) -> None:
        """Make one unless there is a good one. Waits for nothing; the client connects on threads of its own."""
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
        """Return the producer, for the caller to close; None if there is no good one."""
        held = self._pop()
        if held is None:
            return None
        if held.is_good(now_s):
            return held.producer
        held.producer.close()
        return None

    def close(self) -> None:
        """Release it, and any made later. Idempotent."""
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
        if self._is_closed:  # By another thread, perhaps before this append.
            self.close()

    def _pop(self) -> _Warm | None:
        with suppress(IndexError):
            return self._held.pop()
        return None


_AT_ONCE = 100_000


def append_all(
    producer: Producer, topic: str, partition: int, value: bytes, count: int, *, clock: Clock = time.monotonic
) -> list[int]:
    """Append `value` `count` times, as many in flight as the client takes. Return the offsets.

    Waits while reports come. Raises OutcomeUnknown if a record may be missing: do not use the producer again.
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
        what, hint = "whether all void records are there is not known", "Try again: more of them do no harm"
        reason = failed[0].reason if failed else "no delivery report"
        raise OutcomeUnknown(what, topic=topic, partition=partition, reason=reason, hint=hint)
    return [report.offset for report in reports]


def append_up_to(producer: Producer, topic: str, partition: int, value: bytes, last: int, offset: int) -> int:
    """Append `value` behind the offset `last` until a record lies at `offset` or above. Return the last one's offset.

    Raises OutcomeUnknown.
    """
    while last < offset:
        last = max(append_all(producer, topic, partition, value, min(_AT_ONCE, offset - last)))
    return last
