"""The writing half of a round: turns the tail up to a target into a run, and puts the manifest that names it.

Invariants:
- Whatever a manifest names was uploaded and read back before its put.
- A loser deletes nothing, and nothing that it uploaded is ever used.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from statelog.errors import CorruptRun, NotFound, StatelogError, StoreUnavailable
from statelog.materializer.round.cleanup import CleanupPlan, plan_cleanup, run_cleanup
from statelog.materializer.round.compaction import merge_runs
from statelog.materializer.round.delta import delta_tables
from statelog.materializer.round.draft import Draft
from statelog.materializer.round.log_check import check_data
from statelog.materializer.round.outcome import CompletedRound, LostRound
from statelog.materializer.round.steps import Steps
from statelog.materializer.round.target import Target
from statelog.materializer.round.verified_runs import VerifiedRuns
from statelog.materializer.settings import MaterializerSettings
from statelog.schemas.changes.replay_plan import plan_replay
from statelog.schemas.names import DESCRIPTOR_PATH
from statelog.schemas.snapshot.manifest import Manifest, RunRef, next_manifest
from statelog.seams import Seams
from statelog.storage.local.disk import DiskHook
from statelog.storage.log.anchors import take_anchors
from statelog.storage.log.log import Log
from statelog.storage.manifest_chain import StoredManifest

__all__ = ["RollUp"]

T = TypeVar("T")


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
        target: Target,
        scratch: Path,
        *,
        steps: Steps,
        verified: VerifiedRuns,
        disk: DiskHook,
        seams: Seams,
    ) -> None:
        self._log = log
        self._settings = settings
        self._newest = newest
        self._base = newest.manifest if newest else None
        self._target = target
        self._scratch = scratch
        self._steps = steps
        self._verified = verified
        self._disk = disk
        self._seams = seams
        self._plan = plan_replay(target.commits, range(log.descriptor.partitions), target.state.accepted)

    def run(self, started_s: float) -> CompletedRound | LostRound:
        """Write, upload, read back, put, and clean up if the slot is won.

        Raises Damaged, Unavailable, RoundGivenUp among it.
        """
        check_data(self._log, self._base, self._target.state)
        # Asked for after the target: a value schema is stored before the first chunk that uses it.
        schema = self._log.value_schemas.newest()
        runs = self._base.runs if self._base else ()
        draft = Draft(self._log, schema, self._scratch, self._seams.nonce, runs, self._steps.go_on, self._disk)
        rows, replay_s = self._timed(lambda: self._write_delta(draft))
        self._steps.passed("after-delta")
        merged = merge_runs(self._log, draft, self._settings.fanout)
        self._steps.passed("after-merge")
        uploaded = draft.upload()
        lost, read_back_s = self._timed(lambda: self._read_back(draft, uploaded))
        if lost:
            return lost
        self._verified.add(uploaded)
        self._steps.passed("after-upload")
        won = self._put(draft)
        if isinstance(won, LostRound):
            return won
        seams = replace(self._seams, crash=self._steps.passed)
        removed = run_cleanup(self._log, won.manifest, won.cleanup_plan, self._settings, self._verified, seams)
        unpublished = self._publish(won.manifest.position)
        return CompletedRound(
            number=won.manifest.number,
            position=won.manifest.position,
            commits=len(self._target.commits),
            changes=self._plan.changes,
            rows=rows,
            size_bytes=sum(run.size_bytes for run in uploaded),
            read_back_s=read_back_s,
            replayed_bytes=self._plan.size_bytes,
            replay_s=replay_s,
            snapshot_bytes=sum(run.size_bytes for run in won.manifest.runs),
            runs_merged=merged,
            duration_s=self._seams.wall_clock() - started_s,
            behind=self._target.behind,
            cleanup=removed,
            unpublished=unpublished,
        )

    def _timed(self, work: Callable[[], T]) -> tuple[T, float]:
        started_s = self._seams.wall_clock()
        return work(), self._seams.wall_clock() - started_s

    def _write_delta(self, draft: Draft) -> int:
        """Add the delta to the draft, unless no change set was committed. Returns its rows."""
        if not self._plan.listed:
            return 0
        first = not draft.runs
        tables = delta_tables(self._log, self._plan, draft.schema, self._scratch, drop_deletes=first, disk=self._disk)
        start = 0 if first else draft.runs[-1].end_position
        run = draft.write(tables, start, self._target.position, level=0)
        draft.runs.append(run)
        return run.rows

    def _read_back(self, draft: Draft, uploaded: Iterable[RunRef]) -> LostRound | None:
        """Read what was uploaded. No manifest names it yet: what did not arrive whole is written again."""
        try:
            draft.read_back(uploaded)
        except (CorruptRun, NotFound) as error:
            newest = self._newest_number()
            if newest > (self._base.number if self._base else 0):
                return LostRound(number=newest)  # And its winner cleaned up.
            raise StoreUnavailable(
                f"a run did not arrive whole: {error.message}",
                hint="No manifest names it: the next round writes it again. If this repeats, check network and disks",
                **error.facts,
            ) from error
        return None

    def _put(self, draft: Draft) -> _Won | LostRound:
        """List all files, put the next manifest, and list again."""
        anchors = take_anchors(self._log, self._target.state, self._base)
        listing = list(self._log.store.list())
        if DESCRIPTOR_PATH not in {info.path for info in listing}:
            self._log.manifests.check_place()
        own = next_manifest(
            self._base,
            self._newest.data if self._newest else b"",
            nonce=self._seams.nonce(),
            identity=self._log.descriptor.identity,
            state=self._target.state,
            anchors=anchors,
            runs=draft.runs,
            created_s=self._seams.wall_clock(),
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

    def _publish(self, position: int) -> str:
        """Publish the position for Kafka's lag tools; why that failed, or an empty string. Nothing reads it back."""
        group = f"statelog.{self._log.name}.materializer"
        try:
            self._log.kafka.publish_offset(group, self._log.ledger_topic, 0, position)
        except StatelogError as error:
            return f"{type(error).__name__}: {error}"
        self._steps.passed("after-publish")
        return ""

    def _newest_number(self) -> int:
        return max(self._log.manifests.numbers(), default=0)
