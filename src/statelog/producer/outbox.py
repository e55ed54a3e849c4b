"""`Outbox`: the records in flight under one grant, the limit on their bytes, and the first failure.

Invariants:
- A record's bytes are in flight from its send to its report, good or bad. They never exceed the limit, unless a single
  record is larger. A send that would exceed it waits, and polls meanwhile.
- No timer fails records that make progress: the limit is on the time without any report, not on the total time.
- Callbacks only record results, and never raise. They run inside `poll`, in the owner's thread.
- Nothing is sent twice, and after a failure nothing more is sent.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from statelog.errors import PersistFailed, StatelogError
from statelog.kafka.port import Delivery, DeliveryStatus, Producer, with_remedy
from statelog.producer.epoch import Grant
from statelog.producer.settings import WriterSettings, WriterStatistics, tuning_of
from statelog.schemas.changes.chunk import encode_chunk
from statelog.schemas.key_groups import key_groups_of_partition
from statelog.schemas.ledger.place import Place
from statelog.schemas.names import data_topic

_GRACE_S = 5.0  # Time for the client to give up first, and report its own reason.
_POLL_S = 0.1
_AGAIN = "Open the writer again and resume the source from last_commit"


class Failure(NamedTuple):
    """Why the change set `sqn`, and every later one, cannot become durable."""

    sqn: int
    reason: str
    hint: str = _AGAIN


class Outbox:
    """Sends records to the data topic through a producer that belongs to the same thread."""

    def __init__(
        self,
        producer: Producer,
        grant: Grant,
        settings: WriterSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
        meter: WriterStatistics | None = None,
        witness: Callable[[], Place] | None = None,
    ) -> None:
        self.grant = grant
        self.witness = witness or (lambda: grant.witness)
        """The place up to which the ledger was folded; every chunk names it."""
        self.change_bytes_max = grant.change_bytes_max
        self.chunk_bytes = min(tuning_of(settings).chunk_bytes, self.change_bytes_max)
        self.meter = meter or WriterStatistics()
        self.failure: Failure | None = None
        self.in_flight_bytes = 0
        self.in_flight_chunks = 0
        self._producer = producer
        self._topic = data_topic(grant.descriptor.name)
        self._limit = settings.in_flight_bytes_max
        self._stall_s = min(tuning_of(settings).stall_timeout_s, producer.delivery_timeout_s + _GRACE_S)
        self._reports = 0
        self._counted_failed = 0
        """How many of the chunks in flight count as failed already."""
        self._clock = clock

    @property
    def available(self) -> bool:
        """Whether a whole chunk could be sent now without waiting."""
        return self._has_room(self.chunk_bytes) and self.failure is None

    def send(self, sqn: int, partition: int, value: bytes, landed: Callable[[int], None]) -> None:
        """Send a record of the change set `sqn`; `landed` gets its offset. Block while too much is in flight.

        Raises PersistFailed, also for an earlier record; ValueTooLarge, Unavailable.
        """
        self.check()
        size = len(value)
        report = self._report(sqn, size, landed)
        if not self._has_room(size):
            self._block(sqn, lambda: self._has_room(size))
        if not self._producer.send(self._topic, partition, value, report):
            self._block(sqn, lambda: self._producer.send(self._topic, partition, value, report))
        self.in_flight_chunks += 1
        self.in_flight_bytes += size
        self.meter.chunk_bytes = self.meter.chunk_bytes.with_value(size)

    def send_witness(self, seen: Place) -> None:
        """Send a void chunk that names a folded place, if there is room. No call waits for it; no commit needs it."""
        descriptor, partition = self.grant.descriptor, self.grant.partitions[0]
        first = key_groups_of_partition(partition, descriptor.partitions, descriptor.key_groups).start
        chunk = encode_chunk(
            epoch=self.grant.epoch,
            nonce=self.grant.nonce,
            sqn=0,
            index=0,
            value_schema_id=self.grant.value_schema.id,
            witness=seen,
            key=descriptor.seal_key,
            key_groups=(first,),
            body=memoryview(b""),
        )
        with suppress(StatelogError):  # The commit that it accompanies is already sent.
            self._producer.send(self._topic, partition, chunk.value, lambda _: None)

    def poll(self) -> None:
        """Process the delivery reports that are due, without waiting."""
        self._producer.poll(0)

    def wait(self, sqn: int, done: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Poll until `done`, for at most `timeout_s`. Return whether it is done.

        After 30 s without any report, the change set `sqn` fails.
        """
        if done():
            return True
        now_s = started_s = heard_s = self._clock()
        while True:
            stalled_s, reports = heard_s + self._stall_s, self._reports
            until_s = stalled_s if timeout_s is None else min(stalled_s, started_s + timeout_s)
            self._producer.poll(min(_POLL_S, max(0.0, until_s - now_s)))
            if done():
                return True
            now_s = self._clock()
            if self._reports != reports:
                heard_s = now_s
            elif now_s >= stalled_s:
                self.meter.failed_chunks += self.in_flight_chunks - self._counted_failed
                self._counted_failed = self.in_flight_chunks
                self.fail(sqn, f"no delivery report within {self._stall_s:g} s")
                return done()
            if timeout_s is not None and now_s >= started_s + timeout_s:
                return False

    def fail(self, sqn: int, reason: str, hint: str = _AGAIN) -> None:
        """Record that the change set `sqn` may not be in the log, unless an earlier one is recorded."""
        if self.failure is None or sqn < self.failure.sqn:
            self.failure = Failure(sqn, reason, hint)

    def check(self) -> None:
        """Raise PersistFailed once anything has failed."""
        if self.failure is not None:
            raise PersistFailed(
                "a chunk did not become durable, so its change set and all later ones do not count",
                topic=self._topic,
                **self.grant.facts,
                sqn=self.failure.sqn,
                reason=self.failure.reason,
                hint=self.failure.hint,
            )

    def _has_room(self, size: int) -> bool:
        return self.in_flight_bytes + size <= self._limit or self.in_flight_chunks == 0

    def _block(self, sqn: int, done: Callable[[], bool]) -> None:
        """Wait for room. Raises PersistFailed after a failure, when nothing more is sent."""
        started_s = self._clock()
        self.wait(sqn, lambda: self.failure is not None or done())
        self.meter.blocked_s = self.meter.blocked_s.with_value(self._clock() - started_s)
        self.check()

    def _report(self, sqn: int, size: int, landed: Callable[[int], None]) -> Callable[[Delivery], None]:
        def report(delivery: Delivery) -> None:
            self.in_flight_chunks -= 1
            self.in_flight_bytes -= size
            self._reports += 1
            is_counted = self._counted_failed > 0
            self._counted_failed -= is_counted
            if delivery.status is DeliveryStatus.OK:
                self.meter.chunk_s = self.meter.chunk_s.with_value(delivery.latency_s)
                landed(delivery.offset)
            else:
                self.meter.failed_chunks += not is_counted
                reason = f"{delivery.status.value}: {delivery.reason}"
                self.fail(sqn, reason, with_remedy(delivery, _AGAIN))

        return report
