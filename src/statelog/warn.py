"""Warnings about mistakes of the calling program, at its own line, every time.

By default Python shows a warning once per line. A mistake that loses data loses it every time.

Invariant: the program's warning filters decide, and nothing here changes them.
"""

import inspect
import warnings
from types import FrameType

_OURS = ("statelog", "pyspark_statelog", "contextlib")


def warn_caller(text: str, category: type[Warning]) -> None:
    """Warn at the line that called into statelog, also when that is the end of a `with` block."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_back is not None and _module_of(frame).partition(".")[0] in _OURS:
        frame = frame.f_back
    assert frame is not None, "Python has frames"
    # Without a registry, Python does not suppress a repeated warning.
    warnings.warn_explicit(text, category, frame.f_code.co_filename, frame.f_lineno, _module_of(frame))


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
