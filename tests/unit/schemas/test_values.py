"""Values in and out of Arrow: lossless conversions, and refusals with their messages."""

import datetime
import decimal
import io
import json
import math
import uuid

import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_reader

from statelog.errors import ConfigError, InvalidChange
from statelog.schemas.values.arrow import fit
from statelog.schemas.values.avro import avro_values
from statelog.schemas.values.schema import (
    OPAQUE,
    avsc_from_arrow,
    columns_of,
    parse_value_schema,
    rows_to_struct,
    struct_from_columns,
)
from tests.support.samples.avro_fields import ENUM, field, logical, schema_of

# ---- values on the way in

UTC = datetime.UTC
NOON = datetime.datetime(2024, 5, 1, 12, 0, 0, 1, UTC)
_WEST, _EAST = (datetime.timezone(datetime.timedelta(hours=hours)) for hours in (-5, 5))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (logical("int", "date"), datetime.date(1969, 7, 20)),
        (logical("int", "time-millis"), datetime.time(23, 59, 59, 999000)),
        (logical("long", "time-micros"), datetime.time(23, 59, 59, 999999)),
        (logical("long", "timestamp-micros"), NOON),
        (logical("long", "timestamp-millis"), NOON.replace(microsecond=1000)),
        (logical("long", "local-timestamp-micros"), NOON.replace(tzinfo=None)),
        (logical("bytes", "decimal", precision=5, scale=2), decimal.Decimal("-123.45")),
        (logical("string", "uuid"), "00000000-0000-4000-8000-00000000abcd"),
        ({"type": "fixed", "name": "Id", "size": 2}, b"\0\xff"),
    ],
)
def test_logical_values_survive(kind: object, value: object) -> None:
    """Dates, times, decimals and other logical values come back unchanged, from columns and from Avro's binary form."""
    schema = schema_of(field(kind))
    column = rows_to_struct([{"f": value}], schema)
    assert column.to_pylist() == [{"f": value}]

    read = schemaless_reader(io.BytesIO(avro_values(column, schema)[0].as_py()), parse_schema(json.loads(schema.avsc)))

    assert {name: str(one) if isinstance(one, uuid.UUID) else one for name, one in read.items()} == {"f": value}


@pytest.mark.parametrize("size", [0, 9, 20])
def test_decimals_of_any_width_are_avros(size: int) -> None:
    """Unscaled numbers at the edges of a byte, of both signs, have as many bytes as the type says (0: no fixed)."""
    base = {"type": "fixed", "name": "D", "size": size} if size else {"type": "bytes"}
    schema = schema_of(field({**base, "logicalType": "decimal", "precision": 20, "scale": 2}))
    numbers = [0, 1, -1, 127, 128, -128, -129, 255, 256, -32768, 10**15, -(10**15)]
    rows = [{"f": decimal.Decimal(number).scaleb(-2)} for number in numbers]
    parsed = parse_schema(json.loads(schema.avsc))
    encoded = avro_values(rows_to_struct(rows, schema), schema).to_pylist()

    assert [schemaless_reader(io.BytesIO(one), parsed) for one in encoded] == rows


@pytest.mark.parametrize(("number", "fits"), [(32767, True), (-32768, True), (32768, False), (-32769, False)])
def test_a_decimal_is_not_cut_to_the_bytes_of_its_fixed(number: int, fits: bool) -> None:
    """A decimal that exceeds the bytes of its fixed type has no binary form, even if the schema names more digits."""
    kind = {"name": "Two"} | logical("fixed", "decimal", size=2, precision=10, scale=0)
    schema = schema_of(field(["null", kind]))
    column = rows_to_struct([{"f": decimal.Decimal(number)}, {"f": None}], schema)
    if fits:
        assert avro_values(column, schema).to_pylist() == [b"\2" + number.to_bytes(2, "big", signed=True), b"\0"]
    else:
        with pytest.raises(InvalidChange, match="2 bytes"):
            avro_values(column, schema)


def test_only_what_is_there_has_a_binary_form() -> None:
    """A delete has no binary form, and bytes are their own."""
    schema = schema_of(field("int"))
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
        ({"type": "map", "values": "int"}, {None: 1}),
        ({"type": "fixed", "name": "Id", "size": 2}, b"abc"),
        (logical("int", "date"), NOON),
        (logical("int", "time-millis"), datetime.time(0, 0, 0, 1)),
        (logical("int", "time-millis"), datetime.time(12, tzinfo=UTC)),
        (logical("long", "time-micros"), datetime.time(12, tzinfo=UTC)),
        (logical("long", "timestamp-millis"), NOON),
        (logical("long", "timestamp-micros"), datetime.datetime.max.replace(tzinfo=_WEST)),
        (logical("long", "timestamp-millis"), datetime.datetime.min.replace(tzinfo=_EAST)),
        ("float", 1e39),
        ("float", -1e39),
        ({"type": "array", "items": "float"}, [1, 1e39]),
        (logical("long", "timestamp-micros"), NOON.replace(tzinfo=None)),
        (logical("long", "local-timestamp-micros"), NOON),
        (logical("bytes", "decimal", precision=5, scale=2), decimal.Decimal("1.234")),
        (logical("bytes", "decimal", precision=5, scale=2), 1.5),
        (logical("string", "uuid"), "not-a-uuid"),
        ({"type": "record", "name": "In", "fields": [field("int", "x")]}, {}),
        ({"type": "record", "name": "In", "fields": [field("int", "x")]}, {"x": 1, "y": 2}),
        ({"type": "record", "name": "In", "fields": [field("int", "x")]}, {"x": 1, "y": 2, 3: 4}),
    ],
)
def test_values_that_do_not_fit_are_refused(kind: object, value: object) -> None:
    """No value is truncated, parsed or encoded silently. The error names the field."""
    with pytest.raises(InvalidChange) as caught:
        rows_to_struct([{"f": value}], schema_of(field(kind)))

    assert str(caught.value.facts["field"]).startswith("value.f")


@pytest.mark.parametrize("zone", ["", "Z"])
def test_a_time_of_pandas_keeps_its_nanoseconds_or_is_refused(zone: str) -> None:
    """A pandas time with nanoseconds is refused, since no schema has them."""
    pandas = pytest.importorskip("pandas")
    schema = schema_of(field(logical("long", f"{'' if zone else 'local-'}timestamp-micros")))
    whole = pandas.Timestamp(f"2026-01-02T03:04:05.000006{zone}")
    assert rows_to_struct([{"f": whole}, None], schema).to_pylist() == [{"f": whole.to_pydatetime()}, None]
    with pytest.raises(InvalidChange, match="nanoseconds"):
        rows_to_struct([None, {"f": pandas.Timestamp(f"2026-01-02T03:04:05.000006007{zone}")}], schema)


def test_unknown_and_missing_fields_are_refused() -> None:
    """Unknown and missing fields are refused, so that a misspelt field does not become a default."""
    schema = schema_of(field("int"), field("int", "g", default=5))

    assert rows_to_struct([{"f": 1}], schema).to_pylist() == [{"f": 1, "g": 5}]
    with pytest.raises(InvalidChange, match="h"):
        rows_to_struct([{"f": 1, "h": 2}], schema)
    with pytest.raises(InvalidChange, match="missing"):
        rows_to_struct([{"g": 1}], schema)
    with pytest.raises(InvalidChange, match="opaque"):
        rows_to_struct([{"g": 1}], OPAQUE)


@pytest.mark.parametrize("kind", ["double", "float", ["double", "null"]])
@pytest.mark.parametrize(("text", "value"), [("NaN", math.nan), ("Infinity", math.inf), ("-Infinity", -math.inf)])
def test_defaults_that_json_has_no_number_for(kind: object, text: str, value: float) -> None:
    """NaN and infinity are spelled as in registries. For other types the same text is no default."""
    schema = parse_value_schema(schema_of(field("int"), field(kind, "g", default=text)).avsc, 1)
    assert rows_to_struct([{"f": 1}], schema).to_pylist() == [{"f": 1, "g": pytest.approx(value, nan_ok=True)}]
    for other in ("int", "long", logical("long", "timestamp-micros")):
        with pytest.raises(ConfigError, match="default"):
            schema_of(field(other, default=text))
    with pytest.raises(ConfigError, match="default"):
        schema_of(field(kind, default="nan"))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_byte_order_mark_is_no_part_of_a_schema(encoding: str) -> None:
    """A byte order mark, with which Windows editors begin a file, is no part of a schema."""
    schema = schema_of(field("int"))
    assert parse_value_schema(schema.avsc.encode(encoding).decode(), schema.id) == schema


def test_columns_of_kindred_types_fit() -> None:
    """Large strings, dictionaries, narrower integers, other lists and missing columns with defaults are accepted."""
    schema = schema_of(
        field("long", "n"),
        field("string", "s"),
        field({"type": "array", "items": "long"}, "l"),
        field(["null", "double"], "d", default=None),
        field({"type": "record", "name": "In", "fields": [field("int", "x"), field("int", "y", default=9)]}, "r"),
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
        struct_from_columns(pa.table(columns), schema_of(field("int")))

    assert str(caught.value.facts["field"]).startswith("value")


@pytest.mark.parametrize("number", [1e39, -1e39])
def test_a_number_is_not_made_infinite(number: float) -> None:
    """A number that 32 bits cannot hold is refused. Infinity is itself, and digits are rounded."""
    schema = schema_of(field("float"))
    with pytest.raises(InvalidChange, match="too large"):
        struct_from_columns(pa.table({"f": [math.inf, number]}), schema)
    for numbers in ((math.inf, 0.1), (-math.inf, 1)):
        kept = rows_to_struct([{"f": one} for one in numbers], schema).to_pylist()
        assert kept == struct_from_columns(pa.table({"f": [float(one) for one in numbers]}), schema).to_pylist()
        assert kept[0] == {"f": numbers[0]}


@pytest.mark.parametrize("kind", [pa.string_view(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())])
def test_what_stands_in_a_delete_is_no_value(kind: pa.DataType) -> None:
    """A value in a delete is ignored if its type fits. If Arrow cannot process the type, the error names the field."""
    schema, deletes = schema_of(field(ENUM)), pa.array([True, False])
    columns = pa.table({"f": pa.array(["none", "RED"]).cast(kind)})
    assert struct_from_columns(columns, schema, deletes).to_pylist() == [None, {"f": "RED"}]
    within = pa.array([{"x": "RED"}] * 2, pa.struct([("x", pa.string_view())]))
    with pytest.raises(InvalidChange, match=r"value\.f"):
        struct_from_columns(pa.table({"f": within}), schema, deletes)


def test_struct_columns_keep_deletes_but_no_inner_nulls() -> None:
    """A null struct of a delete is accepted. A null inside of a present one, and repeated field names, are refused."""
    schema = schema_of(field("int"))
    kind, root = pa.struct([pa.field("f", pa.int64())]), schema.root
    assert root
    assert fit(pa.array([{"f": 1}, None], kind), root, "value").to_pylist() == [{"f": 1}, None]
    with pytest.raises(InvalidChange):
        fit(pa.array([{"f": None}, None], kind), root, "value")
    twice = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["f", "f"])
    with pytest.raises(InvalidChange, match="f: int64, f: int64"):
        fit(twice, root, "value")


def test_a_schema_from_arrow() -> None:
    """The columns of a data frame make a value schema that fits them, nullable where they are."""
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
    """An Arrow type without an Avro type is refused with the column's path."""
    with pytest.raises(ConfigError) as caught:
        avsc_from_arrow(pa.schema([pa.field("f", kind)]), "Order")

    assert caught.value.facts["field"] == "value.f"


def test_a_null_in_a_put_is_not_covered_by_a_delete_with_a_value() -> None:
    """A null in a put is refused, even if a delete in the same batch has a value in that field."""
    schema = parse_value_schema('{"type": "record", "name": "N", "fields": [{"name": "n", "type": "long"}]}', 1)
    deletes = pa.array([False, True])
    with pytest.raises(InvalidChange):
        struct_from_columns(pa.table({"n": [None, 5]}), schema, deletes)

    assert struct_from_columns(pa.table({"n": [7, 5]}), schema, deletes).to_pylist() == [{"n": 7}, None]
