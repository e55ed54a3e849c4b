"""A sink that strikes: the real one, with one action at one named point of one batch. It kills the driver, JVM and
Python alike, and nothing else, or fails, or waits. tests/support/spark/job.py is the job that has it.

Each of Spark's Python processes, seven in the shortest run, imports this module: it needs no more than the sink does.

Points: `task-begun` (its rows are there), `task-done` (on executors), `before-commit`, `commit-made` (the Commit
exists, not sent), `committed` (the ledger shows it), `after-commit` (Spark's own commit log not yet written).
"""

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from statelog.environment import Environment
from statelog.spark.data_source import StatelogSource
from statelog.spark.sink import StreamWriter, TaskResult

__all__ = ["HOLD_TIMEOUT_S", "VARIABLE", "JobSettings", "StrikingSource", "StrikingWriter", "parent_of"]

VARIABLE = "STATELOG_TEST_STRIKE"
HOLD_TIMEOUT_S = 900  # As long as a test with all its runs may last: a held step then ends.


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """One run of the job.

    `strike` is none, or happens once, at `point` of `batch`: kill (the driver and its JVM), executor (the JVM that the
    task runs in), worker (the Python process of the task), fail, or copied: it waits until Spark's speculation has
    brought another attempt of the task to the same point, and goes on concurrently with it. With `hold` the struck
    process then waits until `directory`/released exists, goes on, and leaves its result in `directory`/outcome-<point>.
    """

    options: Mapping[str, str]
    source: str
    checkpoint: str
    directory: str
    strike: str = "none"
    point: str = ""
    batch: int = 0
    hold: bool = False
    driver: int = 0
    master: str = "local[2,3]"
    extra: Mapping[str, str] = field(default_factory=dict[str, str])

    def to_json(self) -> str:
        """Return the settings as the job's argument."""
        return json.dumps(asdict(self))

    @property
    def marker(self) -> Path:
        """A file that exists once the strike has happened."""
        return Path(self.directory) / f"struck-{self.strike}-{self.point}-{self.batch}"

    @property
    def copy(self) -> Path:
        """A file that exists once another attempt was at the point of the strike, too."""
        return Path(self.directory) / "copy"

    @property
    def outcome(self) -> Path:
        """The result of the step that was held."""
        return Path(self.directory) / f"outcome-{self.point}"

    @property
    def released(self) -> Path:
        """A file that exists when the held step may go on."""
        return Path(self.directory) / "released"


class StrikingWriter(StreamWriter):
    """The streaming writer, with a strike at a named point. Its settings come through the environment of the job."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:  # type: ignore[override]  # as Spark's own Arrow class
        """Write as the real one does; the first partition's first attempt may be struck."""
        context = TaskContext.get()
        assert context is not None
        batch = int(context.getLocalProperty("streaming.sql.batchId") or -1)
        first = context.partitionId() == 0
        rows = list(iterator)  # So that a task whose driver is gone still has something to write.
        if first:
            _strike("task-begun", batch)
        result = super().write(iter(rows))
        if first:
            _strike("task-done", batch)
            _note_outcome("task-begun", "written")
        return result

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Commit as the real one does, with points around it."""
        global _committing  # noqa: PLW0603  # The crash points of the committer know no batch.
        _committing = batchId
        _strike("before-commit", batchId)
        try:
            Environment(crash=_at_commit).run(super().commit, messages, batchId)
        except Exception as error:
            _note_outcome(_settings().point, f"{type(error).__name__}: {error}")
            raise
        _strike("after-commit", batchId)


class StrikingSource(StatelogSource):
    """The data source of the job."""

    @classmethod
    def name(cls) -> str:
        """Return a name of its own; the real one's name stays in use."""
        return "statelog_striking"

    def streamWriter(self, schema: StructType, overwrite: bool) -> StrikingWriter:  # noqa: N802  # Spark's name
        """Return the striking writer."""
        return StrikingWriter(self.options, schema, overwrite=overwrite)


_committing = -1


def _at_commit(point: str) -> None:
    _strike(point, _committing)


def _settings() -> JobSettings:
    return JobSettings(**json.loads(os.environ[VARIABLE]))


def _strike(point: str, batch: int) -> None:
    settings = _settings()
    if settings.strike == "none" or (point, batch) != (settings.point, settings.batch):
        return
    if settings.marker.exists():
        settings.copy.touch()
        return
    # The daemon that forked us dies with the JVM and takes its children along, unless they ignore its signal. A worker
    # that survives is the harder case.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    settings.marker.touch()
    if settings.strike in ("kill", "executor"):
        os.kill(parent_of(os.getppid()), signal.SIGKILL)
    if settings.strike == "kill":
        os.kill(settings.driver, signal.SIGKILL)
    if settings.strike == "worker":
        os.kill(os.getpid(), signal.SIGKILL)
    if settings.strike == "copied":
        _await(settings.copy)
    if settings.hold:
        _await(settings.released)
    if settings.strike == "fail":
        raise RuntimeError(f"struck at {point}")


def _note_outcome(point: str, text: str) -> None:
    settings = _settings()
    if settings.hold and settings.point == point and settings.marker.exists() and settings.released.exists():
        settings.outcome.write_text(text, "utf-8")


def _await(path: Path) -> None:
    deadline = time.monotonic() + HOLD_TIMEOUT_S
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)


def parent_of(pid: int) -> int:
    """Return the parent of a process."""
    return int(Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()[1])
