"""Plans of changes: `plan_changes` makes one of those between two states of a log, `split_changes` cuts it for tasks.

Planned once, by the driver of the readers. Never reads a run or a chunk. What was truncated is a typed error that says
what the log holds.

Invariants:
- The parts of a plan have every change of it once, and each part has its changes in the plan's order.
- No part is begun for less than `least_bytes`, except the only one: a task costs more than it saves then.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from statelog.errors import Misuse, OffsetGone
from statelog.reading.commits import Commits, Folded
from statelog.reading.hold import planned_anew
from statelog.reading.plan import At, CommitSpan, Plan, make_change_plan, wanted_key_groups
from statelog.reading.planner import checked_plan
from statelog.reading.retained_history import RetainedHistory
from statelog.schemas.changes.replay_plan import ChangeSetId, ReplayPlan
from statelog.schemas.ledger.handle import Entry
from statelog.schemas.ledger.place import Place
from statelog.schemas.topic_policy import READING
from statelog.storage.ledger_client import LedgerBase, ValidCommit
from statelog.storage.log.log import Log

LEAST_BYTES = 4 << 20
"""What a task of its own is worth: about what it reads while another one starts."""

_Pieces = Mapping[int, Sequence[CommitSpan]]


def plan_changes(
    log: Log,
    start: At | None = None,
    end: At | None = None,
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
        return _plan(log, RetainedHistory(log, wanted, base, seen=seen), start, end, wanted, value_schema_id)

    with log.asking_who_answers():
        # If the oldest position is asked for, truncation may go on once it was looked up.
        return planned_anew(attempt) if start is None else attempt()


def _plan(
    log: Log,
    history: RetainedHistory,
    start: At | None,
    end: At | None,
    key_groups: frozenset[int] | None,
    value_schema_id: int | None,
) -> Plan:
    end_position = history.end_position if end is None else history.resolve(end)
    start_position = history.oldest_position if start is None else history.resolve(start)
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
        with Commits(log, history.base_for(start_position), start_position) as ledger:

            def make(commits: list[ValidCommit], folded: Folded) -> Plan:
                # Asked for behind the last commit: a schema is stored before the first chunk that needs it.
                schema_id = log.value_schemas.newest().id if value_schema_id is None else value_schema_id
                return make_change_plan(
                    log.descriptor,
                    commits,
                    folded,
                    start_position=start_position,
                    value_schema_id=schema_id,
                    key_groups=key_groups,
                    accepted=ledger.accepted,
                )

            return checked_plan(log, history, ledger, end_position, make)[0]
    except OffsetGone as error:
        raise history.not_held(f"changes from position {start_position} on") from error


def split_changes(
    plan: Plan, tasks: int, *, least_bytes: int = LEAST_BYTES, whole_key_groups: bool = True
) -> tuple[Plan, ...]:
    """The plan in at most `tasks` parts of about equal size; none if there is nothing to fetch.

    With `whole_key_groups` all changes of a key group are in one part, in commit order, so there are no more parts than
    partitions. Without, a partition may be cut between two commits. Raises Misuse for less than one task.
    """
    if tasks < 1:
        raise Misuse("changes cannot be read by less than one task", tasks=tasks)
    wanted = max(1, min(tasks, plan.size_bytes // max(1, least_bytes)))
    pieces = _by_partition(plan, wanted) if whole_key_groups else _by_size(plan, wanted)
    return tuple(_part(plan, piece) for piece in pieces if piece)


def _by_partition(plan: Plan, wanted: int) -> list[_Pieces]:
    """Whole partitions, the largest first, each to the part that has least."""
    parts: list[dict[int, Sequence[CommitSpan]]] = [{} for _ in range(wanted)]
    loads = [0] * wanted
    sizes = {partition: sum(span.size_bytes for span in spans) for partition, spans in plan.spans.items()}
    for partition in sorted(sizes, key=lambda one: (-sizes[one], one)):
        least = loads.index(min(loads))
        parts[least][partition] = plan.spans[partition]
        loads[least] += sizes[partition]
    return list(parts)


def _by_size(plan: Plan, wanted: int) -> list[_Pieces]:
    """Partition after partition, cut at commits wherever the next part's share begins."""
    parts: list[dict[int, list[CommitSpan]]] = [{} for _ in range(wanted)]
    total, before = max(1, plan.size_bytes), 0
    for partition, spans in sorted(plan.spans.items()):
        for span in spans:
            middle = before + span.size_bytes // 2
            parts[min(wanted - 1, middle * wanted // total)].setdefault(partition, []).append(span)
            before += span.size_bytes
    return list(parts)


def _part(plan: Plan, pieces: _Pieces) -> Plan:
    """The plan of these spans, which are adjacent in each partition."""
    used = sorted({span.commit for spans in pieces.values() for span in spans})
    numbers = {commit: number for number, commit in enumerate(used)}
    return replace(
        plan,
        commits=tuple(plan.commits[commit] for commit in used),
        spans={
            partition: tuple(span._replace(commit=numbers[span.commit]) for span in spans)
            for partition, spans in pieces.items()
        },
        replay=_part_of_replay(plan.replay, pieces),
    )


def _part_of_replay(replay: ReplayPlan, pieces: _Pieces) -> ReplayPlan:
    ranges: dict[int, tuple[tuple[int, int], ...]] = {}
    listed: dict[int, dict[ChangeSetId, Entry]] = {}
    for partition, spans in pieces.items():
        first, last = spans[0].first_offset, spans[-1].end_offset
        whole = replay.ranges[partition]
        ranges[partition] = tuple((max(a, first), min(b, last)) for a, b in whole if a < last and first < b)
        listed[partition] = {
            key: entry for key, entry in replay.listed[partition].items() if first <= key.first_offset < last
        }
    accepted = tuple(lost for lost in replay.accepted if lost.partition in pieces)
    return ReplayPlan(ranges=ranges, listed=listed, accepted=accepted)
