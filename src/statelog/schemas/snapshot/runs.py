"""Runs: the layout of changes in one immutable Parquet file. Pure values and decisions; `store` does the I/O.

A run holds the columns `key_group` (uint16), `op` (uint8, 0 = put, 1 = delete), `key` and `value`, and `due` only if a
row has one. It has one row per key, sorted by (key group, key). It is ordinary Parquet, readable without statelog.

Invariants:
- A row group holds whole key groups, several small ones together. Only a key group larger than a row group is cut.
- The index in the manifest names every byte range of the file (row groups in order, then the footer) with its checksum.
  So a reader can verify one row group without fetching the rest.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from statelog.errors import CorruptManifest
from statelog.schemas.arrays import column_of, numbers_of, whole_column
from statelog.schemas.avro import datum_of
from statelog.schemas.changes.due import concat_changes

FORMAT_VERSION = 2
"""The version of a run with the column `due`. Others are written as version 1, the same bytes as ever."""
_UNTIMED_VERSION = 1
TARGET_ROWS = 32 * 1024
TARGET_BYTES = 4 * 1024 * 1024
_HALVED_ROWS = 1024
_SLICE_BYTES = 1  # Arrow counts a few bytes more for a key group by itself than among others.


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMetadata:
    """A label in the run's own file, for people and other tools. The manifest is the truth.

    The run covers the ledger positions from `first_position` up to, but not including, `end_position`.
    """

    log: str
    first_position: int
    end_position: int
    value_schema_id: int

    def to_parquet(self, *, due: bool = False) -> dict[str, str]:
        """Return the key-value metadata of the Parquet footer. `due`: whether the file has that column."""
        label = {"format": FORMAT_VERSION if due else _UNTIMED_VERSION, **datum_of(self)}
        return {f"statelog.{name}": str(value) for name, value in label.items()}


class RowGroupSpan(NamedTuple):
    """One row group: its key groups (the end is exclusive), and its bytes in the file.

    `checksum` is xxh3-64 over the `size_bytes` bytes from `offset`.
    """

    first_key_group: int
    end_key_group: int
    rows: int
    offset: int
    size_bytes: int
    checksum: int


_SPAN = np.dtype(
    [("first", "<u4"), ("end", "<u4"), ("rows", "<u8"), ("offset", "<u8"), ("size", "<u8"), ("checksum", "<u8")]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunIndex:
    """The row groups of a run in file order, and its footer: bytes from `footer_offset` to the end of the file."""

    row_groups: tuple[RowGroupSpan, ...]
    footer_offset: int
    footer_checksum: int

    @property
    def rows(self) -> int:
        """The number of rows of the whole run."""
        return sum(span.rows for span in self.row_groups)

    def to_bytes(self) -> bytes:
        """Encode it for the manifest: 16 bytes for the footer, then 40 bytes for each row group."""
        footer = np.array([self.footer_offset, self.footer_checksum], "<u8")
        return footer.tobytes() + np.array(list(self.row_groups), _SPAN).tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> "RunIndex":
        """Decode `to_bytes`. Raises CorruptManifest, because the bytes come from a manifest."""
        if len(data) < 16 or (len(data) - 16) % _SPAN.itemsize:
            raise CorruptManifest("a run's index has an impossible length", size_bytes=len(data))
        footer_offset, footer_checksum = (int(word) for word in np.frombuffer(data[:16], "<u8"))
        spans = tuple(RowGroupSpan(*row) for row in np.frombuffer(data[16:], _SPAN).tolist())
        return cls(row_groups=spans, footer_offset=footer_offset, footer_checksum=footer_checksum)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFile:
    """The facts of a run in its manifest: where it is, and how to verify it.

    `path` is relative to the log's directory, `sha256` is over the whole file.
    `due_rows`: the rows with a due; then `first_due_ms` and `last_due_ms` are the earliest and the latest one.
    """

    path: str
    size_bytes: int
    rows: int
    sha256: bytes
    index: RunIndex
    due_rows: int = 0
    first_due_ms: int = 0
    last_due_ms: int = 0


def row_groups_for(index: RunIndex, wanted: Collection[int]) -> list[int]:
    """Return the numbers of the row groups that may hold a wanted key group, in file order."""
    if isinstance(wanted, range) and wanted.step == 1:
        return [
            number
            for number, span in enumerate(index.row_groups)
            if wanted.start < span.end_key_group and span.first_key_group < wanted.stop
        ]
    groups = np.unique(np.fromiter(wanted, np.int64, len(wanted)))
    starts = np.searchsorted(groups, [span.first_key_group for span in index.row_groups])
    ends = np.searchsorted(groups, [span.end_key_group for span in index.row_groups])
    return [int(number) for number in np.flatnonzero(starts < ends)]


def key_groups_of(table: pa.Table) -> NDArray[np.uint16]:
    """Return the key_group column as a numpy array."""
    return numbers_of(table.column("key_group"))


def only_key_groups(table: pa.Table, wanted: Collection[int]) -> pa.Table:
    """Return the rows of a sorted table whose key group is wanted. A contiguous range costs no copy."""
    groups = key_groups_of(table)
    if isinstance(wanted, range) and wanted.step == 1:
        first, end = (int(i) for i in np.searchsorted(groups, [wanted.start, max(wanted.start, wanted.stop)]))
        return table.slice(first, end - first)
    return table.filter(column_of(np.isin(groups, np.asarray(list(wanted), np.int64))))


def first_unsorted(table: pa.Table) -> int | None:
    """Return the first row that is not strictly above the row before it by (key group, key), or None."""
    if table.num_rows < 2:
        return None
    groups = key_groups_of(table).astype(np.int32)
    key = whole_column(table.column("key"))
    not_above = numbers_of(pc.less_equal(key.slice(1), key.slice(0, len(key) - 1)))
    step = np.diff(groups)
    wrong = np.flatnonzero((step < 0) | ((step == 0) & not_above))
    return int(wrong[0]) + 1 if len(wrong) else None


class _Part(NamedTuple):
    """Rows of a table, from `start` up to `stop`."""

    table: pa.Table
    start: int
    stop: int


@dataclass(slots=True)
class _Pile:
    """Parts of tables that wait to become a row group.

    Adjacent parts of one table are joined: a row group of many small pieces takes half as long again to write.
    """

    parts: list[_Part] = field(default_factory=list[_Part])
    rows: int = 0
    size_bytes: int = 0

    def push(self, part: _Part) -> None:
        if part.stop == part.start:
            return
        self.rows += part.stop - part.start
        self.size_bytes += _table_of(part).nbytes
        last = self.parts[-1] if self.parts else None
        if last is not None and last.table is part.table and last.stop == part.start:
            self.parts[-1] = last._replace(stop=part.stop)
        else:
            self.parts.append(part)

    def push_all(self, other: "_Pile") -> None:
        """Move all parts of another pile to this one."""
        for part in other.parts:
            self.push(part)
        other.parts, other.rows, other.size_bytes = [], 0, 0

    def take(self) -> pa.Table:
        table = concat_changes([_table_of(part) for part in self.parts])
        self.parts, self.rows, self.size_bytes = [], 0, 0
        return table


def _table_of(part: _Part) -> pa.Table:
    return part.table.slice(part.start, part.stop - part.start)


class RowGroupPacker:
    """Cuts a stream of sorted tables into row groups. Holds at most about two row groups.

    `add` and `finish` yield the complete row groups; iterate both to their end.
    """

    def __init__(self, target_rows: int = TARGET_ROWS, target_bytes: int = TARGET_BYTES) -> None:
        self._target_rows = target_rows
        self._target_bytes = target_bytes
        self._whole = _Pile()  # whole key groups
        self._open = _Pile()  # the newest key group, which the next table may continue
        self._open_key_group = -1

    def add(self, table: pa.Table) -> Iterator[pa.Table]:
        """Add the next table, which starts above the last one."""
        if table.num_rows:
            yield from self._add(_Part(table, 0, table.num_rows), key_groups_of(table))

    def _add(self, part: _Part, groups: NDArray[np.uint16]) -> Iterator[pa.Table]:
        """Add a part of a table that has these key groups."""
        table, start, stop = part
        mine = groups[start:stop]
        last = start + int(np.searchsorted(mine, int(mine[-1])))
        if last > start and self._has_room(part):
            # No row group ends here. Going through the key groups one by one would take longer than the sort.
            self._whole.push_all(self._open)
            self._whole.push(_Part(table, start, last))
            self._open.push(_Part(table, last, stop))
            self._open_key_group = int(mine[-1])
        elif last > start and len(mine) >= _HALVED_ROWS:
            middle = start + int(np.searchsorted(mine, int(mine[len(mine) // 2])))
            middle = middle if middle > start else last
            yield from self._add(_Part(table, start, middle), groups)
            yield from self._add(_Part(table, middle, stop), groups)
        else:
            yield from self._add_pieces(part, mine)

    def _has_room(self, part: _Part) -> bool:
        """Return whether no row group ends before or in a part, however its key groups are counted."""
        piles, rows = (self._whole, self._open), part.stop - part.start
        size_bytes = sum(pile.size_bytes for pile in piles) + _table_of(part).nbytes + rows * _SLICE_BYTES
        return not self._over(sum(pile.rows for pile in piles) + rows, size_bytes)

    def _add_pieces(self, part: _Part, groups: NDArray[np.uint16]) -> Iterator[pa.Table]:
        """Cut where the key group changes; `groups` has the key group of each row."""
        cuts = np.flatnonzero(groups[1:] != groups[:-1]) + 1
        for start, end in pairwise([0, *cuts.tolist(), len(groups)]):
            if groups[start] != self._open_key_group:
                yield from self._close_key_group()
                self._open_key_group = int(groups[start])
            self._open.push(_Part(part.table, part.start + start, part.start + end))
            if self._over(self._open.rows, self._open.size_bytes):
                yield from self._flush_whole()
                yield from self._cut_open()

    def finish(self) -> Iterator[pa.Table]:
        """Yield the remaining row groups."""
        yield from self._close_key_group()
        yield from self._flush_whole()

    def _over(self, rows: int, size_bytes: int) -> bool:
        return rows > self._target_rows or size_bytes > self._target_bytes

    def _close_key_group(self) -> Iterator[pa.Table]:
        if self._over(self._whole.rows + self._open.rows, self._whole.size_bytes + self._open.size_bytes):
            yield from self._flush_whole()
        self._whole.push_all(self._open)

    def _flush_whole(self) -> Iterator[pa.Table]:
        if self._whole.rows:
            yield self._whole.take()

    def _cut_open(self) -> Iterator[pa.Table]:
        by_bytes = self._open.rows * self._target_bytes // max(1, self._open.size_bytes)
        step = max(1, min(self._target_rows, by_bytes))
        table = self._open.take()
        full = table.num_rows // step * step
        for start in range(0, full, step):
            yield table.slice(start, step)
        self._open.push(_Part(table, full, table.num_rows))
