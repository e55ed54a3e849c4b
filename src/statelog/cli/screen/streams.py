"""Standard streams and Ctrl-C: set up before a command runs, so that no output ends in a traceback.

Invariants:
- JSON is UTF-8, whatever the locale; text that a terminal cannot show is escaped, never an error.
- That Ctrl-C was pressed is known, even if a library that was being imported made another error of it.
"""

import errno
import io
import os
import select
import signal
import sys
import threading
from types import FrameType

__all__ = ["Interrupt", "check_stdout", "fit_streams", "give_up_stdout"]


class Interrupt:
    """Notes that Ctrl-C was pressed; otherwise Python's own handler. Installed only in its place."""

    def __init__(self) -> None:
        self.seen = False
        self._is_set = threading.current_thread() is threading.main_thread() and _is_default()
        if self._is_set:
            signal.signal(signal.SIGINT, self._note)

    def close(self) -> None:
        """Leave Python's own handler behind."""
        if self._is_set:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.seen = True
        signal.default_int_handler(number, frame)


def fit_streams(*, as_json: bool) -> None:
    """Let standard output and standard error take any text."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8" if as_json else None, errors="backslashreplace")


def check_stdout() -> None:
    """Raise BrokenPipeError if nobody will read standard output any more: for who has nothing to write just now."""
    try:
        number = sys.stdout.fileno()
    except (OSError, ValueError):
        return  # It is no file, as in a test.
    poll = select.poll()
    poll.register(number, 0)
    if any(event & select.POLLERR for _, event in poll.poll(0)):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def give_up_stdout() -> None:
    """Nothing more can be written there, and Python must not try again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _is_default() -> bool:
    return signal.getsignal(signal.SIGINT) is signal.default_int_handler
