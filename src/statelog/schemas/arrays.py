"""Arrow columns as numpy arrays and back, without a copy, and a fingerprint for each of their rows. Pure.

pyarrow's own conversions do the same, and import pandas at the first of them if it is installed: 0.2 s in every process
of a job, or of a materializer, that has no use for it. Where pandas is loaded already, they are a few microseconds
faster than ours.

Nulls are the callers' to refuse first.
"""

import sys
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray


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


def numbers_of(column: pa.Array | pa.ChunkedArray) -> NDArray[Any]:
    """A column of integers, floats or booleans as an array that may not be written to. Raises pa.ArrowInvalid for a
    null.
    """
    column = whole_column(column)
    if column.type == pa.bool_():
        return numbers_of(column.cast(pa.uint8())).view(np.bool_)
    if "pandas" in sys.modules or column.null_count:
        return column.to_numpy()
    _, data = column.buffers()
    if data is None:
        return np.zeros(0, column.type.to_pandas_dtype())
    # Counted, because a buffer that came from elsewhere may end with a part of a number.
    return np.frombuffer(memoryview(data), column.type.to_pandas_dtype(), column.offset + len(column))[column.offset :]


def whole_column(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """A column in one piece, copied only if it is in several."""
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)


def column_of(numbers: NDArray[Any]) -> pa.Array:
    """An array of integers, floats or booleans as a column, which may keep it alive: it is not to be written to from
    then on.
    """
    if "pandas" in sys.modules:
        return pa.array(numbers)
    if numbers.dtype == np.bool_:
        return column_of(numbers.view(np.uint8)).cast(pa.bool_())
    kind = pa.from_numpy_dtype(numbers.dtype)
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers).data)])


# ---- fingerprints


Fingerprints = tuple[NDArray[np.uint64], NDArray[np.uint64]]
"""128 bits for each key, as two halves: a key's depend on the key alone, and equal keys have equal ones.

Two different keys of a million have the same about once in 10^20 columns. They are not stored anywhere: another version
may compute others.
"""

_WIDEST = 256  # As for key groups: longer keys are hashed one by one, which costs little next to so many bytes.
_BLOCK_ROWS = 8192
_MIXES = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))
_ENDS = (np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53))
_HALF, _THIRD = np.uint64(32), np.uint64(29)


def fingerprints(keys: pa.Array) -> Fingerprints:
    """The fingerprints of a column of keys without nulls, of a key type of ours. About 10 ns for a key of 16 bytes."""
    if len(keys) == 0:
        return np.zeros(0, np.uint64), np.zeros(0, np.uint64)
    if pa.types.is_int64(keys.type):
        longs = numbers_of(keys).view(np.uint64)
        return longs, longs  # Exact already.
    column = binary_column(keys)
    lengths = column.lengths
    width = int(lengths[0])
    if width <= _WIDEST and bool((lengths == width).all()):
        return _of_matrix(column.data.reshape(len(lengths), width), lengths)
    blocks = [_of_block(column, start) for start in range(0, len(lengths), _BLOCK_ROWS)]
    return np.concatenate([one for one, _ in blocks]), np.concatenate([two for _, two in blocks])


def _of_block(column: BinaryColumn, start: int) -> Fingerprints:
    offsets = column.offsets[start : start + _BLOCK_ROWS + 1]
    data, lengths = column.data[offsets[0] : offsets[-1]], np.diff(offsets)
    is_wide = lengths > _WIDEST
    if not bool(is_wide.any()):
        return _of_padded(data, lengths)
    one, two = np.empty(len(lengths), np.uint64), np.empty(len(lengths), np.uint64)
    one[~is_wide], two[~is_wide] = _of_padded(data[np.repeat(~is_wide, lengths)], lengths[~is_wide])
    whole = data.tobytes()
    ends = (offsets[1:] - offsets[0])[is_wide].tolist()
    starts = (offsets[:-1] - offsets[0])[is_wide].tolist()
    digests = b"".join(xxhash.xxh3_128_digest(whole[a:b]) for a, b in zip(starts, ends, strict=True))
    halves = np.frombuffer(digests, np.uint64).reshape(-1, 2)
    one[is_wide], two[is_wide] = halves[:, 0], halves[:, 1]
    return one, two


def _of_padded(data: NDArray[np.uint8], lengths: NDArray[np.int32]) -> Fingerprints:
    matrix = np.zeros((len(lengths), int(lengths.max(initial=0))), np.uint8)
    matrix[np.arange(matrix.shape[1], dtype=np.int32) < lengths[:, None]] = data
    return _of_matrix(matrix, lengths)


def _of_matrix(matrix: NDArray[np.uint8], lengths: NDArray[np.int32]) -> Fingerprints:
    """Of keys of at most 256 bytes, padded with zeros; padding counts for nothing."""
    rows, width = matrix.shape
    if width % 8 or not width:
        wider = np.zeros((rows, max(8, width + -width % 8)), np.uint8)
        wider[:, :width] = matrix
        matrix = wider
    words = np.ascontiguousarray(matrix).view(np.uint64)
    return _mixed(words, lengths, 0), _mixed(words, lengths, 1)


def _mixed(words: NDArray[np.uint64], lengths: NDArray[np.int32], half: int) -> NDArray[np.uint64]:
    """One half of the fingerprint. Each step is a bijection of the word that comes in, and of what went before."""
    mix, end = _MIXES[half], _ENDS[half]
    state = lengths.astype(np.uint64) * end
    for column in range(words.shape[1]):
        used = lengths > 8 * column  # A word of padding alone is not there for a shorter key.
        mixed = ((state ^ (state >> _THIRD)) * mix) ^ words[:, column]
        state = mixed if bool(used.all()) else np.where(used, mixed, state)
    state = (state ^ (state >> _HALF)) * end
    return state ^ (state >> _THIRD)
