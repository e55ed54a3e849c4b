"""`RowGroup`: the decoded rows of one row group, searched by key where they lie. Pure.

Rows are sorted by (key group, key), one for each key. A search bisects the key groups, and then the keys of one of them
in Arrow's own buffers: some microseconds, whatever the row group holds, and no object for a row that is not looked at.

`RowGroupCache` has those that were read on demand, the last ones used. It never holds more than its bound of bytes; a
row group that is larger is not kept at all.
"""

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from statelog.schemas.arrays import binary_column
from statelog.schemas.changes.changes import DELETE

__all__ = ["RowGroup", "RowGroupCache", "SortableKey", "sortable"]

SortableKey = Any
"""The bytes of a key, or the number: what keys of one log are compared by."""

_ROW_BYTES = 16
"""What is held of a row beside its columns."""


def sortable(key: bytes | str | int) -> SortableKey:
    """What a key is compared by: its bytes, or the number."""
    return key.encode() if isinstance(key, str) else key


class RowGroup:
    """The rows of one row group. `size_bytes` is about what they take in memory."""

    __slots__ = ("_groups", "_keys", "_ops", "_rows", "size_bytes")

    def __init__(self, table: pa.Table) -> None:
        whole = table.combine_chunks()
        self._rows = whole.to_batches()[0] if whole.num_rows else pa.RecordBatch.from_pylist([], schema=whole.schema)
        self._groups = np.asarray(self._rows.column("key_group"), np.uint16)
        self._ops = np.asarray(self._rows.column("op"), np.uint8)
        self._keys = _keys_of(self._rows.column("key"))
        self.size_bytes = self._rows.nbytes + _ROW_BYTES * self._rows.num_rows

    @property
    def row_bytes(self) -> int:
        """What a row takes on average."""
        return self.size_bytes // max(1, self._rows.num_rows)

    def find(self, key_group: int, key: SortableKey) -> int | None:
        """The row of a key, given as `sortable` has it; None if it is not here."""
        start, end = self._bounds(key_group)
        row = bisect_left(self._keys, key, start, end)
        return row if row < end and self._keys[row] == key else None

    def between(self, key_group: int, start: SortableKey | None, end: SortableKey | None) -> range:
        """The rows of a key group from the key `start` on and below `end` (None: no bound)."""
        first, behind = self._bounds(key_group)
        low = first if start is None else bisect_left(self._keys, start, first, behind)
        high = behind if end is None else bisect_left(self._keys, end, low, behind)
        return range(low, high)

    @property
    def first_place(self) -> tuple[int, SortableKey]:
        """The key group and the key of the first row."""
        return int(self._groups[0]), self._keys[0]

    def rows_through(self, key_group: int, key: SortableKey) -> int:
        """How many rows lie at this key or before it."""
        return bisect_right(self._keys, key, *self._bounds(key_group))

    def is_delete(self, row: int) -> bool:
        """Whether the row says that its key was removed."""
        return bool(self._ops[row] == DELETE)

    def value(self, row: int) -> pa.Array:
        """The value of a row, as a column of one."""
        return self._rows.column("value").slice(row, 1)

    def copy(self, rows: range) -> pa.Table:
        """Some adjacent rows, without holding on to the others."""
        return pa.Table.from_batches([self._rows.take(pa.array(np.arange(rows.start, rows.stop)))])

    def _bounds(self, key_group: int) -> tuple[int, int]:
        start, end = np.searchsorted(self._groups, [key_group, key_group + 1])
        return int(start), int(end)


class RowGroupCache:
    """Row groups by run and number. Belongs to one thread."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._held: OrderedDict[tuple[str, int], RowGroup] = OrderedDict()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    def get(self, path: str, number: int) -> RowGroup | None:
        """A row group that is held, which is now the last one used."""
        found = self._held.get((path, number))
        if found is not None:
            self._held.move_to_end((path, number))
        return found

    def put(self, path: str, number: int, row_group: RowGroup) -> None:
        """Hold it, and let go of those that were not used for the longest time."""
        if row_group.size_bytes > self._most_bytes or (path, number) in self._held:
            return
        self._held[path, number] = row_group
        self.size_bytes += row_group.size_bytes
        while self.size_bytes > self._most_bytes:
            _, dropped = self._held.popitem(last=False)
            self.size_bytes -= dropped.size_bytes


class _ByteKeys:
    """The bytes of binary or text keys by row."""

    __slots__ = ("_data", "_offsets")

    def __init__(self, column: pa.Array) -> None:
        parts = binary_column(column)
        self._offsets = memoryview(np.ascontiguousarray(parts.offsets, np.int32))  # type: ignore[arg-type]  # a buffer
        self._data = memoryview(parts.data)  # type: ignore[arg-type]  # as above

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, row: int) -> bytes:
        return bytes(self._data[self._offsets[row] : self._offsets[row + 1]])


def _keys_of(column: pa.Array) -> "_ByteKeys | memoryview[int]":
    if not pa.types.is_int64(column.type):
        return _ByteKeys(column)
    numbers: NDArray[np.int64] = np.ascontiguousarray(column, np.int64)
    return memoryview(numbers)  # type: ignore[arg-type]  # an array is a buffer of its numbers
