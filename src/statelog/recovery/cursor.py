"""`Cursor`: how far a reader has applied a log, to keep in its own checkpoint and to resume from. Pure.

The rows of the state at one ledger position have one order, (key group, key), whatever snapshot they were read from.
So "all key groups below this one, and so many rows of it" is what any later recovery of that position finds again.

Invariants:
- Applied, never fetched: a cursor moves on only with what was handed out.
- To apply something twice is harmless, because the value of a change is the result; to miss something is not. So a
  cursor never runs ahead of what it stands for.
- It holds the ledger record below its position, so a ledger that lost that record refuses it, however it has grown.

A stream queues frames: what is applied with some changes (five 64-bit numbers, little-endian, padded to 64 bytes), and
the changes as one Arrow IPC stream, which holds its own schema. So frames of several value schemas can follow each
other.
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
    """What is applied of the state at `place`: the key groups below `next_key_group` whole, and `rows` rows of that
    one.

    Behind the whole state, `rows` counts the changes of the next commit: so many of it are applied, too.
    """

    place: Place
    next_key_group: int = 0
    rows: int = 0

    @classmethod
    def complete(cls, place: Place) -> "Applied":
        """The whole state at a place."""
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
        """With the next rows of the state, which are sorted and at least one."""
        groups = numbers_of(sorted_rows.column("key_group"))
        last = int(groups[-1])
        rows = len(groups) - int(np.searchsorted(groups, last))
        return Applied(self.place, last, rows + (self.rows if last == self.next_key_group else 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """How far a reader has applied a log.

    `key_groups` are those that the reader wants, None for all of them. `applied` says what of the state at which place
    it has. Raises nothing.
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
        """That position, and the ledger record below it."""
        return self.applied.place

    @property
    def is_complete(self) -> bool:
        """Whether the reader has exactly the state at `position`: all of it, and no part of a later commit."""
        return self.applied.is_complete

    def remaining(self, key_groups: int) -> frozenset[int]:
        """The key groups that are not applied whole, in a log with so many."""
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
        """As text, on one line."""
        groups = None if self.key_groups is None else ranges_of(self.key_groups)
        place, *applied = self.applied
        facts = {"place": place.to_json(), "applied": applied, "key_groups": groups}
        return json.dumps({"format": _FORMAT, **asdict(self.identity), **facts})

    @classmethod
    def from_json(cls, text: str) -> "Cursor":
        """From what `to_json` gave. Raises Corrupt, UnknownFormat."""
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
    """The sorted tables of a state, less what is applied, and without empty ones."""
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
    """What is applied, by this format or the first, which knew no record below its position. Raises ValueError."""
    if fields["format"] == 1:
        position, next_key_group, rows = (int(number) for number in fields["place"])
        place = Place.from_json([position])
    else:
        place, (next_key_group, rows) = Place.from_json(fields["place"]), map(int, fields["applied"])
    if rows < 0 or not DONE <= next_key_group <= MAX_KEY_GROUPS:
        raise ValueError("what no state has")
    return Applied(place, next_key_group, rows)


def _groups_of(ranges: Iterable[tuple[int, int]]) -> frozenset[int]:
    """What `ranges_of` was given. Raises ValueError, before it counts, for ranges that it does not make."""
    groups: set[int] = set()
    last = -1
    for start, end in ranges:
        if not last < start < end <= MAX_KEY_GROUPS:
            raise ValueError(f"from {start} to {end} are no key groups")
        groups.update(range(start, end))
        last = end
    return frozenset(groups)


def encode_frame(changes: pa.RecordBatch, applied: Applied) -> memoryview:
    """Changes, and what is applied with them, as bytes."""
    place, next_key_group, rows = applied
    sink = pa.BufferOutputStream()
    sink.write(_APPLIED.pack(place.position, place.last_offset, place.last_hash, next_key_group, rows))
    with pa.ipc.new_stream(sink, changes.schema) as writer:
        writer.write_batch(changes)
    return memoryview(sink.getvalue())


def decode_frame(data: memoryview) -> tuple[pa.Table, Applied]:
    """The inverse; nothing is copied. Raises Corrupt."""
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
