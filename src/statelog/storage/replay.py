"""The one replay path: materializer, recovery and Spark read committed changes here and nowhere else.

It executes a `ReplayPlan`: fetches the planned offset ranges, decodes what a commit lists and nothing else, and fails
if anything listed is missing or differs. What cannot even be unpacked is stepped over where no commit lists it. Publish
nothing before the iterator has ended: only its end says that all that was listed is there.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pyarrow as pa

from statelog.errors import CorruptChunk, UnknownFormat
from statelog.schemas.changes.chunk import decode_batch, decode_head
from statelog.schemas.changes.replay_plan import PartitionCheck, ReplayPlan, plan_replay
from statelog.schemas.ledger.handle import Handle
from statelog.schemas.ledger.records import CommitBody
from statelog.storage.kafka import OffsetRange, Reader, Record
from statelog.storage.kafka.errors import read_past
from statelog.storage.ledger_client import STALL_TIMEOUT_S
from statelog.storage.log.log import Log


class CommittedChunk(NamedTuple):
    """The changes of one committed chunk, as they were written: with the value schema of `value_schema_id`."""

    partition: int
    offset: int
    value_schema_id: int
    size_bytes: int
    changes: pa.RecordBatch


def replay(
    reader: Reader,
    topic: str,
    plan: ReplayPlan,
    change_schema: Callable[[int], pa.Schema],
    *,
    stall_timeout_s: float,
) -> Iterator[CommittedChunk]:
    """Yield the committed chunks of `plan`, in offset order within a partition.

    `change_schema` gives the Arrow schema of changes whose values have a schema id. Raises IncompleteChangeSet,
    CorruptChunk, Unreadable, UnknownFormat, OffsetGone, BeyondEnd, BrokerUnavailable.
    """
    checks = {partition: PartitionCheck(topic, partition, plan) for partition in plan.listed}
    rounds = max((len(ranges) for ranges in plan.ranges.values()), default=0)
    for i in range(rounds):
        wanted = {p: OffsetRange(*ranges[i]) for p, ranges in plan.ranges.items() if i < len(ranges)}
        records = read_past(
            reader, wanted, stall_timeout_s=stall_timeout_s, counts=lambda p, offsets: checks[p].lists_any(*offsets)
        )
        for record in records:
            check = checks[record.partition]
            if not check.lists(record.offset):
                continue
            try:
                chunk = _decode(record, check, change_schema)
            except (CorruptChunk, UnknownFormat) as error:
                raise error.restated(topic=topic, partition=record.partition, offset=record.offset) from error
            if chunk is not None:
                yield chunk
    for check in checks.values():
        check.finish()


def _decode(record: Record, check: PartitionCheck, change_schema: Callable[[int], pa.Schema]) -> CommittedChunk | None:
    """The chunk at a listed offset. None for a foreign record: what is missing shows at the end."""
    decoded = decode_head(record.value)
    if decoded is None:
        return None
    head, at = decoded
    check.add(record.offset, head)
    changes = decode_batch(record.value, at, head, change_schema(head.value_schema_id))
    return CommittedChunk(record.partition, record.offset, head.value_schema_id, len(record.value), changes)


def verify_handle(log: Log, handle: Handle) -> None:
    """Read back the change sets of a handle. Raises Damaged, IncompleteChangeSet above all, if they are not there."""
    body = CommitBody(metadata={}, handles=(handle,))
    plan = plan_replay([body], range(log.descriptor.partitions))
    reader = log.kafka.reader(log.data_topic)
    try:
        for _ in replay(reader, log.data_topic, plan, log.change_schema, stall_timeout_s=STALL_TIMEOUT_S):
            pass
    finally:
        reader.close()
