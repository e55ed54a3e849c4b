"""Writing with Spark: exactly once to a log, beside Spark's own Kafka sink, which writes at least once.

The rows come from Parquet, in one session of two threads; a scan of them alone is a fraction of either.
"""

import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from bench.cost import figures_of, take_turns
from bench.figures import Figure
from bench.logs import bench_log
from bench.plain import plain_topic
from bench.setting import Setting
from bench.spark_floors import Floor
from bench.spark_session import our_writer, spark_session
from bench.workload import every_key
from statelog.spark import repartition_by_key_group
from tests.support.spark.connector import CONNECTOR

__all__ = ["spark_writes"]

_FILES = 4


def spark_writes(setting: Setting) -> list[Figure]:
    """Rows of distinct keys, every take a commit: as they are, where the user says that keys are unique; and brought
    together by key group first, by Spark's shuffle, where statelog checks that no key comes twice.
    """
    with (
        tempfile.TemporaryDirectory() as directory,
        bench_log(setting.bootstrap, setting.root) as log,
        plain_topic(setting.bootstrap) as topic,
        spark_session() as spark,
    ):
        _rows(setting, Path(directory))
        rows = spark.read.parquet(directory)

        def ours(frame: DataFrame, **options: str) -> None:
            our_writer(frame.write, setting, log).options(**options).save()

        def kafka() -> None:
            to = rows.write.format("kafka").option("kafka.bootstrap.servers", setting.bootstrap)
            to.option("topic", topic.name).option("kafka.linger.ms", 10).option("kafka.batch.size", 1 << 20).save()

        spark.dataSource.register(Floor)
        works: dict[str, Callable[[], object]] = {
            "unique": lambda: ours(rows, uniqueKeys="true"),
            "checked": lambda: ours(repartition_by_key_group(rows, log.descriptor)),
            "kafka": kafka,
            "floor": lambda: rows.write.format("floor").mode("append").save(),
        }
        costs = take_turns(setting, works)
    name, count = "Spark: rows written, exactly once", setting.keys
    baseline = (f"Kafka sink, at least once ({CONNECTOR})", costs["kafka"])
    floor = "the floor: a Python sink that does nothing"
    return [
        *figures_of(f"{name}, uniqueKeys", count, costs["unique"], *baseline),
        *figures_of(f"{name}, uniqueKeys", count, costs["unique"], floor, costs["floor"]),
        *figures_of(f"{name}, brought together and checked", count, costs["checked"], *baseline),
    ]


def _rows(setting: Setting, directory: Path) -> None:
    found = every_key(setting.keys)
    share = -(-len(found) // _FILES)
    for number in range(_FILES):
        part = found[number * share : (number + 1) * share]
        pq.write_table(pa.Table.from_batches(part), directory / f"{uuid.uuid4().hex}-{number}.parquet")
