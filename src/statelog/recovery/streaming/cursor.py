"""`Cursor`: how far a reader has applied a log, to keep in its own checkpoint and to resume from. Pure.

The rows of the state at one ledger position have one order, (key group, key), whatever snapshot they were read from.
So "all key groups below this one, and so many rows of it" is a place that any later recovery of that position finds.

Invariants:
- Applied, never fetched: a place moves on only with what was handed out.
- To apply something twice is harmless, because the value of a change is the result; to miss something is not. So a
  place never runs ahead of what it stands for.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa

from statelog.errors import Corrupt, IdentityChanged, UnknownFormat
from statelog.recovery.spill.frame import DONE, Place
from statelog.schemas.keys.key_groups import MAX_KEY_GROUPS
from statelog.schemas.ledger.identity import LogIdentity
from statelog.schemas.snapshot.runs import key_groups_of

__all__ = ["Cursor", "rest_of"]

_FORMAT = 1


def rest_of(tables: Iterable[pa.Table], place: Place) -> Iterator[pa.Table]:
    """The sorted tables of a state, less what lies before the place, and without empty ones."""
    skip = place.rows
    for table in tables:
        if place.has_state:
            return
        groups = key_groups_of(table)
        start, end = np.searchsorted(groups, [place.next_key_group, place.next_key_group + 1]).tolist()
        known = min(skip, end - start)
        skip -= known
        rest = table.slice(start + known)
        if rest.num_rows:
            yield rest


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """How far a reader has applied a log.

    `key_groups` are those that the reader wants, None for all of them. Of the state at `place.position` it has what
    `place` says. Raises nothing.
    """

    identity: LogIdentity
    place: Place
    key_groups: frozenset[int] | None = None

    @property
    def position(self) -> int:
        """The ledger position of the state."""
        return self.place.position

    @property
    def is_complete(self) -> bool:
        """Whether the reader has exactly the state at `position`: all of it, and no part of a later commit."""
        return self.place.is_complete

    def remaining(self, key_groups: int) -> frozenset[int]:
        """The key groups that are not applied whole, in a log with so many."""
        if self.place.has_state:
            return frozenset()
        wanted = range(key_groups) if self.key_groups is None else self.key_groups
        return frozenset(group for group in wanted if group >= self.place.next_key_group)

    def check(self, identity: LogIdentity) -> None:
        """Raise IdentityChanged if this was applied from another log."""
        if self.identity != identity:
            raise IdentityChanged(
                "the cursor belongs to another log",
                expected=self.identity.ledger_topic_id,
                found=identity.ledger_topic_id,
                hint="Recover this log from the start, into an empty target",
            )

    def to_json(self) -> str:
        """As text, on one line."""
        groups = None if self.key_groups is None else _ranges(self.key_groups)
        return json.dumps(
            {"format": _FORMAT, **self.identity.to_datum(), "place": list(self.place), "key_groups": groups}
        )

    @classmethod
    def from_json(cls, text: str) -> "Cursor":
        """From what `to_json` gave. Raises Corrupt, UnknownFormat."""
        try:
            fields = cast("dict[str, Any]", json.loads(text))
            if fields["format"] > _FORMAT:
                raise UnknownFormat("the cursor is of a newer format", found=fields["format"], known=_FORMAT)
            position, next_key_group, rows = (int(number) for number in fields["place"])
            if position < 0 or rows < 0 or not DONE <= next_key_group <= MAX_KEY_GROUPS:
                raise ValueError("a place that no state has")  # noqa: TRY301 - one error for all that it may be
            groups = None if fields["key_groups"] is None else _groups_of(fields["key_groups"])
            identity = LogIdentity.from_datum(fields)
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise Corrupt(f"this is no cursor: {error!r}", hint="Give back what Cursor.to_json returned") from error
        return cls(identity=identity, place=Place(position, next_key_group, rows), key_groups=groups)


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
