"""Jobs of one kind, some at a time, on threads: the caller's own is one of them.

Invariants:
- The first error ends all: no job begins after it, and those under way end when they ask whether to go on.
- None goes on once the call has returned, unless the caller was interrupted a second time while it waited for them.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import TypeVar

from statelog.environment import Start, begin

T = TypeVar("T")

Job = Callable[[Callable[[], None]], T]
"""Calls what it is given now and then, which raises once the job need not go on."""


class _OverError(Exception):
    """Another job failed."""


def side_by_side(jobs: Sequence[Job[T]], at_once: int, go_on: Callable[[], None], start: Start) -> list[T]:
    """What the jobs return, in their order. Raises what the first one that failed raised, or `go_on`, which is asked
    before each of them, too.
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
