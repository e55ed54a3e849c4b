"""Rounds of the materializer on a Spark session: `materialize` for one, `spark_engine` for those of a daemon.

The driver plans, checks and puts the manifest, as with any engine; only tasks read changes and runs. They are started
by `mapInArrow` alone, so it works on Spark Connect, too.

Invariants:
- One Spark task does one task of the round. What it returns was uploaded, and read back whole.
- Runs have names that nobody used before, and that begin with their round's. So a task that Spark repeats, or runs
  twice at once, leaves files that no manifest names: a round that fails deletes them, or the winner of a later one.
- Memory of a task is that of one of the local engine, whatever the size of state and commits.
- A typed error of a task is raised as that error; any other failure of the job is Unavailable, as nothing is lost.
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

_LOOK_S = 0.5
TASK_BYTES = 16 << 20
"""What a task is worth, by default: a run of its own, and the tenth of a second that Spark takes to start it."""
_FAST = 1
DONE_SCHEMA = "task long, done binary"
"""What `TaskWork` gives: the number of a task, and its `TaskDone`, pickled."""


# ---- a task, on an executor


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDone:
    """The runs of a task, and how long writing them and reading them back took."""

    runs: tuple[RunRef, ...]
    replayed: Replayed
    read_back_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWork:
    """The tasks of a stage, packed, by number, on the log with this identity. `scratch` is the round's directory: every
    worker makes its own beside it. All of them go to every worker, which unpacks its own: 2 MB for 100,000 change sets.
    """

    where: LogAddress
    identity: LogIdentity
    scratch: Path
    tasks: tuple[bytes, ...]

    @classmethod
    def of(cls, where: LogAddress, identity: LogIdentity, scratch: Path, tasks: Iterable[Task]) -> "TaskWork":
        """The work of these tasks."""
        packed = tuple(zlib.compress(pickle.dumps(task), _FAST) for task in tasks)
        return cls(where=where, identity=identity, scratch=scratch, tasks=packed)

    def task(self, number: int) -> Task:
        """A task of the stage."""
        return cast("Task", pickle.loads(zlib.decompress(self.tasks[number])))  # noqa: S301  # Our driver's own.

    def rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`: numbers of tasks in, what was done out. Raises Damaged, NotFound, Unavailable, ConfigError,
        for the driver.
        """
        for batch in batches:
            for number in cast("list[int]", batch.column(0).to_pylist()):
                with reported():
                    done = self._do(self.task(number))
                columns = [pa.array([number], pa.int64()), pa.array([pickle.dumps(done)], pa.binary())]
                yield pa.RecordBatch.from_arrays(columns, names=["task", "done"])

    def _do(self, task: Task) -> TaskDone:
        log = cached_log(self.where, self.identity)  # Another one's schemas would be taken for those of this one.
        environment = current_environment()
        prefix = _prefix_of(self.scratch)  # So that the driver finds what is uploaded here.
        with scratch_directory(self.scratch.parent, environment) as scratch:
            # Spark ends a task that is not wanted any more by ending its process.
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
    """Roll the log up, once: the driver plans and puts the manifest, Spark tasks fold, merge and write.

    `most_tasks` are the tasks that a fold or a merge is cut into at most, None for as many as the session runs at once;
    none gets fewer bytes than `task_bytes`. Of `settings`, `scratch` is a directory of every worker.

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
    """What a `Materializer` on this log takes as `make_engine`, so that its rounds run on Spark. See `materialize`.

    >>> from statelog.materializer import run_round
    >>> run_round(log, make_engine=spark_engine(spark, log.name, where)).number
    1
    """
    require_spark()
    address = log_address(address_options(name, where))
    if (most_tasks is not None and most_tasks < 1) or task_bytes < 1:
        raise ConfigError("most_tasks and task_bytes are at least 1", most_tasks=most_tasks, task_bytes=task_bytes)
    if most_tasks is None:  # As many as the session runs at once: Spark Connect answers this, and it takes no shuffle.
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
        """As many as Spark can run at once, but none with less to do than a task is worth."""
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
        """What the tasks of a stage give, by number."""
        count = len(work.tasks)
        done = self._spark.range(0, count, 1, count).mapInArrow(work.rows, DONE_SCHEMA)
        try:
            with _interruptible(self._spark, self._work.go_on):
                rows = done.collect()
        except Exception as error:
            self._work.go_on()  # Whatever Spark says of a job that was interrupted.
            lines = str(error).strip().splitlines()
            raise error_of(error) or Unavailable(
                f"the Spark job of a round failed: {type(error).__name__}: {lines[0] if lines else ''}",
                hint="Nothing is lost, and the next round starts over. The job's own log says more",
            ) from error
        return {row.task: pickle.loads(row.done) for row in rows}  # noqa: S301  # From our own task.

    def forget(self, runs: Sequence[RunRef]) -> None:
        """Nothing to do: what lies in the store and is not named goes when this round, or a later one, has won."""

    def publish(self, runs: Sequence[RunRef]) -> Written:
        """Those that this engine wrote: the tasks have uploaded them and read them back."""
        mine = tuple(run for run in runs if run.path in self._done)
        seconds = sum({id(self._done[run.path]): self._done[run.path].read_back_s for run in mine}.values())
        return Written(runs=mine, seconds=seconds)

    def uploaded(self) -> Iterator[str]:
        """What tasks uploaded, of whom nothing may have come back, and what went into a merge since."""
        for info in self._work.log.store.list(f"runs/{_prefix_of(self._work.scratch)}"):
            yield info.path


def _prefix_of(scratch: Path) -> str:
    """What the names of the runs of the round with this directory begin with, and of no other's."""
    return f"{scratch.name.rpartition('-')[2]}-"


@contextmanager
def _interruptible(spark: SparkSession, go_on: Callable[[], None]) -> Generator[None]:
    """Around a job of this thread: it is interrupted once the round is given up."""
    tag = f"statelog-{uuid.uuid4().hex}"

    def look() -> None:
        try:
            go_on()
        except RoundGivenUp:
            spark.interruptTag(tag)

    spark.addTag(tag)
    try:
        with repeated(look, _LOOK_S, "statelog-spark-engine"):
            yield
    finally:
        spark.removeTag(tag)
