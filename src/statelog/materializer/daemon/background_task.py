"""One unit of work on its own thread, with its result: a round in flight, or a look at the tail.

Python cannot end a thread, so work that outlives its time is left alone: it ends at the next step where it checks, or
never. A late result is still delivered; the caller has marked the task as given up by then.
"""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["BackgroundTask", "ThreadStarter", "start_thread"]

T = TypeVar("T")
ThreadStarter = Callable[[Callable[[], None]], None]
"""Begins some work and returns; the work may be over by then, or be done by another thread."""


def start_thread(work: Callable[[], None]) -> None:
    """Do the work on a new thread, which the end of the process does not wait for."""
    threading.Thread(target=work, name="statelog-materializer", daemon=True).start()


class BackgroundTask(Generic[T]):
    """One unit of work, begun at `started_s`. `on_end` is called on its thread, once it is over."""

    def __init__(
        self, work: Callable[[], T], *, started_s: float, on_end: Callable[["BackgroundTask[T]"], None]
    ) -> None:
        self.started_s = started_s
        self.is_given_up = False
        self._work = work
        self._on_end = on_end
        self._result: list[T] = []
        self._error: BaseException | None = None

    def run(self) -> None:
        """Do the work. Raises nothing: `result` does."""
        try:
            self._result.append(self._work())
        except BaseException as error:  # noqa: BLE001 - raised again by `result`, on the thread that asks
            self._error = error
        self._on_end(self)

    def result(self) -> T:
        """What the work returned, once it is over. Raises what it raised."""
        if self._error is not None:
            raise self._error
        return self._result[0]
