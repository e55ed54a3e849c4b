"""Arrow columns as numpy arrays and back, without a copy, and a fingerprint for each of their rows. Pure.

pyarrow's own conversions do the same, and import pandas at the first of them if it is installed: 0.2 s in every process
of a job, or of a materializer, that has no use for it. Where pandas is loaded already, they are a few microseconds
faster than ours.

Nulls are the callers' to refuse first.
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

_WIDEST = 256  # Longer rows are taken one by one: a call costs little next to so many bytes.
_BLOCK_ROWS = 8192  # Bounds the padded matrix of rows of mixed lengths to 2 MiB, and keeps it near the cache.
_MOST_SHARED = 16  # Columns that may lie in one buffer, which is counted once.
_MOST_COLUMN_BYTES = (1 << 31) - 1
_SMALL_BYTES = 64 << 10
_MANY_ROWS = 2000  # Of fewer Arrow moves all columns in the time of numpy's calls.


class BinaryColumn(NamedTuple):
    """The rows' bytes end to end, and where each row's bytes start and end: one offset more than rows, the first 0."""

    offsets: NDArray[np.int32]
    data: NDArray[np.uint8]

    @property
    def lengths(self) -> NDArray[np.int32]:
        """The number of bytes of each row."""
        return np.diff(self.offsets)

    def blocks(self) -> Iterator["BinaryColumn"]:
        """The rows in parts that cost little to pad: all at once if they are of one length, of at most 256 bytes."""
        lengths = self.lengths
        if lengths[0] <= _WIDEST and bool((lengths == lengths[0]).all()):
            yield self
            return
        for start in range(0, len(lengths), _BLOCK_ROWS):
            offsets = self.offsets[start : start + _BLOCK_ROWS + 1]
            yield BinaryColumn(offsets - offsets[0], self.data[offsets[0] : offsets[-1]])

    def padded(self, width: int, *, at_the_start: bool = False) -> NDArray[np.uint8]:
        """The rows as a matrix of so many bytes each, with zeros behind the shorter ones, or before them."""
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
        """Each row by itself."""
        data = self.data.tobytes()
        return [data[start:end] for start, end in pairwise(self.offsets.tolist())]


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


def numbers_or_zeros(column: pa.Array) -> NDArray[Any]:
    """As `numbers_of`, with zeros for nulls."""
    if column.null_count:
        column = column.fill_null(column_of(np.zeros(1, column.type.to_pandas_dtype()))[0])
    return numbers_of(column)


def column_of_rows(rows: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """A column of Python's own bytes, text or whole numbers, None for a null: `pa.array`, but where that would import
    pandas. Raises pyarrow's ArrowInvalid, ArrowTypeError; OverflowError.
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
        return pa.array(rows, kind)  # Which raises, or cuts it.
    offsets = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(_lengths_of(rows), out=offsets[1:])
    return pa.Array.from_buffers(kind, len(rows), [validity, pa.py_buffer(offsets.data), pa.py_buffer(data)])


def _column_of_integers(rows: Sequence[int | None]) -> pa.Array:
    try:
        return column_of(np.fromiter(cast("Sequence[int]", rows), np.int64, len(rows)))
    except TypeError:  # None is no whole number.
        is_null = np.array([row is None for row in rows], np.bool_)
        return column_of(np.array([row or 0 for row in rows], np.int64), is_null)


def _lengths_of(rows: Sequence[bytes]) -> NDArray[Any]:
    try:
        return np.frombuffer(bytes(map(len, rows)), np.uint8)  # In half the time, if none is longer than 255.
    except ValueError:
        return np.fromiter(map(len, rows), np.int32, len(rows))


_spec_of = cache(find_spec)


def scalar_of(row: Any, kind: pa.DataType) -> pa.Scalar:
    """One such row: `pa.scalar`, but where that would import pandas."""
    return column_of_rows([row], kind)[0]


def taken(batch: pa.RecordBatch, order: NDArray[np.int64]) -> pa.RecordBatch:
    """The rows of a batch in this order."""
    rows = column_of(order)
    if len(order) < _MANY_ROWS:
        return batch.take(rows)
    columns = [moved(column, order) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def gathered(table: pa.Table, rows: NDArray[np.int64], most_bytes: int = 1 << 30) -> pa.Table:
    """Return these rows of a table of any size, in this order. Arrow's own `take` first joins all chunks of a column to
    one array, which ends at 2 GiB.
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
    """The rows of a column in this order."""
    return _moved(column, order) or column.take(column_of(order))


def _moved(column: pa.Array, order: NDArray[np.int64]) -> pa.Array | None:
    """As `take`, in a third of the time, of bytes or text where all rows are of one length; None of all else."""
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
    """Whether the rows of a batch take no more. To count them takes 15 us; what its buffers hold is known at once."""
    return batch.get_total_buffer_size() * _MOST_SHARED <= most_bytes or batch.nbytes <= most_bytes


def about_bytes(batch: pa.RecordBatch) -> int:
    """What the rows of a batch take; of a small one, what its buffers hold."""
    held = batch.get_total_buffer_size()
    return held if held <= _SMALL_BYTES else batch.nbytes


def whole_column(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """A column in one piece, copied only if it is in several."""
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)


def column_of(numbers: NDArray[Any], is_null: NDArray[np.bool_] | None = None) -> pa.Array:
    """An array of integers, floats or booleans as a column, which may keep it alive: it is not to be written to from
    then on. Rows of `is_null` are null.
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
"""128 bits for each key, as two halves: a key's depend on the key alone, and equal keys have equal ones.

Two different keys of a million have the same about once in 10^20 columns. They are not stored anywhere: another version
may compute others.
"""

_MIXES = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))
_ENDS = (np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53))
_HALF, _THIRD = np.uint64(32), np.uint64(29)


def fingerprints(keys: pa.Array, halves: int = 2) -> Fingerprints:
    """Return the fingerprints of a column of keys without nulls, of a key type of ours. About 10 ns for a key of 16
    bytes. With one of the `halves` alone, the second is the first.
    """
    if len(keys) == 0:
        return np.zeros(0, np.uint64), np.zeros(0, np.uint64)
    if pa.types.is_int64(keys.type):
        longs = numbers_of(keys).view(np.uint64)
        return longs, longs  # Exact already.
    pieces = (keys.slice(start, _BLOCK_ROWS) for start in range(0, len(keys), _BLOCK_ROWS))  # Near the cache.
    blocks = [_of_block(block, halves) for piece in pieces for block in binary_column(piece).blocks()]
    return np.concatenate([one for one, _ in blocks]), np.concatenate([two for _, two in blocks])


def mixed_with(state: NDArray[np.uint64], words: NDArray[np.uint64], half: int) -> NDArray[np.uint64]:
    """One half of the fingerprints of rows of several columns: what the columns before gave, and those of the next."""
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
    """Of keys of at most 256 bytes, padded with zeros to whole words; padding counts for nothing."""
    lengths = block.lengths
    width = int(lengths.max(initial=1))
    words = np.ascontiguousarray(block.padded(width + -width % 8)).view(np.uint64)
    first = _mixed(words, lengths, 0)
    return first, _mixed(words, lengths, 1) if halves == 2 else first


def _mixed(words: NDArray[np.uint64], lengths: NDArray[np.int32], half: int) -> NDArray[np.uint64]:
    """One half of the fingerprint. Each step is a bijection of the word that comes in, and of what went before."""
    mix, end = _MIXES[half], _ENDS[half]
    state, shortest = lengths.astype(np.uint64) * end, int(lengths.min(initial=_WIDEST))
    for column in range(words.shape[1]):
        mixed = ((state ^ (state >> _THIRD)) * mix) ^ words[:, column]
        # A word of padding alone is not there for a shorter key.
        state = mixed if shortest > 8 * column else np.where(lengths > 8 * column, mixed, state)
    state = (state ^ (state >> _HALF)) * end
    return state ^ (state >> _THIRD)
