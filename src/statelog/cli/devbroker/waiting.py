"""Waits for a condition that sends no signal: a port, a process, a lock of another process."""

import time
from collections.abc import Callable

__all__ = ["wait_for"]


def wait_for(
    condition: Callable[[], bool],
    timeout_s: float,
    *,
    pause_s: float = 0.05,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Whether `condition` became true within `timeout_s` seconds. It is asked at least once."""
    deadline = clock() + timeout_s
    while not condition():
        if clock() >= deadline:
            return False
        sleep(pause_s)
    return True
