"""A Spark task of a round: does one task of the materializer, uploads its runs and reads them back. Runs on executors.

Invariants:
- Runs have names that nobody used before. So a task that Spark repeats, or runs twice at once, leaves files that no
  manifest names, and the winner of a later round deletes them.
- What is returned was uploaded, and read back whole.
- Memory is that of a task of the local engine, whatever the size of state and commits.
"""

import pickle
import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pyarrow as pa

from statelog.environment import current_environment
from statelog.errors import CorruptRun, NotFound
from statelog.materializer.engine import RoundWork, not_whole, scratch_directory, write_runs
from statelog.materializer.tasks import Task
from statelog.schemas.snapshot.run_ref import RunRef
from statelog.spark.clients import cached_log
from statelog.spark.parsing import LogAddress
from statelog.spark.reported import reported
from statelog.storage.run_reader import RunReader, read_back
from statelog.storage.run_writer import upload_run

_FAST = 1
DONE_SCHEMA = "task long, done binary"
"""What `TaskWork` gives: the number of a task, and its `TaskDone`, pickled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDone:
    """The runs of a task, and how long writing them and reading them back took."""

    runs: tuple[RunRef, ...]
    written_s: float
    read_back_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWork:
    """The tasks of a stage, packed, by number. `scratch` is a directory of every worker.

    All of them go to every worker, which unpacks its own: 2 MB for 100,000 change sets.
    """

    where: LogAddress
    scratch: Path
    tasks: tuple[bytes, ...]

    @classmethod
    def of(cls, where: LogAddress, scratch: Path, tasks: Iterable[Task]) -> "TaskWork":
        """The work of these tasks."""
        packed = tuple(zlib.compress(pickle.dumps(task), _FAST) for task in tasks)
        return cls(where=where, scratch=scratch, tasks=packed)

    def task(self, number: int) -> Task:
        """A task of the stage."""
        return cast("Task", pickle.loads(zlib.decompress(self.tasks[number])))  # noqa: S301  # Our driver's own.

    def rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`: numbers of tasks in, what was done out. Raises what the work raises, for the driver."""
        for batch in batches:
            for number in cast("list[int]", batch.column(0).to_pylist()):
                with reported():
                    done = self._do(self.task(number))
                columns = [pa.array([number], pa.int64()), pa.array([pickle.dumps(done)], pa.binary())]
                yield pa.RecordBatch.from_arrays(columns, names=["task", "done"])

    def _do(self, task: Task) -> TaskDone:
        log = cached_log(self.where)
        environment = current_environment()
        with scratch_directory(self.scratch, environment) as scratch:
            work = RoundWork(log=log, scratch=scratch, go_on=_go_on, environment=environment)
            started_s = time.monotonic()
            found = write_runs(task, work, lambda run: RunReader(log.store.open(run.path), run.file))
            written_s = time.monotonic()
            for one in found:
                upload_run(log.store, one.written)
        uploaded_s = time.monotonic()
        for one in found:
            try:
                read_back(log.store, one.run.file)
            except (CorruptRun, NotFound) as error:
                raise not_whole(error) from error
        return TaskDone(
            runs=tuple(one.run for one in found),
            written_s=written_s - started_s,
            read_back_s=time.monotonic() - uploaded_s,
        )


def _go_on() -> None:
    """Spark ends a task that is not wanted any more by ending its process."""
