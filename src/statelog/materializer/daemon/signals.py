"""Signals as requests: SIGTERM and SIGINT stop the daemon, SIGUSR1 asks for a round now.

A round in flight ends cleanly. A second SIGTERM or SIGINT gives it up: it ends before its put, or right after it.
"""

import signal
import threading
from collections.abc import Callable
from types import FrameType

from statelog.materializer.daemon.control import Control

__all__ = ["install_signal_handlers"]


def install_signal_handlers(control: Control) -> Callable[[], None]:
    """Let SIGTERM and SIGINT stop, and SIGUSR1 trigger a round. Returns a function that puts the earlier handlers back.

    Must be called on the main thread. Raises ValueError on any other.

        >>> from statelog.materializer import Control, install_signal_handlers
        >>> restore = install_signal_handlers(Control())
        >>> restore()
    """
    requests = {signal.SIGTERM: control.insist, signal.SIGINT: control.insist, signal.SIGUSR1: control.trigger}
    earlier = {number: signal.signal(number, _handler(request)) for number, request in requests.items()}

    def restore() -> None:
        for number, handler in earlier.items():
            signal.signal(number, handler)

    return restore


def _handler(request: Callable[[], None]) -> Callable[[int, FrameType | None], None]:
    def on_signal(_number: int, _frame: FrameType | None) -> None:
        # A handler runs on the main thread between two instructions, perhaps while that thread holds the event's
        # own lock in `wait`; setting it here could deadlock. Another thread can wait.
        threading.Thread(target=request, name="statelog-signal", daemon=True).start()

    return on_signal
