"""`Engine`: who carries out the tasks of a round. The round plans, checks, and puts the manifest, whoever works.
`LocalEngine` does it in this process, one after the other.

Invariants:
- A run lies in the store already or as a finished local file, never in both. So runs that are merged in the
  round that wrote them are never uploaded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from statelog.materializer.tasks import Task
from statelog.materializer.work import RoundWork, write_runs
from statelog.schemas.snapshot.run_ref import RunRef
from statelog.storage.run_reader import RunReader, open_local, read_back
from statelog.storage.run_writer import WrittenRun, upload_run

__all__ = ["Engine", "EngineMaker", "LocalEngine", "Written"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The runs that some tasks wrote, and the seconds that the tasks took, one after the other."""

    runs: tuple[RunRef, ...]
    seconds: float


class Engine(Protocol):
    """Writes runs in one round. Never decides what is in a manifest, and never deletes what lies in the store."""

    def tasks_for(self, size_bytes: int) -> int:
        """Into how many tasks a fold or a merge of so many bytes is cut at most, one or more."""
        ...

    def write(self, tasks: Sequence[Task]) -> Written:
        """Do the tasks. Raises Damaged, NotFound, Unavailable, and what `go_on` raises."""
        ...

    def forget(self, runs: Sequence[RunRef]) -> None:
        """Runs that were merged into others. Those that no store has yet need not be kept."""
        ...

    def publish(self, runs: Sequence[RunRef]) -> Written:
        """Upload those of the runs that this engine wrote, and read each back, every byte, unless that was done.

        Returns them, and the seconds that reading back took. Raises CorruptRun or NotFound if one did not arrive whole,
        StoreUnavailable, StorageFull, and what `go_on` raises.
        """
        ...


EngineMaker = Callable[[RoundWork], Engine]
"""Makes the engine of one round."""


class LocalEngine:
    """The engine of one round, on this machine."""

    def __init__(self, work: RoundWork) -> None:
        self._work = work
        self._log = work.log
        self._clock = work.environment.wall_clock
        self._local: dict[str, WrittenRun] = {}

    def tasks_for(self, size_bytes: int) -> int:  # noqa: ARG002  # An engine with one pair of hands.
        """One: more would only be done one after the other."""
        return 1

    def write(self, tasks: Sequence[Task]) -> Written:
        """Do the tasks; their runs are local files."""
        started_s = self._clock()
        found = [one for task in tasks for one in write_runs(task, self._work, self._open)]
        self._local.update({one.run.path: one.written for one in found})
        return Written(runs=tuple(one.run for one in found), seconds=self._clock() - started_s)

    def forget(self, runs: Sequence[RunRef]) -> None:
        """Remove those that are local files."""
        for run in runs:
            written = self._local.pop(run.path, None)
            if written is not None:
                written.local.unlink()

    def publish(self, runs: Sequence[RunRef]) -> Written:
        """Upload the local files among the runs, then read them back."""
        mine = tuple(run for run in runs if run.path in self._local)
        for run in mine:
            self._work.go_on()
            upload_run(self._log.store, self._local.pop(run.path))
        started_s = self._clock()
        for run in mine:
            self._work.go_on()
            read_back(self._log.store, run.file)
        return Written(runs=mine, seconds=self._clock() - started_s)

    def _open(self, run: RunRef) -> RunReader:
        written = self._local.get(run.path)
        opened = open_local(written.local, run.path) if written else self._log.store.open(run.path)
        return RunReader(opened, run.file)
