"""What a table's local database says of itself: docs/protocol-table.md. Pure.

Two records in a column family of their own: `table` says which state of which log it is, and never changes; `place`
says how far, and is written in one batch with the changes that lead there.
"""

import json
from dataclasses import dataclass
from typing import Any, cast

from statelog.errors import Corrupt
from statelog.schemas.descriptor import Descriptor
from statelog.schemas.values.schema import ValueSchema
from statelog.storage.ledger_client import LastRecord
from statelog.tables.backends.backend import Place

__all__ = ["FAMILY", "PLACE_KEY", "TABLE_KEY", "TableRecord", "difference", "place_from_json", "place_to_json"]

FAMILY = "statelog"
TABLE_KEY = b"table"
PLACE_KEY = b"place"
_FORMAT = 1


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
                **descriptor.identity.to_datum(),
                "key_type": descriptor.key_type.value,
                "hash_rule": descriptor.hash_rule.value,
                "key_groups": descriptor.key_groups,
                "owned_key_groups": None if owned is None else sorted(owned),
                "value_schema_id": schema.id,
                "value_schema": schema.avsc,
            }
        )

    def to_json(self) -> bytes:
        """As it stands in the database."""
        return json.dumps(self.fields, sort_keys=True).encode()

    @classmethod
    def from_json(cls, data: bytes | None) -> "TableRecord":
        """Raises Corrupt if there is none."""
        return cls(_fields(data, "table"))


def difference(found: TableRecord, wanted: TableRecord) -> str:
    """How a database is another one than the table needs; empty if it is not."""
    if found.fields.get("format") != _FORMAT:
        return f"its format is {found.fields.get('format')} and not {_FORMAT}"
    names = [name for name, value in wanted.fields.items() if found.fields.get(name) != value]
    shown = (f"{name} is {found.fields.get(name)!r} and not {wanted.fields[name]!r}" for name in names)
    return "it is of another log, share or value schema: " + ", ".join(shown) if names else ""


def place_to_json(place: Place) -> bytes:
    """As it stands in the database."""
    last = None if place.last is None else [place.last.offset, place.last.hash]
    return json.dumps({"position": place.position, "last": last, "losses": place.losses}).encode()


def place_from_json(data: bytes | None) -> Place:
    """Raises Corrupt if there is none."""
    found = _fields(data, "place")
    try:
        last = None if found["last"] is None else LastRecord(*(int(number) for number in found["last"]))
        return Place(int(found["position"]), last, int(found["losses"]))
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt("the local state does not say how far it is", problem=repr(error)) from error


def _fields(data: bytes | None, name: str) -> dict[str, Any]:
    try:
        found = json.loads(data or b"")
    except ValueError as error:
        raise Corrupt(f"the local state has no record `{name}`", problem=repr(error)) from error
    if not isinstance(found, dict):
        raise Corrupt(f"the record `{name}` of the local state is no record")
    return cast("dict[str, Any]", found)
