"""What a table's local database says of itself: docs/protocol-table.md. Pure.

Records in a column family of their own: `table` says which state of which log it is; `place` says how far, and is
written in one batch with the changes that lead there. As long as a part of the state is in a snapshot only, `table` is
of another format, and `missing` says which part; it changes in one batch with the rows that were loaded.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from statelog.errors import Corrupt
from statelog.schemas.descriptor import Descriptor
from statelog.schemas.ledger.place import LastRecord, Place
from statelog.schemas.values.schema import ValueSchema

T = TypeVar("T")

FAMILY = "statelog"
TABLE_KEY = b"table"
PLACE_KEY = b"place"
MISSING_KEY = b"missing"
GONE = b"gone/"
"""Begins the key of a record for each key that was deleted, and that a snapshot below has; behind it is the raw key."""
WRITE = b"write/"
"""Begins the key of a record for the newest write batch, with its number behind it. Each batch puts its own and deletes
that of the one before: if some are missing in the middle, two are left.
"""
_FORMAT = 1
_PARTIAL_FORMAT = 2
"""Of a state that is not whole: who does not know of that takes it for nothing else."""


@dataclass(frozen=True, slots=True)
class StatePlace:
    """How far a state is: its place in the ledger, and how many losses a person had accepted by then."""

    ledger: Place
    losses: int = 0

    @property
    def position(self) -> int:
        """The ledger position."""
        return self.ledger.position

    @property
    def last(self) -> LastRecord | None:
        """The ledger record right below it, if it is known."""
        return self.ledger.last


@dataclass(frozen=True, slots=True)
class TableRecord:
    """Which state of which log: fields by name, as they stand in JSON."""

    fields: dict[str, Any]

    @classmethod
    def of(cls, descriptor: Descriptor, schema: ValueSchema, owned: frozenset[int] | None) -> "TableRecord":
        """That of a table of these key groups, None for all, whose values have this schema."""
        return cls(
            {
                "format": _FORMAT,
                "log": descriptor.name,
                **asdict(descriptor.identity),
                "key_type": descriptor.key_type.value,
                "hash_rule": descriptor.hash_rule.value,
                "key_groups": descriptor.key_groups,
                "owned_key_groups": None if owned is None else sorted(owned),
                "value_schema_id": schema.id,
                "value_schema": schema.avsc,
            }
        )

    @property
    def is_partial(self) -> bool:
        """Whether a part of the state is in a snapshot only."""
        return self.fields.get("format") == _PARTIAL_FORMAT

    def as_partial(self, is_partial: bool) -> "TableRecord":
        """The record of the same state, whole or not."""
        return TableRecord({**self.fields, "format": _PARTIAL_FORMAT if is_partial else _FORMAT})

    def to_json(self) -> bytes:
        """As it stands in the database."""
        return json.dumps(self.fields, sort_keys=True).encode()

    @classmethod
    def from_json(cls, data: bytes | None) -> "TableRecord":
        """Raises Corrupt if there is none."""
        return _parsed(data, "table", cls)


def difference(found: TableRecord, wanted: TableRecord) -> str:
    """How a database is another one than the table needs; empty if it is not."""
    if found.fields.get("format") not in (_FORMAT, _PARTIAL_FORMAT):
        return f"its format is {found.fields.get('format')} and not {_FORMAT}"
    names = [name for name, value in wanted.fields.items() if name != "format" and found.fields.get(name) != value]
    shown = (f"{name} is {found.fields.get(name)!r} and not {wanted.fields[name]!r}" for name in names)
    return "it is of another log, share or value schema: " + ", ".join(shown) if names else ""


@dataclass(frozen=True, slots=True)
class Missing:
    """What of a state is in a snapshot only: these key groups, but for what was changed from a position on."""

    first_position: int
    key_groups: frozenset[int]

    def to_json(self) -> bytes:
        """As it stands in the database."""
        return json.dumps({"first_position": self.first_position, "key_groups": sorted(self.key_groups)}).encode()


NOTHING = Missing(0, frozenset())
"""Is missing of a whole state."""


def missing_from_json(data: bytes | None) -> Missing:
    """Raises Corrupt if it is not there."""
    return _parsed(
        data, "missing", lambda found: Missing(int(found["first_position"]), frozenset(map(int, found["key_groups"])))
    )


def place_to_json(place: StatePlace) -> bytes:
    """As it stands in the database."""
    last = None if place.last is None else [place.last.offset, place.last.hash]
    return json.dumps({"position": place.position, "last": last, "losses": place.losses}).encode()


def place_from_json(data: bytes | None) -> StatePlace:
    """Raises Corrupt if there is none."""

    def made(found: dict[str, Any]) -> StatePlace:
        last = None if found["last"] is None else LastRecord(*(int(number) for number in found["last"]))
        return StatePlace(Place(int(found["position"]), last), int(found["losses"]))

    return _parsed(data, "place", made)


def _parsed(data: bytes | None, name: str, make: Callable[[dict[str, Any]], T]) -> T:
    try:
        return make({**json.loads(data or b"")})
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"the local state has no record `{name}`", problem=repr(error)) from error
