"""CSV as an input of `statelog append`: every row once, in the log's types, broken lines by number, exact marks."""

import datetime
import json
import math
import re
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statelog.cli.append import Appended, Appender, open_input
from statelog.cli.fields import Fields
from statelog.cli.lines import Lines
from statelog.cli.row_readers import CsvRows
from statelog.errors import CheckpointMismatch, ConfigError, InvalidChange
from statelog.operate.rows import BytesText
from statelog.schemas.key_groups import KeyType
from statelog.schemas.values.schema import parse_value_schema
from tests.support.samples.append_rows import BYTES, rows_of, stream, take_first


def typed(*fields: dict[str, object], **options: object) -> Fields:
    """Return the descriptor of a log with these fields in its values."""
    avsc = json.dumps({"type": "record", "name": "R", "fields": list(fields)})
    return replace(Fields(key_type=KeyType.STRING, value_schema=parse_value_schema(avsc, 1)), **options)  # type: ignore[arg-type]  # every test names options


def reader(data: bytes, fields: Fields = BYTES, block_bytes: int = 1 << 20, kind: str = "csv") -> Lines:
    """Return a CSV reader over bytes."""
    return Lines(stream(data), CsvRows(fields, kind), name="test", block_bytes=block_bytes)


NOTES = typed({"name": "note", "type": ["null", "string"], "default": None})
_QUOTED = re.compile(r'^$|[",\t]')
GOOD = b"key,value\na,1\n"
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"), max_size=8)
rows_of_notes = st.lists(st.fixed_dictionaries({"key": st.none() | texts, "note": st.none() | texts}), max_size=30)


def csv_of(rows: list[dict[str, str | None]], end: str = "\n", delimiter: str = ",") -> bytes:
    """Return rows as CSV, with quotes where they are needed: around an empty text, but not around null."""

    def field(text: str | None) -> str:
        return "" if text is None else f'"{text.replace(chr(34), chr(34) * 2)}"' if _QUOTED.search(text) else text

    lines = [
        delimiter.join(["key", "note"]),
        *(delimiter.join(field(row[name]) for name in ("key", "note")) for row in rows),
    ]
    return "".join(line + end for line in lines).encode()


@given(
    rows=rows_of_notes,
    end=st.sampled_from(["\n", "\r\n", "\n\n", "\r\n\r\n"]),
    block=st.integers(1, 200),
    kind=st.sampled_from(["csv", "tsv"]),
)
@settings(deadline=None)
def test_every_row_comes_once_and_in_order(rows: list[dict[str, str | None]], end: str, block: int, kind: str) -> None:
    """Every row comes once and in order, for all line ends, blank lines and blocks. Null is no empty text."""
    source = reader(csv_of(rows, end, {"csv": ",", "tsv": "\t"}[kind]), NOTES, block, kind)

    assert rows_of(source) == rows
    assert source.rows == len(rows)


@given(rows=rows_of_notes, cut=st.integers(0, 30), blocks=st.tuples(st.integers(1, 200), st.integers(1, 200)))
@settings(deadline=None)
def test_a_mark_resumes_exactly(rows: list[dict[str, str | None]], cut: int, blocks: tuple[int, int]) -> None:
    """An input that resumes from the mark of any row gives the rest and ends alike, also with other blocks."""
    data = b"\xef\xbb\xbf" + csv_of(rows, "\r\n")
    first = reader(data, NOTES, blocks[0])
    take_first(first, min(cut, len(rows)))
    second, whole = reader(data, NOTES, blocks[1]), reader(data, NOTES)
    assert second.resume(first.rows, first.read_bytes, first.digest) is None
    rows_of(whole)

    assert rows_of(second) == rows[first.rows :]
    assert (second.rows, second.read_bytes, second.digest) == (whole.rows, whole.read_bytes, whole.digest)


def test_the_header_is_part_of_the_mark() -> None:
    """The same rows under another header are another input. Under the same header, a file may have grown."""
    first = reader(GOOD)
    rows_of(first)
    mark = Appender("w", first, BYTES, Appended()).mark()
    assert mark["input.kind"] == "csv"

    for other, reason in (
        (reader(b"value,key\na,1\n"), "its beginning differs"),
        (reader(b"key,value\n"), "it is shorter"),
        (reader(b"key\tvalue\na\t1\n", kind="tsv"), "it was csv"),
    ):
        with pytest.raises(CheckpointMismatch, match=reason):
            Appender("w", other, BYTES, Appended()).skip(mark)
    grown = reader(GOOD + b"b,2\nc\n")
    Appender("w", grown, BYTES, Appended()).skip(mark)
    rest = grown.batches()
    assert next(rest).to_pylist() == [{"key": "b", "value": b"2"}]
    assert grown.place(0) == {"line": 3}
    with pytest.raises(InvalidChange, match="line 4"):
        next(rest)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"b", "Expected 2 columns, got 1"),
        (b"b,2,3", "Expected 2 columns, got 3"),
        (b'b,"2', "an open quote"),
        (b'b,"2\n3"', "an open quote"),
        (b'"b","2', "an open quote"),
        (b'"b","2\n3"', "an open quote"),
        (b'b,"2\r\n3"', "an open quote"),
        (b'b,"2\r3"', "carriage return"),
        (b"b,2\rc,3", "carriage return"),
        (b"b,\xff", "utf-8.*can't decode byte 0xff in position 2"),
        (b'"b,2\n\n"\rc,3', "an open quote|carriage return"),
    ],
)
@pytest.mark.parametrize("before", [1, 7])
def test_a_broken_line_is_named(line: bytes, problem: str, before: int) -> None:
    """The error has the line's number and the reason, and follows all rows before it, even in the same block."""
    source = reader(GOOD + b"a,1\n" * (before - 1) + line + b"\n" + b"z,9\n" * 3)

    with pytest.raises(InvalidChange, match=problem) as caught:
        rows_of(source)
    assert caught.value.facts["line"] == before + 2
    assert source.rows == before


def test_a_line_that_may_have_been_cut_off_is_refused() -> None:
    """The last line needs its end: `1` may be the beginning of `12`. Rows before it count."""
    source = reader(GOOD + b"b,1")

    with pytest.raises(InvalidChange, match="line 3 is broken: it has no line end"):
        rows_of(source)
    assert source.rows == 1


def test_a_field_over_two_lines_is_found_anywhere() -> None:
    """A quoted field that spans two lines stays one row, wherever the block ends."""
    for line in (b'a,"x\n', b'a,"' + b"x" * 70 + b'\ny",2\n'):
        with pytest.raises(InvalidChange, match="line 2 is broken: it has an open quote"):
            rows_of(reader(b"key,value\n" + line * 40_000, block_bytes=4 << 20))


def test_rows_of_any_length_are_read() -> None:
    """A row may be longer than the pieces in which Arrow reads a file."""
    rows = [(str(length), "v" * length) for length in (1, 3 << 20, 2, 1 << 20)]
    data = b"key,value\n" + "".join(f"{key},{value}\n" for key, value in rows).encode()
    assert [len(str(row["value"])) for row in rows_of(reader(data, block_bytes=8 << 20))] == [
        len(str(value.encode())) for _, value in rows
    ]


def test_a_byte_order_mark_is_no_part_of_the_header_and_stays_in_a_field() -> None:
    """A byte order mark at the beginning of a file is dropped. The same letter inside of a field is retained."""
    data = '\ufeffkey,value\n\ufeffa,1\n\ufeff"b,2\n'.encode()
    for block in (1, 5, 1 << 20):
        assert [row["key"] for row in rows_of(reader(data, block_bytes=block))] == ["\ufeffa", '\ufeff"b']


@pytest.mark.parametrize(
    ("header", "problem", "fields"),
    [
        (b"value", "no field 'key' for the key", "value"),
        (b"key", "no field 'value' for the value", "key"),
        (b"key;value", "no field 'key'", "key;value"),
        (b"key,value,x", "does not have", "x"),
        (b"key,value,key", "a field twice", "key"),
        (b"", "not a CSV header", None),
        (b'key,"value', "not a CSV header", None),
        (b"key\rvalue", "not a CSV header", None),
        (b"key,value\xff", "the header is broken", None),
    ],
)
def test_a_header_that_does_not_fit_is_refused(header: bytes, problem: str, fields: str | None) -> None:
    """Missing, unknown and repeated fields are reported before any row is read, with what to do."""
    with pytest.raises(InvalidChange, match=problem) as caught:
        rows_of(reader(header + b"\na,1,2\n"))
    assert (caught.value.facts.get("fields"), caught.value.facts["line"]) == (fields, 1)
    assert caught.value.hint


def test_unknown_fields_are_dropped_if_the_user_says_so() -> None:
    """Unknown fields are dropped on request, whatever their names and values, also when repeated."""
    source = reader(b"x,key,,value,\n[,a,?,1,?\n", replace(BYTES, ignore_unknown=True))
    assert rows_of(source) == [{"key": "a", "value": b"1"}]


def test_an_input_without_rows_is_none() -> None:
    """An empty input, or a header alone, is no error: the file may grow."""
    assert [rows_of(reader(data)) for data in (b"", b"key,value\n", b"key,value")] == [[], [], []]


def test_ops_and_checkpoints_are_text() -> None:
    """Fields that no schema names are text, so that the first row does not decide their type."""
    fields = replace(BYTES, op_field="gone", delete_value="1", checkpoint_field="day")
    (batch,) = reader(b"day,gone,key,value\n01,1,a,\n2,0,b,x\n", fields).batches()

    assert batch.column("day").to_pylist() == ["01", "2"]
    changes = [(row["op"], row["key"], row["value"]) for row in fields.to_changes(batch).to_pylist()]
    assert changes == [("delete", "a", None), ("put", "b", b"x")]


def test_fields_are_read_in_the_types_of_the_log() -> None:
    """Fields are read in the log's types. An empty field is null, or the default of a field that has no null."""
    kinds: list[tuple[str, dict[str, object], bytes, object]] = [
        ("n", {"type": "long", "default": 7}, b"", 7),
        ("x", {"type": ["null", "double"]}, b"", None),
        ("s", {"type": ["string", "null"], "default": "d"}, b"", None),
        ("b", {"type": "boolean"}, b"true", True),
        ("d", {"type": {"type": "int", "logicalType": "date"}}, b"2030-01-31", datetime.date(2030, 1, 31)),
        ("t", {"type": {"type": "int", "logicalType": "time-millis"}}, b"12:00:01.5", datetime.time(12, 0, 1, 500_000)),
        (
            "at",
            {"type": {"type": "long", "logicalType": "timestamp-micros"}},
            b"2030-01-31T12:00:00+01:00",
            datetime.datetime(2030, 1, 31, 11, tzinfo=datetime.UTC),
        ),
        (
            "p",
            {"type": {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}},
            b"1.5",
            Decimal("1.50"),
        ),
        ("f", {"type": {"type": "fixed", "name": "F", "size": 2}}, b"hi", b"hi"),
        ("z", {"type": "string"}, b"007", "007"),
    ]
    fields = typed(*[{"name": name, **kind} for name, kind, _, _ in kinds])
    names, given_, read = zip(*[(name, text, value) for name, _, text, value in kinds], strict=True)
    data = b"key," + ",".join(names).encode() + b"\nk," + b",".join(given_) + b"\n"

    assert rows_of(reader(data, fields)) == [{"key": "k", **dict(zip(names, read, strict=True))}]


@pytest.mark.parametrize("value", [b"9223372036854775808", b"1.5", b"true", b'""', b"x", b"NA"])
def test_a_long_takes_nothing_else(value: bytes) -> None:
    """Text that is no number is refused by the name of its field. Only the empty field is null."""
    with pytest.raises(InvalidChange, match="line 3 is broken: the field 'n': conversion error to int64") as caught:
        rows_of(reader(b"key,n\na,1\nb," + value + b"\n", typed({"name": "n", "type": "long"})))
    assert caught.value.facts["line"] == 3


def test_a_number_too_large_for_a_float_is_refused() -> None:
    """A finite number that Arrow would turn into infinity is refused. A written infinity is accepted."""
    fields = typed({"name": "f", "type": "float"})
    assert rows_of(reader(b"key,f\na,1e38\nb,inf\n", fields))[1]["f"] == math.inf
    with pytest.raises(InvalidChange, match=r"line 3 is broken: the field 'f' .* a number is too large"):
        rows_of(reader(b"key,f\na,0.1\nb,1e39\n", fields))


def test_bytes_are_text_or_base64() -> None:
    """Bytes are UTF-8 or base64, in keys and in values, as in JSON."""
    fields = replace(BYTES, key_type=KeyType.BYTES, bytes_text=BytesText.BASE64)
    assert rows_of(reader(b"key,value\naGk=,/w==\n", fields)) == [{"key": b"hi", "value": b"\xff"}]
    with pytest.raises(InvalidChange, match="the field 'value' is not binary"):
        rows_of(reader(b"key,value\naGk=,?\n", fields))


@pytest.mark.parametrize("kind", ["record", "array", "map"])
def test_what_csv_cannot_hold_is_refused_by_name(kind: str) -> None:
    """A log with nested value fields refuses CSV. The error has the field and the reason."""
    inner: dict[str, object] = {"type": kind, "items": "long", "values": "long", "name": "I", "fields": []}
    if kind == "record":
        inner["fields"] = [{"name": "n", "type": "long"}]
    with pytest.raises(ConfigError, match=f"nested field .{kind}") as caught:
        reader(GOOD, typed({"name": "l", "type": ["null", inner]}))
    assert caught.value.facts["field"] == "value.l"
    assert "Parquet" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "data", "lines_as", "kind"),
    [
        ("a.csv", GOOD, None, "csv"),
        ("a.CSV", GOOD, None, "csv"),
        ("a.tsv", GOOD, None, "tsv"),
        ("a.csv", b'{"key":"a","value":"1"}\n', "json", "json-lines"),
        ("a.txt", GOOD, "csv", "csv"),
        ("a.txt", GOOD, "tsv", "tsv"),
        ("-", GOOD, "csv", "csv"),
        ("-", GOOD, None, "json-lines"),
    ],
)
def test_the_name_of_a_file_or_an_option_says_what_lines_are(
    tmp_path: Path, name: str, data: bytes, lines_as: str | None, kind: str
) -> None:
    """The option overrides the file's name. Standard input without the option is JSON lines."""
    (tmp_path / name).write_bytes(data)
    source = name if name == "-" else str(tmp_path / name)
    with open_input(source, BYTES, stream(data), lines_as) as opened:
        assert opened.kind == kind


def test_who_appends_csv_as_json_is_told_of_the_option() -> None:
    """The error of the first line says how CSV is read."""
    with open_input("-", BYTES, stream(GOOD)) as source, pytest.raises(InvalidChange, match="--format csv"):
        next(source.batches())
