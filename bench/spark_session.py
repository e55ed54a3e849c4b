"""A Spark session for benchmarks, and what a piece of work costs on it: seconds on the clock, and of the processors.

The session has two threads, Spark's own Kafka connector, and a JVM that optimises as a user's does. The connector is a
set of versions that work together, not one release: `CONNECTOR` names it, and the run says so.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrameReader, DataFrameWriter, SparkSession

from bench.figures import Figure
from bench.setting import Setting
from statelog.storage import Log
from tests.support.spark.connector import connector_jars

__all__ = [
    "Cost",
    "costed",
    "figures_of",
    "figures_of_cost",
    "options_of",
    "our_reader",
    "our_writer",
    "spark_session",
    "take_turns",
]

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "3g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "8",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one take of some work took: seconds on the clock, and of the processors by driver, JVM, Python, broker."""

    wall_s: float
    cpu_s: float


@contextmanager
def spark_session(master: str = "local[2]") -> Generator[SparkSession]:
    """A session whose workers run this interpreter, with this path."""
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
    """The options that name a log of a benchmark."""
    return {
        "log": log.name,
        "root": str(setting.root),
        "kafka.bootstrap.servers": setting.bootstrap,
        "allowUnsafe": "replication,min-insync",
    }


def our_reader(spark: SparkSession, setting: Setting, log: Log) -> DataFrameReader:
    """`spark.read.format("statelog")` of a log of a benchmark."""
    return spark.read.format("statelog").options(**options_of(setting, log))


def our_writer(writer: DataFrameWriter, setting: Setting, log: Log) -> DataFrameWriter:
    """`df.write.format("statelog")` to a log of a benchmark."""
    return writer.format("statelog").options(**options_of(setting, log), writerId="bench").mode("append")


def costed(work: Callable[[], object], broker_pid: int | None) -> Cost:
    """What one take of `work` cost."""
    cpu_s, started_s = _cpu_s(broker_pid), time.perf_counter()
    work()
    wall_s = time.perf_counter() - started_s
    return Cost(wall_s=wall_s, cpu_s=_cpu_s(broker_pid) - cpu_s)


def take_turns(setting: Setting, works: dict[str, Callable[[], object]], *, warm: int = 2) -> dict[str, list[Cost]]:
    """The cost of each take of each work, which take turns; the first `warm` turns are not counted."""
    found: dict[str, list[Cost]] = {name: [] for name in works}
    for turn in range(setting.rounds + warm):
        for name, work in works.items():
            cost = costed(work, setting.broker_pid)
            if turn >= warm:
                found[name].append(cost)
    return found


def figures_of(
    name: str, count: int, ours: list[Cost], baseline_name: str, baseline: list[Cost], baseline_count: int | None = None
) -> list[Figure]:
    """Rows a second on the clock, and rows for each second of the processors, beside a baseline."""
    return [
        _rate(f"{name}{label}", unit, count, baseline_count or count, mine, baseline_name, others)
        for label, unit, mine, others in (
            ("", "M rows/s", [one.wall_s for one in ours], [one.wall_s for one in baseline]),
            (", by CPU", "M rows/CPU s", [one.cpu_s for one in ours], [one.cpu_s for one in baseline]),
        )
    ]


def figures_of_cost(name: str, ours: list[Cost], baseline_name: str, baseline: list[Cost]) -> list[Figure]:
    """Seconds on the clock, and of the processors, beside a baseline."""
    return [
        Figure(
            name=f"{name}{label}",
            unit=unit,
            value=statistics.median(mine),
            lowest=min(mine),
            highest=max(mine),
            baseline_name=baseline_name,
            baseline=statistics.median(others),
            higher_is_better=False,
        )
        for label, unit, mine, others in (
            ("", "s", [one.wall_s for one in ours], [one.wall_s for one in baseline]),
            (", by CPU", "CPU s", [one.cpu_s for one in ours], [one.cpu_s for one in baseline]),
        )
    ]


def _rate(
    name: str, unit: str, count: int, other_count: int, mine: list[float], baseline_name: str, others: list[float]
) -> Figure:
    rates = [count / one / 1e6 for one in mine]
    return Figure(
        name=name,
        unit=unit,
        value=statistics.median(rates),
        lowest=min(rates),
        highest=max(rates),
        baseline_name=baseline_name,
        baseline=statistics.median(other_count / one / 1e6 for one in others),
    )


def _cpu_s(broker_pid: int | None) -> float:
    """Seconds of the processors so far: of this process, all that descend from it, and the broker; whoever is reaped
    counts with its parent.
    """
    ticks: dict[int, int] = {}
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # It ended meanwhile.
            continue
        pid = int(entry.name)
        parents[pid] = int(fields[1])
        ticks[pid] = sum(int(field) for field in fields[11:15])
    roots = {os.getpid(), *([broker_pid] if broker_pid else [])}
    return sum(spent for pid, spent in ticks.items() if _descends(pid, parents, roots)) * _TICK_S


def _descends(pid: int, parents: dict[int, int], roots: set[int]) -> bool:
    while pid not in roots:
        pid = parents.get(pid, 0)
        if not pid:
            return False
    return True
