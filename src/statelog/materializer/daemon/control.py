"""Requests to a running daemon: stop, or run a round now; and the event that wakes it.

Invariants:
- A request is noted before the event is set, and the daemon checks for requests after every wake-up: none is missed.
- A request to stop is final. A request for a round holds until a round begins that was not yet running when it came.
"""

import threading

__all__ = ["Control"]


class Control:
    """Shared by a daemon and its callers. Every method is thread-safe, except `wait`, which belongs to one thread.

    `daemon.run()` ends soon after `control.stop()`:

        >>> from statelog.materializer import Control
        >>> control = Control()
        >>> daemon = Materializer(log, control=control)
    """

    def __init__(self) -> None:
        self._bell = threading.Event()
        self._is_stopped = False
        self._is_triggered = False
        self._is_abandoned = False

    @property
    def is_abandoned(self) -> bool:
        """Whether the round in flight should end before its put, if it still can."""
        return self._is_abandoned

    @property
    def is_stopped(self) -> bool:
        """Whether the daemon should end."""
        return self._is_stopped

    @property
    def is_triggered(self) -> bool:
        """Whether a round is wanted now."""
        return self._is_triggered

    def stop(self) -> None:
        """Ask the daemon to end once the round in flight is over."""
        self._is_stopped = True
        self._bell.set()

    def insist(self) -> None:
        """Ask the daemon to end; a second time, without waiting for the round in flight: it ends before its put."""
        self._is_abandoned = self._is_stopped
        self.stop()

    def trigger(self) -> None:
        """Ask for a round now. If one is in flight, another follows it, which covers all that is committed by now."""
        self._is_triggered = True
        self._bell.set()

    def take_trigger(self) -> None:
        """Note that a round begins, which answers every request so far."""
        self._is_triggered = False

    def ring(self) -> None:
        """Wake the waiting thread, without a request."""
        self._bell.set()

    def wait(self, timeout_s: float) -> bool:
        """Wait for a wake-up, at most `timeout_s` seconds; returns whether the daemon should end."""
        self._bell.wait(timeout_s)
        self._bell.clear()
        return self._is_stopped
