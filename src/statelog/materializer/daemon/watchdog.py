"""The watchdog: alarms when committed changes stay out of every snapshot for too long, for whatever reason.

It watches the age of the oldest such change, not the rounds: rounds that hang, that are skipped by mistake, that
always lose or that never begin all look alike from here. It runs on its own thread and makes no calls: when no news
of the log arrives any more, the age grows by itself.
"""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from statelog.materializer.daemon.events import Event, EventKind

__all__ = ["Watchdog"]

_CHECKS_PER_ALARM = 10


class Watchdog:
    """Alarms when `age_s()` reaches `alarm_age_s`, and again with each further `alarm_age_s`, until it is below again.

    As a context manager it watches on its own thread. `clock` is monotonic.
    """

    def __init__(
        self,
        log: str,
        alarm_age_s: float,
        *,
        age_s: Callable[[], float],
        clock: Callable[[], float],
        on_alarm: Callable[[Event], None],
    ) -> None:
        self._log = log
        self._alarm_age_s = alarm_age_s
        self._age_s = age_s
        self._clock = clock
        self._on_alarm = on_alarm
        self._next_age_s = alarm_age_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="statelog-watchdog", daemon=True)

    def check(self) -> None:
        """Alarm if it is time to."""
        age_s = self._age_s()
        if age_s < self._alarm_age_s:
            self._next_age_s = self._alarm_age_s
        elif age_s >= self._next_age_s:
            self._next_age_s = age_s + self._alarm_age_s
            facts = {"age_s": age_s}
            self._on_alarm(Event(kind=EventKind.LOG_AGE_ALARM, log=self._log, at_s=self._clock(), facts=facts))

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
