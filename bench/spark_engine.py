"""Rounds of the materializer on Spark, on one core, on two, and on separate executors, and by the local engine.

Each engine gets the same backlog in a log of its own: W to fold, then a fifth of it to fold and to merge with the
first. Sessions are warm: after a small round, workers run and the JVM has compiled. CPU seconds include this process
and all its descendants: the JVMs, and the Python workers.
"""

import os
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from bench.cost import Cost, costed
from bench.figures import Figure, medians
from bench.logs import bench_log, bench_where, bulk_append
from bench.setting import Setting
from bench.workload import batches
from statelog.log import Log
from statelog.materializer import MaterializerSettings, run_round
from statelog.materializer.engine import EngineMaker, LocalEngine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark_engine"]

_MASTERS = ("local[1]", "local[2]", "local-cluster[2,1,1024]")
_STEPS = ("fold", "fold and merge")


def spark_engine(setting: Setting) -> list[Figure]:
    """Measure wall and CPU seconds of both rounds for each kind of session, alternating with the local engine.

    Wall seconds are also compared with those of one core.
    """
    found, more = batches(setting.changes, setting.keys), batches(setting.scaled(0.2), setting.keys, seed=1)
    few = batches(200_000, 100_000)
    ours: dict[str, list[list[Cost]]] = {}
    figures: list[Figure] = []
    for master in _MASTERS:
        mine = ours[master] = list[list[Cost]]()
        local: list[list[Cost]] = []
        with _session(master) as spark:
            for _ in range(2):
                _rounds(setting, lambda log: _maker(setting, spark, log, task_bytes=1), few, few)
            for _ in range(setting.rounds):
                local.append(_rounds(setting, lambda _: LocalEngine, found, more))
                mine.append(_rounds(setting, lambda log: _maker(setting, spark, log), found, more))
        for step in range(len(_STEPS)):
            figures += [_figure(what, step, master, mine, "the local engine", local) for what in ("wall", "cpu")]
    for master in _MASTERS[1:]:
        figures += [_figure("wall", step, master, ours[master], _MASTERS[0], ours[_MASTERS[0]]) for step in (0, 1)]
    return figures


def _rounds(
    setting: Setting, engine_for: Callable[[Log], EngineMaker], first: list[pa.RecordBatch], more: list[pa.RecordBatch]
) -> list[Cost]:
    """Return the costs of a daemon's rounds on a new log: one that folds, and one that folds and merges."""
    with tempfile.TemporaryDirectory() as scratch, bench_log(setting.bootstrap, setting.root) as log:
        settings = MaterializerSettings(scratch=Path(scratch), fanout=2, budget_bytes=64 << 30)
        make_engine, costs = engine_for(log), list[Cost]()
        for backlog in (first, more):
            bulk_append(log, backlog, commits=10)
            costs.append(costed(lambda: run_round(log, settings, make_engine=make_engine)))
        return costs


def _maker(setting: Setting, spark: "SparkSession", log: Log, task_bytes: int | None = None) -> EngineMaker:
    from statelog.spark import spark_engine as make  # Other benchmarks need no Spark.
    from statelog.spark.engine import TASK_BYTES

    return make(
        spark,
        log.name,
        bench_where(setting.bootstrap, setting.root),
        task_bytes=task_bytes or TASK_BYTES,
    )


@contextmanager
def _session(master: str) -> Generator["SparkSession"]:
    from pyspark.sql import SparkSession  # As above.

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(master).appName("statelog-bench")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.showConsoleProgress": "false",
    }.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()


def _figure(
    what: str, step: int, master: str, ours: list[list[Cost]], baseline_name: str, others: list[list[Cost]]
) -> Figure:
    values, baseline = ([getattr(costs[step], f"{what}_s") for costs in each] for each in (ours, others))
    return medians(f"round on Spark, {_STEPS[step]}, {master}: {what} seconds", "s", values, baseline_name, baseline)
