"""What a small commit carries in its own ledger record: changes, and messages that leave with it.

`Inline` and `CommitOutputs` describe both in the head of the record. `Carried` says where the changes lie, and
`CommitContents` is all that a commit gives readers of changes. The changes are one Arrow record batch of all
partitions, the messages another behind it: the last bytes of the record. The record's checksum covers them. Readers
compare the record's hash with the folded one.

Invariants:
- A decoded commit has the description only. The batches stay in the record until somebody reads them.
- A batch begins at a multiple of 8 bytes, as Arrow requires. The messages' one begins where that of the changes ends.
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
_SENDS = _CARRIES_OUTPUTS | _LISTS_OUTPUTS
_FLAGS = _HAS_DUE | _SENDS
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


_NO_CHANGES = Inline(0, 0, 0, 0, 0, 0)


class CommitOutputs(NamedTuple):
    """The messages that leave with a commit.

    `messages`, `size_bytes`: how many it carries, and the size of their batch; 0 if it carries none.
    `is_listed`: whether its handles list some, which older programs would drop.
    """

    messages: int = 0
    size_bytes: int = 0
    is_listed: bool = False


def flags_of(inline: Inline | None, outputs: CommitOutputs | None) -> int:
    """Return what an older program must not overlook, as bits. Without any, the commit is of an older version."""
    flags = _HAS_DUE if inline is not None and inline.has_due else 0
    if outputs is not None:
        flags |= _CARRIES_OUTPUTS * (outputs.messages > 0) | _LISTS_OUTPUTS * outputs.is_listed
    return flags


def inline_bytes(inline: Inline | None, outputs: CommitOutputs | None) -> int:
    """Return how many bytes `pack_inline` gives."""
    bitmap_bytes = 0 if inline is None else -(-inline.partitions.bit_length() // 8)
    return _HEAD.size + bitmap_bytes + (_OUTPUTS.size if outputs is not None and outputs.messages else 0)


def pack_inline(inline: Inline | None, outputs: CommitOutputs | None, body_bytes: int) -> bytes:
    """Encode both as in a record, in front of a body of this size."""
    schema_id, changes, size_bytes, first, last, partitions, _ = inline or _NO_CHANGES
    bitmap_bytes, flags = -(-partitions.bit_length() // 8), flags_of(inline, outputs)
    head = _HEAD.pack(schema_id, changes, body_bytes, size_bytes, first, last, bitmap_bytes, flags)
    head += partitions.to_bytes(bitmap_bytes, "little")
    return head + _OUTPUTS.pack(*outputs[:2]) if outputs is not None and outputs.messages else head


def unpack_inline(
    data: bytes, at: int, *, is_flagged: bool = False
) -> tuple[Inline | None, CommitOutputs | None, int, int]:
    """Decode both at an offset. Return them with the start and the end of the body.

    `is_flagged`: whether the commit is of the version with flags. Raises Corrupt, UnknownFormat, struct.error.
    """
    schema_id, changes, body_bytes, size_bytes, first, last, bitmap_bytes, flags = _HEAD.unpack_from(data, at)
    if not is_flagged:
        flags = 0
    elif flags & ~_FLAGS:
        raise UnknownFormat("a commit carries what this program does not know", flags=flags, known=_FLAGS)
    elif not flags:
        raise Corrupt("a commit has none of the flags that its version is for")
    start = at + _HEAD.size + bitmap_bytes
    partitions = int.from_bytes(data[at + _HEAD.size : start], "little")
    outputs = None
    if flags & _SENDS:
        outputs, start = _unpack_outputs(data, start, flags)
    end = start + body_bytes
    carried_bytes = size_bytes if outputs is None else size_bytes + outputs.size_bytes
    if end + (-end % _ALIGNMENT if carried_bytes else 0) + carried_bytes != len(data) or bitmap_bytes > _MOST_BITMAP:
        raise Corrupt("a commit's size differs from its head", size_bytes=len(data))
    found = Inline(schema_id, changes, size_bytes, first, last, partitions, flags & _HAS_DUE != 0)
    if outputs is not None and found == _NO_CHANGES and not bitmap_bytes:
        return None, outputs, start, end
    if not changes or not partitions or not size_bytes or first > last or schema_id < 0:
        raise Corrupt("a commit's changes have impossible numbers", changes=changes)
    if outputs is not None and size_bytes % _ALIGNMENT:
        raise Corrupt("a commit's messages do not begin at a multiple of 8 bytes", size_bytes=size_bytes)
    if -(-partitions.bit_length() // 8) != bitmap_bytes:
        raise Corrupt("a commit's bitmap of partitions ends with zeros", size_bytes=bitmap_bytes)
    return found, outputs, start, end


def _unpack_outputs(data: bytes, at: int, flags: int) -> tuple[CommitOutputs, int]:
    """Decode the messages' description, if there is one. Return it with the start of what follows."""
    is_listed = flags & _LISTS_OUTPUTS != 0
    if not flags & _CARRIES_OUTPUTS:
        return CommitOutputs(is_listed=is_listed), at
    messages, size_bytes = _OUTPUTS.unpack_from(data, at)
    if not messages or not size_bytes:
        raise Corrupt("a commit's messages have impossible numbers", messages=messages)
    return CommitOutputs(messages, size_bytes, is_listed), at + _OUTPUTS.size


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
