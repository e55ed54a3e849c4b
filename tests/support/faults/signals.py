"""A signal at any line of the package: its handler runs in the thread that is in the middle of a call.

Lines are more moments than there are: between two of them Python may have none at which it looks for signals. One that
is never such a moment is left out: the end of a `with` block, where an exception would leave the block unclosed. Nor
does it come in the middle of the twin of a broker, which would be another process.
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
    """Return where the code begins to leave a `with` block: it loads None three times, for `__exit__`, and before that
    puts away what the block returns, if it does. Python looks for signals at neither.
    """
    steps = list(dis.get_instructions(code))
    found = set[int]()
    for at, three in enumerate(zip(steps, steps[1:], steps[2:], strict=False)):
        if all(one.opname == "LOAD_CONST" and one.argval is None for one in three):
            found.add(three[0].offset)
            before = takewhile(lambda one: one.opname == "SWAP", reversed(steps[:at]))
            found |= {one.offset for one in before}  # One up to Python 3.13, two from 3.14 on.
    return frozenset(found)
