"""Which rows are changes and where commits fall; Parquet inputs, formats and marks."""

import gzip
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from statelog.cli.appender import CheckpointRule, commit_points
from statelog.cli.inputs.fields import FieldMapping, LogShape, to_changes
from statelog.cli.inputs.json_lines import JsonLines
from statelog.cli.inputs.mark import InputMark, mark_of
from statelog.cli.inputs.named_fields import MOST_ROWS, NamedFields
from statelog.cli.inputs.open_input import open_input, writer_name
from statelog.cli.inputs.parquet_file import ParquetInput
from statelog.errors import CheckpointMismatch, ConfigError, InvalidChange, NotFound
from statelog.schemas.keys.key_groups import KeyType
from statelog.schemas.values.schema import parse_value_schema
from tests.support.samples.append_rows import BYTES, GOOD, MAP_AVSC, TYPED, reader, rows_of


def test_a_field_tells_put_from_delete() -> None:
    """The op field says put or delete; with a delete value, whatever is not that value is a put."""
    data = b'{"key":"a","value":"1","op":"put"}\n{"key":"b","op":"delete"}\n'
    named = FieldMapping(op_field="op")
    (batch,) = list(reader(data, block_bytes=1 << 20, op_field="op").batches())
    changes = to_changes(batch, named, BYTES).to_pylist()
    assert [(row["op"], row["value"]) for row in changes] == [("put", "1"), ("delete", None)]

    flags = b'{"key":"a","value":"1","gone":false}\n{"key":"b","value":"2","gone":true}\n'
    flagged = FieldMapping(op_field="gone", delete_value="true")
    (batch,) = list(reader(flags, block_bytes=1 << 20, op_field="gone", delete_value="true").batches())
    changes = to_changes(batch, flagged, BYTES).to_pylist()
    assert [(row["op"], row["value"]) for row in changes] == [("put", "1"), ("delete", None)]


def test_a_delete_keeps_fields_that_are_not_only_value() -> None:
    """A key that is a field of the value, too, stays in a delete, in logs read row by row as well."""
    avsc = json.loads(MAP_AVSC)
    avsc["fields"].append({"name": "id", "type": "string"})
    shape = LogShape(key_type=KeyType.STRING, value_schema=parse_value_schema(json.dumps(avsc), 1))
    mapping = FieldMapping(key_field="id", op_field="op")
    data = b'{"id":"a","m":{},"op":"put"}\n{"id":"b","op":"delete"}\n'
    (batch,) = list(JsonLines(io.BytesIO(data).read, mapping, shape, name="test").batches())
    changes = to_changes(batch, mapping, shape).to_pylist()

    assert [(row["key"], row["op"]) for row in changes] == [("a", "put"), ("b", "delete")]
    assert changes[0]["value"]["id"] == "a"
    assert changes[1]["value"] is None


@pytest.mark.parametrize(
    "options", [{"checkpoint_field": "comit"}, {"op_field": "opp", "delete_value": "D", "ignore_unknown": True}]
)
def test_a_named_field_that_no_row_has_is_refused(options: dict[str, object]) -> None:
    """A misspelt op or checkpoint field of JSON lines ends the run before its first commit, or after many rows."""
    mapping = FieldMapping(**options)  # type: ignore[arg-type]  # every case names fields of the mapping
    data = b'{"key":"a","value":"1","commit":1}\n{"key":"b","op":"D","value":"2","commit":2}\n'
    (batch,) = list(
        JsonLines(io.BytesIO(data).read, replace(mapping, ignore_unknown=True), BYTES, name="test").batches()
    )
    fields = NamedFields(mapping)
    fields.look(batch)
    with pytest.raises(InvalidChange, match="no row of the input has the field"):
        fields.require()
    with pytest.raises(InvalidChange):
        for _ in range(MOST_ROWS):
            fields.look(batch)
    right = NamedFields(FieldMapping(checkpoint_field="commit", op_field="op", delete_value="D"))
    spelt = reader(data, block_bytes=1 << 20, checkpoint_field="commit", op_field="op", delete_value="D")
    right.look(next(spelt.batches()))
    right.require()


def test_a_delete_value_needs_its_field() -> None:
    """A delete value without a field to stand in contradicts itself."""
    with pytest.raises(ConfigError, match="--delete-value"):
        FieldMapping(delete_value="D")


@pytest.mark.parametrize(
    ("rows", "pending", "expected"), [(10, 0, [4, 8]), (4, 0, [4]), (3, 0, []), (1, 3, [1]), (9, 3, [1, 5, 9])]
)
def test_commits_fall_on_every_nth_row(rows: int, pending: int, expected: list[int]) -> None:
    """Commits come after every fourth row of the input, however it comes in batches."""
    assert commit_points(rows, pending, 4, None) == expected


def test_commits_fall_where_a_field_changes() -> None:
    """A commit comes before the first row with another value, and never without rows."""
    changed = np.array([True, False, True, False])
    assert commit_points(4, 5, None, changed) == [0, 2]
    assert commit_points(4, 0, None, changed) == [2]


@pytest.mark.parametrize("rule", [{}, {"every": 1, "field": "f"}, {"every": 0}])
def test_contradicting_checkpoint_rules_are_refused(rule: dict[str, object]) -> None:
    """Exactly one of the two rules holds, and every zero rows is none."""
    with pytest.raises(ConfigError, match="--checkpoint"):
        CheckpointRule(**rule)  # type: ignore[arg-type]  # the table has both fields' types


@pytest.mark.parametrize("taken", range(0, 26, 5))
def test_a_parquet_file_resumes_at_any_row(tmp_path: Path, taken: int) -> None:
    """Rows behind the mark come, wherever row groups and batches end."""
    table = pa.table({"key": [f"k{number}" for number in range(25)], "value": [b"v"] * 25})
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=7)
    first = ParquetInput(tmp_path / "in.parquet", FieldMapping(), batch_rows=4)
    first.take(taken)
    second = ParquetInput(tmp_path / "in.parquet", FieldMapping(), batch_rows=3)
    second.resume(first.mark)

    assert rows_of(second) == table.to_pylist()[taken:]


def test_another_parquet_file_is_refused(tmp_path: Path) -> None:
    """A Parquet file that differs in one value is another input; so is one of the other kind."""
    for name, value in (("a", b"1"), ("b", b"2")):
        pq.write_table(pa.table({"key": ["k"], "value": [value]}), tmp_path / name)
    mark = ParquetInput(tmp_path / "a", FieldMapping()).mark

    with pytest.raises(CheckpointMismatch, match="the file differs"):
        ParquetInput(tmp_path / "b", FieldMapping()).resume(mark)
    with pytest.raises(CheckpointMismatch, match="it was parquet"):
        reader(GOOD).resume(mark)


def test_an_input_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    """Parquet is recognised whatever its name, a damaged one is refused, and a missing file is not found."""
    pq.write_table(pa.table({"key": ["k"], "value": [b"v"]}), tmp_path / "no-suffix")
    (tmp_path / "lines").write_bytes(GOOD)
    (tmp_path / "damaged").write_bytes(b"PAR1 and nothing else")

    def kind(name: str) -> str:
        with open_input(str(tmp_path / name), FieldMapping(), BYTES, io.BytesIO()) as source:
            return source.mark.kind

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
    """What is no JSON lines by its first bytes is called by its name, from a pipe and from a file."""
    (tmp_path / "in").write_bytes(data)
    sources = [str(tmp_path / "in"), "-"] if named != "Parquet" else ["-"]
    for source in sources:
        opened = open_input(source, FieldMapping(), BYTES, io.BytesIO(data))
        with opened as rows, pytest.raises(InvalidChange, match=f"not JSON lines but {named}"):
            next(rows.batches())


def test_progress_counts_what_was_taken() -> None:
    """A block that was read is no progress before its rows were taken."""
    source = JsonLines(io.BytesIO(GOOD).read, FieldMapping(), BYTES, name="test", size_bytes=len(GOOD))
    batch = next(source.batches())
    assert source.fraction == 0
    source.take(batch.num_rows)
    assert source.fraction == 1


def test_a_value_field_that_is_named_must_be_there() -> None:
    """In a typed log the fields stand in the row, unless a field was named that holds them: then it is meant."""
    batch = pa.RecordBatch.from_pydict({"key": [1], "s": ["x"]})
    assert to_changes(batch, FieldMapping(), TYPED).num_rows == 1
    with pytest.raises(InvalidChange, match="no field 'valeu' for the value"):
        to_changes(batch, FieldMapping(value_field="valeu"), TYPED)


def test_the_writer_is_named_after_the_input() -> None:
    """A file's name without suffix, in the letters of names; standard input needs a name."""
    assert writer_name(None, "/data/flights 2013..v2.jsonl") == "flights-2013-v2"
    assert writer_name("job", "-") == "job"
    with pytest.raises(ConfigError, match="standard input"):
        writer_name(None, "-")
    for nameless in ("/", "名.jsonl", "..."):
        with pytest.raises(ConfigError, match="--writer"):
            writer_name(None, nameless)


def test_a_mark_travels_in_metadata() -> None:
    """A mark comes back from the metadata of a commit, and other metadata is no mark."""
    mark = InputMark(kind="json-lines", mapping="key=key", rows=3, size_bytes=99, digest="ab")

    assert mark_of(mark.to_metadata(), "w") == mark
    with pytest.raises(CheckpointMismatch, match="does not come from"):
        mark_of({"offset": "3"}, "w")


def test_unknown_columns_are_refused_unless_waived() -> None:
    """A column that the log has no place for is an error, or is dropped if the user says so."""
    batch = pa.RecordBatch.from_pydict({"key": ["a"], "value": [b"1"], "x": [1]})

    with pytest.raises(InvalidChange, match="does not have") as caught:
        to_changes(batch, FieldMapping(), BYTES)
    assert caught.value.facts["fields"] == "x"
    assert to_changes(batch, FieldMapping(ignore_unknown=True), BYTES).schema.names == ["key", "op", "value"]
