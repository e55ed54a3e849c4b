"""Fingerprints: 128 bits for each key of a column, equal for equal keys, for whoever remembers keys by the million.

Two different keys have one fingerprint about once in 10^20 times a million keys. They are not stored anywhere: another
version may compute others.

Invariant: a key's fingerprint depends on the key alone, not on its neighbours in the column.
"""

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from statelog.schemas.keys.binary_column import BinaryColumn, binary_column
from statelog.schemas.keys.key_groups import KeyType
from statelog.schemas.numbers import numbers_of

__all__ = ["Fingerprints", "fingerprints"]

Fingerprints = tuple[NDArray[np.uint64], NDArray[np.uint64]]
"""The two halves, a row for each key."""

_WIDEST = 256  # As for key groups: longer keys are hashed one by one, which costs little next to so many bytes.
_BLOCK_ROWS = 8192
_MIXES = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))
_ENDS = (np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53))
_HALF, _THIRD = np.uint64(32), np.uint64(29)


def fingerprints(keys: pa.Array) -> Fingerprints:
    """The fingerprints of a column of keys without nulls, of a key type of ours. About 10 ns for a key of 16 bytes."""
    if len(keys) == 0:
        return np.zeros(0, np.uint64), np.zeros(0, np.uint64)
    if KeyType.of(keys.type) is KeyType.LONG:
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
