"""`Cursor`: how far a reader has applied a log, to keep in its own checkpoint and to resume from. Pure.

The rows of the state at one ledger position have one order, (key group, key), whatever snapshot they were read from.
So "all key groups below this one, and so many rows of it" is what any later recovery of that position finds again.

Invariants:
- Applied, never fetched: a cursor moves on only with what was handed out.
- To apply something twice is harmless, because the value of a change is the result; to miss something is not. So a
  cursor never runs ahead of what it stands for.
- It holds the ledger record below its position, so a ledger that lost that record refuses it, however it has grown.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa

from statelog.errors import Corrupt, IdentityChanged, UnknownFormat
from statelog.recovery.spill.frame import DONE, Applied
from statelog.schemas.key_groups import MAX_KEY_GROUPS
from statelog.schemas.ledger.place import LogIdentity, Place, shown_id
from statelog.schemas.snapshot.runs import key_groups_of

__all__ = ["Cursor", "rest_of"]

_FORMAT = 2


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
        groups = None if self.key_groups is None else _ranges(self.key_groups)
        place, next_key_group, rows = self.applied
        return json.dumps(
            {
                "format": _FORMAT,
                **asdict(self.identity),
                "place": place.to_json(),
                "applied": [next_key_group, rows],
                "key_groups": groups,
            }
        )

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
    """What `_ranges` was made of. Raises ValueError, before it counts, for ranges that it does not make."""
    groups: set[int] = set()
    last = -1
    for start, end in ranges:
        if not last < start < end <= MAX_KEY_GROUPS:
            raise ValueError(f"from {start} to {end} are no key groups")
        groups.update(range(start, end))
        last = end
    return frozenset(groups)


def _ranges(groups: frozenset[int]) -> list[tuple[int, int]]:
    """The groups as half-open ranges."""
    ranges: list[tuple[int, int]] = []
    for group in sorted(groups):
        if ranges and ranges[-1][1] == group:
            ranges[-1] = (ranges[-1][0], group + 1)
        else:
            ranges.append((group, group + 1))
    return ranges
