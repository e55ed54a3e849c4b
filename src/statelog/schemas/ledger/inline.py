"""What a small commit carries in its own ledger record: changes, and messages that leave with it.

`InlineHead` describes both in the head of the record, `Inline` the changes. `Carried` says where those lie, and
`CommitContents` is all that a commit gives readers of changes. The changes are one Arrow record batch of all
partitions, the messages another behind it: the last bytes of the record. The record's checksum covers them. Readers
compare the record's hash with the folded one.

Invariants:
- A decoded commit has the description only. The batches stay in the record until somebody reads them.
- A batch begins at a multiple of 8 bytes, as Arrow requires.
- What an older program must not overlook is a flag, and makes the commit one of a newer version.
"""

import struct
from collections.abc import Container, Iterable
from functools import lru_cache
from typing import NamedTuple

from statelog.errors import Corrupt, UnknownFormat
from statelog.schemas.key_groups import MAX_KEY_GROUPS
from statelog.schemas.ledger.handle import Handle
from statelog.schemas.ledger.place import LastRecord

_HEAD = struct.Struct("<iIIIHHHH")
"""Schema id, changes, bytes of body and of batch, first and last key group, bytes of bitmap, flags."""
_OUTPUTS = struct.Struct("<II")
"""Messages, bytes of their batch."""
_HAS_DUE = 1
_CARRIES_OUTPUTS = 2
_LISTS_OUTPUTS = 4
_FLAGS = _HAS_DUE | _CARRIES_OUTPUTS | _LISTS_OUTPUTS
_ALIGNMENT = 8
_MOST_BITMAP = MAX_KEY_GROUPS // 8


class Inline(NamedTuple):
    """The description of a batch of `size_bytes`.

    `partitions`: the bitmap of its partitions, lowest bit first. `last_key_group` is inclusive.
    `has_due`: whether it has the column of dues.
    """

    value_schema_id: int
    changes: int
    size_bytes: int
    first_key_group: int
    last_key_group: int
    partitions: int
    has_due: bool = False

    def touches(self, partitions: int) -> bool:
        """Return whether it has a change of one of these partitions (a bitmap)."""
        return self.partitions & partitions != 0

    @property
    def bitmap(self) -> bytes:
        """The partitions as bytes, without zeros at the end."""
        return self.partitions.to_bytes(-(-self.partitions.bit_length() // 8), "little")

    def check(self) -> None:
        """Raise Corrupt if its numbers are impossible for changes."""
        is_range = self.first_key_group <= self.last_key_group
        if not (self.changes and self.partitions and self.size_bytes and is_range and self.value_schema_id >= 0):
            raise Corrupt("a commit's changes have impossible numbers", changes=self.changes)


_NO_CHANGES = Inline(0, 0, 0, 0, 0, 0)


class InlineOutputs(NamedTuple):
    """The description of the messages that a commit carries: how many, in a batch of `size_bytes`."""

    messages: int
    size_bytes: int


class InlineHead(NamedTuple):
    """The description of the changes and of the messages that a commit carries; None if it carries none.

    `lists_outputs`: whether its handles list messages, which older programs would drop.
    """

    inline: Inline | None = None
    outputs: InlineOutputs | None = None
    lists_outputs: bool = False

    @property
    def flags(self) -> int:
        """What an older program must not overlook, as bits. Without any, the commit is of an older version."""
        has_due = self.inline is not None and self.inline.has_due
        return _HAS_DUE * has_due | _CARRIES_OUTPUTS * (self.outputs is not None) | _LISTS_OUTPUTS * self.lists_outputs

    @property
    def head_bytes(self) -> int:
        """How many bytes `pack` gives."""
        bitmap = self.inline.bitmap if self.inline else b""
        return _HEAD.size + len(bitmap) + _OUTPUTS.size * (self.outputs is not None)

    def pack(self, body: bytes) -> bytes:
        """Encode it as in a record, in front of the body."""
        schema_id, changes, size_bytes, first, last, _, _ = inline = self.inline or _NO_CHANGES
        bitmap = inline.bitmap
        head = _HEAD.pack(schema_id, changes, len(body), size_bytes, first, last, len(bitmap), self.flags)
        return b"".join((head, bitmap, _OUTPUTS.pack(*self.outputs) if self.outputs else b""))

    def batch_starts(self, body_end: int) -> tuple[int, int, int]:
        """Return where the changes and the messages begin, and where they end, behind a body that ends there."""
        starts, end = list[int](), body_end
        for one in (self.inline, self.outputs):
            starts.append(end + padding(end))
            end = starts[-1] + one.size_bytes if one else end
        return starts[0], starts[1], end

    @classmethod
    def unpack(cls, data: bytes, at: int, *, is_flagged: bool = False) -> "tuple[InlineHead, int, int]":
        """Decode it at an offset. Return it with the start and the end of the body.

        `is_flagged`: whether the commit is of the version with flags. Raises Corrupt, UnknownFormat, struct.error.
        """
        schema_id, changes, body_bytes, size_bytes, first, last, bitmap_bytes, flags = _HEAD.unpack_from(data, at)
        flags = flags if is_flagged else 0
        if flags & ~_FLAGS:
            raise UnknownFormat("a commit carries what this program does not know", flags=flags, known=_FLAGS)
        if is_flagged and not flags:
            raise Corrupt("a commit has none of the flags that its version is for")
        start = at + _HEAD.size + bitmap_bytes
        partitions = int.from_bytes(data[at + _HEAD.size : start], "little")
        inline = Inline(schema_id, changes, size_bytes, first, last, partitions, bool(flags & _HAS_DUE))
        if bitmap_bytes > _MOST_BITMAP or len(inline.bitmap) != bitmap_bytes:
            raise Corrupt("a commit's bitmap of partitions ends with zeros", size_bytes=bitmap_bytes)
        outputs: InlineOutputs | None = None
        if flags & _CARRIES_OUTPUTS:
            outputs = InlineOutputs(*_OUTPUTS.unpack_from(data, start))
            start += _OUTPUTS.size
            if not outputs.messages or not outputs.size_bytes:
                raise Corrupt("a commit's messages have impossible numbers", messages=outputs.messages)
        is_without = inline == _NO_CHANGES and flags & ~_HAS_DUE
        if not is_without:
            inline.check()
        found = cls(None if is_without else inline, outputs, bool(flags & _LISTS_OUTPUTS))
        end = start + body_bytes
        if found.batch_starts(end)[-1] != len(data):
            raise Corrupt("a commit's size differs from its head", size_bytes=len(data))
        return found, start, end


class Carried(NamedTuple):
    """Changes in a ledger record (identified by its hash), from byte `start` of its value on."""

    record: LastRecord
    start: int
    inline: Inline


class CommitContents(NamedTuple):
    """All that a commit makes history: change sets of the data topic, then its inline changes."""

    handles: tuple[Handle, ...]
    carried: Carried | None = None

    @property
    def changes(self) -> int:
        """The number of changes."""
        return sum(one.changes for one in self.handles) + (self.carried.inline.changes if self.carried else 0)

    @property
    def size_bytes(self) -> int:
        """The size of their records."""
        return sum(one.size_bytes for one in self.handles) + (self.carried.inline.size_bytes if self.carried else 0)

    @property
    def chunks(self) -> int:
        """The number of chunks, inline changes counted as one: each has a cost for readers."""
        return sum(one.chunks for one in self.handles) + (self.carried is not None)

    def amounts(self, partitions: Container[int]) -> tuple[int, int]:
        """Return the changes and bytes of these partitions. Inline changes count equally for each of theirs."""
        mine = [entry for handle in self.handles for entry in handle.entries if entry.partition in partitions]
        changes, size_bytes = sum(one.changes for one in mine), sum(one.size_bytes for one in mine)
        if self.carried is None:
            return changes, size_bytes
        inline = self.carried.inline
        shares = (shares_of(inline.partitions, amount) for amount in (inline.changes, inline.size_bytes))
        own = [sum(share for one, share in found.items() if one in partitions) for found in shares]
        return changes + own[0], size_bytes + own[1]


def padding(size_bytes: int) -> int:
    """Return the number of zero bytes between this many bytes and a batch."""
    return -size_bytes % _ALIGNMENT


def bitmap_of(partitions: Iterable[int]) -> int:
    """Return the bitmap of partitions."""
    found = 0
    for partition in partitions:
        found |= 1 << partition
    return found


def shares_of(bitmap: int, total: int) -> dict[int, int]:
    """Divide a total equally over the partitions of a bitmap, in whole numbers."""
    mine = sorted(partitions_in(bitmap))
    ends = [total * (place + 1) // len(mine) for place in range(len(mine))]
    return {partition: end - start for partition, start, end in zip(mine, [0, *ends], ends, strict=False)}


@lru_cache(maxsize=256)
def partitions_in(bitmap: int) -> frozenset[int]:
    """Return the partitions of a bitmap."""
    return frozenset(one for one in range(bitmap.bit_length()) if bitmap >> one & 1)
