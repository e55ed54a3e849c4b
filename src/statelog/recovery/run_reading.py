"""One run, read ahead of its consumer by row group: several requests to the store are in flight at once, and a row
group is decoded while the one before is used. Never folds.

Invariants:
- Only changes of wanted key groups come out, with their value in the one schema that was asked for.
- A run that is missing or damaged is SnapshotFailed, which tells it apart from anything else that can be missing.
- A file serves one thread at a time; it is kept for the next one that asks. After `close` none stays open: one that is
  in use is closed by the thread that uses it.
- Begun ahead are only as many jobs, and of as many bytes, as the allowance grants to all who share it. The job whose
  result is needed next is begun in any case.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from functools import partial
from itertools import chain
from threading import Lock
from typing import BinaryIO, Generic, NamedTuple, TypeVar

import pyarrow as pa

from statelog.environment import Start, begin
from statelog.errors import ClosedError, CorruptRun, NotFound
from statelog.reading.converter import Converter
from statelog.reading.plan import Plan, RunPart
from statelog.reading.planner import SnapshotFailed
from statelog.recovery.tail import ReadCount
from statelog.schemas.snapshot.runs import RunFile
from statelog.storage.log.log import Log
from statelog.storage.run_reader import KeyBounds, RunReader

_JOB_BYTES = 1 << 20
T = TypeVar("T")


class RunHandles:
    """The open files of a run, which `opening` opens. Thread-safe; closed by its maker."""

    def __init__(self, run: RunFile, opening: Callable[[RunFile], AbstractContextManager[BinaryIO]]) -> None:
        self._run = run
        self._opening = opening
        self._lock = Lock()
        self._idle: list[RunReader] = []
        self._is_closed = False

    def row_groups(self, numbers: Sequence[int], wanted: Collection[int] | None) -> list[pa.Table]:
        """The changes of the wanted key groups (None: all) of some row groups, a table for each, verified.

        Raises CorruptRun, NotFound, StoreUnavailable, ClosedError.
        """
        reader = self._take()
        try:
            return [reader.row_group(number, wanted) for number in numbers]
        finally:
            self._put_back(reader)

    def key_bounds(self) -> list[KeyBounds | None]:
        """The bounds of the keys of each row group, as the verified footer has them. Raises CorruptRun, NotFound,
        StoreUnavailable, ClosedError.
        """
        reader = self._take()
        try:
            return reader.key_bounds()
        finally:
            self._put_back(reader)

    def close(self) -> None:
        """Close what is open. Idempotent."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for reader in idle:
            reader.close()

    def _take(self) -> RunReader:
        with self._lock:
            if self._is_closed:
                raise ClosedError("a run was read after it was closed")
            if self._idle:
                return self._idle.pop()
        return RunReader(self._opening(self._run), self._run)

    def _put_back(self, reader: RunReader) -> None:
        with self._lock:
            if not self._is_closed:
                self._idle.append(reader)
                return
        reader.close()


class Job(NamedTuple, Generic[T]):
    """Some work, and about how many bytes its result holds."""

    size_bytes: int
    work: Callable[[], T]


class Allowance:
    """What may be begun ahead, by all who share this together: `most` jobs, of `most_bytes`."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._left = most
        self._left_bytes = most_bytes

    def take(self, size_bytes: int) -> bool:
        """Whether one more job may be begun; then it counts until it is given back."""
        if not self._left or size_bytes > self._left_bytes:
            return False
        self._left -= 1
        self._left_bytes -= size_bytes
        return True

    def give_back(self, size_bytes: int) -> None:
        """A job is ahead no more."""
        self._left += 1
        self._left_bytes += size_bytes


class Prefetch(Iterator[T]):
    """The results of `jobs`, whose first ones are begun at once. `wait` waits for one, and raises its error."""

    def __init__(
        self, jobs: Iterable[Job[T]], start: Start, allowance: Allowance, wait: "Callable[[Future[T]], T]"
    ) -> None:
        self._left = deque(jobs)
        self._start = start
        self._allowance = allowance
        self._wait = wait
        self._under_way: deque[tuple[int, Future[T]]] = deque()
        self._begin_ahead()

    def __next__(self) -> T:
        if self._under_way:
            size_bytes, result = self._under_way.popleft()
            self._allowance.give_back(size_bytes)
        elif self._left:
            result = begin(self._start, self._left.popleft().work)
        else:
            raise StopIteration
        self._begin_ahead()
        return self._wait(result)

    def close(self) -> "list[Future[T]]":
        """Begin no more, and drop what is under way, which ends by itself, and is returned. Idempotent."""
        self._left.clear()
        dropped = list(self._under_way)
        self._under_way.clear()
        for size_bytes, _ in dropped:
            self._allowance.give_back(size_bytes)
        return [future for _, future in dropped]

    def _begin_ahead(self) -> None:
        while self._left and self._allowance.take(self._left[0].size_bytes):
            size_bytes, work = self._left.popleft()
            self._under_way.append((size_bytes, begin(self._start, work)))


def run_jobs(plan: Plan, part: RunPart, handles: RunHandles) -> list[Job[list[pa.Table]]]:
    """What is read of one run: the wanted changes, sorted, a table for each row group; small row groups together.

    Each job that is read at the same time as another needs an open file of its own, so it has to be worth one.
    """
    wanted, index = _wanted(plan), part.run.index.row_groups
    jobs: list[Job[list[pa.Table]]] = []
    numbers: list[int] = []
    size_bytes = 0
    for number in part.row_groups:
        numbers.append(number)
        size_bytes += index[number].size_bytes
        if size_bytes >= _JOB_BYTES or number == part.row_groups[-1]:
            jobs.append(Job(size_bytes, partial(handles.row_groups, numbers, wanted)))
            numbers, size_bytes = [], 0
    return jobs


def run_tables(
    log: Log,
    plan: Plan,
    part: RunPart,
    results: Iterable[list[pa.Table]],
    converter: Converter,
    counter: ReadCount,
) -> Iterator[pa.Table]:
    """The results of a run's jobs in the target's value schema, counted. Raises SnapshotFailed, StoreUnavailable."""
    spans = [part.run.index.row_groups[number] for number in part.row_groups]
    try:
        for span, table in zip(spans, chain.from_iterable(results), strict=True):
            counter.add(span.rows, span.size_bytes)
            if table.num_rows:
                yield converter.table(table, part.run.value_schema_id)
    except CorruptRun as error:
        raise SnapshotFailed(error) from error
    except NotFound as error:
        raise SnapshotFailed(_missing(log, plan, part)) from error


def _wanted(plan: Plan) -> Collection[int] | None:
    """The wanted key groups; adjacent ones as a range, which a run is cut to without a copy."""
    if not plan.key_groups:
        return plan.key_groups
    first, last = min(plan.key_groups), max(plan.key_groups)
    adjacent = last - first + 1 == len(plan.key_groups)
    return range(first, last + 1) if adjacent else sorted(plan.key_groups)


def _missing(log: Log, plan: Plan, part: RunPart) -> NotFound:
    return NotFound(
        "a run that the snapshot names is gone",
        log=log.name,
        manifest=plan.manifest_number,
        path=part.run.path,
        url=log.store.url,
        hint="Restore the file from a copy of the store, or recover from an older snapshot while the log reaches back",
    )
