"""The terms of ledger records: which log (`LogIdentity`), where in it (`Place`), and a commit's `Metadata`. Pure.

A topic that is deleted and recreated keeps its name and starts again at offset 0, so every stored offset comes with the
identity. Kafka never reuses a topic id. Every position that is remembered beyond one call is a place: in a ledger that
lost its tail and grew again, the offsets alone look right.

Invariants:
- Two places of one ledger at the same position have the same record below. `log.evidence` compares them.
- Places of earlier formats are a position only, and are compared as a position.
- Metadata that passed `check_metadata` can be encoded, and decodes to an equal mapping of the same types.
"""

import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, cast

import xxhash

from statelog.errors import Corrupt, InvalidMetadata
from statelog.schemas.avro import blob, block, long_bytes

_AS_TOOLS_PRINT = str.maketrans("+/", "-_")
_HASH = re.compile("[0-9a-f]{16}")
_FRACTION = struct.Struct("<d")


def shown_id(found: str) -> str:
    """Return a topic's id as Kafka's own tools print it, in URL-safe base64. Files and records use standard base64."""
    return found.translate(_AS_TOOLS_PRINT)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogIdentity:
    """Cluster id and topic ids, as the cluster prints them."""

    cluster_id: str
    data_topic_id: str
    ledger_topic_id: str

    @classmethod
    def from_fields(cls, found: Mapping[str, Any]) -> "LogIdentity":
        """Read it from a mapping that holds the fields, among others. Raises LookupError."""
        return cls(**{one.name: found[one.name] for one in fields(cls)})


class LastRecord(NamedTuple):
    """A ledger record: its offset, and the xxh3-64 of its value."""

    offset: int
    hash: int

    @classmethod
    def of(cls, offset: int, value: bytes) -> "LastRecord":
        """Make it of a record's offset and value."""
        return cls(offset, xxhash.xxh3_64_intdigest(value))


class Place(NamedTuple):
    """A position, and the last ledger record below it; None if there is none, or it is unknown."""

    position: int
    last: LastRecord | None = None

    @property
    def last_offset(self) -> int:
        """The offset of the record below, as formats store it: -1 if unknown."""
        return -1 if self.last is None else self.last.offset

    @property
    def last_hash(self) -> bytes:
        """The hash of the record below, as formats store it: little-endian, zeros if unknown."""
        return (0 if self.last is None else self.last.hash).to_bytes(8, "little")

    @property
    def numbers(self) -> tuple[int, int, int]:
        """Position, then offset and hash of the record below: -1 and 0 if unknown."""
        last_offset, last_hash = self.last or (-1, 0)
        return self.position, last_offset, last_hash

    def to_fields(self, name: str) -> dict[str, int | bytes]:
        """Return the fields that a record has for a place of this name."""
        return {name: self.position, f"{name}_offset": self.last_offset, f"{name}_hash": self.last_hash}

    @classmethod
    def of_fields(cls, position: int, last_offset: int, last_hash: bytes) -> "Place":
        """Read it from the fields of a record."""
        known = LastRecord(last_offset, int.from_bytes(last_hash, "little"))
        return cls(position, None if last_offset < 0 else known)

    def to_json(self) -> list[int | str]:
        """Return position, offset and hash (in hexadecimal); the position alone if the record is unknown."""
        return [self.position, *(() if self.last is None else (self.last.offset, f"{self.last.hash:016x}"))]

    @classmethod
    def from_json(cls, found: object) -> "Place":
        """Read the output of `to_json`. Raises Corrupt."""
        match found:
            case [int(position)] if not isinstance(position, bool) and position >= 0:
                return cls(position)
            case [int(position), int(offset), str(digits)] if 0 <= offset < position and _HASH.fullmatch(digits):
                return cls(position, LastRecord(offset, int(digits, 16)))
            case _:
                raise Corrupt(f"this is no place in a ledger: {found!r}")


ORIGIN = Place(0)
"""The place below the first record of a ledger."""

Metadata = Mapping[str, str | int | float | bool]
"""A commit's metadata by name: above all, a source position."""


def check_metadata(metadata: object) -> None:
    """Raise InvalidMetadata unless it is Metadata: 64-bit integers, finite floats, and text that is valid Unicode."""
    if not isinstance(metadata, Mapping):
        hint = "Pass a checkpoint by keyword: commit(metadata, checkpoint_id=7)" if type(metadata) is int else ""
        raise InvalidMetadata(f"commit metadata is a mapping, and not {type(metadata).__name__}", hint=hint)
    for name, value in cast("Mapping[object, object]", metadata).items():
        if not (isinstance(name, str) and has_utf8(name)):
            raise InvalidMetadata(f"the names of commit metadata are text, and {name!r} is not", key=repr(name))
        if not _is_taken(value):
            raise InvalidMetadata(f"commit metadata {name!r} cannot hold {value!r}", key=name)


def _is_taken(value: object) -> bool:
    match value:
        case bool():
            return True
        case int():
            return -(1 << 63) <= value < 1 << 63
        case float():
            return math.isfinite(value)
        case str():
            return has_utf8(value)
        case _:
            return False


def metadata_bytes(metadata: Metadata) -> bytes:
    """Encode checked metadata as the map that a commit has."""
    return block([blob(name.encode()) + _value_bytes(value) for name, value in metadata.items()])


def _value_bytes(value: str | float | bool) -> bytes:
    """Encode a member of the union: the index of its type, and the value."""
    match value:
        case str():
            return b"\0" + blob(value.encode())
        case bool():
            return b"\6" + bytes((value,))
        case int():
            return b"\2" + long_bytes(value)
        case float():
            return b"\4" + _FRACTION.pack(value)


def has_utf8(text: str) -> bool:
    """Return whether the text can be encoded. A lone surrogate cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
