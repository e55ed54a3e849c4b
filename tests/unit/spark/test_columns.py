"""The columns of a Spark plan are checked against those of the log, and matched to a value schema."""

import datetime as dt
import json
from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from statelog.errors import ConfigError, InvalidChange
from statelog.schemas.descriptor import ValueFormat
from statelog.schemas.values.schema import JSON, ValueSchema, parse_value_schema, state_batches, state_schema
from statelog.spark.columns import (
    change_batches,
    change_columns,
    check_columns,
    newest_with,
    spark_arrow_schema,
    state_columns,
)
from statelog.spark.options import write_options
from statelog.spark.rows import row_mapping
from tests.support.rigs.log import twin_rig

_WHERE = {"log": "log", "root": "memory://twin", "kafka.bootstrap.servers": "memory:9092"}

_FIELDS = '{"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}%s]}'
_MORE = ', {"name": "more", "type": ["null", "string"], "default": null}'
_SCHEMAS = [parse_value_schema(_FIELDS % more, number) for number, more in enumerate(("", "", _MORE), 1)]
_N = StructField("n", LongType())
_OLD, _NEW = StructType([_N]), StructType([_N, StructField("more", StringType())])


def _columns_of(schema: ValueSchema) -> StructType:
    return _NEW if "more" in str(schema.arrow_type) else _OLD


def test_the_newest_value_schema_that_has_the_columns() -> None:
    """The later of two schemas with the same columns is chosen. An older query has its own schema."""
    assert newest_with(_NEW, _SCHEMAS, _columns_of, "the state").id == 3
    assert newest_with(_OLD, _SCHEMAS, _columns_of, "the state").id == 2


def test_times_of_day_are_read_in_microseconds() -> None:
    """Times of day are read in microseconds, Spark's only unit, at any depth, in states and changes.

    They can be written back.
    """
    time = {"type": "int", "logicalType": "time-millis"}
    inner = {"type": "record", "name": "I", "fields": [{"name": "t", "type": time}]}
    types = {
        "t": time,
        "l": {"type": "array", "items": ["null", time]},
        "m": {"type": "map", "values": time},
        "i": inner,
    }
    fields = [{"name": name, "type": kind} for name, kind in types.items()]
    schema = parse_value_schema(json.dumps({"type": "record", "name": "R", "fields": fields}), 1)
    at = dt.time(1, 2, 3, 4000)
    value = {"t": at, "l": [at, None], "m": [("k", at)], "i": {"t": at}}
    rig = twin_rig("times")
    with rig.create(key_type="string", value_schema=schema.avsc) as log:
        columns = state_columns(log.descriptor, schema, include_key_group=False)
        assert [field.dataType.simpleString() for field in columns][1] == "time(6)"
        state = pa.table(
            {"key_group": pa.array([1], pa.uint16()), "key": ["a"], "value": pa.array([value], schema.arrow_type)}
        )
        [batch] = state_batches(state, spark_arrow_schema(columns))
        assert batch.to_pylist() == [{"key": "a", **value}]
        change_columns(log.descriptor, schema)
        options = write_options({**_WHERE, "writerId": "w"}, streaming=False)
        row_mapping(columns, options, log.descriptor, schema)


def test_a_states_types_are_those_that_spark_hands_on() -> None:
    """A state has the types that Spark hands on, at any depth, so a lake without Spark has a DataFrame's columns."""
    stamps = [
        {"type": "long", "logicalType": f"{zone}timestamp-{unit}"}
        for zone in ("", "local-")
        for unit in ("millis", "micros")
    ]
    record = {"type": "record", "name": "I", "fields": [{"name": "x", "type": ["null", stamps[0]]}]}
    kinds = [
        *("boolean", "int", "long", "float", "double", "string", "bytes"),
        *stamps,
        {"type": "int", "logicalType": "date"},
        {"type": "string", "logicalType": "uuid"},
        {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 3},
        {"type": "fixed", "name": "F", "size": 7},
        {"type": "enum", "name": "E", "symbols": ["A"]},
        {"type": "array", "items": "F"},
        {"type": "map", "values": stamps[2]},
        {"type": "array", "items": {"type": "map", "values": ["null", record]}},
    ]
    fields = [{"name": f"f{number}", "type": kind} for number, kind in enumerate(kinds)]
    schema = parse_value_schema(json.dumps({"type": "record", "name": "R", "fields": fields}), 1)
    with twin_rig("types").create(key_type="long", value_schema=schema.avsc) as log:
        plain = state_schema(log.descriptor, schema, include_key_group=True)
        spark = spark_arrow_schema(state_columns(log.descriptor, schema, include_key_group=True))
    assert plain.equals(spark)
    assert [str(field) for field in plain] == [str(field) for field in spark]


def test_other_columns_are_refused_with_both_lists() -> None:
    """Another type, name or order of columns is refused with the given and the expected ones."""
    check_columns(_OLD, _OLD, "the view")
    for given in (StructType([StructField("n", StringType())]), StructType(_NEW.fields[::-1])):
        with pytest.raises(ConfigError, match="differs from that of the changes") as caught:
            newest_with(given, _SCHEMAS, _columns_of, "the changes")
        assert caught.value.facts["expected"] == _NEW.simpleString()
        assert caught.value.facts["given"] == given.simpleString()


def test_json_values_are_text() -> None:
    """JSON values are text in states and changes, and text or bytes in a write.

    For a struct, the hint has the conversion.
    """
    with twin_rig("log").create() as log:
        descriptor = replace(log.descriptor, value_type=ValueFormat.JSON)
    assert state_columns(descriptor, JSON, include_key_group=False)["value"].dataType == StringType()
    assert change_columns(descriptor, JSON)["value"].dataType == StringType()
    changes = pa.RecordBatch.from_pydict({"key": [b"k"], "value": [b'{"n":1}']})
    (found,) = state_batches(
        pa.table({"key_group": [0], "key": [b"k"], "value": [b'{"n":1}']}),
        state_schema(descriptor, JSON, include_key_group=False),
    )
    assert found.column("value").to_pylist() == ['{"n":1}']
    (found,) = change_batches(changes, pa.schema([("key", pa.binary()), ("value", pa.string())]))
    assert found.column("value").to_pylist() == ['{"n":1}']
    options = write_options({**_WHERE, "writerId": "w", "checkpointId": "1"}, streaming=False)
    key = StructField("key", StringType())
    row_mapping(StructType([key, StructField("value", StringType())]), options, descriptor, JSON)
    with pytest.raises(InvalidChange, match=r"to_json\(value\)"):
        row_mapping(StructType([key, StructField("value", StructType([_N]))]), options, descriptor, JSON)
