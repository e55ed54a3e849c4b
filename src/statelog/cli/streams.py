"""Standard streams and Ctrl-C, set up before a command runs, so that no output ends in a traceback.

Invariants:
- JSON is UTF-8, whatever the locale; text that a terminal cannot show is escaped, never an error.
- A stream that was closed when the command began is /dev/null: no file or socket of the command takes its number, into
  which a library might print.
- Ctrl-C is remembered, even if an import in progress turned it into another error.
- A reader that goes away is no failure: output other than the result is dropped silently.
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
    """A handler of Ctrl-C that also remembers the signal. It replaces only Python's own handler."""

    def __init__(self) -> None:
        self.seen = False
        self._is_set = threading.current_thread() is threading.main_thread()
        self._is_set &= signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if self._is_set:
            signal.signal(signal.SIGINT, self._note)

    def close(self) -> None:
        """Restore Python's own handler."""
        if self._is_set:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.seen = True
        signal.default_int_handler(number, frame)


def fit_streams(*, as_json: bool) -> None:
    """Make standard output and standard error take any text. Replace a closed stream, as by `2>&-`, by /dev/null."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            nowhere = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115 - never closed; it takes the free number
            setattr(sys, name, nowhere)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8" if as_json else None, errors="backslashreplace")


def check_stdout() -> None:
    """Raise BrokenPipeError if standard output has lost its reader, for a command with nothing to write just now."""
    if is_stdout_unread():
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def is_stdout_unread() -> bool:
    """Tell whether the reader of standard output has gone away."""
    return _is_unread(sys.stdout)


def _is_unread(stream: TextIO) -> bool:
    try:
        number = stream.fileno()
    except (OSError, ValueError):
        return False  # Not a file, as in a test.
    poll = select.poll()
    poll.register(number, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def tell(text: str) -> None:
    """Print a line on standard error. The work goes on even if nobody reads it."""
    with suppress(OSError):
        click.echo(text, err=True)


def discard_unread_stderr() -> None:
    """Discard what is buffered for standard error if it takes nothing. Otherwise Python would exit with 120."""
    try:
        sys.stderr.flush()
        is_unread = _is_unread(sys.stderr)
    except OSError:
        is_unread = True
    if is_unread:
        _discard(_STDERR)


def discard_stdout() -> None:
    """Discard what is buffered for standard output, so that Python does not write it again at its end."""
    _discard(_STDOUT)


def _discard(descriptor: int) -> None:
    """Redirect a stream to /dev/null: writing its buffer at the end would fail, and exit with 120."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
