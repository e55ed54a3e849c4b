"""Shared parts for tests of the Spark room: a small log, JSON files as a stream of batches, and the state as a dict.

A stream reads one file in each micro-batch, in the order of their numbers, so a test says what every batch holds.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from statelog.log import Log, LogOptions, Where
from statelog.producer.writer import Writer
from statelog.recovery.recover import recover
from statelog.schemas.ledger.records import Commit, Open, decode
from statelog.schemas.ledger.state import LastCommit
from tests.support.rigs.log import UNSAFE, where_at
from tests.support.samples.folds import apply_all, put_all

__all__ = [
    "AVSC",
    "Row",
    "SparkLog",
    "fold_rows",
    "forget_last_commit",
    "read_stream",
    "run_sink",
    "run_stream",
    "scattered",
    "write_batches",
    "write_numbers",
]

AVSC = json.dumps(
    {
        "type": "record",
        "name": "Count",
        "fields": [
            {"name": "n", "type": "long"},
            {"name": "note", "type": ["null", "string"], "default": None},
        ],
    }
)
Row = tuple[int, int | None]
"""A key and its number; None deletes the key."""

_COLUMNS = "key long, n long, op string"


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkLog:
    """A small typed log: by default `AVSC`, long keys, 4 partitions, 16 key groups."""

    log: Log
    bootstrap: str
    root: Path

    @classmethod
    def create(cls, name: str, bootstrap: str, directory: Path, **overrides: Any) -> "SparkLog":
        """Make the log below `directory`."""
        settings: dict[str, Any] = {"key_type": "long", "partitions": 4, "key_groups": 16, "value_schema": AVSC}
        log = Log.create(
            name,
            where_at(bootstrap, directory / "root"),
            LogOptions(**{**settings, **overrides}),
        )
        return cls(log=log, bootstrap=bootstrap, root=directory / "root")

    @property
    def where(self) -> Where:
        """Its place."""
        return Where({"bootstrap.servers": self.bootstrap}, str(self.root), allow_unsafe=UNSAFE)

    @property
    def options(self) -> dict[str, str]:
        """The options that every read and write of this log needs."""
        return {
            "log": self.log.name,
            "root": str(self.root),
            "kafka.bootstrap.servers": self.bootstrap,
            "allowUnsafe": ",".join(UNSAFE),
        }

    def state(self) -> dict[Any, Any]:
        """Return the log's state, recovered without Spark."""
        return recover(self.log).to_dict()

    def numbers(self) -> dict[Any, Any]:
        """Return the state as key to `n`."""
        return {key: value["n"] for key, value in self.state().items()}

    def last_commit(self, writer: str) -> LastCommit | None:
        """Return the writer's last valid commit."""
        return self.log.describe().state.last_commit(writer)

    def opens(self) -> int:
        """Return how many Opens are in the ledger."""
        return self._count(Open)

    def commits(self) -> int:
        """Return how many Commits are in the ledger, void ones too."""
        return self._count(Commit)

    def _count(self, kind: type[Open | Commit]) -> int:
        ledger, found = self.log.ledger_topic, {0: self.log.describe().ledger_offsets}
        reader = self.log.kafka.reader(ledger)
        try:
            return sum(isinstance(decode(record.value), kind) for record in reader.read(found, stall_timeout_s=60))
        finally:
            reader.close()

    def ledger_end(self) -> int:
        """Return how many records the ledger holds, void ones too."""
        return self.log.describe().ledger_offsets.end


def write_batches(directory: Path, batches: Sequence[Iterable[Row]], *, first: int = 0) -> None:
    """Write one JSON file for each batch, with distinct times: Spark reads files in the order of their age."""
    directory.mkdir(parents=True, exist_ok=True)
    for number, rows in enumerate(batches, first):
        lines = [json.dumps({"key": key, "n": n, "op": "delete" if n is None else "put"}) for key, n in rows]
        path = directory / f"{number:05d}.json"
        hidden = directory / f".{number:05d}"
        hidden.write_text("\n".join(lines) + "\n", "utf-8")
        os.utime(hidden, (1_700_000_000 + number, 1_700_000_000 + number))
        hidden.rename(path)


def read_stream(spark: SparkSession, directory: Path) -> DataFrame:
    """Return the files as a stream of key, n, op: one file in a micro-batch."""
    return spark.readStream.schema(_COLUMNS).option("maxFilesPerTrigger", 1).json(str(directory))


def write_numbers(writer: Writer, numbers: Mapping[int, int | None], more: Mapping[str, Any] | None = None) -> None:
    """Put each key's number, or delete the key for None, by a writer of ours."""
    values = {key: None if n is None else {"n": n, "note": None, **(more or {})} for key, n in numbers.items()}
    put_all(writer, values.items())


def scattered(df: DataFrame, tasks: int = 2) -> DataFrame:
    """Return the same rows in several tasks, with no regard to key groups."""
    return df.repartition(tasks, "key")


def fold_rows(batches: Iterable[Iterable[Row]]) -> dict[int, int]:
    """Return the state that these batches leave: the model."""
    state: dict[int, int] = {}
    for rows in batches:
        apply_all(state, rows)
    return state


def run_stream(
    df: DataFrame,
    format_name: str,
    options: Mapping[str, str],
    checkpoint: Path,
    *,
    mode: str = "append",
    timeout_s: int = 120,
) -> None:
    """Run a query over all present input, and return when it has ended. Raises the query's error."""
    writer = df.writeStream.format(format_name).options(**dict(options)).outputMode(mode)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(timeout_s), f"the query did not end within {timeout_s} s"
    finally:
        query.stop()


def run_sink(spark: SparkSession, rig: SparkLog, directory: Path, **options: str) -> None:
    """Run the files in `directory`/input through the sink, in two tasks."""
    given = {**rig.options, "writerId": "job", "uniqueKeys": "true", **options}
    run_stream(scattered(read_stream(spark, directory / "input")), "statelog", given, directory / "checkpoint")


def forget_last_commit(checkpoint: Path) -> int:
    """Delete the newest entry of Spark's commit log, as if Spark had died before it; returns its batch id."""
    commits = checkpoint / "commits"
    newest = max(int(path.name) for path in commits.iterdir() if path.name.isdecimal())
    (commits / str(newest)).unlink()
    (commits / f".{newest}.crc").unlink(missing_ok=True)
    return newest
