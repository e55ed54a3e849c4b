"""Conversion between Arrow columns and numpy arrays, without a copy, and fingerprints of rows. Pure.

pyarrow's own conversions import pandas if it is installed, which takes 0.2 s in every process. Where pandas is loaded
already, they are a few microseconds faster than these.

Callers refuse nulls first.
"""

import sys
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

_WIDEST = 256  # Longer rows are hashed one by one: a call costs little next to so many bytes.
_BLOCK_ROWS = 8192  # Bounds the padded matrix of rows of mixed lengths to 2 MiB, so that it stays in the cache.
_MOST_SHARED = 16  # The most columns that may share one buffer, which Arrow counts once.
_MOST_COLUMN_BYTES = (1 << 31) - 1
_SMALL_BYTES = 64 << 10
_MANY_ROWS = 2000  # For fewer rows, Arrow's `take` of a batch beats numpy's calls.
# `DataType.to_pandas_dtype` is missing without pandas in some versions of PyArrow, 18 to 25 among them.
_DTYPES = {pa.from_numpy_dtype(dtype).id: dtype for dtype in map(np.dtype, "?bhiqBHIQefd")}


class BinaryColumn(NamedTuple):
    """The rows' bytes end to end, and the offset of each row: one offset more than rows, the first is 0."""

    offsets: NDArray[np.int32]
    data: NDArray[np.uint8]

    @property
    def lengths(self) -> NDArray[np.int32]:
        """The number of bytes of each row."""
        return np.diff(self.offsets)

    def blocks(self) -> Iterator["BinaryColumn"]:
        """Yield the rows in parts that cost little to pad: one part if all have one length of at most 256 bytes."""
        lengths = self.lengths
        if lengths[0] <= _WIDEST and bool((lengths == lengths[0]).all()):
            yield self
            return
        for start in range(0, len(lengths), _BLOCK_ROWS):
            offsets = self.offsets[start : start + _BLOCK_ROWS + 1]
            yield BinaryColumn(offsets - offsets[0], self.data[offsets[0] : offsets[-1]])

    def padded(self, width: int, *, at_the_start: bool = False) -> NDArray[np.uint8]:
        """Return the rows as a matrix of `width` bytes each, padded with zeros at the end, or at the start."""
        lengths = self.lengths
        if len(self.data) == width * len(lengths):
            return self.data.reshape(len(lengths), width)
        matrix, places = np.zeros((len(lengths), width), np.uint8), np.arange(width, dtype=np.int32)
        if not at_the_start and bool((lengths == lengths[0]).all()):
            matrix[:, : lengths[0]] = self.data.reshape(len(lengths), lengths[0])  # A third of the time.
        else:
            matrix[places >= (width - lengths)[:, None] if at_the_start else places < lengths[:, None]] = self.data
        return matrix

    def rows(self) -> list[bytes]:
        """Return each row as bytes."""
        data = self.data.tobytes()
        return [data[start:end] for start, end in pairwise(self.offsets.tolist())]


def binary_column(column: pa.Array) -> BinaryColumn:
    """Return the parts of a binary or string column (32-bit offsets). A slice gives only its own rows."""
    _, raw_offsets, raw_data = column.buffers()
    if raw_offsets is None or len(column) == 0:
        return BinaryColumn(np.zeros(1, np.int32), np.zeros(0, np.uint8))
    # With a count, because a foreign buffer may end with a part of a number.
    offsets = np.frombuffer(memoryview(raw_offsets), np.int32, column.offset + len(column) + 1)[column.offset :]
    if raw_data is None:
        return BinaryColumn(offsets, np.zeros(0, np.uint8))
    data = np.frombuffer(memoryview(raw_data), np.uint8)[offsets[0] : offsets[-1]]
    return BinaryColumn(offsets - offsets[0] if offsets[0] else offsets, data)


def numbers_of(column: pa.Array | pa.ChunkedArray) -> NDArray[Any]:
    """Return a column of integers, floats or booleans as a read-only array. Raises pa.ArrowInvalid for a null."""
    column = whole_column(column)
    if column.type == pa.bool_():
        return numbers_of(column.cast(pa.uint8())).view(np.bool_)
    if "pandas" in sys.modules or column.null_count:
        return column.to_numpy()
    _, data = column.buffers()
    if data is None:
        return np.zeros(0, _DTYPES[column.type.id])
    # With a count, because a foreign buffer may end with a part of a number.
    return np.frombuffer(memoryview(data), _DTYPES[column.type.id], column.offset + len(column))[column.offset :]


def numbers_or_zeros(column: pa.Array) -> NDArray[Any]:
    """Return `numbers_of`, with zeros for nulls."""
    if column.null_count:
        column = column.fill_null(column_of(np.zeros(1, _DTYPES[column.type.id]))[0])
    return numbers_of(column)


def column_of_rows(rows: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Make a column of Python's bytes, text or whole numbers (None: null), like `pa.array` without importing pandas.

    Raises pyarrow's ArrowInvalid, ArrowTypeError; OverflowError.
    """
    if "pandas" in sys.modules or not _spec_of("pandas"):
        return pa.array(rows, kind)
    if kind == pa.int64():
        return _column_of_integers(rows)
    if kind == pa.string():
        rows = [row if row is None else row.encode() for row in rows]
    elif kind != pa.binary():
        return pa.array(rows, kind)
    validity = None
    try:
        data = b"".join(rows)
    except TypeError:
        validity = _bits([row is not None for row in rows])
        rows = [b"" if row is None else row for row in rows]
        data = b"".join(rows)
    if len(data) > _MOST_COLUMN_BYTES:
        return pa.array(rows, kind)  # It raises, or makes several chunks.
    offsets = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(_lengths_of(rows), out=offsets[1:])
    return pa.Array.from_buffers(kind, len(rows), [validity, pa.py_buffer(offsets.data), pa.py_buffer(data)])


def _column_of_integers(rows: Sequence[int | None]) -> pa.Array:
    try:
        return column_of(np.fromiter(cast("Sequence[int]", rows), np.int64, len(rows)))
    except TypeError:  # A row is None.
        is_null = np.array([row is None for row in rows], np.bool_)
        return column_of(np.array([row or 0 for row in rows], np.int64), is_null)


def _lengths_of(rows: Sequence[bytes]) -> NDArray[Any]:
    try:
        return np.frombuffer(bytes(map(len, rows)), np.uint8)  # Half the time, if no row is longer than 255.
    except ValueError:
        return np.fromiter(map(len, rows), np.int32, len(rows))


_spec_of = cache(find_spec)


def scalar_of(row: Any, kind: pa.DataType) -> pa.Scalar:
    """Make a scalar, like `pa.scalar` without importing pandas."""
    return column_of_rows([row], kind)[0]


def taken(batch: pa.RecordBatch, order: NDArray[np.int64]) -> pa.RecordBatch:
    """Return the rows of a batch in this order."""
    rows = column_of(order)
    if len(order) < _MANY_ROWS:
        return batch.take(rows)
    columns = [moved(column, order) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def gathered(table: pa.Table, rows: NDArray[np.int64], most_bytes: int = 1 << 30) -> pa.Table:
    """Return these rows of a table of any size, in this order.

    Arrow's own `take` first joins all chunks of a column to one array, which cannot exceed 2 GiB.
    """
    if table.nbytes <= most_bytes:
        return table.take(column_of(rows))
    batches = table.to_batches()
    starts = np.cumsum([0, *(batch.num_rows for batch in batches)])
    which = np.searchsorted(starts, rows, side="right") - 1
    found = [one.take(column_of(rows[which == at] - starts[at])) for at, one in enumerate(batches) if at in which]
    joined = pa.Table.from_batches(found, table.schema)
    if joined.nbytes > most_bytes and len(rows) > 1:
        halves = rows[: len(rows) // 2], rows[len(rows) // 2 :]
        return pa.concat_tables([gathered(table, half, most_bytes) for half in halves])
    return joined.take(column_of(np.argsort(np.argsort(which, kind="stable"))))


def moved(column: pa.Array, order: NDArray[np.int64]) -> pa.Array:
    """Return the rows of a column in this order."""
    return _moved(column, order) or column.take(column_of(order))


def _moved(column: pa.Array, order: NDArray[np.int64]) -> pa.Array | None:
    """Take rows of bytes or text of one length, in a third of the time of Arrow's `take`; None for other columns."""
    if column.null_count or column.type not in (pa.binary(), pa.string()):
        return None
    offsets, data = binary_column(column)
    width, rest = divmod(len(data), len(column))
    if rest or not 0 < width <= _WIDEST or bool((np.diff(offsets) != width).any()):
        return None
    starts = np.arange(len(order) + 1, dtype=np.int32) * np.int32(width)
    moved = data.view(f"V{width}").take(order).view(np.uint8)
    return pa.Array.from_buffers(column.type, len(order), [None, pa.py_buffer(starts.data), pa.py_buffer(moved.data)])


def fits(batch: pa.RecordBatch, most_bytes: int) -> bool:
    """Return whether a batch's rows take at most so many bytes. The buffers' size is known; counting takes 15 us."""
    return batch.get_total_buffer_size() * _MOST_SHARED <= most_bytes or batch.nbytes <= most_bytes


def about_bytes(batch: pa.RecordBatch) -> int:
    """Return the size of a batch's rows; for a small batch, of its buffers."""
    held = batch.get_total_buffer_size()
    return held if held <= _SMALL_BYTES else batch.nbytes


def whole_column(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column in one piece. It is copied only if it has several."""
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)


def column_of(numbers: NDArray[Any], is_null: NDArray[np.bool_] | None = None) -> pa.Array:
    """Make a column of an array of integers, floats or booleans. Rows of `is_null` are null.

    The column may share the array's memory: do not write to the array afterwards.
    """
    if "pandas" in sys.modules:
        return pa.array(numbers, mask=is_null)
    kind = pa.from_numpy_dtype(numbers.dtype)
    data = _bits(numbers) if numbers.dtype == np.bool_ else pa.py_buffer(np.ascontiguousarray(numbers).data)
    return pa.Array.from_buffers(kind, len(numbers), [None if is_null is None else _bits(~is_null), data])


def _bits(rows: NDArray[np.bool_] | Sequence[bool]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(rows, bitorder="little").data)


# ---- fingerprints


Fingerprints = tuple[NDArray[np.uint64], NDArray[np.uint64]]
"""128 bits for each key, as two halves. They depend on the key alone.

Among a million different keys, two share a fingerprint about once in 10^20 columns. Fingerprints are not stored, so
another version may compute others.
"""

_MIXES = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))
_ENDS = (np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53))
_HALF, _THIRD = np.uint64(32), np.uint64(29)


def fingerprints(keys: pa.Array, halves: int = 2) -> Fingerprints:
    """Return the fingerprints of a column of keys (of a `KeyType`, without nulls). About 10 ns for a key of 16 bytes.

    With `halves` 1, the second half equals the first.
    """
    if len(keys) == 0:
        return np.zeros(0, np.uint64), np.zeros(0, np.uint64)
    if pa.types.is_int64(keys.type):
        longs = numbers_of(keys).view(np.uint64)
        return longs, longs  # Exact already.
    pieces = (keys.slice(start, _BLOCK_ROWS) for start in range(0, len(keys), _BLOCK_ROWS))  # They fit in the cache.
    blocks = [_of_block(block, halves) for piece in pieces for block in binary_column(piece).blocks()]
    return np.concatenate([one for one, _ in blocks]), np.concatenate([two for _, two in blocks])


def mixed_with(state: NDArray[np.uint64], words: NDArray[np.uint64], half: int) -> NDArray[np.uint64]:
    """Mix the next column's fingerprints into a half of the rows' fingerprints so far."""
    mixed = (((state ^ (state >> _THIRD)) * _MIXES[half]) ^ words) * _ENDS[half]
    return mixed ^ (mixed >> _HALF)


def _of_block(block: BinaryColumn, halves: int) -> Fingerprints:
    lengths = block.lengths
    is_wide = lengths > _WIDEST
    if not bool(is_wide.any()):
        return _of_narrow(block, halves)
    one, two = np.empty(len(lengths), np.uint64), np.empty(len(lengths), np.uint64)
    narrow = np.concatenate(([0], np.cumsum(lengths[~is_wide], dtype=np.int32)))
    one[~is_wide], two[~is_wide] = _of_narrow(BinaryColumn(narrow, block.data[np.repeat(~is_wide, lengths)]), halves)
    digests = b"".join(xxhash.xxh3_128_digest(row) for row in block.rows() if len(row) > _WIDEST)
    wide = np.frombuffer(digests, np.uint64).reshape(-1, 2)
    one[is_wide], two[is_wide] = wide[:, 0], wide[:, 1]
    return one, two


def _of_narrow(block: BinaryColumn, halves: int) -> Fingerprints:
    """Return the fingerprints of keys of at most 256 bytes. Padding to whole words does not affect them."""
    lengths = block.lengths
    width = int(lengths.max(initial=1))
    words = np.ascontiguousarray(block.padded(width + -width % 8)).view(np.uint64)
    first = _mixed(words, lengths, 0)
    return first, _mixed(words, lengths, 1) if halves == 2 else first


def _mixed(words: NDArray[np.uint64], lengths: NDArray[np.int32], half: int) -> NDArray[np.uint64]:
    """Return one half of the fingerprints. Each step is a bijection of the next word, and of the state before."""
    mix, end = _MIXES[half], _ENDS[half]
    state, shortest = lengths.astype(np.uint64) * end, int(lengths.min(initial=_WIDEST))
    for column in range(words.shape[1]):
        mixed = ((state ^ (state >> _THIRD)) * mix) ^ words[:, column]
        # A word of padding only is skipped.
        state = mixed if shortest > 8 * column else np.where(lengths > 8 * column, mixed, state)
    state = (state ^ (state >> _HALF)) * end
    return state ^ (state >> _THIRD)
