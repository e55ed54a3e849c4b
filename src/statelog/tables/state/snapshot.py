"""`RemoteSnapshot`: the state of one snapshot, read from its runs where they lie: by key, by range, or whole.

    find      by key       the row groups of all runs that may hold it, at the same time; the newest run decides
    between   by range     of one key group, in the order of the keys
    tables    whole        of some key groups, merged as a recovery merges them

The manifest's index says which row groups of a run hold a key group. If there are several, the statistics in the file's
footer give their least and greatest keys. The rows of a decoded row group are sorted by (key group, key), with one for
each key. A search bisects them in Arrow's buffers, in some microseconds, and makes objects of the compared rows only.

Invariants:
- All runs are read, newest first, before a key is said not to exist.
- A row group is left out only if its statistics prove that the key is not in it. They are bounds, not keys: a writer
  may have cut them short, so keys that begin with the greatest one may still be there.
- The cache holds decoded row groups, within its bound and none larger than it. A range holds a portion of each run
  besides.
- All data is verified. A run that is missing or damaged is SnapshotFailed, never "no such key".
"""

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from statelog.environment import Environment
from statelog.errors import CorruptRun, NotFound
from statelog.log import Log
from statelog.reading import Converter, Hold, make_plan
from statelog.recovery import RecoverySettings
from statelog.recovery.plan_reader import PlanReader
from statelog.recovery.runs import RunOpener
from statelog.schemas.arrays import binary_column, column_of
from statelog.schemas.changes.changes import DELETE
from statelog.schemas.snapshot.manifest import Manifest
from statelog.schemas.snapshot.run_ref import RunRef
from statelog.store.merge import merge_streams
from statelog.store.run_reader import KeyBounds, RunHandles

T = TypeVar("T")
SortableKey = Any
"""The bytes of a key, or its number: keys of one log compare by it."""

_ROW_BYTES = 16
"""The memory of a row besides its columns."""
_LEAST_PORTION_BYTES = 8 << 10
"""The least portion of each run that is open for a range, whatever the cache's bound."""


def sortable(key: bytes | str | int | None) -> SortableKey | None:
    """Return the bytes or the number that a key compares by; None stays None, no bound."""
    return key.encode() if isinstance(key, str) else key


class RowGroup:
    """The rows of one row group, decoded. `size_bytes` is about what they take in memory."""

    __slots__ = ("_groups", "_keys", "_ops", "_rows", "size_bytes")

    def __init__(self, table: pa.Table) -> None:
        whole = table.combine_chunks()
        self._rows = whole.to_batches()[0] if whole.num_rows else pa.RecordBatch.from_pylist([], schema=whole.schema)
        self._groups = np.asarray(self._rows.column("key_group"), np.uint16)
        self._ops = np.asarray(self._rows.column("op"), np.uint8)
        self._keys = _keys_of(self._rows.column("key"))
        self.size_bytes = self._rows.nbytes + _ROW_BYTES * self._rows.num_rows

    def find(self, key_group: int, key: SortableKey) -> int | None:
        """Return the row of a key, given as `sortable` returns it; None if there is none."""
        start, end = self._bounds(key_group)
        row = bisect_left(self._keys, key, start, end)
        return row if row < end and self._keys[row] == key else None

    def between(self, key_group: int, start: SortableKey | None, end: SortableKey | None) -> range:
        """Return the rows of a key group from the key `start` on and below `end` (None: no bound)."""
        first, behind = self._bounds(key_group)
        low = first if start is None else bisect_left(self._keys, start, first, behind)
        high = behind if end is None else bisect_left(self._keys, end, low, behind)
        return range(low, high)

    def last_key(self, rows: range, most_bytes: int) -> SortableKey:
        """Return the first key of the last ones of these rows that together have so many bytes."""
        return self._keys[rows[-min(len(rows), self.rows_in(most_bytes))]]

    def rows_in(self, most_bytes: int) -> int:
        """Estimate how many rows have so many bytes; at least one."""
        return max(1, most_bytes // max(1, self.size_bytes // max(1, self._rows.num_rows)))

    def rows_through(self, passed: "RowGroup") -> int:
        """Count the rows up to the key of the first row of `passed`, inclusive."""
        return bisect_right(self._keys, passed._keys[0], *self._bounds(int(passed._groups[0])))

    def row(self, row: int) -> pa.RecordBatch | None:
        """Return a row as a batch of one, None for a delete."""
        return None if self._ops[row] == DELETE else self._rows.slice(row, 1)

    def copy(self, rows: range) -> pa.Table:
        """Copy some adjacent rows, without references to the others."""
        return pa.Table.from_batches([self._rows.take(column_of(np.arange(rows.start, rows.stop)))])

    def _bounds(self, key_group: int) -> tuple[int, int]:
        start, end = np.searchsorted(self._groups, [key_group, key_group + 1])
        return int(start), int(end)


class RowGroupCache:
    """An LRU cache of row groups, by run and number. Belongs to one thread."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._held: OrderedDict[tuple[str, int], RowGroup] = OrderedDict()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    def get(self, path: str, number: int) -> RowGroup | None:
        """Return a cached row group, and mark it as the last used; None if there is none."""
        found = self._held.get((path, number))
        if found is not None:
            self._held.move_to_end((path, number))
        return found

    def put(self, path: str, number: int, row_group: RowGroup) -> None:
        """Add a row group, and drop the least recently used ones beyond the bound."""
        if row_group.size_bytes > self.most_bytes or (path, number) in self._held:
            return
        self._held[path, number] = row_group
        self.size_bytes += row_group.size_bytes
        while self.size_bytes > self.most_bytes:
            _, dropped = self._held.popitem(last=False)
            self.size_bytes -= dropped.size_bytes


class _ByteKeys:
    """The bytes of binary or text keys by row."""

    __slots__ = ("_data", "_offsets")

    def __init__(self, column: pa.Array) -> None:
        parts = binary_column(column)
        self._offsets = memoryview(np.ascontiguousarray(parts.offsets, np.int32))  # type: ignore[arg-type]  # a buffer
        self._data = memoryview(parts.data)  # type: ignore[arg-type]  # as above

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, row: int) -> bytes:
        return bytes(self._data[self._offsets[row] : self._offsets[row + 1]])


def _keys_of(column: pa.Array) -> "_ByteKeys | memoryview[int]":
    if not pa.types.is_int64(column.type):
        return _ByteKeys(column)
    return memoryview(np.ascontiguousarray(column, np.int64))  # type: ignore[arg-type]  # a buffer of its numbers


def may_hold(bounds: KeyBounds | None, key: SortableKey) -> bool:
    """Return whether a row group with these bounds may hold a key."""
    return bounds is None or (bounds.least <= key and may_reach(bounds, key, None))


def may_reach(bounds: KeyBounds | None, start: SortableKey | None, end: SortableKey | None) -> bool:
    """Return whether it may hold keys from `start` on and below `end` (None: no bound)."""
    if bounds is None:
        return True
    if end is not None and end <= bounds.least:
        return False
    greatest: SortableKey = bounds.greatest
    return start is None or start <= greatest or (isinstance(start, bytes) and start.startswith(greatest))


class RemoteRun:
    """One run. Any thread may read row groups; all else belongs to the table's thread. Close it to close files."""

    def __init__(self, ref: RunRef, access: "SnapshotAccess") -> None:
        self.ref = ref
        self._access = access
        self._handles = RunHandles(ref, access.opener.open)
        self._of_group: dict[int, tuple[int, ...]] = {}
        self._bounds: Future[list[KeyBounds | None]] | None = None

    def warm(self) -> None:
        """Fetch the footer on another thread: the first read by key needs it, and the open file."""
        if self._bounds is None:
            self._bounds = self._access.environment.begin(partial(self._translated, self._handles.key_bounds))

    def chosen(self, key_group: int, is_wanted: Callable[[KeyBounds | None], bool]) -> list[int]:
        """Return the numbers of a key group's row groups with wanted bounds, in the order of the keys.

        Bounds are only checked if there are several. Raises SnapshotFailed, StoreUnavailable, ClosedError.
        """
        numbers = self._of_group.get(key_group)
        if numbers is None:
            spans = enumerate(self.ref.index.row_groups)
            found = (number for number, span in spans if span.first_key_group <= key_group < span.end_key_group)
            numbers = self._of_group[key_group] = tuple(found)
        if len(numbers) < 2:
            return list(numbers)
        bounds = self._known_bounds()
        return [number for number in numbers if is_wanted(bounds[number])]

    def row_group(self, number: int) -> RowGroup:
        """Read and decode a row group, with values in the table's schema. Raises the errors of `chosen`."""
        table = self._translated(lambda: self._handles.row_groups([number], None)[0])
        return RowGroup(self._access.converter.table(table, self.ref.value_schema_id))

    def close(self) -> None:
        """Close its files. Idempotent."""
        self._handles.close()

    def _known_bounds(self) -> list[KeyBounds | None]:
        """Return the bounds of all row groups. After a failure the next call fetches the footer again."""
        self.warm()
        assert self._bounds is not None
        try:
            return self._bounds.result()
        except BaseException:
            self._bounds = None
            raise

    def _translated(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except (CorruptRun, NotFound) as error:
            raise self._access.opener.failed(self.ref, error) from error


class SnapshotAccess:
    """The settings, cache and helpers that all snapshots of one table share."""

    def __init__(self, log: Log, settings: RecoverySettings, environment: Environment, cache_bytes: int) -> None:
        self.log = log
        self.settings = settings
        self.environment = environment
        self.opener = RunOpener(log, settings.cache)
        self.converter = Converter(log, settings.value_schema_id)
        self.cache = RowGroupCache(cache_bytes)


class RemoteSnapshot:
    """The runs of a manifest, under their lease. Belongs to the table's thread, but for `tables`. Close it."""

    def __init__(self, manifest: Manifest, access: SnapshotAccess, lease: Hold) -> None:
        self.manifest, self.lease = manifest, lease
        self._access = access
        self._runs = [RemoteRun(ref, access) for ref in manifest.runs]
        self._of_group: dict[int, list[RemoteRun]] = {}
        for run in self._runs:
            run.warm()

    def find(self, key_group: int, key: SortableKey) -> pa.RecordBatch | None:
        """Return a key's row as a batch of one, or None. Raises SnapshotFailed, StoreUnavailable, ClosedError."""
        is_wanted = partial(may_hold, key=key)
        chosen = [(run, n) for run in self._newest_first(key_group) for n in run.chosen(key_group, is_wanted)]
        for row_group in self._row_groups(chosen):
            row = row_group.find(key_group, key)
            if row is not None:
                return row_group.row(row)
        return None

    def between(
        self, key_group: int, start: SortableKey | None, end: SortableKey | None, *, streams: int
    ) -> Iterator[pa.Table]:
        """Iterate over the rows of a key group from `start` on and below `end`, sorted, without deletes, as tables.

        `streams`: how many key groups are read at the same time, and share the memory. Raises the errors of `find`.
        """
        runs = self._newest_first(key_group)[::-1]
        most_bytes = self._portion_bytes(streams * len(runs))
        tables = [self._portions(run, key_group, (start, end), most_bytes) for run in runs]
        return merge_streams(tables, drop_deletes=True)

    def last_few(
        self, key_group: int, start: SortableKey | None, end: SortableKey | None, *, streams: int
    ) -> SortableKey | None:
        """Return the least key whose rows up to `end` fit into the portions of `between`, in each run. None if no row
        is at or above `start`. Raises the errors of `find`.
        """
        runs, found = self._newest_first(key_group), list[SortableKey]()
        most_bytes = self._portion_bytes(streams * len(runs))
        for run in runs:
            for number in run.chosen(key_group, partial(may_reach, start=start, end=end))[::-1]:
                row_group = self._held(run, number)
                if rows := row_group.between(key_group, start, end):
                    found.append(row_group.last_key(rows, most_bytes))
                    break
        return max(found, default=None)

    def tables(self, key_groups: frozenset[int], on_step: Callable[[], None]) -> Generator[pa.Table]:
        """Yield the rows of some key groups by (key group, key), as tables, without the cache. Call `on_step` often.
        On any one thread. Raises the errors of `find`.
        """
        access = self._access
        plan = make_plan(access.log.descriptor, self.manifest, self.manifest, (), key_groups)
        reader = PlanReader(
            access.log, plan, access.settings, lambda _: on_step(),
            converter=access.converter, opener=access.opener, environment=access.environment,
        )  # fmt: skip
        yield from reader.sorted_tables()

    def close(self) -> None:
        """Close the runs' files, and release the lease. Idempotent."""
        with self.lease:
            for run in self._runs:
                run.close()

    def _newest_first(self, key_group: int) -> list[RemoteRun]:
        runs = self._of_group.get(key_group)
        if runs is None:
            wanted = (run for run in self._runs if run.ref.first_key_group <= key_group < run.ref.end_key_group)
            runs = self._of_group[key_group] = list(wanted)[::-1]
        return runs

    def _row_groups(self, chosen: Sequence[tuple[RemoteRun, int]]) -> Generator[RowGroup]:
        """Yield these row groups. All that are not cached are fetched at once, with the first of them."""
        cache = self._access.cache
        held = {(run, number): cache.get(run.ref.path, number) for run, number in chosen}
        for run_and_number in chosen:
            row_group = held[run_and_number]
            if row_group is None:
                first, *others = (one for one in chosen if held[one] is None)
                ahead = {one: self._access.environment.begin(partial(one[0].row_group, one[1])) for one in others}
                row_group = first[0].row_group(first[1])  # This thread waits anyway.
                fetched = {first: row_group, **{one: result.result() for one, result in ahead.items()}}
                for (run, number), one in fetched.items():
                    cache.put(run.ref.path, number, one)
                held |= fetched
            yield row_group

    def _portions(
        self, run: RemoteRun, key_group: int, bounds: tuple[SortableKey | None, SortableKey | None], most_bytes: int
    ) -> Iterator[pa.Table]:
        """Yield copies of a run's rows, a few at a time, without a reference to a row group in between."""
        for number in run.chosen(key_group, partial(may_reach, start=bounds[0], end=bounds[1])):
            rows: range | None = None
            while rows is None or rows:
                row_group = self._held(run, number)
                rows = row_group.between(key_group, *bounds) if rows is None else rows
                step = row_group.rows_in(most_bytes)
                portion, rows = row_group.copy(rows[:step]), rows[step:]
                del row_group
                yield portion

    def _portion_bytes(self, portions: int) -> int:
        """Return the size of each of so many simultaneous portions."""
        return max(_LEAST_PORTION_BYTES, self._access.cache.most_bytes // max(1, portions))

    def _held(self, run: RemoteRun, number: int) -> RowGroup:
        found = self._access.cache.get(run.ref.path, number)
        if found is None:
            found = run.row_group(number)
            self._access.cache.put(run.ref.path, number, found)
        return found
