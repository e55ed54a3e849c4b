"""The batch source: the state of a log as a DataFrame, equal to a recovery without Spark."""

import datetime
import decimal
import json
import pickle
import threading
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import Row, SparkSession

from statelog.errors import ConfigError, NotFound
from statelog.materializer.round import run_round
from statelog.materializer.settings import MaterializerSettings
from statelog.producer.writer import Writer
from statelog.reading.claims import HeldSubscription, list_leases
from statelog.schemas.names import subscription_path
from statelog.schemas.snapshot.retention import RetentionPolicy
from statelog.spark import error_of, state
from statelog.spark.data_source import StatelogSource
from statelog.spark.views import VIEWS
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
    """Return a small log of this test's own."""
    return SparkLog.create(log_name, broker.bootstrap, tmp_path)


def test_the_state_at_any_position(spark: SparkSession, rig: SparkLog) -> None:
    """The newest state, one at a checkpoint or position, and some key groups or columns have the requested rows."""
    reader = spark.read.format("statelog").options(**rig.options)
    assert reader.load().count() == 0, "an empty log has columns and no rows"
    with Writer(rig.log, "w") as writer:
        for key in range(100):
            writer.put(key, {"n": key, "note": f"note {key}"})
        first = writer.commit(checkpoint_id=1).offset
        for key in range(50):
            writer.delete(key)
        writer.commit(checkpoint_id=2)

    newest = reader.load()
    assert newest.columns == ["key", "n", "note"]
    assert {(row.key, row.n, row.note) for row in newest.collect()} == {(k, k, f"note {k}") for k in range(50, 100)}
    assert newest.rdd.getNumPartitions() == 1
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
    """Commit a new number of key 1 again and again, as fast as possible, within the context."""
    stop, begun = threading.Event(), threading.Event()

    def commit() -> None:
        with Writer(rig.log, "w") as writer:
            for number in range(1, most):
                writer.put(1, {"n": number})
                writer.commit(checkpoint_id=number)
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


def test_a_stream_without_a_start_is_refused_with_the_way_out(
    spark: SparkSession, rig: SparkLog, tmp_path: Path
) -> None:
    """A stream without a start is refused with our text, which Spark does not hide."""
    rows = spark.readStream.format("statelog").options(**rig.options).load()
    start = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = start.start()
    try:
        with pytest.raises(StreamingQueryException, match="startingPosition is missing"):
            query.processAllAvailable()
    finally:
        query.stop()


def test_a_read_that_outlived_its_lease_is_told_since_when(rig: SparkLog, tmp_path: Path) -> None:
    """A DataFrame whose state was truncated after its lease fails with the time of its plan and the way out."""
    policy = MaterializerSettings(scratch=tmp_path, retention=RetentionPolicy(keep=2, min_age_s=0.0))
    options = {**rig.options, "minPartitions": "1", "leaseSeconds": "0"}
    with Writer(rig.log, "w") as writer:
        writer.put(1, {"n": 0})
        writer.commit(checkpoint_id=1)
        source = StatelogSource(options)
        columns = source.schema()
        reader = pickle.loads(pickle.dumps(source)).reader(columns)
        (part,) = reader.partitions()
        for number in range(2, 6):
            writer.put(1, {"n": number})
            writer.commit(checkpoint_id=number)
            run_round(rig.log, policy)
    for late in (lambda: list(reader.read(part)), reader.partitions):
        with pytest.raises(NotFound, match=r"planned at 20.* UTC, .* deleted by now, at 20.*load\(\) again"):
            late()


def test_a_schema_of_the_users_is_refused(spark: SparkSession, rig: SparkLog) -> None:
    """A user's schema other than the state's fails with both, rather than returning columns of another meaning.

    Any schema is refused where no option names the state: each scan would take the newest by itself.
    """
    reader = spark.read.format("statelog").options(**rig.options)
    with pytest.raises(Exception, match=r"Omit \.schema\(\)"):
        reader.schema("key long, n long, note string").load().count()
    reader = reader.option("atPosition", "0")
    assert reader.schema("key long, n long, note string").load().count() == 0
    with pytest.raises(Exception, match="differs from that of the state"):
        reader.schema("key string, n long").load().count()


def test_every_type_comes_back(spark: SparkSession, broker: Broker, log_name: str, tmp_path: Path) -> None:
    """Values of every type from Python survive Spark's read and write, and are the same in Python."""
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
        writer.commit(checkpoint_id=1)
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
    rows = [(b"a", b"1", 0, 1), (b"b", b"", 0, 2), (b"c", b"3", 0, 3), (b"a", None, 1, 4)]
    df = spark.createDataFrame(rows, "key binary, value binary, op int, number int").coalesce(1)
    df.write.format("statelog").mode("append").options(**rig.options, writerId="w", sequenceBy="number").save()
    assert rig.state() == {b"b": b"", b"c": b"3"}
    found = spark.read.format("statelog").options(**rig.options).load().collect()
    assert {(bytes(row.key), bytes(row.value)) for row in found} == {(b"b", b""), (b"c", b"3")}


def test_a_dataframe_outlives_an_evolution(spark: SparkSession, rig: SparkLog) -> None:
    """An older DataFrame keeps its columns while it can read the state; a newer one has the new columns."""
    with Writer(rig.log, "w") as writer:
        writer.put(1, {"n": 10})
        writer.commit(checkpoint_id=1)
    before = spark.read.format("statelog").options(**rig.options).load()
    rig.log.evolve_value_schema(AVSC.replace('"name": "n", "type": "long"', '"name": "n", "type": "double"'))
    assert [row.n for row in before.collect()] == [10]
    after = spark.read.format("statelog").options(**rig.options).load()
    assert dict(after.dtypes)["n"] == "double"
    assert [row.n for row in after.collect()] == [10.0]


@pytest.mark.usefixtures("busy_ledger")
def test_committed_changes(spark: SparkSession, rig: SparkLog) -> None:
    """Every change of the commits in a range comes with its writer: between positions, checkpoints and times.

    A caller may choose the number of tasks, some key groups and columns; SQL works, too, and refuses a table of the
    catalog.
    """
    with Writer(rig.log, "w") as writer:
        for number in range(1, 4):
            for key in range(20):
                writer.put(key, {"n": number, "note": None})
            writer.delete(0)
            writer.commit(checkpoint_id=number)
            time.sleep(0.02)
    read = spark.read.format("statelog").options(**rig.options, read="changes")
    df = read.load()
    assert df.columns == ["key", "op", "value", "key_group", "writer", "checkpoint", "position", "timestamp"]
    rows = df.collect()
    expected = {(key, "put", number) for key in range(20) for number in (1, 2, 3)} | {(0, "delete", None)}
    assert (len(rows), {(row.key, row.op, row.value and row.value.n) for row in rows}) == (63, expected)
    assert df.where("op = 'delete' and value is null and writer = 'w'").count() == 3
    assert df.rdd.getNumPartitions() == 1, "a small range is one task"
    first, second, third = sorted({(row.position, row.timestamp) for row in rows})
    for bounds in (
        {"startingPosition": str(first[0]), "endingPosition": str(second[0])},
        {"startingWriter": "w", "startingCheckpoint": "1", "endingWriter": "w", "endingCheckpoint": "2"},
        {"startingTime": second[1].astimezone(datetime.UTC).isoformat(), "endingPosition": str(second[0])},
    ):
        found = read.options(**bounds).load().select("checkpoint").collect()
        read = spark.read.format("statelog").options(**rig.options, read="changes")
        assert (len(found), {row.checkpoint for row in found}) == (21, {2})
    cut = read.options(minPartitions="6", startingPosition="earliest", endingPosition="latest").load()
    assert cut.rdd.getNumPartitions() > 4, "more tasks than partitions cut a partition between commits"
    assert sorted(cut.collect(), key=str) == sorted(rows, key=str)
    some = spark.read.format("statelog").options(**rig.options, read="changes", columns="op,key_group", keyGroups="0:5")
    assert {row.key_group for row in some.load().collect()} <= set(range(5))
    assert third[0] == read.options(columns="position").load().agg({"position": "max"}).collect()[0][0]

    given = ", ".join(f"`{name}` '{value}'" for name, value in rig.options.items())
    spark.sql(f"CREATE TEMPORARY VIEW all_changes USING statelog OPTIONS ({given}, `read` 'changes')")
    assert spark.sql("SELECT * FROM all_changes WHERE checkpoint = 2").count() == 21
    with pytest.raises(AnalysisException, match="CREATE TEMPORARY VIEW") as caught:
        spark.sql(f"CREATE TABLE a_table USING statelog OPTIONS ({given})")
    assert isinstance(error_of(caught.value), ConfigError)
    spark.sql("CREATE TABLE a_table (key bigint, n bigint, note string) USING statelog")
    try:
        found = spark.sql(f"SELECT count(*), max(n) FROM a_table WITH ({given}, `atPosition` '{second[0]}')").collect()
        assert [tuple(row) for row in found] == [(19, 2)]
        with pytest.raises(AnalysisException, match="hands over no OPTIONS"):
            spark.sql("SELECT count(*) FROM a_table").collect()
    finally:
        spark.sql("DROP TABLE a_table")


def test_views_of_a_log(spark: SparkSession, rig: SparkLog, tmp_path: Path) -> None:
    """Snapshots, commits, writers, subscriptions and lag as DataFrames equal the log's own description."""
    policy = MaterializerSettings(scratch=tmp_path, retention=RetentionPolicy(keep=2, min_age_s=0.0))
    with Writer(rig.log, "w") as writer:
        for number in range(1, 4):
            writer.put(number, {"n": number})
            writer.commit({"offset": number}, checkpoint_id=number)
            if number == 2:
                run_round(rig.log, policy)
    read = spark.read.format("statelog").options(**rig.options)
    state = rig.log.describe().state
    HeldSubscription(rig.log, "lake", holder_id="one", holder="a query").hold(state, None)
    rig.log.store.put(subscription_path("torn", 1), b"not a subscription")
    views = {name: read.option("read", name).load().collect() for name in VIEWS}
    (snapshot,), (only,), (lag,) = views["snapshots"], views["writers"], views["lag"]
    (held, torn) = views["subscriptions"]
    assert (held.reader, held.position, held.holder, held.taken_up) == ("lake", state.position, "a query", False)
    assert (held.ended, held.problem, held.created) == (None, None, held.moved)
    assert (torn.reader, torn.position, "torn" in torn.problem) == ("torn", None, True)
    assert (snapshot.number, snapshot.runs, snapshot.rows) == (1, 1, 2)
    assert abs(time.time() - snapshot.created.replace(tzinfo=datetime.UTC).timestamp()) < 3600
    assert [(row.writer, row.checkpoint, row.changes, row.metadata) for row in views["commits"]] == [
        ("w", number, 1, json.dumps({"offset": number})) for number in (1, 2, 3)
    ]
    assert (only.writer, only.checkpoint, only.position) == ("w", 3, views["commits"][-1].position)
    assert (only.epoch, only.partitions) == (state.writers[0].newest_epoch, [0, 1, 2, 3])
    assert (lag.position, lag.snapshot, lag.snapshot_position, lag.commits) == (state.position, 1, snapshot.position, 1)
    assert lag.since == views["commits"][-1].timestamp
    with pytest.raises(AnalysisException, match="one of state, changes, snapshots, commits"):
        read.option("read", "nothing").load()


def test_filters_and_keys_narrow_a_read(spark: SparkSession, rig: SparkLog) -> None:
    """With Spark's filter pushdown, or by options without it, a query for some keys or key groups reads only their
    slices.

    Rows are the same in any case.
    """
    with Writer(rig.log, "w") as writer:
        for key in range(100):
            writer.put(key, {"n": key})
        writer.commit(checkpoint_id=1)
    options = {**rig.options, "includeKeyGroup": "true"}
    reader = spark.read.format("statelog").options(**options)
    (group,) = {row.key_group for row in reader.load().where("key = 7").collect()}
    plain = [(row.key, row.n) for row in reader.option("keys", "7,33").load().collect()]
    assert sorted(plain) == [(7, 7), (33, 33)]
    source = StatelogSource({**options, "keys": "[7]"})
    assert len(source.reader(source.schema()).partitions()) == 1
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        for where, tasks in (("key = 7", 1), ("key in (7, 33)", 2), (f"key_group = {group}", 1), ("key_group < 8", 4)):
            found = reader.load().where(where)
            expected = {row.key for row in reader.load().collect() if _passes(row, where, group)}
            assert {row.key for row in found.collect()} == expected
            assert found.rdd.getNumPartitions() <= tasks
        assert reader.load().where("key = 7 and key_group = 99").collect() == []
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def _passes(row: Row, where: str, group: int) -> bool:
    key, mine = int(row.key), int(row.key_group)
    wheres = {"key = 7": key == 7, "key in (7, 33)": key in (7, 33), "key_group < 8": mine < 8}
    return wheres.get(where, mine == group)


def test_a_held_state_outlives_rounds(spark: SparkSession, rig: SparkLog, tmp_path: Path) -> None:
    """A DataFrame of `with state(...)` is read again after rounds that would have truncated it.

    Then its lease is removed, and later rounds truncate.
    """
    policy = MaterializerSettings(scratch=tmp_path, retention=RetentionPolicy(keep=2, min_age_s=0.0))
    with Writer(rig.log, "w") as writer:

        def write(numbers: range) -> None:
            for number in numbers:
                writer.put(1, {"n": number})
                writer.commit()
                run_round(rig.log, policy)

        write(range(1))
        with state(spark, rig.log.name, rig.where, options={"columns": "n"}, lease_s=2.0) as df:
            write(range(1, 5))
            time.sleep(2.5)
            write(range(5, 7))
            assert [row.n for row in df.collect()] == [0]
            assert len(list_leases(rig.log.store)) == 1
        assert list_leases(rig.log.store) == []
        write(range(7, 9))
        with pytest.raises(Exception, match=r"load\(\) again") as caught:
            df.select("n").distinct().collect()
        assert isinstance(error_of(caught.value), NotFound)


def test_dues_are_shown_where_they_are_included(spark: SparkSession, rig: SparkLog, tmp_path: Path) -> None:
    """A state, changes and a stream have the column `due` if it is included: from a snapshot and from the tail."""
    first, second = (datetime.datetime(2030, 1, 1, 12, 0, second, 250_000, datetime.UTC) for second in (0, 1))
    with Writer(rig.log, "w") as writer:
        for key in range(20):
            writer.put(key, {"n": key}, due=first if key % 2 else None)
        writer.commit()
        run_round(rig.log, MaterializerSettings(scratch=tmp_path))
        writer.put(1, {"n": 1}, due=second)
        writer.put(2, {"n": 2}, due=second)
        writer.delete(3)
        writer.commit()
    expected = {key: first if key % 2 else None for key in range(20)} | {1: second, 2: second}
    del expected[3]
    seconds = "cast(due as double) as due"
    reader = spark.read.format("statelog").options(**rig.options)
    assert reader.load().columns == ["key", "n", "note"]
    state = reader.option("includeDue", "true").load()
    assert state.columns == ["key", "n", "note", "due"]
    shown = {row.key: row.due for row in state.selectExpr("key", seconds).collect()}
    assert shown == {key: None if due is None else due.timestamp() for key, due in expected.items()}
    changes = reader.options(read="changes", includeDue="true").load()
    later = changes.where("checkpoint = 2").selectExpr("key", "op", seconds).collect()
    assert sorted((row.key, row.op, row.due) for row in later) == [
        (1, "put", second.timestamp()),
        (2, "put", second.timestamp()),
        (3, "delete", None),
    ]
    stream = spark.readStream.format("statelog").options(**rig.options, includeDue="true", startingPosition="snapshot")
    query = (
        stream.load()
        .selectExpr("key", "op", "position", seconds)
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "rows"))
    )
    assert query.awaitTermination(120)
    rows = sorted(spark.read.parquet(str(tmp_path / "rows")).collect(), key=lambda row: int(row.position))
    newest = {row.key: (row.op, row.due) for row in rows}
    assert newest == {key: ("put", due) for key, due in shown.items()} | {3: ("delete", None)}
