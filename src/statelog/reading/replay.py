"""The one replay path: materializer, recovery and Spark read committed changes here and nowhere else; and `Converter`,
which makes changes of any value schema of a log, from runs and from chunks, changes of one.

It executes a `ReplayPlan`: fetches the planned offset ranges, decodes what a commit lists and nothing else, and fails
if anything listed is missing or differs. What cannot even be unpacked is stepped over where no commit lists it. Publish
nothing before the iterator has ended: only its end says that all that was listed is there.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pyarrow as pa

from statelog.errors import CorruptChunk, IncompatibleSchema, UnknownFormat
from statelog.schemas.changes.changes import change_schema
from statelog.schemas.changes.chunk import decode_batch, decode_head
from statelog.schemas.changes.replay_plan import PartitionCheck, ReplayPlan, plan_replay
from statelog.schemas.ledger.handle import Handle
from statelog.schemas.ledger.records import CommitBody
from statelog.schemas.values.schema import ValueSchema, convert
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


class Converter:
    """Converts to one value schema. `newest_id` is the newest of that one and those met so far."""

    def __init__(self, log: Log, target_id: int | None = None, *, drops_fields: bool = True) -> None:
        """`target_id` is the schema to convert to, None for the newest. Without `drops_fields` values of a newer schema
        are refused even if they convert, because fields that only it has would be lost.
        """
        self._drops_fields = drops_fields
        self._log = log
        schemas = log.value_schemas
        self.target: ValueSchema = schemas.newest() if target_id is None else schemas.get(target_id)
        self.schema = change_schema(log.descriptor.key_type, self.target.arrow_type)
        self.newest_id = self.target.id

    def batch(self, changes: pa.RecordBatch, value_schema_id: int) -> pa.RecordBatch:
        """A chunk's changes. Raises IncompatibleSchema if the target is older than their schema and cannot, or may not,
        read it.
        """
        if value_schema_id == self.target.id:
            return changes
        if value_schema_id > self.target.id and not self._drops_fields:
            raise newer_values(value_schema_id, self.target.id)
        self.newest_id = max(self.newest_id, value_schema_id)
        writer = self._log.value_schemas.get(value_schema_id)
        value = convert(changes.column("value"), writer, self.target)
        return pa.RecordBatch.from_arrays([*changes.columns[:3], value], schema=self.schema)

    def table(self, changes: pa.Table, value_schema_id: int) -> pa.Table:
        """A run's changes. Raises IncompatibleSchema, as for a chunk's."""
        if value_schema_id == self.target.id:
            return changes
        batches = [self.batch(batch, value_schema_id) for batch in changes.to_batches()]
        return pa.Table.from_batches(batches, self.schema)


def newer_values(found_id: int, asked_id: int) -> IncompatibleSchema:
    """The error for values in a newer schema than requested: converting them would drop fields."""
    return IncompatibleSchema(
        "there are values of a newer schema than they are read in",
        hint="Plan the read again; in Spark load() and start the query again: a DataFrame keeps the columns of its"
        " load(). The newest schema reads all values",
        found_schema=found_id,
        asked_schema=asked_id,
    )
