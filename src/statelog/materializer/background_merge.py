"""`BackgroundMerge`: the merge that is too large for a round, beside the daemon's rounds, one at a time.

A round that won leaves it here; the daemon begins it; once it has ended, a later round names the merged runs in place
of those that went in. Never decides what is in a manifest, and writes nothing to the store.

Invariants:
- What goes in is named by a manifest and never changes. So the merged runs are right however long they took, as long as
  the newest manifest still names all that went in; else they are thrown away.
- Merged runs are local files until the round that will name them uploads them: a round may delete at any time what lies
  in the store and is named by none.
- What the merge raises is raised by the next round, as if it had merged by itself.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, replace
from threading import Lock

from statelog.closing import Closing
from statelog.environment import current_environment
from statelog.errors import NotFound, RoundGivenUp
from statelog.materializer.engine import LocalEngine, RoundWork, Written, scratch_directory
from statelog.materializer.settings import MaterializerSettings
from statelog.materializer.tasks import Task
from statelog.schemas.snapshot.run_ref import Merge, RunRef, in_place
from statelog.storage.log.log import Log


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedRuns(Closing):
    """The runs that a merge came to, as local files of `engine`, which go away on `close` unless they were uploaded."""

    merge: Merge
    written: Written
    engine: LocalEngine
    directory: ExitStack

    def close(self) -> None:
        """Remove what is local. Idempotent."""
        self.directory.close()

    def in_place(self, runs: Sequence[RunRef]) -> tuple[RunRef, ...]:
        """The runs of a snapshot, which names all that went in, with the merged ones in place of those.

        Those that reached its position may reach farther by now, and then so do the merged ones.
        """
        inputs = _still_named(self.merge, runs)
        assert inputs is not None, "a round merges nothing that it took from beside it"
        merged = (replace(run, end_position=inputs.positions.stop) for run in self.written.runs)
        return in_place(runs, inputs.runs, merged)


@dataclass(slots=True, eq=False)
class _Job:
    merge: Merge
    tasks: Sequence[Task]
    future: Future[MergedRuns] | None = None
    """None until it is begun."""
    stepped_s: float = 0.0
    """When it began, or last asked whether to go on."""


class BackgroundMerge(Closing):
    """Belongs to a daemon. Rounds `leave` a merge and `take` what came of it, on threads of their own; `ring` is called
    on that of the merge, once it is over.
    """

    def __init__(self, log: Log, settings: MaterializerSettings, *, ring: Callable[[], None]) -> None:
        self._log = log
        self._settings = settings
        self._ring = ring
        self._environment = current_environment()
        self._lock = Lock()
        self._job: _Job | None = None
        self._begun: Future[MergedRuns] | None = None
        self._is_closed = False

    @property
    def is_due(self) -> bool:
        """Whether a merge was left, and not begun."""
        job = self._job
        return job is not None and job.future is None

    def is_at_work(self, since_s: float) -> bool:
        """Whether one is going on that began, or wrote a table, at that time or later: else it may hang."""
        job = self._job
        return job is not None and job.future is not None and not job.future.done() and job.stepped_s >= since_s

    @property
    def is_quiet(self) -> bool:
        """Whether no merge is going on any more, not even one that was given up."""
        return self._begun is None or self._begun.done()

    @property
    def is_over(self) -> bool:
        """Whether there is something to take."""
        job = self._job
        return job is not None and job.future is not None and job.future.done()

    @property
    def merge(self) -> Merge | None:
        """What is merged here, or will be, or was and is not taken yet."""
        job = self._job
        return None if job is None else job.merge

    def leave(self, merge: Merge, tasks: Sequence[Task]) -> None:
        """A merge of runs that a manifest names. Void while there is another."""
        with self._lock:
            if self._job is None and not self._is_closed:
                self._job = _Job(merge, tasks)

    def begin(self) -> None:
        """Begin the merge that is due."""
        job = self._job
        if job is not None and job.future is None:
            job.stepped_s = self._environment.clock()
            job.future = self._environment.begin(lambda: self._merge(job))
            self._begun = job.future
            job.future.add_done_callback(lambda _: self._ring())

    def take(self, runs: Sequence[RunRef]) -> MergedRuns | None:
        """What came of the merge, once; None if nothing did that a snapshot of these runs can use. The caller closes
        it. Raises Damaged, Unavailable, ConfigError for the scratch directory.
        """
        with self._lock:
            job = self._job
            if job is None or job.future is None or not job.future.done():
                return None
            self._job = None
        is_named = _still_named(job.merge, runs) is not None
        try:
            merged = job.future.result()
        except NotFound:
            if is_named:
                raise
            return None  # Another materializer was faster, and cleaned up.
        if is_named:
            return merged
        merged.close()
        return None

    def close(self) -> None:
        """Give it up: it ends at its next table, and leaves no file. Idempotent."""
        with self._lock:
            self._is_closed = True
            job, self._job = self._job, None
        if job is not None and job.future is not None:
            job.future.add_done_callback(_remove)

    def _merge(self, job: _Job) -> MergedRuns:
        with ExitStack() as stack:
            scratch = stack.enter_context(scratch_directory(self._settings.scratch, self._environment))
            engine = LocalEngine(
                RoundWork(
                    log=self._log,
                    scratch=scratch,
                    go_on=lambda: self._go_on(job),
                    environment=self._environment,
                    threads=self._settings.threads_beside,
                )
            )
            written = engine.write(job.tasks)
            self._environment.crash("merged-beside")
            return MergedRuns(merge=job.merge, written=written, engine=engine, directory=stack.pop_all())

    def _go_on(self, job: _Job) -> None:
        job.stepped_s = self._environment.clock()
        if self._is_closed:
            raise RoundGivenUp("the daemon ended before the merge beside its rounds")


def _still_named(merge: Merge, runs: Sequence[RunRef]) -> Merge | None:
    """The merge as a snapshot of these runs has it; None unless it names all that goes in."""
    paths = {run.path for run in merge.runs}
    found = tuple(run for run in runs if run.path in paths)
    return Merge(found) if len(found) == len(paths) else None


def _remove(future: Future[MergedRuns]) -> None:
    if future.exception() is None:
        future.result().close()
