"""Replay as decisions: which offsets to read, which chunks count, and whether all that was listed came.

The one rule of reading: a chunk counts if and only if a valid commit lists its change set, and a commit's
list is complete or it is data loss. `storage.replay` executes this for materializer, recovery and Spark.

Invariants:
- Chunks of one change set come with index 0, 1, 2 ...; other change sets may lie between them.
- At the end every listed change set has exactly the chunks, changes and checksum that its commit names,
  unless a person accepted the loss of offsets that it covers.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from statelog.schemas.chunk import ChangeSetChecksum, ChunkHead
from statelog.schemas.errors import IncompleteChangeSet
from statelog.schemas.handle import Entry
from statelog.schemas.ledger import CommitBody, LossRange

__all__ = ["ChangeSetId", "PartitionCheck", "ReplayPlan", "plan_replay"]


class ChangeSetId(NamedTuple):
    """What tells a listed change set from every other in its partition.

    Epoch, nonce and number would do if no caller ever gave a task's number twice. The place does in any case: commits
    never overlap in a partition.
    """

    epoch: int
    nonce: bytes
    sqn: int
    first_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """What to read: by partition the offset ranges, ascending and disjoint, and the change sets that count."""

    ranges: Mapping[int, tuple[tuple[int, int], ...]]
    listed: Mapping[int, Mapping[ChangeSetId, Entry]]
    accepted: tuple[LossRange, ...]

    @property
    def changes(self) -> int:
        """How many changes the plan covers, for progress."""
        return sum(entry.changes for entries in self.listed.values() for entry in entries.values())

    @property
    def size_bytes(self) -> int:
        """How many bytes of record values the plan covers, for budgets and progress."""
        return sum(entry.size_bytes for entries in self.listed.values() for entry in entries.values())


def plan_replay(
    commits: Iterable[CommitBody], partitions: Iterable[int], accepted: tuple[LossRange, ...] = ()
) -> ReplayPlan:
    """Plan the replay of valid commits, in ledger order, restricted to `partitions`."""
    listed: dict[int, dict[ChangeSetId, Entry]] = {partition: {} for partition in partitions}
    for body in commits:
        for handle in body.handles:
            for entry in handle.entries:
                if entry.partition in listed:
                    key = ChangeSetId(handle.epoch, handle.nonce, entry.sqn, entry.first_offset)
                    listed[entry.partition][key] = entry
    listed = {partition: entries for partition, entries in listed.items() if entries}
    ranges = {
        partition: _without(
            min(entry.first_offset for entry in entries.values()),
            max(entry.end_offset for entry in entries.values()),
            [lost for lost in accepted if lost.partition == partition],
        )
        for partition, entries in listed.items()
    }
    return ReplayPlan(ranges=ranges, listed=listed, accepted=accepted)


def _without(start: int, end: int, lost: Sequence[LossRange]) -> tuple[tuple[int, int], ...]:
    """The range [start, end) less the lost ranges."""
    kept: list[tuple[int, int]] = []
    for hole in sorted(lost, key=lambda hole: hole.start_offset):
        if hole.start_offset > start:
            kept.append((start, min(hole.start_offset, end)))
        start = max(start, hole.end_offset)
    if start < end:
        kept.append((start, end))
    return tuple((first, last) for first, last in kept if first < last)


class _Progress:
    """How far one change set has come."""

    __slots__ = ("changes", "checksum", "chunks", "entry")

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.chunks = 0
        self.changes = 0
        self.checksum = ChangeSetChecksum()


class PartitionCheck:
    """Decides, chunk by chunk in offset order, what counts in one partition; then whether all of it came."""

    def __init__(self, topic: str, partition: int, plan: ReplayPlan) -> None:
        self._topic = topic
        self._partition = partition
        self._sets: dict[tuple[int, bytes, int], list[_Progress]] = {}
        for key, entry in plan.listed[partition].items():
            self._sets.setdefault(key[:3], []).append(_Progress(entry))
        self._accepted = [lost for lost in plan.accepted if lost.partition == partition]

    def counts(self, offset: int, head: ChunkHead) -> bool:
        """Whether the chunk belongs to a listed change set. Raises IncompleteChangeSet if its index skips one."""
        for progress in self._sets.get((head.epoch, head.nonce, head.sqn), ()):
            if progress.entry.first_offset <= offset < progress.entry.end_offset:
                break
        else:
            return False
        if head.index != progress.chunks and not self._gave_up(progress.entry):
            raise self._incomplete(progress, f"chunk {head.index} follows chunk {progress.chunks - 1}", offset)
        progress.chunks += 1
        progress.changes += head.changes
        progress.checksum.add(head.checksum)
        return True

    def finish(self) -> None:
        """Raise IncompleteChangeSet unless every listed change set came whole."""
        for progress in chain.from_iterable(self._sets.values()):
            entry = progress.entry
            found = (progress.chunks, progress.changes, progress.checksum.value)
            if found != (entry.chunks, entry.changes, entry.checksum) and not self._gave_up(entry):
                raise self._incomplete(progress, "chunks are missing or differ", entry.end_offset)

    def _gave_up(self, entry: Entry) -> bool:
        """Whether a person accepted the loss of offsets that this change set covers."""
        return any(
            lost.start_offset < entry.end_offset and entry.first_offset < lost.end_offset for lost in self._accepted
        )

    def _incomplete(self, progress: _Progress, what: str, offset: int) -> IncompleteChangeSet:
        entry = progress.entry
        return IncompleteChangeSet(
            f"a committed change set is not whole: {what}",
            topic=self._topic,
            partition=self._partition,
            offset=offset,
            sqn=entry.sqn,
            first_offset=entry.first_offset,
            end_offset=entry.end_offset,
            chunks_found=progress.chunks,
            chunks_listed=entry.chunks,
            changes_found=progress.changes,
            changes_listed=entry.changes,
            hint="Committed changes are gone: restore the topic, recover an older position, or accept the loss",
        )
