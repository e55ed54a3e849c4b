"""One round: roll the committed tail up into a run, publish it as the next manifest, and clean up.

`docs/protocol-materialize.md` numbers the steps and says what stands if we die after each. Any number of rounds may
run at once, on any machines, stalled for any time: the slot of the next manifest has one winner.

Invariants:
- The newest manifest is read first, and everything follows from it. Only the put of the next one makes a difference.
- Whatever a manifest names was uploaded and read back before its put.
- A loser deletes nothing, and nothing that it uploaded is ever used.
- What is missing is believed only while the manifest that needs it is still the newest (else the round is Lost), and
  damage only while the directory is the log's.
- The budget never ends a round between a loss and the ledger record with which a person accepted it.
- A round that was given up stops at its next step, unless that lies after the put: then it counts, and is finished.
"""

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from statelog.errors import (
    CorruptRun,
    Damaged,
    DataLoss,
    NotFound,
    OffsetGone,
    RoundGivenUp,
    StatelogError,
    StoreUnavailable,
)
from statelog.materializer.round.cleanup import CleanupPlan, plan_cleanup, run_cleanup
from statelog.materializer.round.compaction import merge_runs
from statelog.materializer.round.delta import delta_tables
from statelog.materializer.round.draft import Draft
from statelog.materializer.round.log_check import check_data, check_ledger, prove_truncation
from statelog.materializer.round.outcome import CompletedRound, LostRound, RoundOutcome, SkippedRound
from statelog.materializer.round.scratch import scratch_directory
from statelog.materializer.round.target import Target, choose_target
from statelog.materializer.round.verified_runs import VerifiedRuns
from statelog.materializer.settings import MaterializerSettings
from statelog.schemas.changes.replay_plan import plan_replay
from statelog.schemas.names import DESCRIPTOR_PATH
from statelog.schemas.snapshot.manifest import Manifest, RunRef, next_manifest
from statelog.schemas.topics.rights import ROLLING_UP
from statelog.seams import REAL, CrashPoint, Seams
from statelog.storage.local.disk import DiskHook, no_faults
from statelog.storage.log.anchors import take_anchors
from statelog.storage.log.log import Log
from statelog.storage.manifest_chain import StoredManifest

__all__ = ["CRASH_POINTS", "newest_number", "run_round"]

T = TypeVar("T")

CRASH_POINTS = (
    "after-newest",  # the newest manifest was read, nothing written
    "after-fold",  # the target and its commits are known
    "after-delta",  # the delta run lies in the scratch directory
    "after-merge",  # so do merged runs
    "after-upload",  # the new runs lie in the store, and were read back
    "after-list",  # what will be removed is decided
    "after-put",  # the manifest stands; we do not know yet whether it counts
    "after-win",  # we know
    "after-check",  # the oldest kept snapshot was verified
    "after-drop",  # old manifests are gone
    "after-truncate-data",
    "after-truncate-ledger",
    "after-delete",  # files that nobody names are gone
    "after-publish",  # the group offset is published
)
"""The names that `crash` is called with, in order: one between every two steps."""

QUIET_RECORDS = 1000
"""So many ledger records without a commit are rolled up all the same, so that a quiet ledger is truncated, too."""


_BEFORE_PUT = frozenset(CRASH_POINTS[: CRASH_POINTS.index("after-put")])


def run_round(
    log: Log,
    settings: MaterializerSettings,
    *,
    verified: VerifiedRuns | None = None,
    is_given_up: Callable[[], bool] = lambda: False,
    disk: DiskHook = no_faults,
    seams: Seams = REAL,
) -> RoundOutcome:
    """Run one round to its end.

    `verified` is what this process keeps from round to round. `is_given_up` is asked between steps and between tables;
    once it says so before the put, the round ends. `disk` is asked before every step on the scratch directory's files.
    `seams.crash` is called at each of CRASH_POINTS; `seams.wall_clock` gives the manifest's time and the durations.

    Raises Damaged (DataLoss, Corrupt, UnknownFormat), UnsafeTopic, IdentityChanged, ConfigError for the scratch
    directory, Unavailable, RoundGivenUp among it.
    """
    steps = _Steps(seams.crash, is_given_up, disk)
    try:
        return _round(log, settings, seams, verified or VerifiedRuns(), steps)
    except Damaged:
        log.manifests.check_place()  # In another directory, all that the log needs is missing.
        raise


def _round(
    log: Log,
    settings: MaterializerSettings,
    seams: Seams,
    verified: VerifiedRuns,
    steps: "_Steps",
) -> RoundOutcome:
    started_s = seams.wall_clock()
    log.verify(ROLLING_UP)
    if not verified.may_truncate:
        prove_truncation(log)
        verified.may_truncate = True
    newest = log.manifests.newest()
    number = newest.manifest.number if newest else 0
    steps.passed("after-newest")
    try:
        check_ledger(log, newest.manifest if newest else None)
        target = choose_target(log, newest.manifest if newest else None, settings)
        steps.passed("after-fold")
        if not _has_news(newest, target):
            check_data(log, newest.manifest if newest else None, target.state)
            return SkippedRound(number=number, position=newest.manifest.position if newest else 0)

        def roll_up(target: Target) -> RoundOutcome:
            with scratch_directory(settings.scratch, new_id=seams.new_id, disk=steps.disk) as scratch:
                work = _Work(log, settings, newest, target, scratch, steps, seams)
                return work.run(started_s, verified)

        try:
            return roll_up(target)
        except Damaged:
            farther = _past_acceptances(log, newest, target, settings)
            if farther is None:
                raise
        return roll_up(farther)
    except (OffsetGone, NotFound) as error:
        now = log.manifests.newest()
        if now is not None and now.manifest.number > number:
            return LostRound(number=now.manifest.number)
        raise _loss(error, number) from error


def newest_number(log: Log) -> int:
    """The number of the newest manifest now, 0 before the first."""
    return max(log.manifests.numbers(), default=0)


def _has_news(newest: StoredManifest | None, target: Target) -> bool:
    return bool(target.commits) or target.position - (newest.manifest.position if newest else 0) >= QUIET_RECORDS


def _past_acceptances(
    log: Log, newest: StoredManifest | None, target: Target, settings: MaterializerSettings
) -> Target | None:
    """The target without a budget, if a person accepted losses between the target and the ledger's end.

    A snapshot knows of losses that were accepted below its position only. So one that the budget ends between a lost
    change set and its acceptance can never be made.
    """
    if not target.behind:
        return None
    everything = replace(settings, budget_bytes=sys.maxsize, budget_commits=sys.maxsize)
    farther = choose_target(log, newest.manifest if newest else None, everything)
    return None if farther.state.accepted == target.state.accepted else farther


def _loss(error: StatelogError, number: int) -> StatelogError:
    if isinstance(error, OffsetGone):
        return error
    hint = "Restore it from a copy, or remove the newest manifest's claim by recovering an older snapshot"
    return DataLoss(
        f"what the newest manifest needs is gone: {error.message}", hint=hint, manifest=number, **error.facts
    )


class _Steps:
    """The gaps between steps: where tests let a round die, and where one that was given up ends."""

    def __init__(self, crash: CrashPoint, is_given_up: Callable[[], bool], disk: DiskHook) -> None:
        self.disk = disk
        self._crash = crash
        self._is_given_up = is_given_up

    def passed(self, point: str) -> None:
        self._crash(point)
        if point in _BEFORE_PUT:
            self.go_on()

    def go_on(self) -> None:
        if self._is_given_up():
            raise RoundGivenUp("the round was given up, and ended before its put")


@dataclass(frozen=True, slots=True)
class _Won:
    """A manifest of ours that stands, and what it lets us remove."""

    manifest: Manifest
    cleanup_plan: CleanupPlan


class _Work:
    """The writing half of a round, from its target on."""

    def __init__(
        self,
        log: Log,
        settings: MaterializerSettings,
        newest: StoredManifest | None,
        target: Target,
        scratch: Path,
        steps: _Steps,
        seams: Seams,
    ) -> None:
        self._log = log
        self._settings = settings
        self._newest = newest
        self._base = newest.manifest if newest else None
        self._target = target
        self._scratch = scratch
        self._steps = steps
        self._seams = seams
        self._plan = plan_replay(target.commits, range(log.descriptor.partitions), target.state.accepted)

    def run(self, started_s: float, verified: VerifiedRuns) -> RoundOutcome:
        check_data(self._log, self._base, self._target.state)
        # Asked for after the target: a value schema is stored before the first chunk that uses it.
        schema = self._log.value_schemas.newest()
        runs = self._base.runs if self._base else ()
        draft = Draft(self._log, schema, self._scratch, self._seams.nonce, runs, self._steps.go_on, self._steps.disk)
        rows, replay_s = self._timed(lambda: self._write_delta(draft))
        self._steps.passed("after-delta")
        merged = merge_runs(self._log, draft, self._settings.fanout)
        self._steps.passed("after-merge")
        uploaded = draft.upload()
        lost, read_back_s = self._timed(lambda: self._read_back(draft, uploaded))
        if lost:
            return lost
        verified.add(uploaded)
        self._steps.passed("after-upload")
        won = self._put(draft, verified)
        if isinstance(won, LostRound):
            return won
        removed = run_cleanup(self._log, won.manifest, won.cleanup_plan, self._settings, verified, self._steps.passed)
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
        tables = delta_tables(
            self._log, self._plan, draft.schema, self._scratch, drop_deletes=first, disk=self._steps.disk
        )
        start = 0 if first else draft.runs[-1].end_position
        run = draft.write(tables, start, self._target.position, level=0)
        draft.runs.append(run)
        return run.rows

    def _read_back(self, draft: Draft, uploaded: Iterable[RunRef]) -> LostRound | None:
        """Read what was uploaded. Nobody names it yet: what did not arrive whole is no damage, and is made anew."""
        try:
            draft.read_back(uploaded)
        except (CorruptRun, NotFound) as error:
            newest = newest_number(self._log)
            if newest > (self._base.number if self._base else 0):
                return LostRound(number=newest)  # And its winner cleaned up.
            raise StoreUnavailable(
                f"a run did not arrive whole: {error.message}",
                hint="Nothing names it, and the next round writes it anew; if it goes on, look at network and disks",
                **error.facts,
            ) from error
        return None

    def _put(self, draft: Draft, verified: VerifiedRuns) -> _Won | LostRound:
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
        cleanup_plan = plan_cleanup(self._log, listing, own, self._settings, verified.manifests)
        self._steps.passed("after-list")
        if not self._log.manifests.put(own):
            return LostRound(number=own.number)
        self._steps.passed("after-put")
        newest = newest_number(self._log)
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
