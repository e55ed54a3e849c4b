"""Spark reads dues where `includeDue` asks for them: in a state, in changes, and in a stream of them."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statelog.errors import ConfigError, OffsetGone
from statelog.log import Log
from statelog.reading import AtPosition, part_of, plan_changes
from statelog.recovery.recover import recover
from statelog.schemas.values.schema import parse_value_schema, state_batches, state_schema
from statelog.spark import parts
from statelog.spark.columns import change_columns, spark_arrow_schema, state_columns
from statelog.spark.options import change_options, state_options, stream_options
from statelog.spark.parts import PlanPart, read_state
from statelog.spark.stream_reader import part_rows
from tests.support.rigs.timed import NOON_MS, TimedLog

WHERE = {"log": "flights", "root": "s3://bucket/logs", "kafka.bootstrap.servers": "b:9092"}
DUES = {b"a": NOON_MS, b"b": None, b"c": NOON_MS + 250}


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Return a log with dues in a snapshot and in its tail."""
    made = TimedLog()
    made.put({b"a": (b"1", NOON_MS), b"b": (b"1", NOON_MS)})
    made.round(tmp_path)
    made.put({b"c": (b"2", NOON_MS + 250), b"b": (b"2", None)})
    return made.open()


def _dues(batches: list[pa.RecordBatch]) -> list[tuple[Any, Any]]:
    table = pa.Table.from_batches(batches)
    assert table.schema.field("due").type == pa.timestamp("us", "UTC")
    dues = table.column("due").cast(pa.int64()).to_pylist()
    keys = table.column("key").to_pylist()
    return [(key, None if due is None else due // 1000) for key, due in zip(keys, dues, strict=True)]


def test_the_option_is_one_of_every_read() -> None:
    """`includeDue` is true or false, in a state, in changes and in a stream."""
    for parse, more in ((state_options, {}), (change_options, {}), (stream_options, {"startingPosition": "earliest"})):
        given = {**WHERE, **more}
        assert [parse({**given, **one}).include_due for one in ({}, {"includeDue": "TRUE"})] == [False, True]
        with pytest.raises(ConfigError, match="includeDue is 'yes'"):
            parse({**given, "includedue": "yes"})


def test_a_state_has_its_dues(log: Log) -> None:
    """A state has the column if it is included, from the snapshot and from the tail."""
    plan = part_of(recover(log).plan, frozenset(range(8)), log.descriptor)
    schema = log.value_schemas.newest()
    for include_due in (False, True):
        wanted = spark_arrow_schema(
            state_columns(log.descriptor, schema, include_key_group=False, include_due=include_due)
        )
        batches = [batch for table in read_state(log, plan) for batch in state_batches(table, wanted)]
        assert wanted.names == ["key", "value", *["due"] * include_due]
        if include_due:
            assert dict(_dues(batches)) == DUES


def test_a_task_that_plans_again_has_the_dues(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest that a task reads from another snapshot has dues, too."""
    plan = part_of(recover(log).plan, frozenset(range(8)), log.descriptor)

    class Failing:
        def __init__(self, *_: object) -> None:
            pass

        def sorted_tables(self) -> Any:
            raise OffsetGone("gone", topic="t", partition=0, offset=0, start=1)
            yield

    monkeypatch.setattr(parts, "PlanReader", Failing)
    wanted = state_schema(log.descriptor, log.value_schemas.newest(), include_key_group=False, include_due=True)
    batches = [batch for table in read_state(log, plan) for batch in state_batches(table, wanted)]
    assert dict(_dues(batches)) == DUES


def test_changes_and_streams_have_their_dues(log: Log) -> None:
    """Changes have the column if it is included; so have the rows of a state with which a stream begins."""
    schema = log.value_schemas.newest()
    columns = change_columns(log.descriptor, schema, include_due=True)
    assert change_columns(log.descriptor, schema).fieldNames() == columns.fieldNames()[:-1]
    with pytest.raises(ConfigError, match="no column due"):
        change_columns(log.descriptor, schema, ["due"])
    wanted = spark_arrow_schema(columns)
    plan = plan_changes(log, AtPosition(0))
    changes = list(part_rows(log, PlanPart(plan), wanted))
    assert sorted(_dues(changes), key=str) == sorted(
        [(b"a", NOON_MS), (b"b", NOON_MS), (b"b", None), (b"c", NOON_MS + 250)], key=str
    )
    state = part_of(recover(log).plan, frozenset(range(8)), log.descriptor)
    assert dict(_dues(list(part_rows(log, PlanPart(state), wanted)))) == DUES


def test_a_field_of_that_name_is_no_due() -> None:
    """A typed value may have a field `due`. It is a column of its own, or in `value` if dues are included."""
    schema = parse_value_schema('{"type":"record","name":"V","fields":[{"name":"due","type":"long"}]}', 1)
    with TimedLog().open() as log:
        plain = state_schema(log.descriptor, schema, include_key_group=False)
        timed = state_schema(log.descriptor, schema, include_key_group=False, include_due=True)
    table = pa.table(
        {
            "key_group": pa.array([0], pa.uint16()),
            "key": [b"a"],
            "value": pa.array([{"due": 7}], schema.arrow_type),
            "due": pa.array([NOON_MS], pa.timestamp("ms", "UTC")),
        }
    )
    [found] = state_batches(table, plain)
    assert found.to_pylist() == [{"key": b"a", "due": 7}]
    [found] = state_batches(table, timed)
    assert found.select(["key", "value"]).to_pylist() == [{"key": b"a", "value": {"due": 7}}]
    assert timed.names == ["key", "value", "due"]
