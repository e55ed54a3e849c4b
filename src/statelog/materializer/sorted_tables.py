"""The sorted tables that a task writes: the fold of a replay, and the merge of runs.

A fold yields the last change of every key that the commits touch, partition after partition. Partitions hold adjacent
key groups, so their sorted changes in sequence are in order. Small partitions are read and sorted together, because
each read and each sort has a fixed cost. `store.merge` merges rows.

Invariants:
- A fold is complete only once the last partition's replay has ended: only then is it known that no listed chunk is
  missing. A caller that stops earlier must publish nothing.
- A fold takes about three times `fold_bytes` of memory (`reading.sorted_tail`), whatever the number and size of the
  commits and of their values. A merge takes a few megabytes of row groups for each lane, read-ahead included. Nothing
  grows with the state. Concurrent folds share `fold_bytes`.
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
    """Yield sorted tables with the last change of every key of the plan, values in the converter's schema.

    `log` may be another one than the work's. `drop_deletes` is only correct if no older run exists.
    Raises Damaged, OffsetGone, BrokerUnavailable.
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
    """Yield a plan's partitions in order, in groups of neighbours that together have at most so many bytes."""
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
    """Yield the last change of every key in the chunks of some partitions, as sorted tables.

    Raises StorageFull, StoreUnavailable.
    """
    with SortedTail(fold_bytes=fold_bytes, directories=(scratch,), open_file=partial(NamelessFile, disk=disk)) as tail:
        for chunk in map(converter.chunk, chunks):
            tail.add(0, chunk.changes, chunk.size_bytes)  # All partitions are sorted together.
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
    """Yield sorted tables with the newest change of every key, of runs in manifest order and of `newer` sorted streams.

    `local`: runs that are read from local files, by path.
    Raises Damaged, NotFound, Unavailable, and the errors of the streams.
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
