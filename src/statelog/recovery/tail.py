"""The tail of a log, as chunks in the target's value schema: from local copies of change sets, or from Kafka.

Owns how long a broker that restarts, or a store that is briefly unavailable, is asked again. Never folds, and never
decides what a lasting silence means: the error of the last try is raised as it is.

Invariants:
- Only changes of wanted key groups come out, with their value in the one schema that was asked for.
- The tail is whole only when its iterator ends: publish nothing before.
- The time of a retry runs from the last sign of life, or from the first question after a rest; a record is a sign of
  life. A read that is taken up again goes on behind the last record that came, so none comes twice and none is missed.
"""

import logging
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from statelog.errors import BrokerUnavailable, Corrupt, NotFound, StoreUnavailable, Unavailable, UnknownFormat
from statelog.reading.replay import CommittedChunk, Converter, replay
from statelog.reading.sorted_tail import select_key_groups
from statelog.recovery.settings import RecoverySettings
from statelog.schemas.changes.replay_plan import ReplayPlan
from statelog.storage.kafka import OffsetRange, Reader, Record
from statelog.storage.local.copy import LocalCopyReader
from statelog.storage.log.log import Log

_LOG = logging.getLogger("statelog.recovery")
_RETRY_S = 0.2
T = TypeVar("T")

Pause = Callable[[float], bool]
"""Waits so many seconds; True if the answer is no longer wanted. `Event.wait` is one."""


class ReadCount:
    """What one thread has read so far, and whether from local copies of change sets. Others may look at any time."""

    __slots__ = ("changes", "is_local", "size_bytes")

    def __init__(self) -> None:
        self.changes = 0
        self.size_bytes = 0
        self.is_local = False

    def add(self, changes: int, size_bytes: int) -> None:
        """Count what was read."""
        self.changes += changes
        self.size_bytes += size_bytes


def committed_chunks(
    log: Log,
    plan: ReplayPlan,
    key_groups: Collection[int] | None,
    converter: Converter,
    counter: ReadCount,
    settings: RecoverySettings,
    *,
    pause: Pause,
    clock: Callable[[], float],
) -> Generator[CommittedChunk]:
    """The chunks that a plan lists, with their wanted changes in the target's value schema, in offset order within a
    partition. Raises Damaged, OffsetGone, BrokerUnavailable, IncompatibleSchema.

    A broker that is away for less than `stall_timeout_s` is waited for, and so is a store that has to be asked for a
    value schema while the lease stands.
    """
    timeout_s, schemas = settings.stall_timeout_s, RetryWindow(settings.lease_ttl_s, clock)
    known: dict[int, pa.Schema] = {}

    def from_kafka() -> Reader:
        return RetryingReader(log.kafka.reader(log.data_topic), RetryWindow(timeout_s, clock), pause)

    def schema(schema_id: int) -> pa.Schema:
        if schema_id not in known:
            known[schema_id] = schemas.call(lambda: log.change_schema(schema_id), pause)
        return known[schema_id]

    reader = _tail_reader(log, plan, settings.local_copies, from_kafka)
    counter.is_local = isinstance(reader, LocalCopyReader)
    try:
        for chunk in replay(reader, log.data_topic, plan, schema, stall_timeout_s=timeout_s):
            counter.add(chunk.changes.num_rows, chunk.size_bytes)
            changes = chunk.changes if key_groups is None else select_key_groups(chunk.changes, key_groups)
            yield chunk._replace(changes=converter.batch(changes, chunk.value_schema_id))
    finally:
        reader.close()


def _tail_reader(log: Log, plan: ReplayPlan, local_copies: Path | None, from_kafka: Callable[[], Reader]) -> Reader:
    """The local copies if they hold all of the tail, verified; else Kafka."""
    if local_copies is not None and plan.listed:
        try:
            return LocalCopyReader(local_copies, log.name, plan, from_kafka)
        except (NotFound, Corrupt, UnknownFormat, StoreUnavailable) as error:
            _LOG.warning("the tail is read from Kafka, because the local copies do not hold all of it: %s", error)
    return from_kafka()


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

    def ask_anew(self) -> None:
        """A question begins, and the one before it got its answer."""
        self._since_s = self._clock()

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
        ask_anew = self._retries.ask_anew
        while True:
            left = {partition: OffsetRange(next_offsets[partition], wanted.end) for partition, wanted in ranges.items()}
            self._retries.ask()
            try:
                for record in self._reader.read(left, stall_timeout_s=stall_timeout_s):
                    next_offsets[record.partition] = record.offset + 1
                    yield record
                    ask_anew()  # The consumer may have taken its time.
            except BrokerUnavailable:
                if self._retries.is_over or self._pause(_RETRY_S):
                    raise
            else:
                self._retries.heard()
                return

    def close(self) -> None:
        """Close the reader below. Idempotent."""
        self._reader.close()
