"""A streaming query as a process of its own, for tests that kill it, JVM and workers included: changes into Parquet.

Run with a JSON object as its only argument (`StreamJob`); it leads a process group of its own.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from tests.support.spark.session import SPARK_SETTINGS

__all__ = ["StreamJob"]

_TIMEOUT_S = 280


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamJob:
    """One life of the query: with `to_end` it reads what is committed by now and ends, else it reads on for ever."""

    options: Mapping[str, str]
    directory: str
    to_end: bool

    @property
    def rows(self) -> Path:
        """The sink."""
        return Path(self.directory) / "rows"

    def start(self) -> "subprocess.Popen[bytes]":
        """The process, which leads a group."""
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        with (Path(self.directory) / "job.log").open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.support.spark.stream_job", json.dumps(asdict(self))],
                env=environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def batches(self) -> int:
        """How many micro-batches the sink has."""
        log = self.rows / "_spark_metadata"
        return sum(path.name.isdecimal() for path in log.iterdir()) if log.exists() else 0

    def kill_after(self, batches: int, pause_s: float) -> None:
        """Start it, wait for so many more micro-batches and a moment, and kill driver, JVM and workers at once."""
        before, process = self.batches(), self.start()
        deadline = time.monotonic() + _TIMEOUT_S
        try:
            while self.batches() < before + batches:
                assert process.poll() is None, (Path(self.directory) / "job.log").read_text("utf-8", "replace")[-3000:]
                assert time.monotonic() < deadline, "no micro-batch came"
                time.sleep(0.02)
            time.sleep(pause_s)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def main() -> None:
    """Run one life."""
    job = StreamJob(**json.loads(sys.argv[1]))
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]")
    for name, value in {**SPARK_SETTINGS, "spark.driver.memory": "512m"}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    rows = spark.readStream.format("statelog").options(**job.options).load()
    writer = rows.writeStream.format("parquet").option("checkpointLocation", str(Path(job.directory) / "checkpoint"))
    query = (writer.trigger(availableNow=True) if job.to_end else writer).start(str(job.rows))
    query.awaitTermination(_TIMEOUT_S)
    spark.stop()


if __name__ == "__main__":
    main()
