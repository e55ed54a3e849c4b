"""Key order: the row numbers of the last change per key, and of changes sorted by (key group, key).

These are the two dearest steps of a round and of a recovery, so keys of up to 64 bytes are compared as a few uint64
words instead of one by one: a key, left-aligned and zero-padded, read as big-endian numbers, orders like its bytes.
Wider keys go to pyarrow, with the same result.

Invariants:
- The order is the native one: signed longs, bytes, and UTF-8 bytes for strings, within ascending key groups.
- Two rows have equal words if and only if they have equal keys. A hash only finds candidates; words decide.
- Equal rows keep their order.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from statelog.schemas.arrays import binary_column, column_of, numbers_of
from statelog.schemas.key_groups import KeyType

Rows = NDArray[np.int64]
Word = NDArray[np.uint64]

_WIDEST = 64
_SIGN = np.uint64(1 << 63)
_MIX = np.uint64(0x9E3779B97F4A7C15)  # An odd number with well spread bits, as in Fibonacci hashing.


class _Comparable(NamedTuple):
    """Key groups, and the keys as words, the most significant first."""

    key_groups: NDArray[np.uint16]
    words: tuple[Word, ...]

    def take(self, rows: Rows) -> "_Comparable":
        return _Comparable(self.key_groups[rows], tuple(word[rows] for word in self.words))


def last_rows(key_groups: pa.Array, keys: pa.Array) -> Rows:
    """The last row of every (key group, key), ascending."""
    comparable = _comparable(key_groups, keys)
    rows = None if comparable is None else _last_rows(comparable)
    return _last_rows_by_arrow(key_groups, keys) if rows is None else rows


def sorted_rows(key_groups: pa.Array, keys: pa.Array) -> Rows:
    """All rows in the order of (key group, key); equal ones in their own order."""
    comparable = _comparable(key_groups, keys)
    return _sorted_rows_by_arrow(key_groups, keys) if comparable is None else _sorted_rows(comparable)


def sorted_last_rows(key_groups: pa.Array, keys: pa.Array) -> Rows:
    """The last row of every (key group, key), in the order of (key group, key)."""
    comparable = _comparable(key_groups, keys)
    last = None if comparable is None else _last_rows(comparable)
    if comparable is None or last is None:
        last = last_rows(key_groups, keys)
        indices = column_of(last)
        return last[sorted_rows(key_groups.take(indices), keys.take(indices))]
    return last[_sorted_rows(comparable.take(last))]


# ---- keys as words


def _comparable(key_groups: pa.Array, keys: pa.Array) -> _Comparable | None:
    """None if a key is too wide for words."""
    words = _words(keys)
    return None if words is None else _Comparable(numbers_of(key_groups), words)


def _words(keys: pa.Array) -> tuple[Word, ...] | None:
    if len(keys) == 0:
        return ()
    if KeyType.of(keys.type) is KeyType.LONG:
        return (numbers_of(keys).view(np.uint64) ^ _SIGN,)
    column = binary_column(keys)
    lengths = column.lengths
    width = int(lengths.max())
    if width > _WIDEST:
        return None
    words = _words_of(column.padded(width))
    if int(lengths.min()) == width:
        return words
    # Padding makes a key equal to itself with zero bytes behind it; the shorter of the two sorts first.
    return (*words, lengths.astype(np.uint64))


def _words_of(matrix: NDArray[np.uint8]) -> tuple[Word, ...]:
    """The rows of a byte matrix as words, without the bytes that all rows begin with."""
    if matrix.shape[1] == 0:
        return ()
    padded = _padded(matrix)
    varying = np.bitwise_or.reduce(padded ^ padded[0], axis=0).astype(">u8").view(np.uint8)
    if not varying.any():
        return ()
    common = int(np.argmax(varying != 0))
    if common:
        padded = _padded(matrix[:, common:])
    return tuple(padded[:, column].astype(np.uint64) for column in range(padded.shape[1]))


def _padded(matrix: NDArray[np.uint8]) -> NDArray[np.uint64]:
    rows, width = matrix.shape
    if width % 8:
        wider = np.zeros((rows, width + -width % 8), np.uint8)
        wider[:, :width] = matrix
        matrix = wider
    return np.ascontiguousarray(matrix).view(">u8").reshape(rows, -1)


# ---- the last row per key


def _last_rows(comparable: _Comparable) -> Rows | None:
    """None if two keys have one hash, which words of random keys do not do."""
    key_groups, words = comparable
    if len(key_groups) == 0:
        return np.zeros(0, np.int64)
    hashes = key_groups.astype(np.uint64)
    for word in words:
        hashes = ((hashes ^ (hashes >> np.uint64(29))) * _MIX) ^ word
    order = np.argsort(hashes)
    hashes = hashes[order]
    same = _equal_to_previous(hashes)
    if _differs_within(same, key_groups[order]) or any(_differs_within(same, word[order]) for word in words):
        return None
    return np.sort(np.maximum.reduceat(order, np.flatnonzero(~same)))


def _differs_within(same: NDArray[np.bool_], ordered: NDArray[np.uint16] | Word) -> bool:
    """Whether a row differs from the one before it where `same` claims that they are equal."""
    return bool((same[1:] & (ordered[1:] != ordered[:-1])).any())


def _last_rows_by_arrow(key_groups: pa.Array, keys: pa.Array) -> Rows:
    rows = column_of(np.arange(len(keys), dtype=np.int64))
    table = pa.table({"key_group": key_groups, "key": keys, "row": rows})
    last = table.group_by(["key_group", "key"]).aggregate([("row", "max")])
    return np.sort(numbers_of(last.column("row_max")))


# ---- the order of (key group, key)


def _sorted_rows(comparable: _Comparable) -> Rows:
    key_groups, words = comparable
    leading = _leading_word(key_groups, words)
    order = np.argsort(leading)
    same = _equal_to_previous(leading[order])
    for word in (*words, np.arange(len(key_groups), dtype=np.uint64)):
        if not bool(same.any()):
            break
        _settle_ties(order, same, word)
    return order


def _leading_word(key_groups: NDArray[np.uint16], words: tuple[Word, ...]) -> Word:
    """The key group and, below it, as many bits of the first word as there is room for."""
    if len(key_groups) == 0 or not words:
        return key_groups.astype(np.uint64)
    bits = int(key_groups.max()).bit_length()
    if bits == 0:
        return words[0]
    return (key_groups.astype(np.uint64) << np.uint64(64 - bits)) | (words[0] >> np.uint64(bits))


def _settle_ties(order: Rows, same: NDArray[np.bool_], word: Word) -> None:
    """Put each stretch of rows that are the same so far in the order of one more word; both arrays change in place.

    A word is replaced by its rank among the tied rows, which leaves room for the stretch above it: two sorts of plain
    uint64, for which numpy has vector instructions, are several times faster than one sort by two columns.
    """
    tied = np.flatnonzero(same | np.append(same[1:], False))
    stretches = np.cumsum(~same[tied], dtype=np.uint64)
    rows = order[tied]
    by_word = np.argsort(word[rows])
    ranks = np.empty(len(rows), np.uint64)
    ranks[by_word] = np.cumsum(~_equal_to_previous(word[rows[by_word]]), dtype=np.uint64)
    both = (stretches << np.uint64(32)) | ranks
    by_both = np.argsort(both)
    order[tied] = rows[by_both]
    same[tied] = _equal_to_previous(both[by_both])


def _equal_to_previous(word: Word) -> NDArray[np.bool_]:
    return np.concatenate((np.zeros(min(1, len(word)), np.bool_), word[1:] == word[:-1]))


def _sorted_rows_by_arrow(key_groups: pa.Array, keys: pa.Array) -> Rows:
    rows = column_of(np.arange(len(keys), dtype=np.int64))
    table = pa.table({"key_group": key_groups, "key": keys, "row": rows})
    order = [("key_group", "ascending"), ("key", "ascending"), ("row", "ascending")]
    return numbers_of(pc.sort_indices(table, sort_keys=order)).astype(np.int64)
