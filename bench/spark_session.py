"""A Spark session for benchmarks, with statelog's source and sink.

The session has two threads, Spark's own Kafka connector, and a JVM that optimises as a user's does. The connector is a
set of versions that work together, not one release: `CONNECTOR` names it, and the run prints it.
"""

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager

from pyspark.sql import DataFrameReader, DataFrameWriter, SparkSession

from bench.setting import Setting
from statelog.log import Log
from tests.support.spark.connector import connector_jars

__all__ = ["options_of", "our_reader", "our_writer", "spark_session"]

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "3g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "8",
}


@contextmanager
def spark_session(master: str = "local[2]") -> Generator[SparkSession]:
    """Yield a session whose workers run this interpreter with this path."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    builder = SparkSession.builder.master(master).appName("statelog-bench")
    for name, value in {**_SETTINGS, "spark.jars": ",".join(str(jar) for jar in connector_jars())}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def options_of(setting: Setting, log: Log) -> dict[str, str]:
    """Return the options that name a benchmark's log."""
    return {
        "log": log.name,
        "root": str(setting.root),
        "kafka.bootstrap.servers": setting.bootstrap,
        "allowUnsafe": "replication,min-insync",
    }


def our_reader(spark: SparkSession, setting: Setting, log: Log) -> DataFrameReader:
    """Return `spark.read.format("statelog")` for a benchmark's log."""
    return spark.read.format("statelog").options(**options_of(setting, log))


def our_writer(writer: DataFrameWriter, setting: Setting, log: Log) -> DataFrameWriter:
    """Return `df.write.format("statelog")` to a benchmark's log."""
    return writer.format("statelog").options(**options_of(setting, log), writerId="bench").mode("append")
