"""`ChangePlan`: the committed changes between two ledger positions, as a value that any process can read by. Pure.

The driver of many tasks makes it once, from the ledger. It says what to fetch and whose each change is, so a reader
needs the data topic only: no manifest, no ledger, no lease. Everything in it can be pickled.

Invariants:
- The range is half-open in the ledger: it has the valid commits at the offsets from `start_position` to `end_position`.
  A commit's own position is the one right behind it, so `start_position` = a commit's position goes on after it.
- In a partition commits never overlap, so the offset of a chunk says which commit it belongs to.
- A part of a plan (`split_changes`) is a plan; the parts together have every change once.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from statelog.recovery.planning.recovery_plan import partitions_of
from statelog.schemas.changes.replay_plan import ReplayPlan, plan_replay
from statelog.schemas.descriptor import Descriptor
from statelog.schemas.ledger.identity import LogIdentity
from statelog.schemas.ledger.place import Place
from statelog.schemas.ledger.records import LossRange
from statelog.storage.ledger_client import ValidCommit

__all__ = ["ChangePlan", "CommitFacts", "CommitSpan", "commit_facts", "make_change_plan"]


class CommitFacts(NamedTuple):
    """One commit: who made it, when, and how much of it a plan covers.

    `position` is the ledger position right behind it: the first state that has its changes; `place` names its record,
    too. `timestamp_ms` is the
    broker's time in milliseconds since 1970, -1 if the ledger has none. `changes` and `size_bytes` (of record values)
    count the partitions that hold a wanted key group, unwanted neighbours in them included.
    """

    writer: str
    checkpoint_id: int
    position: int
    timestamp_ms: int
    changes: int
    size_bytes: int
    place: Place


class CommitSpan(NamedTuple):
    """The offsets, half-open, between which one partition has the changes of one commit; `commit` is its number in the
    plan. Offsets in between may be void.
    """

    first_offset: int
    end_offset: int
    commit: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePlan:
    """What to read to have the changes of the commits in [start_position, end_position), or a part of them.

    `key_groups` None means all. `commits` are in ledger order, `spans` by partition in offset order. All values come in
    the value schema `value_schema_id`.
    """

    identity: LogIdentity
    start_position: int
    end_position: int
    key_groups: frozenset[int] | None
    value_schema_id: int
    commits: tuple[CommitFacts, ...]
    spans: Mapping[int, tuple[CommitSpan, ...]]
    replay: ReplayPlan

    @property
    def next_offsets(self) -> dict[int, int]:
        """The first offset that is read of every partition that is read: what a lease has to hold."""
        return {partition: ranges[0][0] for partition, ranges in self.replay.ranges.items() if ranges}

    @property
    def changes(self) -> int:
        """How many changes are fetched, those of unwanted key groups in the same partitions included."""
        return self.replay.changes

    @property
    def size_bytes(self) -> int:
        """How many bytes of record values are fetched."""
        return self.replay.size_bytes

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to fetch."""
        return not self.spans

    def commit_at(self, partition: int, offset: int) -> int:
        """The number of the commit whose chunk lies at an offset that the plan lists."""
        spans = self.spans[partition]
        return spans[bisect_right(spans, offset, key=_first_offset) - 1].commit


def _first_offset(span: CommitSpan) -> int:
    return span.first_offset


def commit_facts(commit: ValidCommit, partitions: Collection[int]) -> CommitFacts:
    """What is known about a commit; `partitions` are those that count. Raises CorruptLedger."""
    entries = list(commit.entries(partitions))
    return CommitFacts(
        writer=commit.writer,
        checkpoint_id=commit.checkpoint_id,
        position=commit.position,
        timestamp_ms=commit.timestamp_ms,
        changes=sum(entry.changes for entry in entries),
        size_bytes=sum(entry.size_bytes for entry in entries),
        place=commit.place,
    )


def make_change_plan(
    descriptor: Descriptor,
    commits: Sequence[ValidCommit],
    *,
    start_position: int,
    end_position: int,
    value_schema_id: int,
    key_groups: frozenset[int] | None = None,
    accepted: tuple[LossRange, ...] = (),
) -> ChangePlan:
    """The plan for `commits`: all valid ones of the range, in ledger order.

    `accepted` are the ranges that a person has given up by now, also those accepted behind the range.
    """
    partitions = partitions_of(key_groups, descriptor)
    return ChangePlan(
        identity=descriptor.identity,
        start_position=start_position,
        end_position=end_position,
        key_groups=key_groups,
        value_schema_id=value_schema_id,
        commits=tuple(commit_facts(one, frozenset(partitions)) for one in commits),
        spans=_spans(commits, partitions),
        replay=plan_replay((one.body for one in commits), partitions, accepted),
    )


def _spans(commits: Iterable[ValidCommit], partitions: Iterable[int]) -> dict[int, tuple[CommitSpan, ...]]:
    found: dict[int, list[CommitSpan]] = {partition: [] for partition in partitions}
    for number, commit in enumerate(commits):
        mine: dict[int, CommitSpan] = {}
        for entry in commit.entries(found):
            first, end, _, size_bytes = mine.get(entry.partition, (entry.first_offset, entry.end_offset, number, 0))
            mine[entry.partition] = CommitSpan(
                min(first, entry.first_offset), max(end, entry.end_offset), number, size_bytes + entry.size_bytes
            )
        for partition, span in mine.items():
            found[partition].append(span)
    return {partition: tuple(spans) for partition, spans in found.items() if spans}
