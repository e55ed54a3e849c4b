"""Value schemas: what is accepted, what is refused and with which words, and values in and out of Arrow."""

import datetime
import decimal
import io
import json
import pickle
import uuid
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_reader

from statelog.errors import ConfigError, IncompatibleSchema, InvalidChange
from statelog.schemas.values.avro import avro_values
from statelog.schemas.values.schema import (
    OPAQUE,
    ValueSchema,
    avsc_from_arrow,
    check_compatible,
    columns_of,
    convert,
    fit_struct,
    parse_value_schema,
    resolve,
    rows_to_struct,
    struct_from_columns,
)

NODE: Any = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
MILLIS: Any = {"type": "long", "logicalType": "timestamp-millis"}
MICROS: Any = {"type": "long", "logicalType": "timestamp-micros"}
ENUM: Any = {"type": "enum", "name": "Color", "symbols": ["RED", "GREEN"]}


def _cents(precision: int) -> dict[str, object]:
    return _field(_logical("bytes", "decimal", precision=precision))


def _avsc(*fields: Mapping[str, object]) -> str:
    return json.dumps({"type": "record", "name": "Order", "fields": fields})


def _field(kind: object, name: str = "f", **more: object) -> dict[str, object]:
    return {"name": name, "type": kind, **more}


def _schema(*fields: Mapping[str, object], schema_id: int = 1) -> ValueSchema:
    return parse_value_schema(_avsc(*fields), schema_id)


def _logical(base: str, logical: str, **more: object) -> dict[str, object]:
    return {"type": base, "logicalType": logical, **more}


@pytest.mark.parametrize(
    ("kind", "arrow"),
    [
        ("boolean", pa.bool_()),
        ("int", pa.int32()),
        ("long", pa.int64()),
        ("float", pa.float32()),
        ("double", pa.float64()),
        ("string", pa.string()),
        ("bytes", pa.binary()),
        (["null", "long"], pa.int64()),
        (["string", "null"], pa.string()),
        (ENUM, pa.string()),
        ({"type": "fixed", "name": "Id", "size": 16}, pa.binary(16)),
        ({"type": "array", "items": ["null", "int"]}, pa.list_(pa.int32())),
        ({"type": "map", "values": "double"}, pa.map_(pa.string(), pa.float64())),
        (_logical("int", "date"), pa.date32()),
        (_logical("int", "time-millis"), pa.time32("ms")),
        (_logical("long", "time-micros"), pa.time64("us")),
        (_logical("long", "timestamp-millis"), pa.timestamp("ms", "UTC")),
        (_logical("long", "timestamp-micros"), pa.timestamp("us", "UTC")),
        (_logical("long", "local-timestamp-micros"), pa.timestamp("us")),
        (_logical("bytes", "decimal", precision=9, scale=2), pa.decimal128(9, 2)),
        (_logical("string", "uuid"), pa.string()),
        (_logical("string", "unheard-of"), pa.string()),
    ],
)
def test_each_type_has_one_arrow_type(kind: object, arrow: pa.DataType) -> None:
    """Every accepted Avro type has its Arrow type; an unknown logical type counts as its base."""
    assert _schema(_field(kind)).arrow_type == pa.struct([pa.field("f", arrow)])


def _nested(depth: int) -> object:
    kind: object = "int"
    for _ in range(depth):
        kind = {"type": "array", "items": kind}
    return kind


def _doubling(times: int) -> list[dict[str, object]]:
    """Types that each hold the one before twice: little text, a huge tree."""
    fields = [_field({"type": "record", "name": "T0", "fields": [_field("int", "x")]}, "t0")]
    for i in range(1, times):
        inner = [_field(f"T{i - 1}", "left"), _field(f"T{i - 1}", "right")]
        fields.append(_field({"type": "record", "name": f"T{i}", "fields": inner}, f"t{i}"))
    return fields


@pytest.mark.parametrize(
    ("fields", "where", "why"),
    [
        ([_field(NODE)], "value.f.next", "contains itself"),
        ([_field(["int", "string"])], "value.f", "union"),
        ([_field(["null", "int", "string"])], "value.f", "union"),
        ([_field(["null"])], "value.f", "union"),
        ([_field("null")], "value.f", "not a type"),
        ([_field({"type": "array", "items": "null"})], "value.f[]", "not a type"),
        ([_field({"type": "array", "items": {"type": "fixed", "name": "Z", "size": 0}})], "value.f[]", "size 0"),
        ([_field({"type": "record", "name": "E", "fields": []})], "value.f", "without fields"),
        ([_field(_nested(70))], None, "more than 64"),
        (_doubling(20), None, "more than 10000"),
        ([_field("int", "a-b")], "value", "not an Avro name"),
        ([_field("int", "../x")], "value", "not an Avro name"),
        ([_field("int", "a\0")], "value", "not an Avro name"),
        ([_field("int"), _field("long")], "value", "one name"),
        ([_field({"type": "enum", "name": "E", "symbols": []})], "value.f", "symbols"),
        ([_field({"type": "enum", "name": "E", "symbols": ["A"], "default": "B"})], "value.f", "symbols"),
        ([_field(_logical("bytes", "decimal", precision=39))], "value.f", "precision 39"),
        ([_field("int", default="x")], "value.f", "default"),
        ([_field("int", default=None)], "value.f", "default"),
        ([_field("int", default=2**31)], "value.f", "default"),
        ([_field(ENUM, default="BLUE")], "value.f", "default"),
        ([_field("Nowhere")], "value.f", "not a type"),
        ([_field(7)], "value.f", "not a type"),
    ],
)
def test_what_cannot_be_a_column_is_refused(fields: list[dict[str, object]], where: str | None, why: str) -> None:
    """Each refusal names the field and the reason."""
    with pytest.raises(ConfigError, match=why) as caught:
        _schema(*fields)

    assert where is None or caught.value.facts["field"] == where


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '"string"', '["null", "int"]', '{"type": "enum"}', "NaN"])
def test_texts_that_are_no_record_schema_are_refused(text: str) -> None:
    """Broken JSON, bottomless JSON and schemas of other than a record are refused as configuration."""
    with pytest.raises(ConfigError):
        parse_value_schema(text, 1)


def test_ids_start_at_one() -> None:
    """Id 0 belongs to opaque bytes."""
    assert OPAQUE.arrow_type == pa.binary()
    assert OPAQUE.is_opaque
    with pytest.raises(ConfigError):
        _schema(_field("int"), schema_id=0)


def test_equal_schemas_have_one_text_and_survive_pickling() -> None:
    """Spaces and the order of attributes do not matter, and a schema travels between processes."""
    one = parse_value_schema('{"name": "O", "type": "record", "fields": [{"type": "int", "name": "f"}]}', 1)
    other = parse_value_schema('{"type":"record","name":"O","fields":[{"name":"f","type":"int"}]}', 1)

    assert one == other == pickle.loads(pickle.dumps(one))


def test_names_may_be_used_again_and_have_namespaces() -> None:
    """A named type can be used in two places, by its short name inside its namespace."""
    inner = {"type": "record", "name": "a.b.Inner", "fields": [_field("int", "x")]}
    schema = _schema(_field(inner, "one"), _field("a.b.Inner", "two"))

    assert schema.arrow_type.num_fields == 2


# ---- compatibility

INT = _field("int")
G = _field("int", "g", default=0)


@pytest.mark.parametrize(
    ("old", "new", "where", "types"),
    [
        ([_field("int")], [_field("string")], "value.f", ("string", "int")),
        ([_field("long")], [_field("int")], "value.f", ("int", "long")),
        ([_field("bytes")], [_field("string")], "value.f", ("string", "bytes")),
        ([_field(["null", "int"])], [_field("int")], "value.f", ("int", "int or null")),
        ([_field("int")], [_field("int"), _field("int", "g")], "value.g", ("int", "absent")),
        (
            [_field({"type": "array", "items": "double"})],
            [_field({"type": "array", "items": "float"})],
            "value.f[]",
            ("float", "double"),
        ),
        (
            [_field(MILLIS)],
            [_field(MICROS)],
            "value.f",
            None,
        ),
        ([_field("long")], [_field(MICROS)], "value.f", None),
        (
            [_cents(5)],
            [_cents(6)],
            "value.f",
            None,
        ),
        ([_field(ENUM)], [_field({**ENUM, "symbols": ["RED"]})], "value.f", None),
        ([_field(ENUM)], [_field({**ENUM, "name": "Colour"})], "value.f", ("enum Colour", "enum Color")),
        ([_field("int")], [_field("int"), _field("int", "g", aliases=["f"])], "value.g", ("f, g", "f")),
        ([_field("int"), _field("int", "g")], [_field("int", "g", aliases=["f"])], "value.g", ("g", "g, f")),
    ],
)
def test_incompatible_changes_name_field_and_both_types(
    old: list[Any], new: list[Any], where: str, types: tuple[str, str] | None
) -> None:
    """What earlier values cannot be read with is refused, with the field's path and the new and the earlier type."""
    with pytest.raises(IncompatibleSchema) as caught:
        check_compatible(_schema(*new, schema_id=2), [_schema(*old)])

    assert caught.value.facts["field"] == where
    assert types is None or (caught.value.facts["new"], caught.value.facts["earlier"]) == types


def test_compatible_changes_convert() -> None:
    """Fields are added, dropped, widened and renamed, symbols fall back, and nulls stay."""
    old = _schema(
        _field("int", "count"),
        _field("string", "text"),
        _field("int", "gone"),
        _field({**ENUM, "default": "RED"}, "color"),
    )
    new = _schema(
        _field("string", "added", default="new"),
        _field("double", "count"),
        _field("bytes", "data", aliases=["text"]),
        _field({**ENUM, "symbols": ["GREEN", "NONE"], "default": "NONE"}, "color"),
        schema_id=2,
    )
    rows = [
        {"count": 1, "text": "ä", "gone": 2, "color": "RED"},
        None,
        {"count": 3, "text": "", "gone": 4, "color": "GREEN"},
    ]
    check_compatible(new, [old])

    converted = convert(rows_to_struct(rows, old), old, new)

    assert converted.to_pylist() == [
        {"added": "new", "count": 1.0, "data": "ä".encode(), "color": "NONE"},
        None,
        {"added": "new", "count": 3.0, "data": b"", "color": "GREEN"},
    ]


@pytest.mark.parametrize(
    "chain",
    [
        [[INT], [G], [_field("int", default=7), G]],
        [
            [_field("int")],
            [_field("int"), _field("int", "g", default=1)],
            [_field("int"), _field("int", "g", default=2)],
        ],
        [[_field("int")], [_field("float")], [_field("double")]],
        [[_field("int")], [_field("int", "g", aliases=["f"])], [_field("int", "g", default=3)]],
        [
            [_field({**ENUM, "default": "RED"})],
            [_field({**ENUM, "symbols": ["RED"], "default": "RED"})],
            [_field(ENUM)],
        ],
    ],
)
def test_what_a_merge_in_between_would_change_is_refused(chain: list[list[Any]]) -> None:
    """Names that come back, changed defaults and lossy detours pass schema by schema, and are refused all the same."""
    first, second, third = (_schema(*fields, schema_id=i) for i, fields in enumerate(chain, 1))
    check_compatible(second, [first])
    resolve(third, first)
    resolve(third, second)

    with pytest.raises(IncompatibleSchema, match="merge") as caught:
        check_compatible(third, [first, second])

    assert str(caught.value.facts["field"]).startswith("value.")


def test_opaque_and_typed_do_not_mix() -> None:
    """Neither can follow the other in one log; opaque follows opaque."""
    typed = _schema(_field("int"))
    check_compatible(OPAQUE, [OPAQUE])

    with pytest.raises(IncompatibleSchema):
        check_compatible(typed, [OPAQUE])
    with pytest.raises(IncompatibleSchema):
        check_compatible(OPAQUE, [typed])


# ---- values on the way in

UTC = datetime.UTC
NOON = datetime.datetime(2024, 5, 1, 12, 0, 0, 1, UTC)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (_logical("int", "date"), datetime.date(1969, 7, 20)),
        (_logical("int", "time-millis"), datetime.time(23, 59, 59, 999000)),
        (_logical("long", "time-micros"), datetime.time(23, 59, 59, 999999)),
        (_logical("long", "timestamp-micros"), NOON),
        (_logical("long", "timestamp-millis"), NOON.replace(microsecond=1000)),
        (_logical("long", "local-timestamp-micros"), NOON.replace(tzinfo=None)),
        (_logical("bytes", "decimal", precision=5, scale=2), decimal.Decimal("-123.45")),
        (_logical("string", "uuid"), "00000000-0000-4000-8000-00000000abcd"),
        ({"type": "fixed", "name": "Id", "size": 2}, b"\0\xff"),
    ],
)
def test_logical_values_survive(kind: object, value: object) -> None:
    """Dates, times, decimals and the like come back as they went in, as columns and from Avro's binary form."""
    schema = _schema(_field(kind))
    column = rows_to_struct([{"f": value}], schema)
    assert column.to_pylist() == [{"f": value}]

    read = schemaless_reader(io.BytesIO(avro_values(column, schema)[0].as_py()), parse_schema(json.loads(schema.avsc)))

    assert {name: str(one) if isinstance(one, uuid.UUID) else one for name, one in read.items()} == {"f": value}


@pytest.mark.parametrize("size", [0, 9, 20])
def test_decimals_of_any_width_are_avros(size: int) -> None:
    """Unscaled numbers at the edges of a byte, of both signs, in as many bytes as the type says (0: no fixed)."""
    base = {"type": "fixed", "name": "D", "size": size} if size else {"type": "bytes"}
    schema = _schema(_field({**base, "logicalType": "decimal", "precision": 20, "scale": 2}))
    numbers = [0, 1, -1, 127, 128, -128, -129, 255, 256, -32768, 10**15, -(10**15)]
    rows = [{"f": decimal.Decimal(number).scaleb(-2)} for number in numbers]
    parsed = parse_schema(json.loads(schema.avsc))
    encoded = avro_values(rows_to_struct(rows, schema), schema).to_pylist()

    assert [schemaless_reader(io.BytesIO(one), parsed) for one in encoded] == rows


def test_only_what_is_there_has_a_binary_form() -> None:
    """A delete has none; bytes are their own."""
    schema = _schema(_field("int"))
    with pytest.raises(InvalidChange):
        avro_values(rows_to_struct([{"f": 1}, None], schema), schema)
    assert avro_values(pa.array([b"x"], pa.binary()), OPAQUE).to_pylist() == [b"x"]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int", 2**31),
        ("int", True),
        ("int", 1.0),
        ("int", "1"),
        ("int", None),
        ("boolean", 1),
        ("string", b"x"),
        ("string", "\ud800"),
        ("bytes", "x"),
        ("double", "1"),
        (ENUM, "BLUE"),
        ({"type": "array", "items": "int"}, [1, None]),
        ({"type": "array", "items": "int"}, "12"),
        ({"type": "map", "values": "int"}, {1: 1}),
        ({"type": "map", "values": "int"}, {"a": None}),
        ({"type": "fixed", "name": "Id", "size": 2}, b"abc"),
        (_logical("int", "date"), NOON),
        (_logical("int", "time-millis"), datetime.time(0, 0, 0, 1)),
        (_logical("long", "timestamp-millis"), NOON),
        (_logical("long", "timestamp-micros"), NOON.replace(tzinfo=None)),
        (_logical("long", "local-timestamp-micros"), NOON),
        (_logical("bytes", "decimal", precision=5, scale=2), decimal.Decimal("1.234")),
        (_logical("bytes", "decimal", precision=5, scale=2), 1.5),
        (_logical("string", "uuid"), "not-a-uuid"),
        ({"type": "record", "name": "In", "fields": [_field("int", "x")]}, {}),
        ({"type": "record", "name": "In", "fields": [_field("int", "x")]}, {"x": 1, "y": 2}),
    ],
)
def test_values_that_do_not_fit_are_refused(kind: object, value: object) -> None:
    """Nothing is truncated, parsed or encoded silently; the message names the field."""
    with pytest.raises(InvalidChange) as caught:
        rows_to_struct([{"f": value}], _schema(_field(kind)))

    assert str(caught.value.facts["field"]).startswith("value.f")


def test_unknown_and_missing_fields_are_refused() -> None:
    """A misspelt field is an error, not a default."""
    schema = _schema(_field("int"), _field("int", "g", default=5))

    assert rows_to_struct([{"f": 1}], schema).to_pylist() == [{"f": 1, "g": 5}]
    with pytest.raises(InvalidChange, match="h"):
        rows_to_struct([{"f": 1, "h": 2}], schema)
    with pytest.raises(InvalidChange, match="missing"):
        rows_to_struct([{"g": 1}], schema)
    with pytest.raises(InvalidChange, match="opaque"):
        rows_to_struct([{"g": 1}], OPAQUE)


def test_columns_of_kindred_types_fit() -> None:
    """Large strings, dictionaries, narrower integers, other list types and missing columns with defaults are taken."""
    schema = _schema(
        _field("long", "n"),
        _field("string", "s"),
        _field({"type": "array", "items": "long"}, "l"),
        _field(["null", "double"], "d", default=None),
        _field({"type": "record", "name": "In", "fields": [_field("int", "x"), _field("int", "y", default=9)]}, "r"),
    )
    table = pa.table(
        {
            "r": pa.array([{"x": 1}, {"x": 2}], pa.struct([pa.field("x", pa.int64())])),
            "l": pa.array([[1], []], pa.large_list(pa.int16())),
            "s": pa.array(["a", "b"]).dictionary_encode(),
            "n": pa.array([1, 2], pa.uint8()),
        }
    )

    column = struct_from_columns(table, schema)

    assert column.type == schema.arrow_type
    assert column.to_pylist()[1] == {"n": 2, "s": "b", "l": [], "d": None, "r": {"x": 2, "y": 9}}
    assert columns_of(column).column("n").to_pylist() == [1, 2]


@pytest.mark.parametrize(
    "columns",
    [
        {"f": pa.array([2**40])},
        {"f": pa.array([1.0])},
        {"f": pa.array(["1"])},
        {"f": pa.array([None], pa.int32())},
        {"f": pa.array([1], pa.int32()), "g": pa.array([1])},
        {},
    ],
)
def test_columns_that_do_not_fit_are_refused(columns: dict[str, pa.Array]) -> None:
    """Overflow, another type, a null, an unknown column and a missing one are each refused by name."""
    with pytest.raises(InvalidChange) as caught:
        struct_from_columns(pa.table(columns), _schema(_field("int")))

    assert str(caught.value.facts["field"]).startswith("value")


def test_struct_columns_keep_deletes_but_no_inner_nulls() -> None:
    """A null struct is a delete's and stays; a null inside a present one is refused."""
    schema = _schema(_field("int"))
    kind = pa.struct([pa.field("f", pa.int64())])

    assert fit_struct(pa.array([{"f": 1}, None], kind), schema).to_pylist() == [{"f": 1}, None]
    with pytest.raises(InvalidChange):
        fit_struct(pa.array([{"f": None}, None], kind), schema)


def test_a_schema_from_arrow() -> None:
    """A data frame's columns make a value schema that fits them, nullable where they are."""
    columns = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("at", pa.timestamp("us", "UTC")),
            pa.field("tags", pa.list_(pa.large_string())),
            pa.field("in", pa.struct([pa.field("x", pa.decimal128(9, 2))])),
        ]
    )

    schema = parse_value_schema(avsc_from_arrow(columns, "Order"), 1)

    assert schema.root is not None
    assert [one.type.nullable for one in schema.root.fields] == [False, True, True, True]
    assert schema.arrow_type == pa.struct(
        [
            pa.field("id", pa.int64()),
            pa.field("at", pa.timestamp("us", "UTC")),
            pa.field("tags", pa.list_(pa.string())),
            pa.field("in", pa.struct([pa.field("x", pa.decimal128(9, 2))])),
        ]
    )


@pytest.mark.parametrize("kind", [pa.uint64(), pa.null(), pa.map_(pa.int64(), pa.int64())])
def test_arrow_types_without_a_schema_are_refused(kind: pa.DataType) -> None:
    """What has no Avro type is refused with the column's path."""
    with pytest.raises(ConfigError) as caught:
        avsc_from_arrow(pa.schema([pa.field("f", kind)]), "Order")

    assert caught.value.facts["field"] == "value.f"


def test_a_null_in_a_put_is_not_covered_by_a_delete_with_a_value() -> None:
    """Nulls were once counted and not placed: a put's null passed if a delete in the same batch had a value there."""
    schema = parse_value_schema('{"type": "record", "name": "N", "fields": [{"name": "n", "type": "long"}]}', 1)
    deletes = pa.array([False, True])
    with pytest.raises(InvalidChange):
        struct_from_columns(pa.table({"n": [None, 5]}), schema, deletes)

    assert struct_from_columns(pa.table({"n": [7, 5]}), schema, deletes).to_pylist() == [{"n": 7}, None]
