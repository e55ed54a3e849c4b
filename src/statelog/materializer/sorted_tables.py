"""The sorted tables that a task writes: what a replay comes to, and what runs come to.

A fold is of the last change of every key that the commits touch, some partitions after others: they hold adjacent key
groups, so their sorted changes one after the other are the whole in order. Partitions with little are read and sorted
together, because each read of the client and each sort has its own cost. How rows are merged: `store.merge`.

Invariants:
- A fold is complete only once the last partition's replay has ended: only then is it known that all that was listed is
  there. A caller that stops earlier must publish nothing.
- Memory holds about three times `fold_bytes` in a fold (`reading.sorted_tail`), whatever the number and the size of the
  commits and of their values, or a few megabytes of row groups for each lane of a merge, with what is read ahead:
  nothing grows with the state. Folds that go on at the same time share it.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from statelog.environment import DiskHook, Start, no_faults
from statelog.kafka.port import STALL_TIMEOUT_S
from statelog.log import Log
from statelog.materializer.work import RoundWork
from statelog.reading import CommittedChunk, Converter, SortedTail, replay
from statelog.schemas.changes.replay_plan import ReplayPlan
from statelog.schemas.ledger.place import LastRecord
from statelog.schemas.snapshot.run_ref import RunRef, lanes
from statelog.schemas.snapshot.runs import RunFile, row_groups_for
from statelog.store.disk.spill import NamelessFile
from statelog.store.merge import Lane, LanePart, merge_streams
from statelog.store.port import Store
from statelog.store.run_reader import PIECE_BYTES, open_local
from statelog.store.run_writer import WrittenRun

_TOGETHER_BYTES = 16 << 20


def delta_tables(
    log: Log,
    plan: ReplayPlan,
    converter: Converter,
    work: RoundWork,
    *,
    drop_deletes: bool,
    last: dict[int, LastRecord] | None = None,
) -> Generator[pa.Table]:
    """Sorted tables with the last change of every key of the plan, values in the converter's schema. The log may be
    another one than the work's. `drop_deletes` leaves deletes out: only right where no older run exists. Raises
    Damaged, OffsetGone, BrokerUnavailable.
    """
    reader = log.kafka.reader(log.data_topic) if plan.listed else None
    try:
        for partitions in _together(plan, min(_TOGETHER_BYTES, work.fold_bytes)):
            chunks = replay(log, reader, plan.only(partitions), stall_timeout_s=STALL_TIMEOUT_S, last=last)
            yield from fold(
                chunks,
                converter,
                work.scratch,
                drop_deletes=drop_deletes,
                fold_bytes=work.fold_bytes,
                disk=work.environment.disk,
            )
    finally:
        if reader is not None:
            reader.close()


def _together(plan: ReplayPlan, most_bytes: int) -> Iterator[list[int]]:
    """The partitions that a plan has something of, in order, neighbours together as long as they have no more than
    that.
    """
    group, left_bytes = list[int](), most_bytes
    for partition, size_bytes in plan.sizes.items():
        if group and size_bytes > left_bytes:
            yield group
            group, left_bytes = [], most_bytes
        group.append(partition)
        left_bytes -= size_bytes
    if group:
        yield group


def fold(
    chunks: Iterable[CommittedChunk],
    converter: Converter,
    scratch: Path,
    *,
    drop_deletes: bool,
    fold_bytes: int,
    disk: DiskHook = no_faults,
) -> Iterator[pa.Table]:
    """The chunks of some partitions as sorted tables, the last change of every key. Raises StorageFull,
    StoreUnavailable.
    """
    with SortedTail(fold_bytes=fold_bytes, directories=(scratch,), open_file=partial(NamelessFile, disk=disk)) as tail:
        for chunk in map(converter.chunk, chunks):
            tail.add(0, chunk.changes, chunk.size_bytes)  # One pile: what is sorted at once, whatever the partitions.
        tail.finish()
        yield from merge_streams(tail.streams(), drop_deletes=drop_deletes)


def merged_runs(
    store: Store,
    runs: Iterable[RunRef],
    key_groups: range,
    converter: Converter,
    start: Start,
    newer: Sequence[Iterable[pa.Table]] = (),
    *,
    drop_deletes: bool,
    local: Mapping[str, WrittenRun] | None = None,
) -> Generator[pa.Table]:
    """Sorted tables with the newest change of every key, of runs in manifest order and `newer` sorted streams behind
    them. What is `local`, by path, is read there. Raises Damaged, NotFound, Unavailable, and what the streams raise.
    """
    local = local or {}

    def opening(run: RunFile) -> AbstractContextManager[BinaryIO]:
        written = local.get(run.path)
        return open_local(written.local, run.path) if written else store.open(run.path)

    with ExitStack() as opened:
        streams: list[Iterable[pa.Table]] = []
        for mine in lanes(runs):
            parts = [_part(run, key_groups) for run in mine]
            lane = Lane(
                parts,
                opening,
                None if store.url.startswith("file:") else start,
                lambda found: found.result(),
                most=1,
                most_bytes=PIECE_BYTES,
                most_row_groups=2,
            )
            opened.callback(_release, lane)
            streams.append(_converted(mine, lane, converter))
        yield from merge_streams([*streams, *newer], drop_deletes=drop_deletes)


def _part(run: RunRef, key_groups: range) -> LanePart:
    is_whole = key_groups.start <= run.first_key_group and run.end_key_group <= key_groups.stop
    return LanePart(run, row_groups_for(run.index, key_groups), None if is_whole else key_groups)


def _release(lane: Lane) -> None:
    wait(lane.close())


def _converted(runs: Sequence[RunRef], lane: Lane, converter: Converter) -> Iterator[pa.Table]:
    for run, tables in zip(runs, lane, strict=True):
        yield from (converter.table(table, run.value_schema_id) for table in tables if table.num_rows)
