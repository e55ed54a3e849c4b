"""Key order: which rows are the last change of their key, and the order of rows by (key group, key).

These are the two dearest steps of a round and of a recovery, so keys of up to 64 bytes are compared as a few uint64
words instead of one by one: a key, left-aligned and zero-padded, read as big-endian numbers, orders like its bytes.
Bits that all rows share say nothing of their order and are left out. Most often the rest fits into one word, key group
included, and one sort of plain numbers is all that there is to do; where it does not, and no order is wanted, a table
of hashes tells the last rows without one. Wider keys go to pyarrow, with the same result.

Invariants:
- The order is the native one: signed longs, bytes, and UTF-8 bytes for strings, within ascending key groups.
- Two rows have equal words if and only if they have equal keys. A hash only finds candidates; words decide.
- Equal rows keep their order.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from statelog.schemas.arrays import binary_column, column_of, numbers_of
from statelog.schemas.key_groups import KeyType

Rows = NDArray[np.int64]
Word = NDArray[np.uint64]
Words = tuple[Word, ...]
Mask = NDArray[np.bool_]

_WIDEST = 64
_WORD_BITS = 64
_STRETCH_ROWS = 32
_ROUNDS = 8
_PIECE_ROWS = 16384
_MIX = np.uint64(0x9E3779B97F4A7C15)  # An odd number with well spread bits, as in Fibonacci hashing.
_SIGN = np.uint64(1 << 63)


def is_last_row(key_groups: pa.Array, keys: pa.Array) -> Mask:
    """Whether a row is the last of its (key group, key)."""
    words = _words(key_groups, keys)
    if words is None:
        last = _last_rows_by_arrow(key_groups, keys)
    elif len(words) == 1 and _has_room(words[0]):
        last = _last_rows_of_one(words[0])
    else:
        return _is_last(words)
    is_last = np.zeros(len(keys), np.bool_)
    is_last[last] = True
    return is_last


def sorted_rows(key_groups: pa.Array, keys: pa.Array) -> Rows:
    """All rows in the order of (key group, key); equal ones in their own order."""
    words = _words(key_groups, keys)
    return _sorted_rows_by_arrow(key_groups, keys) if words is None else _sorted_rows(words)


def sorted_last_rows(key_groups: pa.Array, keys: pa.Array) -> Rows:
    """The last row of every (key group, key), in the order of (key group, key)."""
    words = _words(key_groups, keys)
    if words is None:
        last = _last_rows_by_arrow(key_groups, keys)
        indices = column_of(last)
        return last[_sorted_rows_by_arrow(key_groups.take(indices), keys.take(indices))]
    if len(words) == 1:
        return _last_rows_of_one(words[0])
    merged = _merged_last_rows(words)
    if merged is not None:
        return merged
    last = np.flatnonzero(_is_last(words))
    return last[_sorted_rows(tuple(word[last] for word in words))]


# ---- key groups and keys as words


def _words(key_groups: pa.Array, keys: pa.Array) -> Words | None:
    """One or more, the most significant first; None if a key is too wide for words.

    The first one holds what it can of the bits in which rows differ. If that is all of them, there are no others.
    """
    key_words = _words_of(keys)
    if key_words is None:
        return None
    words = (numbers_of(key_groups).astype(np.uint64), *key_words)
    varying = [_varying(word) for word in words]
    if sum(bits.bit_count() for bits in varying) <= _WORD_BITS:
        return (_leading_word(words, varying),)
    # Whole bytes, because every stretch of bits takes its own passes.
    leading = _leading_word(words, [_whole_bytes(bits) for bits in varying])
    return (leading, *(word for word, bits in zip(words[1:], varying[1:], strict=True) if bits))


def _words_of(keys: pa.Array) -> Words | None:
    if len(keys) == 0:
        return ()
    if KeyType.of(keys.type) is KeyType.LONG:
        return (numbers_of(keys).view(np.uint64) ^ _SIGN,)
    column = binary_column(keys)
    lengths = column.lengths
    width = int(lengths.max())
    if width > _WIDEST:
        return None
    matrix = column.padded(width)
    if width % 8:
        matrix = np.pad(matrix, ((0, 0), (0, -width % 8)))
    big_endian = np.ascontiguousarray(matrix).view(">u8")
    words = tuple(big_endian[:, column].astype(np.uint64) for column in range(big_endian.shape[1]))
    # Padding makes a key equal to itself with zero bytes behind it; the shorter of the two sorts first.
    return (*words, lengths.astype(np.uint64))


def _varying(word: Word) -> int:
    return int(np.bitwise_or.reduce(word) ^ np.bitwise_and.reduce(word)) if len(word) else 0


def _whole_bytes(bits: int) -> int:
    return int.from_bytes(bytes(255 if byte else 0 for byte in bits.to_bytes(8, "big")), "big")


def _pieces(count: int) -> list[slice]:
    """Rows by the piece: to use memory that is there again takes half the time of memory that is new."""
    return [slice(start, min(start + _PIECE_ROWS, count)) for start in range(0, count, _PIECE_ROWS)]


def _leading_word(words: Words, kept: list[int]) -> Word:
    """The bits to keep of each word, one after the other, as far as there is room."""
    stretches = [(word, *one) for word, bits in zip(words, kept, strict=True) for one in _stretches(bits)]
    room = min(_WORD_BITS, sum(width for _, _, width in stretches))
    moves: list[tuple[Word, int, int]] = []
    for word, lowest, width in stretches:
        if not room:
            break
        taken = min(width, room)
        room -= taken
        moves.append((word, lowest + width - taken - room, (1 << taken) - 1 << room))
    leading = np.empty(len(words[0]), np.uint64)
    for piece in _pieces(len(leading)):
        leading[piece] = _moved(piece, moves)
    return leading


def _moved(piece: slice, moves: Sequence[tuple[Word, int, int]]) -> Word:
    """Of each word its bits, so far to the right, or to the left, and of these the ones of a mask."""
    found = np.zeros(piece.stop - piece.start, np.uint64)
    for word, right, mask in moves:
        moved = word[piece] >> np.uint64(right) if right >= 0 else word[piece] << np.uint64(-right)
        moved &= np.uint64(mask)
        found |= moved
    return found


def _stretches(bits: int) -> list[tuple[int, int]]:
    """Where bits are set: the lowest and how many, the most significant first."""
    found: list[tuple[int, int]] = []
    while bits:
        end = bits.bit_length()
        lowest = (~bits & ((1 << end) - 1)).bit_length()
        found.append((lowest, end - lowest))
        bits &= (1 << lowest) - 1
    return found


# ---- the last row per key


def _is_last(words: Words) -> Mask:
    """Whether a row is the last of its key. To sort them all, by more than one word, takes three times as long."""
    is_last, left = _settled(words, 0)
    for seed in range(1, _ROUNDS):
        if not len(left):
            return is_last
        is_last[left], others = _settled(tuple(word[left] for word in words), seed)
        left = left[others]
    words = tuple(word[left] for word in words)
    order = _sorted_rows(words)  # Somebody has chosen keys that meet in every round.
    same = reduce(np.logical_and, (_equal_to_next(word[order]) for word in words))
    is_last[left[order[~same]]] = True
    return is_last


def _settled(words: Words, seed: int) -> tuple[Mask, Rows]:
    """Whether a row is the last of its key, and the rows of which that is not known yet: their slot in a table of
    hashes is taken by the last row of another key.
    """
    count = len(words[0])
    bits = count.bit_length() + 1
    newest, is_last, is_left = np.full(1 << bits, -1, np.int32), np.empty(count, np.bool_), np.empty(count, np.bool_)
    pieces = _pieces(count)
    for piece in pieces:
        np.maximum.at(newest, _slots(words, piece, seed, bits), np.arange(piece.start, piece.stop, dtype=np.int32))
    for piece in pieces:
        rows = newest.take(_slots(words, piece, seed, bits))
        is_last[piece] = rows == np.arange(piece.start, piece.stop)
        is_left[piece] = reduce(np.logical_or, (word.take(rows) != word[piece] for word in words))
    return is_last, np.flatnonzero(is_left)


def _slots(words: Words, piece: slice, seed: int, bits: int) -> Rows:
    hashes = np.full(piece.stop - piece.start, seed, np.uint64)
    for word in words:
        hashes = hashes ^ word[piece]
        hashes = (hashes ^ (hashes >> np.uint64(29))) * _MIX
    return (hashes >> np.uint64(_WORD_BITS - bits)).view(np.int64)


def _last_rows_of_one(word: Word) -> Rows:
    row_bits = len(word).bit_length()
    if not len(word):
        return np.zeros(0, np.int64)
    if not _has_room(word):
        order = _order(word)
        return np.maximum.reduceat(order, np.flatnonzero(~_equal_to_previous(word.take(order))))
    # Where a row's number fits beside its word, plain numbers are sorted, which takes two thirds of an argsort's time.
    both = word << np.uint64(row_bits)
    both |= np.arange(len(word), dtype=np.uint64)
    both.sort(kind=_kind(word))
    last = both.compress(~_equal_to_next(both >> np.uint64(row_bits)))  # An index of booleans takes five times as long.
    last &= np.uint64((1 << row_bits) - 1)
    return last.view(np.int64)


def _has_room(word: Word) -> bool:
    """Whether a row's number fits beside its word: then to sort them takes two thirds of a table of hashes."""
    return int(word.max(initial=0)).bit_length() + len(word).bit_length() <= _WORD_BITS


def _order(word: Word) -> Rows:
    return np.argsort(word, kind=_kind(word))


def _kind(word: Word) -> Literal["stable"] | None:
    """The stable sort only merges what is sorted in stretches; all else is faster by numpy's vector instructions."""
    return "stable" if _is_in_stretches(word) else None


def _is_in_stretches(word: Word) -> bool:
    """Whether most rows come after the one before them, as in a merge."""
    return int(np.count_nonzero(word[1:] < word[:-1])) <= len(word) // _STRETCH_ROWS


def _merged_last_rows(words: Words) -> Rows | None:
    """The last rows in order, if rows come in stretches that the first word alone puts into order; None if not."""
    if not _is_in_stretches(words[0]):
        return None
    order = _order(words[0])
    same = np.ones(max(0, len(order) - 1), np.bool_)
    for word in words:
        ordered = word.take(order)
        if bool((same & (ordered[1:] < ordered[:-1])).any()):
            return None
        same &= ordered[1:] == ordered[:-1]
    return order.compress(~np.append(same, False))


def _last_rows_by_arrow(key_groups: pa.Array, keys: pa.Array) -> Rows:
    numbers = numbers_of(keys.dictionary_encode().indices).astype(np.uint64)
    return _last_rows_of_one((numbers_of(key_groups).astype(np.uint64) << np.uint64(32)) | numbers)


# ---- the order of (key group, key)


def _sorted_rows(words: Words) -> Rows:
    order = _order(words[0])
    same = _equal_to_previous(words[0].take(order))
    for word in (*words[1:], np.arange(len(order), dtype=np.uint64)):
        if not bool(same.any()):
            break
        _settle_ties(order, same, word)
    return order


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


def _equal_to_next(word: Word) -> NDArray[np.bool_]:
    return np.concatenate((word[1:] == word[:-1], np.zeros(min(1, len(word)), np.bool_)))


def _equal_to_previous(word: Word) -> NDArray[np.bool_]:
    return np.concatenate((np.zeros(min(1, len(word)), np.bool_), word[1:] == word[:-1]))


def _sorted_rows_by_arrow(key_groups: pa.Array, keys: pa.Array) -> Rows:
    rows = column_of(np.arange(len(keys), dtype=np.int64))
    table = pa.table({"key_group": key_groups, "key": keys, "row": rows})
    order = [("key_group", "ascending"), ("key", "ascending"), ("row", "ascending")]
    return numbers_of(pc.sort_indices(table, sort_keys=order)).astype(np.int64)
