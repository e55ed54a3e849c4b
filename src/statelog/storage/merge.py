"""Merges sorted streams, such as the row groups of runs, into one, in bounded memory.

A cursor walks each stream in order. In every step all cursors give the changes up to one bound, the lowest end of what
they have loaded; `merge_tables` merges those. So memory holds about one table of each stream, also when a single key
group is larger than memory. Never decides which runs to merge or whether deletes may go.

Invariant: one step merges at most `MOST_BYTES`, however much is loaded, unless single rows exceed that: a column of
Arrow's ends at 2 GiB.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from statelog.schemas.changes.changes import merge_tables
from statelog.schemas.snapshot.runs import key_groups_of

MOST_BYTES = 1 << 30

_Place = tuple[int, Any]


def merge_streams(
    streams: Sequence[Iterable[pa.Table]], *, drop_deletes: bool, most_bytes: int = MOST_BYTES
) -> Iterator[pa.Table]:
    """Merge streams of sorted tables, oldest stream first, into one stream of sorted tables.

    A table of the result is made of at most `most_bytes`, or of one row of each stream.
    """
    opened = [_Cursor(iter(stream)) for stream in streams]
    cursors: list[_Cursor] = [cursor for cursor in opened if cursor.filled]
    while cursors:
        bound = _bound(cursors, most_bytes)
        merged = merge_tables([cursor.take_through(bound) for cursor in cursors], drop_deletes=drop_deletes)
        if merged.num_rows:
            yield merged
        cursors = [cursor for cursor in cursors if cursor.filled]


def _bound(cursors: Sequence["_Cursor"], most_bytes: int) -> _Place:
    """Up to where to merge now: the lowest end of what is loaded, or lower, so that it is not too much at once."""
    bound = min(cursor.last for cursor in cursors)
    if sum(cursor.loaded_bytes for cursor in cursors) <= most_bytes:
        return bound
    while True:
        offers = [cursor.through(bound) for cursor in cursors]
        if sum(offer.nbytes for offer in offers) <= most_bytes:
            return bound
        largest = max((offer for offer in offers if offer.num_rows > 1), key=lambda offer: offer.nbytes, default=None)
        if largest is None:
            return bound
        bound = _place(largest, largest.num_rows // 2 - 1)


class _Cursor:
    """What is loaded and not yet given of one stream. Loads the next table when the last one is used up."""

    def __init__(self, tables: Iterator[pa.Table]) -> None:
        self._tables = tables
        self._load()

    def _load(self) -> None:
        loaded = next((table for table in self._tables if table.num_rows), None)
        self.filled = loaded is not None
        if loaded is not None:
            self._rest = loaded
            self.loaded_bytes = loaded.nbytes
            self.last = _place(loaded, loaded.num_rows - 1)

    def through(self, bound: _Place) -> pa.Table:
        return self._rest if self.last <= bound else self._rest.slice(0, _rows_through(self._rest, bound))

    def take_through(self, bound: _Place) -> pa.Table:
        """Remove and return the changes up to and including `bound`."""
        taken = self.through(bound)
        self._rest = self._rest.slice(taken.num_rows)
        if not self._rest.num_rows:
            self._load()
        return taken


def _place(table: pa.Table, row: int) -> _Place:
    return table.column("key_group")[row].as_py(), table.column("key")[row].as_py()


def _rows_through(table: pa.Table, bound: _Place) -> int:
    """How many rows lie at or below `bound`: by key group first, then by bisection of that key group's keys."""
    key_group, key = bound
    start, end = (int(i) for i in np.searchsorted(key_groups_of(table), [key_group, key_group + 1]))
    keys = table.column("key")
    return start + bisect_right(range(start, end), key, key=lambda row: keys[row].as_py())
