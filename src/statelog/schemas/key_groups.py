"""Key groups: the key group of a key, the partition of a key group, and the shares of many workers. Pure.

The rule is `crc32(key bytes) % key_groups`. It is part of the log's format and never changes. Key bytes are bytes as
they are, strings in UTF-8, and longs as 8 bytes in big-endian two's complement. A log may hash only the first
`prefix_bytes` of them. `key_group_vectors.json` in this folder holds test vectors for other implementations.

Invariants:
- `key_groups` is between 1 and 65536, so that a key group fits in uint16.
- A partition holds adjacent key groups, and every partition holds at least one (`partitions <= key_groups`).
- The shares of N workers are disjoint, ascend, and together cover everything; their sizes differ by at most one. So
  every process can compute its own, and a start with another number of workers re-assigns everything.
- In a bitmap, bit i (least significant first) stands for the i-th key group of the partition.
"""

import zlib
from collections.abc import Iterable, Sequence, Set
from enum import StrEnum
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from statelog.errors import ConfigError, InvalidChange, KeyGroupMismatch
from statelog.schemas.arrays import BinaryColumn, binary_column, numbers_of
from statelog.schemas.names import check_kind, parse_enum, whole_in

MAX_KEY_GROUPS = 65536
_MAX_PREFIX_BYTES = 256
_WIDEST = 256  # Longer keys go to zlib one by one; its call costs little next to so many bytes.
_FEW = 64  # Up to so many key groups, a loop makes a bitmap faster than numpy.
LONG_MIN, LONG_MAX = -(1 << 63), (1 << 63) - 1
"""The range of a key of type long."""

Crcs = NDArray[np.uint32]


class KeyType(StrEnum):
    """The type of a log's keys, fixed for the life of the log."""

    BYTES = "bytes"
    STRING = "string"
    LONG = "long"

    @property
    def arrow_type(self) -> pa.DataType:
        """The Arrow type of a column of such keys."""
        return _ARROW_TYPES[self]

    @classmethod
    def of(cls, arrow_type: pa.DataType) -> "KeyType":
        """Return the key type whose columns have this Arrow type. Raises InvalidChange if there is none."""
        for key_type, known in _ARROW_TYPES.items():
            if known.equals(arrow_type):
                return key_type
        raise InvalidChange("a key column has a type that is no key type", hint=_CAST_HINT, type=str(arrow_type))


_ARROW_TYPES = {KeyType.BYTES: pa.binary(), KeyType.STRING: pa.string(), KeyType.LONG: pa.int64()}
_CAST_HINT = "Cast the keys to binary, string or int64"


def check_counts(partitions: int, key_groups: int) -> None:
    """Raise ConfigError unless 1 <= partitions <= key_groups <= 65536."""
    check_kind("key_groups", key_groups, int, example="how many the log has, 128 say")
    if not 1 <= partitions <= key_groups <= MAX_KEY_GROUPS:
        message = "partition or key-group count out of range"
        hint = f"Use 1 <= partitions <= key_groups <= {MAX_KEY_GROUPS}"
        raise ConfigError(message, hint=hint, partitions=partitions, key_groups=key_groups)


def check_prefix_bytes(prefix_bytes: object, key_type: KeyType) -> None:
    """Raise ConfigError unless keys of this type can be hashed by so many first bytes; None is all of them."""
    if prefix_bytes is None:
        return
    if type(prefix_bytes) is not int or not 1 <= prefix_bytes <= _MAX_PREFIX_BYTES:
        raise ConfigError(f"prefix_bytes is {prefix_bytes!r} and must be a whole number from 1 to {_MAX_PREFIX_BYTES}")
    if key_type is KeyType.LONG:
        raise ConfigError("keys of type long have no prefixes", hint="Use keys of type string or bytes")


# ---- one key


def key_bytes(key: bytes | str | int, key_type: KeyType) -> bytes:
    """Return a key's canonical bytes. Raises InvalidChange for another type, a lone surrogate, a long over 64 bits."""
    if key_type is KeyType.BYTES and isinstance(key, bytes):
        return key
    if key_type is KeyType.STRING and isinstance(key, str):
        try:
            return key.encode()
        except UnicodeEncodeError as error:
            hint = "Remove lone surrogates, or use keys of type bytes"
            raise InvalidChange("a key is not valid Unicode", hint=hint, key=ascii(key)) from error
    if key_type is KeyType.LONG and isinstance(key, int) and not isinstance(key, bool):
        if LONG_MIN <= key <= LONG_MAX:
            return key.to_bytes(8, "big", signed=True)
        raise InvalidChange("a key does not fit in 64 bits", hint="Use keys of type string or bytes", key=str(key))
    hint = "Convert it, or create the log with another key type"
    raise InvalidChange("a key has the wrong type", hint=hint, found=type(key).__name__, expected=key_type.value)


def key_group_of(
    key: bytes | str | int, key_type: KeyType | str, key_groups: int, prefix_bytes: int | None = None
) -> int:
    """Return the key group of one key. `prefix_bytes`: the log's; only so many first bytes are hashed (None: all).

        >>> key_group_of("alice", "string", 128)
        71

    Raises InvalidChange for a key of another type, ConfigError for a key type or a number that no log has.
    """
    kind = parse_enum(KeyType, "key_type", key_type)
    check_counts(1, key_groups)
    check_prefix_bytes(prefix_bytes, kind)
    return zlib.crc32(key_bytes(key, kind)[:prefix_bytes]) % key_groups


# ---- a column of keys


def key_groups_of(keys: pa.Array, key_groups: int, prefix_bytes: int | None = None) -> NDArray[np.uint16]:
    """Return the key group of every key of a column. Raises InvalidChange for nulls and other types, ConfigError."""
    if prefix_bytes is not None:
        check_prefix_bytes(prefix_bytes, KeyType.of(keys.type))
        keys = pc.binary_slice(keys.cast(pa.binary()), 0, prefix_bytes)
    return (crc32_column(keys) % np.uint32(key_groups)).astype(np.uint16)


def crc32_column(column: pa.Array) -> Crcs:
    """Return zlib's crc32 of the canonical bytes of every key of a binary, string or int64 column.

    A key of 16 bytes takes about 12 ns if all have one length, 60 ns if lengths are mixed. Raises InvalidChange for
    nulls and other types.
    """
    key_type = KeyType.of(column.type)
    if column.null_count:
        raise InvalidChange("a key is null", hint="Every change needs a key", nulls=column.null_count)
    if len(column) == 0:
        return np.zeros(0, np.uint32)
    if key_type is KeyType.LONG:
        longs = numbers_of(column).astype(">i8")
        return _crc32_fixed(longs.view(np.uint8).reshape(-1, 8))
    return np.concatenate([_crc32_of_block(block) for block in binary_column(column).blocks()])


def _crc32_of_block(block: BinaryColumn) -> Crcs:
    lengths = block.lengths
    width = int(lengths.max())
    if width > _WIDEST:
        return np.fromiter(map(zlib.crc32, block.rows()), np.uint32, len(lengths))
    if int(lengths.min()) == width:
        return _crc32_fixed(block.padded(width))
    width += width % 2
    # Keys are right-aligned: a byte's share depends only on its distance from the end, and leading zeros add nothing.
    constants = _zero_crcs()
    crcs: Crcs = _crc32_fixed(block.padded(width, at_the_start=True)) ^ (constants[width] ^ constants[lengths])
    return crcs


def _crc32_fixed(matrix: NDArray[np.uint8]) -> Crcs:
    """Return the crc32 of the rows of a byte matrix.

    crc32 is affine over GF(2): a constant for the row's length, xor one table value for each byte and its distance from
    the end. The tables take two bytes at a time, so a 16-byte key costs eight lookups.
    """
    width = int(matrix.shape[1])
    out = np.full(len(matrix), int(_zero_crcs()[width]), np.uint32)
    odd = width % 2
    if odd:
        out ^= _byte_tables()[width - 1][matrix[:, 0]]
    if width > odd:
        pairs = np.ascontiguousarray(matrix[:, odd:]).view("<u2")
        for column in range(width // 2):
            out ^= _pair_table(width // 2 - 1 - column).take(pairs[:, column])
    return out


@cache
def _byte_tables() -> NDArray[np.uint32]:
    """Return a table whose row d is the share of each byte value at distance d from the end of a key."""
    base = np.fromiter((zlib.crc32(bytes([b])) ^ zlib.crc32(b"\0") for b in range(256)), np.uint32, 256)
    tables = np.empty((_WIDEST, 256), np.uint32)
    tables[0] = base
    for distance in range(1, _WIDEST):
        before = tables[distance - 1]
        tables[distance] = base[before & np.uint32(0xFF)] ^ (before >> np.uint32(8))
    return tables


@cache
def _pair_table(pair: int) -> NDArray[np.uint32]:
    """Return the share of each two bytes (little-endian) at the distances 2 * pair + 1 and 2 * pair. 256 KiB."""
    first, second = _byte_tables()[2 * pair + 1], _byte_tables()[2 * pair]
    table: NDArray[np.uint32] = second[:, None] ^ first[None, :]
    return table.reshape(-1)


@cache
def _zero_crcs() -> NDArray[np.uint32]:
    return np.fromiter((zlib.crc32(bytes(length)) for length in range(_WIDEST + 1)), np.uint32, _WIDEST + 1)


# ---- partitions


def partition_of(key_group: int, partitions: int, key_groups: int) -> int:
    """Return the partition that holds a key group."""
    return key_group * partitions // key_groups


def key_groups_of_partition(partition: int, partitions: int, key_groups: int) -> range:
    """Return the adjacent key groups that a partition holds."""
    return range(-(-partition * key_groups // partitions), -(-(partition + 1) * key_groups // partitions))


@cache
def partition_starts(partitions: int, key_groups: int) -> NDArray[np.int64]:
    """Return the first key group of every partition, and `key_groups` at the end: partitions + 1 numbers."""
    starts = -(-np.arange(partitions + 1, dtype=np.int64) * key_groups // partitions)
    starts.flags.writeable = False  # All callers share it.
    return starts


# ---- bitmaps of the key groups inside one partition


def to_bitmap(key_groups: NDArray[np.uint16] | Sequence[int], first: int) -> bytes:
    """Return the bitmap of these key groups (any order, with repeats) in the partition that starts at `first`.

    It ends with the byte of the highest one, so that equal sets have equal bitmaps. Raises KeyGroupMismatch for a key
    group below `first`.
    """
    if not isinstance(key_groups, np.ndarray):
        return _small_bitmap(set(key_groups), first)
    if len(key_groups) > _FEW:  # Drop adjacent repeats, which sorted changes have.
        key_groups = key_groups[np.flatnonzero(np.append(key_groups[1:] != key_groups[:-1], True))]
    if len(key_groups) <= _FEW:
        return _small_bitmap(set(key_groups.tolist()), first)
    if int(key_groups.min()) < first:
        raise _below(int(key_groups.min()), first)
    present = np.zeros(int(key_groups.max()) - first + 1, np.uint8)
    present[key_groups.astype(np.int64) - first] = 1
    return np.packbits(present, bitorder="little").tobytes()


def _small_bitmap(key_groups: Set[int], first: int) -> bytes:
    """Make the bitmap of few key groups, in a tenth of the time of numpy's calls."""
    if key_groups and min(key_groups) < first:
        raise _below(min(key_groups), first)
    bits = 0
    for key_group in key_groups:
        bits |= 1 << key_group - first
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def _below(key_group: int, first: int) -> KeyGroupMismatch:
    return KeyGroupMismatch("a key group lies below its partition", key_group=key_group, first=first)


def merge_bitmaps(a: bytes, b: bytes) -> bytes:
    """Return the bitmap of the key groups that are in either."""
    merged = int.from_bytes(a, "little") | int.from_bytes(b, "little")
    return merged.to_bytes(max(len(a), len(b)), "little")


def bitmaps_overlap(a: bytes, b: bytes) -> bool:
    """Return whether a key group is in both."""
    return bool(int.from_bytes(a, "little") & int.from_bytes(b, "little"))


# ---- Spark


def spark_expression(column: str, key_type: KeyType | str, key_groups: int, prefix_bytes: int | None = None) -> str:
    """Return the Spark SQL expression (an INT, null for a null key) for the key group of a top-level column of keys.

    Raises ConfigError for a key type or a number that no log has, and for a prefix of longs.
    """
    check_counts(1, key_groups)
    name = "`" + column.replace("`", "``") + "`"
    kind = parse_enum(KeyType, "key_type", key_type)
    check_prefix_bytes(prefix_bytes, kind)
    if kind is KeyType.LONG:
        canonical = f"unhex(lpad(hex(CAST({name} AS BIGINT)), 16, '0'))"
    else:
        canonical = f"CAST({name} AS BINARY)"
    if prefix_bytes is not None:
        canonical = f"substring({canonical}, 1, {prefix_bytes})"
    return f"CAST(pmod(crc32({canonical}), {key_groups}) AS INT)"


# ---- shares


def share(count: int, *, worker: int, workers: int) -> range:
    """Return the part of `range(count)` (partitions, or key groups) that belongs to worker 0, 1, ... or `workers - 1`.

    The same rule maps key groups to partitions. Raises ConfigError for a worker that does not exist.
    """
    if count < 0 or not 0 <= worker < workers:
        hint = "Number the workers from 0 to workers - 1"
        raise ConfigError(f"there is no share for worker {worker} of {workers} in {count}", hint=hint)
    return key_groups_of_partition(worker, workers, count)


def ranges_of(numbers: Iterable[int]) -> list[list[int]]:
    """Return numbers as half-open ranges, ascending."""
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and ranges[-1][1] == number:
            ranges[-1][1] += 1
        else:
            ranges.append([number, number + 1])
    return ranges


def ranges_text(numbers: Iterable[int]) -> str:
    """Write numbers as single ones and half-open ranges, such as "0:4,6"."""
    return ",".join(str(start) if end == start + 1 else f"{start}:{end}" for start, end in ranges_of(numbers))


def read_ranges(text: str, what: str) -> tuple[int, ...]:
    """Parse numbers and ranges, ascending: "0:64,70" and "0-63,70" are both 0 to 63, and 70.

    Raises ConfigError, which calls the text `what`, also for an empty text: it does not mean all.
    """
    found: set[int] = set()
    for part in filter(None, map(str.strip, text.split(","))):
        first_text, mark, last_text = part.partition("-" if "-" in part else ":")
        first, last = whole_in(first_text), whole_in(last_text if mark else first_text)
        if first is None or last is None:
            raise ConfigError(f"{what} is {text!r}", hint="Give numbers and ranges, such as 0:64,70 or 0-63,70")
        end = last + (mark != ":")
        if end > MAX_KEY_GROUPS:
            raise ConfigError(f"{what} is {text!r}", hint=f"The highest number is {MAX_KEY_GROUPS - 1}")
        if end <= first:
            raise ConfigError(f"{what} has an empty range: {part}", hint="Give a larger end: a colon excludes it")
        found.update(range(first, end))
    if not found:
        raise ConfigError(f"{what} is empty", hint="Leave it out for all of them")
    return tuple(sorted(found))
