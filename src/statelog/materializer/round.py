"""One round: roll the committed tail up into a run, publish it as the next manifest, and clean up.

`docs/protocol-materialize.md` numbers the steps, and says what a crash after each leaves behind. Any number of rounds
may run at once, on any machines, stalled for any time: the slot of the next manifest has one winner.

Invariants:
- The newest manifest is read first, and everything follows from it. Only the put of the next one has an effect.
- Every file that a manifest names was uploaded and read back before its put.
- A loser deletes nothing, and its uploads are never used. A round that fails between its upload and its put deletes its
  own uploads.
- A missing file is an error only while the manifest that names it is still the newest; else the round is lost. It is
  damage only while the directory is the log's.
- No round refuses topic settings by which Kafka deletes committed records: its snapshot saves those. The outcome names
  the settings.
- The budget never ends a round between a loss and the ledger record with which a person accepted it.
- A round that was given up ends at its next step before the put. After the put it counts, and is finished.
"""

import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import NamedTuple

from statelog.closing import undone_by_errors
from statelog.environment import current_environment
from statelog.errors import (
    ConfigError,
    CorruptRun,
    Damaged,
    DataLoss,
    NotFound,
    OffsetGone,
    RoundGivenUp,
    StatelogError,
)
from statelog.log import Log
from statelog.log.log import check_log
from statelog.log.making import prove_truncation
from statelog.materializer.cleanup import CleanupPlan, VerifiedRuns, plan_cleanup, run_cleanup
from statelog.materializer.engine import EngineMaker, LocalEngine, Written, not_whole
from statelog.materializer.events import log_event, shortfalls
from statelog.materializer.merging import BackgroundMerge, Merging
from statelog.materializer.outcome import Cleanup, CompletedRound, LostRound, RoundOutcome, SkippedRound
from statelog.materializer.publication import other_root, publish, published
from statelog.materializer.settings import MaterializerSettings, tuning_of
from statelog.materializer.target import RoundTarget, check_data, check_ledger, choose_target
from statelog.materializer.tasks import TaskOutput
from statelog.materializer.work import RoundWork, scratch_directory
from statelog.reading import RENEW_SHARE
from statelog.schemas.changes.replay_plan import plan_replay
from statelog.schemas.key_groups import MAX_KEY_GROUPS
from statelog.schemas.ledger.place import LastRecord
from statelog.schemas.names import DESCRIPTOR_PATH, MANIFESTS, settings_or
from statelog.schemas.snapshot.manifest import Manifest, next_manifest
from statelog.schemas.snapshot.run_ref import Cuts, RunRef
from statelog.schemas.topic_policy import ROLLING_UP, ROUND

QUIET_RECORDS = 1000
"""So many ledger records without a commit make a round, so that a quiet ledger is truncated, too."""

CRASH_POINTS = (
    "after-newest",  # the newest manifest was read, nothing written
    "after-fold",  # the target and its commits are known
    "after-delta",  # the delta run is in the scratch directory
    "after-merge",  # merged runs are, too
    "after-upload",  # the new runs are in the store, and were read back
    "after-list",  # the files to remove are decided
    "after-put",  # the manifest exists; it is unknown whether it counts
    "after-win",  # it counts
    "after-check",  # the oldest retained snapshot was verified
    "after-cap",  # subscriptions over their cap were ended
    "after-drop",  # old manifests are deleted
    "after-truncate-data",
    "after-truncate-ledger",
    "after-delete",  # files that no manifest names are deleted
    "after-publish",  # the group offset is published, unless that failed
)
"""The names that `Environment.crash` is called with, in order: one between every two steps."""

_BEFORE_PUT = frozenset(CRASH_POINTS[: CRASH_POINTS.index("after-put")])


def run_round(
    log: Log, settings: MaterializerSettings | None = None, *, make_engine: EngineMaker = LocalEngine
) -> RoundOutcome:
    """Run one round to its end, for a scheduler of your own.

    The outcome, and a log line of `statelog.materializer`, name what the round could not do besides its snapshot.
    `make_engine` makes the engine that writes the runs, by default threads of this process.

    Raises Damaged (DataLoss, Corrupt, UnknownFormat), UnsafeTopic, IdentityChanged, ConfigError for the scratch
    directory, Unavailable.

        >>> with Writer(log, "web") as writer:
        ...     writer.put(b"alice", b"1")
        ...     last = writer.commit()
        >>> run_round(log).rows
        1
    """
    check_log(log)
    outcome = Round(log, settings_or(settings, MaterializerSettings()), make_engine=make_engine).run()
    for event in shortfalls(log.name, outcome, at_s=0.0):
        log_event(event)
    return outcome


class Delta(NamedTuple):
    """The new runs of a round, what they cover, and the changes and bytes that were read to make them."""

    output: TaskOutput
    written: Written = Written(runs=(), seconds=0.0)
    changes: int = 0
    size_bytes: int = 0


class Round:
    """One round, for the daemon and for tests; `LogCopy` is one that takes its changes from another log.

    verified     what a process has verified in earlier rounds
    make_engine  makes the engine that writes the runs
    beside       does merges that are too large for a round; without it, the round does them
    is_given_up  is called between steps and between tables; once it returns true before the put, the round ends
    """

    def __init__(
        self,
        log: Log,
        settings: MaterializerSettings,
        *,
        verified: VerifiedRuns | None = None,
        make_engine: EngineMaker = LocalEngine,
        beside: BackgroundMerge | None = None,
        is_given_up: Callable[[], bool] = lambda: False,
    ) -> None:
        self._log = log
        self._settings = settings
        self._verified = verified or VerifiedRuns()
        self._make_engine = make_engine
        self._beside = beside
        self._is_given_up = is_given_up
        self._environment = environment = current_environment()
        self._started_s = environment.clock()
        self._base: Manifest | None = None
        self._may_be_put = False
        self._runs: tuple[RunRef, ...] = ()
        """The runs that the next manifest will name."""
        self._work: RoundWork
        self._merging: Merging

    def run(self) -> RoundOutcome:
        """Run the round to its end, once. Raises the errors of `run_round`, and RoundGivenUp."""
        try:
            with self._environment.step("round", self._log.name):
                return self._roll_up_newest()
        except Damaged:
            self._log.manifests.check_place()  # Another directory would lack all files that the log needs.
            raise

    # ---- between steps, where a round that was given up ends

    def _passed(self, point: str) -> None:
        """Mark a step as done. Raises RoundGivenUp before the put, and the errors of the environment's `crash`."""
        self._environment.crash(point)
        self._go_on(is_put=point not in _BEFORE_PUT)

    def _go_on(self, *, is_put: bool = False) -> None:
        """Report progress. Raises RoundGivenUp if the round was given up before its put."""
        if self._is_given_up() and not is_put:
            raise RoundGivenUp("the round was given up before its put")

    # ---- which tail

    @property
    def _number(self) -> int:
        return self._base.number if self._base else 0

    def _roll_up_newest(self) -> RoundOutcome:
        if not self._log.verify_now(ROUND).is_by_kafka:
            self._check_may_truncate()
        self._base = self._log.manifests.newest()
        self._passed("after-newest")
        try:
            return self._roll_up_tail()
        except (OffsetGone, NotFound) as error:
            newest = self._newest_number()
            if newest > self._number:
                return LostRound(number=newest)
            if isinstance(error, OffsetGone):
                raise
            raise DataLoss(
                f"files that the newest manifest names are missing: {error.message}",
                hint="Restore them from a copy of the store, or recover an older snapshot",
                manifest=self._number,
                **error.facts,
            ) from error

    def _check_may_truncate(self) -> None:
        """Raise ConfigError if records cannot be deleted, and Kafka does not delete them by age."""
        try:
            self._log.verify(ROLLING_UP)
            if not self._verified.may_truncate:
                prove_truncation(self._log.kafka, (self._log.data_topic, self._log.ledger_topic))
                self._verified.may_truncate = True
        except ConfigError:
            if not self._log.truncation().is_by_kafka:
                raise

    def _roll_up_tail(self) -> RoundOutcome:
        end_position = check_ledger(self._log, self._base)
        target = self._choose_target(end_position)
        self._passed("after-fold")
        if not self._has_news(target):
            check_data(self._log, self._base, target)
            position = self._base.position if self._base else 0
            return SkippedRound(number=self._number, position=position, deletions=self._log.deletions)
        try:
            return self._roll_up_to(target)
        except Damaged as error:
            again = None if self._may_be_put else self._other_target(error, target, end_position)
            if again is None:
                raise
        return self._roll_up_to(again)

    def _other_target(self, error: Damaged, target: RoundTarget, end_position: int) -> RoundTarget | None:
        """Return the target to try after this one has failed; None if there is none."""
        beyond = self._past_acceptances(target)
        if beyond is None and isinstance(error, OffsetGone) and target.before:
            # The records read only for comparison may be truncated since, if the cleanup of our base was late.
            return replace(self._choose_target(end_position), before={})
        return beyond

    def _is_renewal_due(self) -> bool:
        """Return whether a manifest without news is due, because Kafka deletes by age what the retained ones need."""
        retention_s, base = self._log.retention_s, self._base
        if retention_s is None or base is None:
            return retention_s is not None
        # A manifest from the future was made by a clock that was ahead.
        return not 0 <= self._environment.wall_clock() - base.created_s < retention_s * RENEW_SHARE

    def _past_acceptances(self, target: RoundTarget) -> RoundTarget | None:
        """Return the target without a budget, if a person accepted losses between the target and the ledger's end.

        A snapshot knows only of losses accepted below its position. So no snapshot can end between a lost change set
        and its acceptance.
        """
        if not target.behind:
            return None
        unbounded = replace(tuning_of(self._settings), budget_commits=sys.maxsize)
        everything = replace(self._settings, budget_bytes=sys.maxsize, _tuning=unbounded)
        beyond = choose_target(self._log, self._base, everything, self._log.ledger.end())
        return None if beyond.state.accepted == target.state.accepted else beyond

    # ---- the next manifest

    def _roll_up_to(self, target: RoundTarget) -> CompletedRound | LostRound:
        self._runs = self._base.runs if self._base else ()
        merged = self._beside.take(self._runs) if self._beside else None
        with merged or nullcontext(), scratch_directory(self._settings.scratch, self._environment) as scratch:
            self._work = work = RoundWork(
                log=self._log,
                scratch=scratch,
                go_on=self._go_on,
                environment=self._environment,
                threads=self._settings.threads_used,
                fold_bytes=self._settings.fold_bytes,
            )
            self._merging = Merging(work, self._settings, self._make_engine(work), self._beside, merged)
            return self._publish_next(target)

    def _publish_next(self, target: RoundTarget) -> CompletedRound | LostRound:
        """Write, upload, read back, put, and clean up if the slot is won."""
        check_data(self._log, self._base, target)
        with undone_by_errors(self._delete_uploads):  # An engine may upload runs as it writes them.
            delta = self._write_delta(target)
            self._passed("after-delta")
            self._runs, merged = self._merging.merge(self._runs, delta.output)
            self._passed("after-merge")
            uploaded = self._publish_runs()
            if isinstance(uploaded, LostRound):
                return uploaded
            self._passed("after-upload")
            won = self._put(target, delta.written.last)
        if isinstance(won, LostRound):
            return won
        self._verified.add(uploaded.runs)
        own, cleanup_plan = won
        self._merging.leave(own.runs, delta.output)
        removed, unpublished = self._clean_up(own, cleanup_plan)
        self._passed("after-publish")
        return CompletedRound(
            number=own.number,
            position=own.position,
            commits=len(target.commits),
            changes=delta.changes,
            rows=delta.written.rows,
            size_bytes=sum(run.size_bytes for run in uploaded.runs),
            read_back_s=uploaded.seconds,
            replayed_bytes=delta.size_bytes,
            replay_s=delta.written.seconds,
            snapshot_bytes=sum(run.size_bytes for run in own.runs),
            runs_merged=merged,
            duration_s=self._environment.clock() - self._started_s,
            behind=target.behind,
            cleanup=removed,
            unpublished=unpublished,
            deletions=self._log.deletions,
        )

    def _choose_target(self, end_position: int) -> RoundTarget:
        return choose_target(self._log, self._base, self._settings, end_position)

    def _has_news(self, target: RoundTarget) -> bool:
        since = self._base.position if self._base else 0
        is_long = target.position - since >= QUIET_RECORDS
        is_merged = self._beside is not None and self._beside.is_over  # Its result waits for a manifest.
        return bool(target.commits) or is_long or is_merged or self._is_renewal_due()

    def _output(self, target: RoundTarget) -> TaskOutput:
        """Return what the delta covers. Read the schema after the target: it is stored before a chunk that uses it."""
        return TaskOutput(
            start_position=self._runs[-1].end_position if self._runs else 0,
            end_position=target.position,
            key_groups=range(MAX_KEY_GROUPS),
            level=0,
            value_schema_id=self._log.value_schemas.newest().id,
            drop_deletes=not self._runs,
            cuts=Cuts(max_bytes=tuning_of(self._settings).max_run_bytes),
        )

    def _write_delta(self, target: RoundTarget) -> Delta:
        """Write the committed change sets, if there are any."""
        partitions = range(self._log.descriptor.partitions)
        plan = plan_replay(target.commits, partitions, target.state.accepted, target.before)
        output = self._output(target)
        if plan.is_empty:
            if self._runs or not target.state.committed_positions:
                return Delta(output)
            self._runs, written = self._merging.write_empty(output)  # Messages alone have committed positions, too.
            return Delta(output, written)
        self._runs, written = self._merging.write_delta(plan, self._runs, output)
        return Delta(output, written, plan.changes, plan.size_bytes)

    def _publish_runs(self) -> Written | LostRound:
        """Upload all new runs. No manifest names them yet, so one that does not arrive whole is written again."""
        try:
            return self._merging.publish(self._runs)
        except (CorruptRun, NotFound) as error:
            newest = self._newest_number()
            if newest > self._number:
                return LostRound(number=newest)  # Its winner cleaned up.
            raise not_whole(error) from error

    def _delete_uploads(self) -> None:
        """Delete the uploads of a failed round, to make room for the next. Do nothing once a put was tried: one that
        failed may still take effect.
        """
        if self._may_be_put:
            return
        with suppress(StatelogError):  # A later winner deletes the rest.
            for path in chain(self._new_paths, self._merging.uploaded()):
                self._log.store.delete(path)

    @property
    def _new_paths(self) -> set[str]:
        """The paths of the runs that no manifest names yet."""
        named = self._base.runs if self._base else ()
        return {run.path for run in self._runs} - {run.path for run in named}

    def _put(self, target: RoundTarget, read: Mapping[int, LastRecord]) -> tuple[Manifest, CleanupPlan] | LostRound:
        """List all files, put the next manifest, and list again. Return it, if it won, and the plan of its cleanup.

        `read`: the last record that was read, by data partition.
        """
        anchors = self._log.evidence.take_anchors(target.state, self._base, read)
        listing = list(self._log.store.list())
        if DESCRIPTOR_PATH not in {info.path for info in listing}:
            self._log.manifests.check_place()
        newest = max((MANIFESTS.number(info.path) or 0 for info in listing), default=0)
        if newest > self._number:
            return LostRound(number=newest)  # Our slot may be free again, but files that we would name are deleted.
        own = next_manifest(
            self._base,
            nonce=self._environment.nonce(),
            identity=self._log.descriptor.identity,
            state=target.state,
            anchors=anchors,
            runs=self._runs,
            created_s=self._environment.wall_clock(),
        )
        cleanup_plan = plan_cleanup(self._log, listing, own, self._settings, self._verified, self._new_paths)
        self._passed("after-list")
        self._log.manifests.prove_store()
        self._may_be_put = True
        if not self._log.manifests.put(own):
            return LostRound(number=own.number)
        self._passed("after-put")
        newest = self._newest_number()
        if newest > own.number:
            # We stalled until our slot was cleaned up, and the put found it free again: our manifest is void.
            return LostRound(number=newest)
        self._passed("after-win")
        return own, cleanup_plan

    def _newest_number(self) -> int:
        return max(self._log.manifests.numbers(), default=0)

    def _clean_up(self, own: Manifest, cleanup_plan: CleanupPlan) -> tuple[Cleanup, str]:
        """Clean up and publish, unless another root may be the log's. Return what was removed, and why publishing
        failed.
        """
        last = published(self._log)
        listed = self._log.manifests.listed()  # After `published`, which may name a manifest put a moment ago.
        other = other_root(self._log, own, last, listed, self._verified)
        if other:
            return Cleanup(held_back=other), ""
        environment = replace(self._environment, crash=self._passed)
        work = replace(self._work, go_on=partial(self._go_on, is_put=True), environment=environment)
        removed = run_cleanup(work, own, cleanup_plan, self._settings, self._verified, listed)
        return removed, publish(self._log, own)
