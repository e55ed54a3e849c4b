"""`Planner`: plans states: takes the target once, folds the ledger to it, and checks that the log reaches back.

Owns the choice of the snapshot, and the checks of a plan. Whether the snapshot is there and the log reaches back is
checked again once the lease is written: what is found then stays as long as the lease does. Anchors are compared
when a plan is made, because what is read is verified record by record anyway. Never reads a run or a chunk.

Invariants:
- A plan is never older than what this process has seen through this log, nor than what the caller knows of.
- The target is taken once. It moves only if the newest state was asked for and the log no longer holds that target.
- If the log does not reach back to the snapshot before one that failed, that one's error is what the caller gets.
- The first plan may begin at a snapshot that this process read a moment ago: if it is gone by now, the check under the
  lease finds that, and planning starts over.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

from statelog.errors import BeyondEnd, CorruptRun, NotFound, OffsetGone, StatelogError
from statelog.reading.commits import Commits, Folded, Folding
from statelog.reading.plan import At, AtPosition, Plan, make_plan, wanted_key_groups
from statelog.reading.retained_history import Manifests, RetainedHistory, Snapshots
from statelog.schemas.ledger.place import Place
from statelog.schemas.ledger.records import given_up, not_given_up
from statelog.schemas.snapshot.manifest import Manifest
from statelog.schemas.topic_policy import READING
from statelog.storage.kafka import OffsetRange
from statelog.storage.ledger_client import ValidCommit
from statelog.storage.log.evidence import check_anchors, check_data_anchors
from statelog.storage.log.ledger import check_reaches
from statelog.storage.log.log import Log

_NOT_HELD_HINT = "Ask for a position from the oldest to the newest, or for a checkpoint committed in between"
_PASSED_HINT = "The log was truncated since this state was planned and shown: recover again, into an empty target"


class Planner:
    """Makes plans for one request until one of them can be carried out.

    `seen` is what the caller remembers of the ledger: no newest state lies below it. `is_alone`: a snapshot is planned,
    and nothing behind it, without Kafka.
    """

    def __init__(
        self,
        log: Log,
        at: At | None,
        key_groups: frozenset[int] | None,
        *,
        seen: Collection[Place] = (),
        is_alone: bool = False,
    ) -> None:
        self.log = log
        self.at = at
        self.key_groups = wanted_key_groups(key_groups, log.descriptor)
        self.snapshots = Snapshots(log)
        self._seen = seen
        self._is_alone = is_alone
        self._target: int | None = None
        self._is_pinned = False
        self._max_age_s = log.look_again_s

    def plan(self) -> Plan:
        """The best plan as things are now.

        Raises NotFound if the log does not hold the state asked for (and says what it holds), OffsetGone if truncation
        was faster than we (plan again), the error of a failed snapshot if there is no way around it, IdentityChanged,
        AnchorMismatch if records were replaced, BeyondEnd, CorruptLedger, UnknownFormat, Unavailable.
        """
        if self._is_alone:
            return self._plan_alone(self.snapshots.listed())
        self.log.verify(READING)
        max_age_s, self._max_age_s = self._max_age_s, 0.0
        with self.log.asking_who_answers():
            history = RetainedHistory(
                self.log, self.key_groups, seen=self._seen, snapshots=self.snapshots, max_age_s=max_age_s
            )
            target = self._take_target(history)
            base = next((manifest for manifest in history.manifests if manifest.position <= target), None)
            try:
                return self._plan_from(base, target, history)
            except OffsetGone as error:
                raise self._out_of_reach(error, base, history) from error

    def pin(self, position: int) -> None:
        """From now on only this position is planned, also if the newest state was asked for."""
        self.at, self._target, self._is_pinned = AtPosition(position), position, True

    # ---- target

    def _take_target(self, history: RetainedHistory) -> int:
        newest = next(iter(history.manifests), None)
        passed = self.at is None and newest is not None and newest.position > (self._target or 0)
        if self._target is None or passed:
            found = history.end_position if self.at is None else history.find(self.at)
            if found is None:
                raise self._not_held(history)
            self._target = found
        return self._target

    # ---- plan

    def _plan_from(self, base: Manifest | None, target: int, history: RetainedHistory) -> Plan:
        """The fold at the target, and what leads there."""

        def make(commits: list[ValidCommit], folded: Folded) -> Plan:
            return plan_of(self.log, Folding(base, commits, folded), self.key_groups)

        with Commits(self.log, base) as ledger:
            plan, there = checked_plan(self.log, history, ledger, target, make)
        check_data_anchors(self.log, base, plan.partitions, plan.state.accepted, there)
        return plan

    def _plan_alone(self, manifests: Manifests) -> Plan:
        """The newest snapshot that can be read, or the one asked for."""
        found = list(manifests)
        wanted = self.at.position if isinstance(self.at, AtPosition) else None
        chosen = next((one for one in found if wanted in (None, one.position)), None)
        if chosen is None:
            raise self.snapshots.failure or NotFound(
                f"the log {self.log.name} has no such snapshot",
                log=self.log.name,
                url=self.log.store.url,
                positions=", ".join(str(one.position) for one in found) or None,
            )
        return replace(make_plan(self.log.descriptor, chosen, chosen, (), self.key_groups), is_alone=True)

    # ---- what cannot be

    def _out_of_reach(self, error: OffsetGone, base: Manifest | None, history: RetainedHistory) -> StatelogError:
        """Why there is no plan: a failed snapshot that nothing replaces, a state that is not kept, or truncation."""
        if self.snapshots.failure:
            return self.snapshots.failure
        if base is None and self.at is not None and next(iter(history.manifests), None) is not None:
            return self._not_held(history)
        return error

    def _not_held(self, history: RetainedHistory) -> NotFound:
        positions = [manifest.position for manifest in history.manifests]
        return NotFound(
            f"the log {self.log.name} does not hold the state at {self.at}",
            log=self.log.name,
            oldest_position=0 if history.holds_mark else min(positions, default=history.end_position),
            newest_position=history.end_position,
            snapshots=len(positions),
            hint=_PASSED_HINT if self._is_pinned else _NOT_HELD_HINT,
        )


def checked_plan(
    log: Log,
    history: RetainedHistory,
    ledger: Commits,
    end_position: int,
    make: Callable[[list[ValidCommit], Folded], Plan],
) -> tuple[Plan, dict[int, OffsetRange]]:
    """The plan that `make` makes of the commits up to a position and the ledger there, and the data's offsets.

    It is made once the ledger was folded to its end, and the ledger is compared as it is there. Raises OffsetGone if
    the log does not hold what the plan reads, and as `check_reach` and `Commits.check`.
    """
    commits, folded = ledger.read_to(end_position), ledger.folded
    ledger.pass_to(history.end_position)
    plan = make(commits, folded)
    there = data_offsets(log, plan)
    ledger.check(history.seen, there=there)
    check_reach(plan, LogOffsets(there, history.ledger), log.name)
    return plan, there


def plan_of(log: Log, folding: Folding, key_groups: frozenset[int] | None) -> Plan:
    """The plan of the state at the end of a fold whose ledger and anchors were checked just now, as an Open does."""
    bodies = (valid.commit.read_body() for valid in folding.commits)  # Decoded one by one: there may be many.
    return make_plan(log.descriptor, folding.base, folding.folded, bodies, key_groups)


# ---- the checks of a plan


class SnapshotFailed(Exception):
    """A run of the snapshot cannot be read; `error` is what callers get if there is no way around it.

    `is_copy` says that it was a local copy: to read the run once more may succeed, and the snapshot is not to blame.
    """

    def __init__(self, error: CorruptRun | NotFound) -> None:
        super().__init__(str(error))
        self.error = error
        self.is_copy = False


class LogOffsets(NamedTuple):
    """Log start and log end, half-open, of the data partitions and of the ledger."""

    data: Mapping[int, OffsetRange]
    ledger: OffsetRange


def data_offsets(log: Log, plan: Plan) -> dict[int, OffsetRange]:
    """Of all partitions, now. What the plan knows to have been there is asked for again before it is taken for lost."""
    return log.data_offsets(at_least=not_given_up(plan.state.accepted, plan.state.committed_positions))


def check_held(log: Log, plan: Plan) -> LogOffsets | None:
    """Whether the log and the store still hold what the plan reads; the offsets, or None for a snapshot alone.

    Raises OffsetGone, after which planning again may help, BeyondEnd, BrokerUnavailable, StoreUnavailable.
    """
    if plan.manifest is not None:
        check_manifest(log, plan.manifest)
    if plan.is_alone:
        return None
    ledger = log.kafka.offsets(log.ledger_topic, [0], at_least={0: plan.position})[0]
    found = LogOffsets(data_offsets(log, plan), ledger)
    check_reach(plan, found, log.name)
    return found


def check_plan(log: Log, plan: Plan) -> None:
    """As `check_held`, and whether the records are still those that the snapshot was built on.

    Raises AnchorMismatch if records were replaced; OffsetGone, BeyondEnd, BrokerUnavailable, StoreUnavailable.
    """
    found = check_held(log, plan)
    if found is not None:
        anchors = plan.manifest.anchors if plan.manifest else ()
        check_anchors(log, [one for one in anchors if one.topic == "ledger"], there={0: found.ledger})
        check_data_anchors(log, plan.manifest, plan.partitions, plan.state.accepted, found.data)


def check_manifest(log: Log, manifest: Manifest) -> None:
    """Whether a snapshot is still there. Raises OffsetGone if it was cleaned up."""
    try:
        found = log.manifests.read(manifest.number).manifest.nonce
    except NotFound:
        found = b""
    if found != manifest.nonce:
        raise OffsetGone(
            "the snapshot was superseded and cleaned up while the recovery was planned",
            log=log.name,
            manifest=manifest.number,
            hint="Recover again",
        )


def check_reach(plan: Plan, offsets: LogOffsets, log: str) -> None:
    """Compare a plan with what the log holds now.

    Raises BeyondEnd if the ledger ends below the position, or a partition below its committed position without an
    accepted loss; OffsetGone if a partition starts above what is to be read, or the ledger above what a follower
    reads next, which planning again may mend.
    """
    check_reaches(log, offsets.ledger.end, plan.position)
    if plan.position < offsets.ledger.start and not plan.is_of_changes:
        raise OffsetGone(
            "the ledger starts above the position of the plan",
            log=log,
            position=plan.position,
            log_start=offsets.ledger.start,
            hint="The log was truncated past this state: recover again",
        )
    for partition in plan.partitions:
        _check_end(plan, partition, offsets.data[partition].end, log)
    for partition, first_offset in plan.next_offsets.items():
        log_start = offsets.data[partition].start
        if log_start > first_offset:
            raise OffsetGone(
                "the log starts above an offset that has to be replayed",
                log=log,
                partition=partition,
                needed_offset=first_offset,
                log_start=log_start,
                manifest=plan.manifest_number,
                position=plan.position,
                hint="More was truncated than the snapshots cover: restore the topic or a newer manifest",
            )


def _check_end(plan: Plan, partition: int, end_offset: int, log: str) -> None:
    committed = plan.state.committed_positions.get(partition, 0)
    if committed > end_offset and not given_up(plan.state.accepted, partition, end_offset, committed):
        raise BeyondEnd(
            "a partition ends below an offset that was committed",
            log=log,
            partition=partition,
            end_offset=end_offset,
            committed_position=committed,
            hint="Acknowledged records are gone: restore the topic, or accept the loss",
        )
