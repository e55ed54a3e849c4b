"""`PartitionChanges`: the changes of one partition as they arrive, and the memory they take. Pure.

A chunk costs what its objects cost, however few changes it has: some kilobytes, and its own calls in every fold. So
small ones are joined as they come, and until then count with what they hold.
"""

from collections.abc import Sequence

import pyarrow as pa

__all__ = ["PartitionChanges"]

_SMALL_BYTES = 16 * 1024
_HELD_BYTES = 4 * 1024  # A record, a batch and its buffers: what a chunk of a dozen changes takes, as measured.
_JOINED = 64


class PartitionChanges:
    """Tables of changes, oldest first. `size_bytes` is what they hold by now."""

    def __init__(self) -> None:
        self._tables: list[pa.Table] = []
        self._small: list[pa.RecordBatch] = []
        self._tables_bytes = 0
        self._small_bytes = 0

    @property
    def size_bytes(self) -> int:
        """The memory that the changes take, about."""
        return self._tables_bytes + self._small_bytes

    def add(self, changes: pa.RecordBatch) -> None:
        """The next changes."""
        size_bytes = changes.nbytes
        if size_bytes < _SMALL_BYTES:
            self._small.append(changes)
            self._small_bytes += max(size_bytes, _HELD_BYTES)
            if len(self._small) == _JOINED:
                self._join()
        else:
            self._join()
            self._tables.append(pa.Table.from_batches([changes]))
            self._tables_bytes += size_bytes

    def tables(self) -> list[pa.Table]:
        """All of them."""
        self._join()
        return self._tables

    def replace(self, tables: Sequence[pa.Table]) -> None:
        """Hold these instead: what a fold left."""
        self._tables, self._tables_bytes = list(tables), sum(table.nbytes for table in tables)
        self._small, self._small_bytes = [], 0

    def _join(self) -> None:
        if self._small:
            joined = pa.Table.from_batches(self._small).combine_chunks()
            self._small, self._small_bytes = [], 0
            self._tables.append(joined)
            self._tables_bytes += max(joined.nbytes, _HELD_BYTES)
