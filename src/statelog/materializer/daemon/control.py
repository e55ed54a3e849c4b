"""The wishes that others have of a daemon: to stop, or to run a round now. And the bell that wakes it for them.

Invariants:
- A wish is noted before the bell rings, and the daemon looks at the wishes after every ring: none is overlooked.
- A wish to stop stands for good. A wish for a round stands until a round begins that was not under way when it came.
"""

import threading

__all__ = ["Control"]


class Control:
    """Shared by a daemon and whoever steers it; every method may be called from any thread, `wait` from one only."""

    def __init__(self) -> None:
        self._bell = threading.Event()
        self._is_stopped = False
        self._is_triggered = False
        self._is_abandoned = False

    @property
    def is_abandoned(self) -> bool:
        """Whether the round in flight is to end before its put, if it can."""
        return self._is_abandoned

    @property
    def is_stopped(self) -> bool:
        """Whether the daemon is to end."""
        return self._is_stopped

    @property
    def is_triggered(self) -> bool:
        """Whether a round is wanted now."""
        return self._is_triggered

    def stop(self) -> None:
        """Wish that the daemon ends once the round in flight is over."""
        self._is_stopped = True
        self._bell.set()

    def insist(self) -> None:
        """Wish for the end; a second time, do not wait for the round in flight either: it ends before its put."""
        self._is_abandoned = self._is_stopped
        self.stop()

    def trigger(self) -> None:
        """Wish for a round now. If one is in flight, it is followed by another: what is committed by now is covered."""
        self._is_triggered = True
        self._bell.set()

    def take_trigger(self) -> None:
        """A round begins, and answers every wish for one so far."""
        self._is_triggered = False

    def ring(self) -> None:
        """Wake whoever waits, without a wish."""
        self._bell.set()

    def wait(self, timeout_s: float) -> bool:
        """Wait until the bell rings, but not longer than `timeout_s`; whether the daemon is to end."""
        self._bell.wait(timeout_s)
        self._bell.clear()
        return self._is_stopped
