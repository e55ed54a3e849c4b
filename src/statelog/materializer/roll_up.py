"""The writing half of a round: turns the tail up to a target into runs, and puts the manifest that names it.

`Steps` are the gaps between the steps: where a test may end a round, and where one that was given up ends.

Invariants:
- Whatever a manifest names was uploaded and read back before its put.
- A loser deletes nothing, and nothing that it uploaded is ever used.
- A round is given up only before its put. After it the manifest exists, and the round finishes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from statelog.environment import CrashPoint, Environment
from statelog.errors import CorruptRun, NotFound, RoundGivenUp
from statelog.materializer.cleanup import CleanupPlan, VerifiedRuns, other_root, plan_cleanup, publish, run_cleanup
from statelog.materializer.engine import Engine, EngineMaker, RoundWork, Written, not_whole
from statelog.materializer.outcome import Cleanup, CompletedRound, LostRound
from statelog.materializer.settings import MaterializerSettings
from statelog.materializer.target import RoundTarget, check_data
from statelog.materializer.tasks import MergeTask, TaskOutput, fold_tasks, merge_tasks
from statelog.schemas.changes.replay_plan import plan_replay
from statelog.schemas.key_groups import MAX_KEY_GROUPS, partition_starts
from statelog.schemas.names import DESCRIPTOR_PATH
from statelog.schemas.snapshot.manifest import Manifest, next_manifest
from statelog.schemas.snapshot.run_ref import Cuts, Merge, RunRef, choose_merges, in_order
from statelog.storage.log.evidence import take_anchors
from statelog.storage.log.files import StoredManifest
from statelog.storage.log.log import Log

CRASH_POINTS = (
    "after-newest",  # the newest manifest was read, nothing written
    "after-fold",  # the target and its commits are known
    "after-delta",  # the delta run lies in the scratch directory
    "after-merge",  # so do merged runs
    "after-upload",  # the new runs lie in the store, and were read back
    "after-list",  # what will be removed is decided
    "after-put",  # the manifest exists; we do not know yet whether it counts
    "after-win",  # we know
    "after-check",  # the oldest kept snapshot was verified
    "after-cap",  # subscriptions over their cap were ended
    "after-drop",  # old manifests are gone
    "after-truncate-data",
    "after-truncate-ledger",
    "after-delete",  # files that no manifest names are gone
    "after-publish",  # the group offset is published, unless it cannot be
)
"""The names that `Environment.crash` is called with, in order: one between every two steps."""

_BEFORE_PUT = frozenset(CRASH_POINTS[: CRASH_POINTS.index("after-put")])


class Steps:
    """The gaps of one round. `is_given_up` is asked in each of those before the put, and between tables."""

    def __init__(self, crash: CrashPoint, is_given_up: Callable[[], bool]) -> None:
        self._crash = crash
        self._is_given_up = is_given_up

    def passed(self, point: str) -> None:
        """A step is done. Raises RoundGivenUp before the put, and whatever `crash` raises."""
        self._crash(point)
        if point in _BEFORE_PUT:
            self.go_on()

    def go_on(self) -> None:
        """Raise RoundGivenUp if the round was given up."""
        if self._is_given_up():
            raise RoundGivenUp("the round was given up before its put")


@dataclass(frozen=True, slots=True)
class _Won:
    """Our manifest, which won its slot, and what it lets us remove."""

    manifest: Manifest
    cleanup_plan: CleanupPlan


class RollUp:
    """One attempt to make the next manifest, up to one target. `verified` is what the process knows of earlier ones."""

    def __init__(
        self,
        log: Log,
        settings: MaterializerSettings,
        newest: StoredManifest | None,
        target: RoundTarget,
        scratch: Path,
        *,
        steps: Steps,
        verified: VerifiedRuns,
        make_engine: EngineMaker,
        environment: Environment,
    ) -> None:
        self._log = log
        self._settings = settings
        self._newest = newest
        self._base = newest.manifest if newest else None
        self._target = target
        self._steps = steps
        self._verified = verified
        self._environment = environment
        work = RoundWork(log=log, scratch=scratch, go_on=steps.go_on, environment=environment)
        self._engine: Engine = make_engine(work)
        self._runs: tuple[RunRef, ...] = self._base.runs if self._base else ()
        """The runs that the next manifest will name."""
        self._plan = plan_replay(target.commits, range(log.descriptor.partitions), target.state.accepted)

    def run(self, started_s: float) -> CompletedRound | LostRound:
        """Write, upload, read back, put, and clean up if the slot is won.

        Raises Damaged, Unavailable, RoundGivenUp among it.
        """
        check_data(self._log, self._base, self._target.state)
        # Asked for after the target: a value schema is stored before the first chunk that uses it.
        self._schema_id = self._log.value_schemas.newest().id
        delta = self._write_delta()
        self._steps.passed("after-delta")
        merged = self._merge()
        self._steps.passed("after-merge")
        published = self._publish_runs()
        if isinstance(published, LostRound):
            return published
        self._verified.add(published.runs)
        self._steps.passed("after-upload")
        won = self._put()
        if isinstance(won, LostRound):
            return won
        environment = replace(self._environment, crash=self._steps.passed)
        other = other_root(self._log, won.manifest, self._verified.manifests)
        removed = Cleanup(held_back=other)
        if not other:
            removed = run_cleanup(
                self._log, won.manifest, won.cleanup_plan, self._settings, self._verified, environment
            )
        unpublished = "" if other else publish(self._log, won.manifest)
        self._steps.passed("after-publish")
        return CompletedRound(
            number=won.manifest.number,
            position=won.manifest.position,
            commits=len(self._target.commits),
            changes=self._plan.changes,
            rows=sum(run.rows for run in delta.runs),
            size_bytes=sum(run.size_bytes for run in published.runs),
            read_back_s=published.seconds,
            replayed_bytes=self._plan.size_bytes,
            replay_s=delta.seconds,
            snapshot_bytes=sum(run.size_bytes for run in won.manifest.runs),
            runs_merged=merged,
            duration_s=self._environment.wall_clock() - started_s,
            behind=self._target.behind,
            cleanup=removed,
            unpublished=unpublished,
        )

    def _write_delta(self) -> Written:
        """Write what was committed, unless no change set was."""
        if not self._plan.listed:
            return Written(runs=(), seconds=0.0)
        first = not self._runs
        output = self._output(0 if first else self._runs[-1].end_position, self._target.position, drop_deletes=first)
        starts = self._partition_starts
        most_tasks = self._engine.tasks_for(self._plan.size_bytes)
        delta = self._engine.write(fold_tasks(self._plan, starts, self._runs, output, most_tasks))
        self._runs = in_order((*self._runs, *delta.runs))
        return delta

    @property
    def _partition_starts(self) -> Sequence[int]:
        descriptor = self._log.descriptor
        return [int(first) for first in partition_starts(descriptor.partitions, descriptor.key_groups)[:-1]]

    def _merge(self) -> int:
        """Merge until no tier is full. Returns how many runs went into others."""
        merged = 0
        while merges := choose_merges(self._runs, self._settings.fanout):
            tasks = [task for merge in merges for task in self._merge_tasks(merge)]
            written = self._engine.write(tasks)
            gone = [run for merge in merges for run in merge.runs]
            paths = {run.path for run in gone}
            self._runs = in_order((*(run for run in self._runs if run.path not in paths), *written.runs))
            self._engine.forget(gone)
            merged += len(gone)
        return merged

    def _merge_tasks(self, merge: Merge) -> Sequence[MergeTask]:
        output = self._output(merge.start_position, merge.end_position, merge.level, drop_deletes=merge.drops_deletes)
        most_tasks = self._engine.tasks_for(sum(run.size_bytes for run in merge.runs))
        return merge_tasks(merge, self._partition_starts, self._runs, output, most_tasks)

    def _output(self, start_position: int, end_position: int, level: int = 0, *, drop_deletes: bool) -> TaskOutput:
        return TaskOutput(
            start_position=start_position,
            end_position=end_position,
            key_groups=range(MAX_KEY_GROUPS),
            level=level,
            value_schema_id=self._schema_id,
            drop_deletes=drop_deletes,
            cuts=Cuts(max_bytes=self._settings.max_run_bytes),
        )

    def _publish_runs(self) -> Written | LostRound:
        """See that all runs are in the store. No manifest names them yet: what did not arrive is written again."""
        try:
            return self._engine.publish(self._runs)
        except (CorruptRun, NotFound) as error:
            newest = self._newest_number()
            if newest > (self._base.number if self._base else 0):
                return LostRound(number=newest)  # And its winner cleaned up.
            raise not_whole(error) from error

    def _put(self) -> _Won | LostRound:
        """List all files, put the next manifest, and list again."""
        anchors = take_anchors(self._log, self._target.state, self._base)
        listing = list(self._log.store.list())
        if DESCRIPTOR_PATH not in {info.path for info in listing}:
            self._log.manifests.check_place()
        own = next_manifest(
            self._base,
            self._newest.data if self._newest else b"",
            nonce=self._environment.nonce(),
            identity=self._log.descriptor.identity,
            state=self._target.state,
            anchors=anchors,
            runs=self._runs,
            created_s=self._environment.wall_clock(),
        )
        cleanup_plan = plan_cleanup(self._log, listing, own, self._settings, self._verified.manifests)
        self._steps.passed("after-list")
        if not self._log.manifests.put(own):
            return LostRound(number=own.number)
        self._steps.passed("after-put")
        newest = self._newest_number()
        if newest > own.number:
            # We stalled so long that our slot was cleaned up, and the put found it free again: it is void.
            return LostRound(number=newest)
        self._steps.passed("after-win")
        return _Won(own, cleanup_plan)

    def _newest_number(self) -> int:
        return max(self._log.manifests.numbers(), default=0)
