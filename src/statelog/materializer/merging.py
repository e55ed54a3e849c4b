"""`Merging`: the merges of one round, and what it names of those that went on beside the rounds before it.

Never decides which runs to merge next: `schemas.snapshot.run_ref` does. Where merges go on beside rounds, none of more
than `merge_bytes` is done in one, and none is done in both.
"""

from collections.abc import Mapping, Sequence

from statelog.materializer.background_merge import BackgroundMerge, MergedRuns
from statelog.materializer.engine import Engine, RoundWork, Written, tasks_for
from statelog.materializer.settings import MaterializerSettings
from statelog.materializer.tasks import Task, TaskOutput, expected_deltas, fold_tasks, merge_tasks
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
    """Of one round, which `engine` writes. `merged` is what was merged `beside` the rounds before it."""

    def __init__(
        self,
        work: RoundWork,
        settings: MaterializerSettings,
        engine: Engine,
        beside: BackgroundMerge | None,
        merged: MergedRuns | None,
    ) -> None:
        made = work.log.descriptor
        self._starts: list[int] = partition_starts(made.partitions, made.key_groups)[:-1].tolist()
        self._settings = settings
        self._engine = engine
        self._beside = beside
        self._merged = merged
        self._count, self._left_bytes = 0, settings.merge_bytes

    def write_delta(self, plan: ReplayPlan, runs: Runs, delta: TaskOutput) -> tuple[Runs, Written]:
        """Write what a plan lists, which is something, and at once with it, in one merge, all that will be merged with
        it as far as can be told: so it is written once, and not read back for that. Returns the runs, and what was
        written.
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

    def _joint_merges(self, plan: ReplayPlan, runs: Runs, deltas: Runs) -> list[Merge]:
        """The merges that the deltas of a plan, which are not written yet, will be in: those that follow from each
        other as one. None is left to fewer tasks because a replay is cut between partitions only.
        """
        firsts = [self._starts[partition] for partition in plan.listed]
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
                size_bytes=min(size_bytes // tasks, self._settings.max_run_bytes),
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
        """Merge until no tier is full, or enough was merged. Returns the runs, and how many went into others, those of
        `write_delta` included.
        """
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
        """Upload and read back what is local, as `Engine.publish`; its errors."""
        written = self._engine.publish(runs)
        if self._merged is None:
            return written
        merged = self._merged.engine.publish(runs)
        return Written(runs=(*written.runs, *merged.runs), seconds=written.seconds + merged.seconds)

    def leave(self, runs: Runs, delta: TaskOutput) -> None:
        """Of a manifest's runs, what is too large for a round is merged beside the next ones."""
        if self._beside is None or self._beside.merge is not None:
            return
        large = (merge for merge in self._merges_of(runs) if merge.size_bytes > self._settings.merge_bytes)
        if (merge := next(large, None)) is not None:
            most_tasks = tasks_for(merge.size_bytes, self._settings.threads_beside)
            self._beside.leave(merge, merge_tasks(merge, self._starts, runs, delta, most_tasks))

    def _merges_of(self, runs: Runs) -> list[Merge]:
        """Those that are due, but for what is merged beside the rounds."""
        others = (self._merged, self._beside)
        busy = [run for other in others if other and (theirs := other.merge) for run in theirs.runs]
        merges = choose_merges(runs, self._settings.fanout)
        return [merge for merge in merges if not any(merge.meets(run) for run in busy)]

    def _tasks_of(
        self, merges: Sequence[Merge], runs: Runs, delta: TaskOutput, replay: ReplayPlan | None = None
    ) -> list[Task]:
        tasks: list[Task] = []
        for merge in merges:
            most_tasks = self._engine.tasks_for(merge.size_bytes)
            tasks += merge_tasks(merge, self._starts, runs, delta, most_tasks, replay)
        return tasks
