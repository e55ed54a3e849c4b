"""Merges: `Merging`, those of one round, and `BackgroundMerge`, one that is too large for a round.

A round that won leaves a merge that is too large, and the daemon begins it. Once it has ended, a later round names the
merged runs in place of their inputs. `schemas.snapshot.run_ref` decides which runs to merge next.

Invariants:
- With a background merge, a round does no merge of more than `merge_bytes`, and no merge is done in both.
- Inputs are named by a manifest and never change. So merged runs are correct however long they took, as long as the
  newest manifest still names all inputs; else they are discarded.
- Merged runs are local files until the round that will name them uploads them: a round may delete any file in the store
  that no manifest names.
- The next round raises the error of a background merge, as if it had merged by itself.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, replace
from threading import Lock

from statelog.closing import Closing
from statelog.environment import current_environment
from statelog.errors import NotFound, RoundGivenUp
from statelog.log import Log
from statelog.materializer.engine import Engine, LocalEngine, Written, tasks_for
from statelog.materializer.settings import MaterializerSettings, tuning_of
from statelog.materializer.tasks import Task, TaskOutput, expected_deltas, fold_tasks, merge_tasks
from statelog.materializer.work import RoundWork, scratch_directory
from statelog.schemas.changes.replay_plan import ReplayPlan
from statelog.schemas.key_groups import partition_starts
from statelog.schemas.snapshot.run_ref import (
    Merge,
    RunRef,
    affordable,
    choose_merges,
    expected_run,
    in_order,
    in_place,
    newest_bytes,
)

Runs = tuple[RunRef, ...]


class Merging:
    """The merges of one round, written by `engine`. `merged` is the result of the background merge `beside`."""

    def __init__(
        self,
        work: RoundWork,
        settings: MaterializerSettings,
        engine: Engine,
        beside: "BackgroundMerge | None",
        merged: "MergedRuns | None",
    ) -> None:
        made = work.log.descriptor
        self._starts: list[int] = partition_starts(made.partitions, made.key_groups)[:-1].tolist()
        self._settings = settings
        self._engine = engine
        self._beside = beside
        self._merged = merged
        self._count, self._left_bytes = 0, tuning_of(settings).merge_bytes

    def write_delta(self, plan: ReplayPlan, runs: Runs, delta: TaskOutput) -> tuple[Runs, Written]:
        """Write the deltas of a plan that is not empty, joined with the merges that they will foreseeably be part of.

        So their changes are written once, and not read back for a merge. Returns the runs, and what was written.
        """
        folds = fold_tasks(plan, self._starts, runs, delta, self._engine.tasks_for(plan.size_bytes))
        joint = self._joint_merges(plan, runs, expected_deltas(plan, folds, runs))
        gone = [run for merge in joint for run in merge.runs]
        tasks = self._tasks_of(joint, runs, delta, plan)
        tasks += [
            fold for fold in folds if not any(fold.output.key_groups.start in merge.key_groups for merge in joint)
        ]
        written = self._engine.write(tasks)
        self._count += len(gone)
        return in_place(runs, gone, written.runs), written

    def write_empty(self, delta: TaskOutput) -> tuple[Runs, Written]:
        """Write a first run without a row. Returns as `write_delta`."""
        written = self._engine.write([Task(output=delta)])
        return in_place((), [], written.runs), written

    def _joint_merges(self, plan: ReplayPlan, runs: Runs, deltas: Runs) -> list[Merge]:
        """Return the merges that the unwritten deltas of a plan will be part of; consecutive ones as one.

        A replay is cut between partitions only: a merge is left out if that would give it fewer tasks.
        """
        firsts = [self._starts[partition] for partition in plan.sizes]
        made_of: dict[str, Runs] = {delta.path: (delta,) for delta in deltas}
        now = in_order((*runs, *deltas))
        while (merge := self._affordable_joint(firsts, now, made_of)) is not None:
            self._left_bytes -= sum(run.size_bytes for run in merge.runs if run.path not in made_of)
            beside = (run for run in now if run not in merge.runs and run.first_key_group in merge.key_groups)
            peers = newest_bytes(beside, merge.level)
            size_bytes = max(run.size_bytes for run in merge.runs) if peers is None else min(peers, merge.size_bytes)
            tasks = self._engine.tasks_for(merge.size_bytes)
            merged = expected_run(
                merge.positions,
                merge.key_groups,
                level=merge.level,
                name=f"merged{len(now)}",
                size_bytes=min(size_bytes // tasks, tuning_of(self._settings).max_run_bytes),
            )
            now = in_place(now, merge.runs, [merged])
            made_of[merged.path] = tuple(one for run in merge.runs for one in made_of.pop(run.path, (run,)))
        return [Merge(in_order(made)) for made in made_of.values() if len(made) > 1]

    def _affordable_joint(self, firsts: Sequence[int], runs: Runs, made_of: Mapping[str, Runs]) -> Merge | None:
        for merge in self._merges_of(runs):
            read_bytes = [run.size_bytes for run in merge.runs if run.path not in made_of]
            parts = sum(first in merge.key_groups for first in firsts)
            is_affordable = sum(read_bytes) <= self._left_bytes and self._engine.tasks_for(merge.size_bytes) <= parts
            if is_affordable and len(read_bytes) < len(merge.runs):
                return merge
        return None

    def merge(self, runs: Runs, delta: TaskOutput) -> tuple[Runs, int]:
        """Merge until no tier is full, or enough was merged. Return the runs, and how many were merged in all."""
        merged, left_bytes = self._count, self._left_bytes
        while merges := affordable(
            self._merges_of(runs), left_bytes, at_least_one=merged == 0 and self._beside is None
        ):
            left_bytes -= sum(merge.size_bytes for merge in merges)
            written = self._engine.write(self._tasks_of(merges, runs, delta))
            gone = [run for merge in merges for run in merge.runs]
            runs = in_place(runs, gone, written.runs)
            self._engine.forget(gone)
            merged += len(gone)
        if self._merged is None:
            return runs, merged
        return self._merged.in_place(runs), merged + len(self._merged.merge.runs)

    def publish(self, runs: Runs) -> Written:
        """Upload the local runs and read them back. Raises the errors of `Engine.publish`."""
        written = self._engine.publish(runs)
        if self._merged is None:
            return written
        merged = self._merged.engine.publish(runs)
        return Written(runs=(*written.runs, *merged.runs), seconds=written.seconds + merged.seconds)

    def uploaded(self) -> Iterable[str]:
        """Return the paths of `Engine.uploaded`."""
        return self._engine.uploaded()

    def leave(self, runs: Runs, delta: TaskOutput) -> None:
        """Leave a merge of a manifest's runs that is too large for a round to the background."""
        if self._beside is None or self._beside.merge is not None:
            return
        large = (merge for merge in self._merges_of(runs) if merge.size_bytes > tuning_of(self._settings).merge_bytes)
        if (merge := next(large, None)) is not None:
            most_tasks = tasks_for(merge.size_bytes, self._settings.threads_beside)
            self._beside.leave(merge, merge_tasks(merge, self._starts, runs, delta, most_tasks))

    def _merges_of(self, runs: Runs) -> list[Merge]:
        """Return the merges that are due, except those with runs of a background merge."""
        others = (self._merged, self._beside)
        busy = [run for other in others if other and (theirs := other.merge) for run in theirs.runs]
        merges = choose_merges(runs, self._settings.fanout)
        return [merge for merge in merges if not any(merge.overlaps(run) for run in busy)]

    def _tasks_of(
        self, merges: Sequence[Merge], runs: Runs, delta: TaskOutput, replay: ReplayPlan | None = None
    ) -> list[Task]:
        tasks: list[Task] = []
        for merge in merges:
            most_tasks = self._engine.tasks_for(merge.size_bytes)
            tasks += merge_tasks(merge, self._starts, runs, delta, most_tasks, replay)
        return tasks


# ---- in the background


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedRuns(Closing):
    """The result of a merge, as local files of `engine`. `close` removes those that were not uploaded."""

    merge: Merge
    written: Written
    engine: LocalEngine
    directory: ExitStack

    def close(self) -> None:
        """Remove the local files. Idempotent."""
        self.directory.close()

    def in_place(self, runs: Sequence[RunRef]) -> tuple[RunRef, ...]:
        """Return the runs of a snapshot that names all inputs, with the merged runs in place of those.

        Inputs that extend to the snapshot's position may have been extended since; then the merged runs are, too.
        """
        inputs = _still_named(self.merge, runs)
        assert inputs is not None, "a round does not merge the inputs of a background merge"
        merged = (replace(run, end_position=inputs.positions.stop) for run in self.written.runs)
        return in_place(runs, inputs.runs, merged)


@dataclass(slots=True, eq=False)
class _Job:
    merge: Merge
    tasks: Sequence[Task]
    future: Future[MergedRuns] | None = None
    """None until it is begun."""
    stepped_s: float = 0.0
    """When it began, or made its last step."""


class BackgroundMerge(Closing):
    """The background merge of a daemon. Rounds `leave` a merge and `take` its result; its thread calls `ring` when it
    ends.
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
        """Whether a merge was left and not begun."""
        job = self._job
        return job is not None and job.future is None

    def is_at_work(self, since_s: float) -> bool:
        """Return whether a merge runs that began, or wrote a table, at that time or later. An older one may hang."""
        job = self._job
        return job is not None and job.future is not None and not job.future.done() and job.stepped_s >= since_s

    @property
    def is_quiet(self) -> bool:
        """Whether no merge runs any more, not even one that was given up."""
        return self._begun is None or self._begun.done()

    @property
    def is_over(self) -> bool:
        """Whether a merge has ended and was not taken."""
        job = self._job
        return job is not None and job.future is not None and job.future.done()

    @property
    def merge(self) -> Merge | None:
        """The merge that is due, runs, or has ended and was not taken."""
        job = self._job
        return None if job is None else job.merge

    def leave(self, merge: Merge, tasks: Sequence[Task]) -> None:
        """Accept a merge of runs that a manifest names. Ignored while there is another."""
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
        """Return the merge's result, once, which the caller closes; None if a snapshot of these runs cannot use it.

        Raises Damaged, Unavailable, ConfigError for the scratch directory.
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
        """Give up the merge: it ends at its next table, and leaves no file. Idempotent."""
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
            raise RoundGivenUp("the daemon ended before its background merge")


def _still_named(merge: Merge, runs: Sequence[RunRef]) -> Merge | None:
    """Return the merge as a snapshot of these runs has it; None unless it names all inputs."""
    paths = {run.path for run in merge.runs}
    found = tuple(run for run in runs if run.path in paths)
    return Merge(found) if len(found) == len(paths) else None


def _remove(future: Future[MergedRuns]) -> None:
    if future.exception() is None:
        future.result().close()
