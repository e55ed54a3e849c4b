"""Value conversion by column against fastavro's resolution row by row, and against the order in which merges ran.

A schema here is Avro's own JSON, of a bounded subset; enums and records carry names that follow from their path.
"""

import io
import json
from typing import Any

import pyarrow as pa
from fastavro import parse_schema, schemaless_reader, schemaless_writer
from hypothesis import given, settings
from hypothesis import strategies as st

from statelog.errors import IncompatibleSchema
from statelog.schemas.values.avro import avro_values
from statelog.schemas.values.schema import (
    ValueSchema,
    avsc_from_arrow,
    check_compatible,
    columns_of,
    convert,
    parse_value_schema,
    rows_to_struct,
    struct_from_columns,
)

Kind = Any
PRIMITIVES = ["boolean", "int", "long", "float", "double", "string", "bytes"]
PROMOTIONS = {"int": ["long", "float", "double"], "long": ["float", "double"], "float": ["double"], "string": ["bytes"]}
NAMES = ["a", "b", "c", "d"]
SYMBOLS = ["RED", "GREEN", "BLUE"]


@st.composite
def kinds(draw: st.DrawFn, path: str, depth: int) -> Kind:
    """Draw any type of the subset at this path."""
    choice = draw(st.sampled_from(["simple"] * 4 + ["null", "enum"] + (["array", "map", "record"] if depth else [])))
    if choice == "simple":
        return draw(st.sampled_from(PRIMITIVES))
    if choice == "null":
        inner: Kind = draw(kinds(path, depth).filter(lambda made: not isinstance(made, list)))
        return draw(st.permutations(["null", inner]))
    if choice == "enum":
        symbols = draw(st.lists(st.sampled_from(SYMBOLS), min_size=1, unique=True))
        return {"type": "enum", "name": f"E{path}", "symbols": symbols, "default": symbols[0]}
    if choice == "record":
        return draw(records(f"{path}r", depth - 1))
    return {"type": choice, "items" if choice == "array" else "values": draw(kinds(f"{path}i", depth - 1))}


@st.composite
def records(draw: st.DrawFn, path: str, depth: int) -> Kind:
    """Draw a record with some of four fields."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    return {"type": "record", "name": f"R{path}", "fields": [draw(fields(name, path, depth)) for name in names]}


@st.composite
def fields(draw: st.DrawFn, name: str, path: str, depth: int) -> Kind:
    """Draw a field, with or without a default."""
    kind = draw(kinds(f"{path}{name}", depth))
    return {"name": name, "type": kind, **({"default": draw(defaults(kind))} if draw(st.booleans()) else {})}


@st.composite
def evolved(draw: st.DrawFn, kind: Kind, path: str) -> Kind:
    """Draw a type that a later schema might have there: often compatible, not always."""
    if isinstance(kind, list):
        return draw(st.permutations(["null", draw(evolved_type(present(kind), path))]))
    made: Kind = draw(evolved_type(kind, path))
    return made if draw(st.integers(0, 7)) else ["null", made]


@st.composite
def evolved_type(draw: st.DrawFn, kind: Kind, path: str) -> Kind:
    """Draw the same for a type that is no union."""
    if isinstance(kind, str):
        return draw(st.sampled_from([kind, kind, *PROMOTIONS.get(kind, [])]))
    if kind["type"] == "array":
        return {"type": "array", "items": draw(evolved(kind["items"], f"{path}i"))}
    if kind["type"] == "map":
        return {"type": "map", "values": draw(evolved(kind["values"], f"{path}i"))}
    if kind["type"] == "enum":
        symbols = draw(st.lists(st.sampled_from(SYMBOLS), min_size=1, unique=True))
        return {**kind, "symbols": symbols, "default": draw(st.sampled_from(symbols))}
    return draw(evolved_record(kind, f"{path}r"))


@st.composite
def evolved_record(draw: st.DrawFn, kind: Kind, path: str) -> Kind:
    """Draw a record with fields retained, changed, dropped, added and moved."""
    made: list[Kind] = []
    for one in kind["fields"]:
        if draw(st.integers(0, 5)):
            changed = {"name": one["name"], "type": draw(evolved(one["type"], f"{path}{one['name']}"))}
            kept = changed if changed["type"] != one["type"] else one
            made.append(kept if draw(st.integers(0, 5)) else draw(renamed(kept)))
    # A repeated field name would repeat the names of its types, and no schema may have those twice.
    taken = {one["name"].rstrip("_") for one in kind["fields"]}
    for name in sorted(set(NAMES) - taken):
        if not made or draw(st.booleans()):
            inner = draw(kinds(f"{path}{name}", 0))
            made.append({"name": name, "type": inner, "default": draw(defaults(inner))})
    return {**kind, "fields": draw(st.permutations(made)) if made else kind["fields"]}


@st.composite
def renamed(draw: st.DrawFn, field: Kind) -> Kind:
    """Draw a field under another name, nearly always with the old one as alias."""
    aliases = [field["name"]] if draw(st.integers(0, 9)) else []
    return {**field, "name": f"{field['name']}_", "aliases": aliases}


def present(union: Kind) -> Kind:
    """Return the type of a union with null that is not null."""
    return union[1] if union[0] == "null" else union[0]


def defaults(kind: Kind) -> st.SearchStrategy[Any]:
    """Return JSON defaults of a type; a union's is of its first type."""
    if isinstance(kind, list):
        return st.none() if kind[0] == "null" else defaults(kind[0])
    if kind == "bytes":
        return st.sampled_from(["", "\u00ff\u0000"])
    if isinstance(kind, str):
        return values(kind)
    if kind["type"] == "array":
        return st.just([])
    if kind["type"] == "map":
        return st.just({})
    if kind["type"] == "enum":
        return st.sampled_from(kind["symbols"])
    return st.fixed_dictionaries({one["name"]: defaults(one["type"]) for one in kind["fields"]})


def values(kind: Kind) -> st.SearchStrategy[Any]:
    """Draw Python values of a type. Numbers fit a 32-bit float, for fastavro does not round."""
    simple: dict[str, st.SearchStrategy[Any]] = {
        "boolean": st.booleans(),
        "int": st.integers(-(2**24), 2**24),
        "long": st.integers(-(2**24), 2**24),
        "float": st.floats(width=32, allow_nan=False, allow_infinity=False),
        "double": st.floats(width=32, allow_nan=False, allow_infinity=False),
        "string": st.text(max_size=3),
        "bytes": st.binary(max_size=3),
    }
    if isinstance(kind, str):
        return simple[kind]
    if isinstance(kind, list):
        return st.none() | values(present(kind))
    if kind["type"] == "array":
        return st.lists(values(kind["items"]), max_size=3)
    if kind["type"] == "map":
        return st.dictionaries(st.text(max_size=2), values(kind["values"]), max_size=3)
    if kind["type"] == "enum":
        return st.sampled_from(kind["symbols"])
    return st.fixed_dictionaries({one["name"]: values(one["type"]) for one in kind["fields"]})


def plain(value: Any, kind: Kind) -> Any:
    """Return a row in one form, whether it comes from Arrow (maps as pairs) or from fastavro."""
    if value is None or isinstance(kind, str):
        # fastavro hands out a default of bytes as the JSON text that stands for it.
        return value.encode("latin-1") if kind == "bytes" and isinstance(value, str) else value
    if isinstance(kind, list):
        return plain(value, present(kind))
    if kind["type"] == "array":
        return [plain(item, kind["items"]) for item in value]
    if kind["type"] == "map":
        return {key: plain(item, kind["values"]) for key, item in dict(value).items()}
    if kind["type"] == "enum":
        return value
    return {one["name"]: plain(value[one["name"]], one["type"]) for one in kind["fields"]}


def through_avro(row: Any, writer: Kind, reader: Kind) -> Any:
    """Return a row written with one schema and read with the other, by fastavro."""
    if row is None:
        return None
    sink = io.BytesIO()
    schemaless_writer(sink, parse_schema(json.loads(json.dumps(writer))), row)
    sink.seek(0)
    parsed = [parse_schema(json.loads(json.dumps(kind))) for kind in (writer, reader)]
    return plain(schemaless_reader(sink, parsed[0], parsed[1]), reader)


def read_avro(data: bytes, kind: Kind) -> Any:
    """Return a row from Avro's binary form, by fastavro, which must use up every byte."""
    source = io.BytesIO(data)
    row = plain(schemaless_reader(source, parse_schema(json.loads(json.dumps(kind)))), kind)
    assert not source.read()
    return row


def _rows(column: pa.Array, kind: Kind) -> list[Any]:
    column.validate(full=True)
    return [plain(value, kind) for value in column.to_pylist()]


def _schema(kind: Kind, schema_id: int) -> ValueSchema:
    return parse_value_schema(json.dumps(kind), schema_id)


def _compatible(new: ValueSchema, earlier: list[ValueSchema]) -> bool:
    try:
        check_compatible(new, earlier)
    except IncompatibleSchema as error:
        assert str(error.facts["field"]).startswith("value")
        return False
    return True


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_rows_and_columns_round_trip(data: st.DataObject) -> None:
    """Python rows survive the struct column, a slice of it, the flat columns and a schema derived from Arrow."""
    kind = data.draw(records("", 2))
    schema = _schema(kind, 1)
    rows = data.draw(st.lists(values(kind) | st.none(), max_size=6))
    column = rows_to_struct(rows, schema)
    present = column.filter(column.is_valid())

    assert column.type == schema.arrow_type
    assert _rows(column, kind) == rows
    assert _rows(column.slice(1), kind) == rows[1:]
    assert struct_from_columns(columns_of(present), schema).equals(present)
    derived = parse_value_schema(avsc_from_arrow(schema.arrow_type, "Derived"), 2)
    assert derived.arrow_type == schema.arrow_type


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_values_become_avros_binary_form(data: st.DataObject) -> None:
    """Every row of a column, or of a slice of it, encodes to exactly the bytes that fastavro reads it back from."""
    kind = data.draw(records("", 2))
    schema = _schema(kind, 1)
    rows = data.draw(st.lists(values(kind), max_size=6))
    column = rows_to_struct([*rows, *rows], schema)

    for start in (0, len(rows)):
        found = avro_values(column.slice(start, len(rows)), schema)
        assert [read_avro(one, kind) for one in found.to_pylist()] == rows


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_conversion_is_avros_resolution(data: st.DataObject) -> None:
    """The column conversion gives fastavro's result for every single row, for all pairs that `resolve` allows."""
    written = data.draw(records("", 2))
    read = data.draw(evolved_record(written, ""))
    writer, reader = _schema(written, 1), _schema(read, 2)
    if not _compatible(reader, [writer]):
        return
    rows = data.draw(st.lists(values(written) | st.none(), max_size=5))
    column = rows_to_struct([*rows, None], writer).slice(0, len(rows))
    converted = convert(column, writer, reader)

    assert converted.type == reader.arrow_type
    assert _rows(converted, read) == [through_avro(row, written, read) for row in rows]


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_no_reader_sees_when_a_merge_ran(data: st.DataObject) -> None:
    """For schemas that may follow each other, reading directly equals reading through any between."""
    written = data.draw(records("", 1))
    kind, chain = written, [_schema(written, 1)]
    for schema_id in (2, 3, 4):
        kind = data.draw(evolved_record(kind, ""))
        candidate = _schema(kind, schema_id)
        if _compatible(candidate, chain):
            chain.append(candidate)
        kind = json.loads(chain[-1].avsc)
    rows = data.draw(st.lists(values(written) | st.none(), max_size=4))
    column = rows_to_struct(rows, chain[0])
    direct = convert(column, chain[0], chain[-1])

    for stop in chain:
        stepped = convert(convert(column, chain[0], stop), stop, chain[-1])
        assert stepped.equals(direct)
