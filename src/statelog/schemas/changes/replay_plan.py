"""Replay as decisions: which offsets to read, which chunks count, and whether everything listed has arrived.

The one rule of reading: a record counts if and only if a valid commit lists its offset, and a missing listed record is
data loss. `reading.replay` executes this for materializer, recovery and Spark.

Changes lie in the data topic, or inline in the ledger record of their commit. In a partition they are ordered by the
number of their commit; within one commit, inline changes come last.

Invariants:
- A record at an offset that no commit lists is void, and its bytes are never decoded.
- At the end every listed change set has exactly the chunks, changes and checksum that its commit names, each chunk at
  its offset. A change set of which a person forfeited some offsets has all others.
- The record that a plan names `before` a partition's ranges is there, and the same.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, takewhile
from typing import NamedTuple

from statelog.errors import AnchorMismatch, IncompleteChangeSet
from statelog.schemas.changes.chunk import ChunkHead, combine_checksums
from statelog.schemas.ledger.handle import Entry
from statelog.schemas.ledger.inline import Carried, CommitContents, Inline, bitmap_of, shares_of
from statelog.schemas.ledger.place import LastRecord
from statelog.schemas.ledger.records import LossRange, retained_ranges
from statelog.schemas.outputs.chunk import OutputHead

_LEAST_GAP = 16
"""A gap of so many foreign offsets is skipped. Smaller gaps are read, which is faster than to seek behind them."""
_NO_PLACES: Iterator[tuple[int, int]] = iter(())
ListedHead = ChunkHead | OutputHead
"""The head of a chunk that a commit lists: of changes, or of messages, which count as changes."""


class ListedBy(NamedTuple):
    """The origin of a change set: its writer's incarnation, and the number of its commit within the plan."""

    epoch: int
    nonce: bytes
    commit: int = 0


@dataclass(frozen=True, kw_only=True)
class ReplayPlan:
    """All that a replay reads.

    `ranges`: ascending, disjoint offset ranges, by partition.
    `listed`: the change sets that count, by partition in ledger order, with their origin. Commits never overlap, so no
    two of a partition are equal.
    `before`: by partition, the record before the first range. It is read and compared, too.
    `carried`: inline changes in ledger records, by the number of their commit, ascending. Only changes of `partitions`
    count.
    """

    ranges: Mapping[int, tuple[tuple[int, int], ...]]
    listed: Mapping[int, Mapping[Entry, ListedBy]]
    accepted: tuple[LossRange, ...]
    before: Mapping[int, LastRecord] = field(default_factory=dict[int, LastRecord])
    carried: Mapping[int, Carried] = field(default_factory=dict[int, Carried])
    partitions: frozenset[int] = frozenset()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to read."""
        return not self.listed and not self.carried

    @cached_property
    def changes(self) -> int:
        """The number of changes, for progress. Inline changes count as in `sizes`."""
        listed = sum(entry.changes for entries in self.listed.values() for entry in entries)
        return listed + sum(self._shares(lambda one: one.changes).values())

    @cached_property
    def size_bytes(self) -> int:
        """The size of the record values, for budgets and progress."""
        return sum(self.sizes.values())

    @cached_property
    def sizes(self) -> dict[int, int]:
        """The bytes of each partition with changes, ascending. Each partition of inline changes has an equal share."""
        sizes = self._shares(lambda one: one.size_bytes)
        for partition, entries in self.listed.items():
            sizes[partition] = sizes.get(partition, 0) + sum(entry.size_bytes for entry in entries)
        return dict(sorted(sizes.items()))

    def _shares(self, amount: Callable[[Inline], int]) -> dict[int, int]:
        """Estimate each partition's share of the inline changes. Records of the same partitions are summed first."""
        together, shares = dict[int, int](), dict[int, int]()
        for one in self.carried.values():
            bitmap = one.inline.partitions
            together[bitmap] = together.get(bitmap, 0) + amount(one.inline)
        for bitmap, total in together.items():
            for partition, share in shares_of(bitmap, total).items():
                if partition in self.partitions:
                    shares[partition] = shares.get(partition, 0) + share
        return shares

    def only(self, partitions: Iterable[int]) -> "ReplayPlan":
        """Return the plan of some partitions."""
        wanted = self.partitions.intersection(partitions)
        bitmap = bitmap_of(wanted)
        return replace(
            self,
            ranges={partition: found for partition, found in self.ranges.items() if partition in wanted},
            listed={partition: found for partition, found in self.listed.items() if partition in wanted},
            before={partition: found for partition, found in self.before.items() if partition in wanted},
            carried={number: one for number, one in self.carried.items() if one.inline.touches(bitmap)},
            partitions=wanted,
        )

    def portions(self, most_bytes: int) -> "Iterator[ReplayPlan]":
        """Cut the plan between commits into parts of about so many inline bytes, which replay holds in memory."""
        cuts, held_bytes = list[int](), 0
        for number, one in self.carried.items():
            if held_bytes + one.inline.size_bytes > most_bytes and held_bytes:
                cuts.append(number)
                held_bytes = 0
            held_bytes += one.inline.size_bytes
        if not cuts:
            yield self
            return
        left, before = self, dict(self.before)
        for cut in cuts:
            now, left = left._cut(cut)
            yield replace(now, before={one: before.pop(one) for one in now.listed if one in before})
        yield replace(left, before=before)

    def _cut(self, number: int) -> "tuple[ReplayPlan, ReplayPlan]":
        """Return the plan of the commits below a number, and of the others."""
        parts: tuple[dict[int, dict[Entry, ListedBy]], ...] = ({}, {})
        for partition, entries in self.listed.items():
            for entry, listed in entries.items():
                parts[listed.commit >= number].setdefault(partition, {})[entry] = listed
        return (
            replace(
                self,
                listed=parts[0],
                ranges=_ranges(parts[0], self.accepted),
                carried={at: one for at, one in self.carried.items() if at < number},
            ),
            replace(
                self,
                listed=parts[1],
                ranges=_ranges(parts[1], self.accepted),
                carried={at: one for at, one in self.carried.items() if at >= number},
            ),
        )


def plan_replay(
    commits: Iterable[CommitContents],
    partitions: Iterable[int],
    accepted: tuple[LossRange, ...] = (),
    before: Mapping[int, LastRecord] | None = None,
) -> ReplayPlan:
    """Plan the replay of valid commits, in ledger order, restricted to `partitions`."""
    listed: dict[int, dict[Entry, ListedBy]] = {partition: {} for partition in partitions}
    wanted, carried = bitmap_of(listed), dict[int, Carried]()
    for number, commit in enumerate(commits):
        for handle in commit.handles:
            origin = ListedBy(handle.epoch, handle.nonce, number)
            for entry in chain.from_iterable(step.entries for step in handle.steps):
                mine = listed.get(entry[0])
                if mine is not None:
                    mine[entry] = origin
        if commit.carried is not None and commit.carried.inline.touches(wanted):
            carried[number] = commit.carried
    found = {partition: entries for partition, entries in listed.items() if entries}
    return ReplayPlan(
        ranges=_ranges(found, accepted),
        listed=found,
        accepted=accepted,
        before=before or {},
        carried=carried,
        partitions=frozenset(listed),
    )


def _ranges(
    listed: Mapping[int, Mapping[Entry, ListedBy]], accepted: tuple[LossRange, ...]
) -> dict[int, tuple[tuple[int, int], ...]]:
    return {
        partition: tuple(
            left for start, end in _spans(entries) for left in retained_ranges(accepted, partition, start, end)
        )
        for partition, entries in listed.items()
    }


def another_record(topic: str, partition: int, offset: int) -> AnchorMismatch:
    """Make the error for a record that is not the one that a snapshot was built on."""
    return AnchorMismatch(
        "a record is not the one that the newest snapshot was built on",
        topic=topic,
        partition=partition,
        offset=offset,
        hint="Restore the topic, or accept the loss by name: it was restored, or lost its tail and grew again",
    )


def _spans(entries: Collection[Entry]) -> list[tuple[int, int]]:
    """Return the offsets of the entries' chunks as few ranges."""
    pieces = [(entry.first_offset, entry.end_offset) for entry in entries if not entry.gaps]
    pieces += [(offset, offset + 1) for entry in entries if entry.gaps for offset in entry.offsets]
    return joined(pieces)


def joined(pieces: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join offset ranges (at least one), in any order, over small gaps."""
    pieces.sort()
    spans: list[tuple[int, int]] = []
    start, last_end = pieces[0]
    for first, end in pieces:
        if first - last_end >= _LEAST_GAP:
            spans.append((start, last_end))
            start = first
        last_end = max(last_end, end)
    return [*spans, (start, last_end)]


class _Progress:
    """The progress of one change set. `next` is the index and the offset of its next chunk, None behind the last."""

    __slots__ = ("_places", "changes", "checksums", "entry", "is_cut", "next", "origin")

    def __init__(self, entry: Entry, origin: ListedBy, lost: Sequence[LossRange]) -> None:
        self.entry = entry
        self.origin = origin
        self.changes = 0
        self.checksums: list[int] = []
        left = retained_ranges(lost, entry.partition, entry.first_offset, entry.end_offset) if lost else ()
        self.is_cut = bool(lost) and left != ((entry.first_offset, entry.end_offset),)
        """Whether a person accepted the loss of some of its offsets."""
        self.next: tuple[int, int] | None = (0, entry.first_offset)
        self._places: Iterator[tuple[int, int]] = _NO_PLACES
        if entry.chunks > 1 or self.is_cut:
            self._places = enumerate(entry.offsets)
            if self.is_cut:
                self._places = (one for one in self._places if any(start <= one[1] < end for start, end in left))
            self.next = next(self._places, None)

    def takes(self, head: ListedHead) -> bool:
        """Return whether this is the head of its next chunk."""
        is_next = self.next is not None and head.index == self.next[0]
        return is_next and (head.epoch, head.nonce) == self.origin[:2] and head.sqn == self.entry.sqn

    def add(self, head: ListedHead) -> tuple[int, int] | None:
        """Take its next chunk. Return index and offset of the one after it."""
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


def _is_all_of(entry: Entry, origin: ListedBy, head: ListedHead) -> bool:
    """Return whether this is the head of the only chunk of a change set, without a `_Progress`."""
    is_here = head.index == 0 and head.sqn == entry.sqn and (head.epoch, head.nonce) == origin[:2]
    return is_here and head.changes == entry.changes and combine_checksums((head.checksum,)) == entry.checksum


class PartitionCheck:
    """Decides, record by record in offset order, which ones count in a partition; then whether all have arrived."""

    def __init__(self, topic: str, partition: int, plan: ReplayPlan) -> None:
        self._topic = topic
        self._partition = partition
        lost = [hole for hole in plan.accepted if hole.partition == partition]
        self._ranges = plan.ranges.get(partition, ())
        self._before = plan.before.get(partition)
        self._listed = listed = plan.listed[partition]
        # Where commits are small, nearly all change sets are one chunk, which needs no progress.
        self._single = {entry.first_offset: entry for entry in listed if entry.chunks == 1 and not lost}
        self._sets = [_Progress(entry, origin, lost) for entry, origin in listed.items() if entry.chunks > 1 or lost]
        self._awaited = {progress.next[1]: progress for progress in self._sets if progress.next is not None}

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """The offset ranges to read: the plan's, and the record before them."""
        if self._before is None:
            return self._ranges
        (start, end), *others = self._ranges
        return ((min(start, self._before.offset), end), *others)

    def lists(self, offset: int) -> bool:
        """Return whether the record at this offset counts. Other records are void, or read to be compared."""
        return offset in self._single or offset in self._awaited

    def lists_any(self, start: int, end: int) -> bool:
        """Return whether a record is still expected in the offsets [start, end)."""
        before = () if self._before is None else (self._before.offset,)
        return any(start <= offset < end for offset in chain(before, self._single, self._awaited))

    def compare(self, offset: int, value: bytes) -> None:
        """Compare a record that does not count. Raises AnchorMismatch if another one has to be there."""
        before = self._before
        if before is not None and offset >= before.offset:
            if LastRecord.of(offset, value) != before:
                raise another_record(self._topic, self._partition, before.offset)
            self._before = None

    def add(self, offset: int, head: ListedHead) -> int:
        """Take the chunk at a listed offset; return its commit's number. Raises IncompleteChangeSet for another."""
        single = self._single.pop(offset, None)
        if single is not None:
            origin = self._listed[single]
            if _is_all_of(single, origin, head):
                return origin.commit
        progress = self._awaited.pop(offset) if single is None else self._begun(single)
        if not progress.takes(head):
            raise self._incomplete(progress, f"another chunk, of change set {head.sqn}, lies at offset {offset}")
        following = progress.add(head)
        if following is not None:
            self._awaited[following[1]] = progress
        elif single is not None and not progress.is_whole:
            self._sets.append(progress)
        return progress.origin.commit

    def finish_commit(self, commit: int) -> None:
        """Raise IncompleteChangeSet if a change set of this commit is incomplete, for who reads commit by commit."""
        singles = takewhile(lambda one: self._listed[one].commit <= commit, self._single.values())
        for progress in chain(self._sets, map(self._begun, singles)):
            if progress.origin.commit == commit:
                self._check_whole(progress)

    def finish(self) -> None:
        """Raise IncompleteChangeSet if a change set is incomplete, AnchorMismatch if the record before is missing."""
        if self._before is not None:
            raise another_record(self._topic, self._partition, self._before.offset)
        for progress in chain(self._sets, map(self._begun, self._single.values())):
            self._check_whole(progress)

    def _check_whole(self, progress: _Progress) -> None:
        if not progress.is_whole:
            raise self._incomplete(progress, "chunks are missing" if progress.next else "its chunks differ")

    def _begun(self, single: Entry) -> _Progress:
        return _Progress(single, self._listed[single], ())

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
            hint="Restore the topic, recover an older position, or accept the loss: committed changes are missing",
        )
