"""A streaming query as a process of its own, for tests that kill it: driver and JVM at once, workers a moment later.

Run with a JSON object as its only argument (`StreamJob`); it leads a process group of its own. `pyspark.daemon` leads
another one: its workers end when they find their JVM dead, and may finish a task until then. Changes go into Parquet,
or as JSON into a topic.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody who writes Spark jobs gives it
from pyspark.sql.streaming.query import StreamingQuery

from tests.support.spark.session import open_session

__all__ = ["StreamJob"]

_TIMEOUT_S = 280


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamJob:
    """One run of the query: with `to_end` it reads all that is committed by now and ends, else it reads on for ever.

    With a `topic` Spark's own Kafka sink, whose `jars` are given, takes the changes, else its file sink.
    """

    options: Mapping[str, str]
    directory: str
    to_end: bool
    topic: str = ""
    jars: Sequence[str] = ()

    @property
    def rows(self) -> Path:
        """The file sink."""
        return Path(self.directory) / "rows"

    @property
    def checkpoint(self) -> Path:
        """Spark's own checkpoint."""
        return Path(self.directory) / "checkpoint"

    def start(self) -> "subprocess.Popen[bytes]":
        """Start the process, which leads a group; return it."""
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
        """Return how many micro-batches Spark has committed."""
        return _next_batch(self.checkpoint / "commits")

    def open_batch(self) -> tuple[int, int] | None:
        """Return the ledger positions (start, end] of the micro-batch that was begun and not committed, if any."""
        number = self.batches()
        if _next_batch(self.checkpoint / "offsets") == number:
            return None
        end = self._offset(number)
        return (self._offset(number - 1)["place"][0] if number else end["beginPlace"][0]), end["place"][0]

    def _offset(self, batch: int) -> dict[str, Any]:
        """Return the end of a micro-batch that Spark recorded."""
        text = (self.checkpoint / "offsets" / str(batch)).read_text("utf-8")
        return json.loads(text.splitlines()[-1])  # type: ignore[no-any-return]  # JSON has any type; an object here

    def kill_after(self, batches: int, pause_s: float) -> None:
        """Start it, wait for so many more micro-batches and a moment, and kill driver and JVM at once."""
        self.kill_when(batches, lambda: True, pause_s)

    def kill_when(self, batches: int, is_time: Callable[[], bool], pause_s: float = 0.0) -> None:
        """Start it, wait for so many more micro-batches, then until it is time, and kill driver and JVM."""
        before, process = self.batches(), self.start()
        deadline = time.monotonic() + _TIMEOUT_S
        try:
            while self.batches() < before + batches or not is_time():
                assert process.poll() is None, (Path(self.directory) / "job.log").read_text("utf-8", "replace")[-3000:]
                assert time.monotonic() < deadline, "no micro-batch came"
                time.sleep(0.005)
            time.sleep(pause_s)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _next_batch(directory: Path) -> int:
    """Return one more than the newest batch of one of Spark's two logs."""
    names = [path.name for path in directory.iterdir()] if directory.exists() else []
    return max((int(name) + 1 for name in names if name.isdecimal()), default=0)


def _start(job: StreamJob, rows: DataFrame) -> StreamingQuery:
    if job.topic:
        key, row = F.col("key").cast("string").alias("key"), F.to_json(F.struct(*rows.columns)).alias("value")
        writer = rows.select(key, row).writeStream.format("kafka").option("topic", job.topic)
        writer = writer.option("kafka.bootstrap.servers", job.options["kafka.bootstrap.servers"])
    else:
        writer = rows.writeStream.format("parquet").option("path", str(job.rows))
    writer = writer.option("checkpointLocation", str(job.checkpoint))
    return (writer.trigger(availableNow=True) if job.to_end else writer).start()


def main() -> None:
    """Run the query once."""
    job = StreamJob(**json.loads(sys.argv[1]))
    spark = open_session({"spark.driver.memory": "512m", "spark.jars": ",".join(job.jars)}, log_level="OFF")
    rows = spark.readStream.format("statelog").options(**job.options).load()
    query = _start(job, rows)
    query.awaitTermination(_TIMEOUT_S)
    spark.stop()


if __name__ == "__main__":
    main()
