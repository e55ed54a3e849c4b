"""Misfits predict from types what the values themselves would later be refused for."""

import datetime
import decimal
import json

import pyarrow as pa
import pytest

from statelog.errors import InvalidChange
from statelog.schemas.values.schema import Reason, misfits, parse_value_schema, struct_from_columns
from statelog.schemas.values.types import ValueType

Avro = str | dict[str, object] | list[object]
TIMESTAMP: Avro = {"type": "long", "logicalType": "timestamp-millis"}
LOCAL: Avro = {"type": "long", "logicalType": "local-timestamp-micros"}
PRICE: Avro = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
COLOUR: Avro = {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}
HASH: Avro = {"type": "fixed", "name": "Hash", "size": 4}
TAGS: Avro = {"type": "array", "items": "int"}
PLACE: Avro = {"type": "record", "name": "Place", "fields": [{"name": "x", "type": "int"}]}
NOW = datetime.datetime(2024, 5, 6, 7, 8, 9, 123_456, datetime.UTC)


def schema_of(avro: Avro, **more: Avro) -> str:
    """Return a record schema with the field `f`, and others with the default null."""
    fields: list[object] = [{"name": "f", "type": avro}]
    fields += [{"name": name, "type": kind} for name, kind in more.items()]
    return json.dumps({"type": "record", "name": "R", "fields": fields})


def root_of(avsc: str) -> ValueType:
    """Return the schema's tree."""
    root = parse_value_schema(avsc, 1).root
    assert root is not None
    return root


@pytest.mark.parametrize(
    ("avro", "column", "reason", "broken"),
    [
        ("long", pa.array([1], pa.int32()), None, None),
        ("int", pa.array([1], pa.int64()), Reason.NARROW, pa.array([1 << 40])),
        ("long", pa.array(["1"]), Reason.TYPE, None),
        ("double", pa.array([1]), Reason.TYPE, None),
        ("double", pa.array([1.0], pa.float32()), None, None),
        ("string", pa.array([b"x"]), Reason.TYPE, None),
        ("string", pa.array(["x"], pa.large_string()), None, None),
        ("string", pa.array(["x", "x"]).dictionary_encode(), None, None),
        ("boolean", pa.array([1]), Reason.TYPE, None),
        (TIMESTAMP, pa.array([NOW.replace(microsecond=0)], pa.timestamp("us", "UTC")), Reason.NARROW, pa.array([NOW])),
        (TIMESTAMP, pa.array([NOW.replace(tzinfo=None)]), Reason.TYPE, None),
        (LOCAL, pa.array([NOW.replace(tzinfo=None)], pa.timestamp("us")), None, None),
        (PRICE, pa.array([decimal.Decimal("1.00")], pa.decimal128(7, 2)), None, None),
        (
            PRICE,
            pa.array([decimal.Decimal("1.000")], pa.decimal128(9, 3)),
            Reason.NARROW,
            pa.array([decimal.Decimal("1.001")], pa.decimal128(9, 3)),
        ),
        (COLOUR, pa.array(["RED"]), Reason.TEXT, pa.array(["GREEN"])),
        (HASH, pa.array([b"abcd"]), Reason.NARROW, pa.array([b"abc"])),
        (TAGS, pa.array([[1]], pa.list_(pa.field("item", pa.int32(), nullable=False))), None, None),
        (TAGS, pa.array([["1"]], pa.list_(pa.field("item", pa.string(), nullable=False))), Reason.TYPE, None),
        (TAGS, pa.array([1]), Reason.TYPE, None),
        (PLACE, pa.array([{"y": 1}], pa.struct([pa.field("y", pa.int32(), nullable=False)])), Reason.UNKNOWN, None),
        (PLACE, pa.array([1]), Reason.TYPE, None),
    ],
    ids=str,
)
def test_types_say_what_values_are_told(
    avro: Avro, column: pa.Array, reason: Reason | None, broken: pa.Array | None
) -> None:
    """A type without misfits passes with every value, and a certain misfit is refused.

    A possible one depends on the value.
    """
    avsc = schema_of(avro)
    field = pa.field("f", column.type, nullable=False)
    found = list(misfits(pa.struct([field]), root_of(avsc), "value", nullable=False))
    assert [one.reason for one in found if one.reason is not Reason.MISSING] == ([] if reason is None else [reason])
    table = pa.table({"f": column})
    schema = parse_value_schema(avsc, 1)
    if found and found[0].is_certain:
        with pytest.raises(InvalidChange):
            struct_from_columns(table, schema)
        return
    struct_from_columns(table, schema)
    if broken is not None:
        with pytest.raises(InvalidChange) as caught:
            struct_from_columns(pa.table({"f": broken}), schema)
        assert caught.value.facts["field"] == found[0].path


def test_nulls_and_fields_are_seen_too() -> None:
    """Misfits include a nullable column for a field without null, and missing fields with and without a default."""
    avsc = schema_of("long", g=["null", "long"], h="int")
    given = pa.struct([pa.field("f", pa.int64()), pa.field("g", pa.int64()), pa.field("extra", pa.int64())])
    found = {(one.path, one.reason) for one in misfits(given, root_of(avsc), "value", nullable=False)}
    assert found == {
        ("value.f", Reason.NULL),
        ("value.extra", Reason.UNKNOWN),
        ("value.g", Reason.MISSING),
        ("value.h", Reason.MISSING),
    } - {("value.g", Reason.MISSING)}
