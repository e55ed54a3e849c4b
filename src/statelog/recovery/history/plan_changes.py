"""`plan_changes`: plans the committed changes between two states of a log. Run once, by the driver of the readers.

Never reads a run or a chunk. What was truncated is a typed error that says what the log holds.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace

from statelog.errors import Misuse, NotFound, OffsetGone
from statelog.reading.commits import Commits
from statelog.recovery.history.bounds import Bound
from statelog.recovery.history.change_plan import ChangePlan, make_change_plan
from statelog.recovery.history.reach import Reach
from statelog.recovery.planning.planner import log_offsets
from statelog.recovery.planning.recovery_plan import RecoveryPlan, check_reach, partitions_of, wanted_key_groups
from statelog.schemas.ledger.place import Place
from statelog.schemas.ledger.state import LedgerState
from statelog.schemas.topics.rights import READING
from statelog.seams import REAL, Seams
from statelog.storage.held_lease import LeaseHolder
from statelog.storage.ledger_client import LedgerBase
from statelog.storage.log.log import Log

__all__ = ["hold_changes", "plan_changes"]

_ATTEMPTS = 5


def plan_changes(
    log: Log,
    start: Bound | None = None,
    end: Bound | None = None,
    *,
    key_groups: Iterable[int] | None = None,
    value_schema_id: int | None = None,
    base: LedgerBase | None = None,
    seen: Collection[Place] = (),
) -> ChangePlan:
    """The changes of all commits behind the state `start` and up to the state `end`.

        plan = plan_changes(log, AtPosition(0), AtCheckpoint("web", 7))
        for changes in read_changes(log, plan):
            print(changes.num_rows)

    `start` None means the oldest position that the log holds, `end` None the newest; the newest is never older than
    what this `log` object has seen, nor than `seen`, the places that the caller remembers. `key_groups` None means all.
    Values come in the value schema `value_schema_id`, None for the newest. `base` is a fold of the ledger that the
    caller kept (`Commits.folded`), for a start below every snapshot that is left. Nothing holds what is planned:
    `hold_changes` does.

    Raises NotFound if the log does not hold the range (and says what it holds), Misuse if it ends before it begins,
    KeyGroupMismatch, Damaged, Unavailable.
    """
    log.verify(READING)
    wanted = wanted_key_groups(key_groups, log.descriptor)
    for attempt in range(_ATTEMPTS):
        reach = Reach(log, wanted, base, seen=seen)
        try:
            return _plan(log, reach, start, end, wanted, value_schema_id)
        except (NotFound, OffsetGone):
            if start is not None or attempt == _ATTEMPTS - 1:
                raise
            # The oldest position was asked for, and truncation went on since it was looked up: look again.
    raise AssertionError("the last attempt returns or raises")


def hold_changes(
    log: Log, plan: ChangePlan, *, holder: str, ttl_s: float, wanted: bool = True, seams: Seams = REAL
) -> LeaseHolder:
    """Hold what a plan reads with a lease, which the caller renews and releases; no ledger is held. Without a `wanted`
    lease it is only checked that the log still has it all.

    Raises OffsetGone, with no lease left, if the log was truncated past the plan, StoreUnavailable.
    """
    lease = LeaseHolder.claim(
        log.store,
        holder=holder,
        manifest_number=0,
        position=plan.end_position,
        next_offsets=plan.next_offsets,
        ttl_s=ttl_s,
        seams=seams,
        wanted=wanted,
    ).__enter__()
    try:
        _check_start(log, plan)
    except BaseException:
        lease.release()
        raise
    return lease


def _plan(
    log: Log,
    reach: Reach,
    start: Bound | None,
    end: Bound | None,
    key_groups: frozenset[int] | None,
    value_schema_id: int | None,
) -> ChangePlan:
    end_position = reach.end_position if end is None else reach.resolve(end)
    start_position = reach.oldest_position if start is None else reach.resolve(start)
    if start is None:
        start_position = min(start_position, end_position)
    if start_position > end_position:
        raise Misuse(
            "the range of changes ends before it begins",
            start_position=start_position,
            end_position=end_position,
            hint="Give an end behind the start, or none for the newest",
        )
    try:
        with Commits(log, reach.base_for(start_position), start_position) as ledger:
            commits = ledger.read_to(end_position)
            state = ledger.folded.state
            ledger.pass_to(reach.end_position)
            accepted = ledger.accepted
            ledger.check(reach.seen)
    except OffsetGone as error:
        raise reach.not_held(f"changes from position {start_position} on") from error
    # Asked for behind the last commit: a schema is stored before the first chunk that needs it.
    schema_id = log.value_schemas.newest().id if value_schema_id is None else value_schema_id
    plan = make_change_plan(
        log.descriptor,
        commits,
        start_position=start_position,
        end_position=end_position,
        value_schema_id=schema_id,
        key_groups=key_groups,
        accepted=accepted,
    )
    try:
        _check(log, plan, replace(state, accepted=accepted))
    except OffsetGone as error:
        raise reach.not_held(f"changes from position {start_position} on") from error
    return plan


def _check(log: Log, plan: ChangePlan, state: LedgerState) -> None:
    """Whether the log holds the range whole, by the checks of every recovery. Raises OffsetGone, BeyondEnd."""
    partitions = partitions_of(plan.key_groups, log.descriptor)
    as_recovery = RecoveryPlan(
        manifest=None, state=state, key_groups=plan.key_groups, partitions=partitions, runs=(), replay=plan.replay
    )
    offsets = log_offsets(log, as_recovery)
    check_reach(as_recovery, offsets, log.name)


def _check_start(log: Log, plan: ChangePlan) -> None:
    held = log.data_offsets() if plan.next_offsets else {}
    for partition, offset in plan.next_offsets.items():
        if held[partition].start > offset:
            raise OffsetGone(
                "the log was truncated past the changes that were planned",
                log=log.name,
                partition=partition,
                needed_offset=offset,
                log_start=held[partition].start,
                hint="Plan again, from a later start",
            )
