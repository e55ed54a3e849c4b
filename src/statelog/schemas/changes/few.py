"""`FewChanges`: those of a small commit, as they are in Python, up to the bytes of a chunk.

Each call of Arrow's or numpy's takes longer than the work on a hundred changes does, and a commit over many partitions
has a chunk of one or two of them in each. Opaque values under keys of bytes. Pure.
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
from statelog.schemas.key_groups import KeyType, key_groups_of_partition, partition_of

FEW_BYTES = 64 << 10
"""So many bytes are few. It is less than any log's largest record, and than any chunk but those that settings bound."""
ROW_BYTES = 11
"""What a change takes beside its key and its value: its key group, its op, and two offsets."""


class FewChanges(NamedTuple):
    """Changes in the order of their key groups, and in a group in their own. A value of None deletes."""

    groups: Sequence[int]
    keys: Sequence[bytes]
    values: Sequence[bytes | None]

    @classmethod
    def of(
        cls, keys: Sequence[bytes], values: Sequence[bytes | None], key_groups: int, prefix_bytes: int | None = None
    ) -> "FewChanges":
        """Changes in any order, of a log that hashes its keys."""
        hashed = keys if prefix_bytes is None else [key[:prefix_bytes] for key in keys]
        groups = [crc32(key) % key_groups for key in hashed]
        order = sorted(range(len(groups)), key=groups.__getitem__)
        groups, keys = [*map(groups.__getitem__, order)], [*map(keys.__getitem__, order)]
        return cls(groups, keys, [*map(values.__getitem__, order)])

    @property
    def num_rows(self) -> int:
        """How many there are."""
        return len(self.groups)

    @property
    def nbytes(self) -> int:
        """About how many bytes they take in a chunk."""
        return sum(map(len, self.keys)) + sum(map(len, filter(None, self.values))) + ROW_BYTES * len(self.groups)

    def split(self, partitions: int, key_groups: int) -> list[tuple[int, "FewChanges"]]:
        """By partition, ascending, without empty ones."""
        parts: list[tuple[int, FewChanges]] = []
        start, (groups, keys, values) = 0, self
        while start < len(groups):
            partition = partition_of(groups[start], partitions, key_groups)
            end = bisect_left(groups, key_groups_of_partition(partition, partitions, key_groups).stop, start)
            parts.append((partition, FewChanges(groups[start:end], keys[start:end], values[start:end])))
            start = end
        return parts

    def serialize(self) -> bytes:
        """Of one at least: what a batch of them gives, by Arrow's method of this name."""
        groups, keys, values = self
        count = len(groups)
        ops, validity, deletes = bytes(count), b"", values.count(None)
        given = cast("Sequence[bytes]", values)
        if deletes:
            ops = bytes([value is None for value in values])
            puts = sum(1 << row for row, value in enumerate(values) if value is not None)
            validity = puts.to_bytes(-(-count // 8), "little")
            given = [value or b"" for value in values]
        numbers = struct.pack(f"<{count}H", *groups)
        buffers = (b"", numbers, b"", ops, b"", *_binary(keys), validity, *_binary(given))
        return _frame().message(count, (0, 0, 0, deletes), buffers)


Changes = pa.RecordBatch | FewChanges
"""Changes of whatever number: in the columns of `change_schema`, or few."""
KeyGroups = Sequence[int] | NDArray[np.uint16]


def key_groups_in(changes: Changes) -> KeyGroups:
    """The key group of each."""
    return changes.groups if isinstance(changes, FewChanges) else numbers_of(changes.column(0))


@cache
def _frame() -> BatchFrame:
    return BatchFrame.of(change_schema(KeyType.BYTES))


def _binary(rows: Sequence[bytes]) -> tuple[bytes, bytes]:
    """A binary column's offsets and data."""
    return struct.pack(f"<{len(rows) + 1}i", *accumulate(map(len, rows), initial=0)), b"".join(rows)
