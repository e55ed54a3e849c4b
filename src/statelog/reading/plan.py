"""`Plan`: what to read of a log, for the state at a position, or for the changes between two positions. Pure.

A state is a snapshot's runs, and the commits from its position up to the plan's. Changes are the commits from
`start_position` up to the plan's, each with its writer, and without runs. A plan can be pickled.

Invariants:
- A run is read if and only if one of its row groups may have a wanted key group. A partition is read if it has one.
- The snapshot's position is never above the plan's.
- A commit's own position is the one right behind it, so a plan that starts at a commit's position goes on after it.
- A part of a plan (`part_of`, `split_changes`) is a plan; the parts together have everything once.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from numbers import Integral, Real
from typing import NamedTuple

from statelog.errors import KeyGroupMismatch, Misuse
from statelog.schemas.changes.replay_plan import ReplayPlan, plan_replay
from statelog.schemas.descriptor import Descriptor
from statelog.schemas.key_groups import partition_of
from statelog.schemas.ledger.fold import Folded, LedgerBase, ValidCommit
from statelog.schemas.ledger.inline import CommitContents
from statelog.schemas.ledger.place import LastRecord, LogIdentity, Place
from statelog.schemas.ledger.records import LossRange
from statelog.schemas.ledger.state import LedgerState
from statelog.schemas.names import check_kind, check_name, whole_numbers
from statelog.schemas.snapshot.manifest import Manifest
from statelog.schemas.snapshot.run_ref import RunRef
from statelog.schemas.snapshot.runs import row_groups_for

_LAST_MS = int(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()) * 1000 + 999


class RunPart(NamedTuple):
    """A run, and its row groups (by number in its index) that are read."""

    run: RunRef
    row_groups: tuple[int, ...]

    @property
    def rows(self) -> int:
        """The rows of these row groups, wanted or not."""
        return sum(self.run.index.row_groups[number].rows for number in self.row_groups)

    @property
    def size_bytes(self) -> int:
        """The bytes of these row groups in the file."""
        return sum(self.run.index.row_groups[number].size_bytes for number in self.row_groups)


class CommitFacts(NamedTuple):
    """One commit: its writer, its time (as in `ValidCommit`), and how much of it a plan covers.

    `position`: the ledger position right behind it; `place` also names its record.
    `changes`, `size_bytes` (of record values): in partitions with a wanted key group, unwanted neighbours included.
    """

    writer: str
    checkpoint_id: int
    position: int
    timestamp_ms: int
    changes: int
    size_bytes: int
    place: Place


CARRIED = -1
"""The key, in place of a partition, of a plan's spans of inline changes, which are by ledger offset."""


class CommitSpan(NamedTuple):
    """The half-open range of offsets with a partition's changes of the plan's commit number `commit`."""

    first_offset: int
    end_offset: int
    commit: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The reads that give the state at `position`, or the changes from `start_position` up to it.

    `start_position`: None for a state.
    `manifest`: the snapshot, None if a whole state comes from the log; `runs`: its runs, oldest first.
    `state`: the ledger folded to the position; `last`: the record below it, which readers that go on compare.
    `key_groups`: None for all; `partitions`: those with a wanted key group.
    `commits`: of changes, in ledger order; `spans`: of changes, by partition in offset order.
    `value_schema_id`: of changes, the schema that values are read in.
    `is_alone`: the snapshot alone, without Kafka.
    """

    identity: LogIdentity
    state: LedgerState
    key_groups: frozenset[int] | None
    partitions: tuple[int, ...]
    replay: ReplayPlan
    manifest: Manifest | None = None
    runs: tuple[RunPart, ...] = ()
    last: LastRecord | None = None
    start_position: int | None = None
    commits: tuple[CommitFacts, ...] = ()
    spans: Mapping[int, tuple[CommitSpan, ...]] = field(default_factory=dict[int, tuple[CommitSpan, ...]])
    value_schema_id: int | None = None
    is_alone: bool = False

    @property
    def position(self) -> int:
        """The ledger position of the state, or of the end of the changes."""
        return self.state.position

    @property
    def place(self) -> Place:
        """The position, and the ledger record below it."""
        return Place(self.position, self.last)

    @property
    def manifest_number(self) -> int:
        """The number of the snapshot's manifest; 0 without one."""
        return self.manifest.number if self.manifest else 0

    @property
    def base_position(self) -> int:
        """The ledger position of the snapshot; 0 without one."""
        return self.manifest.position if self.manifest else 0

    @property
    def is_of_changes(self) -> bool:
        """Whether it is a plan of changes, and not of a state."""
        return self.start_position is not None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to read."""
        return not self.runs and self.replay.is_empty

    @property
    def first_carried(self) -> int | None:
        """The offset of the first ledger record that is read again for its inline changes; None if there is none."""
        return next((one.record.offset for one in self.replay.carried.values()), None)

    @property
    def next_offsets(self) -> dict[int, int]:
        """The first offset that is read, of every partition that is read at all."""
        return {partition: ranges[0][0] for partition, ranges in self.replay.ranges.items() if ranges}

    @property
    def run_rows(self) -> int:
        """The rows to read from runs."""
        return sum(part.rows for part in self.runs)

    @property
    def run_bytes(self) -> int:
        """The bytes to read from runs."""
        return sum(part.size_bytes for part in self.runs)

    @property
    def changes(self) -> int:
        """The rows of runs and the changes of the tail together."""
        return self.run_rows + self.replay.changes

    @property
    def size_bytes(self) -> int:
        """The bytes of runs and of the tail's record values together."""
        return self.run_bytes + self.replay.size_bytes


class Folding(NamedTuple):
    """A checked fold of the ledger: its base (None: the first record), its valid commits, and its result."""

    base: Manifest | None
    commits: Sequence[ValidCommit]
    folded: Folded

    @property
    def start(self) -> int:
        """The ledger position where it began."""
        return self.base.position if self.base else 0


def wanted_key_groups(key_groups: Iterable[int] | None, descriptor: Descriptor) -> frozenset[int] | None:
    """Return the key groups that a caller wants; None for all. Raises ConfigError, and KeyGroupMismatch if the log
    lacks one.
    """
    if key_groups is None:
        return None
    wanted = whole_numbers("key_groups", key_groups, example="key_groups=[0, 1], or range(8)")
    strange = [group for group in wanted if not 0 <= group < descriptor.key_groups]
    if strange:
        raise KeyGroupMismatch(
            "the log lacks a key group",
            key_group=strange[0],
            key_groups=descriptor.key_groups,
            hint="Key groups are numbered from 0",
        )
    return frozenset(wanted)


def make_plan(
    descriptor: Descriptor,
    manifest: Manifest | None,
    folded: LedgerBase,
    commits: Iterable[CommitContents],
    key_groups: frozenset[int] | None,
) -> Plan:
    """Plan the state that the ledger was `folded` to, from the valid `commits` since the manifest, in order."""
    partitions = partitions_of(key_groups, descriptor)
    return Plan(
        identity=descriptor.identity,
        manifest=manifest,
        state=folded.state,
        key_groups=key_groups,
        partitions=partitions,
        runs=_run_parts(manifest.runs if manifest else (), key_groups),
        replay=plan_replay(commits, partitions, folded.state.accepted),
        last=folded.place.last,
    )


def commit_facts(commit: ValidCommit, partitions: Collection[int]) -> CommitFacts:
    """Return the facts of a commit; `partitions` are those that count. Raises CorruptLedger."""
    changes, size_bytes = commit.contents.amounts(partitions)
    return CommitFacts(
        writer=commit.writer,
        checkpoint_id=commit.checkpoint_id,
        position=commit.position,
        timestamp_ms=commit.timestamp_ms,
        changes=changes,
        size_bytes=size_bytes,
        place=commit.place,
    )


def make_change_plan(
    descriptor: Descriptor,
    commits: Sequence[ValidCommit],
    folded: LedgerBase,
    *,
    start_position: int,
    value_schema_id: int,
    key_groups: frozenset[int] | None = None,
    accepted: tuple[LossRange, ...] = (),
) -> Plan:
    """Plan the changes of `commits`: all valid ones from the start up to where the ledger was `folded`, in order.

    `accepted`: the ranges that a person has accepted as lost by now, also those accepted after the end.
    """
    partitions = partitions_of(key_groups, descriptor)
    replay = plan_replay((one.contents for one in commits), partitions, accepted)
    return Plan(
        identity=descriptor.identity,
        start_position=start_position,
        state=replace(folded.state, accepted=accepted),
        last=folded.place.last,
        key_groups=key_groups,
        partitions=partitions,
        value_schema_id=value_schema_id,
        commits=tuple(commit_facts(one, frozenset(partitions)) for one in commits),
        spans=_spans(commits, partitions) | _spans_carried(replay),
        replay=replay,
    )


def part_of(plan: Plan, key_groups: frozenset[int], descriptor: Descriptor) -> Plan:
    """Return the plan of some key groups, to be carried out elsewhere: without manifest and folded ledger."""
    partitions = partitions_of(key_groups, descriptor)
    return replace(
        plan,
        manifest=None,
        state=LedgerState(position=plan.position),
        key_groups=key_groups,
        partitions=partitions,
        runs=_run_parts([part.run for part in plan.runs], key_groups),
        replay=replace(plan.replay.only(partitions), before={}),
        last=None,
    )


def partitions_of(key_groups: Collection[int] | None, descriptor: Descriptor) -> tuple[int, ...]:
    """Return the partitions that have one of the key groups; None means all."""
    if key_groups is None:
        return tuple(range(descriptor.partitions))
    return tuple(sorted({partition_of(g, descriptor.partitions, descriptor.key_groups) for g in key_groups}))


def _run_parts(runs: Sequence[RunRef], key_groups: frozenset[int] | None) -> tuple[RunPart, ...]:
    def row_groups(run: RunRef) -> Iterable[int]:
        return range(len(run.index.row_groups)) if wanted is None else row_groups_for(run.index, wanted)

    wanted = None if key_groups is None else sorted(key_groups)
    parts = (RunPart(run, tuple(row_groups(run))) for run in runs)
    return tuple(part for part in parts if part.row_groups)


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


def _spans_carried(replay: ReplayPlan) -> dict[int, tuple[CommitSpan, ...]]:
    spans = tuple(
        CommitSpan(one.record.offset, one.record.offset + 1, number, one.inline.size_bytes)
        for number, one in replay.carried.items()
    )
    return {CARRIED: spans} if spans else {}


@dataclass(frozen=True, slots=True)
class AtPosition:
    """The state at a ledger position: all commits below that offset. Raises Misuse if it is negative."""

    position: int

    def __post_init__(self) -> None:
        check_kind("position", self.position, Integral, example="a ledger position, as `Writer.position` is")
        if self.position < 0:
            raise Misuse("the ledger position is negative", position=self.position)

    def __str__(self) -> str:
        return f"position {self.position}"


@dataclass(frozen=True, slots=True)
class AtCheckpoint:
    """The state right after a writer's checkpoint was committed, with everybody's earlier commits.

    If the writer has used the id again after it had ended, the newest one is meant. Raises InvalidName.
    """

    writer: str
    checkpoint_id: int

    def __post_init__(self) -> None:
        check_name("writer", self.writer)
        check_kind("checkpoint_id", self.checkpoint_id, Integral, example="the number of a commit")

    def __str__(self) -> str:
        return f"checkpoint {self.checkpoint_id} of {self.writer}"


@dataclass(frozen=True, slots=True)
class AtTime:
    """The state right before the first ledger record that a broker took at this time or later.

    The time is in milliseconds since 1970, by the broker's clock. Raises Misuse for a time before 1970, or after the
    year 9999, such as one in microseconds.
    """

    timestamp_ms: int

    def __post_init__(self) -> None:
        check_kind("timestamp_ms", self.timestamp_ms, Real, example="milliseconds since 1970")
        if not self.timestamp_ms >= 0:  # NaN is not, either.
            raise Misuse("the time is before 1970", timestamp_ms=self.timestamp_ms)
        if self.timestamp_ms > _LAST_MS:
            raise Misuse(
                "the time is after the year 9999",
                timestamp_ms=self.timestamp_ms,
                hint="Give milliseconds since 1970, not microseconds",
            )

    def __str__(self) -> str:
        return f"time {datetime.fromtimestamp(self.timestamp_ms / 1000, UTC).isoformat(timespec='milliseconds')}"


At = AtPosition | AtCheckpoint | AtTime
"""A state of a log: one to recover, or the start or the end of a range of changes."""


def check_at(name: str, at: object) -> None:
    """Raise ConfigError unless the argument, which the caller knows as `name`, is a state or None."""
    if at is not None:
        check_kind(name, at, AtPosition, AtCheckpoint, AtTime, example='AtPosition(7), or AtCheckpoint("web", 41)')
