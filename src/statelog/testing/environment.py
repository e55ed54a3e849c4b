"""The environment of a test: a clock that stands still, crash points, and the door through which they reach the code.

    clock = StillClock()
    with environment(clock=clock, crash=crash_at("sent")):
        writer = Writer(log, "web")  # lives by this clock, and dies behind that step

Owns no state but the clock's. An object keeps the environment that it was made in.
"""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from statelog.environment import CURRENT, CrashPoint, Environment, current_environment


class Crash(BaseException):
    """The end of a simulated process. No code of statelog takes it for an error that it could handle."""


def crash_at(step: str, times: int = 1) -> CrashPoint:
    """A crash point that raises Crash when this step is done for the `times`-th time, and never again.

    `environment(crash=print)` shows which steps are passed: `Writer.CRASH_POINTS` and `materializer.round.CRASH_POINTS`
    name those of a writer and of a round.
    """
    left = times

    def crash(passed: str) -> None:
        nonlocal left
        left -= passed == step
        if left == 0:
            left = -1
            raise Crash(step)

    return crash


@dataclass(slots=True)
class StillClock:
    """A clock that stands still unless somebody waits, or `advance` moves it. `now_s` is in seconds since 1970."""

    now_s: float = 1000.0

    def __call__(self) -> float:
        """The time."""
        return self.now_s

    def advance(self, seconds: float) -> None:
        """Let so many seconds pass."""
        self.now_s += seconds

    def wait(self, event: threading.Event, timeout_s: float) -> None:
        """Let the time pass at once, unless the event is there already."""
        if not event.is_set():
            self.advance(timeout_s)


@contextmanager
def environment(**parts: Any) -> Generator[Environment]:
    """What is made in the block, in this thread and in those begun from it, has these parts of an `Environment`.

    All others are as around it. A `clock` is both clocks, unless `wall_clock` is another.
    """
    if "clock" in parts:
        parts = {"wall_clock": parts["clock"], **parts}
    made = replace(current_environment(), **parts)
    token = CURRENT.set(made)
    try:
        yield made
    finally:
        CURRENT.reset(token)
