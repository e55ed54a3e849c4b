"""The one replay path: materializer, recovery and Spark read committed changes here and nowhere else; `Converter`,
which makes changes of any value schema of a log, from runs and from chunks, changes of one; and `RetryingReader`, which
asks again while a broker is away for a moment.

It executes a `ReplayPlan`: fetches the planned offset ranges, decodes what a commit lists and nothing else, and fails
if anything listed is missing or differs. What cannot even be unpacked is stepped over where no commit lists it. Publish
nothing before the iterator has ended: only its end says that all that was listed is there.

What commits carry in their ledger records comes in between, so that each partition has its changes in the order of the
commits. It is read portion by portion, each before the chunks of the data topic beside it.

The time of a retry runs from the last sign of life, as a record is, or from the first question after a rest. A read
that is taken up again goes on behind the last record that came, so none comes twice and none is missed.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa

from statelog.errors import BrokerUnavailable, CorruptChunk, IncompatibleSchema, Unavailable, UnknownFormat
from statelog.kafka.errors import read_past
from statelog.kafka.port import STALL_TIMEOUT_S, OffsetRange, Reader, Record
from statelog.log import Log
from statelog.reading.carried import CarriedChanges, CommittedChunk
from statelog.schemas.changes.changes import change_schema
from statelog.schemas.changes.chunk import ChunkHead, VerifiedChunks, decode_batches, decode_head
from statelog.schemas.changes.replay_plan import PartitionCheck, ReplayPlan, plan_replay
from statelog.schemas.ledger.handle import Handle
from statelog.schemas.ledger.inline import CommitContents
from statelog.schemas.ledger.place import LastRecord
from statelog.schemas.values.schema import ValueSchema, convert

_SMALL_BYTES = 16 * 1024
_HELD_BYTES = 2 * 1024  # A record, its head and the rest of its objects.
_WAITING_BYTES = 4 << 20
_PORTION_BYTES = 16 << 20
"""So much of what ledger records carry is held at once."""
_RETRY_S = 0.2
T = TypeVar("T")


def replay(
    log: Log,
    reader: Reader | None,
    plan: ReplayPlan,
    change_schema: Callable[[int], pa.Schema] | None = None,
    *,
    stall_timeout_s: float,
    together: bool = True,
    ledger: Callable[[], Reader] | None = None,
    last: dict[int, LastRecord] | None = None,
) -> Iterator[CommittedChunk]:
    """Yield the committed chunks of `plan`, in commit order within a partition; small ones `together` as they come,
    because each costs what its objects cost.

    `reader` is one of the data topic; None if nothing there is listed. `ledger` makes one of the ledger, closed here.
    `change_schema` gives the Arrow schema of changes whose values have a schema id. At the end `last` has the last
    chunk's record of each partition. Raises IncompleteChangeSet, AnchorMismatch, CorruptChunk, Unreadable,
    UnknownFormat, OffsetGone, BeyondEnd, BrokerUnavailable.
    """
    schema = change_schema or log.change_schema
    with ExitStack() as opened:
        ledger_reader: Reader | None = None
        for part in plan.portions(_PORTION_BYTES):
            carried = CarriedChanges(log, part, schema, together=together)
            if part.carried:
                if ledger_reader is None:
                    ledger_reader = ledger() if ledger else log.kafka.reader(log.ledger_topic)
                    opened.callback(ledger_reader.close)
                carried.read(ledger_reader, stall_timeout_s=stall_timeout_s)
            replaying = _Portion(log.data_topic, part, schema, carried, together=together)
            yield from replaying.chunks(reader, stall_timeout_s=stall_timeout_s)
            if last is not None:
                last |= {one: LastRecord.of(*record[1:3]) for one, record in replaying.newest.items()}


class _Portion:
    """The replay of a portion of a plan: its data topic, with what ledger records carried in between."""

    def __init__(
        self,
        topic: str,
        plan: ReplayPlan,
        change_schema: Callable[[int], pa.Schema],
        carried: CarriedChanges,
        *,
        together: bool,
    ) -> None:
        self._topic = topic
        self._change_schema = change_schema
        self._carried = carried
        self._together = together
        self._checks = {partition: PartitionCheck(topic, partition, plan) for partition in plan.listed}
        self._waiting: dict[int, _WaitingChunks] = {}
        self.newest: dict[int, Record] = {}
        """The last chunk's record of each partition, so far."""

    def chunks(self, reader: Reader | None, *, stall_timeout_s: float) -> Iterator[CommittedChunk]:
        """The chunks that are listed, with what was carried in between. Raises as `replay`."""
        if reader is not None:
            yield from self._listed(reader, stall_timeout_s)
        yield from self._carried.rest()
        for check in self._checks.values():
            check.finish()

    def _listed(self, reader: Reader, stall_timeout_s: float) -> Iterator[CommittedChunk]:
        waiting, waiting_bytes = self._waiting, 0
        for record, head, at, commit in _listed(reader, self._topic, self._checks, stall_timeout_s=stall_timeout_s):
            partition, _, value, _ = self.newest[record.partition] = record
            is_alone = not self._together or len(value) >= _SMALL_BYTES
            if is_alone:
                yield from self._decode_all()
            yield from self._before(partition, commit)
            mine = waiting.get(partition)
            if mine is None or mine.schema_id != head.value_schema_id:
                if mine is not None:
                    yield mine.decode(self._topic, self._change_schema)
                mine = waiting[partition] = _WaitingChunks(partition, head.value_schema_id, commit)
            mine.offsets.append(record.offset)
            mine.chunks.add(value, head, at)
            waiting_bytes += len(value) + _HELD_BYTES
            if is_alone or waiting_bytes >= _WAITING_BYTES:
                yield from self._decode_all()
                waiting_bytes = 0
        yield from self._decode_all()

    def _before(self, partition: int, commit: int) -> Iterator[CommittedChunk]:
        """What earlier commits carried for a partition, behind what waits there."""
        for chunk in self._carried.before(partition, commit):
            mine = self._waiting.pop(partition, None)
            if mine is not None:
                yield mine.decode(self._topic, self._change_schema)
            yield chunk

    def _decode_all(self) -> Iterator[CommittedChunk]:
        """What waits, by partition, and then nothing does."""
        while self._waiting:
            yield self._waiting.popitem()[1].decode(self._topic, self._change_schema)


def _listed(
    reader: Reader, topic: str, checks: Mapping[int, PartitionCheck], *, stall_timeout_s: float
) -> Iterator[tuple[Record, ChunkHead, int, int]]:
    """What lies at listed offsets and belongs there, with what `decode_head` gives, and the number of its commit. What
    a foreign record stands in for is missed at the end.
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
                yield record, head, at, check.add(offset, head)


class _WaitingChunks:
    """Chunks of a partition whose values have one schema, one after the other, and where they lie."""

    __slots__ = ("chunks", "commit", "offsets", "partition", "schema_id")

    def __init__(self, partition: int, schema_id: int, commit: int) -> None:
        self.partition = partition
        self.schema_id = schema_id
        self.commit = commit
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
        return CommittedChunk(topic, self.partition, self.offsets[0], self.commit, self.schema_id, size_bytes, changes)


def verify_handle(log: Log, handle: Handle) -> None:
    """Read back the change sets of a handle. Raises Damaged, IncompleteChangeSet above all, if they are not there."""
    plan = plan_replay([CommitContents((handle,))], range(log.descriptor.partitions))
    with closing(log.kafka.reader(log.data_topic)) as reader:
        for _ in replay(log, reader, plan, stall_timeout_s=STALL_TIMEOUT_S):
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
