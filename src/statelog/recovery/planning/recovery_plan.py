"""`RecoveryPlan`: a snapshot, the tail of the log behind it, and the wanted key groups. Pure.

Position L of the plan is the state that comes out: the snapshot's runs hold all changes below the snapshot's own
position, the commits from there up to L are replayed on top.

Invariants:
- A run is read if and only if a row group of it may hold a wanted key group; a partition is read if it holds one.
- The snapshot's position is never above the plan's.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from statelog.errors import BeyondEnd, KeyGroupMismatch, OffsetGone
from statelog.schemas.changes.replay_plan import ReplayPlan, plan_replay
from statelog.schemas.descriptor import Descriptor
from statelog.schemas.keys.key_groups import partition_of
from statelog.schemas.ledger.place import LastRecord, Place
from statelog.schemas.ledger.records import CommitBody, given_up
from statelog.schemas.ledger.state import LedgerState
from statelog.schemas.snapshot.manifest import Manifest, RunRef
from statelog.schemas.snapshot.runs import row_groups_for
from statelog.storage.ledger_client import LedgerBase

__all__ = [
    "LogOffsets",
    "RecoveryPlan",
    "RunPart",
    "check_reach",
    "make_plan",
    "part_of",
    "partitions_of",
    "wanted_key_groups",
]


class RunPart(NamedTuple):
    """The row groups (by number in its index) that are read of one run."""

    run: RunRef
    row_groups: tuple[int, ...]

    @property
    def rows(self) -> int:
        """Rows of these row groups, wanted or not."""
        return sum(self.run.index.row_groups[number].rows for number in self.row_groups)

    @property
    def size_bytes(self) -> int:
        """Bytes of these row groups in the file."""
        return sum(self.run.index.row_groups[number].size_bytes for number in self.row_groups)


class LogOffsets(NamedTuple):
    """Log start and log end, half-open, of the data partitions and of the ledger, asked at one moment."""

    data: Mapping[int, tuple[int, int]]
    ledger: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPlan:
    """What to read to have the state at `position`.

    `manifest` is None if the whole state comes from the log. `state` is the ledger folded to the position. `key_groups`
    None means all of them; `partitions` are those that hold a wanted one. `runs` are oldest first. `last` is the ledger
    record below the position: who reads on compares it. `is_alone`: of the snapshot alone, without Kafka.
    """

    manifest: Manifest | None
    state: LedgerState
    key_groups: frozenset[int] | None
    partitions: tuple[int, ...]
    runs: tuple[RunPart, ...]
    replay: ReplayPlan
    last: LastRecord | None = None
    is_alone: bool = False

    @property
    def position(self) -> int:
        """The ledger position of the state that comes out."""
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
    def next_offsets(self) -> dict[int, int]:
        """The first offset that is read of every partition that is read at all."""
        return {partition: ranges[0][0] for partition, ranges in self.replay.ranges.items() if ranges}

    def held_offsets(self, partitions: Iterable[int]) -> dict[int, int]:
        """What a lease has to hold of these partitions: what is read, and all that will be committed behind it.

        A partition without a tail is held from its committed position on, from 0 if nothing was committed there.
        """
        committed, read = self.state.committed_positions, self.next_offsets
        return {partition: read.get(partition, committed.get(partition, 0)) for partition in partitions}

    @property
    def run_rows(self) -> int:
        """Rows to read from runs."""
        return sum(part.rows for part in self.runs)

    @property
    def run_bytes(self) -> int:
        """Bytes to read from runs."""
        return sum(part.size_bytes for part in self.runs)

    @property
    def changes(self) -> int:
        """Rows of runs and changes of the tail together."""
        return self.run_rows + self.replay.changes

    @property
    def size_bytes(self) -> int:
        """Bytes of runs and of the tail's record values together."""
        return self.run_bytes + self.replay.size_bytes


def wanted_key_groups(key_groups: Iterable[int] | None, descriptor: Descriptor) -> frozenset[int] | None:
    """The key groups that a caller asks for; None for all. Raises KeyGroupMismatch for one that the log lacks."""
    if key_groups is None:
        return None
    wanted = frozenset(key_groups)
    strange = sorted(group for group in wanted if not 0 <= group < descriptor.key_groups)
    if strange:
        raise KeyGroupMismatch(
            "the log lacks a key group",
            key_group=strange[0],
            key_groups=descriptor.key_groups,
            hint="Key groups are numbered from 0",
        )
    return wanted


def make_plan(
    descriptor: Descriptor,
    manifest: Manifest | None,
    folded: LedgerBase,
    commits: Iterable[CommitBody],
    key_groups: frozenset[int] | None,
) -> RecoveryPlan:
    """The plan for the state at the place that the ledger was `folded` to.

    `commits` are the valid ones since the manifest, in ledger order.
    """
    partitions = partitions_of(key_groups, descriptor)
    return RecoveryPlan(
        manifest=manifest,
        state=folded.state,
        key_groups=key_groups,
        partitions=partitions,
        runs=_run_parts(manifest.runs if manifest else (), key_groups),
        replay=plan_replay(commits, partitions, folded.state.accepted),
        last=folded.place.last,
    )


def part_of(plan: RecoveryPlan, key_groups: frozenset[int], descriptor: Descriptor) -> RecoveryPlan:
    """The plan for some of its key groups, to be carried out elsewhere: without what only planning needs, which is the
    manifest and the folded ledger.
    """
    partitions = partitions_of(key_groups, descriptor)
    replay = plan.replay
    return replace(
        plan,
        manifest=None,
        state=LedgerState(position=plan.position),
        key_groups=key_groups,
        partitions=partitions,
        runs=_run_parts([part.run for part in plan.runs], key_groups),
        replay=ReplayPlan(
            ranges={partition: replay.ranges[partition] for partition in partitions if partition in replay.ranges},
            listed={partition: replay.listed[partition] for partition in partitions if partition in replay.listed},
            accepted=replay.accepted,
        ),
        last=None,
    )


def partitions_of(key_groups: Collection[int] | None, descriptor: Descriptor) -> tuple[int, ...]:
    """The partitions that hold one of the key groups; None means all."""
    if key_groups is None:
        return tuple(range(descriptor.partitions))
    return tuple(sorted({partition_of(g, descriptor.partitions, descriptor.key_groups) for g in key_groups}))


def _run_parts(runs: Sequence[RunRef], key_groups: frozenset[int] | None) -> tuple[RunPart, ...]:
    parts = (RunPart(run, _row_groups(run, key_groups)) for run in runs)
    return tuple(part for part in parts if part.row_groups)


def _row_groups(run: RunRef, key_groups: frozenset[int] | None) -> tuple[int, ...]:
    if key_groups is None:
        return tuple(range(len(run.index.row_groups)))
    return tuple(row_groups_for(run.index, sorted(key_groups)))


# ---- does the log hold what the plan needs


def check_reach(plan: RecoveryPlan, offsets: LogOffsets, log: str) -> None:
    """Compare a plan with what the log holds now.

    Raises BeyondEnd if the ledger ends below the position, or a partition below its committed position without an
    accepted loss; OffsetGone if a partition starts above what is to be read, or the ledger above what a follower
    reads next, which planning again may mend.
    """
    if plan.position > offsets.ledger[1]:
        raise BeyondEnd(
            "the ledger ends below a position that was there",
            log=log,
            position=plan.position,
            end_offset=offsets.ledger[1],
            hint="The ledger lost its tail: restore the topic, or recover a retained position below",
        )
    if plan.position < offsets.ledger[0]:
        raise OffsetGone(
            "the ledger starts above the position of the plan",
            log=log,
            position=plan.position,
            log_start=offsets.ledger[0],
            hint="The log was truncated past this state: recover again",
        )
    for partition in plan.partitions:
        _check_end(plan, partition, offsets.data[partition][1], log)
    for partition, first_offset in plan.next_offsets.items():
        log_start = offsets.data[partition][0]
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


def _check_end(plan: RecoveryPlan, partition: int, end_offset: int, log: str) -> None:
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
