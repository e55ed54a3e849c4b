"""Inputs of `statelog append`: every row once and in order, broken lines by number, marks that resume exactly."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statelog.cli.append import Appended, Appender
from statelog.cli.fields import Fields
from statelog.cli.lines import Lines
from statelog.errors import CheckpointMismatch, ConfigError, InvalidChange
from statelog.operate.rows import BytesText
from statelog.schemas.key_groups import KeyType
from statelog.schemas.values.schema import parse_value_schema
from tests.support.samples.append_rows import BYTES, GOOD, TYPED, lines_of, reader, rows_of, take_first

FIXED = {"type": "fixed", "name": "F", "size": 2}
RECORD = {"type": "record", "name": "I", "fields": [{"name": "d", "type": "long", "default": 1}]}

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
longs = st.integers(-(1 << 63), (1 << 63) - 1)
opaque_rows = st.lists(st.fixed_dictionaries({"key": texts, "value": texts}), max_size=30)
required: dict[str, st.SearchStrategy[object]] = {"key": longs, "s": texts}
optional: dict[str, st.SearchStrategy[object]] = {
    "n": longs,
    "x": st.none() | st.floats(allow_nan=False, allow_infinity=False),
    "on": st.none() | st.dates().map(lambda day: day.isoformat()),
    "tags": st.none() | st.lists(texts, max_size=3),
    "at": st.none() | st.fixed_dictionaries({"lat": st.floats(-90, 90)}),
}
typed_rows = st.lists(st.fixed_dictionaries(required, optional=optional), min_size=1, max_size=20)


def resumed(source: Lines, before: Lines) -> str | None:
    """Return how an input differs from the one behind a mark, or None if it continues that one."""
    return source.resume(before.rows, before.read_bytes, before.digest)


def as_read(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """Return rows of texts as they come for a log of bytes."""
    return [{"value": str(row["value"]).encode(), "key": row["key"]} for row in rows]


def mark(source: Lines) -> tuple[int, int, str]:
    """Return the mark of an input."""
    return source.rows, source.read_bytes, source.digest


@given(rows=opaque_rows, end=st.sampled_from(["\n", "\r\n", "\n\n", " \n\r\n \t\n"]), block=st.integers(1, 200))
@settings(deadline=None)
def test_every_row_comes_once_and_in_order(rows: list[dict[str, object]], end: str, block: int) -> None:
    """Rows come as written and the mark counts them, for all line ends, blank lines and blocks."""
    source = reader(lines_of(rows, end), block_bytes=block)

    assert rows_of(source) == as_read(rows)
    assert source.rows == len(rows)


@given(rows=opaque_rows, cut=st.integers(0, 30), block=st.integers(1, 200), final=st.booleans())
@settings(deadline=None)
def test_a_mark_resumes_exactly(rows: list[dict[str, object]], cut: int, block: int, final: bool) -> None:
    """An input that resumes from the mark of any row gives the rest and ends alike, also with other blocks."""
    data = lines_of(rows, "\r\n\n")
    data = data if final else data.rstrip(b"\r\n")
    first = reader(data)
    take_first(first, min(cut, len(rows)))
    second = reader(data, block_bytes=block)
    assert resumed(second, first) is None
    whole = reader(data)
    rows_of(whole)

    assert rows_of(second) == as_read(rows)[first.rows :]
    assert mark(second) == mark(whole)


def test_a_file_that_has_grown_goes_on() -> None:
    """A file that has grown since its mark gives exactly the appended rows."""
    old = lines_of([{"key": "a", "value": "1"}])
    source = reader(old.rstrip(b"\n"))
    rows_of(source)
    grown = reader(old + lines_of([{"key": "b", "value": "2"}]))
    assert resumed(grown, source) is None

    assert rows_of(grown) == [{"value": b"2", "key": "b"}]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'{"key":"a","value":"2"}\n', "its beginning differs"),
        (b'{"key":"a"', "it is shorter"),
    ],
)
def test_another_input_is_refused(data: bytes, reason: str) -> None:
    """A mark does not resume an input with another beginning. The error says which rows count."""
    source = reader(b'{"key":"a","value":"1"}\n')
    rows_of(source)

    other = Appender("w", reader(data), BYTES, Appended())
    with pytest.raises(CheckpointMismatch, match=reason) as caught:
        other.skip(Appender("w", source, BYTES, Appended()).mark())
    assert caught.value.facts["committed_rows"] == 1


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'{"key":"b","value":}', "Invalid value"),
        (b'{"key":"b"', "not one JSON object"),
        (b'["b"]', "not one JSON object"),
        (b"null", "not one JSON object"),
        (b'{"key":"b","value":"1"}{"key":"c","value":"2"}', "more than one object"),
        (b'{"key":"b",\n"value":"1"}', "not one JSON object"),
        (b'{"key":"b","value":"\xff"}', "utf-8.*can't decode byte 0xff in position 20"),
        (b'{"key":"b","value":"\\ud800"}', "surrogate"),
        (b'{"key":"b","key":"c","value":"1"}', "Column\\(/key\\) was specified twice"),
        (b'{"key":"b","value":"1","x":1}', "does not have: x"),
        (b'{"key":"b","value":"1","x":[1,"a"]}', "the log does not have"),
        (b'{"key":1,"value":"1"}', "the field 'key' is of JSON's type number, and not string"),
        (b'{"key":"b","value":{"n":1}}', "the field 'value' is of JSON's type object, and not string"),
        (b'{"key":"b","value":NaN}', "type number, and not string"),
    ],
)
@pytest.mark.parametrize("before", [0, 1, 7])
def test_a_broken_line_is_named(line: bytes, problem: str, before: int) -> None:
    """The error has the line's number and the reason, and follows all rows before it, even in the same block."""
    source = reader(GOOD * before + line + b"\n" + GOOD, block_bytes=1 << 20)
    found: list[int] = []

    with pytest.raises(InvalidChange, match=problem) as caught:
        for batch in source.batches():
            source.take(batch.num_rows)
            found.append(batch.num_rows)
    assert caught.value.facts["line"] == before + 1
    assert sum(found) == before == source.rows


@pytest.mark.parametrize("value", ["9223372036854775808", "-9223372036854775809", "1.5", "true", '"1"'])
def test_a_long_takes_nothing_else(value: str) -> None:
    """Integers beyond 64 bits, fractions, booleans and texts are no longs."""
    source = reader(b'{"key":1,"s":"","n":1}\n{"key":2,"s":"","n":' + value.encode() + b"}\n", TYPED)

    with pytest.raises(InvalidChange) as caught:
        for batch in source.batches():
            source.take(batch.num_rows)
    assert caught.value.facts["line"] == 2


@pytest.mark.parametrize("value", ['"a"', "true", "1", "1.5", "null"])
def test_a_field_that_no_schema_names_has_the_type_of_the_first_row(value: str) -> None:
    """An unnamed field takes the first row's type: text, boolean or number.

    Null counts as text, and an object is refused.
    """
    row = f'{{"key":"a","value":"1","day":{value},"other":[1,"a"]}}'.encode()
    source = reader(row, checkpoint_field="day", ignore_unknown=True)
    assert [found["day"] for found in rows_of(source)] == [json.loads(value)]
    with pytest.raises(InvalidChange, match="type object, and not string"):
        rows_of(reader(b'{"key":"a","value":"1","day":{}}', checkpoint_field="day"))


def test_rows_of_any_length_are_read() -> None:
    """A row may be longer than the pieces in which Arrow reads a block."""
    rows: list[dict[str, object]] = [{"key": str(length), "value": "v" * length} for length in (1, 3 << 20, 2, 1 << 20)]
    assert rows_of(reader(lines_of(rows), block_bytes=8 << 20)) == as_read(rows)


def test_a_byte_order_mark_is_no_part_of_the_first_line() -> None:
    """A file that begins with UTF-8's mark is read, and resumed, like any other."""
    data = b"\xef\xbb\xbf" + GOOD + GOOD
    source = reader(data)
    next(source.batches())
    source.take(1)
    again = reader(data)
    assert resumed(again, source) is None

    assert rows_of(again) == [{"value": b"1", "key": "a"}]


@given(rows=typed_rows)
@settings(deadline=None, max_examples=60)
def test_typed_rows_are_read_in_the_types_of_the_log(rows: list[dict[str, object]]) -> None:
    """Dates, lists and records come out as written. A missing or null field is the default, or null."""
    changes = TYPED.to_changes(
        pa.Table.from_batches(list(batches(lines_of(rows), TYPED))).combine_chunks().to_batches()[0]
    )
    expected = [{"n": 7, "x": None, "on": None, "tags": None, "at": None, **row} for row in rows]

    for found, row in zip(changes.to_pylist(), expected, strict=True):
        assert found["key"] == row.pop("key")
        on = found["value"]["on"]
        assert {**found["value"], "on": None if on is None else on.isoformat()} == row


def batches(data: bytes, fields: Fields) -> Iterator[pa.RecordBatch]:
    """Return the batches of an input that is read in one block."""
    source = reader(data, fields, block_bytes=1 << 20)
    for batch in source.batches():
        yield batch
        source.take(batch.num_rows)


def typed(*fields: dict[str, object], **options: object) -> Fields:
    """Return the descriptor of a log with these fields in its values."""
    avsc = json.dumps({"type": "record", "name": "R", "fields": list(fields)})
    return replace(Fields(key_type=KeyType.STRING, value_schema=parse_value_schema(avsc, 1)), **options)  # type: ignore[arg-type]  # every test names options


@pytest.mark.parametrize("value", ["1e300", "-1e39", "9" * 50])
@pytest.mark.parametrize("kind", ["float", {"type": "array", "items": "float"}])
def test_a_number_too_large_for_a_float_is_refused(kind: object, value: str) -> None:
    """A finite number that Arrow would turn into infinity is refused. A written infinity is accepted."""
    avsc = json.dumps({"type": "record", "name": "R", "fields": [{"name": "f", "type": kind}]})
    fields = replace(TYPED, value_schema=parse_value_schema(avsc, 1))

    def lines(*values: str) -> bytes:
        shown = values if kind == "float" else [f"[0.5, {one}]" for one in values]
        return "".join(f'{{"key": 1, "f": {one}}}\n' for one in shown).encode()

    assert len(rows_of(reader(lines("0.1", "1e38", "Infinity", "NaN"), fields))) == 4
    with pytest.raises(InvalidChange, match=r"line 2 is broken: the field 'f' .* a number is too large"):
        rows_of(reader(lines("0.1", value), fields))


def test_bytes_are_text_or_base64() -> None:
    """Bytes in keys, values and value fields are UTF-8 or base64. Other texts are no base64."""
    data = b'{"key":"aGk=","value":"/w=="}\n'
    opaque = replace(BYTES, key_type=KeyType.BYTES)
    assert next(batches(data, opaque)).to_pylist() == [{"value": b"/w==", "key": b"aGk="}]
    base64 = replace(opaque, bytes_text=BytesText.BASE64)
    assert next(batches(data, base64)).to_pylist() == [{"value": b"\xff", "key": b"hi"}]
    two = typed(
        {"name": "b", "type": "bytes", "default": "x"}, {"name": "f", "type": FIXED}, bytes_text=BytesText.BASE64
    )
    assert next(batches(b'{"key":"a","f":"aGk="}\n', two)).to_pylist() == [{"b": b"x", "f": b"hi", "key": "a"}]
    with pytest.raises(InvalidChange, match="the field 'value' is not binary"):
        next(batches(b'{"key":"aGk=","value":"?"}\n', base64))


@pytest.mark.parametrize(
    ("field", "path", "problem"),
    [
        ({"name": "m", "type": {"type": "map", "values": "long"}}, "value.m", "a map"),
        ({"name": "l", "type": {"type": "array", "items": {"type": "map", "values": "long"}}}, "value.l[]", "a map"),
        ({"name": "t", "type": {"type": "int", "logicalType": "time-millis"}}, "value.t", "a time of day"),
        ({"name": "l", "type": {"type": "array", "items": "bytes"}}, "value.l[]", "base64"),
        ({"name": "d", "type": ["string", "null"], "default": "x"}, "value.d", "null from a missing field"),
        ({"name": "r", "type": RECORD}, "value.r.d", "null from a missing field"),
    ],
)
def test_what_arrow_cannot_read_is_refused_by_name(field: dict[str, object], path: str, problem: str) -> None:
    """Value types that Arrow's JSON reader lacks refuse JSON lines. The error has the field and the reason."""
    with pytest.raises(ConfigError, match=problem) as caught:
        reader(GOOD, typed(field, bytes_text=BytesText.BASE64))
    assert caught.value.facts["field"] == path
    assert "Parquet" in caught.value.hint


def test_a_base64_key_is_no_field_of_the_value() -> None:
    """One text cannot be base64 in the key and plain text in the value."""
    with pytest.raises(ConfigError, match="cannot also be a field"):
        reader(GOOD, typed({"name": "key", "type": "string"}, bytes_text=BytesText.BASE64))
