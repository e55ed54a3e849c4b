"""Rules of `statelog append`: which rows are changes, where commits fall, and how formats and marks are recognised."""

import gzip
import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from statelog.cli.append import MOST_ROWS, Appended, Appender, ParquetRows, open_input, writer_name
from statelog.cli.fields import Fields
from statelog.cli.lines import Lines
from statelog.cli.row_readers import JsonRows
from statelog.errors import CheckpointMismatch, ConfigError, InvalidChange, NotFound
from tests.support.samples.append_rows import BYTES, GOOD, TYPED, reader, rows_of, stream


def appender(source: Lines | ParquetRows, fields: Fields = BYTES) -> Appender:
    """Return the loop of an input."""
    return Appender("w", source, fields, Appended())


def changes_of(data: bytes, fields: Fields) -> list[tuple[str, str, bytes | None]]:
    """Return op, key and value of the changes of an input."""
    (batch,) = list(reader(data, fields, block_bytes=1 << 20).batches())
    return [(row["op"], row["key"], row["value"]) for row in fields.to_changes(batch).to_pylist()]


def test_a_field_tells_put_from_delete() -> None:
    """The op field says put or delete. With a delete value, every other value is a put."""
    data = b'{"key":"a","value":"1","op":"put"}\n{"key":"b","op":"delete"}\n'
    assert changes_of(data, replace(BYTES, op_field="op")) == [("put", "a", b"1"), ("delete", "b", None)]

    flags = b'{"key":"a","value":"1","gone":false}\n{"key":"b","gone":true}\n'
    flagged = replace(BYTES, op_field="gone", delete_value="true")
    assert changes_of(flags, flagged) == [("put", "a", b"1"), ("delete", "b", None)]


@pytest.mark.parametrize(
    "options", [{"checkpoint_field": "comit"}, {"op_field": "opp", "delete_value": "D", "ignore_unknown": True}]
)
def test_a_named_field_that_no_row_has_is_refused(options: dict[str, object]) -> None:
    """A misspelt op or checkpoint field ends the run: before its first commit, or after many rows without the field."""
    fields = replace(BYTES, **{**options, "ignore_unknown": True})  # type: ignore[arg-type]  # every case names options
    data = b'{"key":"a","value":"1","commit":1}\n{"key":"b","op":"D","value":"2","commit":2}\n'
    source = reader(data, fields, block_bytes=1 << 20)
    (batch,) = list(source.batches())
    wrong = appender(source, fields)
    wrong.note_fields(batch)
    with pytest.raises(InvalidChange, match="no row of the input has the field"):
        wrong.require_seen()
    with pytest.raises(InvalidChange):
        wrong.note_fields(pa.RecordBatch.from_pydict({"key": ["a"] * (MOST_ROWS + 1)}))
    spelt = replace(BYTES, checkpoint_field="commit", op_field="op", delete_value="D")
    right = appender(source, spelt)
    right.note_fields(next(reader(data, spelt, block_bytes=1 << 20).batches()))
    right.require_seen()


def test_a_delete_value_needs_its_field() -> None:
    """A delete value without an op field is refused."""
    with pytest.raises(ConfigError, match="--delete-value"):
        replace(BYTES, delete_value="D")


def test_commits_fall_on_every_nth_row() -> None:
    """A commit comes after every fourth row, counted across batches."""
    loop = appender(reader(GOOD), replace(BYTES, checkpoint_every=4))
    batch = pa.RecordBatch.from_pydict({"key": ["a"] * 10})
    assert [loop.points(batch.slice(0, rows)) for rows in (10, 4, 3)] == [[4, 8], [4], []]


def test_commits_fall_where_a_field_changes() -> None:
    """A commit comes before each row with another value, also in the next batch, but never before the first row."""
    loop = appender(reader(GOOD), replace(BYTES, checkpoint_field="day"))
    days = [None, 1, 1, 2, None, None, 3]
    batch = pa.RecordBatch.from_pydict({"key": ["a"] * 7, "day": days})
    assert loop.points(batch) == [1, 3, 4, 6]
    assert loop.points(batch.slice(6)) == []
    assert loop.points(pa.RecordBatch.from_pydict({"key": ["a"], "other": [1]})) == []


def test_values_that_cannot_be_compared_are_no_checkpoints() -> None:
    """A checkpoint field whose values cannot be compared is refused by name."""
    loop = appender(reader(GOOD), replace(BYTES, checkpoint_field="day"))
    with pytest.raises(InvalidChange, match="'day' is struct"):
        loop.points(pa.RecordBatch.from_pydict({"key": ["a"] * 2, "day": [{"of": 1}, {"of": 2}]}))


@pytest.mark.parametrize("option", ["key_field", "value_field", "op_field", "delete_value", "checkpoint_field"])
def test_what_no_input_can_have_is_refused(option: str) -> None:
    """An option that is not UTF-8 is refused, since no input can have such a field."""
    with pytest.raises(ConfigError, match="not UTF-8"):
        replace(BYTES, **{"op_field": "op", option: "\udcff"})  # type: ignore[arg-type]  # every case names options


@pytest.mark.parametrize("rule", [{"checkpoint_every": 1, "checkpoint_field": "f"}, {"checkpoint_every": 0}])
def test_contradicting_checkpoint_rules_are_refused(rule: dict[str, object]) -> None:
    """Two checkpoint rules at once are refused, and so are checkpoints every zero rows."""
    with pytest.raises(ConfigError, match="--checkpoint"):
        replace(BYTES, **rule)  # type: ignore[arg-type]  # the table has both options' types


@pytest.mark.parametrize("taken", range(0, 26, 5))
def test_a_parquet_file_resumes_at_any_row(tmp_path: Path, taken: int) -> None:
    """The rows behind the mark come, wherever row groups and batches end."""
    table = pa.table({"key": [f"k{number}" for number in range(25)], "value": [b"v"] * 25})
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=7)
    first = ParquetRows(tmp_path / "in.parquet", batch_rows=4)
    first.take(taken)
    second = ParquetRows(tmp_path / "in.parquet", batch_rows=3)
    appender(second).skip(appender(first).mark())

    assert rows_of(second) == table.to_pylist()[taken:]
    assert second.place(0) == {"row": 26}


def test_another_parquet_file_is_refused(tmp_path: Path) -> None:
    """A Parquet file that differs in one value is another input, and so is a file of another format."""
    for name, value in (("a", b"1"), ("b", b"2")):
        pq.write_table(pa.table({"key": ["k"], "value": [value]}), tmp_path / name)
    mark = appender(ParquetRows(tmp_path / "a")).mark()

    with pytest.raises(CheckpointMismatch, match="the file differs"):
        appender(ParquetRows(tmp_path / "b")).skip(mark)
    with pytest.raises(CheckpointMismatch, match="it was parquet"):
        appender(reader(GOOD)).skip(mark)


def test_what_is_hashed_is_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is replaced while it is hashed is read to its end, so the mark belongs to the rows that were read."""
    path = tmp_path / "in"
    for name, value in (("in", b"old"), ("next", b"new")):
        pq.write_table(pa.table({"key": ["a"], "value": [value]}), tmp_path / name)
    digest = hashlib.file_digest

    def replaced(file: Any, name: str) -> Any:
        found = digest(file, name)
        (tmp_path / "next").replace(path)
        return found

    before = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setattr("statelog.cli.append.hashlib.file_digest", replaced)
    source = ParquetRows(path)
    assert (source.digest, rows_of(source)) == (before, [{"key": "a", "value": b"old"}])


def test_an_input_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    """Parquet is recognised whatever the file's name. A damaged file is refused, and a missing one is not found."""
    pq.write_table(pa.table({"key": ["k"], "value": [b"v"]}), tmp_path / "no-suffix")
    (tmp_path / "lines").write_bytes(GOOD)
    (tmp_path / "damaged").write_bytes(b"PAR1 and nothing else")

    def kind(name: str) -> str:
        with open_input(str(tmp_path / name), BYTES, stream(b"")) as source:
            return source.kind

    assert (kind("no-suffix"), kind("lines")) == ("parquet", "json-lines")
    with pytest.raises(InvalidChange):
        kind("damaged")
    with pytest.raises(NotFound):
        kind("missing")


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (gzip.compress(GOOD, mtime=0), "gzip"),
        (b"\x28\xb5\x2f\xfd....", "zstd"),
        ("\ufeff".encode("utf-16-le") + "{}".encode("utf-16-le"), "UTF-16"),
        (b"PAR1 from a pipe", "Parquet"),
    ],
)
def test_another_format_is_named(tmp_path: Path, data: bytes, named: str) -> None:
    """Another format is recognised by its first bytes and named in the error, from a pipe and from a file."""
    (tmp_path / "in").write_bytes(data)
    sources = [str(tmp_path / "in"), "-"] if named != "Parquet" else ["-"]
    for source in sources:
        opened = open_input(source, BYTES, stream(data))
        with opened as rows, pytest.raises(InvalidChange, match=f"not JSON lines but {named}"):
            next(rows.batches())


def test_progress_counts_what_was_taken() -> None:
    """A block counts as progress only once its rows were taken."""
    source = Lines(stream(GOOD), JsonRows(BYTES), name="test", size_bytes=len(GOOD))
    batch = next(source.batches())
    assert source.fraction == 0
    source.take(batch.num_rows)
    assert source.fraction == 1


def test_a_value_field_that_is_named_must_be_there() -> None:
    """In a typed log the value's fields stand in the row. A named value field must exist."""
    batch = pa.RecordBatch.from_pydict({"key": [1], "s": ["x"]})
    assert TYPED.to_changes(batch).num_rows == 1
    with pytest.raises(InvalidChange, match="no field 'valeu' for the value"):
        replace(TYPED, value_field="valeu").to_changes(batch)


def test_the_writer_is_named_after_the_input() -> None:
    """The writer is named after the file without its suffix, in valid letters. Standard input needs a name."""
    assert writer_name(None, "/data/flights 2013..v2.jsonl") == "flights-2013-v2"
    assert writer_name("job", "-") == "job"
    with pytest.raises(ConfigError, match="standard input"):
        writer_name(None, "-")
    for nameless in ("/", "名.jsonl", "..."):
        with pytest.raises(ConfigError, match="--writer"):
            writer_name(None, nameless)


def test_names_in_any_letters_stay_apart() -> None:
    """Inputs that differ only in letters that writer names lack get different writers, the same in every run."""
    inputs = [
        "Größe.csv",
        "Gräße.csv",
        "Gr-e.csv",
        "日報 2026-01-02.csv",
        "月報 2026-01-02.csv",
        f"{'ä' * 40}{'x' * 200}.csv",
    ]
    names = [writer_name(None, source) for source in inputs]
    assert len(set(names)) == len(inputs)
    assert names == [writer_name(None, f"/elsewhere/{source}") for source in inputs]
    assert names[0].startswith("Gr-e-") and names[2] == "Gr-e"


def test_a_mark_of_others_is_refused() -> None:
    """A mark of another program, or of `append` with other fields, is refused."""
    with pytest.raises(CheckpointMismatch, match="does not come from"):
        appender(reader(GOOD)).skip({"offset": "3"})
    with pytest.raises(CheckpointMismatch, match="other options"):
        appender(reader(GOOD)).skip(appender(reader(GOOD), replace(BYTES, op_field="op")).mark())


def test_unknown_columns_are_refused_unless_waived() -> None:
    """A column that the log has no place for is an error, or is dropped on request."""
    batch = pa.RecordBatch.from_pydict({"key": ["a"], "value": [b"1"], "x": [1]})

    with pytest.raises(InvalidChange, match="does not have") as caught:
        BYTES.to_changes(batch)
    assert caught.value.facts["fields"] == "x"
    assert replace(BYTES, ignore_unknown=True).to_changes(batch).schema.names == ["key", "op", "value"]


def test_what_an_input_has_grown_by_may_lack_the_op_field() -> None:
    """An op field that the resumed commit has recorded may be missing in new rows. Another option's field may not."""
    fields = replace(BYTES, op_field="op", delete_value="D", checkpoint_field="day", ignore_unknown=True)
    begun = appender(reader(GOOD, fields), fields)
    with pytest.raises(InvalidChange, match="'op'"):
        begun.require_seen()
    begun.skip(appender(reader(b"", fields), fields).mark())
    with pytest.raises(InvalidChange, match="'day'"):
        begun.require_seen()


def test_a_column_that_is_there_twice_is_refused() -> None:
    """A repeated column is refused as ambiguous. A column that is dropped may be repeated."""
    columns = [pa.array([text]) for text in ("a", "1", "2", "3")]
    with pytest.raises(InvalidChange, match="'value' twice"):
        replace(BYTES, ignore_unknown=True).to_changes(
            pa.RecordBatch.from_arrays(columns, ["key", "value", "value", "more"])
        )
    dropped = pa.RecordBatch.from_arrays(columns, ["key", "value", "more", "more"])
    assert replace(BYTES, ignore_unknown=True).to_changes(dropped).column("value").to_pylist() == ["1"]
