"""The one replay path: materializer, recovery and Spark read committed changes here and nowhere else; `Converter`,
which makes changes of any value schema of a log, from runs and from chunks, changes of one; and `RetryingReader`, which
asks again while a broker is away for a moment.

It executes a `ReplayPlan`: fetches the planned offset ranges, decodes what a commit lists and nothing else, and fails
if anything listed is missing or differs. What cannot even be unpacked is stepped over where no commit lists it. Publish
nothing before the iterator has ended: only its end says that all that was listed is there.

The time of a retry runs from the last sign of life, as a record is, or from the first question after a rest. A read
that is taken up again goes on behind the last record that came, so none comes twice and none is missed.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import pyarrow as pa

from statelog.errors import BrokerUnavailable, CorruptChunk, IncompatibleSchema, Unavailable, UnknownFormat
from statelog.kafka.errors import read_past
from statelog.kafka.port import STALL_TIMEOUT_S, OffsetRange, Reader, Record
from statelog.log import Log
from statelog.schemas.changes.changes import change_schema
from statelog.schemas.changes.chunk import ChunkHead, VerifiedChunks, decode_batches, decode_head
from statelog.schemas.changes.replay_plan import PartitionCheck, ReplayPlan, plan_replay
from statelog.schemas.ledger.handle import Handle
from statelog.schemas.ledger.place import LastRecord
from statelog.schemas.ledger.records import CommitBody
from statelog.schemas.values.schema import ValueSchema, convert

_SMALL_BYTES = 16 * 1024
_HELD_BYTES = 2 * 1024  # A record, its head and the rest of its objects.
_WAITING_BYTES = 4 << 20
_RETRY_S = 0.2
T = TypeVar("T")


class CommittedChunk(NamedTuple):
    """The changes of a committed chunk, or of small ones that follow each other in their partition, the first of them
    at `offset`; as they were written: with the value schema of `value_schema_id`. They keep at most `size_bytes` in
    memory: those of the records, because they may point into one.
    """

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
    together: bool = True,
    last: dict[int, LastRecord] | None = None,
) -> Iterator[CommittedChunk]:
    """Yield the committed chunks of `plan`, in offset order within a partition; small ones `together` as they come,
    because each costs what its objects cost. `change_schema` gives the Arrow schema of changes whose values have a
    schema id. At the end `last` has the last chunk's record of each partition. Raises IncompleteChangeSet,
    AnchorMismatch, CorruptChunk, Unreadable, UnknownFormat, OffsetGone, BeyondEnd, BrokerUnavailable.
    """
    checks = {partition: PartitionCheck(topic, partition, plan) for partition in plan.listed}
    waiting: dict[int, _WaitingChunks] = {}
    waiting_bytes = 0
    newest: dict[int, Record] = {}
    for record, head, at in _listed(reader, topic, checks, stall_timeout_s=stall_timeout_s):
        partition, offset, value, _ = newest[record.partition] = record
        is_alone = not together or len(value) >= _SMALL_BYTES
        if is_alone:
            yield from _decode_all(topic, waiting, change_schema)
        mine = waiting.get(partition)
        if mine is None or mine.schema_id != head.value_schema_id:
            if mine is not None:
                yield mine.decode(topic, change_schema)
            mine = waiting[partition] = _WaitingChunks(partition, head.value_schema_id)
        mine.offsets.append(offset)
        mine.chunks.add(value, head, at)
        waiting_bytes += len(value) + _HELD_BYTES
        if is_alone or waiting_bytes >= _WAITING_BYTES:
            yield from _decode_all(topic, waiting, change_schema)
            waiting_bytes = 0
    yield from _decode_all(topic, waiting, change_schema)
    for check in checks.values():
        check.finish()
    if last is not None:
        last |= {partition: LastRecord.of(*record[1:3]) for partition, record in newest.items()}


def _listed(
    reader: Reader, topic: str, checks: Mapping[int, PartitionCheck], *, stall_timeout_s: float
) -> Iterator[tuple[Record, ChunkHead, int]]:
    """What lies at listed offsets and belongs there, with what `decode_head` gives. What a foreign record stands in for
    is missed at the end.
    """
    places = {partition: check.ranges for partition, check in checks.items()}
    rounds = max((len(ranges) for ranges in places.values()), default=0)
    for i in range(rounds):
        wanted = {p: OffsetRange(*ranges[i]) for p, ranges in places.items() if i < len(ranges)}
        records = read_past(
            reader, wanted, stall_timeout_s=stall_timeout_s, counts=lambda p, offsets: checks[p].lists_any(*offsets)
        )
        for record in records:
            partition, offset, value, _ = record
            check = checks[partition]
            if not check.lists(offset):
                check.compare(offset, value)
                continue
            try:
                decoded = decode_head(value)
            except (CorruptChunk, UnknownFormat) as error:
                raise error.restated(topic=topic, partition=partition, offset=offset) from error
            if decoded is not None:
                head, at = decoded
                check.add(offset, head)
                yield record, head, at


class _WaitingChunks:
    """Chunks of a partition whose values have one schema, one after the other, and where they lie."""

    __slots__ = ("chunks", "offsets", "partition", "schema_id")

    def __init__(self, partition: int, schema_id: int) -> None:
        self.partition = partition
        self.schema_id = schema_id
        self.offsets: list[int] = []
        self.chunks = VerifiedChunks()

    def decode(self, topic: str, change_schema: Callable[[int], pa.Schema]) -> CommittedChunk:
        """Raises CorruptChunk, which says where it lies."""
        schema = change_schema(self.schema_id)
        try:
            changes = decode_batches(self.chunks, schema)
        except CorruptChunk as error:
            for offset, one in zip(self.offsets, self.chunks.each(), strict=True):
                try:
                    decode_batches(one, schema)
                except CorruptChunk as mine:
                    raise mine.restated(topic=topic, partition=self.partition, offset=offset) from mine
            raise error.restated(topic=topic, partition=self.partition, offset=self.offsets[0]) from error
        size_bytes = sum(map(len, self.chunks.values))
        return CommittedChunk(self.partition, self.offsets[0], self.schema_id, size_bytes, changes)


def _decode_all(
    topic: str, waiting: dict[int, _WaitingChunks], change_schema: Callable[[int], pa.Schema]
) -> Iterator[CommittedChunk]:
    """What waits, by partition, and then nothing does."""
    while waiting:
        yield waiting.popitem()[1].decode(topic, change_schema)


def verify_handle(log: Log, handle: Handle) -> None:
    """Read back the change sets of a handle. Raises Damaged, IncompleteChangeSet above all, if they are not there."""
    body = CommitBody(metadata={}, handles=(handle,))
    plan = plan_replay([body], range(log.descriptor.partitions))
    with closing(log.kafka.reader(log.data_topic)) as reader:
        for _ in replay(reader, log.data_topic, plan, log.change_schema, stall_timeout_s=STALL_TIMEOUT_S):
            pass


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

    def chunk(self, chunk: CommittedChunk) -> CommittedChunk:
        """A chunk in the one schema, with the memory that it then holds. Raises IncompatibleSchema, as `batch`."""
        changes = self.batch(chunk.changes, chunk.value_schema_id)
        if changes is chunk.changes:
            return chunk
        return chunk._replace(changes=changes, size_bytes=max(chunk.size_bytes, changes.nbytes))

    def batch(self, changes: pa.RecordBatch, value_schema_id: int) -> pa.RecordBatch:
        """A chunk's changes. Raises IncompatibleSchema if the target is older and cannot, or may not, read them."""
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


# ---- asked again


Pause = Callable[[float], bool]
"""Waits so many seconds; True if the answer is no longer wanted. `Event.wait` is one."""


@dataclass(slots=True)
class ReadCount:
    """What one thread has read so far, and whether from local copies of change sets. Others may look at any time."""

    changes: int = 0
    size_bytes: int = 0
    is_local: bool = False

    def add(self, changes: int, size_bytes: int) -> None:
        """Count what was read."""
        self.changes += changes
        self.size_bytes += size_bytes


class RetryWindow:
    """Ends `limit_s` after the last sign of life. `clock`: seconds. Belongs to one thread."""

    def __init__(self, limit_s: float, clock: Callable[[], float]) -> None:
        self._limit_s = limit_s
        self._clock = clock
        self._since_s: float | None = None

    def ask(self) -> None:
        """A question begins. It counts from here, unless an earlier one got no answer."""
        if self._since_s is None:
            self._since_s = self._clock()

    def heard(self) -> None:
        """An answer, or a part of it."""
        self._since_s = None

    @property
    def is_over(self) -> bool:
        """Whether nothing was heard for too long."""
        return self._since_s is not None and self._clock() - self._since_s >= self._limit_s

    def call(self, question: Callable[[], T], pause: Pause) -> T:
        """The answer, however often it has to be asked for. Raises the last Unavailable once the window is over."""
        while True:
            self.ask()
            try:
                answer = question()
            except Unavailable:
                if self.is_over or pause(_RETRY_S):
                    raise
            else:
                self.heard()
                return answer


class RetryingReader:
    """A `Reader` that takes up what another one left when its broker went away."""

    def __init__(self, reader: Reader, retries: RetryWindow, pause: Pause) -> None:
        self._reader = reader
        self._retries = retries
        self._pause = pause

    def read(self, ranges: Mapping[int, OffsetRange], *, stall_timeout_s: float) -> Iterator[Record]:
        """Yield every record of `ranges`. Raises OffsetGone, and BrokerUnavailable once the window is over."""
        next_offsets = {partition: wanted.start for partition, wanted in ranges.items()}
        while True:
            left = {partition: OffsetRange(next_offsets[partition], wanted.end) for partition, wanted in ranges.items()}
            self._retries.ask()
            try:
                for record in self._reader.read(left, stall_timeout_s=stall_timeout_s):
                    next_offsets[record.partition] = record.offset + 1
                    yield record
                    self._retries.heard()
                    self._retries.ask()  # Only now: the consumer may have taken its time.
            except BrokerUnavailable:
                if self._retries.is_over or self._pause(_RETRY_S):
                    raise
            else:
                self._retries.heard()
                return

    def close(self) -> None:
        """Close the reader below. Idempotent."""
        self._reader.close()
