"""Tasks of the Spark engine that fail, or record their memory use. Workers import this module."""

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from pyspark import TaskContext

from statelog.materializer.engine import EngineMaker
from statelog.materializer.tasks import Task
from statelog.spark.engine import SparkEngine, TaskDone, TaskWork
from tests.support.spark.strikes import parent_of

__all__ = ["MeasuredWork", "Misfortune", "StruckWork", "engine_of", "parts_of"]

_AWAIT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfortune:
    """The fate of the first task's attempt that is first at `point`: begun, or done (its runs are uploaded).

    worker    its Python process is killed
    executor  the JVM that it runs in is killed
    copied    it waits until Spark's speculation has brought another attempt to the same point; both go on concurrently

    Every attempt of that task leaves a note at each point, in `directory`.
    """

    kind: str
    point: str
    directory: Path

    def strike(self, point: str, runs: list[str]) -> None:
        """Strike in a task, at a point of it."""
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() != 0:
            return
        (self.directory / f"{point}-{context.attemptNumber()}").write_text(json.dumps(runs), "utf-8")
        if point != self.point or not self._is_first():
            return
        if self.kind == "worker":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.kind == "executor":
            os.kill(parent_of(os.getppid()), signal.SIGKILL)
        deadline_s = time.monotonic() + _AWAIT_S
        while len(list(self.directory.glob(f"{point}-*"))) < 2 and time.monotonic() < deadline_s:
            time.sleep(0.05)
        if time.monotonic() >= deadline_s:
            self.alone.touch()

    @property
    def alone(self) -> Path:
        """A file that exists if no other attempt came."""
        return self.directory / "alone"

    def runs_by_attempt(self) -> list[set[str]]:
        """Return the runs of every attempt that was done."""
        return [set(json.loads(note.read_text("utf-8"))) for note in sorted(self.directory.glob("done-*"))]

    def attempts(self) -> int:
        """Return how many attempts of the task began."""
        return len(list(self.directory.glob("begun-*")))

    def _is_first(self) -> bool:
        try:
            (self.directory / "struck").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


@dataclass(frozen=True, kw_only=True)
class StruckWork(TaskWork):
    """The work of a stage, one of whose tasks fails."""

    misfortune: Misfortune

    def _do(self, task: Task) -> TaskDone:
        self.misfortune.strike("begun", [])
        done = super()._do(task)
        self.misfortune.strike("done", [run.path for run in done.runs])
        return done


@dataclass(frozen=True, kw_only=True)
class MeasuredWork(TaskWork):
    """The work of a stage whose tasks leave the peak of their process' memory in `directory`. Linux only."""

    directory: Path

    def _do(self, task: Task) -> TaskDone:
        Path("/proc/self/clear_refs").write_text("5", "ascii")  # The peak starts again from here.
        done = super()._do(task)
        status = Path("/proc/self/status").read_text("ascii")
        peak_kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
        (self.directory / f"{'merge' if task.runs else 'fold'}-{done.runs[0].path.rpartition('/')[2]}").write_text(
            str(peak_kib)
        )
        return done


def parts_of(work: TaskWork) -> dict[str, Any]:
    """Return the arguments for other work of the same tasks."""
    return {one.name: getattr(work, one.name) for one in fields(TaskWork)}


def engine_of(
    maker: "partial[SparkEngine]", change: Callable[[int, TaskWork], TaskWork], done: list[dict[int, TaskDone]]
) -> EngineMaker:
    """Return engines as `maker` makes them, of one round, with changed work.

    `change` makes other work of each stage's, by its number; the results of the stages are added to `done`.
    """

    class Changing(SparkEngine):
        def do(self, work: TaskWork) -> dict[int, TaskDone]:
            done.append(super().do(change(len(done), work)))
            return done[-1]

    return partial(Changing, **maker.keywords)
