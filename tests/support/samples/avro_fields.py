"""Fields, types and schemas of Avro, made with few words."""

import json
from collections.abc import Mapping
from typing import Any

from statelog.schemas.values.schema import (
    ValueSchema,
    parse_value_schema,
)

__all__ = ["ENUM", "MICROS", "MILLIS", "avsc_of", "cents", "field", "logical", "schema_of"]

MILLIS: Any = {"type": "long", "logicalType": "timestamp-millis"}
MICROS: Any = {"type": "long", "logicalType": "timestamp-micros"}
ENUM: Any = {"type": "enum", "name": "Color", "symbols": ["RED", "GREEN"]}


def cents(precision: int) -> dict[str, object]:
    """Return a field of decimals."""
    return field(logical("bytes", "decimal", precision=precision))


def avsc_of(*fields: Mapping[str, object]) -> str:
    """Return the text of a record schema of these fields."""
    return json.dumps({"type": "record", "name": "Order", "fields": fields})


def field(kind: object, name: str = "f", **more: object) -> dict[str, object]:
    """Return a field."""
    return {"name": name, "type": kind, **more}


def schema_of(*fields: Mapping[str, object], schema_id: int = 1) -> ValueSchema:
    """Return a value schema of these fields."""
    return parse_value_schema(avsc_of(*fields), schema_id)


def logical(base: str, name: str, **more: object) -> dict[str, object]:
    """Return a logical type."""
    return {"type": base, "logicalType": name, **more}
