"""Finds the newest change of every key in runs and tail, in Arrow. Pure.

Tables come oldest first and have the columns key_group, op, key and value, the value already in the target's schema.

Invariants:
- Values are never joined into one array, so a slice may hold more than the 2 GiB that one Arrow array can.
- A table that keeps all its rows is passed on without a copy.
"""

from collections.abc import Collection, Sequence
from itertools import groupby, pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from statelog.reading.sorted_tail import PartitionChanges
from statelog.schemas.changes.changes import DELETE
from statelog.schemas.changes.key_order import last_rows
from statelog.schemas.snapshot.runs import key_groups_of

SLICE_KEY_BYTES = 1 << 30
"""Keys compared at once: half of what one Arrow array can hold."""
_SMALL_ROWS = 2048
_JOINED_TABLES = 64  # With chunks of at most 16 MiB, they stay below what one Arrow array can hold.


def newest(tables: Sequence[pa.Table], *, keep_deletes: bool, max_key_bytes: int = SLICE_KEY_BYTES) -> list[pa.Table]:
    """The tables, less every row that a later row of its key replaces; and less the deletes, unless they are kept."""
    filled = _joined([table for table in tables if table.num_rows])
    if not filled:
        return []
    halves = _halves(filled, max_key_bytes)
    if halves is not None:
        return [one for half in halves for one in newest(half, keep_deletes=keep_deletes, max_key_bytes=max_key_bytes)]
    keep = _last_of(filled)
    kept: list[pa.Table] = []
    start = 0
    for table in filled:
        mine = keep[start : start + table.num_rows]
        start += table.num_rows
        if not keep_deletes:
            mine = mine & (np.asarray(table.column("op"), np.uint8) != DELETE)
        if mine.all():
            kept.append(table)
        elif mine.any():
            kept.append(table.take(pa.array(np.flatnonzero(mine))))
    return kept


def _joined(tables: Sequence[pa.Table]) -> list[pa.Table]:
    """The tables, neighbours that are small made one: every table costs its own calls, however few rows it has."""
    joined: list[pa.Table] = []
    for is_small, group in groupby(tables, lambda table: table.num_rows < _SMALL_ROWS):
        found = list(group)
        if is_small and len(found) > 1:
            joined += [
                pa.concat_tables(found[i : i + _JOINED_TABLES]).combine_chunks()
                for i in range(0, len(found), _JOINED_TABLES)
            ]
        else:
            joined += found
    return joined


def _last_of(tables: Sequence[pa.Table]) -> NDArray[np.bool_]:
    groups = pa.concat_arrays([chunk for table in tables for chunk in table.column("key_group").chunks])
    keys = pa.concat_arrays([chunk for table in tables for chunk in table.column("key").chunks])
    keep = np.zeros(len(keys), np.bool_)
    keep[last_rows(groups, keys)] = True
    return keep


def _halves(tables: Sequence[pa.Table], max_key_bytes: int) -> tuple[list[pa.Table], list[pa.Table]] | None:
    """The tables cut in two by key group if their keys are too large to compare at once and there are two groups."""
    if sum(table.column("key").nbytes for table in tables) <= max_key_bytes:
        return None
    groups = np.unique(np.concatenate([np.unique(key_groups_of(table)) for table in tables]))
    if len(groups) < 2:
        return None
    middle = pa.scalar(int(groups[len(groups) // 2]), pa.uint16())
    lower = [table.filter(pc.less(table.column("key_group"), middle)) for table in tables]
    upper = [table.filter(pc.greater_equal(table.column("key_group"), middle)) for table in tables]
    return lower, upper


def cut(table: pa.Table, starts: Sequence[int]) -> list[tuple[int, pa.Table]]:
    """A sorted table cut into partitions without a copy: `starts` are the first key group of each, and the end."""
    bounds = np.searchsorted(key_groups_of(table), np.asarray(starts, np.int64)).tolist()
    return [
        (number, table.slice(first, end - first)) for number, (first, end) in enumerate(pairwise(bounds)) if end > first
    ]


def select_key_groups(batch: pa.RecordBatch, wanted: Collection[int]) -> pa.RecordBatch:
    """The changes of the wanted key groups, in their order."""
    mask = np.isin(np.asarray(batch.column("key_group"), np.uint16), np.asarray(list(wanted), np.int64))
    return batch if mask.all() else batch.filter(pa.array(mask))


class MemoryTail:
    """The tail as it comes, by partition, folded whenever more than a bound of it has piled up.

    Deletes are kept: the runs below may hold what they delete. Memory stays near the newest changes plus the bound,
    because a partition is folded again only after as much as it holds folded has come on top.
    """

    def __init__(self, *, partitions: int, fold_bytes: int) -> None:
        self._fold_bytes = fold_bytes // max(1, partitions)
        self._piles: dict[int, PartitionChanges] = {}
        self._folded: dict[int, int] = {}

    def add(self, partition: int, changes: pa.RecordBatch) -> None:
        """The next changes of a partition, in offset order."""
        if not changes.num_rows:
            return
        pile = self._piles.setdefault(partition, PartitionChanges())
        pile.add(changes)
        folded = self._folded.get(partition, 0)
        if pile.size_bytes - folded > max(self._fold_bytes, folded):
            pile.replace(newest(pile.tables(), keep_deletes=True))
            self._folded[partition] = pile.size_bytes

    def tables(self, partition: int) -> list[pa.Table]:
        """What a partition holds, oldest first; a key may still come more than once."""
        pile = self._piles.get(partition)
        return [] if pile is None else pile.tables()
