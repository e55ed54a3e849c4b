"""Omissions, repeats and calls from elsewhere, by Spark and its callers: none of them loses a row silently."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's own custom

from statelog.errors import CheckpointMismatch, ConfigError, InvalidChange, StatelogError
from statelog.log import Log
from statelog.spark.data_source import register
from statelog.spark.reported import error_of
from statelog.spark.sink import Upsert, upsert
from tests.support.services.broker import Broker
from tests.support.spark.rig import SparkLog, forget_last_commit, read_stream, run_sink, run_stream, write_batches

pytestmark = [pytest.mark.spark, pytest.mark.broker]


@pytest.fixture
def rig(broker: Broker, log_name: str, tmp_path: Path) -> SparkLog:
    """Return a small log of this test's own."""
    return SparkLog.create(log_name, broker.bootstrap, tmp_path)


def run(df: DataFrame, function: Callable[[DataFrame, int], None], checkpoint: Path) -> None:
    """Run the function for each batch of the present input. Raises the query's error."""
    start = df.writeStream.foreachBatch(function).option("checkpointLocation", str(checkpoint))
    query = start.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()


def writing(rig: SparkLog, **more: object) -> Upsert:
    """Return the function of `upsert` for this log."""
    return upsert(rig.log.name, rig.where, writer="job", unique_keys=True, **more)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # as given


def refused(kind: type[StatelogError], pattern: str, call: Callable[[], object]) -> StatelogError:
    """Return the error that refuses the call."""
    with pytest.raises(Exception, match=pattern) as caught:
        call()
    error = error_of(caught.value)
    assert error is not None
    assert type(error) is kind
    return error


def test_a_query_that_spark_repeats_or_moves_loses_no_row(spark: SparkSession, rig: SparkLog, tmp_path: Path) -> None:
    """A batch that Spark plans again with other rows, as from an old checkpoint, is refused with both counts.

    So is the query once its log was re-created, until a person says that nothing is missing.
    """
    write_batches(tmp_path / "input", [[(1, 1)], [(2, 2)]])
    run_sink(spark, rig, tmp_path)
    last = rig.last_commit("job")
    forget_last_commit(tmp_path / "checkpoint")
    run_sink(spark, rig, tmp_path)
    assert rig.last_commit("job") == last, "the same rows are the replay that Spark makes"

    forget_last_commit(tmp_path / "checkpoint")
    write_batches(tmp_path / "input", [[(2, 3), (4, 4)]], first=1)
    error = refused(CheckpointMismatch, "not those that were committed", lambda: run_sink(spark, rig, tmp_path))
    assert (error.facts["rows"], error.facts["committed_rows"]) == (2, 1)
    assert rig.numbers() == {1: 1, 2: 2}
    run_sink(spark, rig, tmp_path, allowChangedReplay="true")
    assert rig.numbers() == {1: 1, 2: 2}

    Log.delete(rig.log.name, rig.where)
    anew = SparkLog.create(rig.log.name, rig.bootstrap, tmp_path)
    write_batches(tmp_path / "input", [[(5, 5)]], first=2)
    refused(CheckpointMismatch, "batches 0 to 1 .*takeOverFrom=none", lambda: run_sink(spark, rig, tmp_path))
    assert anew.state() == {}
    run_sink(spark, rig, tmp_path, takeOverFrom="none")
    assert anew.numbers() == {5: 5}


def test_a_batch_without_a_partition_is_a_commit(spark: SparkSession, rig: SparkLog, tmp_path: Path) -> None:
    """A batch without a partition is a commit: Spark runs a task for it all the same, so no batch is missing behind it.

    A batch that the function leaves out is missing, unless it is declared.
    """
    write_batches(tmp_path / "input", [[(1, 1)], [(2, 2)], [(3, 3)]])
    rows = read_stream(spark, tmp_path / "input").select("key", "n")

    def emptied(function: Upsert) -> Callable[[DataFrame, int], None]:
        def write(batch: DataFrame, number: int) -> None:
            session = batch.sparkSession
            nothing = session.createDataFrame(session.sparkContext.emptyRDD(), batch.schema)
            assert nothing.rdd.getNumPartitions() == 0
            function(nothing if number == 1 else batch, number)

        return write

    run(rows, emptied(writing(rig)), tmp_path / "checkpoint")
    last = rig.last_commit("job")
    assert last is not None
    assert (last.checkpoint.id, rig.numbers()) == (3, {1: 1, 3: 3})
    nothing = spark.createDataFrame(spark.sparkContext.emptyRDD(), "key long, n long")
    nothing.write.format("statelog").mode("append").options(**rig.options, writerId="job", takeOver="true").options(
        takeOverFrom=str(last.metadata["queryId"]), checkpointId="9"
    ).save()
    assert rig.commits() == 4

    write_batches(tmp_path / "input", [[(4, 4)], [(5, 5)]], first=3)
    other = SparkLog.create(f"{rig.log.name}-b", rig.bootstrap, tmp_path)

    def odd(function: Upsert) -> Callable[[DataFrame, int], None]:
        return lambda batch, number: function(batch, number) if number % 2 else None

    refused(CheckpointMismatch, "allowGaps=true", lambda: run(rows, odd(writing(other)), tmp_path / "odd"))
    run(rows, odd(writing(other, allow_gaps=True)), tmp_path / "odd")
    assert other.numbers() == {2: 2, 4: 4}


def test_a_query_that_died_in_its_first_batch_is_followed_by_its_mended_self(
    spark: SparkSession, rig: SparkLog, tmp_path: Path
) -> None:
    """A query that died in its first batch is followed at once by its repaired self on a new checkpoint.

    It has the same writer, by sink and by `upsert`. If a task of the dead one succeeded, any other writer follows, too.
    """
    write_batches(tmp_path / "input", [[(1, 1)]])
    good = read_stream(spark, tmp_path / "input").select("key", "n")
    bad = good.withColumn("key", F.lit(None).cast("long"))
    options = {**rig.options, "writerId": "job"}
    refused(InvalidChange, "a key is null", lambda: run_stream(bad, "statelog", options, tmp_path / "c1"))
    run_stream(good, "statelog", options, tmp_path / "c2")
    other = SparkLog.create(f"{rig.log.name}-b", rig.bootstrap, tmp_path)
    refused(InvalidChange, "a key is null", lambda: run(bad, writing(other), tmp_path / "c3"))
    run(good, writing(other), tmp_path / "c4")
    assert rig.numbers() == other.numbers() == {1: 1}


def test_any_thread_of_the_driver_writes(spark: SparkSession, rig: SparkLog, tmp_path: Path) -> None:
    """Any thread of the driver writes, though a new one has no active session, where Spark looks for data sources.

    `register` sets it, and `upsert` by itself. `upsert` knows its query if it was made in that session; else it refuses
    before anything is opened.
    """
    failures: list[BaseException] = []

    def in_thread(call: Callable[[], object]) -> None:
        def go() -> None:
            try:
                call()
            except BaseException as error:  # noqa: BLE001  # raised where the test runs
                failures.append(error)

        thread = threading.Thread(target=go)
        thread.start()
        thread.join()
        while failures:
            raise failures.pop()

    def save() -> None:
        register(spark)
        rows = spark.createDataFrame([(9, 9)], "key long, n long").coalesce(1)
        rows.write.format("statelog").mode("append").options(**rig.options, writerId="plain").save()

    in_thread(save)
    assert rig.numbers() == {9: 9}
    write_batches(tmp_path / "input", [[(1, 1)], [(2, 2)]])
    rows, outside = read_stream(spark, tmp_path / "input").select("key", "n"), writing(rig)
    opens = rig.opens()
    refused(
        ConfigError,
        "query_id of upsert",
        lambda: run(rows, lambda batch, number: in_thread(lambda: outside(batch, number)), tmp_path / "c1"),
    )
    assert rig.opens() == opens

    def inside(batch: DataFrame, number: int) -> None:
        write = writing(rig)
        in_thread(lambda: write(batch, number))

    run(rows, inside, tmp_path / "c2")
    last = rig.last_commit("job")
    assert last is not None
    assert (last.metadata["batchId"], rig.numbers()) == (1, {1: 1, 2: 2, 9: 9})


def test_sql_inserts(spark: SparkSession, rig: SparkLog) -> None:
    """SQL inserts into a table without options, by INSERT INTO ... WITH (...): exactly once with a checkpoint id."""
    options = ", ".join(f"`{name}` = '{text}'" for name, text in rig.options.items())
    spark.sql("CREATE TABLE sql_inserts (key bigint, n bigint) USING statelog")

    def insert(number: int, more: str) -> None:
        spark.sql(
            f"INSERT INTO sql_inserts WITH ({options}{more}) SELECT /*+ COALESCE(1) */ id, {number} FROM range(3)"
        )

    try:
        insert(1, ", writerId = 'sql', checkpointId = '1'")
        insert(1, ", writerId = 'sql', checkpointId = '1'")
        refused(CheckpointMismatch, "not those", lambda: insert(2, ", writerId = 'sql', checkpointId = '1'"))
        assert (rig.commits(), rig.numbers()) == (1, dict.fromkeys(range(3), 1))
        refused(ConfigError, "INSERT INTO t WITH", lambda: insert(1, ""))
    finally:
        spark.sql("DROP TABLE sql_inserts")


def test_changes_since_a_time_that_is_to_come_are_refused(spark: SparkSession, rig: SparkLog) -> None:
    """Changes since a future time are refused, as by a stream: microseconds would read as "nothing has changed"."""
    given = {**rig.options, "read": "changes", "startingTime": "2999-01-01T00:00:00Z"}
    refused(ConfigError, "in the future", lambda: spark.read.format("statelog").options(**given).load())
    words = {**rig.options, "startingOffsets": "earliest"}
    refused(
        ConfigError,
        "startingOffsets is startingPosition",
        lambda: spark.readStream.format("statelog").options(**words).load(),
    )
