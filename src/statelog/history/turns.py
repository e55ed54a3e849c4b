"""`Turns`: of the threads that wait for something newer one reads, for all of them, and hands over when it has its own.

Invariants:
- Nobody waits while nobody reads: whoever ends its turn, or is interrupted, wakes the next one.
- What the thread that reads has met is told to all who waited for it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Event, Lock

from statelog.errors import BrokerUnavailable, StatelogError

_PATIENCE_S = 60.0
"""Longer than any read waits without a record."""


@dataclass(slots=True, eq=False)
class _Wait:
    """A thread that waits: until when, and what became of it."""

    has: Callable[[], bool]
    bell: Event = field(default_factory=Event)
    error: StatelogError | None = None


class Turns:
    """Who reads, and who waits for that. `lock` guards what is read."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.is_taken = False
        """Whether a thread reads."""
        self._waits: list[_Wait] = []

    def until(self, has: Callable[[], bool], step: Callable[[], None], *, waits: bool = True) -> None:
        """Return once `has`, asked under the lock, is true; call `step` until then, or wait for the thread that does.

        Without `waits` it leaves at once if another thread reads. Raises what `has` and `step` raise.
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
        """Wake the threads that have what they wait for. Return whether this one has."""
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
        """Wait for the thread that reads, or for the turn. Raises what that thread has met."""
        is_told = False
        try:
            is_told = wait.bell.wait(_PATIENCE_S)
        finally:
            if not is_told:  # Or interrupted, perhaps with the turn.
                with self.lock:
                    if wait in self._waits:
                        self._waits.remove(wait)
                    elif not self.is_taken:
                        self._wake(1)
        if not is_told:
            raise BrokerUnavailable("another thread reads the ledger, and does not come back")
        if wait.error is not None:
            raise wait.error.restated() from wait.error
