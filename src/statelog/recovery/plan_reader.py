"""`PlanReader`: reads the tail, and the first row groups of runs meanwhile, on other threads, then merges them.

The tail comes from local copies or from Kafka, which is asked again while a broker or a store is away for a moment.

Runs and a sorted tail merge row group by row group, whatever the target: so beside what has come out, memory holds the
tail and a few row groups. A tail without runs is folded by partition, and not sorted for targets that need no order.

Invariants:
- Only changes of wanted key groups come out, with their value in the one schema that was asked for.
- Nothing comes out before the tail has ended and all its checks have passed.
- Callbacks and lease renewals happen in the caller's thread only, between two steps; a failure there, or in any other
  thread, stops the others and is raised.
- A few row groups are read ahead, so that several requests are in flight; how many, and how large, is bounded. Whose
  settings have one thread reads none ahead that lie on a local disk.
- Stopping waits only briefly for the other threads: one that waits for a broker or a store ends later by itself.
"""

import logging
import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, closing
from enum import StrEnum
from functools import partial
from itertools import chain
from threading import Event
from typing import TypeVar

import pyarrow as pa

from statelog.environment import GRACE_S, Environment, begin
from statelog.errors import Corrupt, CorruptRun, NotFound, StoreUnavailable, UnknownFormat
from statelog.kafka.port import Reader
from statelog.log import Log
from statelog.reading import (
    CommittedChunk,
    Converter,
    Hold,
    LocalCopyReader,
    MemoryTail,
    Pause,
    Plan,
    ReadCount,
    RetryingReader,
    RetryWindow,
    RunPart,
    SortedTail,
    replay,
    select_key_groups,
)
from statelog.recovery.runs import RunOpener
from statelog.recovery.settings import RecoverySettings
from statelog.schemas.snapshot.run_ref import lanes
from statelog.schemas.snapshot.runs import key_groups_of
from statelog.store.merge import Job, Lane, LanePart, Prefetch, merge_streams

_LOG = logging.getLogger("statelog.recovery")
_WAIT_S = 0.05
_AHEAD = 12
_AHEAD_BYTES = 64 << 20
_AT_ONCE = 8
"""So many row groups one request reads: a small run is opened once."""
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
        self.converter = converter or Converter(log, settings.value_schema_id)
        """Gives what comes out (key_group, op, key, value) its `schema`, and its values theirs, the `target`."""
        self._opener = opener or RunOpener(log)
        self._stop = Event()
        self._grace_s = GRACE_S

    def share_through(self, key_group: int) -> float:
        """The share of the wanted key groups up to and including this one."""
        wanted = self.plan.key_groups
        if wanted is None:
            return (key_group + 1) / self.log.descriptor.key_groups
        return sum(group <= key_group for group in wanted) / max(1, len(wanted))

    def slices(self) -> Iterator[pa.Table]:
        """The live rows of the state, in many tables: by (key group, key) if there are runs, else by partition.

        Holds the newest changes of the tail in memory, and of the runs what `sorted_tables` does.
        """
        tail = MemoryTail(fold_bytes=self._settings.fold_bytes)
        with ExitStack() as opened:
            runs = self._lanes(opened)
            self._await(begin(self.environment.start, lambda: self._read_tail(tail)), Phase.READ)
            self._beat(Phase.READ)  # All of the tail, and nothing loaded, is reported however quickly it was read.
            if runs:
                folded = self._folded(tail.sorted, Phase.READ)
                yield from self._merged([*runs, chain.from_iterable(folded)], drop_deletes=True)
                return
            for number, tables in enumerate(self._folded(tail.live, Phase.LOAD), 1):
                yield from tables
                self.loaded = number / len(self.plan.partitions)
                self._beat(Phase.LOAD)

    def sorted_tables(self) -> Generator[pa.Table]:
        """The live rows by (key group, key), in many tables.

        Holds what a tail does and some row groups: one of every lane of runs, and those that are read ahead. Raises
        StorageFull if the tail does not fit on the disk.
        """
        with self.open_tail() as tail:
            self.fill(tail)
            yield from self.merge(tail, drop_deletes=True)

    def open_tail(self) -> SortedTail:
        """A tail to fill, within the bounds of the settings."""
        return SortedTail(
            fold_bytes=self._settings.fold_bytes,
            directories=self._settings.directories,
            open_file=self.environment.open_spill_file,
        )

    def fill(self, tail: SortedTail) -> None:
        """Read the tail whole, and verify it. Raises StorageFull, Damaged, OffsetGone, Unavailable."""

        def read() -> None:
            self._read_tail(tail)
            tail.finish()

        self._await(begin(self.environment.start, read), Phase.READ)

    def merge(self, tail: SortedTail, *, drop_deletes: bool) -> Iterator[pa.Table]:
        """The newest changes by (key group, key) of runs and a tail that was filled, in many tables."""
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
        wanted = _wanted(self.plan)
        # One thread decodes what lies here by itself: a second one that decodes for it costs half as much again.
        is_alone = self._settings.threads == 1 and self.log.store.url.startswith("file:")
        lane = Lane(
            (LanePart(part.run, part.row_groups, wanted) for part in parts),
            self._opener.open,
            None if is_alone else self.environment.start,
            lambda result: self._await(result, Phase.READ),
            most=max(2, _AHEAD // of),
            most_bytes=_AHEAD_BYTES // of,
            most_row_groups=_AT_ONCE,
        )
        opened.callback(lambda: self._wait_shortly(lane.close()))
        return chain.from_iterable(self._tables_of(part, tables) for part, tables in zip(parts, lane, strict=True))

    def _tables_of(self, part: RunPart, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        """What is read of a run in the target's value schema, counted. Raises SnapshotFailed, StoreUnavailable."""
        spans = [part.run.index.row_groups[number] for number in part.row_groups]
        try:
            for span, table in zip(spans, tables, strict=True):
                self.runs_read.add(span.rows, span.size_bytes)
                if table.num_rows:
                    yield self.converter.table(table, part.run.value_schema_id)
        except (CorruptRun, NotFound) as error:
            raise self._opener.failed(part.run, error, self.plan.manifest_number) from error

    def _read_tail(self, fold: MemoryTail | SortedTail) -> None:
        chunks = committed_chunks(
            self.log,
            self.plan,
            self.converter,
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
            self._stop.set()
            self._wait_shortly([future])
            raise
        return future.result()

    def _wait_shortly(self, futures: "Sequence[Future[T]]") -> None:
        """Wait for abandoned work; all such waits share one short time."""
        started_s = time.monotonic()
        wait(futures, self._grace_s)
        self._grace_s = max(0.0, self._grace_s - (time.monotonic() - started_s))


def _wanted(plan: Plan) -> Collection[int] | None:
    """The wanted key groups; adjacent ones as a range, which a run is cut to without a copy."""
    if not plan.key_groups:
        return plan.key_groups
    every = range(min(plan.key_groups), max(plan.key_groups) + 1)
    return every if len(every) == len(plan.key_groups) else sorted(plan.key_groups)


# ---- patiently, from wherever it is


def committed_chunks(
    log: Log,
    plan: Plan,
    converter: Converter,
    settings: RecoverySettings,
    *,
    clock: Callable[[], float],
    counter: ReadCount | None = None,
    pause: Pause | None = None,
    together: bool = True,
) -> Generator[CommittedChunk]:
    """The chunks of a plan, with their wanted changes in the converter's value schema, in offset order within a
    partition, small ones `together`. Raises Damaged, OffsetGone, BrokerUnavailable, IncompatibleSchema.

    A broker that is away for less than `stall_timeout_s` is waited for, and so is a store that has to be asked for a
    value schema, for less than the time of the lease. Close the generator.
    """
    if plan.replay.is_empty:
        return
    counter, pause = counter or ReadCount(), pause or Event().wait
    stall_timeout_s = settings.stall_timeout_s
    schemas = RetryWindow(settings.lease_ttl_s, clock)

    def patient(topic: str) -> Reader:
        return RetryingReader(log.kafka.reader(topic), RetryWindow(stall_timeout_s, clock), pause)

    def from_kafka() -> Reader:
        return patient(log.data_topic)

    def schema(schema_id: int) -> pa.Schema:
        return schemas.call(lambda: log.change_schema(schema_id), pause)

    reader: Reader | None = None
    if settings.local_copies is not None:
        try:
            reader = LocalCopyReader(settings.local_copies, log.name, plan.replay, from_kafka)
        except (NotFound, Corrupt, UnknownFormat, StoreUnavailable) as error:
            _LOG.warning("the tail is read from Kafka, because the local copies do not hold all of it: %s", error)
    counter.is_local = reader is not None
    if reader is None and plan.replay.listed:
        reader = from_kafka()
    try:
        chunks = replay(
            log,
            reader,
            plan.replay,
            schema,
            stall_timeout_s=stall_timeout_s,
            together=together,
            ledger=lambda: patient(log.ledger_topic),
        )
        for chunk in chunks:
            counter.add(chunk.changes.num_rows, chunk.size_bytes)
            yield converter.chunk(chunk if plan.key_groups is None else _of_key_groups(chunk, plan.key_groups))
    finally:
        if reader is not None:
            reader.close()


def _of_key_groups(chunk: CommittedChunk, key_groups: Collection[int]) -> CommittedChunk:
    changes = select_key_groups(chunk.changes, key_groups)
    return chunk if changes is chunk.changes else chunk._replace(changes=changes, size_bytes=changes.nbytes)
