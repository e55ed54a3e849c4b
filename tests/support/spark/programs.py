"""Seven programs of a Spark user, the same on every kind of cluster: each checks its results against a plain model.

They take a session and a place, and use only what every session has: no SparkContext, no JVM, no RDD, so that they run
on Spark Connect. No function of this module goes to an executor, so that executors need nothing but what is installed.
"""

import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's own custom
from pyspark.sql.utils import is_remote

from statelog.errors import CheckpointMismatch, InvalidChange
from statelog.materializer.outcome import CompletedRound
from statelog.materializer.settings import MaterializerSettings
from statelog.producer.writer import Writer
from statelog.recovery import recover_snapshot
from statelog.spark.columns import repartition_by_key_group
from statelog.spark.engine import materialize
from statelog.spark.reported import error_of
from statelog.spark.sink import upsert
from tests.support.spark.rig import (
    Row,
    SparkLog,
    fold_rows,
    forget_last_commit,
    read_stream,
    run_stream,
    scattered,
    write_batches,
    write_numbers,
)

__all__ = ["PROGRAMS", "Place"]

_QUERY_TIMEOUT_S = 240


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The place where a program works: a Kafka, and a directory that driver and executors see under the same path."""

    bootstrap: str
    directory: Path

    def make_log(self, name: str) -> SparkLog:
        """Return a log of long keys, 4 partitions and 16 key groups that nobody else uses."""
        unique = f"{name}-{uuid.uuid4().hex[:8]}"
        return SparkLog.create(unique, self.bootstrap, self.directory / unique)

    def path(self, name: str) -> Path:
        """Return a path that nobody else uses."""
        return self.directory / f"{name}-{uuid.uuid4().hex[:8]}"


def write_batches_twice(spark: SparkSession, place: Place) -> None:
    """Write a batch under a checkpoint id, the same again, and one that deletes: every id is written once.

    A refusal is the typed error.
    """
    log = place.make_log("batch")
    rows = spark.range(0, 4000, 1, 4).selectExpr("id AS key", "id * 3 AS n")
    for _ in range(2):  # The second time 1 is a replay; other rows under its number are refused.
        _write_batch(rows, log, checkpoint_id=1)
    try:
        _write_batch(rows.withColumn("n", F.col("key") * 5), log, checkpoint_id=1)
    except Exception as error:  # noqa: BLE001  # Spark's own classes differ by cluster.
        _expect(type(error_of(error)), CheckpointMismatch)
    else:
        raise AssertionError("other rows were taken for a replay")
    _expect(log.numbers(), {key: key * 3 for key in range(4000)})
    gone = rows.where("key % 2 = 0").withColumn("op", F.lit("delete"))
    _write_batch(gone, log, checkpoint_id=2)
    _expect(log.numbers(), {key: key * 3 for key in range(1, 4000, 2)})
    try:
        _write_batch(rows.withColumn("n", F.lit("no number")), log, checkpoint_id=3)
    except Exception as error:  # noqa: BLE001  # Spark's own classes differ by cluster.
        _expect(type(error_of(error)), InvalidChange)
    else:
        raise AssertionError("text was taken for a number")


def read_joined(spark: SparkSession, place: Place) -> None:
    """Join the state with itself, with an older state and with a table: one position each, equal to the model."""
    log = place.make_log("joined")
    _fill(log, {key: key for key in range(500)}, checkpoint_id=1)
    _fill(log, {key: -key for key in range(100)}, checkpoint_id=2)
    reader = spark.read.format("statelog").options(**log.options)
    newest = reader.load().select("key", "n")
    older = reader.options(atWriter="w", atCheckpoint="1").load().select("key", F.col("n").alias("before"))
    names = spark.createDataFrame([(key, f"name {key}") for key in range(50, 150)], "key long, name string")
    joined = newest.join(older, "key").join(names, "key").join(newest.withColumnRenamed("n", "again"), "key")
    found = {row.key: (row.n, row.before, row.name, row.again) for row in joined.collect()}
    now = {key: -key if key < 100 else key for key in range(500)}
    _expect(found, {key: (now[key], key, f"name {key}", now[key]) for key in range(50, 150)})


def stream_exactly_once(spark: SparkSession, place: Place) -> None:
    """Run a streaming sink, restarted after a batch that Spark forgot, with more input: each batch is one commit."""
    log, source, checkpoint = place.make_log("stream"), place.path("input"), place.path("checkpoint")
    batches: list[list[Row]] = [[(key, key + 10 * batch) for key in range(batch * 50, 300)] for batch in range(4)]
    batches[3] += [(key, None) for key in range(20)]
    write_batches(source, batches[:3])
    rows = scattered(read_stream(spark, source), 3)
    options = {**log.options, "writerId": "stream", "uniqueKeys": "true"}

    def run() -> int:
        run_stream(rows, "statelog", options, checkpoint, timeout_s=_QUERY_TIMEOUT_S)
        last = log.last_commit("stream")
        return last.checkpoint.id if last else 0

    _expect(run(), 3)
    _expect(forget_last_commit(checkpoint), 2)
    write_batches(source, batches[3:], first=3)
    _expect(run(), 4)
    _expect(log.commits(), 4)
    _expect(log.numbers(), fold_rows(batches))


def upsert_counts(spark: SparkSession, place: Place) -> None:
    """Upsert a running count in update mode; Spark Connect needs the query to be named for it."""
    log, source, checkpoint = place.make_log("upsert"), place.path("input"), place.path("checkpoint")
    batches: list[list[Row]] = [[(key % 7, 0) for key in range(60)], [(key % 11, 0) for key in range(40)]]
    write_batches(source, batches)
    write = upsert(
        log.log.name,
        log.where,
        writer="counts",
        unique_keys=True,
        query_id="counts-of-keys" if is_remote() else None,
    )
    counts = read_stream(spark, source).groupBy("key").agg(F.count("*").alias("n"))
    for _ in range(2):  # The second run replays the batch that Spark forgot.
        start = counts.writeStream.outputMode("update").foreachBatch(write).trigger(availableNow=True)
        query = start.option("checkpointLocation", str(checkpoint)).start()
        try:
            _expect(query.awaitTermination(_QUERY_TIMEOUT_S), True)
        finally:
            query.stop()
        _expect(log.numbers(), dict(Counter(key for batch in batches for key, _ in batch)))
        last = log.last_commit("counts")
        _expect(last and last.checkpoint.id, 2)
        forget_last_commit(checkpoint)


def read_changes(spark: SparkSession, place: Place) -> None:
    """Read committed changes as a batch: all of them, and the changes behind the end of an earlier read."""
    log = place.make_log("changes")
    _fill(log, {key: key for key in range(200)}, checkpoint_id=1)
    _write_batch(spark.range(40).selectExpr("id AS key", "'delete' AS op", "id AS n"), log, checkpoint_id=7)
    reader = spark.read.format("statelog").options(**log.options, read="changes")
    changes = reader.load().selectExpr("key", "op", "value.n AS n", "writer", "checkpoint", "position")
    found: set[tuple[Any, ...]] = {(row.key, row.op, row.n, row.writer, row.checkpoint) for row in changes.collect()}
    first = {(key, "put", key, "w", 1) for key in range(200)}
    _expect(found, first | {(key, "delete", None, "batch", 7) for key in range(40)})
    read_to = changes.agg(F.max("position")).collect()[0][0]
    _fill(log, {key: -key for key in range(100, 110)}, checkpoint_id=2)
    later = reader.option("startingPosition", str(read_to)).load().select("key", "value.n")
    _expect({row.key: row.n for row in later.collect()}, {key: -key for key in range(100, 110)})


def copy_by_stream(spark: SparkSession, place: Place) -> None:
    """Stream from the source into the sink of another log, in two runs over one checkpoint: the copy equals the log."""
    log, copy, checkpoint = place.make_log("origin"), place.make_log("copy"), place.path("checkpoint")
    source = spark.readStream.format("statelog").options(**log.options, startingPosition="earliest", readerId="copy")
    changes = source.option("maxChangesPerTrigger", "150").load()
    rows = repartition_by_key_group(changes.select("key", "op", "value.n", "value.note", "position"), copy.log)
    options = {**copy.options, "writerId": "copy", "sequenceBy": "position"}
    numbers: dict[int, int] = {}
    for life in range(2):
        for commit in range(2):
            changed = {key: 100 * life + key for key in range(commit * 50, 120)}
            _fill(log, changed, checkpoint_id=2 * life + commit + 1)
            numbers.update(changed)
        run_stream(rows, "statelog", options, checkpoint, timeout_s=_QUERY_TIMEOUT_S)
        _expect(copy.numbers(), numbers)


def roll_up(spark: SparkSession, place: Place) -> None:
    """Run rounds whose folds and merges are Spark tasks: the snapshot alone has the model's rows."""
    log, numbers = place.make_log("rounds"), dict[int, int]()
    settings = MaterializerSettings(scratch=place.directory, fanout=2)
    merged = 0
    for number in range(1, 4):
        changed = {key: number * 1000 + key for key in range(number * 50, 300)}
        _fill(log, changed, checkpoint_id=number)
        numbers.update(changed)
        outcome = materialize(spark, log.log.name, log.where, settings=settings, task_bytes=1)
        assert isinstance(outcome, CompletedRound)
        merged += outcome.runs_merged
    with recover_snapshot(log.log.name, log.where) as recovery:
        _expect({key: value["n"] for key, value in recovery.to_dict().items()}, numbers)
    _expect(merged > 0, True)


PROGRAMS: Mapping[str, Callable[[SparkSession, Place], None]] = MappingProxyType(
    {
        "write batches": write_batches_twice,
        "read, joined": read_joined,
        "stream exactly once": stream_exactly_once,
        "upsert": upsert_counts,
        "read changes": read_changes,
        "copy by stream": copy_by_stream,
        "roll up": roll_up,
    }
)
"""The programs by their names."""


def _write_batch(rows: DataFrame, log: SparkLog, *, checkpoint_id: int) -> None:
    options = {**log.options, "writerId": "batch", "uniqueKeys": "true", "checkpointId": str(checkpoint_id)}
    rows.write.format("statelog").mode("append").options(**options).save()


def _fill(log: SparkLog, numbers: Mapping[int, int], *, checkpoint_id: int) -> None:
    with Writer(log.log, "w") as writer:
        write_numbers(writer, numbers)
        writer.commit(checkpoint_id=checkpoint_id)


def _expect(found: Any, wanted: Any) -> None:
    """Raise AssertionError unless they are equal, with both in short."""
    if found != wanted:
        raise AssertionError(f"expected {_short(wanted)}, found {_short(found)}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}... ({len(text)} characters)"
