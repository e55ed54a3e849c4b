"""Replay as decisions: which offsets to read, which chunks count, and whether everything listed has arrived.

The one rule of reading: a record counts if and only if a valid commit lists its offset, and all that a commit
lists is there or it is data loss. `reading.replay` executes this for materializer, recovery and Spark.

Invariants:
- A record at an offset that no commit lists is void, whatever its bytes: they are never looked at.
- At the end every listed change set has exactly the chunks, changes and checksum that its commit names, each chunk at
  its offset. Of one whose offsets a person gave up in part, all the others are there.
- A record that a plan has `before` what it reads is there, and the same.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from statelog.errors import AnchorMismatch, IncompleteChangeSet
from statelog.schemas.changes.chunk import ChunkHead, combine_checksums
from statelog.schemas.ledger.handle import Entry
from statelog.schemas.ledger.place import LastRecord
from statelog.schemas.ledger.records import CommitBody, LossRange, kept

_FAR = 16
"""So many offsets of others are no longer read on the way: it takes longer than to go on behind them."""
_NO_PLACES: Iterator[tuple[int, int]] = iter(())


class WriterLife(NamedTuple):
    """One life of a writer: whose change sets they are."""

    epoch: int
    nonce: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """What to read: by partition the offset ranges, ascending and disjoint, and the change sets that count, in ledger
    order, each with the life of its writer. No two of a partition are equal: commits never overlap. The record `before`
    a partition's first range is read with it, where one is named, and must be that one.
    """

    ranges: Mapping[int, tuple[tuple[int, int], ...]]
    listed: Mapping[int, Mapping[Entry, WriterLife]]
    accepted: tuple[LossRange, ...]
    before: Mapping[int, LastRecord] = field(default_factory=dict[int, LastRecord])

    @property
    def changes(self) -> int:
        """How many changes the plan covers, for progress."""
        return sum(entry.changes for entries in self.listed.values() for entry in entries)

    @property
    def size_bytes(self) -> int:
        """How many bytes of record values the plan covers, for budgets and progress."""
        return sum(entry.size_bytes for entries in self.listed.values() for entry in entries)


def plan_replay(
    commits: Iterable[CommitBody],
    partitions: Iterable[int],
    accepted: tuple[LossRange, ...] = (),
    before: Mapping[int, LastRecord] | None = None,
) -> ReplayPlan:
    """Plan the replay of valid commits, in ledger order, restricted to `partitions`."""
    listed: dict[int, dict[Entry, WriterLife]] = {partition: {} for partition in partitions}
    for body in commits:
        for handle in body.handles:
            life = WriterLife(handle.epoch, handle.nonce)
            for entry in chain.from_iterable(step.entries for step in handle.steps):
                mine = listed.get(entry[0])
                if mine is not None:
                    mine[entry] = life
    listed = {partition: entries for partition, entries in listed.items() if entries}
    ranges = {
        partition: tuple(left for start, end in _spans(entries) for left in kept(accepted, partition, start, end))
        for partition, entries in listed.items()
    }
    return ReplayPlan(ranges=ranges, listed=listed, accepted=accepted, before=before or {})


def another_record(topic: str, partition: int, offset: int) -> AnchorMismatch:
    """The error for a record that is not the one that a snapshot was built on."""
    return AnchorMismatch(
        "a record is not the one that the newest snapshot was built on",
        topic=topic,
        partition=partition,
        offset=offset,
        hint="The topic was restored, or lost its tail and grew again: restore it, or accept the loss by name",
    )


def _spans(entries: Collection[Entry]) -> list[tuple[int, int]]:
    """Where their chunks lie, in few ranges: what others wrote in between, if it is more than a little, is left out."""
    pieces = [(entry.first_offset, entry.end_offset) for entry in entries if not entry.gaps]
    pieces += [(offset, offset + 1) for entry in entries if entry.gaps for offset in entry.offsets]
    pieces.sort()
    spans: list[tuple[int, int]] = []
    start, reach = pieces[0]
    for first, end in pieces:
        if first - reach >= _FAR:
            spans.append((start, reach))
            start = first
        reach = max(reach, end)
    return [*spans, (start, reach)]


class _Progress:
    """How far one change set has come. `next` is the index and the offset of its next chunk, None behind the last."""

    __slots__ = ("_places", "changes", "checksums", "entry", "is_cut", "life", "next")

    def __init__(self, entry: Entry, life: WriterLife, lost: Sequence[LossRange]) -> None:
        self.entry = entry
        self.life = life
        self.changes = 0
        self.checksums: list[int] = []
        left = kept(lost, entry.partition, entry.first_offset, entry.end_offset) if lost else ()
        self.is_cut = bool(lost) and left != ((entry.first_offset, entry.end_offset),)
        """Whether a person accepted the loss of offsets that it covers."""
        self.next: tuple[int, int] | None = (0, entry.first_offset)
        self._places: Iterator[tuple[int, int]] = _NO_PLACES
        if entry.chunks > 1 or self.is_cut:
            self._places = enumerate(entry.offsets)
            if self.is_cut:
                self._places = (one for one in self._places if any(start <= one[1] < end for start, end in left))
            self.next = next(self._places, None)

    def takes(self, head: ChunkHead) -> bool:
        """Whether this is the head of its next chunk."""
        is_next = self.next is not None and head.index == self.next[0]
        return is_next and (head.epoch, head.nonce) == self.life and head.sqn == self.entry.sqn

    def add(self, head: ChunkHead) -> tuple[int, int] | None:
        """Take its next chunk; returns the place of the one after it."""
        self.changes += head.changes
        self.checksums.append(head.checksum)
        self.next = next(self._places, None)
        return self.next

    @property
    def is_whole(self) -> bool:
        if self.next is not None or self.is_cut:
            return self.next is None
        found = (len(self.checksums), self.changes, combine_checksums(self.checksums))
        return found == (self.entry.chunks, self.entry.changes, self.entry.checksum)


def _is_all_of(entry: Entry, life: WriterLife, head: ChunkHead) -> bool:
    """Whether this is the head of the only chunk of a change set: what `_Progress` would find, without one."""
    is_here = head.index == 0 and head.sqn == entry.sqn and (head.epoch, head.nonce) == life
    return is_here and head.changes == entry.changes and combine_checksums((head.checksum,)) == entry.checksum


class PartitionCheck:
    """Decides, record by record in offset order, what counts in one partition; then whether all of it came."""

    def __init__(self, topic: str, partition: int, plan: ReplayPlan) -> None:
        self._topic = topic
        self._partition = partition
        lost = [hole for hole in plan.accepted if hole.partition == partition]
        self._ranges = plan.ranges.get(partition, ())
        self._before = plan.before.get(partition)
        self._lives = lives = plan.listed[partition]
        # Where commits are small, nearly all change sets are one chunk, which comes or not: no progress is kept of it.
        self._single = {entry.first_offset: entry for entry in lives if entry.chunks == 1 and not lost}
        self._sets = [_Progress(entry, life, lost) for entry, life in lives.items() if entry.chunks > 1 or lost]
        self._awaited = {progress.next[1]: progress for progress in self._sets if progress.next is not None}

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """What to read: the ranges of the plan, and the record before them."""
        if self._before is None:
            return self._ranges
        (start, end), *others = self._ranges
        return ((min(start, self._before.offset), end), *others)

    def lists(self, offset: int) -> bool:
        """Whether the record at this offset counts. If not it is void, or was read to be compared."""
        return offset in self._single or offset in self._awaited

    def lists_any(self, start: int, end: int) -> bool:
        """Whether a record of the offsets [start, end) counts, of those that are still to come."""
        before = () if self._before is None else (self._before.offset,)
        return any(start <= offset < end for offset in chain(before, self._single, self._awaited))

    def compare(self, offset: int, value: bytes) -> None:
        """A record that does not count. Raises AnchorMismatch if another one had to be there."""
        before = self._before
        if before is not None and offset >= before.offset:
            if LastRecord.of(offset, value) != before:
                raise another_record(self._topic, self._partition, before.offset)
            self._before = None

    def add(self, offset: int, head: ChunkHead) -> None:
        """The chunk at a listed offset. Raises IncompleteChangeSet if it is not the one that is listed there."""
        single = self._single.pop(offset, None)
        if single is not None and _is_all_of(single, self._lives[single], head):
            return
        progress = self._awaited.pop(offset) if single is None else self._begun(single)
        if not progress.takes(head):
            raise self._incomplete(progress, f"another chunk, of change set {head.sqn}, lies at offset {offset}")
        following = progress.add(head)
        if following is not None:
            self._awaited[following[1]] = progress
        elif single is not None and not progress.is_whole:
            self._sets.append(progress)

    def finish(self) -> None:
        """Raise IncompleteChangeSet unless every listed change set came whole, AnchorMismatch if the record before them
        did not come.
        """
        if self._before is not None:
            raise another_record(self._topic, self._partition, self._before.offset)
        for progress in chain(self._sets, map(self._begun, self._single.values())):
            if not progress.is_whole:
                raise self._incomplete(progress, "chunks are missing" if progress.next else "its chunks differ")

    def _begun(self, single: Entry) -> _Progress:
        return _Progress(single, self._lives[single], ())

    def _incomplete(self, progress: _Progress, what: str) -> IncompleteChangeSet:
        entry = progress.entry
        return IncompleteChangeSet(
            f"a committed change set is incomplete: {what}",
            topic=self._topic,
            partition=self._partition,
            offset=progress.next[1] if progress.next else entry.first_offset,
            sqn=entry.sqn,
            first_offset=entry.first_offset,
            end_offset=entry.end_offset,
            chunks_found=len(progress.checksums),
            chunks_listed=entry.chunks,
            changes_found=progress.changes,
            changes_listed=entry.changes,
            hint="Committed changes are gone: restore the topic, recover an older position, or accept the loss",
        )
