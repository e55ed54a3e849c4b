"""Writing with Spark: exactly once to a log, and by Spark's own Kafka sink, which writes at least once.

The rows come from Parquet, in one session of two threads; a scan of them alone takes a fraction of either.
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
    """Measure writing rows of distinct keys, each take in one commit, in two ways.

    In the first the user declares that keys are unique. In the second Spark's shuffle first groups the rows by key
    group, and statelog checks that no key comes twice.
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

        def floor(frame: DataFrame, **options: str) -> None:
            frame.write.format("floor").options(**options).mode("append").save()

        spark.dataSource.register(Floor)
        works: dict[str, Callable[[], object]] = {
            "unique": lambda: ours(rows, uniqueKeys="true"),
            "checked": lambda: ours(repartition_by_key_group(rows, log.descriptor)),
            "kafka": kafka,
            "floor": lambda: floor(rows),
            "sent": lambda: floor(rows, topic=topic.name, brokers=setting.bootstrap),
            "shuffled": lambda: floor(repartition_by_key_group(rows, log.descriptor)),
        }
        costs = take_turns(setting, works)
    name, count = "Spark: rows written, exactly once", setting.keys
    baseline = (f"Kafka sink, at least once ({CONNECTOR})", costs["kafka"])
    floors = {
        "unique": {"that does nothing": "floor", "that only sends": "sent"},
        "checked": {"that does nothing, behind the same shuffle": "shuffled"},
    }
    labels = {"unique": "uniqueKeys", "checked": "brought together and checked"}
    return [
        figure
        for way, label in labels.items()
        for beside, other in (
            baseline,
            *((f"the floor: a Python sink {what}", costs[n]) for what, n in floors[way].items()),
        )
        for figure in figures_of(f"{name}, {label}", count, costs[way], beside, other)
    ]


def _rows(setting: Setting, directory: Path) -> None:
    for number, batch in enumerate(every_key(setting.keys, -(-setting.keys // _FILES))):
        pq.write_table(pa.Table.from_batches([batch]), directory / f"{uuid.uuid4().hex}-{number}.parquet")
