"""Standard streams and Ctrl-C: set up before a command runs, so that no output ends in a traceback.

Invariants:
- JSON is UTF-8, whatever the locale; text that a terminal cannot show is escaped, never an error.
- A stream that was closed when the command began is /dev/null: no file or socket that the command opens has its number,
  into which a library might print.
- That Ctrl-C was pressed is known, even if a library that was being imported made another error of it.
- A reader that goes away is no failure: what stands beside the result is lost without a word.
"""

import errno
import io
import os
import select
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TextIO

import click

_STDOUT, _STDERR = 1, 2


class Interrupt:
    """Notes that Ctrl-C was pressed; otherwise Python's own handler. Installed only in its place."""

    def __init__(self) -> None:
        self.seen = False
        self._is_set = threading.current_thread() is threading.main_thread()
        self._is_set &= signal.getsignal(signal.SIGINT) is signal.default_int_handler
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
    """Let standard output and standard error take any text. One that is closed, as by `2>&-`, takes it to nowhere."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            nowhere = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115 - for life; it takes the free number
            setattr(sys, name, nowhere)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8" if as_json else None, errors="backslashreplace")


def check_stdout() -> None:
    """Raise BrokenPipeError if standard output has lost its reader, for a command with nothing to write just now."""
    if is_stdout_unread():
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def is_stdout_unread() -> bool:
    """Whether the reader of standard output is gone."""
    return _is_unread(sys.stdout)


def _is_unread(stream: TextIO) -> bool:
    try:
        number = stream.fileno()
    except (OSError, ValueError):
        return False  # It is no file, as in a test.
    poll = select.poll()
    poll.register(number, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def tell(text: str) -> None:
    """Print a line beside the result, on standard error. Nobody has to read it: the work goes on in any case."""
    with suppress(OSError):
        click.echo(text, err=True)


def settle_stderr() -> None:
    """At the end: if it takes nothing, what others printed there is lost, too, or Python would end with 120 for it."""
    try:
        sys.stderr.flush()
        is_unread = _is_unread(sys.stderr)
    except OSError:
        is_unread = True
    if is_unread:
        _give_up(_STDERR)


def give_up_stdout() -> None:
    """Nothing more can be written there, and Python must not try again at its end."""
    _give_up(_STDOUT)


def _give_up(descriptor: int) -> None:
    """What is still in Python's buffer goes nowhere: it would be tried again at the end, and end with 120."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
