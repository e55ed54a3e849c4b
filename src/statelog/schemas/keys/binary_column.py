"""The bytes of a binary or string Arrow column as numpy arrays, without a copy.

Never looks at validity: the callers refuse nulls first.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

__all__ = ["BinaryColumn", "binary_column"]


class BinaryColumn(NamedTuple):
    """The rows' bytes end to end, and where each row's bytes start and end: one offset more than rows, the first 0."""

    offsets: NDArray[np.int32]
    data: NDArray[np.uint8]

    @property
    def lengths(self) -> NDArray[np.int32]:
        """The number of bytes of each row."""
        return np.diff(self.offsets)


def binary_column(column: pa.Array) -> BinaryColumn:
    """The parts of a binary or string column (32-bit offsets), of a slice only its own."""
    _, raw_offsets, raw_data = column.buffers()
    if raw_offsets is None or len(column) == 0:
        return BinaryColumn(np.zeros(1, np.int32), np.zeros(0, np.uint8))
    # Counted, because a buffer that came from elsewhere may end with a part of a number.
    offsets = np.frombuffer(memoryview(raw_offsets), np.int32, column.offset + len(column) + 1)[column.offset :]
    if raw_data is None:
        return BinaryColumn(offsets, np.zeros(0, np.uint8))
    data = np.frombuffer(memoryview(raw_data), np.uint8)[offsets[0] : offsets[-1]]
    return BinaryColumn(offsets - offsets[0] if offsets[0] else offsets, data)
