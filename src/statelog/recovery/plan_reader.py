"""`PlanReader`: reads the tail and, concurrently, the first row groups of runs on other threads, then merges them.

The tail comes from local copies or from Kafka. Reads are retried while a broker or a store is briefly unavailable.

Runs and a sorted tail merge row group by row group, for every target. So memory holds the tail and a few row groups, in
addition to the output. A tail without runs is folded by partition, and not sorted for targets that need no order.

Invariants:
- Only changes of wanted key groups come out, with their values in the requested schema.
- Nothing comes out before the tail has ended and all its checks have passed.
- Callbacks and lease renewals run only in the caller's thread, between two steps. A failure there, or in any other
  thread, stops the others and is raised.
- A bounded number and size of row groups is read ahead, so that several requests are in flight. With one thread in the
  settings, row groups on a local disk are not read ahead.
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
from statelog.recovery.settings import RecoverySettings, tuning_of
from statelog.schemas.snapshot.run_ref import lanes
from statelog.schemas.snapshot.runs import key_groups_of
from statelog.store.merge import Job, Lane, LanePart, Prefetch, merge_streams

_LOG = logging.getLogger("statelog.recovery")
_WAIT_S = 0.05
_AHEAD = 12
_AHEAD_BYTES = 64 << 20
_AT_ONCE = 8
"""The most row groups of one request, so that a small run is opened once."""
T = TypeVar("T")


class Phase(StrEnum):
    """The phase of a recovery."""

    READ = "read"
    """Reading the tail of the log, and runs."""
    LOAD = "load"
    """Folding to the last change per key, and filling the target."""
    DONE = "done"
    """The target is complete."""


OnStep = Callable[[Phase], object]
"""A progress callback, called between two steps."""


class PlanReader:
    """One pass over a plan.

    Between two steps `hold` is renewed, and `on_step` called. The caller holds `opener` while this reads. `runs_read`
    and `tail_read` count the input; `loaded` is the share of the wanted key groups that have come out.
    """

    def __init__(
        self,
        log: Log,
        plan: Plan,
        settings: RecoverySettings,
        on_step: OnStep | None = None,
        *,
        hold: Hold | None = None,
        converter: Converter | None = None,
        opener: RunOpener | None = None,
        environment: Environment | None = None,
    ) -> None:
        """Make a reader. Defaults: the settings' `converter`, an `opener` on the store, the hold's `environment`."""
        self.log = log
        self.plan = plan
        self.environment = environment or (hold.environment if hold else Environment())
        self.runs_read = ReadCount()
        self.tail_read = ReadCount()
        self.loaded = 0.0
        self._settings = settings
        self._on_step = on_step
        self._hold = hold
        self.converter = converter or Converter(log, settings.value_schema_id)
        """Defines the `schema` of the output (key_group, op, key, value), and the `target` schema of its values.

        Tables with rows that may have a due have that column, too: a pass may yield tables with it and without it.
        """
        self._opener = opener or RunOpener(log)
        self._stop = Event()
        self._grace_s = GRACE_S

    def share_through(self, key_group: int) -> float:
        """Return the share of the wanted key groups up to and including this one."""
        wanted = self.plan.key_groups
        if wanted is None:
            return (key_group + 1) / self.log.descriptor.key_groups
        return sum(group <= key_group for group in wanted) / max(1, len(wanted))

    def slices(self) -> Iterator[pa.Table]:
        """Yield the live rows of the state, in many tables: by (key group, key) if there are runs, else by partition.

        It holds the newest changes of the tail in memory, and row groups as `sorted_tables` does.
        """
        tail = MemoryTail(fold_bytes=self._settings.fold_bytes)
        with ExitStack() as opened:
            runs = self._lanes(opened)
            self._await(begin(self.environment.start, lambda: self._read_tail(tail)), Phase.READ)
            self._step(Phase.READ)  # Always report a read tail before anything is loaded.
            if runs:
                folded = self._folded(tail.sorted, Phase.READ)
                yield from self._merged([*runs, chain.from_iterable(folded)], drop_deletes=True)
                return
            for number, tables in enumerate(self._folded(tail.live, Phase.LOAD), 1):
                yield from tables
                self.loaded = number / len(self.plan.partitions)
                self._step(Phase.LOAD)

    def sorted_tables(self) -> Generator[pa.Table]:
        """Yield the live rows by (key group, key), in many tables.

        It holds the tail and some row groups: one of every lane of runs, and the ones read ahead. Raises StorageFull if
        the tail does not fit on the disk.
        """
        with self.open_tail() as tail:
            self.fill(tail)
            yield from self.merge(tail, drop_deletes=True)

    def open_tail(self) -> SortedTail:
        """Open a tail to fill, within the bounds of the settings."""
        return SortedTail(
            fold_bytes=self._settings.fold_bytes,
            directories=self._settings.directories,
            open_file=self.environment.open_spill_file,
        )

    def fill(self, tail: SortedTail) -> None:
        """Read and verify the whole tail. Raises StorageFull, Damaged, OffsetGone, Unavailable."""

        def read() -> None:
            self._read_tail(tail)
            tail.finish()

        self._await(begin(self.environment.start, read), Phase.READ)

    def merge(self, tail: SortedTail, *, drop_deletes: bool) -> Iterator[pa.Table]:
        """Yield the newest changes of the runs and a filled tail by (key group, key), in many tables."""
        with ExitStack() as opened:
            yield from self._merged([*self._lanes(opened), *tail.streams()], drop_deletes=drop_deletes)

    # ---- runs and tail

    def _merged(self, streams: Sequence[Iterator[pa.Table]], *, drop_deletes: bool) -> Iterator[pa.Table]:
        for table in merge_streams(streams, drop_deletes=drop_deletes):
            yield table
            self.loaded = self.share_through(int(key_groups_of(table)[-1]))
            self._step(Phase.READ)

    def _folded(self, fold: Callable[[int], list[pa.Table]], phase: Phase) -> Iterator[list[pa.Table]]:
        """Yield the result of `fold` for each partition of a tail, a few ahead."""
        jobs = [Job(0, partial(fold, partition)) for partition in self.plan.partitions]
        most = self._settings.threads - 1
        return Prefetch(jobs, self.environment.start, lambda result: self._await(result, phase), most=most)

    def _lanes(self, opened: ExitStack) -> list[Iterator[pa.Table]]:
        """Return the lanes of the runs, oldest first. Row groups of each are read ahead from now on."""
        parts = {part.run.path: part for part in self.plan.runs}
        found = lanes(part.run for part in self.plan.runs)
        return [self._lane([parts[run.path] for run in lane], len(found), opened) for lane in found]

    def _lane(self, parts: Sequence[RunPart], of: int, opened: ExitStack) -> Iterator[pa.Table]:
        """Return the tables of a lane's runs, one run after the other. `of` lanes share the bound on reading ahead."""
        wanted = _wanted(self.plan)
        # For local files, decoding in a second thread costs half as much again.
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
        """Yield a run's tables in the target's value schema, counted. Raises SnapshotFailed, StoreUnavailable."""
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

    def _step(self, phase: Phase) -> None:
        if self._hold is not None:
            self._hold.renew()
        if self._on_step is not None:
            self._on_step(phase)

    def _await(self, future: "Future[T]", phase: Phase) -> T:
        """Wait for the result, with steps meanwhile."""
        try:
            while not future.done():
                wait([future], _WAIT_S)
                self._step(phase)
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
    """Return the wanted key groups; adjacent ones as a range, to which a run is cut without a copy."""
    if not plan.key_groups:
        return plan.key_groups
    every = range(min(plan.key_groups), max(plan.key_groups) + 1)
    return every if len(every) == len(plan.key_groups) else sorted(plan.key_groups)


# ---- the chunks of a plan, with retries


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
    """Yield the chunks of a plan, in offset order within a partition. Close the generator.

    The chunks have the wanted changes, in the converter's value schema. `together` joins small chunks. Waits at most
    `stall_timeout_s` for an unavailable broker, and the lease's time for a store that has to give a value schema.
    Raises Damaged, OffsetGone, BrokerUnavailable, IncompatibleSchema.
    """
    if plan.replay.is_empty:
        return
    counter, pause = counter or ReadCount(), pause or Event().wait
    stall_timeout_s = tuning_of(settings).stall_timeout_s
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
            _LOG.warning("the tail is read from Kafka, because the local copies are incomplete: %s", error)
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
