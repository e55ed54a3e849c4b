"""A signal at any line of the package: its handler runs in the thread that is in the middle of a call.

Lines are more moments than there are: between two of them Python may have none at which it looks for signals.
"""

import signal
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import statelog

__all__ = ["at_line", "handled"]

_PACKAGE = str(Path(statelog.__file__).parent)


@contextmanager
def handled(handler: Callable[[], object], number: int = signal.SIGUSR1) -> Generator[None]:
    """Inside, the signal is handled so."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        handler()

    before = signal.signal(number, handle)
    try:
        yield
    finally:
        signal.signal(number, before)


def at_line(at: int, work: Callable[[], object], number: int = signal.SIGUSR1) -> bool:
    """Work, with the signal at the line `at` of those of the package that are run; whether it came. Raises as `work`,
    and as the handler.
    """
    left, former = at, sys.gettrace()

    def count(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if left < 0 or not frame.f_code.co_filename.startswith(_PACKAGE):
            return None
        if event == "line":
            left -= 1
            if left < 0:
                sys.settrace(former)
                signal.raise_signal(number)
        return count

    sys.settrace(count)
    try:
        work()
    finally:
        sys.settrace(former)
    return left < 0
