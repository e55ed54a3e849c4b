"""Reads runs ahead, lane by lane, and merges sorted streams, such as lanes, into one, in bounded memory.

A `Lane` reads runs that have no key group in common in sequence. Several requests to the store are in flight at once,
and a row group is decoded while the one before is used. In every step of a merge all streams yield the changes up to
one bound, the lowest end of the loaded tables; `merge_tables` merges those. So memory holds about one table of each
stream, and the read-ahead, even if a single key group is larger than memory.

Invariants:
- One step merges at most `MOST_BYTES`, unless single rows exceed that: an Arrow column is limited to 2 GiB.
- Each lane has its own limits for jobs and bytes in flight: with a shared limit, one lane could starve another. The job
  whose result is needed next is begun in any case. Bytes are those of the file; the number of row groups bounds the
  decoded size.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import chain, islice
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from statelog.environment import Start, begin, inline
from statelog.schemas.changes.changes import merge_tables
from statelog.schemas.snapshot.runs import RunFile, key_groups_of
from statelog.store.run_reader import OpenRun, RunHandles, pieces

T = TypeVar("T")

MOST_BYTES = 1 << 30
_Place = tuple[int, Any]


def merge_streams(
    streams: Sequence[Iterable[pa.Table]], *, drop_deletes: bool, most_bytes: int = MOST_BYTES
) -> Iterator[pa.Table]:
    """Merge streams of sorted tables, oldest stream first, into one.

    A table of the result is merged from at most `most_bytes`, or from one row of each stream.
    """
    opened = [_Cursor(iter(stream)) for stream in streams]
    cursors: list[_Cursor] = [cursor for cursor in opened if cursor.filled]
    while cursors:
        bound = _bound(cursors, most_bytes)
        merged = merge_tables([cursor.take_through(bound) for cursor in cursors], drop_deletes=drop_deletes)
        if merged.num_rows:
            yield merged
        cursors = [cursor for cursor in cursors if cursor.filled]


def _bound(cursors: Sequence["_Cursor"], most_bytes: int) -> _Place:
    """Return the bound of this step: the lowest end of the loaded tables, or lower to stay within `most_bytes`."""
    bound = min(cursor.last for cursor in cursors)
    if sum(cursor.loaded_bytes for cursor in cursors) <= most_bytes:
        return bound
    while True:
        offers = [cursor.through(bound) for cursor in cursors]
        if sum(offer.nbytes for offer in offers) <= most_bytes:
            return bound
        largest = max((offer for offer in offers if offer.num_rows > 1), key=lambda offer: offer.nbytes, default=None)
        if largest is None:
            return bound
        bound = _place(largest, largest.num_rows // 2 - 1)


class _Cursor:
    """The loaded, not yet merged rest of one stream. Loads the next table when the last one is used up."""

    def __init__(self, tables: Iterator[pa.Table]) -> None:
        self._tables = tables
        self._load()

    def _load(self) -> None:
        loaded = next((table for table in self._tables if table.num_rows), None)
        self.filled = loaded is not None
        if loaded is not None:
            self._rest = loaded
            self.loaded_bytes = loaded.nbytes
            self.last = _place(loaded, loaded.num_rows - 1)

    def through(self, bound: _Place) -> pa.Table:
        return self._rest if self.last <= bound else self._rest.slice(0, _rows_through(self._rest, bound))

    def take_through(self, bound: _Place) -> pa.Table:
        """Remove and return the changes up to and including `bound`."""
        taken = self.through(bound)
        self._rest = self._rest.slice(taken.num_rows)
        if not self._rest.num_rows:
            self._load()
        return taken


def _place(table: pa.Table, row: int) -> _Place:
    return table.column("key_group")[row].as_py(), table.column("key")[row].as_py()


def _rows_through(table: pa.Table, bound: _Place) -> int:
    """Count the rows at or below `bound`: by key group first, then by bisection of that key group's keys."""
    key_group, key = bound
    start, end = (int(i) for i in np.searchsorted(key_groups_of(table), [key_group, key_group + 1]))
    keys = table.column("key")
    return start + bisect_right(range(start, end), key, key=lambda row: keys[row].as_py())


# ---- read ahead


class Job(NamedTuple, Generic[T]):
    """Work, and about how many bytes its result holds."""

    size_bytes: int
    work: Callable[[], T]


class Prefetch(Iterator[T]):
    """The results of `jobs`, at most `most` of them, and `most_bytes`, in flight.

    `wait` returns the result of one, or raises its error.
    """

    def __init__(
        self, jobs: Iterable[Job[T]], start: Start, wait: "Callable[[Future[T]], T]", *, most: int, most_bytes: int = 0
    ) -> None:
        self._left = deque(jobs)
        self._start = start
        self._wait = wait
        self._most = most
        self._most_bytes = most_bytes
        self._in_flight: deque[tuple[int, Future[T]]] = deque()
        self._begin_ahead()

    def __next__(self) -> T:
        if self._in_flight:
            size_bytes, result = self._in_flight.popleft()
            self._most_bytes += size_bytes
        elif self._left:
            result = begin(self._start, self._left.popleft().work)
        else:
            raise StopIteration
        self._begin_ahead()
        return self._wait(result)

    def close(self) -> "list[Future[T]]":
        """Begin no more jobs. Return those in flight, which end by themselves. Idempotent."""
        self._left.clear()
        dropped = [future for _, future in self._in_flight]
        self._in_flight.clear()
        return dropped

    def _begin_ahead(self) -> None:
        while self._left and len(self._in_flight) < self._most and self._left[0].size_bytes <= self._most_bytes:
            size_bytes, work = self._left.popleft()
            self._most_bytes -= size_bytes
            self._in_flight.append((size_bytes, begin(self._start, work)))


class LanePart(NamedTuple):
    """Row groups of a run, and the wanted key groups of them; None: all."""

    run: RunFile
    row_groups: Sequence[int]
    wanted: Collection[int] | None


class Lane:
    """Parts of runs, read in their order from now on.

    Iterating yields for each part its tables, one for each row group, to be used before the next part. These raise
    CorruptRun, NotFound, StoreUnavailable, and the errors of `wait`.
    """

    def __init__(
        self,
        parts: Iterable[LanePart],
        opening: OpenRun,
        start: Start | None,
        wait: "Callable[[Future[list[pa.Table]]], list[pa.Table]]",
        *,
        most: int,
        most_bytes: int,
        most_row_groups: int,
    ) -> None:
        """Begin to read. One request reads at most `most_row_groups`, as all of them are decoded before use.

        Without a `start` nothing is read ahead: for a local file a thread costs more than it saves.
        """
        self._handles: list[RunHandles] = []
        self._jobs: list[list[Job[list[pa.Table]]]] = []
        for run, row_groups, wanted in parts:
            files, spans = RunHandles(run, opening), run.index.row_groups
            self._handles.append(files)
            self._jobs.append(
                [
                    Job(sum(spans[number].size_bytes for number in piece), partial(files.row_groups, piece, wanted))
                    for piece in pieces(spans, row_groups, most=most_row_groups)
                ]
            )
        jobs = chain.from_iterable(self._jobs)
        self._ahead = Prefetch(jobs, start or inline, wait, most=most if start else 0, most_bytes=most_bytes)

    def __iter__(self) -> Iterator[Iterator[pa.Table]]:
        for files, mine in zip(self._handles, self._jobs, strict=True):
            yield chain.from_iterable(islice(self._ahead, len(mine)))
            files.close()

    def close(self) -> "list[Future[list[pa.Table]]]":
        """Read no more. Return the reads in flight, which end by themselves, and leave no file open. Idempotent."""
        dropped = self._ahead.close()
        for files in self._handles:
            files.close()
        return dropped
