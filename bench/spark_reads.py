"""Reading with Spark: a state, Parquet and Spark's own state store; changes, and Spark's own Kafka source.

All go to Spark's `noop` sink, every column, in one session of two threads, warm.
"""

import tempfile
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from bench.cost import figures_of, take_turns
from bench.figures import Figure
from bench.logs import bench_log, bulk_append
from bench.plain import plain_topic
from bench.setting import Setting
from bench.spark_floors import Floor
from bench.spark_session import our_reader, spark_session
from bench.workload import batches, every_key, pairs
from statelog.materializer.round import run_round
from statelog.materializer.settings import MaterializerSettings
from tests.support.spark.connector import CONNECTOR

__all__ = ["spark_changes", "spark_state"]

_STATE_STORE = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Without this its snapshots are empty, and its reader replays every change.
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "2",
    "spark.sql.streaming.stateStore.maintenanceInterval": "1s",
}


def spark_state(setting: Setting) -> list[Figure]:
    """Measure reading a state of all keys with the default slices.

    The baselines are the Parquet of the same run, and the same rows as the state of a stateful query.
    """
    found = every_key(setting.keys)
    with (
        spark_session() as spark,
        tempfile.TemporaryDirectory() as scratch,
        bench_log(setting.bootstrap, setting.root) as log,
    ):
        bulk_append(log, found, commits=2)
        run_round(log, MaterializerSettings(scratch=Path(scratch)))
        runs = [str(run) for run in (setting.root / log.name / "runs").iterdir()]
        spark.dataSource.register(Floor)
        floor = spark.read.format("floor").option("rows", setting.keys).option("tasks", 2)
        checkpoint = _stateful_query(spark, found, Path(scratch))
        costs = take_turns(
            setting,
            {
                "ours": lambda: read(our_reader(spark, setting, log).load()),
                "parquet": lambda: read(spark.read.parquet(*runs)),
                "floor": lambda: read(floor.load()),
                "decoded": lambda: read(spark.read.format("floor").option("files", ",".join(runs)).load()),
                "statestore": lambda: read(spark.read.format("statestore").load(str(checkpoint))),
            },
        )
    name = "Spark: state, default slices"
    return [
        *figures_of(name, setting.keys, costs["ours"], "spark.read.parquet of the same runs", costs["parquet"]),
        *figures_of(name, setting.keys, costs["ours"], "format('statestore'), RocksDB", costs["statestore"]),
        *figures_of(name, setting.keys, costs["ours"], "the floor: a Python source of prepared rows", costs["floor"]),
        *figures_of(name, setting.keys, costs["ours"], "the floor: one that only decodes the runs", costs["decoded"]),
    ]


def spark_changes(setting: Setting) -> list[Figure]:
    """Measure reading every committed change of a log, and as many records of a topic by Spark's Kafka source."""
    count = setting.scaled(0.4)
    found = batches(count, setting.keys)
    with (
        spark_session() as spark,
        bench_log(setting.bootstrap, setting.root) as log,
        plain_topic(setting.bootstrap) as topic,
    ):
        bulk_append(log, found, commits=10)
        topic.produce(pairs(found))
        kafka = spark.read.format("kafka").option("kafka.bootstrap.servers", setting.bootstrap)
        large = kafka.option("kafka.max.partition.fetch.bytes", 8 << 20).option("kafka.max.poll.records", 10_000)
        costs = take_turns(
            setting,
            {
                "ours": lambda: read(our_reader(spark, setting, log).option("read", "changes").load()),
                "kafka": partial(lambda: read(large.option("subscribe", topic.name).load())),
            },
        )
    return figures_of("Spark: committed changes", count, costs["ours"], f"Kafka source ({CONNECTOR})", costs["kafka"])


def read(frame: DataFrame) -> None:
    """Read all columns of all rows, and drop them."""
    frame.write.format("noop").mode("overwrite").save()


def _stateful_query(spark: SparkSession, found: list[pa.RecordBatch], directory: Path) -> Path:
    """Return the checkpoint of a query with the same keys and values as state.

    It runs two batches, then a few small ones until its snapshots are taken.
    """
    for name, value in _STATE_STORE.items():
        spark.conf.set(name, value)
    rows = directory / "rows"
    rows.mkdir()
    parts = [found[: len(found) // 2], found[len(found) // 2 :], *[[found[0].slice(0, 10)]] * 6]
    for number, part in enumerate(parts):
        pq.write_table(pa.Table.from_batches(part), rows / f"part-{number}.parquet")
    checkpoint = directory / "stateful"
    stream = spark.readStream.schema("key binary, value binary").option("maxFilesPerTrigger", 1).parquet(str(rows))
    kept = stream.groupBy("key").agg({"value": "max"})
    writer = kept.writeStream.format("noop").outputMode("update").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(600)
    return checkpoint
