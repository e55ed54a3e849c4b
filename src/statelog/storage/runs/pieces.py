"""Writes sorted changes as one run, or as several where they are cut, each a file of its own.

Never decides where to cut: `schemas.snapshot.run_ref.Cuts` does.

Invariants:
- The pieces tile the key groups that were to be covered, whatever rows there are; without rows there is one piece.
- After an error no file is left.
"""

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from statelog.schemas.snapshot.run_ref import Cuts
from statelog.schemas.snapshot.runs import key_groups_of
from statelog.storage.runs.write import RunWriter, WrittenRun

__all__ = ["Piece", "write_pieces"]


class Piece(NamedTuple):
    """A finished run on the local disk, and the key groups that it covers."""

    first_key_group: int
    end_key_group: int
    run: WrittenRun


def write_pieces(
    tables: Iterable[pa.Table], new_writer: Callable[[], RunWriter], cuts: Cuts, key_groups: range
) -> list[Piece]:
    """Write sorted tables, whose rows lie within `key_groups`. Errors as for RunWriter."""
    pieces = _Pieces(new_writer, cuts, key_groups.start)
    try:
        for table in tables:
            pieces.append(table)
        return pieces.finish(key_groups.stop)
    except BaseException:
        pieces.abort()
        raise


class _Pieces:
    """The run that is being written, and those before it."""

    def __init__(self, new_writer: Callable[[], RunWriter], cuts: Cuts, first_key_group: int) -> None:
        self._new_writer = new_writer
        self._cuts = cuts
        self._first_key_group = first_key_group
        self._last_key_group = first_key_group
        self._done: list[Piece] = []
        self._writer = new_writer()

    def append(self, table: pa.Table) -> None:
        if not table.num_rows:
            return
        groups = key_groups_of(table)
        if self._writer.size_bytes + table.nbytes < self._cuts.least_bytes:
            self._writer.append(table)
        else:
            starts = np.flatnonzero(np.diff(groups)) + 1
            for start, end in pairwise([0, *starts.tolist(), len(groups)]):
                self._cut_before(int(groups[start]))
                self._writer.append(table.slice(start, end - start))
                self._last_key_group = int(groups[start])
        self._last_key_group = int(groups[-1])

    def finish(self, end_key_group: int) -> list[Piece]:
        self._done.append(Piece(self._first_key_group, end_key_group, self._writer.finish()))
        return self._done

    def abort(self) -> None:
        self._writer.close()
        for piece in self._done:
            piece.run.local.unlink(missing_ok=True)

    def _cut_before(self, key_group: int) -> None:
        point = self._cuts.before(key_group, self._last_key_group, self._writer.size_bytes)
        if point is not None and key_group > self._last_key_group:
            self.finish(point)
            self._first_key_group = point
            self._writer = self._new_writer()
