"""Logs for the benchmarks: make, fill and delete them."""

import contextlib
import uuid
from collections.abc import Generator, Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import xxhash

from bench.workload import Pairs
from statelog.kafka.port import OffsetRange, Record
from statelog.log import Log, LogOptions, Where
from statelog.producer import Writer
from statelog.recovery import recover
from statelog.schemas.arrays import taken
from statelog.schemas.changes.replay_plan import ReplayPlan, joined
from statelog.schemas.key_groups import key_groups_of, partition_starts

__all__ = [
    "IN_LEDGER",
    "bench_log",
    "bench_where",
    "bulk_append",
    "least_chunks",
    "passed_over",
    "put_singly",
    "read_records",
]

PARTITIONS = 8
IN_LEDGER = -1
_KEY_GROUPS = 128
_PIECE_ROWS = 50_000
_HEAD_BYTES = 96
_STALL_S = 60


@contextlib.contextmanager
def bench_log(
    bootstrap: str, root: Path, *, partitions: int = PARTITIONS, value_schema: str | None = None
) -> Generator[Log]:
    """Yield a new log, with bytes as values unless a schema is given; delete it at the end."""
    name = f"bench-{uuid.uuid4().hex[:12]}"
    where = bench_where(bootstrap, root)
    with Log.create(name, where, LogOptions(partitions=partitions, value_schema=value_schema)) as log:
        yield log
    Log.delete(name, where)


def bench_where(bootstrap: str, root: Path) -> Where:
    """Return the place of a benchmark's logs, on one broker."""
    waived = ("replication", "min-insync")
    return Where({"bootstrap.servers": bootstrap}, str(root), allow_unsafe=waived, replication_factor=1)


def bulk_append(log: Log, found: list[pa.RecordBatch], commits: int) -> None:
    """Append all batches in `commits` commits."""
    with Writer(log, "bench") as writer:
        last = writer.last_commit
        next_id = last.checkpoint.id + 1 if last else 1
        every = max(1, len(found) // commits)
        for i, batch in enumerate(found, 1):
            writer.append_batch(batch)
            if i % every == 0 or i == len(found):
                writer.commit(checkpoint_id=next_id)
                next_id += 1


def least_chunks(found: list[pa.RecordBatch]) -> Iterator[tuple[int, bytes]]:
    """Yield minimal chunks by partition: only key groups, their order, rows moved and serialized, and a checksum."""
    starts = partition_starts(PARTITIONS, _KEY_GROUPS)
    for whole in found:
        for start in range(0, whole.num_rows, _PIECE_ROWS):
            batch = whole.slice(start, _PIECE_ROWS)
            groups = key_groups_of(batch.column("key"), _KEY_GROUPS)
            order = np.argsort(groups.astype(np.uint8), kind="stable")
            columns = [
                pa.array(groups),
                pa.array(np.zeros(len(groups), np.uint8)),
                *batch.select(["key", "value"]).columns,
            ]
            moved = taken(pa.RecordBatch.from_arrays(columns, ["key_group", "op", "key", "value"]), order)
            for partition, (first, end) in enumerate(pairwise(np.searchsorted(groups[order], starts).tolist())):
                body = moved.slice(first, end - first).serialize()
                yield partition, b"".join((bytes(_HEAD_BYTES), xxhash.xxh3_64_digest(body), body))


def put_singly(writer: Writer, few: Pairs, commits: int) -> None:
    """Put one change after the other, and wait for each of `commits` commits."""
    put, every = writer.put, len(few) // commits
    for number, (key, value) in enumerate(few, 1):
        put(key, value)
        if number % every == 0:
            writer.commit(checkpoint_id=number)
    writer.commit(checkpoint_id=len(few) + 1)


def read_records(log: Log) -> Iterator[Record]:
    """Yield every record that a recovery plans to read, by the client alone."""
    with recover(log) as recovery:
        yield from read_planned(log, recovery.plan.replay)


def read_planned(log: Log, plan: ReplayPlan) -> Iterator[Record]:
    """Yield every record that the plan names, by the client alone. Those of the ledger have the partition IN_LEDGER."""
    with closing(log.kafka.reader(log.data_topic)) as reader:
        for number in range(max(map(len, plan.ranges.values()), default=0)):
            wanted = {
                partition: OffsetRange(*found[number])
                for partition, found in plan.ranges.items()
                if number < len(found)
            }
            yield from reader.read(wanted, stall_timeout_s=_STALL_S)
    places = [(one.record.offset, one.record.offset + 1) for one in plan.carried.values()]
    with closing(log.kafka.reader(log.ledger_topic)) as reader:
        for start, end in joined(places) if places else ():
            for record in reader.read({0: OffsetRange(start, end)}, stall_timeout_s=_STALL_S):
                yield record._replace(partition=IN_LEDGER)


def passed_over(records: Iterator[Record]) -> int:
    """Read all records without using them, and return their number."""
    return sum(1 for _ in records)
