"""Requests to a running daemon (stop, or run a round now), the event that wakes it, and its background tasks.

Invariants:
- A request is noted before the event is set, and the daemon checks for requests after every wake-up: none is missed.
- A request to stop is final. A request for a round is pending until a round begins after it.
"""

import signal
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from types import FrameType
from typing import Generic, TypeVar

from statelog.environment import Environment, current_environment
from statelog.schemas.names import check_kind


class Control:
    """Shared by a daemon and its callers. Every method is thread-safe, except `wait`, which belongs to one thread.

    `daemon.run()` ends soon after `control.stop()`:

        >>> from statelog.materializer import Control
        >>> control = Control()
        >>> daemon = Materializer(log, control=control)
    """

    def __init__(self, *, beside: "Control | None" = None) -> None:
        """Make one that shares its wake-up event with the control `beside`: a request to this one wakes its waiter."""
        self._bell: threading.Event = threading.Event() if beside is None else beside._bell
        environment = current_environment()
        self._wait = environment.wait
        self._clock = environment.clock
        self.is_triggered = False
        """Whether a round is wanted now."""
        self.stopped_s: float | None = None
        """When the daemon was asked to end, on its clock, if it was."""
        self.abandoned_s: float | None = None
        """When the round in flight was asked to end before its put, if it still can."""

    @property
    def is_stopped(self) -> bool:
        """Whether the daemon should end."""
        return self.stopped_s is not None

    @property
    def is_abandoned(self) -> bool:
        """Whether the round in flight should end before its put, if it still can."""
        return self.abandoned_s is not None

    def stop(self) -> None:
        """Ask the daemon to end once the round in flight is over."""
        self.stopped_s = self._clock() if self.stopped_s is None else self.stopped_s
        self._bell.set()

    def insist(self) -> None:
        """Ask the daemon to end. On the second call, do not wait for the round in flight: it ends before its put."""
        if self.is_stopped and not self.is_abandoned:
            self.abandoned_s = self._clock()
        self.stop()

    def trigger(self) -> None:
        """Ask for a round now. If one is in flight, another follows, which covers everything committed before this."""
        self.is_triggered = True
        self._bell.set()

    def follow(self, other: "Control") -> None:
        """Copy the other control's requests to stop and to end the round in flight."""
        self.stopped_s, self.abandoned_s = other.stopped_s, other.abandoned_s

    def take_trigger(self) -> None:
        """Clear the request for a round, because one begins."""
        self.is_triggered = False

    def ring(self) -> None:
        """Wake the waiting thread, without a request."""
        self._bell.set()

    def wait(self, timeout_s: float) -> bool:
        """Wait for a wake-up, at most `timeout_s` seconds. Return whether the daemon should end."""
        self._wait(self._bell, min(timeout_s, threading.TIMEOUT_MAX))
        self._bell.clear()
        return self.is_stopped


def install_signal_handlers(control: Control) -> Callable[[], None]:
    """Let SIGTERM and SIGINT stop, and SIGUSR1 trigger a round. Return a function that restores the earlier handlers.

    A round in flight ends cleanly. A second SIGTERM or SIGINT gives it up: it ends before its put, or right after it.
    Must be called on the main thread. Raises ValueError on any other, ConfigError if `control` is no Control.

        >>> from statelog.materializer import Control, install_signal_handlers
        >>> restore = install_signal_handlers(Control())
        >>> restore()
    """
    check_kind("control", control, Control, example="the Control of the materializer")
    requests: dict[int, Callable[[], None]] = {
        signal.SIGTERM: control.insist,
        signal.SIGINT: control.insist,
        signal.SIGUSR1: control.trigger,
    }
    # A Python handler cannot set the event: it may interrupt the main thread inside `wait`, which holds the event's
    # lock, or not run while that thread sleeps there. So a thread of its own receives the signal numbers.
    receiver, sender = socket.socketpair()
    sender.setblocking(False)

    def listen() -> None:
        with receiver:
            while numbers := receiver.recv(64):
                for number in numbers:
                    if number in requests:  # Other signals are handled elsewhere.
                        requests[number]()

    threading.Thread(target=listen, name="statelog-signals", daemon=True).start()
    earlier = {number: signal.signal(number, _on_signal) for number in requests}
    earlier_fd = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)

    def restore() -> None:
        for number, handler in earlier.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(earlier_fd)
        sender.close()

    return restore


def _on_signal(_number: int, _frame: FrameType | None) -> None:
    """Do nothing. With a Python handler, the number is written to the wake-up descriptor and the process continues."""


T = TypeVar("T")


@dataclass(slots=True, eq=False)
class BackgroundTask(Generic[T]):
    """One unit of work, begun at `started_s`, and its result.

    Python cannot end a thread. So a task that is given up ends at its next check, or never; a late result is still
    delivered.
    """

    future: Future[T]
    started_s: float
    is_given_up: bool = False


def begin_task(
    environment: Environment, work: Callable[[], T], on_end: Callable[[BackgroundTask[T]], None]
) -> BackgroundTask[T]:
    """Begin a unit of work. `on_end` is called on its thread when it ends."""
    started_s = environment.clock()
    task = BackgroundTask(environment.begin(work), started_s)
    task.future.add_done_callback(lambda _: on_end(task))
    return task
