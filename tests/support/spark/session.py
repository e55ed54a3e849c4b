"""A small Spark session, one for the whole run, as the fixture `spark`; and the archive of the classes of all Sparks.

A short life of Spark spends more than half of its time on loading classes. Java takes them ready from an archive,
`spark.jsa` in the virtual environment, which the first run of several processes makes beside its tests, by
`python -m tests.support.spark.session`. Where there is none, or one of another Java's, Spark is as slow as it was.
"""

import os
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SPARK_SETTINGS", "archiving", "spark"]

_ARCHIVE = Path(sys.prefix) / "spark.jsa"
_JAVA = "spark.driver.extraJavaOptions"
# A test's session ends before the optimising compiler has paid for itself; on two cores it doubles the work.
_LIGHT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:cds=off"

SPARK_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.showConsoleProgress": "false",
    _JAVA: f"{_LIGHT} -XX:SharedArchiveFile={_ARCHIVE}",
}
"""Of every session of the tests."""


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    """A local session with two threads. Workers run this interpreter, with this path."""
    session = _start(SPARK_SETTINGS[_JAVA])
    yield session
    session.stop()


def _start(java_options: str) -> "SparkSession":
    from pyspark.sql import SparkSession  # Takes a second to import, which tests without Spark need not pay.

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    builder = SparkSession.builder.master("local[2]").appName("statelog-tests")
    for name, value in {**SPARK_SETTINGS, _JAVA: java_options}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


@contextmanager
def archiving() -> Generator[None]:
    """Inside, the archive is being made, unless there is one."""
    if _ARCHIVE.exists() or not os.access(_ARCHIVE.parent, os.W_OK):
        yield
        return
    nothing = subprocess.DEVNULL
    with subprocess.Popen([sys.executable, "-m", __name__], stdin=nothing, stdout=nothing, stderr=nothing):
        yield


def _archive() -> None:
    """A life of Spark with a query of each kind, whose Java leaves at its end what it loaded."""
    made = _ARCHIVE.with_suffix(f".{os.getpid()}")
    session = _start(f"{_LIGHT} -XX:ArchiveClassesAtExit={made}")
    java: subprocess.Popen[bytes] = cast("Any", session.sparkContext)._gateway.proc
    rows = session.createDataFrame([(key, key) for key in range(9)], "key long, n long").groupBy("key").sum("n")
    rows.mapInArrow(lambda batches: batches, rows.schema).collect()
    stream = session.readStream.format("rate").load().writeStream.format("memory").queryName("rates").start()
    stream.processAllAvailable()
    stream.stop()
    session.stop()
    java.communicate()  # It ends when nobody can tell it anything any more.
    made.replace(_ARCHIVE)


if __name__ == "__main__":
    _archive()
