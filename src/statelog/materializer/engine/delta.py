"""The delta of a round: the last change of every key that its commits touch, sorted, one partition after another.

Partitions hold adjacent key groups, so their sorted changes one after the other are the whole in order.

Invariants:
- Nothing is complete before the last partition's replay has ended: only then is it known that all that was listed
  is there. A caller that stops earlier must publish nothing.
- Memory holds about three times `FOLD_BYTES`, whatever the number and the size of the commits and of their values: what
  is folded beyond that waits in sorted segments in the scratch directory, and is merged as a stream.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from statelog.environment import DiskHook, no_faults
from statelog.materializer.engine.segments import Segments
from statelog.reading.converter import Converter
from statelog.schemas.changes.changes import live, newest_sorted
from statelog.schemas.changes.replay_plan import ReplayPlan
from statelog.storage.kafka import Reader
from statelog.storage.ledger_client import STALL_TIMEOUT_S
from statelog.storage.log.log import Log
from statelog.storage.replay import CommittedChunk, replay

__all__ = ["FOLD_BYTES", "delta_tables", "fold"]

FOLD_BYTES = 64 << 20


def delta_tables(
    log: Log,
    plan: ReplayPlan,
    converter: Converter,
    scratch: Path,
    *,
    drop_deletes: bool,
    fold_bytes: int = FOLD_BYTES,
    disk: DiskHook = no_faults,
) -> Iterator[pa.Table]:
    """Sorted tables with the last change of every key of the plan, values in the converter's schema.

    `drop_deletes` leaves deletes out: only right where no older run exists. Raises as `storage.replay.replay` does.
    """
    reader = log.kafka.reader(log.data_topic)
    try:
        for partition in sorted(plan.listed):
            chunks = _replay_partition(log, reader, plan, partition)
            for table in fold(chunks, converter, scratch, fold_bytes, disk):
                yield live(table) if drop_deletes else table
    finally:
        reader.close()


def _replay_partition(log: Log, reader: Reader, plan: ReplayPlan, partition: int) -> Iterator[CommittedChunk]:
    only = ReplayPlan(
        ranges={partition: plan.ranges.get(partition, ())},
        listed={partition: plan.listed[partition]},
        accepted=plan.accepted,
    )
    return replay(reader, log.data_topic, only, log.change_schema, stall_timeout_s=STALL_TIMEOUT_S)


def fold(
    chunks: Iterable[CommittedChunk],
    converter: Converter,
    scratch: Path,
    fold_bytes: int,
    disk: DiskHook = no_faults,
) -> Iterator[pa.Table]:
    """Fold one partition's chunks: in memory while they are few, else by sorted files that are merged at the end.

    Sorted tables with the last change of every key. Raises StorageFull, StoreUnavailable for the scratch directory.
    """
    waiting: list[pa.Table] = []
    size_bytes = 0
    with Segments(scratch, fold_bytes, disk) as segments:
        for chunk in chunks:
            table = pa.Table.from_batches([converter.batch(chunk.changes, chunk.value_schema_id)])
            waiting.append(table)
            size_bytes += max(chunk.size_bytes, table.nbytes)
            if size_bytes >= fold_bytes:
                segments.add(_newest(waiting))
                size_bytes = 0
        last = [_newest(waiting)] if waiting else []
        yield from segments.merged(last) if len(segments) else last


def _newest(waiting: list[pa.Table]) -> pa.Table:
    """The newest changes of what waits, which waits no more: it would double what a merge holds."""
    together = pa.concat_tables(waiting)
    waiting.clear()
    return newest_sorted(together)
