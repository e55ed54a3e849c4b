"""How long to retry a broker that restarts, or a store that is briefly unavailable.

Owns the time window of one reader, and a `Reader` that asks again within it. Never decides what a lasting silence
means: the error of the last try is raised as it is.

Invariants:
- The time runs from the last sign of life, or from the first question after a rest; a record is a sign of life.
- A read that is taken up again goes on behind the last record that came, so none comes twice and none is missed.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from statelog.errors import BrokerUnavailable, Unavailable
from statelog.storage.kafka import OffsetRange, Reader, Record

__all__ = ["Pause", "RetryWindow", "RetryingReader"]

_RETRY_S = 0.2
T = TypeVar("T")

Pause = Callable[[float], bool]
"""Waits so many seconds; True if the answer is no longer wanted. `Event.wait` is one."""


class RetryWindow:
    """Ends `limit_s` after the last sign of life. `clock`: seconds. Belongs to one thread."""

    def __init__(self, limit_s: float, clock: Callable[[], float]) -> None:
        self._limit_s = limit_s
        self._clock = clock
        self._since_s: float | None = None

    def ask(self) -> None:
        """A question begins. It counts from here, unless an earlier one got no answer."""
        if self._since_s is None:
            self._since_s = self._clock()

    def heard(self) -> None:
        """An answer, or a part of it."""
        self._since_s = None

    def ask_anew(self) -> None:
        """A question begins, and the one before it got its answer."""
        self._since_s = self._clock()

    @property
    def is_over(self) -> bool:
        """Whether nothing was heard for too long."""
        return self._since_s is not None and self._clock() - self._since_s >= self._limit_s

    def call(self, question: Callable[[], T], pause: Pause) -> T:
        """The answer, however often it has to be asked for. Raises the last Unavailable once the window is over."""
        while True:
            self.ask()
            try:
                answer = question()
            except Unavailable:
                if self.is_over or pause(_RETRY_S):
                    raise
            else:
                self.heard()
                return answer


class RetryingReader:
    """A `Reader` that takes up what another one left when its broker went away."""

    def __init__(self, reader: Reader, retries: RetryWindow, pause: Pause) -> None:
        self._reader = reader
        self._retries = retries
        self._pause = pause

    def read(self, ranges: Mapping[int, OffsetRange], *, stall_timeout_s: float) -> Iterator[Record]:
        """Yield every record of `ranges`. Raises as the port says; BrokerUnavailable once the window is over."""
        next_offsets = {partition: wanted.start for partition, wanted in ranges.items()}
        ask_anew = self._retries.ask_anew
        while True:
            left = {partition: OffsetRange(next_offsets[partition], wanted.end) for partition, wanted in ranges.items()}
            self._retries.ask()
            try:
                for record in self._reader.read(left, stall_timeout_s=stall_timeout_s):
                    next_offsets[record.partition] = record.offset + 1
                    yield record
                    ask_anew()  # The consumer may have taken its time.
            except BrokerUnavailable:
                if self._retries.is_over or self._pause(_RETRY_S):
                    raise
            else:
                self._retries.heard()
                return

    def close(self) -> None:
        """Close the reader below. Idempotent."""
        self._reader.close()
