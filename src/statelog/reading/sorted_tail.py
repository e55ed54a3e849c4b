"""The newest changes of a tail. `SortedTail`: of any size, as sorted streams, spilled when memory is full.
`MemoryTail`: in memory, by partition. `newest`: folds runs and a tail.

`SortedTail` is the one external sort, of recoveries and rounds. When more than `fold_bytes` of changes have
accumulated, they are sorted, and only the newest of each key is retained. If more than half is left, it goes to disk as
one stream. The merge of all streams, oldest first, is the tail by (key group, key).

Neighbouring streams of one level are merged into one once there are as many as a merge may read at once. So the number
of streams, and of open files, grows with the logarithm of the tail.

Invariants:
- Deletes are retained, because data below may have the deleted keys.
- Memory holds about three times `fold_bytes`, during a sort. A stream is written in frames of a thirty-second of that
  (or one row), and a merge loads a frame of each stream. Together these are at most half of `fold_bytes`, whatever the
  size of keys and values, unless two rows exceed that.
- Only neighbours merge, so later changes win.
- One thread adds. Another may close meanwhile; the next add is then refused, and nothing stays on the disk.
- Values are never joined into one array, so a slice may exceed the 2 GiB of one Arrow array.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, groupby
from pathlib import Path
from threading import Lock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statelog.closing import Closing
from statelog.environment import OpenSpillFile
from statelog.errors import ClosedError
from statelog.schemas.arrays import column_of, column_of_rows, numbers_of
from statelog.schemas.changes.changes import DELETE, chunk_slices, cut_by_bytes, newest_sorted
from statelog.schemas.changes.due import concat_changes
from statelog.schemas.changes.key_order import is_last_row
from statelog.schemas.snapshot.runs import key_groups_of
from statelog.store.disk.spill_queue import SpillQueue
from statelog.store.merge import merge_streams

_AT_ONCE = 16
_LEAST_FRAME_BYTES = 256 * 1024
_SEGMENT_BYTES = 1 << 30
_MOST_ROW_BYTES = 1 << 31
_MOST_BYTES = 1 << 30
"""The most that is sorted at once: half of the largest Arrow array."""
_HELD_BYTES = 4 * 1024  # A record, a batch and its buffers, as measured for a chunk of a dozen changes.


class PartitionChanges:
    """The changes of one partition as they arrive, oldest first. `size_bytes`: about the memory that they take."""

    def __init__(self) -> None:
        self.tables: list[pa.Table] = []
        self._is_sorted = False
        self.size_bytes = 0

    def add(self, changes: pa.RecordBatch, held_bytes: int = 0) -> int:
        """Add the next changes, and return the growth. `held_bytes`: the memory that they hold; 0: just their own."""
        self._is_sorted = False
        self.tables.append(pa.Table.from_batches([changes]))
        grown = max(held_bytes or changes.nbytes, _HELD_BYTES)
        self.size_bytes += grown
        return grown

    def replace(self, tables: Sequence[pa.Table]) -> None:
        """Replace the changes by the result of a fold."""
        self.tables, self.size_bytes = list(tables), sum(table.nbytes for table in tables)

    def sort(self) -> pa.Table:
        """Reduce the changes to the newest of each key, sorted, and return them."""
        if not self._is_sorted:
            together = concat_changes(self.tables)
            self.tables = []
            self.replace([newest_sorted(together)])
            self._is_sorted = True
        return self.tables[0]


@dataclass(slots=True)
class _Spilled:
    """A sorted stream on the disk, its level of merges, and the bytes of its largest frame."""

    queue: SpillQueue
    level: int
    frame_bytes: int = 1


class SortedTail(Closing):
    """The changes of a tail, added in offset order within each partition. Spills to `directories` in turn."""

    def __init__(
        self, *, fold_bytes: int, directories: tuple[Path, ...], open_file: OpenSpillFile | None = None
    ) -> None:
        self._fold_bytes = min(fold_bytes, _MOST_BYTES)
        self._frame_bytes = max(_LEAST_FRAME_BYTES, self._fold_bytes // (2 * _AT_ONCE))
        self._directories = cycle(
            directories[first:] + directories[:first] for first in range(max(1, len(directories)))
        )
        self._open_file = open_file
        self._piles: dict[int, PartitionChanges] = {}
        self._held_bytes = 0
        self._spilled: list[_Spilled] = []
        self._lock = Lock()  # Held while queues are added or removed, never while they are written or read.
        self._is_closed = False

    def add(self, partition: int, changes: pa.RecordBatch, held_bytes: int = 0) -> None:
        """Add the next changes of a partition, as `PartitionChanges.add`.

        Raises StorageFull, StoreUnavailable, ConfigError for unusable directories, ClosedError.
        """
        if not changes.num_rows:
            return
        self._held_bytes += self._piles.setdefault(partition, PartitionChanges()).add(changes, held_bytes)
        if self._held_bytes > self._fold_bytes:
            self._fold()

    def finish(self) -> None:
        """End the tail: merge the streams on disk until one merge can read all. Raises the errors of `add`."""
        while len(self._spilled) > (most := self._fan_in(self._spilled)):
            self._merge_last(most)

    def streams(self) -> list[Iterator[pa.Table]]:
        """Return the sorted streams of the changes, oldest first, with one row for each key in each. Read them once."""
        newest = self._sorted()
        if self._spilled:
            newest = (piece for table in newest for piece in cut_by_bytes(table, self._frame_bytes))
        return [*(_drain(spilled.queue) for spilled in self._spilled), newest]

    def close(self) -> None:
        """Release the disk. Idempotent."""
        with self._lock:
            self._is_closed = True
            for spilled in self._spilled:
                spilled.queue.close()

    def _fold(self) -> None:
        """Sort. If that frees less than half, spill, because the next fold would come too soon."""
        for pile in self._piles.values():
            pile.sort()
        self._held_bytes = sum(pile.size_bytes for pile in self._piles.values())
        if self._held_bytes > self._fold_bytes // 2:
            self._spill(self._sorted(), level=0)
            self._held_bytes = 0
            while (count := self._full_level()) > 0:
                self._merge_last(count)

    def _sorted(self) -> Iterator[pa.Table]:
        """Yield the changes in memory, by partition. Each is released before the next is sorted."""
        for partition in sorted(self._piles):
            yield self._piles.pop(partition).sort()

    def _fan_in(self, members: Sequence[_Spilled]) -> int:
        """Return how many of these streams may be read at once, by the size of their frames."""
        largest = max((spilled.frame_bytes for spilled in members), default=1)
        return max(2, min(_AT_ONCE, _AT_ONCE * self._frame_bytes // largest))

    def _full_level(self) -> int:
        """Return the number of streams of the last level if it is full, else 0."""
        members = [spilled for spilled in self._spilled if spilled.level == self._spilled[-1].level]
        return len(members) if len(members) >= self._fan_in(members) else 0

    def _merge_last(self, count: int) -> None:
        """Merge the last `count` streams into one of the next level."""
        old = self._spilled[-count:]
        tables = merge_streams([_drain(spilled.queue) for spilled in old], drop_deletes=False)
        self._spill(tables, level=1 + max(spilled.level for spilled in old))
        with self._lock:
            del self._spilled[-count - 1 : -1]

    def _spill(self, tables: Iterable[pa.Table], *, level: int) -> None:
        queue = SpillQueue(
            memory_bytes=0, segment_bytes=_SEGMENT_BYTES, directories=next(self._directories), open_file=self._open_file
        )
        spilled = _Spilled(queue, level)
        with self._lock:
            if self._is_closed:
                raise ClosedError("the tail was closed")
            self._spilled.append(spilled)
        for batch in cut_to_frames(tables, self._frame_bytes):
            spilled.frame_bytes = max(spilled.frame_bytes, batch.nbytes)
            queue.put(_encoded(batch))
        queue.end()


def _encoded(batch: pa.RecordBatch) -> memoryview:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return memoryview(sink.getvalue())


def _drain(queue: SpillQueue) -> Iterator[pa.Table]:
    while (data := queue.take()) is not None:
        with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
            yield reader.read_all()
    queue.close()


def cut_to_frames(tables: Iterable[pa.Table], frame_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield the tables in a row as non-empty batches of about `frame_bytes` at most. A larger row has its own batch;
    small tables are joined, because every frame costs calls.
    """
    waiting: list[pa.Table] = []
    waiting_bytes = 0
    for table in tables:
        waiting.append(table)
        waiting_bytes += table.nbytes
        if waiting_bytes >= frame_bytes:
            yield from _cut(waiting, frame_bytes)
            waiting, waiting_bytes = [], 0
    yield from _cut(waiting, frame_bytes)


def _cut(tables: list[pa.Table], frame_bytes: int) -> Iterator[pa.RecordBatch]:
    for batch in concat_changes(tables).combine_chunks().to_batches() if tables else ():
        yield from chunk_slices(batch, frame_bytes, _MOST_ROW_BYTES)


# ---- in memory


SLICE_KEY_BYTES = 1 << 30
"""The most key bytes that are compared at once: half of the largest Arrow array."""
_SMALL_ROWS, _SMALL_BYTES = 2048, 1 << 20
_JOINED_TABLES = _KEY_SAMPLES = 64
_LARGE_ROW_BYTES, _LARGE_ROWS_BYTES = 4 << 10, 64 << 20


def newest(tables: Sequence[pa.Table], *, keep_deletes: bool, max_key_bytes: int = SLICE_KEY_BYTES) -> list[pa.Table]:
    """Return the tables without rows that a later row of their key replaces, and without deletes by default."""
    filled = _joined([table for table in tables if table.num_rows])
    if not filled:
        return []
    halves = _halves(filled, max_key_bytes)
    if halves is not None:
        return [one for half in halves for one in newest(half, keep_deletes=keep_deletes, max_key_bytes=max_key_bytes)]
    groups = pa.concat_arrays([chunk for table in filled for chunk in table.column("key_group").chunks])
    keys = pa.concat_arrays([chunk for table in filled for chunk in table.column("key").chunks])
    keep, left, start = is_last_row(groups, keys), list[pa.Table](), 0
    for table in filled:
        mine = keep[start : start + table.num_rows]
        start += table.num_rows
        if not keep_deletes:
            mine = mine & (numbers_of(table.column("op")) != DELETE)
        if mine.all():
            left.append(table)
        elif mine.any():
            left.append(table.take(column_of(np.flatnonzero(mine))))
    return left


def _joined(tables: Sequence[pa.Table]) -> list[pa.Table]:
    """Join small neighbours, because every table has a cost of its own. Few rows of large values stay as they are: else
    each fold would copy them.
    """
    joined: list[pa.Table] = []
    for is_small, group in groupby(tables, _is_small):
        found = list(group)
        if is_small and len(found) > 1:
            joined += [
                concat_changes(found[i : i + _JOINED_TABLES]).combine_chunks()
                for i in range(0, len(found), _JOINED_TABLES)
            ]
        else:
            joined += found
    return joined


def _is_small(table: pa.Table) -> bool:
    return table.num_rows < _SMALL_ROWS and table.get_total_buffer_size() < _SMALL_BYTES


def _halves(tables: Sequence[pa.Table], max_key_bytes: int) -> tuple[list[pa.Table], list[pa.Table]] | None:
    """Cut the tables in two, by key group or within one by key, if their keys are too large to compare at once."""
    if sum(table.column("key").nbytes for table in tables) <= max_key_bytes:
        return None
    name, places = "key_group", sorted({int(one) for table in tables for one in np.unique(key_groups_of(table))})
    if len(places) < 2:
        steps = [(table.column("key"), max(1, table.num_rows // _KEY_SAMPLES)) for table in tables]
        name, places = "key", sorted({keys[row].as_py() for keys, step in steps for row in range(0, len(keys), step)})
    if len(places) < 2:
        return None
    middle = column_of_rows([places[len(places) // 2]], tables[0].schema.field(name).type)[0]
    lower = [table.filter(pc.less(table.column(name), middle)) for table in tables]
    upper = [table.filter(pc.greater_equal(table.column(name), middle)) for table in tables]
    return lower, upper


def select_key_groups(batch: pa.RecordBatch, wanted: Collection[int]) -> pa.RecordBatch:
    """Return the changes of the wanted key groups, in their order."""
    mask = np.isin(numbers_of(batch.column("key_group")), np.asarray(list(wanted), np.int64))
    return batch if mask.all() else batch.filter(column_of(mask))


class MemoryTail:
    """The tail in memory, by partition.

    When more unfolded changes than `fold_bytes`, and than folded ones, have come, the partition with most of them is
    folded. So memory stays near twice the newest changes, or these and `fold_bytes`. Deletes are retained, because runs
    below may have the deleted keys.
    """

    def __init__(self, *, fold_bytes: int) -> None:
        self._fold_bytes = fold_bytes
        self._piles: dict[int, PartitionChanges] = {}
        self._folded: dict[int, int] = {}
        self._folded_bytes = self._held_bytes = 0

    def add(self, partition: int, changes: pa.RecordBatch, held_bytes: int = 0) -> None:
        """Add the next changes of a partition, in offset order, as `PartitionChanges.add`."""
        if not changes.num_rows:
            return
        self._held_bytes += self._piles.setdefault(partition, PartitionChanges()).add(changes, held_bytes)
        if self._held_bytes - self._folded_bytes > max(self._fold_bytes, self._folded_bytes):
            self._fold(max(self._piles, key=lambda one: self._piles[one].size_bytes - self._folded.get(one, 0)))

    def _fold(self, partition: int) -> None:
        pile, folded = self._piles[partition], self._folded.get(partition, 0)
        before = pile.size_bytes
        pile.replace(newest(pile.tables, keep_deletes=True))
        self._folded[partition] = pile.size_bytes
        self._held_bytes += pile.size_bytes - before
        self._folded_bytes += pile.size_bytes - folded

    def tables(self, partition: int) -> list[pa.Table]:
        """Hand over a partition's changes, oldest first, with repeated keys, as `live` and `sorted` do."""
        pile = self._piles.pop(partition, None)
        return [] if pile is None else pile.tables

    def live(self, partition: int) -> list[pa.Table]:
        """Hand over the live rows of a partition, in no order."""
        return newest(self.tables(partition), keep_deletes=False)

    def sorted(self, partition: int, most_bytes: int = _MOST_BYTES) -> list[pa.Table]:
        """Hand over the newest changes of a partition by (key group, key). At most `most_bytes` are sorted at once, and
        less of large rows: they are few, and a sort copies them twice.
        """
        tables = self.tables(partition)
        size_bytes = sum(table.nbytes for table in tables)
        if size_bytes > _LARGE_ROW_BYTES * sum(table.num_rows for table in tables):
            most_bytes = min(most_bytes, _LARGE_ROWS_BYTES)
        if size_bytes > most_bytes:
            tables = newest(tables, keep_deletes=True)
        ends = np.cumsum([table.nbytes for table in tables])
        piles = [[tables[i] for i in pile] for _, pile in groupby(range(len(tables)), lambda i: ends[i] // most_bytes)]
        frame_bytes, streams = max(1, most_bytes // max(1, len(piles))), list[Iterator[pa.Table]]()
        del tables
        while piles:  # Each is released once it is sorted.
            streams.append(cut_by_bytes(newest_sorted(concat_changes(piles.pop(0))), frame_bytes))
        return list(merge_streams(streams, drop_deletes=False))
