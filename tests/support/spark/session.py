"""A small Spark session, one for the whole run, as the fixture `spark`."""

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SPARK_SETTINGS", "spark"]

SPARK_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.showConsoleProgress": "false",
    # A test's session ends before the optimising compiler has paid for itself; on two cores it doubles the work.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
"""Of every session of the tests."""


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    """A local session with two threads. Workers run this interpreter, with this path."""
    from pyspark.sql import SparkSession  # Takes a second to import, which tests without Spark need not pay.

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    builder = SparkSession.builder.master("local[2]").appName("statelog-tests")
    for name, value in SPARK_SETTINGS.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
