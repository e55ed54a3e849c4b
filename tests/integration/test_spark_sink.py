"""The streaming and the batch sink on a real broker: Spark's rows are in the log exactly once."""

from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's own custom
from pyspark.sql.streaming.query import StreamingQuery

from statelog.errors import ConfigError, Fenced, InvalidChange, KeyGroupMismatch, LogInUse, StatelogError
from statelog.producer.writer import Writer
from statelog.spark.columns import key_group_column, repartition_by_key_group
from statelog.spark.reported import error_of
from statelog.spark.sink import upsert
from tests.support.services.broker import Broker
from tests.support.spark.rig import (
    Row,
    SparkLog,
    fold_rows,
    forget_last_commit,
    read_stream,
    run_sink,
    run_stream,
    scattered,
    write_batches,
)

pytestmark = [pytest.mark.spark, pytest.mark.broker]

BATCHES: list[list[Row]] = [
    [(key, key * 10) for key in range(50)],
    [(key, -key) for key in range(0, 50, 3)],
    [(key, None) for key in range(0, 50, 7)],
]


@pytest.fixture
def rig(broker: Broker, log_name: str, tmp_path: Path) -> SparkLog:
    """Return a small log of this test's own."""
    return SparkLog.create(log_name, broker.bootstrap, tmp_path)


def test_every_micro_batch_is_one_commit(spark: SparkSession, rig: SparkLog, tmp_path: Path) -> None:
    """Three batches are one Open and three Commits; a replayed one and a restart add only new rows."""
    write_batches(tmp_path / "input", BATCHES)
    begun = rig.ledger_end()
    run_sink(spark, rig, tmp_path)
    assert rig.numbers() == fold_rows(BATCHES)
    assert rig.ledger_end() == begun + 4, "the epoch is opened once for all batches of a run"
    last = rig.last_commit("job")
    assert last is not None
    assert (last.checkpoint.id, last.metadata["batchId"]) == (3, 2)

    assert forget_last_commit(tmp_path / "checkpoint") == 2
    more: list[list[Row]] = [[(1, 111), (2, None)]]
    write_batches(tmp_path / "input", more, first=3)
    run_sink(spark, rig, tmp_path)
    assert rig.numbers() == fold_rows(BATCHES + more)
    newest = rig.last_commit("job")
    assert newest is not None
    assert (newest.checkpoint.id, newest.metadata["queryId"]) == (4, last.metadata["queryId"])
    assert rig.ledger_end() == begun + 6, "the replayed batch was recognised; the next one has the Open of the new run"


def test_two_queries_of_a_session_open_once_each(spark: SparkSession, rig: SparkLog, tmp_path: Path) -> None:
    """Any idle worker plans the batches of two queries, and all workers use one epoch for each query."""
    other = SparkLog.create(f"{rig.log.name}-b", rig.bootstrap, tmp_path / "other")
    batches: list[list[Row]] = [[(key, number) for key in range(5)] for number in range(6)]
    queries: list[StreamingQuery] = []
    for number, one in enumerate((rig, other)):
        write_batches(tmp_path / f"input-{number}", batches)
        rows = read_stream(spark, tmp_path / f"input-{number}")
        start = rows.writeStream.format("statelog").options(**one.options, writerId="job", uniqueKeys="true")
        queries.append(start.option("checkpointLocation", str(tmp_path / f"checkpoint-{number}")).start())
    try:
        for query in queries:
            query.processAllAvailable()
    finally:
        for query in queries:
            query.stop()
    for one in (rig, other):
        last = one.last_commit("job")
        assert last is not None
        assert (last.checkpoint.id, one.opens()) == (len(batches), 1)
        assert one.numbers() == fold_rows(batches)


def test_a_strange_query_is_refused_until_it_takes_over(spark: SparkSession, rig: SparkLog, tmp_path: Path) -> None:
    """A writer belongs to one query; another gets its owner's name, and may take over by naming that query."""
    one, two = tmp_path / "one", tmp_path / "two"
    write_batches(one / "input", [[(1, 1)], [(2, 2)]])
    run_sink(spark, rig, one)
    write_batches(two / "input", [[(3, 3)]])
    with pytest.raises(StreamingQueryException, match="takeOverFrom"):
        run_sink(spark, rig, two)
    assert rig.numbers() == {1: 1, 2: 2}

    last = rig.last_commit("job")
    assert last is not None
    run_sink(spark, rig, two, takeOverFrom=str(last.metadata["queryId"]))
    assert rig.numbers() == {1: 1, 2: 2, 3: 3}
    forget_last_commit(two / "checkpoint")
    run_sink(spark, rig, two, takeOverFrom=str(last.metadata["queryId"]))
    newest = rig.last_commit("job")
    assert newest is not None
    assert newest.checkpoint.id == 3, "the replay of a batch whose checkpoint was shifted is recognised too"


def test_tasks_that_share_a_key_group_are_refused(spark: SparkSession, rig: SparkLog, tmp_path: Path) -> None:
    """Two tasks in one key group fail the batch with a hint; arranged by key group the same rows pass."""
    write_batches(tmp_path / "input", [[(key, key) for key in range(100)]])
    rows = read_stream(spark, tmp_path / "input")
    options = {**rig.options, "writerId": "job"}
    with pytest.raises(StreamingQueryException, match=r"OverlappingTasks.*repartition_by_key_group"):
        run_stream(scattered(rows), "statelog", options, tmp_path / "checkpoint")
    assert rig.state() == {}
    arranged = repartition_by_key_group(scattered(rows), rig.log, 3)
    run_stream(arranged, "statelog", options, tmp_path / "checkpoint")
    assert rig.numbers() == {key: key for key in range(100)}


def test_a_query_that_was_taken_over_is_told(spark: SparkSession, rig: SparkLog, tmp_path: Path) -> None:
    """A query fails with Fenced when somebody else opens its writer between two batches; started again it goes on."""
    write_batches(tmp_path / "input", [[(1, 1)]])
    df = scattered(read_stream(spark, tmp_path / "input"))
    options = {**rig.options, "writerId": "job", "uniqueKeys": "true"}
    start = df.writeStream.format("statelog").options(**options)
    query = start.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        query.processAllAvailable()
        Writer(rig.log, "job").close()
        write_batches(tmp_path / "input", [[(2, 2)]], first=1)
        with pytest.raises(StreamingQueryException, match=r"Fenced.*another writer took over"):
            query.processAllAvailable()
        error = error_of(query.exception())
        assert isinstance(error, Fenced)
        assert error.facts == {"writer": "job", "by_writer": "job"}
    finally:
        query.stop()
    run_sink(spark, rig, tmp_path)
    assert rig.numbers() == {1: 1, 2: 2}


def test_what_cannot_be_written_is_refused_with_a_hint(spark: SparkSession, rig: SparkLog, tmp_path: Path) -> None:
    """Complete mode, an unknown option, a missing one and wrong columns are named before any data is written."""
    write_batches(tmp_path / "input", [[(1, 1)]])
    rows = read_stream(spark, tmp_path / "input").drop("op")
    options = {**rig.options, "writerId": "job"}
    counts = rows.groupBy("key").agg(F.count("*").alias("n"))
    with pytest.raises(StreamingQueryException, match="foreachBatch"):
        run_stream(counts, "statelog", options, tmp_path / "c1", mode="complete")
    batch = spark.createDataFrame([(1, 2)], "key long, n long")

    def refused(kind: type[StatelogError], pattern: str, df: DataFrame = batch, **given: str) -> None:
        with pytest.raises(Exception, match=pattern) as caught:
            df.write.format("statelog").mode("append").options(**{**rig.options, **given}).save()
        assert type(error_of(caught.value)) is kind
        assert len(str(caught.value).split("JVM stacktrace")[0].splitlines()) < 20

    refused(ConfigError, "unknown option writer for a write", writer="job")
    refused(ConfigError, "writerId is missing")
    refused(ConfigError, "uniqueKeys is 'yes'", writerId="job", uniqueKeys="yes")
    refused(InvalidChange, "unknown=m", batch.withColumnRenamed("n", "m"), writerId="job")
    refused(InvalidChange, "no column key", batch.withColumnRenamed("key", "k"), writerId="job")
    assert rig.state() == {}


def test_columns_are_checked_before_anything_is_opened(spark: SparkSession, rig: SparkLog) -> None:
    """Columns are checked before anything is opened: a type that never fits is refused at planning with the cast.

    Names follow Spark's rule for case. A null value deletes only if that is declared. Rows of a key are put in
    sequence, or refused.
    """

    def save(query: str, **given: str) -> None:
        rows = spark.sql(query).coalesce(1)
        rows.write.format("statelog").mode("append").options(**rig.options, writerId="job", **given).save()

    with pytest.raises(Exception, match=r"Write cast\(n as bigint\)") as caught:
        save("SELECT 1 AS key, 'x' AS n")
    error = error_of(caught.value)
    assert isinstance(error, InvalidChange)
    assert (error.facts["given"], error.facts["expected"]) == ("string", "bigint")
    assert rig.opens() == 0

    save("SELECT 1 AS KEY, 2 AS N, 'a' AS Note")
    assert rig.state() == {1: {"n": 2, "note": "a"}}
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        with pytest.raises(Exception, match="caseSensitive is set"):
            save("SELECT 1 AS KEY, 3 AS n")
    finally:
        spark.conf.unset("spark.sql.caseSensitive")

    with pytest.raises(Exception, match="a null where the schema has long") as caught:
        save("SELECT 1 AS key, CAST(NULL AS BIGINT) AS n")
    error = error_of(caught.value)
    assert isinstance(error, InvalidChange)
    assert error.hint == "Fill the nulls of n, as by coalesce(n, ...), or leave such rows out"

    twice = "SELECT * FROM VALUES (1, 10, 1), (1, 30, 3), (1, 20, 2), (2, 5, 1) AS t(key, n, seq)"
    with pytest.raises(Exception, match="more than once in a task"):
        save(f"SELECT key, n FROM ({twice})")
    save(twice, sequenceBy="seq")
    assert rig.numbers() == {1: 30, 2: 5}
    nulled = "SELECT * FROM VALUES (1, named_struct('n', 1)), (2, NULL) AS t(key, value)"
    with pytest.raises(Exception, match="no column op"):
        save(nulled)
    save(nulled, nullDeletes="true")
    assert rig.numbers() == {1: 1}


def test_a_one_off_write_beside_a_running_query(spark: SparkSession, rig: SparkLog, tmp_path: Path) -> None:
    """A one-off write to a running query's partition is refused, and fences nobody; to others it is committed.

    The query goes on. Neither can write outside of its share.
    """
    group = key_group_column("key", "long", 16)
    write_batches(tmp_path / "input", [[(key, 1) for key in range(30)]])
    low = read_stream(spark, tmp_path / "input").where(group < 8)
    start = low.writeStream.format("statelog").options(
        **rig.options, writerId="job", uniqueKeys="true", partitions="0/2"
    )
    query = start.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        query.processAllAvailable()
        rows = spark.range(30).selectExpr("id AS key", "2L AS n").coalesce(1)

        def save(df: DataFrame, **given: str) -> None:
            df.write.format("statelog").mode("append").options(**rig.options, writerId="fix", **given).save()

        with pytest.raises(Exception, match="LogInUse") as caught:
            save(rows)
        error = error_of(caught.value)
        assert isinstance(error, LogInUse)
        assert (error.facts["writer"], error.facts["partitions"]) == ("job", "0:2")
        assert rig.opens() == 1
        with pytest.raises(Exception, match="KeyGroupMismatch") as caught:
            save(rows, partitions="1/2")
        error = error_of(caught.value)
        assert isinstance(error, KeyGroupMismatch)
        assert error.facts["owned_partitions"] == "2:4"
        save(rows.where(group >= 8), partitions="1/2")
        write_batches(tmp_path / "input", [[(key, 3) for key in range(30)]], first=1)
        query.processAllAvailable()
    finally:
        query.stop()
    in_low = {row.key for row in rows.where(group < 8).collect()}
    assert rig.numbers() == {key: 3 if key in in_low else 2 for key in range(30)}
    assert rig.opens() == 2, "the query's, and that of the one write that had something to commit"


def test_a_write_that_failed_bars_nobody(spark: SparkSession, rig: SparkLog) -> None:
    """After a failed write, for which Spark calls `abort`, another job need not wait for the dead one's time-out."""
    rows = spark.createDataFrame([(1, 2), (1, 3)], "key long, n long").coalesce(1)

    def save(df: DataFrame, writer: str) -> None:
        df.write.format("statelog").mode("append").options(**rig.options, writerId=writer).save()

    with pytest.raises(Exception, match="more than once in a task"):
        save(rows, "one")
    save(rows.where("n = 2"), "two")
    assert rig.numbers() == {1: 2}


def test_a_batch_write_is_one_commit(spark: SparkSession, rig: SparkLog) -> None:
    """A batch write with a checkpoint id is written once, however often it runs; without one every run is a commit."""
    rows = spark.createDataFrame([(key, key * 2) for key in range(20)], "key long, n long").coalesce(1)
    writer = rows.write.format("statelog").mode("append").options(**rig.options).option("writerId", "load")
    writer.option("checkpointId", "5").save()
    writer.option("checkpointId", "5").save()
    assert rig.commits() == 1, "the second run found its checkpoint in the ledger"
    with pytest.raises(Exception, match=r"CheckpointMismatch.*checkpoint 4 is not later"):
        writer.option("checkpointId", "4").save()
    again = rows.write.format("statelog").mode("append").options(**rig.options).option("writerId", "load")
    again.save()
    last = rig.last_commit("load")
    assert last is not None
    assert last.checkpoint.id == 6
    assert rig.numbers() == {key: key * 2 for key in range(20)}


@pytest.mark.parametrize("unique_keys", ["true", "false"])
def test_dues_of_rows_come_back(spark: SparkSession, rig: SparkLog, unique_keys: str) -> None:
    """A column `due` of times is that of the log: it comes back with `includeDue`, rounded up to milliseconds."""
    rows = spark.sql(
        "select id as key, id as n, if(id = 1, null, timestamp'2030-01-31 12:00:00.0001 UTC') as due from range(3)"
    )
    options = {**rig.options, "writerId": "job", "uniqueKeys": unique_keys}
    rows.coalesce(1).write.format("statelog").mode("append").options(**options).save()
    found = spark.read.format("statelog").options(**rig.options, includeDue="true").load()
    due_ms = {row.key: row.ms for row in found.selectExpr("key", "unix_millis(due) as ms").collect()}
    noon_ms = 1_896_091_200_001
    assert due_ms == {0: noon_ms, 1: None, 2: noon_ms}
    assert rig.numbers() == {0: 0, 1: 1, 2: 2}


@pytest.mark.parametrize("way", ["write", "write of unique keys", "stream", "upsert"])
def test_text_that_is_none_is_refused(
    spark: SparkSession, broker: Broker, log_name: str, tmp_path: Path, way: str
) -> None:
    """Invalid text, as Spark casts any bytes to a string, fails the batch with InvalidChange, field and row.

    This holds for a key or a field. No row of the batch is committed, and the log can be read.
    """
    write_batches(tmp_path / "input", [[(1, 1)]])
    text = "cast(x'61ff62' as string)"
    for field, key, note in (("key", text, "'fine'"), ("value.note", "'k'", text)):
        rig = SparkLog.create(f"{log_name}-{field}", broker.bootstrap, tmp_path / field, key_type="string")
        options = {**rig.options, "writerId": "job", "uniqueKeys": "false" if way == "write" else "true"}
        columns = (f"{key} as key", "cast(1 as long) as n", f"{note} as note")
        streamed = read_stream(spark, tmp_path / "input").selectExpr(*columns).coalesce(1)
        checkpoint = tmp_path / f"checkpoint-{field}"
        with pytest.raises(PySparkException) as failed:
            if way == "stream":
                run_stream(streamed, "statelog", options, checkpoint)
            elif way == "upsert":
                function = upsert(rig.log.name, rig.where, writer="job", unique_keys=True)
                start = streamed.writeStream.foreachBatch(function).trigger(availableNow=True)
                start.option("checkpointLocation", str(checkpoint)).start().awaitTermination(120)
            else:
                rows = spark.range(1).selectExpr(*columns)
                rows.write.format("statelog").options(**options).mode("append").save()
        error = error_of(failed.value)
        assert isinstance(error, InvalidChange)
        assert (error.message, error.facts["field"], error.facts["row"]) == ("a text is not UTF-8", field, 0)
        assert rig.state() == {}
