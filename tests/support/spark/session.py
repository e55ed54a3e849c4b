"""A small Spark session, one for the whole run, as the fixture `spark`; and the archive of the classes of all Sparks.

A short run of Spark spends more than half of its time on loading classes and modules. Java takes them ready from an
archive, `spark-home/classes.jsa` in the virtual environment. The first run of several processes makes it concurrently
with its tests, by `python -m tests.support.spark.session`. Without an archive, or with one of another Java's, Spark is
slow.

Spark's Python processes, five and more in a run, import pyspark from the archive `python/lib/pyspark.zip` below
SPARK_HOME, and compile it each time. The home that these sessions name has no such archive, so that they import the
package that is installed, as compiled. The daemons that fork them import statelog first, by the module in
tests/support/spark/preloaded. Clusters of tests/support/spark/clusters.py have the real home, and import by themselves.
"""

import os
import subprocess
import sys
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["PRELOADED", "SPARK_SETTINGS", "archiving", "open_session", "session_on", "spark"]

_HOME = Path(sys.prefix).resolve() / "spark-home"  # One path, also where the environment is a link: Java compares.
_ARCHIVE = _HOME / "classes.jsa"
PRELOADED = Path(__file__).with_name("preloaded") / "sitecustomize.py"
"""What the daemons run first, if its folder is the first of their path that has such a file."""
_JAVA = "spark.driver.extraJavaOptions"
# A test's session ends before the optimizing compiler has paid for itself; on two cores it doubles the work.
_LIGHT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:cds*=off"

SPARK_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.showConsoleProgress": "false",
    _JAVA: f"{_LIGHT} -XX:SharedArchiveFile={_ARCHIVE}",
    # Where executors have a Java of their own.
    "spark.executor.extraJavaOptions": f"{_LIGHT} -XX:SharedArchiveFile={_ARCHIVE}",
}
"""The settings of every session of the tests."""


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    """Yield a local session with two threads. Workers run this interpreter, with this path."""
    session = open_session({})
    yield session
    session.stop()


def open_session(settings: Mapping[str, str], *, master: str = "local[2]", log_level: str = "ERROR") -> "SparkSession":
    """Return the session of this process, with `settings` on top of those of every session."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*filter(None, sys.path), str(PRELOADED.parent)]))
    os.environ["SPARK_HOME"] = str(_home())
    return session_on(master, settings, log_level)


def session_on(master: str, settings: Mapping[str, str], log_level: str = "ERROR") -> "SparkSession":
    """Return the session of this process in the environment that it has."""
    from pyspark.sql import SparkSession  # Takes a second to import, which tests without Spark need not pay.

    builder = SparkSession.builder.master(master).appName("statelog-tests")
    for name, value in {**SPARK_SETTINGS, **settings}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel(log_level)
    return session


def _home() -> Path:
    """Return a directory with Spark's programs and jars, and without its Python.

    It is made if there is none, or one of another.
    """
    import pyspark

    installed = Path(pyspark.__file__).parent
    _HOME.mkdir(exist_ok=True)
    for name in ("bin", "jars"):
        link = _HOME / name
        if not link.exists() or not link.samefile(installed / name):
            made = _HOME / f"{name}.{os.getpid()}"
            made.symlink_to(installed / name)
            made.replace(link)
    return _HOME


@contextmanager
def archiving() -> Generator[None]:
    """Make the archive within the context, unless there is one."""
    if _ARCHIVE.exists() or not os.access(sys.prefix, os.W_OK):
        yield
        return
    nothing = subprocess.DEVNULL
    with subprocess.Popen([sys.executable, "-m", __name__], stdin=nothing, stdout=nothing, stderr=nothing):
        yield


def _archive() -> None:
    """Run Spark with a query of each kind; its Java leaves an archive of the classes that it loaded at its end."""
    made = _ARCHIVE.with_suffix(f".{os.getpid()}")
    session = open_session({_JAVA: f"{_LIGHT} -XX:ArchiveClassesAtExit={made}"})
    java: subprocess.Popen[bytes] = cast("Any", session.sparkContext)._gateway.proc
    rows = session.createDataFrame([(key, key) for key in range(9)], "key long, n long").groupBy("key").sum("n")
    rows.mapInArrow(lambda batches: batches, rows.schema).collect()
    stream = session.readStream.format("rate").load().writeStream.format("memory").queryName("rates").start()
    wait_for(lambda: bool(stream.lastProgress and stream.lastProgress["batchId"] > 0))  # The rows never end.
    stream.stop()
    session.stop()
    java.communicate()  # It ends when no client is connected any more.
    made.replace(_ARCHIVE)


if __name__ == "__main__":
    _archive()
