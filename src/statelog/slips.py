"""Warnings about slips of the calling program: at its own line, and every time.

Python's usual way of warning shows one line of a program once. A slip that loses something loses it every time.

Invariant: what the program's warning filters say of the category decides; nothing here changes them.
"""

import inspect
import warnings
from types import FrameType

__all__ = ["warn_caller"]

_OURS = ("statelog", "pyspark_statelog", "contextlib")


def warn_caller(text: str, category: type[Warning]) -> None:
    """Warn at the line of whoever called into statelog, be it through a `with` block."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_back is not None and _module_of(frame).partition(".")[0] in _OURS:
        frame = frame.f_back
    assert frame is not None, "Python has frames"
    # Without a registry Python does not remember that it has told this line.
    warnings.warn_explicit(text, category, frame.f_code.co_filename, frame.f_lineno, _module_of(frame))


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
