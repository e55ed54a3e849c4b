"""The batch source: the state of a log as a DataFrame, equal to what recovery without Spark gives."""

import datetime
import decimal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from statelog.producer.writer import Writer
from tests.support.broker import Broker
from tests.support.spark_rig import AVSC, SparkLog

pytestmark = [pytest.mark.spark, pytest.mark.broker]

RICH = """{"type": "record", "name": "Rich", "fields": [
    {"name": "flag", "type": "boolean"},
    {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
    {"name": "tags", "type": {"type": "array", "items": "string"}},
    {"name": "by", "type": {"type": "map", "values": "long"}},
    {"name": "inner", "type": ["null", {"type": "record", "name": "In", "fields": [{"name": "x", "type": "double"}]}],
     "default": null}
]}"""


@pytest.fixture
def rig(broker: Broker, log_name: str, tmp_path: Path) -> SparkLog:
    """A small log of this test's own."""
    return SparkLog.create(log_name, broker.bootstrap, tmp_path)


def test_the_state_at_any_position(spark: SparkSession, rig: SparkLog) -> None:
    """Newest, at a checkpoint, at a position, some key groups, some columns: rows and columns are the asked ones."""
    reader = spark.read.format("statelog").options(**rig.options)
    assert reader.load().count() == 0, "an empty log has columns and no rows"
    with Writer(rig.log, "w") as writer:
        for key in range(100):
            writer.put(key, {"n": key, "note": f"note {key}"})
        first = writer.commit(1)
        for key in range(50):
            writer.delete(key)
        writer.commit(2)

    newest = reader.load()
    assert newest.columns == ["key", "n", "note"]
    assert {(row.key, row.n, row.note) for row in newest.collect()} == {(k, k, f"note {k}") for k in range(50, 100)}
    assert newest.rdd.getNumPartitions() == 4
    for at in ({"atWriter": "w", "atCheckpoint": "1"}, {"atPosition": str(first + 1)}):
        assert reader.options(**at).load().count() == 100
        reader = spark.read.format("statelog").options(**rig.options)
    some = reader.option("keyGroups", "0:4,9").option("columns", "key,key_group").option("minPartitions", "2").load()
    rows = some.collect()
    assert some.columns == ["key", "key_group"]
    assert rows
    assert {row.key_group for row in rows} <= {0, 1, 2, 3, 9}
    assert some.rdd.getNumPartitions() == 2


def test_a_schema_of_the_users_is_refused(spark: SparkSession, rig: SparkLog) -> None:
    """A schema that is not the state's fails with both, rather than returning columns of another meaning."""
    reader = spark.read.format("statelog").options(**rig.options)
    assert reader.schema("key long, n long, note string").load().count() == 0
    with pytest.raises(Exception, match="not that of the state"):
        reader.schema("key string, n long").load().count()


def test_every_type_comes_back(spark: SparkSession, broker: Broker, log_name: str, tmp_path: Path) -> None:
    """What Python writes, Spark reads and writes again, and Python reads: values of every type are the same."""
    rig = SparkLog.create(log_name, broker.bootstrap, tmp_path, key_type="string", value_schema=RICH)
    value = {
        "flag": True,
        "day": datetime.date(2020, 2, 29),
        "at": datetime.datetime(2020, 2, 29, 12, 30, 1, 5000, tzinfo=datetime.UTC),
        "price": decimal.Decimal("1234567.89"),
        "kind": "B",
        "tags": ["x", "y"],
        "by": {"k": 1},
        "inner": {"x": 0.5},
    }
    with Writer(rig.log, "w") as writer:
        writer.put("a", value)
        writer.commit(1)
    before = rig.state()
    df = spark.read.format("statelog").options(**rig.options).load()
    df.selectExpr("'b' as key", "* except (key)").write.format("statelog").mode("append").options(
        **rig.options, writerId="copy"
    ).save()
    after = rig.state()
    assert after["a"] == before["a"]
    copied, original = after["b"], before["a"]
    assert {**copied, "by": dict(copied["by"])} == {**original, "by": dict(original["by"])}


def test_opaque_values(spark: SparkSession, broker: Broker, log_name: str, tmp_path: Path) -> None:
    """An opaque log has the columns key and value, both ways, with op for deletes."""
    rig = SparkLog.create(log_name, broker.bootstrap, tmp_path, key_type="bytes", value_schema=None)
    rows = [(b"a", b"1", 0), (b"b", b"", 0), (b"c", b"3", 0), (b"a", None, 1)]
    df = spark.createDataFrame(rows, "key binary, value binary, op int").coalesce(1)
    df.write.format("statelog").mode("append").options(**rig.options, writerId="w").save()
    assert rig.state() == {b"b": b"", b"c": b"3"}
    found = spark.read.format("statelog").options(**rig.options).load().collect()
    assert {(bytes(row.key), bytes(row.value)) for row in found} == {(b"b", b""), (b"c", b"3")}


def test_a_dataframe_outlives_an_evolution(spark: SparkSession, rig: SparkLog) -> None:
    """One made before keeps its columns while it can read the state; one that is made after has the new ones."""
    with Writer(rig.log, "w") as writer:
        writer.put(1, {"n": 10})
        writer.commit(1)
    before = spark.read.format("statelog").options(**rig.options).load()
    rig.log.evolve_value_schema(AVSC.replace('"name": "n", "type": "long"', '"name": "n", "type": "double"'))
    assert [row.n for row in before.collect()] == [10]
    after = spark.read.format("statelog").options(**rig.options).load()
    assert dict(after.dtypes)["n"] == "double"
    assert [row.n for row in after.collect()] == [10.0]
