"""`upsert` in `foreachBatch`: update mode, exactly once by (writer, query, batch id)."""

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's own custom

from statelog.errors import ConfigError, Misuse
from statelog.log import Where
from statelog.spark.reported import error_of
from statelog.spark.sink import Upsert, upsert
from tests.support.rigs.log import UNSAFE
from tests.support.services.broker import Broker
from tests.support.spark.rig import SparkLog, forget_last_commit, read_stream, write_batches

pytestmark = [pytest.mark.spark, pytest.mark.broker]


@pytest.fixture
def rig(broker: Broker, log_name: str, tmp_path: Path) -> SparkLog:
    """Return a small log of this test's own."""
    return SparkLog.create(log_name, broker.bootstrap, tmp_path)


def function_for(rig: SparkLog, *, allow_changed_replay: bool = False) -> Upsert:
    """Return the function under test, for the log of `rig`."""
    return upsert(
        rig.log.name,
        Where({"bootstrap.servers": rig.bootstrap}, str(rig.root), allow_unsafe=UNSAFE),
        writer="counts",
        unique_keys=True,
        allow_changed_replay=allow_changed_replay,
    )


def run(counts: DataFrame, function: Upsert, checkpoint: Path) -> None:
    """Run an update-mode query over the present input."""
    start = counts.writeStream.outputMode("update").foreachBatch(function).trigger(availableNow=True)
    query = start.option("checkpointLocation", str(checkpoint)).start()
    try:
        query.awaitTermination(120)
    finally:
        query.stop()


def test_an_aggregation_is_kept_exactly_once(spark: SparkSession, rig: SparkLog, tmp_path: Path) -> None:
    """Counts by key in update mode equal the model; a replayed batch is recognized, an empty one is progress."""
    write_batches(tmp_path / "input", [[(key % 7, 0) for key in range(30)], [(key, 0) for key in range(3)]])
    rows = read_stream(spark, tmp_path / "input")
    counts = rows.groupBy("key").agg(F.count("*").alias("n"))
    function = function_for(rig)
    run(counts, function, tmp_path / "checkpoint")
    expected = {key: len(range(key, 30, 7)) + (1 if key < 3 else 0) for key in range(7)}
    assert rig.numbers() == expected
    last = rig.last_commit("counts")
    assert last is not None
    assert last.checkpoint.id == 2
    end = rig.ledger_end()

    assert forget_last_commit(tmp_path / "checkpoint") == 1
    run(counts, function, tmp_path / "checkpoint")
    assert rig.last_commit("counts") == last
    assert rig.ledger_end() == end, "nothing was committed, and no epoch was opened, for a replayed batch"
    assert rig.numbers() == expected


def test_a_batch_in_two_calls_is_refused(spark: SparkSession, rig: SparkLog, tmp_path: Path) -> None:
    """A batch in two calls fails the query with Misuse, which says that the batch counts as written.

    The second call's rows would be taken for a replay of the first's, and be lost. Restarted with all rows in one call,
    it is refused until a person says that the rest is there.
    """
    write_batches(tmp_path / "input", [[(key, key) for key in range(4)]])
    rows = read_stream(spark, tmp_path / "input").select("key", "n")
    function = function_for(rig)

    def in_two(batch: DataFrame, number: int) -> None:
        function(batch.where("key % 2 = 0"), number)
        function(batch.where("key % 2 = 1"), number)

    query = rows.writeStream.foreachBatch(in_two).option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        with pytest.raises(StreamingQueryException):
            query.processAllAvailable()
        error = error_of(query.exception())
        assert isinstance(error, Misuse)
        assert "add what is missing by hand" in str(error.hint)
    finally:
        query.stop()
    assert rig.numbers() == {0: 0, 2: 2}
    with pytest.raises(StreamingQueryException, match="not those that were committed"):
        run(rows, function, tmp_path / "checkpoint")
    run(rows, function_for(rig, allow_changed_replay=True), tmp_path / "checkpoint")
    assert rig.commits() == 1


def test_another_query_is_refused_before_it_fences(spark: SparkSession, rig: SparkLog, tmp_path: Path) -> None:
    """A query that takes another's writer is refused at planning: the driver knows which query calls."""
    write_batches(tmp_path / "input", [[(1, 1)], [(2, 2)]])
    rows = read_stream(spark, tmp_path / "input").select("key", "n")
    run(rows, function_for(rig), tmp_path / "one")
    with pytest.raises(StreamingQueryException, match="takeOverFrom"):
        run(rows, function_for(rig), tmp_path / "two")
    assert rig.opens() == 1


def test_an_empty_batch_is_a_commit(spark: SparkSession, rig: SparkLog, tmp_path: Path) -> None:
    """A batch without rows moves the checkpoint, so that the log shows the query's progress."""
    write_batches(tmp_path / "input", [[(1, 1)], [(2, 2)]])
    rows = read_stream(spark, tmp_path / "input").filter("key = 1").select("key", "n")
    run(rows, function_for(rig), tmp_path / "checkpoint")
    assert rig.numbers() == {1: 1}
    last = rig.last_commit("counts")
    assert last is not None
    assert last.checkpoint.id == 2


def test_wrong_settings_are_refused_at_once(tmp_path: Path) -> None:
    """`upsert` checks its settings when it is called, not when the first batch comes; its repr hides secrets."""
    with pytest.raises(ConfigError, match=r"bootstrap\.servers"):
        upsert("log", Where({}, str(tmp_path)), writer="w")
    with pytest.raises(ConfigError, match="unique_keys is 'false'"):
        upsert("log", Where({"bootstrap.servers": "b:1"}, "s3://b"), writer="w", unique_keys="false")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] # what is refused
    kafka = {"bootstrap.servers": "b:1", "sasl.password": "hidden"}
    function = upsert("log", Where(kafka, "s3://bucket", storage_options={"secret": "hidden"}), writer="w")
    assert "hidden" not in repr(function)
