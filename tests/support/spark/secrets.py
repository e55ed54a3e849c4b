"""A Spark program whose secrets are canaries: a user's actions and views, and the refusals, in one session.

Run as a process of its own, with the JSON of `SecretRun` as its standard input: nothing secret is in its arguments. It
leaves all that Spark shows or writes below `directory` for the test to search, with copies of files that Spark removes.
It prints a line of JSON for each step: `Met`.
"""

import json
import logging
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from statelog.log import Where
from statelog.spark.sink import upsert
from tests.support.spark.rig import read_stream, write_batches
from tests.support.spark.session import open_session

__all__ = ["Met", "SecretRun", "Step"]


class Step(NamedTuple):
    """One thing to do: read, write, sink, upsert or misfits, with these options of statelog's."""

    name: str
    act: str
    options: Mapping[str, str]


class Met(NamedTuple):
    """The result of a step: how long it took, and the error with its whole traceback, or an empty text."""

    name: str
    seconds: float
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRun:
    """The program's input."""

    directory: str
    steps: Sequence[Step]

    def to_json(self) -> str:
        """Return the run as the program's standard input."""
        return json.dumps(asdict(self))


def main(run: SecretRun) -> None:
    """Run every step once."""
    # Py4J itself logs every call with its arguments where its logger is at DEBUG; docs/security.md says so.
    logging.getLogger("py4j").setLevel(logging.INFO)
    directory = Path(run.directory)
    write_batches(directory / "input", [[(1, 1), (2, 2)]])
    spark = _session(directory)
    acts: dict[str, Callable[[Path, SparkSession, Mapping[str, str]], None]] = {
        "read": _read,
        "write": _write,
        "sink": _sink,
        "upsert": _upsert,
        "misfits": _misfits,
    }
    for name, act, options in run.steps:
        began, error = time.monotonic(), ""
        try:
            acts[act](directory, spark, options)
        except Exception as raised:  # noqa: BLE001 - whatever it is, the test judges it
            error = "".join(traceback.format_exception(raised))
        sys.stdout.write(json.dumps(Met(name, time.monotonic() - began, error)._asdict()) + "\n")
        sys.stdout.flush()
    shutil.copytree(directory / "local", directory / "local-before-the-end")
    (directory / "arguments").write_bytes(b"\n".join(_arguments()))
    spark.stop()


def _session(directory: Path) -> SparkSession:
    events = directory / "events"
    events.mkdir()
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": events.as_uri(),
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.sql.pyspark.jvmStacktrace.enabled": "true",
    }
    return open_session(settings, log_level="INFO")


def _arguments() -> list[bytes]:
    """Return the command line of every process of ours."""
    found: list[bytes] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes())
        except OSError:  # The process has just ended, or is somebody else's.
            continue
    return found


def _read(directory: Path, spark: SparkSession, options: Mapping[str, str]) -> None:
    """Read, and have Spark print all that it can of the DataFrame; `explain` and `show` print."""
    df = spark.read.format("statelog").options(**options).load()
    for mode in ("extended", "codegen", "cost", "formatted"):
        df.where("key > 0").explain(mode=mode)
    df.show()
    with (directory / "shown.txt").open("a", encoding="utf-8") as file:
        file.write(f"{df!r} {df.collect()!r} {df.schema.json()} {df.inputFiles()}\n")


def _write(directory: Path, spark: SparkSession, options: Mapping[str, str]) -> None:
    rows = spark.createDataFrame([(7, 7)], "key long, n long").coalesce(1)
    rows.write.format("statelog").mode("append").options(**options).save()


def _misfits(directory: Path, spark: SparkSession, options: Mapping[str, str]) -> None:
    """Write rows that fail in a task: a change without a key."""
    rows = spark.createDataFrame([(None, 7)], "key long, n long").coalesce(1)
    rows.write.format("statelog").mode("append").options(**options).save()


def _sink(directory: Path, spark: SparkSession, options: Mapping[str, str]) -> None:
    rows = read_stream(spark, directory / "input").repartition(1)
    start = rows.writeStream.format("statelog").options(**options)
    _end(start.option("checkpointLocation", _checkpoint(directory, options)).start(), directory)


def _upsert(directory: Path, spark: SparkSession, options: Mapping[str, str]) -> None:
    into = upsert(
        options["log"],
        Where(
            _below(options, "kafka."),
            options["root"],
            storage_options=_below(options, "storage."),
            allow_unsafe=options["allowUnsafe"].split(","),
        ),
        writer=options["writerId"],
        take_over=True,
        unique_keys=True,
    )
    sys.stderr.write(f"{into!r} {into}\n")
    rows = read_stream(spark, directory / "input").groupBy("key").sum("n").withColumnRenamed("sum(n)", "n")
    start = rows.writeStream.outputMode("update").foreachBatch(into)
    _end(start.option("checkpointLocation", _checkpoint(directory, options)).start(), directory)


def _below(options: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {name.removeprefix(prefix): value for name, value in options.items() if name.startswith(prefix)}


def _checkpoint(directory: Path, options: Mapping[str, str]) -> str:
    user = options.get("kafka.sasl.username", "who has tokens")
    return str(directory / "checkpoints" / f"{options['writerId']} of {user}")


def _end(query: StreamingQuery, directory: Path) -> None:
    """Run a query over the present input, and record its own reports."""
    try:
        query.processAllAvailable()
        query.explain(True)
    finally:
        with (directory / "progress.txt").open("a", encoding="utf-8") as file:
            file.write(f"{query.lastProgress!r} {query.recentProgress!r} {query.status!r} {query.exception()!r}\n")
        query.stop()


if __name__ == "__main__":
    given = json.load(sys.stdin)
    main(SecretRun(directory=given["directory"], steps=[Step(*step) for step in given["steps"]]))
