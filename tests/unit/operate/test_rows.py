"""Values as JSON: `append` reads what `recover --to-json` writes, and no value stops it."""

import json
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from statelog.cli.fields import Fields
from statelog.operate.rows import BytesText, json_column, json_lines
from statelog.schemas.key_groups import KeyType
from statelog.schemas.values.schema import parse_value_schema
from tests.support.samples.append_rows import reader

_TIMES = """{"type": "record", "name": "T", "fields": [
    {"name": "ms", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "us", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
    {"name": "day", "type": {"type": "int", "logicalType": "date"}}]}"""
FAR_MS = 10**15


@pytest.mark.parametrize("microsecond", [0, 1000, 123000, 999000])
def test_times_are_read_as_they_are_written(microsecond: int) -> None:
    """Times have exactly the digits of their type, and are read back unchanged."""
    moment = datetime(2030, 1, 31, 12, 0, 0, microsecond, UTC)
    schema = parse_value_schema(_TIMES, 1)
    row = {"ms": moment, "us": moment, "local": moment.replace(tzinfo=None), "day": moment.date()}
    table = pa.table({"key": ["k"], "value": pa.array([row], schema.arrow_type)})
    lines = "".join(f"{line}\n" for line in json_lines(table, BytesText.UTF8, with_groups=False))
    fields = Fields(key_type=KeyType.STRING, value_schema=schema)
    (batch,) = reader(lines.encode(), fields, block_bytes=1 << 20).batches()
    assert fields.to_changes(batch).column("value").to_pylist() == [row]


def test_a_time_without_a_year_of_pythons_is_a_number() -> None:
    """A time outside of Python's years is written as a number, at any depth, and the rest of its row as usual."""
    far = pa.array([0, FAR_MS, None], pa.timestamp("ms", "UTC"))
    near = pa.array([1, 2, 3], pa.int32()).cast(pa.date32())
    ends = pa.array([0, 1, 2, 3], pa.int32())
    lists, maps = pa.ListArray.from_arrays(ends, far), pa.MapArray.from_arrays(ends, pa.array(["a", "b", "c"]), far)
    column = pa.StructArray.from_arrays([far, near, lists, maps], names=["far", "near", "list", "map"])
    first = "1970-01-01T00:00:00+00:00"
    assert json_column(far, None) == [first, str(FAR_MS), None]
    assert json_column(column, None) == [
        {"far": first, "near": "1970-01-02", "list": [first], "map": {"a": first}},
        {"far": str(FAR_MS), "near": "1970-01-03", "list": [str(FAR_MS)], "map": {"b": str(FAR_MS)}},
        {"far": None, "near": "1970-01-04", "list": [None], "map": {"c": None}},
    ]
    days = pa.array([3_000_000, -3_000_000], pa.int32()).cast(pa.date32())
    assert json.loads(json.dumps(json_column(days, BytesText.UTF8))) == ["3000000", "-3000000"]
