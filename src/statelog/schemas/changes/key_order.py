"""Key order: which rows are the last change of their key, and the order of rows by (key group, key).

These are the most expensive steps of a round and of a recovery, so keys are not compared one by one. The bits in which
rows differ are packed into one uint64: key group first, then the key from its first byte on, then the row's number. One
sort of these numbers, with numpy's vector instructions, orders the rows. Bits that all rows share, such as a common
prefix, are left out, so most often all others fit. If not, tied rows are compared by their whole keys, and the few
different ones are sorted by the following bits.

Invariants:
- The order is the native one: signed longs, bytes, and UTF-8 bytes for strings, within ascending key groups.
- Two rows have one key if all their bits or their keys are equal. No hash decides.
- Equal rows stay in their order.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from statelog.schemas.arrays import BinaryColumn, binary_column, column_of, moved, numbers_of
from statelog.schemas.key_groups import KeyType

Rows = NDArray[np.int64]
Word = NDArray[np.uint64]
Mask = NDArray[np.bool_]

_WORD_BITS = 64
_WORD_BYTES = 8
_MOST_BYTES = 256
"""The most bytes to search for differences. Arrow sorts keys with a longer common prefix."""
_MOST_PASSES = 4
"""The most passes over tied rows. Arrow sorts the rest."""
_STRETCH_ROWS = 32
_PIECE_ROWS = 16384
_SIGN = np.uint64(1 << 63)


def is_last_row(key_groups: pa.Array, keys: pa.Array) -> Mask:
    """Return, for each row, whether it is the last of its (key group, key)."""
    is_last = np.zeros(len(keys), np.bool_)
    is_last[sorted_last_rows(key_groups, keys)] = True
    return is_last


def sorted_rows(key_groups: pa.Array, keys: pa.Array) -> Rows:
    """Return all rows in the order of (key group, key). Equal rows stay in their order."""
    return _sorted(numbers_of(key_groups).astype(np.uint64), keys).rows


def sorted_last_rows(key_groups: pa.Array, keys: pa.Array) -> Rows:
    """Return the last row of every (key group, key), in the order of (key group, key)."""
    rows, is_same = _sorted(numbers_of(key_groups).astype(np.uint64), keys)
    return rows.compress(~np.append(is_same, False)[1:])


class _Order(NamedTuple):
    """Rows in order, and whether each has the same key group and key as the one before it."""

    rows: Rows
    is_same: Mask


def _sorted(groups: Word, keys: pa.Array, start: int = 0, passes: int | None = None) -> _Order:
    """Sort rows by a number and their keys. Rows of one number share the first `start` bytes of their keys."""
    if not len(keys):
        return _Order(np.zeros(0, np.int64), np.zeros(0, np.bool_))
    passes = _MOST_PASSES if passes is None else passes
    bits = _Bits(groups, _WORD_BITS - len(groups).bit_length()) if passes else None
    if bits is None or not bits.take(keys, start):
        return _sorted_by_arrow(groups, keys)
    word = bits.word()
    if _is_in_stretches(word):
        rows = np.argsort(word, kind="stable")  # It only merges sorted stretches.
        word = word.take(rows)
    else:
        row_bits = len(word).bit_length()
        word <<= np.uint64(row_bits)
        word |= np.arange(len(word), dtype=np.uint64)
        word.sort()
        rows = (word & np.uint64((1 << row_bits) - 1)).view(np.int64)
        word >>= np.uint64(row_bits)
    found = _Order(rows, _equal_to_previous(word))
    if not bits.are_all:
        _resolve_ties(found, keys, bits.end, passes - 1)
    return found


def _resolve_ties(found: _Order, keys: pa.Array, start: int, passes: int) -> None:
    """Compare the keys of tied rows, and sort the different ones, in place."""
    rows, is_alike = found
    tied = np.flatnonzero(is_alike | np.append(is_alike, False)[1:])
    if not len(tied):
        return
    tied_keys, follows = moved(keys, rows[tied]), is_alike[tied]
    is_same = follows & np.append(False, numbers_of(pc.equal(tied_keys.slice(1), tied_keys.slice(0, len(tied) - 1))))
    is_alike[tied] = is_same
    stretches = np.cumsum(~follows)
    is_mixed = np.zeros(int(stretches[-1]) + 1, np.bool_)
    is_mixed[stretches[follows & ~is_same]] = True
    left = np.flatnonzero(is_mixed[stretches])
    if len(left):
        order, is_same = _sorted(stretches[left].astype(np.uint64), moved(tied_keys, left), start, passes)
        places = tied[left]
        rows[places], is_alike[places] = rows[places][order], is_same


def _is_in_stretches(word: Word) -> bool:
    """Return whether most rows come after the one before them, as in a merge."""
    return int(np.count_nonzero(word[1:] < word[:-1])) <= len(word) // _STRETCH_ROWS


def _equal_to_previous(word: Word) -> Mask:
    return np.append(False, word[1:] == word[:-1])


def _sorted_by_arrow(groups: Word, keys: pa.Array) -> _Order:
    columns = {"group": column_of(groups), "key": keys, "row": column_of(np.arange(len(keys), dtype=np.int64))}
    order = pc.sort_indices(pa.table(columns), sort_keys=[(name, "ascending") for name in columns])
    rows = numbers_of(order).astype(np.int64)
    found = _Order(rows, _equal_to_previous(groups[rows]))
    ordered = keys.take(order)
    found.is_same[1:] &= numbers_of(pc.equal(ordered.slice(1), ordered.slice(0, len(rows) - 1)))
    return found


# ---- the bits in which rows differ


class _Stretch(NamedTuple):
    """Bits of a word: `width` bits from `lowest` up."""

    word: Word
    lowest: int
    width: int


class _Bits:
    """The bits in which rows differ, the most significant first, as far as there is room."""

    def __init__(self, groups: Word, room: int) -> None:
        self._stretches = [_Stretch(groups, 0, int(groups.max()).bit_length())]
        self._room = room - self._stretches[0].width
        self.end = 0
        """Bytes of keys before this one are taken, or equal in rows of one group."""
        self.are_all = False

    def take(self, keys: pa.Array, start: int) -> bool:
        """Take the keys' differing bits from a byte on, as many as fit. Return False if none fit."""
        before = len(self._stretches)
        for first, word in _words_of(keys, start):
            varying = int(np.bitwise_or.reduce(word) ^ np.bitwise_and.reduce(word))
            for byte in range(_WORD_BYTES):
                self.end, lowest = first + byte, 8 * (_WORD_BYTES - 1 - byte)
                if first - start >= _MOST_BYTES or not self._take_byte(word, lowest, varying >> lowest & 255):
                    return len(self._stretches) > before
        self.are_all = True
        return True

    def _take_byte(self, word: Word, lowest: int, bits: int) -> bool:
        """Take the bits of a byte in which rows differ, and the bits between them; False if there is no room."""
        if not bits:
            return True
        low = (bits & -bits).bit_length() - 1
        width = bits.bit_length() - low
        if width > self._room:
            return False
        self._room -= width
        last = self._stretches[-1]
        if last.word is word and last.lowest == lowest + low + width:
            self._stretches[-1] = _Stretch(word, lowest + low, last.width + width)
        else:
            self._stretches.append(_Stretch(word, lowest + low, width))
        return True

    def word(self) -> Word:
        """Return all taken bits as one number for each row."""
        left = sum(one.width for one in self._stretches)
        moves = list[tuple[Word, int, int]]()
        for word, lowest, width in self._stretches:
            left -= width
            moves.append((word, lowest - left, ((1 << width) - 1) << left))
        found = np.empty(len(moves[0][0]), np.uint64)
        # In pieces: reused memory takes half the time of fresh memory.
        for start in range(0, len(found), _PIECE_ROWS):
            piece = slice(start, min(start + _PIECE_ROWS, len(found)))
            found[piece] = _moved(piece, moves)
        return found


def _moved(piece: slice, moves: list[tuple[Word, int, int]]) -> Word:
    """Combine the words of a piece: each shifted right (or left, if negative), then masked."""
    found = np.zeros(piece.stop - piece.start, np.uint64)
    for word, right, mask in moves:
        moved = word[piece] >> np.uint64(right) if right >= 0 else word[piece] << np.uint64(-right)
        moved &= np.uint64(mask)
        found |= moved
    return found


def _words_of(keys: pa.Array, start: int) -> Iterator[tuple[int, Word]]:
    """Yield words that order like the keys from a byte on, each with the byte at which it begins.

    They are big-endian numbers, with zeros behind shorter keys. The last word is the length: a key sorts before the
    same key with zero bytes appended.
    """
    column = _bytes_of(keys)
    lengths = column.lengths
    width = int(lengths.max())
    is_fixed = int(lengths.min()) == width
    word_at = _fixed_words(column, width) if is_fixed else _mixed_words(column, lengths)
    while start < width:
        yield start, word_at(start)
        start += _WORD_BYTES
    if not is_fixed:
        yield start, lengths.astype(np.uint64)


def _bytes_of(keys: pa.Array) -> BinaryColumn:
    if KeyType.of(keys.type) is not KeyType.LONG:
        return binary_column(keys)
    data = (numbers_of(keys).view(np.uint64) ^ _SIGN).byteswap().view(np.uint8)
    return BinaryColumn(np.arange(0, len(data) + 1, _WORD_BYTES, dtype=np.int32), data)


def _fixed_words(column: BinaryColumn, width: int) -> Callable[[int], Word]:
    """Return a function that gives the word at a byte of keys of one length."""
    data, stride = column.data, width
    if width < _WORD_BYTES:
        padded = np.zeros((len(column.offsets) - 1, _WORD_BYTES), np.uint8)
        padded[:, :width] = data.reshape(len(padded), width)
        data, stride = padded.reshape(-1), _WORD_BYTES

    def word_at(start: int) -> Word:
        first = min(start, stride - _WORD_BYTES)
        found = np.ndarray((len(data) // stride,), ">u8", data.data, first, (stride,)).astype(np.uint64)
        return found << np.uint64(8 * (start - first)) if start > first else found

    return word_at


def _mixed_words(column: BinaryColumn, lengths: NDArray[np.int32]) -> Callable[[int], Word]:
    """Return a function that gives the word at a byte of keys of several lengths."""
    data = np.append(column.data, np.zeros(_WORD_BYTES, np.uint8))
    words = np.ndarray((len(data) - _WORD_BYTES + 1,), ">u8", data.data, 0, (1,))
    starts, least = column.offsets[:-1].astype(np.int64), int(lengths.min())

    def word_at(start: int) -> Word:
        found = words[np.minimum(starts + start, len(words) - 1)].astype(np.uint64)
        if start + _WORD_BYTES > least:
            beyond = (8 * (_WORD_BYTES - np.clip(lengths - start, 0, _WORD_BYTES))).astype(np.uint64)
            found = (found >> beyond) << beyond
        return found

    return word_at
