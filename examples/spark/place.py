"""The base of the programs in this folder: a small session, a log that is deleted at the end, files as a stream.

Each of them is an `Example`. In a program of your own the log is created once, by `statelog init`, and the session and
the stream are those of your cluster.
"""

import json
import os
import sys
import uuid
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from statelog.log import Log, LogOptions, Where
from statelog.recovery import recover

__all__ = ["LAPTOP", "Example", "Place", "main", "run"]

LAPTOP = ("replication", "min-insync")  # One broker, on a laptop: waived by name, never silently.
_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    # The state store that transformWithState needs.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A log with its place, and a directory for this program's files. `root` may be any URL that fsspec knows."""

    log: str
    where: Where
    directory: Path

    @property
    def options(self) -> dict[str, str]:
        """The options that every read and write in Spark needs."""
        kafka = {f"kafka.{name}": value for name, value in self.where.kafka_settings().items()}
        return {"log": self.log, "root": str(self.where.root), "allowUnsafe": ",".join(LAPTOP), **kafka}

    def open(self) -> Log:
        """Open the log without Spark."""
        return Log.open(self.log, self.where)

    def state(self) -> dict[Any, Any]:
        """Recover the log's state without Spark."""
        with self.open() as log:
            return recover(log).to_dict()

    def stream(self, spark: SparkSession, batches: Iterable[Iterable[Mapping[str, Any]]], columns: str) -> DataFrame:
        """Return a stream of these rows: a file of JSON lines, and so a micro-batch, for each of `batches`."""
        source = self.directory / "input"
        source.mkdir()
        for number, rows in enumerate(batches):
            path = source / f"{number:05d}.json"
            path.write_text("\n".join(json.dumps(row) for row in rows), "utf-8")
            os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))  # Spark reads files by age.
        return spark.readStream.schema(columns).option("maxFilesPerTrigger", 1).json(str(source))

    def run_to_the_end(self, writer: DataStreamWriter) -> None:
        """Run a query until it has read all rows. Raises the query's error."""
        checkpoint = str(self.directory / "checkpoint")
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A program: the log that it needs, and its function, which prints the result and returns whether it is right."""

    name: str
    key_type: str
    value_schema: str
    program: Callable[[SparkSession, Place], bool]


@contextmanager
def _made(example: Example, bootstrap: str) -> Generator[Place]:
    """Yield the example's log, and delete it at the end of the block."""
    kafka = {"bootstrap.servers": bootstrap}
    name = f"{example.name}-{uuid.uuid4().hex[:8]}"
    with TemporaryDirectory() as directory:
        where = Where(kafka, str(Path(directory, "logs")), allow_unsafe=LAPTOP, replication_factor=1)
        Log.create(
            name,
            where,
            LogOptions(key_type=example.key_type, value_schema=example.value_schema, partitions=2),
        ).close()
        try:
            yield Place(log=name, where=where, directory=Path(directory))
        finally:
            Log.delete(name, where)


def run(spark: SparkSession, example: Example, bootstrap: str) -> bool:
    """Run one example in an existing session, and return whether it was right."""
    with _made(example, bootstrap) as place:
        return example.program(spark, place)


def main(example: Example) -> int:
    """Run one example in a session of its own; the only argument is the address of another Kafka."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # The default is the python3 of the path.
    builder = SparkSession.builder.master("local[2]").appName(f"statelog-{example.name}")
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        right = run(spark, example, sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092")
    finally:
        spark.stop()
    print("exact" if right else "WRONG")
    return 0 if right else 1
