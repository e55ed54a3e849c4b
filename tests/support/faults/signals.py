"""A signal at any line of the package: its handler runs in the thread that is in the middle of a call.

Lines are more moments than Python has: between two of them there may be no point where it checks for signals. The end
of a `with` block is left out: Python never checks there, and an exception would leave the block unclosed. The signal
never interrupts the twin of a broker, which stands for another process.
"""

import dis
import signal
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache
from itertools import takewhile
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import statelog
from statelog.testing import cluster

__all__ = ["at_line", "handled"]

_PACKAGE = str(Path(statelog.__file__).parent)
_ELSEWHERE = cluster.__file__


@contextmanager
def handled(handler: Callable[[], object], number: int = signal.SIGUSR1) -> Generator[None]:
    """Handle the signal so within the context."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        handler()

    before = signal.signal(number, handle)
    try:
        yield
    finally:
        signal.signal(number, before)


def at_line(at: int, work: Callable[[], object], number: int = signal.SIGUSR1) -> bool:
    """Run `work` with the signal at the package's executed line number `at`; return whether it was raised.

    Raises as `work` and the handler do.
    """
    left, former = at, sys.gettrace()

    def count(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        file = frame.f_code.co_filename
        if left < 0 or not file.startswith(_PACKAGE) or file == _ELSEWHERE:
            return None
        if event == "line" and frame.f_lasti not in _ends_of_with(frame.f_code):
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


@cache
def _ends_of_with(code: CodeType) -> frozenset[int]:
    """Return the offsets at which the code begins to leave a `with` block.

    There it loads None three times, for `__exit__`, after it stores the block's return value, if any. Python checks for
    signals at neither.
    """
    steps = list(dis.get_instructions(code))
    found = set[int]()
    for at, three in enumerate(zip(steps, steps[1:], steps[2:], strict=False)):
        if all(one.opname == "LOAD_CONST" and one.argval is None for one in three):
            found.add(three[0].offset)
            before = takewhile(lambda one: one.opname == "SWAP", reversed(steps[:at]))
            found |= {one.offset for one in before}  # One up to Python 3.13, two from 3.14 on.
    return frozenset(found)
