"""The one replay path: materializer, recovery and Spark read committed changes here and nowhere else. `Converter`
converts changes of runs and chunks to one value schema; `RetryingReader` retries while a broker is briefly unavailable.

`replay` executes a `ReplayPlan`: it fetches the planned offset ranges, decodes only listed chunks, and fails if one is
missing or differs. Records that cannot be unpacked are skipped if no commit lists them. Publish nothing before the
iterator has ended: only its end shows that no listed chunk is missing.

Changes inside ledger records come in between, so that each partition has its changes in the order of the commits. They
are read portion by portion, each before its chunks of the data topic.

A retry's time runs from the last record, or from the first request after a pause. A resumed read goes on behind the
last record, so none comes twice and none is missed.
"""

from collections import deque
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
from statelog.schemas.changes.due import has_due, with_due
from statelog.schemas.changes.replay_plan import PartitionCheck, ReplayPlan, plan_replay
from statelog.schemas.ledger.handle import Handle
from statelog.schemas.ledger.inline import CommitContents
from statelog.schemas.ledger.place import LastRecord
from statelog.schemas.outputs.chunk import OutputHead, decode_output_head, decode_outputs
from statelog.schemas.outputs.output import Output
from statelog.schemas.values.schema import ValueSchema, convert

_SMALL_BYTES = 16 * 1024
_HELD_BYTES = 2 * 1024  # A record, its head and the rest of its objects.
_WAITING_BYTES = 4 << 20
_PORTION_BYTES = 16 << 20
"""The most changes of ledger records that are held at once."""
_RETRY_S = 0.2
T = TypeVar("T")
H = TypeVar("H", ChunkHead, OutputHead)


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
    """Yield the committed chunks of `plan`, in commit order within a partition.

    `reader`: of the data topic; None if the plan lists no chunk there.
    `change_schema`: returns the Arrow schema of changes by the schema id of their values, without the column of dues.
    `together`: join small chunks, because each costs its objects.
    `ledger`: makes a reader of the ledger, which is closed here.
    `last`: has the record of each partition's last chunk at the end.

    Raises IncompleteChangeSet, AnchorMismatch, CorruptChunk, Unreadable, UnknownFormat, OffsetGone, BeyondEnd,
    BrokerUnavailable.
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
    """The replay of a portion of a plan: chunks of the data topic, with changes of ledger records in between."""

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
        """The record of each partition's last chunk so far."""

    def chunks(self, reader: Reader | None, *, stall_timeout_s: float) -> Iterator[CommittedChunk]:
        """Yield the listed chunks, with changes of ledger records in between. Raises the errors of `replay`."""
        if reader is not None:
            yield from self._listed(reader, stall_timeout_s)
        yield from self._carried.rest()
        for check in self._checks.values():
            check.finish()

    def _listed(self, reader: Reader, stall_timeout_s: float) -> Iterator[CommittedChunk]:
        waiting, waiting_bytes = self._waiting, 0
        for record, head, at, commit in _listed(reader, self._topic, self._checks, decode_head, stall_timeout_s):
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
        """Yield the changes that earlier commits carry for a partition, after its waiting chunks."""
        for chunk in self._carried.before(partition, commit):
            mine = self._waiting.pop(partition, None)
            if mine is not None:
                yield mine.decode(self._topic, self._change_schema)
            yield chunk

    def _decode_all(self) -> Iterator[CommittedChunk]:
        """Decode and yield all waiting chunks, by partition."""
        while self._waiting:
            yield self._waiting.popitem()[1].decode(self._topic, self._change_schema)


def _listed(
    reader: Reader,
    topic: str,
    checks: Mapping[int, PartitionCheck],
    decode: Callable[[bytes], tuple[H, int] | None],
    stall_timeout_s: float,
) -> Iterator[tuple[Record, H, int, int]]:
    """Yield the chunks at listed offsets, with the result of `decode`, and the number of their commit.

    A foreign record at a listed offset is skipped, and its chunk reported missing at the end.
    """
    planned = {partition: check.ranges for partition, check in checks.items()}
    rounds = max((len(ranges) for ranges in planned.values()), default=0)
    for i in range(rounds):
        wanted = {p: OffsetRange(*ranges[i]) for p, ranges in planned.items() if i < len(ranges)}
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
                decoded = decode(value)
            except (CorruptChunk, UnknownFormat) as error:
                raise error.restated(topic=topic, partition=partition, offset=offset) from error
            if decoded is not None:
                head, at = decoded
                yield record, head, at, check.add(offset, head)


class _WaitingChunks:
    """Chunks of a partition in a row, with values of one schema, and their offsets."""

    __slots__ = ("chunks", "commit", "offsets", "partition", "schema_id")

    def __init__(self, partition: int, schema_id: int, commit: int) -> None:
        self.partition = partition
        self.schema_id = schema_id
        self.commit = commit
        self.offsets: list[int] = []
        self.chunks = VerifiedChunks()

    def decode(self, topic: str, change_schema: Callable[[int], pa.Schema]) -> CommittedChunk:
        """Decode the chunks as one. Raises CorruptChunk with the place of the corrupt one."""
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


def listed_outputs(log: Log, reader: Reader, plan: ReplayPlan, partition: int) -> Iterator[tuple[int, list[Output]]]:
    """Yield the messages that a plan lists in a partition, chunk by chunk, with the number of their commit.

    `plan`: made of handles as `Handle.of_outputs` gives them. When a chunk comes out, all earlier commits of the plan
    are complete. Raises IncompleteChangeSet, CorruptChunk, Unreadable, UnknownFormat, OffsetGone, BeyondEnd,
    BrokerUnavailable.
    """
    topic, commits = log.data_topic, deque(dict.fromkeys(one.commit for one in plan.listed[partition].values()))
    check = PartitionCheck(topic, partition, plan)
    for record, head, at, commit in _listed(reader, topic, {partition: check}, decode_output_head, STALL_TIMEOUT_S):
        while commits[0] < commit:
            check.finish_commit(commits.popleft())
        try:
            outputs = decode_outputs(record.value, head, at)
        except CorruptChunk as error:
            raise error.restated(topic=topic, partition=partition, offset=record.offset) from error
        yield commit, outputs
    check.finish()


def verify_handle(log: Log, handle: Handle) -> None:
    """Read back the change sets and the messages of a handle. Raises Damaged, such as IncompleteChangeSet, if one is
    missing.
    """
    changes, outputs = (
        plan_replay([CommitContents((one,))], range(log.descriptor.partitions)) for one in (handle, handle.of_outputs)
    )
    with closing(log.kafka.reader(log.data_topic)) as reader:
        for _ in replay(log, reader, changes, stall_timeout_s=STALL_TIMEOUT_S):
            pass
        for partition in outputs.listed:
            for _ in listed_outputs(log, reader, outputs, partition):
                pass


class Converter:
    """Converts changes to one value schema. `newest_id`: the newest schema, of the target and the changes so far.

    `schema`: that of converted changes, but for the column of dues, which those have that had it before.
    """

    def __init__(self, log: Log, target_id: int | None = None, *, drops_fields: bool = True) -> None:
        """Choose the target, by None the newest schema. Without `drops_fields`, refuse values of a newer schema even if
        they convert, because they may have more fields.
        """
        self._drops_fields = drops_fields
        self._log = log
        schemas = log.value_schemas
        self.target: ValueSchema = schemas.newest() if target_id is None else schemas.get(target_id)
        self.schema = change_schema(log.descriptor.key_type, self.target.arrow_type)
        self.newest_id = self.target.id

    def chunk(self, chunk: CommittedChunk) -> CommittedChunk:
        """Convert a chunk, and update the memory that it holds. Raises IncompatibleSchema, as `batch`."""
        changes = self.batch(chunk.changes, chunk.value_schema_id)
        if changes is chunk.changes:
            return chunk
        return chunk._replace(changes=changes, size_bytes=max(chunk.size_bytes, changes.nbytes))

    def batch(self, changes: pa.RecordBatch, value_schema_id: int) -> pa.RecordBatch:
        """Convert a chunk's changes. Raises IncompatibleSchema if an older target cannot or may not read them."""
        if value_schema_id == self.target.id:
            return changes
        if value_schema_id > self.target.id and not self._drops_fields:
            raise newer_values(value_schema_id, self.target.id)
        self.newest_id = max(self.newest_id, value_schema_id)
        writer = self._log.value_schemas.get(value_schema_id)
        value = convert(changes.column("value"), writer, self.target)
        columns = [*changes.columns[:3], value, *changes.columns[4:]]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema_for(changes))

    def table(self, changes: pa.Table, value_schema_id: int) -> pa.Table:
        """Convert a run's changes. Raises IncompatibleSchema, as `batch`."""
        if value_schema_id == self.target.id:
            return changes
        batches = [self.batch(batch, value_schema_id) for batch in changes.to_batches()]
        return pa.Table.from_batches(batches, self._schema_for(changes))

    def _schema_for(self, changes: pa.RecordBatch | pa.Table) -> pa.Schema:
        return with_due(self.schema) if has_due(changes) else self.schema


def newer_values(found_id: int, asked_id: int) -> IncompatibleSchema:
    """Make the error for values in a newer schema than requested: converting them would drop fields."""
    return IncompatibleSchema(
        "there are values of a newer schema than they are read in",
        hint="Plan the read again, in the newest schema, which reads all values. In Spark, call load() and start the"
        " query again, because a DataFrame retains the columns of its load()",
        found_schema=found_id,
        asked_schema=asked_id,
    )


# ---- retries


Pause = Callable[[float], bool]
"""Wait for a number of seconds; return True if the answer is no longer wanted. `Event.wait` is one."""


@dataclass(slots=True)
class ReadCount:
    """The amounts that one thread has read, and whether from local copies of change sets. Any thread may read it."""

    changes: int = 0
    size_bytes: int = 0
    is_local: bool = False

    def add(self, changes: int, size_bytes: int) -> None:
        """Add changes and bytes that were read."""
        self.changes += changes
        self.size_bytes += size_bytes


class RetryWindow:
    """A time for retries that ends `limit_s` after the last answer. `clock`: in seconds. Belongs to one thread."""

    def __init__(self, limit_s: float, clock: Callable[[], float]) -> None:
        self._limit_s = limit_s
        self._clock = clock
        self._since_s: float | None = None

    def ask(self) -> None:
        """Begin a request. The time runs from here, unless an earlier request is unanswered."""
        if self._since_s is None:
            self._since_s = self._clock()

    def answered(self) -> None:
        """Note an answer, or a part of one."""
        self._since_s = None

    @property
    def is_over(self) -> bool:
        """Whether there was no answer for too long."""
        return self._since_s is not None and self._clock() - self._since_s >= self._limit_s

    def call(self, question: Callable[[], T], pause: Pause) -> T:
        """Retry a request until there is an answer. Raises the last Unavailable once the window is over."""
        while True:
            self.ask()
            try:
                answer = question()
            except Unavailable:
                if self.is_over or pause(_RETRY_S):
                    raise
            else:
                self.answered()
                return answer


class RetryingReader:
    """A `Reader` that resumes the reads of another one when its broker was unavailable."""

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
                    self._retries.answered()
                    self._retries.ask()  # Only now, because the consumer may have been slow.
            except BrokerUnavailable:
                if self._retries.is_over or self._pause(_RETRY_S):
                    raise
            else:
                self._retries.answered()
                return

    def close(self) -> None:
        """Close the reader below. Idempotent."""
        self._reader.close()
