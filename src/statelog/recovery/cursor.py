"""`Cursor`: how far a reader has applied a log, for its own checkpoint and to resume from. Pure.

The rows of the state at one ledger position have one order, (key group, key), whatever snapshot they come from. So any
later recovery of that position finds "all key groups below this one, and so many rows of it" again.

Invariants:
- A cursor counts changes that were returned to the reader, not fetched ones.
- A cursor never runs ahead of the applied changes: missing one is harmful, applying one twice is not, because its value
  is the result.
- It holds the ledger record below its position, so a ledger that lost that record refuses it, however it has grown.

A stream queues frames: an `Applied` (five 64-bit numbers, little-endian, padded to 64 bytes), and changes as one Arrow
IPC stream with its own schema. So frames of several value schemas can follow each other.
"""

import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa

from statelog.errors import Corrupt, IdentityChanged, UnknownFormat
from statelog.schemas.arrays import numbers_of
from statelog.schemas.changes.chunk import DECODING_ERRORS
from statelog.schemas.key_groups import MAX_KEY_GROUPS, ranges_of
from statelog.schemas.ledger.place import LogIdentity, Place, shown_id
from statelog.schemas.snapshot.runs import key_groups_of

_FORMAT = 2
DONE = -1
"""The `next_key_group` once the whole state is applied."""
_APPLIED = struct.Struct("<qq8sqq24x")  # Padded to 64 bytes, so that Arrow finds its buffers aligned.


class Applied(NamedTuple):
    """The applied part of the state at `place`: all key groups below `next_key_group`, and `rows` rows of that one.

    After the whole state, `rows` counts the applied changes of the next commit.
    """

    place: Place
    next_key_group: int = 0
    rows: int = 0

    @classmethod
    def complete(cls, place: Place) -> "Applied":
        """Make it of the whole state at a place."""
        return cls(place, DONE)

    @property
    def has_state(self) -> bool:
        """Whether the whole state is applied."""
        return self.next_key_group == DONE

    @property
    def is_complete(self) -> bool:
        """Whether the whole state is applied, and no part of a later commit."""
        return self.has_state and self.rows == 0

    def after(self, sorted_rows: pa.Table | pa.RecordBatch) -> "Applied":
        """Add the next rows of the state, which are sorted and at least one."""
        groups = numbers_of(sorted_rows.column("key_group"))
        last = int(groups[-1])
        rows = len(groups) - int(np.searchsorted(groups, last))
        return Applied(self.place, last, rows + (self.rows if last == self.next_key_group else 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """How far a reader has applied a log.

    `key_groups`: the wanted key groups, None for all. `applied`: the applied part of the state. Raises nothing.
    """

    identity: LogIdentity
    applied: Applied
    key_groups: frozenset[int] | None = None

    @property
    def position(self) -> int:
        """The ledger position of the state."""
        return self.place.position

    @property
    def place(self) -> Place:
        """The position, and the ledger record below it."""
        return self.applied.place

    @property
    def is_complete(self) -> bool:
        """Whether the reader has exactly the state at `position`: all of it, and no part of a later commit."""
        return self.applied.is_complete

    def remaining(self, key_groups: int) -> frozenset[int]:
        """Return the key groups that are not completely applied, in a log of so many."""
        if self.applied.has_state:
            return frozenset()
        wanted = range(key_groups) if self.key_groups is None else self.key_groups
        return frozenset(group for group in wanted if group >= self.applied.next_key_group)

    def check(self, identity: LogIdentity) -> None:
        """Raise IdentityChanged if this was applied from another log."""
        if self.identity != identity:
            raise IdentityChanged(
                "the cursor belongs to another log",
                expected=shown_id(self.identity.ledger_topic_id),
                found=shown_id(identity.ledger_topic_id),
                hint="Recover this log from the start, into an empty target",
            )

    def to_json(self) -> str:
        """Encode it as text, on one line."""
        groups = None if self.key_groups is None else ranges_of(self.key_groups)
        place, *applied = self.applied
        facts = {"place": place.to_json(), "applied": applied, "key_groups": groups}
        return json.dumps({"format": _FORMAT, **asdict(self.identity), **facts})

    @classmethod
    def from_json(cls, text: str) -> "Cursor":
        """Decode the output of `to_json`. Raises Corrupt, UnknownFormat."""
        try:
            fields = cast("dict[str, Any]", json.loads(text))
            if fields["format"] > _FORMAT:
                raise UnknownFormat("the cursor is of a newer format", found=fields["format"], known=_FORMAT)
            applied = _applied(fields)
            groups = None if fields["key_groups"] is None else _groups_of(fields["key_groups"])
            identity = LogIdentity.from_fields(fields)
        except (Corrupt, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise Corrupt(f"this is no cursor: {error!r}", hint="Give back what Cursor.to_json returned") from error
        return cls(identity=identity, applied=applied, key_groups=groups)


def rest_of(tables: Iterable[pa.Table], applied: Applied) -> Iterator[pa.Table]:
    """Yield the sorted tables of a state without the applied rows, and without empty tables."""
    skip = applied.rows
    for table in tables:
        if applied.has_state:
            return
        groups = key_groups_of(table)
        start, end = np.searchsorted(groups, [applied.next_key_group, applied.next_key_group + 1]).tolist()
        known = min(skip, end - start)
        skip -= known
        rest = table.slice(start + known)
        if rest.num_rows:
            yield rest


def _applied(fields: dict[str, Any]) -> Applied:
    """Read the applied part, also of the first format, which has no record below its position. Raises ValueError."""
    if fields["format"] == 1:
        position, next_key_group, rows = (int(number) for number in fields["place"])
        place = Place.from_json([position])
    else:
        place, (next_key_group, rows) = Place.from_json(fields["place"]), map(int, fields["applied"])
    if rows < 0 or not DONE <= next_key_group <= MAX_KEY_GROUPS:
        raise ValueError("the numbers are impossible for a state")
    return Applied(place, next_key_group, rows)


def _groups_of(ranges: Iterable[tuple[int, int]]) -> frozenset[int]:
    """Invert `ranges_of`. Raises ValueError, before it expands them, for ranges that it does not make."""
    groups: set[int] = set()
    last = -1
    for start, end in ranges:
        if not last < start < end <= MAX_KEY_GROUPS:
            raise ValueError(f"from {start} to {end} are no key groups")
        groups.update(range(start, end))
        last = end
    return frozenset(groups)


def encode_frame(changes: pa.RecordBatch, applied: Applied) -> memoryview:
    """Encode changes, and the applied part once they are applied."""
    place, next_key_group, rows = applied
    sink = pa.BufferOutputStream()
    sink.write(_APPLIED.pack(place.position, place.last_offset, place.last_hash, next_key_group, rows))
    with pa.ipc.new_stream(sink, changes.schema) as writer:
        writer.write_batch(changes)
    return memoryview(sink.getvalue())


def decode_frame(data: memoryview) -> tuple[pa.Table, Applied]:
    """Decode `encode_frame`. Copies nothing. Raises Corrupt."""
    try:
        position, last_offset, last_hash, next_key_group, rows = _APPLIED.unpack_from(data)
        with pa.ipc.open_stream(pa.py_buffer(data).slice(_APPLIED.size)) as reader:
            table = reader.read_all()
        table.validate(full=True)
        if table.num_rows > data.nbytes:
            raise ValueError("more rows than bytes")
    except DECODING_ERRORS as error:
        raise Corrupt(f"a frame does not decode: {error}", size_bytes=data.nbytes) from error
    return table, Applied(Place.of_fields(position, last_offset, last_hash), next_key_group, rows)
