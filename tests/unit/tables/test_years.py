"""A time outside of Python's years has a placeholder in a table, and only reading it raises."""

import json
from typing import Any

import pyarrow as pa
import pytest

from statelog.errors import NoSuchYear
from statelog.producer import Writer
from statelog.schemas.values.avro import avro_values
from statelog.schemas.values.schema import parse_value_schema, struct_from_columns
from statelog.tables import TableSettings
from statelog.tables.state.values import ValueRule
from tests.support.rigs.log import twin_rig
from tests.support.rigs.table import TableRig, content

_DAY = {"type": "int", "logicalType": "date"}
_MICROS = {"type": "long", "logicalType": "timestamp-micros"}
_MILLIS = {"type": "long", "logicalType": "local-timestamp-millis"}
_RECORD = {"type": "record", "name": "R", "fields": [{"name": "day", "type": ["null", _DAY]}]}
_FAR_US = 253_402_300_800 * 10**6
"""The first microsecond of the year 10000."""


def _times(numbers: list[int], kind: pa.DataType) -> pa.Array:
    width = pa.int32() if kind == pa.date32() else pa.int64()
    return pa.array(numbers, width).view(kind)


_MICROS_ARROW = pa.timestamp("us", "UTC")
_CASES: dict[str, tuple[Any, pa.Array]] = {
    "date": (_DAY, _times([0, 2_932_897], pa.date32())),
    "date before": (_DAY, _times([0, -719_163], pa.date32())),
    "date last": (_DAY, _times([0, -(2**31)], pa.date32())),
    "micros": (_MICROS, _times([_FAR_US - 1, _FAR_US], _MICROS_ARROW)),
    "micros before": (_MICROS, _times([0, -62_135_596_800 * 10**6 - 1], _MICROS_ARROW)),
    "millis": (_MILLIS, _times([0, 2**63 - 1], pa.timestamp("ms"))),
    "null": (["null", _MICROS], pa.array([None, _FAR_US]).cast(_MICROS_ARROW)),
    "record": (_RECORD, pa.StructArray.from_arrays([_times([0, 2_932_897], pa.date32())], ["day"])),
    "list": (
        {"type": "array", "items": _MICROS},
        pa.ListArray.from_arrays(pa.array([0, 1, 3], pa.int32()), _times([0, 0, _FAR_US], _MICROS_ARROW)),
    ),
    "map": (
        {"type": "map", "values": _MICROS},
        pa.MapArray.from_arrays(
            pa.array([0, 1, 2], pa.int32()), pa.array(["a", "b"]), _times([0, _FAR_US], _MICROS_ARROW)
        ),
    ),
}


@pytest.mark.parametrize("case", _CASES)
def test_only_the_row_that_has_it_is_no_value(case: str) -> None:
    """Only the row with such a time raises, from a column and from bytes, for every type and depth.

    Its neighbours are read.
    """
    kind, column = _CASES[case]
    fields = [{"name": "n", "type": "long"}, {"name": "x", "type": kind}]
    schema = parse_value_schema(json.dumps({"type": "record", "name": "V", "fields": fields}), 1)
    struct, rule = struct_from_columns(pa.record_batch({"n": pa.array([1, 2]), "x": column}), schema), ValueRule(schema)
    from_column = rule.of_column(struct, ["near", "far"])
    datums = avro_values(struct, schema).to_pylist()
    from_bytes = list(map(rule.decode, datums, ["near", "far"]))
    for near, far in (from_column, from_bytes):
        assert rule.copy(near)["n"] == 1
        with pytest.raises(NoSuchYear) as told:
            rule.copy(far)
        assert told.value.facts == {"key": "'far'", "field": "value.x"}
    assert from_column == from_bytes


@pytest.mark.parametrize("is_kept", [False, True], ids=["dict", "rocksdb"])
@pytest.mark.parametrize("settings", [TableSettings(skip_equal=True), TableSettings(every_change=True)], ids=str)
def test_it_is_replaced_and_removed_like_any_other(is_kept: bool, settings: TableSettings, tmp_path: Any) -> None:
    """Such a value is replaced and removed like any other, also after a comparison.

    `clear`, `len` and keys read no value.
    """
    tables = TableRig(twin_rig("log"), tmp_path / "local" if is_kept else None)
    schema = json.dumps({"type": "record", "name": "V", "fields": [{"name": "at", "type": ["null", _MICROS]}]})
    tables.open(value_schema=schema).close()
    with tables.rig.open() as log, Writer(log, "table") as writer:
        writer.append_batch(pa.table({"key": [b"a", b"b", b"c"], "at": _times([_FAR_US] * 3, _MICROS_ARROW)}))
        writer.commit()
    with tables.open(settings=settings) as table:
        with table.transaction():
            table[b"a"] = {"at": None}
        table.delete(b"b")
        table.commit()
        assert (list(table), len(table), bool(table), table[b"a"]) == ([b"a", b"c"], 2, True, {"at": None})
        with pytest.raises(NoSuchYear):
            table.pop(b"c")
        assert b"c" in table.keys()  # noqa: SIM118 - the view is what is looked at
        table.clear()
        table.commit()
        assert content(table) == {}
