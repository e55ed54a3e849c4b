"""SIGTERM and SIGINT as a wish to stop: the handlers set a flag, and a round in flight ends cleanly."""

import signal
import threading
from collections.abc import Callable
from types import FrameType

__all__ = ["install_signal_handlers"]

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def install_signal_handlers(stop: threading.Event) -> Callable[[], None]:
    """Let SIGTERM and SIGINT set `stop`. Returns a function that puts the earlier handlers back.

    Must be called on the main thread. Raises ValueError on any other.
    """

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        # A handler runs on the main thread between two instructions, perhaps while that thread holds the event's
        # own lock in `wait`; setting it here could then wait for itself for ever. Another thread can wait.
        threading.Thread(target=stop.set, name="statelog-stop", daemon=True).start()

    earlier = {number: signal.signal(number, on_signal) for number in _SIGNALS}

    def restore() -> None:
        for number, handler in earlier.items():
            signal.signal(number, handler)

    return restore
