"""Micro-batches of 100 rows to a log, with an empty Python sink as baseline: one query, and three at once."""

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bench.figures import Figure, medians
from bench.logs import bench_log
from bench.setting import Setting
from bench.spark_floors import Floor
from bench.spark_session import options_of, spark_session

__all__ = ["spark_batches"]

_ROWS, _TASKS = 100, 2
_WARM, _COUNTED = 15, 60
_TIMEOUT_S = 240


def spark_batches(setting: Setting) -> list[Figure]:
    """Measure the median trigger of a micro-batch, with one query in the session, and with three concurrent ones."""
    found: list[Figure] = []
    with spark_session() as spark:
        spark.dataSource.register(Floor)
        for queries in (1, 3):
            empty = _empty(spark, queries)
            ours = _ours(spark, setting, queries)
            empty += _empty(spark, queries)
            found.append(
                medians(
                    f"Spark: micro-batch of {_ROWS} rows, {queries} at once", "ms", ours, "an empty Python sink", empty
                )
            )
    return found


def _ours(spark: SparkSession, setting: Setting, queries: int) -> list[float]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        running: list[StreamingQuery] = []
        for number in range(queries):
            log = stack.enter_context(bench_log(setting.bootstrap, setting.root))
            writer = _rows(spark).writeStream.format("statelog").options(**options_of(setting, log), writerId="bench")
            writer = writer.option("uniqueKeys", "true").option("checkpointLocation", str(directory / str(number)))
            running.append(writer.start())
        return _triggers_ms(running)


def _empty(spark: SparkSession, queries: int) -> list[float]:
    with tempfile.TemporaryDirectory() as directory:
        running = [
            _rows(spark).writeStream.format("floor").option("checkpointLocation", f"{directory}/{number}").start()
            for number in range(queries)
        ]
        return _triggers_ms(running)


def _rows(spark: SparkSession) -> DataFrame:
    """Return a stream with the same number of rows in every batch."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", _ROWS).option("numPartitions", _TASKS)
    return source.load().selectExpr("cast(cast(value as string) as binary) key", "cast('value' as binary) value")


def _triggers_ms(running: list[StreamingQuery]) -> list[float]:
    """Return the triggers of all queries once each is warm, and stop the queries."""
    found: dict[object, dict[int, float]] = {query.id: {} for query in running}
    end_s = time.monotonic() + _TIMEOUT_S
    while any(len(triggers) < _WARM + _COUNTED for triggers in found.values()):
        assert time.monotonic() < end_s, "the queries are too slow to measure"
        time.sleep(1)
        for query in running:
            assert query.isActive, query.exception()
            for progress in query.recentProgress:
                found[query.id][progress.batchId] = progress.durationMs["triggerExecution"]
    for query in running:
        query.stop()
    return [ms for triggers in found.values() for batch, ms in sorted(triggers.items()) if batch >= _WARM]
