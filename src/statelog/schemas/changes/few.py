"""`FewChanges`: the changes of a small commit in plain Python, down to the bytes of a chunk. Pure.

One call of Arrow or numpy takes longer than the whole work on a hundred changes. A commit over many partitions has a
chunk of one or two changes in each. Only for opaque values under keys of bytes.
"""

import struct
from bisect import bisect_left
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import NamedTuple, cast
from zlib import crc32

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from statelog.schemas.arrays import numbers_of
from statelog.schemas.changes.changes import change_schema
from statelog.schemas.changes.chunk import BatchFrame
from statelog.schemas.changes.due import has_due, with_due
from statelog.schemas.key_groups import KeyType, key_groups_of_partition, partition_of

FEW_BYTES = 64 << 10
"""The most bytes of few changes: less than any log's largest record, and than any chunk but of lower settings."""
ROW_BYTES = 11
"""The size of a change without key and value: its key group, its op, and two offsets."""
DUE_BYTES = 8
"""The size of a due, in changes of which any has one."""
Dues = Sequence[int | None]
"""The due of each change, in milliseconds since 1970, or None."""


class FewChanges(NamedTuple):
    """Changes by key group, and in their original order within a group. A value of None deletes.

    `dues`: None if no change has one.
    """

    groups: Sequence[int]
    keys: Sequence[bytes]
    values: Sequence[bytes | None]
    dues: Dues | None = None

    @classmethod
    def of(
        cls,
        keys: Sequence[bytes],
        values: Sequence[bytes | None],
        key_groups: int,
        prefix_bytes: int | None = None,
        dues: Dues | None = None,
    ) -> "FewChanges":
        """Make it of changes in any order, in a log that hashes its keys."""
        hashed = keys if prefix_bytes is None else [key[:prefix_bytes] for key in keys]
        return cls.placed([crc32(key) % key_groups for key in hashed], keys, values, dues)

    @classmethod
    def placed(
        cls,
        groups: Sequence[int],
        keys: Sequence[bytes],
        values: Sequence[bytes | None],
        dues: Dues | None = None,
    ) -> "FewChanges":
        """Make it of changes in any order, with the key group of each."""
        order = sorted(range(len(groups)), key=groups.__getitem__)
        groups, keys = [*map(groups.__getitem__, order)], [*map(keys.__getitem__, order)]
        if dues is not None:
            dues = [*map(dues.__getitem__, order)]
        return cls(groups, keys, [*map(values.__getitem__, order)], dues)

    @property
    def num_rows(self) -> int:
        """The number of changes."""
        return len(self.groups)

    @property
    def nbytes(self) -> int:
        """The approximate size in a chunk."""
        size = sum(map(len, self.keys)) + sum(map(len, filter(None, self.values))) + ROW_BYTES * len(self.groups)
        return size if self.dues is None else size + DUE_BYTES * len(self.dues)

    def split(self, partitions: int, key_groups: int) -> list[tuple[int, "FewChanges"]]:
        """Split them by partition, ascending, without empty ones."""
        parts: list[tuple[int, FewChanges]] = []
        start, (groups, keys, values, dues) = 0, self
        while start < len(groups):
            partition = partition_of(groups[start], partitions, key_groups)
            end = bisect_left(groups, key_groups_of_partition(partition, partitions, key_groups).stop, start)
            mine = None if dues is None else _used(dues[start:end])
            parts.append((partition, FewChanges(groups[start:end], keys[start:end], values[start:end], mine)))
            start = end
        return parts

    def serialize(self) -> bytes:
        """Return the same bytes as Arrow's `RecordBatch.serialize`. There is at least one change."""
        groups, keys, values, dues = self
        count = len(groups)
        ops, validity, deletes = bytes(count), b"", values.count(None)
        given = cast("Sequence[bytes]", values)
        if deletes:
            ops = bytes([value is None for value in values])
            validity = _validity(values)
            given = [value or b"" for value in values]
        numbers = struct.pack(f"<{count}H", *groups)
        buffers = [b"", numbers, b"", ops, b"", *_binary(keys), validity, *_binary(given)]
        if dues is None:
            return _frame().message(count, (0, 0, 0, deletes), buffers)
        nulls = dues.count(None)
        times = struct.pack(f"<{count}q", *[due or 0 for due in dues])
        buffers += _validity(dues) if nulls else b"", times
        return _frame_with_due().message(count, (0, 0, 0, deletes, nulls), buffers)


Changes = pa.RecordBatch | FewChanges
"""Changes in the columns of `change_schema`, or few."""
KeyGroups = Sequence[int] | NDArray[np.uint16]


def have_due(changes: Changes) -> bool:
    """Return whether changes have the column of dues."""
    return changes.dues is not None if isinstance(changes, FewChanges) else has_due(changes)


def key_groups_in(changes: Changes) -> KeyGroups:
    """Return the key group of each change."""
    return changes.groups if isinstance(changes, FewChanges) else numbers_of(changes.column(0))


@cache
def _frame() -> BatchFrame:
    return BatchFrame.of(change_schema(KeyType.BYTES))


@cache
def _frame_with_due() -> BatchFrame:
    return BatchFrame.of(with_due(change_schema(KeyType.BYTES)))


def _used(dues: Dues) -> Dues | None:
    """Return the dues, or None if there is none."""
    return None if dues.count(None) == len(dues) else dues


def _validity(rows: Sequence[object]) -> bytes:
    """Return the bitmap of the rows that are not None."""
    found = sum(1 << row for row, one in enumerate(rows) if one is not None)
    return found.to_bytes(-(-len(rows) // 8), "little")


def _binary(rows: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Return a binary column's offsets and data."""
    return struct.pack(f"<{len(rows) + 1}i", *accumulate(map(len, rows), initial=0)), b"".join(rows)
