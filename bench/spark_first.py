"""The first take of a session: 1,000 rows to a log, to Spark's Kafka sink, and to an empty Python sink.

Each take is the first of a process and a JVM of its own. Its time is start-up: of the JVM's code, and of a Python
process with its imports for each of Spark's steps (finding the source, planning, each task, the commit).
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from bench.cost import Cost, costed, figures_of_cost
from bench.figures import Figure
from bench.logs import bench_log
from bench.plain import plain_topic
from bench.setting import Setting
from bench.spark_floors import Floor
from bench.spark_session import options_of, spark_session
from bench.workload import every_key

__all__ = ["spark_first"]

_ROWS = 1000


def spark_first(setting: Setting) -> list[Figure]:
    """Measure seconds on the clock and CPU seconds, from an open session to the end of its first write."""
    with (
        tempfile.TemporaryDirectory() as directory,
        bench_log(setting.bootstrap, setting.root) as log,
        plain_topic(setting.bootstrap) as topic,
    ):
        rows = Path(directory) / "rows.parquet"
        pq.write_table(pa.Table.from_batches(every_key(_ROWS)), rows)
        kafka = {"kafka.bootstrap.servers": setting.bootstrap, "topic": topic.name}
        sinks = {"statelog": {**options_of(setting, log), "writerId": "bench"}, "kafka": kafka, "floor": {}}
        costs: dict[str, list[Cost]] = {name: [] for name in sinks}
        for _ in range(setting.rounds):
            for name, options in sinks.items():
                costs[name].append(_in_a_process(name, str(rows), options))
    name = f"Spark: first take, {_ROWS:,} rows"
    return [
        *figures_of_cost(name, costs["statelog"], "Spark's Kafka sink", costs["kafka"]),
        *figures_of_cost(name, costs["statelog"], "the floor: a Python sink that does nothing", costs["floor"]),
    ]


def _in_a_process(sink: str, rows: str, options: dict[str, str]) -> Cost:
    """Return the cost of the first write of a new process, from its last line. Spark's output is dropped."""
    command = [sys.executable, "-m", "bench.spark_first", sink, rows, json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)  # noqa: S603 - ourselves
    return Cost(**json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Write once in a new session, and print the cost."""
    sink, rows, options = sys.argv[1:]
    with spark_session() as spark:
        if sink == "floor":
            spark.dataSource.register(Floor)
        write: Callable[[], None] = partial(_write, spark.read.parquet(rows), sink, json.loads(options))
        cost = costed(write)
    sys.stdout.write(f"\n{json.dumps(asdict(cost))}\n")


def _write(rows: DataFrame, sink: str, options: dict[str, str]) -> None:
    rows.write.format(sink).options(**options).mode("append").save()


if __name__ == "__main__":
    main()
