"""Finds the lines in a block of JSON lines. Pure, and without a loop over lines unless some are unusual.

Rows are lines that are not blank. A row starts with `{` and ends with `}`, so that a block with as many objects as
rows has one on each.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["LineIndex", "index_lines"]

_NEWLINE, _RETURN, _OPEN, _CLOSE = b"\n\r{}"
_BLANKS = b" \t\r\n"
Offsets = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LineIndex:
    """The rows of a block: byte offsets of their starts and ends (behind the line end), and their lines, from 0.

    `good` rows may be parsed; if there are more, the row at `good` is broken, and `problem` says how. `lines` counts
    line ends.
    """

    starts: Offsets
    ends: Offsets
    numbers: Offsets
    lines: int
    good: int
    problem: str = ""


def index_lines(data: bytes) -> LineIndex:
    """Index a block that begins at the start of a line."""
    view = np.frombuffer(data, np.uint8)
    newlines = np.flatnonzero(view == _NEWLINE).astype(np.int64)
    ends = newlines + 1
    if len(data) and (not len(ends) or ends[-1] != len(data)):
        ends = np.append(ends, len(data))
    starts = np.concatenate([np.zeros(min(1, len(ends)), np.int64), ends[:-1]])
    numbers = np.arange(len(ends), dtype=np.int64)
    if not _regular(view, starts, ends):
        starts, ends, numbers, good, problem = _examined(data, starts, ends)
    else:
        good, problem = len(ends), ""
    bad_byte = _first_bad_byte(data)
    if bad_byte is not None:
        row = int(np.searchsorted(ends, bad_byte, side="right"))
        if row < good:
            good, problem = row, "it is not UTF-8"
    return LineIndex(starts=starts, ends=ends, numbers=numbers, lines=len(newlines), good=good, problem=problem)


def _regular(view: NDArray[np.uint8], starts: Offsets, ends: Offsets) -> bool:
    """Whether every line is an opening brace, something, a closing brace and a line end."""
    if not len(ends):
        return True
    lengths = ends - starts
    if int(lengths.min()) < 4:
        return False
    last = ends - 1
    last = last - (view[last] == _NEWLINE)
    last = last - (view[last] == _RETURN)
    return bool((view[starts] == _OPEN).all() and (view[last] == _CLOSE).all())


def _examined(data: bytes, starts: Offsets, ends: Offsets) -> tuple[Offsets, Offsets, Offsets, int, str]:
    """The same line by line: blank ones are left out, and the first one that is no object is found."""
    rows: list[tuple[int, int, int]] = []
    good, problem = -1, ""
    for number, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        line = data[start:end].strip(_BLANKS)
        if not line:
            continue
        if good < 0 and not (line.startswith(b"{") and line.endswith(b"}")):
            good, problem = len(rows), "it is not one JSON object"
        rows.append((start, end, number))
    table = np.array(rows, np.int64).reshape(len(rows), 3)
    return table[:, 0], table[:, 1], table[:, 2], len(rows) if good < 0 else good, problem


def _first_bad_byte(data: bytes) -> int | None:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.start
    return None
