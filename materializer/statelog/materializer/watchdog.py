"""The watchdog: says so when no round has ended well for too long, even if one hangs.

It runs on a thread of its own, because a round that never returns is what it is there for.
"""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from statelog.materializer.events import LogAgeAlarm

__all__ = ["Watchdog"]

_CHECKS_PER_ALARM = 10


class Watchdog:
    """Alarms when `alarm_age_s` have passed since the last good round, and again after each further `alarm_age_s`.

    As a context manager it watches on its own thread. `clock` is monotonic.
    """

    def __init__(
        self, log: str, alarm_age_s: float, *, clock: Callable[[], float], on_alarm: Callable[[LogAgeAlarm], None]
    ) -> None:
        self._log = log
        self._alarm_age_s = alarm_age_s
        self._clock = clock
        self._on_alarm = on_alarm
        self._lock = threading.Lock()
        self._good_s = clock()
        self._next_alarm_s = self._good_s + alarm_age_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="statelog-watchdog", daemon=True)

    def good_round(self) -> None:
        """A round ended well just now."""
        with self._lock:
            self._good_s = self._clock()
            self._next_alarm_s = self._good_s + self._alarm_age_s

    def age_s(self) -> float:
        """Seconds since the last good round, or since the start."""
        with self._lock:
            return self._clock() - self._good_s

    def check(self) -> None:
        """Alarm if it is time to."""
        with self._lock:
            now_s = self._clock()
            due = now_s >= self._next_alarm_s
            if due:
                self._next_alarm_s = now_s + self._alarm_age_s
            age_s = now_s - self._good_s
        if due:
            self._on_alarm(LogAgeAlarm(log=self._log, at_s=now_s, age_s=age_s))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(self._alarm_age_s / _CHECKS_PER_ALARM):
            self.check()
