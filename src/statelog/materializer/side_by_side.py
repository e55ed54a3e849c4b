"""Run jobs of one kind, some at a time, on threads, one of which is the caller's.

Invariants:
- The first error ends all jobs: none begins after it, and those in flight end at their next check.
- No job runs after the call has returned, unless the caller was interrupted a second time while it waited for them.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import TypeVar

from statelog.environment import Start, begin

T = TypeVar("T")

Job = Callable[[Callable[[], None]], T]
"""Calls its argument, the check, now and then. The check raises once the job should end."""


class _OverError(Exception):
    """Another job failed."""


def side_by_side(jobs: Sequence[Job[T]], at_once: int, go_on: Callable[[], None], start: Start) -> list[T]:
    """Run the jobs, and return their results in order. `go_on` is called before each job, too.

    Raises the first error of a job or of `go_on`.
    """
    waiting = deque(range(len(jobs)))
    results: dict[int, T] = {}
    errors: list[BaseException] = []
    lock = threading.Lock()
    others: list[Future[None]] = []

    def ask() -> None:
        if errors:
            raise _OverError
        go_on()

    def work_off() -> None:
        while not errors:
            with lock:
                if not waiting:
                    return
                number = waiting.popleft()
            try:
                ask()
                results[number] = jobs[number](ask)
            except BaseException as error:  # noqa: BLE001 - raised again by the caller's thread
                errors.append(error)

    try:
        while len(others) < min(at_once, len(jobs)) - 1:
            others.append(begin(start, work_off))
        work_off()
        wait(others)
    except BaseException as error:
        errors.append(error)
        raise
    finally:
        wait(others)
    if errors:
        raise errors[0]
    return [results[number] for number in range(len(jobs))]
