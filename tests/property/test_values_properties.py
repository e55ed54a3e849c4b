"""Value conversion by column against fastavro's resolution row by row, and against the order in which merges ran."""

import json
from typing import Any

import pyarrow as pa
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
from tests.support.samples.value_kinds import Kind, evolved_record, plain, read_avro, records, through_avro, values


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
    """Whatever `resolve` allows, the column conversion gives what fastavro gives for every single row."""
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
    """For schemas that may follow each other, reading directly equals reading through any that lie between."""
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
