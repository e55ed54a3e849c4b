"""Value schemas: accepted types, refusals and their messages, and compatible successors."""

import pickle
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from statelog.errors import ConfigError, IncompatibleSchema
from statelog.schemas.values.schema import (
    OPAQUE,
    check_compatible,
    convert,
    parse_value_schema,
    resolve,
    rows_to_struct,
)
from tests.support.samples.avro_fields import ENUM, MICROS, MILLIS, cents, field, logical, schema_of

NODE: Any = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}


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
        (logical("int", "date"), pa.date32()),
        (logical("int", "time-millis"), pa.time32("ms")),
        (logical("long", "time-micros"), pa.time64("us")),
        (logical("long", "timestamp-millis"), pa.timestamp("ms", "UTC")),
        (logical("long", "timestamp-micros"), pa.timestamp("us", "UTC")),
        (logical("long", "local-timestamp-micros"), pa.timestamp("us")),
        (logical("bytes", "decimal", precision=9, scale=2), pa.decimal128(9, 2)),
        (logical("string", "uuid"), pa.string()),
        (logical("string", "unheard-of"), pa.string()),
    ],
)
def test_each_type_has_one_arrow_type(kind: object, arrow: pa.DataType) -> None:
    """Every accepted Avro type has its Arrow type. An unknown logical type counts as its base."""
    assert schema_of(field(kind)).arrow_type == pa.struct([pa.field("f", arrow)])


def _nested(depth: int) -> object:
    kind: object = "int"
    for _ in range(depth):
        kind = {"type": "array", "items": kind}
    return kind


def _doubling(times: int) -> list[dict[str, object]]:
    """Return types that each hold the one before twice: little text, a huge tree."""
    fields = [field({"type": "record", "name": "T0", "fields": [field("int", "x")]}, "t0")]
    for i in range(1, times):
        inner = [field(f"T{i - 1}", "left"), field(f"T{i - 1}", "right")]
        fields.append(field({"type": "record", "name": f"T{i}", "fields": inner}, f"t{i}"))
    return fields


@pytest.mark.parametrize(
    ("fields", "where", "why"),
    [
        ([field(NODE)], "value.f.next", "contains itself"),
        ([field(["int", "string"])], "value.f", "union"),
        ([field(["null", "int", "string"])], "value.f", "union"),
        ([field(["null"])], "value.f", "union"),
        ([field("null")], "value.f", "not a type"),
        ([field({"type": "array", "items": "null"})], "value.f[]", "not a type"),
        ([field({"type": "array", "items": {"type": "fixed", "name": "Z", "size": 0}})], "value.f[]", "size 0"),
        ([field({"type": "record", "name": "E", "fields": []})], "value.f", "without fields"),
        ([field(_nested(70))], None, "more than 64"),
        (_doubling(20), None, "more than 10000"),
        ([field("int", "a-b")], "value", "not an Avro name"),
        ([field("int", "../x")], "value", "not an Avro name"),
        ([field("int", "a\0")], "value", "not an Avro name"),
        ([field("int"), field("long")], "value", "one name"),
        ([field({"type": "enum", "name": "E", "symbols": []})], "value.f", "symbols"),
        ([field({"type": "enum", "name": "E", "symbols": ["A"], "default": "B"})], "value.f", "symbols"),
        ([field(logical("bytes", "decimal", precision=39))], "value.f", "precision 39"),
        ([field("int", default="x")], "value.f", "default"),
        ([field("int", default=None)], "value.f", "default"),
        ([field("int", default=2**31)], "value.f", "default"),
        ([field(ENUM, default="BLUE")], "value.f", "default"),
        ([field({"type": "map", "values": "int"}, default=[1])], "value.f", "default"),
        ([field("Nowhere")], "value.f", "not a type"),
        ([field(7)], "value.f", "not a type"),
    ],
)
def test_what_cannot_be_a_column_is_refused(fields: list[dict[str, object]], where: str | None, why: str) -> None:
    """Each refusal names the field and the reason."""
    with pytest.raises(ConfigError, match=why) as caught:
        schema_of(*fields)

    assert where is None or caught.value.facts["field"] == where


_ENDLESS = '{"type": "record", "name": "R", "fields": [{"name": "f", "type": "double", "default": -1e999}]}'


_BROKEN_TEXT = r'{"type": "record", "name": "R", "doc": "\ud800", "fields": [{"name": "f", "type": "double"}]}'


@pytest.mark.parametrize(
    "text", ["", "{", "[" * 100_000, '"string"', '["null", "int"]', '{"type": "enum"}', "NaN", _ENDLESS, _BROKEN_TEXT]
)
def test_texts_that_are_no_record_schema_are_refused(text: str) -> None:
    """Broken or bottomless JSON, and schemas of other than a record, are configuration errors."""
    with pytest.raises(ConfigError):
        parse_value_schema(text, 1)


def test_ids_start_at_one() -> None:
    """Id 0 belongs to opaque bytes."""
    assert OPAQUE.arrow_type == pa.binary()
    assert OPAQUE.is_opaque
    with pytest.raises(ConfigError):
        schema_of(field("int"), schema_id=0)


def test_equal_schemas_have_one_text_and_survive_pickling() -> None:
    """Spaces and the order of attributes do not matter, and a schema travels between processes."""
    one = parse_value_schema('{"name": "O", "type": "record", "fields": [{"type": "int", "name": "f"}]}', 1)
    other = parse_value_schema('{"type":"record","name":"O","fields":[{"name":"f","type":"int"}]}', 1)

    assert one == other == pickle.loads(pickle.dumps(one))


def test_names_may_be_used_again_and_have_namespaces() -> None:
    """A named type can be used in two places, by its short name inside its namespace."""
    inner = {"type": "record", "name": "a.b.Inner", "fields": [field("int", "x")]}
    schema = schema_of(field(inner, "one"), field("a.b.Inner", "two"))

    assert schema.arrow_type.num_fields == 2


INT = field("int")


G = field("int", "g", default=0)


@pytest.mark.parametrize(
    ("old", "new", "where", "types"),
    [
        ([field("int")], [field("string")], "value.f", ("string", "int")),
        ([field("long")], [field("int")], "value.f", ("int", "long")),
        ([field("bytes")], [field("string")], "value.f", ("string", "bytes")),
        ([field(["null", "int"])], [field("int")], "value.f", ("int", "int or null")),
        ([field("int")], [field("int"), field("int", "g")], "value.g", ("int", "absent")),
        (
            [field({"type": "array", "items": "double"})],
            [field({"type": "array", "items": "float"})],
            "value.f[]",
            ("float", "double"),
        ),
        (
            [field(MILLIS)],
            [field(MICROS)],
            "value.f",
            None,
        ),
        ([field("long")], [field(MICROS)], "value.f", None),
        (
            [cents(5)],
            [cents(6)],
            "value.f",
            None,
        ),
        ([field(ENUM)], [field({**ENUM, "symbols": ["RED"]})], "value.f", None),
        ([field(ENUM)], [field({**ENUM, "name": "Colour"})], "value.f", ("enum Colour", "enum Color")),
        ([field("int")], [field("int"), field("int", "g", aliases=["f"])], "value.g", ("f, g", "f")),
        ([field("int"), field("int", "g")], [field("int", "g", aliases=["f"])], "value.g", ("g", "g, f")),
    ],
)
def test_incompatible_changes_name_field_and_both_types(
    old: list[Any], new: list[Any], where: str, types: tuple[str, str] | None
) -> None:
    """A schema that cannot read earlier values is refused, with the field's path and the new and the earlier type."""
    with pytest.raises(IncompatibleSchema) as caught:
        check_compatible(schema_of(*new, schema_id=2), [schema_of(*old)])

    assert caught.value.facts["field"] == where
    assert types is None or (caught.value.facts["new"], caught.value.facts["earlier"]) == types


def test_compatible_changes_convert() -> None:
    """Fields are added, dropped, widened and renamed, symbols fall back, and nulls stay."""
    old = schema_of(
        field("int", "count"),
        field("string", "text"),
        field("int", "gone"),
        field({**ENUM, "default": "RED"}, "color"),
    )
    new = schema_of(
        field("string", "added", default="new"),
        field("double", "count"),
        field("bytes", "data", aliases=["text"]),
        field({**ENUM, "symbols": ["GREEN", "NONE"], "default": "NONE"}, "color"),
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
        [[INT], [G], [field("int", default=7), G]],
        [
            [field("int")],
            [field("int"), field("int", "g", default=1)],
            [field("int"), field("int", "g", default=2)],
        ],
        [[field("int")], [field("float")], [field("double")]],
        [[field("int")], [field("int", "g", aliases=["f"])], [field("int", "g", default=3)]],
        [
            [field({**ENUM, "default": "RED"})],
            [field({**ENUM, "symbols": ["RED"], "default": "RED"})],
            [field(ENUM)],
        ],
    ],
)
def test_what_a_merge_in_between_would_change_is_refused(chain: list[list[Any]]) -> None:
    """Reused names, changed defaults and lossy detours are refused, although each step would be compatible."""
    first, second, third = (schema_of(*fields, schema_id=i) for i, fields in enumerate(chain, 1))
    check_compatible(second, [first])
    resolve(third, first)
    resolve(third, second)

    with pytest.raises(IncompatibleSchema, match="merge") as caught:
        check_compatible(third, [first, second])

    assert str(caught.value.facts["field"]).startswith("value.")


@pytest.mark.parametrize(("size", "precision", "fits"), [(2, 4, True), (2, 5, False), (16, 38, True), (15, 36, False)])
def test_a_new_decimal_fits_into_its_fixed(size: int, precision: int, fits: bool) -> None:
    """A new decimal that exceeds its fixed type is refused, since no Avro library reads it.

    A field of an earlier release stays valid.
    """
    kind = {"name": "N"} | logical("fixed", "decimal", size=size, precision=precision)
    schema = schema_of(field({"type": "array", "items": kind}))
    if fits:
        check_compatible(schema, [])
    else:
        with pytest.raises(ConfigError, match="digits") as caught:
            check_compatible(schema, [schema_of(field("int", "g"))])
        assert caught.value.facts["field"] == "value.f[]"
    later = replace(schema_of(field({"type": "array", "items": kind}), field("int", "g", default=1)), id=2)
    check_compatible(later, [schema])


def test_opaque_and_typed_do_not_mix() -> None:
    """Opaque and typed values never follow each other in one log. Opaque follows opaque."""
    typed = schema_of(field("int"))
    check_compatible(OPAQUE, [OPAQUE])

    with pytest.raises(IncompatibleSchema):
        check_compatible(typed, [OPAQUE])
    with pytest.raises(IncompatibleSchema):
        check_compatible(OPAQUE, [typed])
