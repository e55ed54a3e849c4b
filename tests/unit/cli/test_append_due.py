"""`statelog append --due-field`: times with a zone and seconds, in JSON lines, CSV and Parquet."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from statelog.cli.append import Appended, Appender, open_input
from statelog.cli.fields import Fields
from statelog.errors import CheckpointMismatch, InvalidChange
from statelog.log import Log
from statelog.operate.rows import BytesText, json_column
from statelog.recovery import recover
from statelog.schemas.arrays import whole_column
from statelog.schemas.changes.due import has_due
from statelog.schemas.key_groups import KeyType
from statelog.schemas.values.schema import parse_value_schema
from tests.support.rigs.log import TwinRig, tail_of, twin_rig
from tests.support.samples.append_rows import AVSC, BYTES, stream

TIMED = replace(BYTES, due_field="at", checkpoint_every=3)
NOON_MS = 1_896_091_200_000  # 2030-01-31T12:00:00Z
NO_BYTES = stream(b"")


def dues_of(log: Log) -> dict[Any, int | None]:
    """Return the newest due of each key."""
    found: dict[Any, int | None] = {}
    for batch in tail_of(log, None)[1]:
        dues = batch.column(4).view(pa.int64()).to_pylist() if has_due(batch) else [None] * batch.num_rows
        found |= dict(zip(batch.column(2).to_pylist(), dues, strict=True))
    return found


def append(rig: TwinRig, path: Path, fields: Fields = TIMED) -> dict[Any, int | None]:
    """Append a file, and return the newest due of each key."""
    with rig.open() as log:
        with open_input(str(path), fields, NO_BYTES) as source:
            Appender("w", source, fields, Appended()).run(log, lambda _: None)
        return dues_of(log)


def log_of_text(**options: Any) -> TwinRig:
    """Return a rig with a log of text keys."""
    rig = twin_rig("log")
    rig.create(key_type=KeyType.STRING, **options).close()
    return rig


JSON = {
    "text": b"""{"key":"a","value":"1","at":"2030-01-31T12:00:00Z"}
{"key":"b","value":"2","at":"2030-01-31 13:00:00.0001+01:00"}
{"key":"c","value":"3","at":null}
{"key":"d","value":"4"}
""",
    "numbers": b"""{"key":"a","value":"1","at":1896091200}
{"key":"b","value":"2","at":1896091200.0001}
{"key":"c","value":"3"}
{"key":"d","value":"4","at":null}
""",
    "late numbers": b"""{"key":"d","value":"4"}
{"key":"a","value":"1","at":1896091200}
{"key":"c","value":"3"}
{"key":"b","value":"2","at":1896091200.0001}
""",
}
CSV = {
    "text": b"key,at,value\na,2030-01-31T12:00:00Z,1\nb,2030-01-31T12:00:00.0001Z,2\nc,,3\nd,,4\n",
    "numbers": b"key,at,value\na,1896091200,1\nb,1896091200.0001,2\nc,,3\nd,,4\n",
}


@pytest.mark.parametrize(
    ("name", "data"),
    [(f"{kind}.{end}", data) for end, inputs in (("jsonl", JSON), ("csv", CSV)) for kind, data in inputs.items()],
)
def test_lines(tmp_path: Path, name: str, data: bytes) -> None:
    """A due is a time with a zone or seconds since 1970, rounded up; null, an empty field or none is no due."""
    path = tmp_path / name
    path.write_bytes(data)
    assert append(log_of_text(), path) == {"a": NOON_MS, "b": NOON_MS + 1, "c": None, "d": None}


@pytest.mark.parametrize("kind", [pa.timestamp("us", tz="Asia/Tokyo"), pa.int64(), pa.float64()], ids=str)
def test_parquet(tmp_path: Path, kind: pa.DataType) -> None:
    """A column of times of any unit, or of seconds, has the dues."""
    number = NOON_MS * 1000 if pa.types.is_timestamp(kind) else NOON_MS // 1000
    numbers = pa.array([number, None], pa.int64())
    dues = numbers.view(kind) if pa.types.is_timestamp(kind) else numbers.cast(kind)
    pq.write_table(pa.table({"key": ["a", "b"], "value": ["1", "2"], "at": dues}), tmp_path / "rows.parquet")
    assert append(log_of_text(), tmp_path / "rows.parquet") == {"a": NOON_MS, "b": None}


def test_typed_values_and_deletes(tmp_path: Path) -> None:
    """A typed log's rows have dues beside their fields, and a delete has none."""
    path = tmp_path / "rows.jsonl"
    path.write_text(
        '{"key":1,"s":"x","op":"put","until":"2030-01-31T12:00:00Z"}\n{"key":2,"op":"delete","until":"2030-01-31T12:00:00Z"}\n'
    )
    rig = twin_rig("log")
    rig.create(key_type=KeyType.LONG, value_schema=AVSC).close()
    fields = replace(
        TIMED, key_type=KeyType.LONG, value_schema=parse_value_schema(AVSC, 1), op_field="op", due_field="until"
    )
    assert append(rig, path, fields) == {1: NOON_MS, 2: None}


@pytest.mark.parametrize("at", ['"2030-01-31T12:00:00"', '"soon"', "-1", "1e300", "true", '"nan"'])
def test_a_due_that_is_no_time(tmp_path: Path, at: str) -> None:
    """A time without a zone, a number out of range and anything else is refused with the number of its line."""
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"key":"a","value":"1","at":null}}\n{{"key":"b","value":"2","at":{at}}}\n')
    with pytest.raises(InvalidChange) as caught:
        append(log_of_text(), path)
    assert "2" in str(caught.value.facts.get("line", caught.value))


def test_a_misspelt_field_is_refused(tmp_path: Path) -> None:
    """A field that no row has is refused: its rows would never expire."""
    path = tmp_path / "rows.jsonl"
    path.write_bytes(JSON["text"])
    with pytest.raises(InvalidChange, match="no row of the input has the field 'due'"):
        append(log_of_text(), path, replace(TIMED, due_field="due", ignore_unknown=True))


def test_the_field_belongs_to_the_input(tmp_path: Path) -> None:
    """An input is not continued with another due field, and what it has grown by may lack it."""
    path, rig = tmp_path / "rows.jsonl", log_of_text()
    path.write_bytes(JSON["text"])
    append(rig, path)
    with pytest.raises(CheckpointMismatch, match="other options"):
        append(rig, path, replace(TIMED, due_field=None, ignore_unknown=True))
    path.write_bytes(JSON["text"] + b'{"key":"a","value":"9"}\n')
    assert append(rig, path)["a"] is None


def test_a_ttl_fills_what_has_no_due(tmp_path: Path) -> None:
    """In a log with a ttl, rows without a due get one."""
    path = tmp_path / "rows.jsonl"
    path.write_bytes(JSON["text"])
    found = append(log_of_text(ttl_s=600), path, replace(TIMED, checkpoint_every=100))
    assert (found["a"], found["b"]) == (NOON_MS, NOON_MS + 1)
    assert found["c"] is not None and found["c"] == found["d"]


def test_dues_that_a_recovery_wrote_are_read(tmp_path: Path) -> None:
    """What `recover --due` writes, as JSON lines and as Parquet, `append --due-field due` reads."""
    path = tmp_path / "rows.jsonl"
    path.write_bytes(JSON["text"])
    rig, fields = log_of_text(), replace(TIMED, due_field="due")
    found = append(rig, path)
    with rig.open() as log, recover(log) as recovery:
        table = recovery.to_arrow(due=True)
        recovery.to_parquet(tmp_path / "copy.parquet", due=True)
    dues = json_column(whole_column(table.column("due")), BytesText.UTF8)
    lines = (
        json.dumps({"key": key, "value": "1", "due": due})
        for key, due in zip(table.column("key").to_pylist(), dues, strict=True)
    )
    (tmp_path / "copy.jsonl").write_text("".join(f"{line}\n" for line in lines))
    for name in ("copy.jsonl", "copy.parquet"):
        assert append(log_of_text(), tmp_path / name, fields) == found
