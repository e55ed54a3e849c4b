"""`KeyRule`: the keys of a table: which it takes, their key groups, and their bytes in a store. Pure.

In a log that hashes its keys, a key is the caller's bytes, text or number. If callers name the key group, a key is the
pair (key group, key), as in `Recovery.to_dict`; a table of one such key group has plain keys.

Invariants:
- An admitted key can be logged: it has the log's key type, it fits, and its key group is the table's.
- A key of another type is an error in every method: "no such key" would be a wrong answer.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import index, itemgetter
from typing import Any, cast
from zlib import crc32

import numpy as np
import pyarrow as pa

from statelog.errors import InvalidChange, KeyGroupMismatch, Misuse
from statelog.producer.buffer import Unquick
from statelog.schemas.arrays import column_of, column_of_rows
from statelog.schemas.descriptor import Descriptor, HashRule
from statelog.schemas.key_groups import MAX_KEY_GROUPS, KeyType, key_bytes, ranges_text

_LAST_CHARACTER = "\U0010ffff"
_SURROGATES = range(0xD800, 0xE000)

_CLASSES: Mapping[KeyType, type] = {KeyType.BYTES: bytes, KeyType.STRING: str, KeyType.LONG: int}
_PLAIN: Mapping[KeyType, Callable[[Any], Any]] = {
    KeyType.BYTES: lambda key: bytes(memoryview(key)),
    KeyType.STRING: str.__str__,
    KeyType.LONG: int.__int__,
}
"""Convert a key of a subclass by its value, and not by its own methods (an Enum has another `str`)."""

_PAIR = 2
_LONG_BYTES = 8
_GROUP_BYTES = 2
_MOST_UTF8 = 4


class KeyRule:
    """The keys of one table.

    `owned`: its key groups, None for all; `groups`: the same, ascending.
    `one`: the key group of a table of plain keys, in a log whose callers name it.
    `is_paired`: whether keys are pairs; `quick_class`: keys of this class need no further check.
    """

    def __init__(self, descriptor: Descriptor, owned: frozenset[int] | None, one: int | None = None) -> None:
        self.descriptor, self.owned, self.one = descriptor, owned, one
        self.groups: Sequence[int] = range(descriptor.key_groups) if owned is None else sorted(owned)
        self.is_paired = descriptor.hash_rule is HashRule.CALLER and one is None
        is_plain = descriptor.key_type is KeyType.BYTES and (owned is None or one is not None) and not self.is_paired
        self.quick_class: type = bytes if is_plain else Unquick

    def admit(self, key: object) -> Any:
        """Return the key as the table holds it. Raises InvalidChange, KeyGroupMismatch."""
        if not self.is_paired:
            plain = self._plain(key)
            if self.owned is not None and self.one is None:
                self._check_owned(self.descriptor.key_group_of(plain))
            return plain
        pair = self._pair(key)
        self._check_owned(pair[0])
        return pair

    def bound(self, key: object) -> Any:
        """Return the bound of a range, a key of any key group, as the table has keys. Raises InvalidChange."""
        if key is None or not self.is_paired:
            return None if key is None else self._plain(key)
        return self._pair(key)

    def prefix_bounds(self, prefix: object) -> tuple[Any, Any]:
        """Return the bounds of the keys with a prefix; pairs, if keys are pairs. Raises InvalidChange for numbers."""
        bound = self.bound(prefix)
        plain = self.plain(bound)
        if not isinstance(plain, bytes | str):
            raise InvalidChange("only bytes and text have prefixes", found=type(plain).__name__)
        behind = _prefix_end(plain)
        if self.is_paired:
            return bound, (bound[0] + 1, type(plain)()) if behind is None else (bound[0], behind)
        return bound, behind

    def group_bounds(self, among: Iterable[int], start: Any, end: Any) -> Iterator[tuple[int, Any, Any]]:
        """Yield the key groups that may have keys from `start` on and below `end` (None: no bound), with plain bounds.

        Pairs are in the order of their key groups.
        """
        if not self.is_paired:
            alone = self._group_between(start, end)
            yield from ((group, start, end) for group in among if alone in (None, group))
            return
        first, last = (0 if start is None else start[0]), (MAX_KEY_GROUPS if end is None else end[0])
        for group in among:
            if first <= group <= last:
                below = end[1] if end and group == last else None
                yield group, start[1] if start and group == first else None, below

    def _group_between(self, start: Any, end: Any) -> int | None:
        """Return the key group of all keys between two plain bounds, if they share the prefix that is hashed."""
        length = self.descriptor.prefix_bytes
        if length is None or start is None or len(data := key_bytes(start, self.descriptor.key_type)) < length:
            return None
        alike: bytes | str = data[:length]
        if isinstance(start, str):  # Whole characters; the last may end behind those bytes.
            alike = start[: len(data[: length - 1].decode(errors="ignore")) + 1]
        behind: Any = _prefix_end(alike)
        is_alone = behind is None or (end is not None and end <= behind)
        return self.descriptor.key_group_of(start) if is_alone else None

    def group(self, key: Any) -> int:
        """Return the key group of an admitted key."""
        if self.one is not None:
            return self.one
        return int(key[0]) if self.is_paired else self.descriptor.key_group_of(key)

    def groups_of(self, keys: Sequence[Any]) -> Sequence[int]:
        """Return the key groups of many admitted keys."""
        if self.one is not None:
            return [self.one] * len(keys)
        if self.is_paired:
            return [key[0] for key in keys]
        found: list[int] = self.rows(keys).column("key_group").to_pylist()
        return found

    def rows(self, keys: Sequence[Any]) -> pa.RecordBatch:
        """Make rows of the log (key_group, key) of many admitted keys."""
        columns = self.columns(keys)
        if "key_group" not in columns:
            columns["key_group"] = column_of(self.descriptor.key_groups_of(columns["key"]))
        return pa.RecordBatch.from_pydict(columns)

    def plain(self, key: Any) -> Any:
        """Return an admitted key without its key group."""
        return key[1] if self.is_paired else key

    def size(self, key: Any) -> int:
        """Return an upper bound of an admitted key's bytes in the log, for text up to four times as many."""
        plain = self.plain(key)
        match self.descriptor.key_type:
            case KeyType.BYTES:
                return len(plain)
            case KeyType.STRING:
                return _MOST_UTF8 * len(plain)
            case KeyType.LONG:
                return _LONG_BYTES

    def checked_groups(self, key_groups: Iterable[int]) -> Sequence[int]:
        """Return these key groups, ascending, each once. Raises KeyGroupMismatch if one is not the table's, Misuse."""
        try:
            groups = sorted({index(group) for group in key_groups})
        except TypeError as error:
            raise Misuse(f"key groups are whole numbers: {error}", hint="Call items(key_groups=[0, 1])") from error
        for group in groups:
            self._check_owned(group)
        return groups

    def columns(self, keys: Sequence[Any]) -> dict[str, pa.Array]:
        """Return the columns `key` and, if callers name it, `key_group` of admitted keys."""
        kind = self.descriptor.key_type.arrow_type
        if self.one is not None:
            groups = column_of(np.full(len(keys), self.one, np.uint16))
            return {"key_group": groups, "key": column_of_rows(keys, kind)}
        if self.is_paired:
            groups = column_of(np.array([key[0] for key in keys], np.uint16))
            return {"key_group": groups, "key": column_of_rows([key[1] for key in keys], kind)}
        return {"key": column_of_rows(keys, kind)}

    def placed(self, keys: Sequence[Any]) -> list[tuple[int, Any]]:
        """Return admitted keys with their key groups, in a log whose callers name it."""
        return [(self.one, key) for key in keys] if self.one is not None else list(keys)

    def of_columns(self, rows: pa.RecordBatch) -> list[Any]:
        """Return the keys of rows of the log (key_group, key), as the table holds them."""
        plain: list[Any] = rows.column("key").to_pylist()
        return list(zip(rows.column("key_group").to_pylist(), plain, strict=True)) if self.is_paired else plain

    # ---- bytes that sort

    def raw(self, key: Any) -> bytes:
        """Return the key of a byte-ordered store: the key group, two bytes big-endian, and the key's bytes."""
        return self.group(key).to_bytes(2, "big") + key_bytes(self.plain(key), self.descriptor.key_type)

    def quick_raw(self) -> Callable[[Any], bytes]:
        """Return a faster function `raw` for the keys of this table."""
        if self.is_paired:
            return self.raw
        if self.one is not None:
            return self.raw if self.descriptor.key_type is not KeyType.BYTES else self.one.to_bytes(2, "big").__add__
        count = self.descriptor.key_groups
        prefixes, length = [group.to_bytes(2, "big") for group in range(count)], self.descriptor.prefix_bytes
        match self.descriptor.key_type:
            case KeyType.BYTES:
                return lambda key: prefixes[crc32(key[:length]) % count] + key
            case KeyType.STRING:
                return lambda key: prefixes[crc32((data := key.encode())[:length]) % count] + data
            case KeyType.LONG:
                return lambda key: prefixes[crc32(data := key.to_bytes(8, "big", signed=True)) % count] + data

    def of_raw(self, raw: bytes) -> Any:
        """Return the key of which `raw` was made."""
        data = raw[2:]
        match self.descriptor.key_type:
            case KeyType.BYTES:
                plain: object = data
            case KeyType.STRING:
                plain = data.decode()
            case KeyType.LONG:
                plain = int.from_bytes(data, "big", signed=True)
        return (int.from_bytes(raw[:2], "big"), plain) if self.is_paired else plain

    def quick_of_raw(self) -> Callable[[bytes], Any]:
        """Return a faster function `of_raw` for the keys of this table."""
        is_plain = self.descriptor.key_type is KeyType.BYTES and not self.is_paired
        return itemgetter(slice(_GROUP_BYTES, None)) if is_plain else self.of_raw

    def raw_ranges(self, group: int, start: Any, end: Any) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield the half-open ranges of raw keys between two plain keys of a key group, in key order.

        Raw keys of negative numbers lie behind the others.
        """
        lowest, behind = raw_bounds(group)
        kind = self.descriptor.key_type
        first = lowest if start is None else lowest + key_bytes(start, kind)
        last = behind if end is None else lowest + key_bytes(end, kind)
        if kind is not KeyType.LONG:
            yield first, last
            return
        middle = lowest + (1 << 63).to_bytes(8, "big")
        if start is None or start < 0:
            yield middle if start is None else first, last if end is not None and end < 0 else behind
        if end is None or end > 0:
            yield lowest if start is None or start < 0 else first, middle if end is None else last

    def _pair(self, key: object) -> tuple[int, Any]:
        found = type(key).__name__
        pair = list(cast("tuple[object, ...]", key)) if isinstance(key, tuple) else []
        if len(pair) != _PAIR or type(pair[0]) is not int:
            text = "the callers of this log name the key group, so a key is a pair"
            raise InvalidChange(text, hint="Use table[key_group, key]", found=found)
        return pair[0], self._plain(pair[1])

    def _plain(self, key: object) -> Any:
        kind = self.descriptor.key_type
        if type(key) is _CLASSES[kind] and (type(key) is bytes or (type(key) is str and key.isascii())):
            return key
        key_bytes(key, kind)  # type: ignore[arg-type]  # it refuses other types
        return _PLAIN[kind](key)

    def _check_owned(self, group: int) -> None:
        if not 0 <= group < self.descriptor.key_groups:
            raise KeyGroupMismatch(
                "the log has no such key group", key_group=group, key_groups=self.descriptor.key_groups
            )
        if self.owned is not None and group not in self.owned:
            raise KeyGroupMismatch(
                "the key's key group is not this table's",
                key_group=group,
                owned_key_groups=ranges_text(self.owned),
                hint="Ask the table that owns it, or open this one with more partitions",
            )


def raw_bounds(group: int) -> tuple[bytes, bytes | None]:
    """Return the half-open range of a key group's raw keys; None behind the last possible key group."""
    return group.to_bytes(2, "big"), None if group == MAX_KEY_GROUPS - 1 else (group + 1).to_bytes(2, "big")


def _prefix_end(prefix: bytes | str) -> bytes | str | None:
    """Return the least key behind all that begin with a prefix; None if there is none."""
    if isinstance(prefix, bytes):
        rest = prefix.rstrip(b"\xff")
        return rest[:-1] + bytes([rest[-1] + 1]) if rest else None
    text = prefix.rstrip(_LAST_CHARACTER)
    if not text:
        return None
    following = ord(text[-1]) + 1
    return text[:-1] + chr(_SURROGATES.stop if following in _SURROGATES else following)
