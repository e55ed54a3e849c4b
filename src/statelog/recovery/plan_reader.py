"""`PlanReader`: reads the tail, and the first row groups of runs meanwhile, on other threads, then merges them.

Runs and a sorted tail merge row group by row group, whatever the target: so beside what has come out, memory holds the
tail and a few row groups. A tail without runs is folded by partition, and not sorted for targets that need no order.

Invariants:
- Nothing comes out before the tail has ended and all its checks have passed.
- Callbacks and lease renewals happen in the caller's thread only, between two steps; a failure there, or in any other
  thread, stops the others and is raised.
- A few row groups are read ahead, so that several requests are in flight; how many, and how large, is bounded.
- Stopping waits only briefly for the other threads: one that waits for a broker or a store ends later by itself.
"""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, closing
from enum import StrEnum
from functools import partial
from itertools import chain, islice
from threading import Event
from typing import TypeVar

import pyarrow as pa

from statelog.environment import GRACE_S, Environment, begin
from statelog.reading.hold import Hold
from statelog.reading.plan import Plan, RunPart
from statelog.reading.planner import SnapshotFailed
from statelog.reading.replay import Converter, ReadCount
from statelog.reading.sorted_tail import MemoryTail, SortedTail
from statelog.recovery.runs import Job, Prefetch, RunHandles, RunOpener, run_jobs, run_tables
from statelog.recovery.settings import RecoverySettings, planned_chunks, sorted_tail
from statelog.schemas.snapshot.run_ref import lanes
from statelog.schemas.snapshot.runs import key_groups_of
from statelog.schemas.values.schema import ValueSchema
from statelog.storage.log.log import Log
from statelog.storage.merge import merge_streams

_WAIT_S = 0.05
_AHEAD = 12
_AHEAD_BYTES = 64 << 20
T = TypeVar("T")


class Phase(StrEnum):
    """What a recovery is doing."""

    READ = "read"
    """Reading the tail of the log, and runs."""
    LOAD = "load"
    """Folding to the last change per key, and filling the target."""
    DONE = "done"
    """The target is complete."""


Beat = Callable[[Phase], object]
"""Called between two steps: reports progress."""


class PlanReader:
    """One pass over a plan.

    Between two steps `hold` is renewed, and `beat` called. `opener` is held by the caller as long as it reads.
    `runs_read` and `tail_read` count what was read, `loaded` is the share of the wanted key groups that have come out.
    """

    def __init__(
        self,
        log: Log,
        plan: Plan,
        settings: RecoverySettings,
        beat: Beat | None = None,
        *,
        hold: Hold | None = None,
        converter: Converter | None = None,
        opener: RunOpener | None = None,
        environment: Environment | None = None,
    ) -> None:
        """`converter` None means that of the settings, `opener` None the one on the store, `environment` None that of
        the hold.
        """
        self.log = log
        self.plan = plan
        self.environment = environment or (hold.environment if hold else Environment())
        self.runs_read = ReadCount()
        self.tail_read = ReadCount()
        self.loaded = 0.0
        self._settings = settings
        self._told = beat
        self._hold = hold
        self._converter = converter or Converter(log, settings.value_schema_id)
        self._opener = opener or RunOpener(log)
        self._stop = Event()
        self._grace_s = GRACE_S

    @property
    def schema(self) -> pa.Schema:
        """The schema of the changes that come out: key_group, op, key, value."""
        return self._converter.schema

    @property
    def value_schema(self) -> ValueSchema:
        """The value schema of the changes that come out."""
        return self._converter.target

    def share_through(self, key_group: int) -> float:
        """The share of the wanted key groups up to and including this one."""
        wanted = self.plan.key_groups
        if wanted is None:
            return (key_group + 1) / self.log.descriptor.key_groups
        return sum(group <= key_group for group in wanted) / max(1, len(wanted))

    def slices(self) -> Iterator[pa.Table]:
        """The live rows of the state, in many tables: by (key group, key) if there are runs, else by partition.

        Holds the newest changes of the tail in memory, and of the runs what `merged` does.
        """
        tail = MemoryTail(fold_bytes=self._settings.fold_bytes)
        with ExitStack() as opened:
            runs = self._lanes(opened)
            self._await(begin(self.environment.start, lambda: self._read_tail(tail)), Phase.READ)
            self._beat(Phase.READ)  # All of the tail, and nothing loaded, is told however quickly it was read.
            if runs:
                folded = self._folded(tail.sorted, Phase.READ)
                yield from self._merged([*runs, chain.from_iterable(folded)], drop_deletes=True)
                return
            for number, tables in enumerate(self._folded(tail.live, Phase.LOAD), 1):
                yield from tables
                self.loaded = number / len(self.plan.partitions)
                self._beat(Phase.LOAD)

    def sorted_tables(self) -> Generator[pa.Table]:
        """The live rows by (key group, key), in many tables. Memory and errors as `merged`."""
        with self.open_tail() as tail:
            yield from self.merged(tail, drop_deletes=True)

    def merged(self, tail: SortedTail, *, drop_deletes: bool) -> Iterator[pa.Table]:
        """The newest changes by (key group, key), in many tables.

        Holds what `tail` does and some row groups: one of every lane of runs, and those that are read ahead. Raises
        StorageFull if the tail does not fit on the disk. The caller closes the tail.
        """
        self.fill(tail)
        yield from self.merge(tail, drop_deletes=drop_deletes)

    def open_tail(self) -> SortedTail:
        """A tail to fill, within the bounds of the settings."""
        return sorted_tail(self._settings, self.environment.open_spill_file)

    def fill(self, tail: SortedTail) -> None:
        """Read the tail whole, and verify it. Raises StorageFull, Damaged, OffsetGone, Unavailable."""

        def read() -> None:
            self._read_tail(tail)
            tail.finish()

        self._await(begin(self.environment.start, read), Phase.READ)

    def merge(self, tail: SortedTail, *, drop_deletes: bool) -> Iterator[pa.Table]:
        """Runs and a tail that was filled, as `merged`."""
        with ExitStack() as opened:
            yield from self._merged([*self._lanes(opened), *tail.streams()], drop_deletes=drop_deletes)

    # ---- runs and tail

    def _merged(self, streams: Sequence[Iterator[pa.Table]], *, drop_deletes: bool) -> Iterator[pa.Table]:
        for table in merge_streams(streams, drop_deletes=drop_deletes):
            yield table
            self.loaded = self.share_through(int(key_groups_of(table)[-1]))
            self._beat(Phase.READ)

    def _folded(self, fold: Callable[[int], list[pa.Table]], phase: Phase) -> Iterator[list[pa.Table]]:
        """What `fold` makes of each partition of a tail, a few ahead."""
        jobs = [Job(0, partial(fold, partition)) for partition in self.plan.partitions]
        most = self._settings.threads - 1
        return Prefetch(jobs, self.environment.start, lambda result: self._await(result, phase), most=most)

    def _lanes(self, opened: ExitStack) -> list[Iterator[pa.Table]]:
        """The runs, oldest first, those of one ledger range as one; row groups of each are read from now on."""
        parts = {part.run.path: part for part in self.plan.runs}
        found = lanes(part.run for part in self.plan.runs)
        return [self._lane([parts[run.path] for run in lane], len(found), opened) for lane in found]

    def _lane(self, parts: Sequence[RunPart], of: int, opened: ExitStack) -> Iterator[pa.Table]:
        """The tables of some runs, one run after the other, of which row groups are read from now on, as far as that is
        allowed: `of` lanes share it.
        """
        handles = [RunHandles(part.run, self._opener.open) for part in parts]
        jobs = [run_jobs(self.plan, part, files) for part, files in zip(parts, handles, strict=True)]
        ahead = Prefetch(
            chain.from_iterable(jobs),
            self.environment.start,
            lambda result: self._await(result, Phase.READ),
            most=max(2, _AHEAD // of),
            most_bytes=_AHEAD_BYTES // of,
        )
        for files in handles:
            opened.callback(files.close)
        opened.callback(lambda: self._wait_shortly(ahead.close()))
        return chain.from_iterable(
            self._tables_of(part, files, islice(ahead, len(mine)))
            for part, files, mine in zip(parts, handles, jobs, strict=True)
        )

    def _tables_of(self, part: RunPart, handles: RunHandles, results: Iterator[list[pa.Table]]) -> Iterator[pa.Table]:
        try:
            yield from run_tables(self.log, self.plan, part, results, self._converter, self.runs_read)
        except SnapshotFailed as failed:
            failed.is_copy = self._opener.distrust(part.run)
            raise
        finally:
            handles.close()

    def _read_tail(self, fold: MemoryTail | SortedTail) -> None:
        chunks = planned_chunks(
            self.log,
            self.plan,
            self._converter,
            self._settings,
            clock=self.environment.clock,
            counter=self.tail_read,
            pause=self._stop.wait,
        )
        with closing(chunks):
            for chunk in chunks:
                if self._stop.is_set():
                    break
                fold.add(chunk.partition, chunk.changes, chunk.size_bytes)

    # ---- waiting

    def _beat(self, phase: Phase) -> None:
        if self._hold is not None:
            self._hold.renew()
        if self._told is not None:
            self._told(phase)

    def _await(self, future: "Future[T]", phase: Phase) -> T:
        """The result, with beats while it takes."""
        try:
            while not future.done():
                wait([future], _WAIT_S)
                self._beat(phase)
        except BaseException:
            self._stop_and_wait(future)
            raise
        return future.result()

    def _stop_and_wait(self, future: "Future[T]") -> None:
        self._stop.set()
        self._wait_shortly([future])

    def _wait_shortly(self, futures: "Sequence[Future[T]]") -> None:
        """Wait for abandoned work; all such waits share one short time."""
        started_s = time.monotonic()
        wait(futures, self._grace_s)
        self._grace_s = max(0.0, self._grace_s - (time.monotonic() - started_s))
