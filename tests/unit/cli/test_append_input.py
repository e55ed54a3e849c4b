"""Inputs of `statelog append`: every row once and in order, broken lines by number, marks that resume exactly."""

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statelog.cli.inputs.fields import BytesText, FieldMapping, LogShape, to_changes
from statelog.cli.inputs.json_lines import JsonLines
from statelog.cli.inputs.json_parse import LineParser
from statelog.cli.inputs.json_rows import parse_rows
from statelog.cli.inputs.line_index import index_lines
from statelog.errors import CheckpointMismatch, InvalidChange
from statelog.schemas.keys.key_groups import KeyType
from statelog.schemas.values.schema import parse_value_schema
from tests.support.samples.append_rows import GOOD, MAP_AVSC, TYPED, lines_of, reader, rows_of

MAPS = LogShape(key_type=KeyType.STRING, value_schema=parse_value_schema(MAP_AVSC, 1))

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


@given(rows=opaque_rows, end=st.sampled_from(["\n", "\r\n", "\n\n", " \n\r\n \t\n"]), block=st.integers(1, 200))
@settings(deadline=None)
def test_every_row_comes_once_and_in_order(rows: list[dict[str, object]], end: str, block: int) -> None:
    """Whatever the line ends, blank lines and blocks, the rows are those written, and the mark counts them."""
    source = reader(lines_of(rows, end), block_bytes=block)

    assert rows_of(source) == rows
    assert source.mark.rows == len(rows)


@given(rows=opaque_rows, cut=st.integers(0, 30), block=st.integers(1, 200), final=st.booleans())
@settings(deadline=None)
def test_a_mark_resumes_exactly(rows: list[dict[str, object]], cut: int, block: int, final: bool) -> None:
    """Taken up to any row, and resumed from its mark with other blocks, an input gives the rest and ends alike."""
    data = lines_of(rows, "\r\n\n")
    data = data if final else data.rstrip(b"\r\n")
    first = reader(data)
    left = min(cut, len(rows))
    for batch in first.batches():
        taken = min(left, batch.num_rows)
        if taken:
            first.take(taken)
        left -= taken
        if not left:
            break
    second = reader(data, block_bytes=block)
    second.resume(first.mark)
    whole = reader(data)
    rows_of(whole)

    assert rows_of(second) == rows[first.mark.rows :]
    assert second.mark == whole.mark


def test_a_file_that_has_grown_goes_on() -> None:
    """What was appended to a file since its mark was taken is what comes."""
    old = lines_of([{"key": "a", "value": "1"}])
    source = reader(old.rstrip(b"\n"))
    rows_of(source)
    grown = reader(old + lines_of([{"key": "b", "value": "2"}]))
    grown.resume(source.mark)

    assert rows_of(grown) == [{"key": "b", "value": "2"}]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'{"key":"a","value":"2"}\n', "its beginning differs"),
        (b'{"key":"a"', "it is shorter"),
    ],
)
def test_another_input_is_refused(data: bytes, reason: str) -> None:
    """A mark does not resume an input whose beginning is another one, and says which rows count."""
    source = reader(b'{"key":"a","value":"1"}\n')
    rows_of(source)

    with pytest.raises(CheckpointMismatch, match=reason) as caught:
        reader(data).resume(source.mark)
    assert caught.value.facts["committed_rows"] == 1


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'{"key":"b","value":}', "not JSON: Expecting value at column 20"),
        (b'{"key":"b"', "not one JSON object"),
        (b'["b"]', "not one JSON object"),
        (b"null", "not one JSON object"),
        (b'{"key":"b","value":"1"}{"key":"c","value":"2"}', "not JSON: Extra data"),
        (b'{"key":"b",\n"value":"1"}', "not one JSON object"),
        (b'{"key":"b","value":"\xff"}', "not UTF-8"),
        (b'{"key":"b","value":"\\ud800"}', "surrogate"),
        (b'{"key":"b","key":"c","value":"1"}', "a name twice: key"),
        (b'{"key":"b","value":"1","x":1}', "does not have: x"),
        (b'{"key":1,"value":"1"}', "from string to number"),
        (b'{"key":"b","value":{"n":1}}', "from string to object"),
        (b'{"key":"b","value":NaN}', "from string to number"),
    ],
)
@pytest.mark.parametrize("before", [0, 1, 7])
def test_a_broken_line_is_named(line: bytes, problem: str, before: int) -> None:
    """The error has the line's number and the reason, and comes after all rows before it, even in the same block."""
    source = reader(GOOD * before + line + b"\n" + GOOD, block_bytes=1 << 20)
    found: list[int] = []

    with pytest.raises(InvalidChange, match=problem) as caught:
        for batch in source.batches():
            source.take(batch.num_rows)
            found.append(batch.num_rows)
    assert caught.value.facts["line"] == before + 1
    assert sum(found) == before == source.mark.rows


@pytest.mark.parametrize("value", ["9223372036854775808", "-9223372036854775809", "1.5", "true", '"1"'])
def test_a_long_takes_nothing_else(value: str) -> None:
    """Integers beyond 64 bits, fractions, booleans and texts are no longs."""
    source = reader(b'{"key":1,"s":"","n":1}\n{"key":2,"s":"","n":' + value.encode() + b"}\n", TYPED)

    with pytest.raises(InvalidChange) as caught:
        for batch in source.batches():
            source.take(batch.num_rows)
    assert caught.value.facts["line"] == 2


def test_a_byte_order_mark_is_no_part_of_the_first_line() -> None:
    """A file that begins with UTF-8's mark is read, and resumed, like any other."""
    data = b"\xef\xbb\xbf" + GOOD + GOOD
    source = reader(data)
    next(source.batches())
    source.take(1)
    again = reader(data)
    again.resume(source.mark)

    assert rows_of(again) == [{"key": "a", "value": "1"}]


@given(rows=typed_rows)
@settings(deadline=None, max_examples=60)
def test_arrow_and_python_read_alike(rows: list[dict[str, object]]) -> None:
    """Typed rows come out of Arrow's parser as they come out of Python's, defaults of missing fields included."""
    data = lines_of(rows)
    batch, broken = LineParser(FieldMapping(), TYPED).parse(data, index_lines(data))
    assert batch is not None
    assert broken is None
    slow = parse_rows(data.splitlines(), FieldMapping(), TYPED)

    fast_changes = to_changes(batch, FieldMapping(), TYPED)
    slow_changes = to_changes(slow, FieldMapping(), TYPED)
    assert fast_changes.to_pylist() == slow_changes.to_pylist()
    assert [row["key"] for row in fast_changes.to_pylist()] == [row["key"] for row in rows]


def test_maps_times_and_bytes_are_read() -> None:
    """Values that Arrow's parser lacks are read row by row: maps as objects, times as ISO 8601, bytes as texts."""
    data = b'{"key":"a","m":{"x":1},"t":"12:00:01.500","b":"aGk="}\n{"key":"b","m":{}}\n'
    mapping = FieldMapping(bytes_text=BytesText.BASE64)
    source = JsonLines(io.BytesIO(data).read, mapping, MAPS, name="test")
    (batch,) = list(source.batches())
    values = to_changes(batch, mapping, MAPS).column("value").to_pylist()

    assert [value["m"] for value in values] == [[("x", 1)], []]
    assert [value["b"] for value in values] == [b"hi", b""]
    assert str(values[0]["t"]) == "12:00:01.500000"
