"""`Turns`: of the threads that wait for newer records, one reads for all, and hands over when it has its own answer.

Invariants:
- No thread waits while none reads: one that ends its turn, or is interrupted, wakes the next.
- An error of the thread that reads is raised in every thread that waited for it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Event, Lock

from statelog.errors import BrokerUnavailable, StatelogError

_PATIENCE_S = 60.0
"""Longer than any read waits without a record."""


@dataclass(slots=True, eq=False)
class _Wait:
    """A thread that waits: its condition, and the error that ended it, if any."""

    has: Callable[[], bool]
    bell: Event = field(default_factory=Event)
    error: StatelogError | None = None


class Turns:
    """The thread that reads, and those that wait for it. `lock` guards the data that they read."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.is_taken = False
        """Whether a thread reads."""
        self._waits: list[_Wait] = []

    def until(self, has: Callable[[], bool], step: Callable[[], None], *, waits: bool = True) -> None:
        """Call `step` until `has` returns true, or wait for the thread that does. `has` is called under the lock.

        Without `waits`, return at once if another thread reads. Raises the errors of `has` and `step`.
        """
        while True:
            wait = None
            with self.lock:
                if has() or (self.is_taken and not waits):
                    return
                if self.is_taken:
                    wait = _Wait(has)
                    self._waits.append(wait)
                self.is_taken = True
            if wait is None:
                self._lead(has, step)
                return
            self._await(wait)

    def _lead(self, has: Callable[[], bool], step: Callable[[], None]) -> None:
        error: StatelogError | None = None
        try:
            while not self._hand_out(has):
                step()
        except StatelogError as raised:
            error = raised
            raise
        finally:
            with self.lock:
                self.is_taken = False
                self._wake(len(self._waits) if error is not None else 1, error)

    def _hand_out(self, has: Callable[[], bool]) -> bool:
        """Wake the threads whose condition is met. Return whether this one's is."""
        with self.lock:
            if not self._waits:
                return has()
            left = list[_Wait]()
            for one in self._waits:
                if one.has():
                    one.bell.set()
                else:
                    left.append(one)
            self._waits = left
            return has()

    def _wake(self, count: int, error: StatelogError | None = None) -> None:
        for one in self._waits[:count]:
            one.error = error
            one.bell.set()
        del self._waits[:count]

    def _await(self, wait: _Wait) -> None:
        """Wait for the thread that reads, or for the turn. Raises that thread's error."""
        is_woken = False
        try:
            is_woken = wait.bell.wait(_PATIENCE_S)
        finally:
            if not is_woken:  # Or interrupted, perhaps with the turn.
                with self.lock:
                    if wait in self._waits:
                        self._waits.remove(wait)
                    elif not self.is_taken:
                        self._wake(1)
        if not is_woken:
            raise BrokerUnavailable(f"the thread that reads the ledger has not answered within {_PATIENCE_S:g} s")
        if wait.error is not None:
            raise wait.error.restated() from wait.error
