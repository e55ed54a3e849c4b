"""`Place`: how far a ledger was read, and what lay right below: a position, and the last record below it. Pure.

A position alone says nothing once a ledger has lost its tail and grown again: the offsets look right. So whatever
remembers a position beyond one call remembers a place: cursors, offsets of streams, subscriptions, local directories,
and the witnesses in Opens and chunks.

Invariants:
- Two places of one ledger at the same position have the same record below. `storage.log.witnesses` compares them.
- What was written by earlier formats has a position only. It is compared as a position.
"""

import re
from typing import NamedTuple

import xxhash

from statelog.errors import Corrupt

__all__ = ["ORIGIN", "LastRecord", "Place"]

_NO_OFFSET = -1
_HASH = re.compile("[0-9a-f]{16}")


class LastRecord(NamedTuple):
    """A ledger record: its offset, and the xxh3-64 of its value."""

    offset: int
    hash: int

    @classmethod
    def of(cls, offset: int, value: bytes) -> "LastRecord":
        """That of a record's value."""
        return cls(offset, xxhash.xxh3_64_intdigest(value))


class Place(NamedTuple):
    """A position, and the last ledger record below it; None if that is not known, or there is none."""

    position: int
    last: LastRecord | None = None

    @classmethod
    def named(cls, at_least: "int | Place") -> "Place":
        """What a caller named, as a position or as a place."""
        return cls(at_least) if isinstance(at_least, int) else at_least

    @property
    def last_offset(self) -> int:
        """The offset of the record below, as formats have it: -1 if it is not known."""
        return _NO_OFFSET if self.last is None else self.last.offset

    @property
    def last_hash(self) -> bytes:
        """The hash of the record below, as formats have it: little-endian, zeros if it is not known."""
        return (0 if self.last is None else self.last.hash).to_bytes(8, "little")

    @classmethod
    def of_fields(cls, position: int, last_offset: int, last_hash: bytes) -> "Place":
        """From the fields that formats have."""
        known = LastRecord(last_offset, int.from_bytes(last_hash, "little"))
        return cls(position, None if last_offset < 0 else known)

    def to_json(self) -> list[int | str]:
        """Position, offset and hash, the latter as hexadecimal digits; without the record the position alone."""
        return [self.position, *(() if self.last is None else (self.last.offset, f"{self.last.hash:016x}"))]

    @classmethod
    def from_json(cls, found: object) -> "Place":
        """From what `to_json` gave. Raises Corrupt."""
        match found:
            case [int(position)] if not isinstance(position, bool) and position >= 0:
                return cls(position)
            case [int(position), int(offset), str(digits)] if 0 <= offset < position and _HASH.fullmatch(digits):
                return cls(position, LastRecord(offset, int(digits, 16)))
            case _:
                raise Corrupt(f"this is no place in a ledger: {found!r}")


ORIGIN = Place(0)
"""Below the first record of a ledger."""
