"""The batch source: the state of a log as a DataFrame, equal to what recovery without Spark gives."""

import datetime
import decimal
import pickle
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from pyspark_statelog import DefaultSource
from statelog.errors import NotFound
from statelog.materializer.round.round import run_round
from statelog.materializer.settings import MaterializerSettings
from statelog.producer.writer import Writer
from statelog.schemas.snapshot.retention import RetentionPolicy
from statelog.spark.source import read_plan
from tests.support.services.broker import Broker
from tests.support.spark.rig import AVSC, SparkLog

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
        first = writer.commit(1).offset
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


@contextmanager
def committing(rig: SparkLog, most: int = 20_000) -> Generator[None]:
    """While this is entered, key 1 gets a new number with every commit, as fast as that goes."""
    stop, begun = threading.Event(), threading.Event()

    def commit() -> None:
        with Writer(rig.log, "w") as writer:
            for number in range(1, most):
                writer.put(1, {"n": number})
                writer.commit(number)
                begun.set()
                if stop.is_set():
                    return

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(commit)
        assert begun.wait(120)
        try:
            yield
        finally:
            stop.set()
            done.result()


def test_every_scan_of_a_dataframe_is_at_one_position(spark: SparkSession, rig: SparkLog) -> None:
    """A join, a union and a subquery of one DataFrame see one state while a writer commits; the next load newer."""
    reader = spark.read.format("statelog").options(**rig.options)
    with committing(rig):
        df = reader.load()
        joined = df.select("key", df.n.alias("a")).join(df.where("key > 0").select("key", df.n.alias("b")), "key")
        (row,) = joined.collect()
        assert row.a == row.b
        df = reader.load()
        both = df.select("n").union(df.where("key > 0").select("n")).collect()
        assert len({row.n for row in both}) == 1
        reader.load().createOrReplaceTempView("one_state")
        (row,) = spark.sql("SELECT n, (SELECT max(n) FROM one_state WHERE key > 0) AS m FROM one_state").collect()
        assert row.n == row.m
        newer = reader.load().collect()[0].n
        assert newer > row.n


def test_a_stream_of_a_log_is_refused_with_the_way_out(spark: SparkSession, rig: SparkLog, tmp_path: Path) -> None:
    """A streaming read ends with our words, and not with those of a Spark that hid them."""
    rows = spark.readStream.format("statelog").options(**rig.options).load()
    start = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = start.start()
    try:
        with pytest.raises(StreamingQueryException, match="no streaming read"):
            query.processAllAvailable()
    finally:
        query.stop()


def test_a_read_that_outlived_its_lease_is_told_since_when(
    rig: SparkLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A DataFrame whose state was truncated after its lease fails with the time of its plan and the way out."""
    monkeypatch.setattr(read_plan, "PLAN_LEASE_S", 0.001)
    policy = MaterializerSettings(scratch=tmp_path, retention=RetentionPolicy(keep=2, min_age_s=0.0))
    options = {**rig.options, "minPartitions": "1"}
    with Writer(rig.log, "w") as writer:
        writer.put(1, {"n": 0})
        writer.commit(1)
        source = DefaultSource(options)
        columns = source.schema()
        reader = pickle.loads(pickle.dumps(source)).reader(columns)
        (part,) = reader.partitions()
        for number in range(2, 6):
            writer.put(1, {"n": number})
            writer.commit(number)
            run_round(rig.log, policy)
    for late in (lambda: list(reader.read(part)), reader.partitions):
        with pytest.raises(NotFound, match=r"planned at 20.*load\(\) again"):
            late()


def test_a_schema_of_the_users_is_refused(spark: SparkSession, rig: SparkLog) -> None:
    """A schema that is not the state's fails with both, rather than returning columns of another meaning. Any is
    refused where nothing says which state it is: each scan would take the newest by itself.
    """
    reader = spark.read.format("statelog").options(**rig.options)
    with pytest.raises(Exception, match=r"Leave \.schema\(\) out"):
        reader.schema("key long, n long, note string").load().count()
    reader = reader.option("atPosition", "0")
    assert reader.schema("key long, n long, note string").load().count() == 0
    with pytest.raises(Exception, match="differs from the state"):
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
