"""`plan_changes`: plans the committed changes between two states of a log. Run once, by the driver of the readers.

Never reads a run or a chunk. What was truncated is a typed error that says what the log holds.
"""

from collections.abc import Collection, Iterable

from statelog.errors import Misuse, OffsetGone
from statelog.reading.at import Bound
from statelog.reading.commits import Commits
from statelog.reading.hold import planned_anew
from statelog.reading.plan import Plan, make_change_plan, wanted_key_groups
from statelog.reading.preflight import check_reach, log_offsets
from statelog.reading.reach import Reach
from statelog.schemas.ledger.place import Place
from statelog.schemas.topic_policy import READING
from statelog.storage.ledger_client import LedgerBase
from statelog.storage.log.log import Log

__all__ = ["plan_changes"]


def plan_changes(
    log: Log,
    start: Bound | None = None,
    end: Bound | None = None,
    *,
    key_groups: Iterable[int] | None = None,
    value_schema_id: int | None = None,
    base: LedgerBase | None = None,
    seen: Collection[Place] = (),
) -> Plan:
    """The changes of all commits behind the state `start` and up to the state `end`.

        plan = plan_changes(log, AtPosition(0), AtCheckpoint("web", 7))
        for changes in read_changes(log, plan):
            print(changes.num_rows)

    `start` None means the oldest position that the log holds, `end` None the newest; the newest is never older than
    what this `log` object has seen, nor than `seen`, the places that the caller remembers. `key_groups` None means all.
    Values come in the value schema `value_schema_id`, None for the newest. `base` is a fold of the ledger that the
    caller kept (`Commits.folded`), for a start below every snapshot that is left. Nothing holds what is planned.

    Raises NotFound if the log does not hold the range (and says what it holds), Misuse if it ends before it begins,
    KeyGroupMismatch, Damaged, Unavailable.
    """
    log.verify(READING)
    wanted = wanted_key_groups(key_groups, log.descriptor)

    def attempt() -> Plan:
        return _plan(log, Reach(log, wanted, base, seen=seen), start, end, wanted, value_schema_id)

    with log.asking_who_answers():
        # If the oldest position is asked for, truncation may go on once it was looked up.
        return planned_anew(attempt) if start is None else attempt()


def _plan(
    log: Log,
    reach: Reach,
    start: Bound | None,
    end: Bound | None,
    key_groups: frozenset[int] | None,
    value_schema_id: int | None,
) -> Plan:
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
            folded = ledger.folded
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
        folded,
        start_position=start_position,
        value_schema_id=schema_id,
        key_groups=key_groups,
        accepted=accepted,
    )
    try:
        check_reach(plan, log_offsets(log, plan), log.name)
    except OffsetGone as error:
        raise reach.not_held(f"changes from position {start_position} on") from error
    return plan
