"""Rounds of the materializer on a Spark session: `materialize` for one, `spark_engine` for those of a daemon.

The driver plans, checks and puts the manifest, as with any engine; only tasks read changes and runs. `mapInArrow`
starts them, so this works on Spark Connect, too.

Invariants:
- One Spark task does one task of the round. The runs that it returns were uploaded, and read back whole.
- Runs have new names that begin with their round's. So a task that Spark repeats, or runs twice at once, leaves files
  that no manifest names. The round deletes them if it fails, else the winner of a later one does.
- A task takes as much memory as one of the local engine, whatever the size of state and commits.
- A typed error of a task is raised as that error. Any other failure of the job is Unavailable, as nothing is lost.
"""

import pickle
import time
import uuid
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.functions import spark_partition_id

from statelog.environment import current_environment, repeated
from statelog.errors import ConfigError, CorruptRun, NotFound, RoundGivenUp, Unavailable
from statelog.log import Log, Where
from statelog.materializer.engine import EngineMaker, Replayed, Written, not_whole, write_runs, written_of
from statelog.materializer.outcome import RoundOutcome
from statelog.materializer.round import run_round
from statelog.materializer.settings import MaterializerSettings
from statelog.materializer.tasks import Task
from statelog.materializer.work import RoundWork, scratch_directory
from statelog.schemas.ledger.place import LogIdentity
from statelog.schemas.snapshot.run_ref import RunRef
from statelog.schemas.topic_policy import ROUND
from statelog.spark.clients import cached_log
from statelog.spark.data_source import require_spark
from statelog.spark.option_texts import LogAddress, address_options, log_address
from statelog.spark.reported import error_of, reported
from statelog.store.run_reader import read_back_written
from statelog.store.run_writer import upload_run

_CHECK_S = 0.5
TASK_BYTES = 16 << 20
"""The least bytes of a task, by default: it makes a run of its own, and Spark takes a tenth of a second to start it."""
_FAST = 1
DONE_SCHEMA = "task long, done binary"
"""The rows of `TaskWork`: the number of a task, and its `TaskDone`, pickled."""


# ---- a task, on an executor


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDone:
    """The runs of a task, and how long writing them and reading them back took."""

    runs: tuple[RunRef, ...]
    replayed: Replayed
    read_back_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWork:
    """The tasks of a stage on the log with this identity, packed, by number.

    `scratch` is the round's directory: every worker makes its own next to it. Every worker gets all tasks, and unpacks
    its own: they take 2 MB for 100,000 change sets.
    """

    where: LogAddress
    identity: LogIdentity
    scratch: Path
    tasks: tuple[bytes, ...]

    @classmethod
    def of(cls, where: LogAddress, identity: LogIdentity, scratch: Path, tasks: Iterable[Task]) -> "TaskWork":
        """Return the work of these tasks."""
        packed = tuple(zlib.compress(pickle.dumps(task), _FAST) for task in tasks)
        return cls(where=where, identity=identity, scratch=scratch, tasks=packed)

    def task(self, number: int) -> Task:
        """Return a task of the stage."""
        return cast("Task", pickle.loads(zlib.decompress(self.tasks[number])))  # noqa: S301  # Our driver's own.

    def rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Do the tasks with these numbers, and yield their results. The function for `mapInArrow`.

        Raises Damaged, NotFound, Unavailable, ConfigError, for the driver.
        """
        for batch in batches:
            for number in cast("list[int]", batch.column(0).to_pylist()):
                with reported():
                    done = self._do(self.task(number))
                columns = [pa.array([number], pa.int64()), pa.array([pickle.dumps(done)], pa.binary())]
                yield pa.RecordBatch.from_arrays(columns, names=["task", "done"])

    def _do(self, task: Task) -> TaskDone:
        log = cached_log(self.where, self.identity)  # A re-created log may have other schemas under the same ids.
        environment = current_environment()
        prefix = _prefix_of(self.scratch)  # So that the driver finds the uploaded runs.
        with scratch_directory(self.scratch.parent, environment) as scratch:
            # Spark cancels a task by ending its process.
            work = RoundWork(log=log, scratch=scratch, go_on=lambda: None, environment=environment, prefix=prefix)
            found, replayed = write_runs(task, work)
            for one in found:
                upload_run(log.store, one.written)
        uploaded_s = time.monotonic()
        for one in found:
            try:
                read_back_written(log.store, one.run)
            except (CorruptRun, NotFound) as error:
                raise not_whole(error) from error
        runs = tuple(one.run for one in found)
        return TaskDone(runs=runs, replayed=replayed, read_back_s=time.monotonic() - uploaded_s)


# ---- a round, on the driver


def materialize(
    spark: SparkSession,
    name: str,
    where: Where,
    *,
    settings: MaterializerSettings | None = None,
    most_tasks: int | None = None,
    task_bytes: int = TASK_BYTES,
) -> RoundOutcome:
    """Run one round: the driver plans and puts the manifest, Spark tasks fold, merge and write.

    `most_tasks` limits the tasks of a fold or a merge (None: as many as the session runs at once); each gets at least
    `task_bytes`. The `scratch` of `settings` is a directory on every worker.

    Raises Damaged, UnsafeTopic, IdentityChanged, NotFound, Unavailable, ConfigError, InvalidName.

        >>> materialize(spark, log.name, where).number
        1
    """
    make_engine = spark_engine(spark, name, where, most_tasks=most_tasks, task_bytes=task_bytes)
    with Log.open(name, where, ROUND) as log:
        return run_round(log, settings, make_engine=make_engine)


def spark_engine(
    spark: SparkSession, name: str, where: Where, *, most_tasks: int | None = None, task_bytes: int = TASK_BYTES
) -> EngineMaker:
    """Return the `make_engine` for a `Materializer` on this log whose rounds run on Spark. See `materialize`.

    >>> from statelog.materializer import run_round
    >>> run_round(log, make_engine=spark_engine(spark, log.name, where)).number
    1
    """
    require_spark()
    address = log_address(address_options(name, where))
    if (most_tasks is not None and most_tasks < 1) or task_bytes < 1:
        raise ConfigError("most_tasks and task_bytes are at least 1", most_tasks=most_tasks, task_bytes=task_bytes)
    if most_tasks is None:  # Ask in a way that works with Spark Connect, and takes no shuffle.
        of_rows = spark.range(1 << 16).select(spark_partition_id().alias("partition"))
        most_tasks = len(of_rows.toArrow().column("partition").unique())
    return partial(SparkEngine, spark=spark, where=address, most_tasks=most_tasks, task_bytes=task_bytes)


class SparkEngine:
    """The engine of one round, on a Spark session: see `spark_engine`."""

    def __init__(
        self, work: RoundWork, *, spark: SparkSession, where: LogAddress, most_tasks: int, task_bytes: int = TASK_BYTES
    ) -> None:
        self._work = work
        self._spark = spark
        self._where = where
        self._most_tasks = most_tasks
        self._task_bytes = task_bytes
        self._done: dict[str, TaskDone] = {}

    def tasks_for(self, size_bytes: int) -> int:
        """Return at most as many as Spark can run at once, each of at least `task_bytes`."""
        return max(1, min(self._most_tasks, size_bytes // self._task_bytes))

    def write(self, tasks: Sequence[Task]) -> Written:
        """Do the tasks; their runs are in the store."""
        self._work.go_on()
        identity = self._work.log.descriptor.identity
        found = self.do(TaskWork.of(self._where, identity, self._work.scratch, tasks))
        done = [found[number] for number in range(len(tasks))]
        self._done.update({run.path: one for one in done for run in one.runs})
        return written_of([run for one in done for run in one.runs], [one.replayed for one in done])

    def do(self, work: TaskWork) -> dict[int, TaskDone]:
        """Run the tasks of a stage, and return their results by number."""
        count = len(work.tasks)
        done = self._spark.range(0, count, 1, count).mapInArrow(work.rows, DONE_SCHEMA)
        try:
            with _interruptible(self._spark, self._work.go_on):
                rows = done.collect()
        except Exception as error:
            self._work.go_on()  # Raises, whatever Spark says, if the job was interrupted.
            lines = str(error).strip().splitlines()
            raise error_of(error) or Unavailable(
                f"the Spark job of a round failed: {type(error).__name__}: {lines[0] if lines else ''}",
                hint="See the job's own log. Nothing is lost, and the next round starts over",
            ) from error
        return {row.task: pickle.loads(row.done) for row in rows}  # noqa: S301  # From our own task.

    def forget(self, runs: Sequence[RunRef]) -> None:
        """Do nothing: the winner of this round, or of a later one, deletes runs that no manifest names."""

    def publish(self, runs: Sequence[RunRef]) -> Written:
        """Return the runs that this engine wrote: the tasks have uploaded them and read them back."""
        mine = tuple(run for run in runs if run.path in self._done)
        seconds = sum({id(self._done[run.path]): self._done[run.path].read_back_s for run in mine}.values())
        return Written(runs=mine, seconds=seconds)

    def uploaded(self) -> Iterator[str]:
        """Yield the uploads of all tasks, also of those that returned nothing, and runs that were merged since."""
        for info in self._work.log.store.list(f"runs/{_prefix_of(self._work.scratch)}"):
            yield info.path


def _prefix_of(scratch: Path) -> str:
    """Return the unique prefix for the names of runs of the round with this directory."""
    return f"{scratch.name.rpartition('-')[2]}-"


@contextmanager
def _interruptible(spark: SparkSession, go_on: Callable[[], None]) -> Generator[None]:
    """Interrupt the Spark job of this thread in this block once the round is given up."""
    tag = f"statelog-{uuid.uuid4().hex}"

    def check() -> None:
        try:
            go_on()
        except RoundGivenUp:
            spark.interruptTag(tag)

    spark.addTag(tag)
    try:
        with repeated(check, _CHECK_S, "statelog-spark-engine"):
            yield
    finally:
        spark.removeTag(tag)
