"""Cuts a plan of changes into parts for many tasks. Pure.

Invariants:
- The parts have every change of the plan once, and each part has its changes in the plan's order.
- No part is begun for less than `least_bytes`, except the only one: a task costs more than it saves then.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from statelog.errors import Misuse
from statelog.reading.plan import CommitSpan, Plan
from statelog.schemas.changes.replay_plan import ChangeSetId, ReplayPlan
from statelog.schemas.ledger.handle import Entry

__all__ = ["LEAST_BYTES", "split_changes"]

LEAST_BYTES = 4 << 20
"""What a task of its own is worth: about what it reads while another one starts."""

_Pieces = Mapping[int, Sequence[CommitSpan]]


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
