"""Carrying out a plan: runs in this thread and the tail in another, then the fold, slice by slice.

A slice is a partition: its key groups are adjacent, so runs are cut into slices without a copy.

Invariants:
- Nothing comes out before the tail has ended and all its checks have passed.
- Callbacks and lease renewals happen in the caller's thread only, between two steps; a failure there, or in either
  thread, stops the other one and is raised.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from threading import Event
from typing import BinaryIO, TypeVar

import pyarrow as pa

from statelog.recovery.fold import TailFold, cut, newest
from statelog.recovery.opener import DirectOpener, OneRun, RunOpener
from statelog.recovery.plan import RecoveryPlan
from statelog.recovery.progress import Phase
from statelog.recovery.settings import RecoverySettings
from statelog.recovery.sources import Converter, Counter, SnapshotFailed, run_tables, tail_changes
from statelog.recovery.spilled_tail import SpilledTail
from statelog.schemas.changes import sort_by_key
from statelog.schemas.key_groups import partition_starts
from statelog.schemas.runs import RunFile
from statelog.schemas.values import ValueSchema
from statelog.storage.log import Log
from statelog.storage.run_merge import merge_streams

__all__ = ["Beat", "Reading"]

_WAIT_S = 0.05
T = TypeVar("T")
Fold = TypeVar("Fold", TailFold, SpilledTail)

Beat = Callable[[Phase], None]
"""Called between two steps: reports progress and renews the lease."""


@dataclass(slots=True)
class Reading:
    """One pass over a plan. `beat` is called often. `converter` None means that of the settings.

    `opener` is held by the caller as long as it reads; None means the one on the log's store.
    """

    log: Log
    plan: RecoveryPlan
    settings: RecoverySettings
    beat: Beat
    converter: Converter | None = None
    opener: RunOpener | None = None
    runs_read: Counter = field(default_factory=Counter)
    tail_read: Counter = field(default_factory=Counter)
    _stop: Event = field(default_factory=Event)
    _converter: Converter = field(init=False)
    _opener: RunOpener = field(init=False)

    def __post_init__(self) -> None:
        self._converter = self.converter or Converter(self.log, self.settings)
        self._opener = self.opener or DirectOpener(self.log.store)

    @property
    def schema(self) -> pa.Schema:
        """The schema of the changes that come out: key_group, op, key, value."""
        return self._converter.schema

    @property
    def value_schema(self) -> ValueSchema:
        """The value schema of the changes that come out."""
        return self._converter.target

    def slices(self) -> Iterator[pa.Table]:
        """The live rows of the state, one table for each slice, in no order within it; all held in memory."""
        with ThreadPoolExecutor(max(2, self.settings.threads), "statelog-recovery") as pool:
            runs, tail = self._read_both(pool)
            pending = [
                pool.submit(newest, [*runs.pop(partition, []), *tail.tables(partition)], keep_deletes=False)
                for partition in self.plan.partitions
            ]
            pending.reverse()
            while pending:
                kept = self._await(pending.pop(), Phase.LOAD)
                yield pa.concat_tables(kept) if kept else self.schema.empty_table()
                self.beat(Phase.LOAD)

    def sorted_tables(self) -> Iterator[pa.Table]:
        """The live rows by (key group, key), in many tables; holds the folded tail and a few row groups."""
        with ThreadPoolExecutor(1, "statelog-recovery") as pool:
            tail = self._await(pool.submit(self._read_tail, self._tail_fold()), Phase.READ)
        yield from self._merge([self._sorted_tail(tail)], drop_deletes=True)

    def merged(self, tail: SpilledTail, *, drop_deletes: bool) -> Iterator[pa.Table]:
        """The newest changes by (key group, key), in many tables; holds what `tail` does and a few row groups.

        Raises StorageFull if the tail does not fit on the disk. The caller closes the tail.
        """
        with ThreadPoolExecutor(1, "statelog-recovery") as pool:
            self._await(pool.submit(self._read_tail, tail), Phase.READ)
        yield from self._merge(tail.streams(), drop_deletes=drop_deletes)

    def _merge(self, tail: Sequence[Iterator[pa.Table]], *, drop_deletes: bool) -> Iterator[pa.Table]:
        streams = [self._one_run(number) for number in range(len(self.plan.runs))]
        with ExitStack() as closing:
            for stream in streams:
                closing.callback(stream.close)  # Whoever keeps an error keeps what it passed, open files included.
            for table in merge_streams([*streams, *tail], drop_deletes=drop_deletes):
                yield table
                self.beat(Phase.READ)

    # ---- runs and tail

    def _read_both(self, pool: ThreadPoolExecutor) -> tuple[dict[int, list[pa.Table]], TailFold]:
        reading = pool.submit(self._read_tail, self._tail_fold())
        try:
            runs = self._read_runs(reading)
            return runs, self._await(reading, Phase.READ)
        except BaseException:
            self._stop.set()
            raise

    def _read_runs(self, tail: "Future[TailFold]") -> dict[int, list[pa.Table]]:
        descriptor = self.log.descriptor
        starts = partition_starts(descriptor.partitions, descriptor.key_groups).tolist()
        tables: dict[int, list[pa.Table]] = {}
        for number in range(len(self.plan.runs)):
            for table in self._one_run(number):
                for partition, piece in cut(table, starts):
                    tables.setdefault(partition, []).append(piece)
                self.beat(Phase.READ)
                if tail.done():
                    tail.result()  # Raises at once what the other thread met.
        return tables

    def _one_run(self, number: int) -> Generator[pa.Table]:
        part = self.plan.runs[number]
        source = OneRun(part.run.file, self._open)
        try:
            yield from run_tables(self.log, source, self.plan, part, self._converter, self.runs_read)
        except SnapshotFailed as failed:
            failed.is_copy = self._opener.distrust(part.run.file)
            raise

    def _open(self, run: RunFile) -> AbstractContextManager[BinaryIO]:
        """Open a run on a thread of its own, because a cache may have to download all of it first."""
        with ThreadPoolExecutor(1, "statelog-recovery") as pool:
            opening = pool.submit(self._opener.open, run)
            try:
                return self._await(opening, Phase.READ)
            except BaseException:
                opening.add_done_callback(_close_opened)
                raise

    def _tail_fold(self) -> TailFold:
        return TailFold(partitions=len(self.plan.partitions), fold_bytes=self.settings.fold_bytes)

    def _read_tail(self, fold: Fold) -> Fold:
        changes = tail_changes(self.log, self.plan, self._converter, self.tail_read, self.settings)
        for partition, batch in changes:
            if self._stop.is_set():
                changes.close()
                break
            fold.add(partition, batch)
        return fold

    def _sorted_tail(self, tail: TailFold) -> Iterator[pa.Table]:
        for partition in self.plan.partitions:
            kept = newest(tail.tables(partition), keep_deletes=True)
            if kept:
                yield sort_by_key(pa.concat_tables(kept).combine_chunks())

    def _await(self, future: "Future[T]", phase: Phase) -> T:
        """The result, with beats while it takes."""
        try:
            while not wait([future], _WAIT_S).done:
                self.beat(phase)
        except BaseException:
            self._stop.set()
            raise
        return future.result()


def _close_opened(opening: "Future[AbstractContextManager[BinaryIO]]") -> None:
    """Close what was opened for somebody who is gone."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().__exit__(None, None, None)
