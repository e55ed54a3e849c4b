"""One change set on its way to the log: cut into chunks, sent, and complete when every chunk is reported.

Invariants:
- Chunks of a partition carry index 0, 1, 2 ... in the order in which they were sent.
- It is durable if and only if every delivery report is OK. A failed or unknown report fails the whole set:
  its number is never used again, and nothing of it will ever be listed.
- A callback records and never raises.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from statelog.producer.grant import Grant
from statelog.producer.settings import WriterSettings
from statelog.schemas.changes import chunk_slices, split
from statelog.schemas.chunk import ChangeSetChecksum, encode_chunk
from statelog.schemas.errors import KeyGroupMismatch, PersistFailed
from statelog.schemas.handle import Entry
from statelog.schemas.key_groups import key_groups_of_partition, merge_bitmaps, to_bitmap
from statelog.storage.kafka import Delivery, DeliveryStatus, Producer

__all__ = ["ChangeSet"]

_GRACE_S = 5.0  # Persist outlives the client's own delivery timeout, so every chunk is settled before it ends.


@dataclass(slots=True)
class _PartitionPart:
    """What one partition has of the change set. Reports come in the order of sending, so `offsets` grow."""

    chunks: int = 0
    changes: int = 0
    size_bytes: int = 0
    key_groups: bytes = b""
    checksum: ChangeSetChecksum = field(default_factory=ChangeSetChecksum)
    offsets: list[int] = field(default_factory=list[int])


class ChangeSet:
    """Sends the chunks of change set `sqn` under a grant, through a producer that belongs to the same thread."""

    def __init__(
        self,
        producer: Producer,
        topic: str,
        grant: Grant,
        sqn: int,
        settings: WriterSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.sqn = sqn
        self._producer = producer
        self._topic = topic
        self._grant = grant
        self._owned = frozenset(grant.partitions)
        self._settings = settings
        self._clock = clock
        self._parts: dict[int, _PartitionPart] = {}
        self._failure = ""
        self._pending = 0
        self._in_flight_bytes = 0

    @property
    def sent(self) -> bool:
        """Whether any chunk was handed to the producer."""
        return bool(self._parts)

    @property
    def in_flight_bytes(self) -> int:
        """Bytes of chunks that were sent and not reported yet."""
        return self._in_flight_bytes

    def send(self, changes: pa.RecordBatch) -> None:
        """Cut a batch (columns of `change_schema`) into chunks and send them. Blocks while too much is in flight.

        Raises KeyGroupMismatch for a partition that is not the writer's, ValueTooLarge, PersistFailed.
        """
        descriptor = self._grant.descriptor
        slices = split(changes, descriptor.partitions, descriptor.key_groups)
        for part in slices:
            if part.partition not in self._owned:
                raise KeyGroupMismatch(
                    f"a change belongs to partition {part.partition}, which this writer does not own",
                    writer=self._grant.writer,
                    partition=part.partition,
                )
        for part in slices:
            for piece in chunk_slices(part.batch, self._settings.chunk_bytes):
                self._send_chunk(part.partition, piece)

    def persist(self) -> tuple[Entry, ...]:
        """Wait until every chunk is reported; returns the entries by partition.

        Raises PersistFailed if one of them is not surely in the log.
        """
        self._wait(lambda: self._pending == 0)
        return tuple(self._entry(partition, part) for partition, part in sorted(self._parts.items()))

    def poll(self) -> None:
        """Take delivery reports that are due, without waiting. Raises PersistFailed."""
        self._producer.poll(0)
        self._check()

    def _send_chunk(self, partition: int, changes: pa.RecordBatch) -> None:
        grant = self._grant
        part = self._parts.setdefault(partition, _PartitionPart())
        chunk = encode_chunk(
            epoch=grant.epoch,
            nonce=grant.nonce,
            sqn=self.sqn,
            index=part.chunks,
            value_schema_id=grant.value_schema.id,
            batch=changes,
        )
        size = len(chunk.value)
        self._wait(lambda: self._in_flight_bytes + size <= self._settings.in_flight_bytes_max or self._pending == 0)
        self._wait(lambda: self._producer.send(self._topic, partition, chunk.value, self._report(part, size)))
        self._pending += 1
        self._in_flight_bytes += size
        part.chunks += 1
        part.changes += changes.num_rows
        part.size_bytes += size
        part.checksum.add(chunk.checksum)
        part.key_groups = merge_bitmaps(part.key_groups, self._bitmap(partition, changes))
        self.poll()

    def _bitmap(self, partition: int, changes: pa.RecordBatch) -> bytes:
        descriptor = self._grant.descriptor
        first = key_groups_of_partition(partition, descriptor.partitions, descriptor.key_groups).start
        column: NDArray[np.uint16] = changes.column(0).to_numpy()
        return to_bitmap(column, first)

    def _report(self, part: _PartitionPart, size: int) -> Callable[[Delivery], None]:
        def report(delivery: Delivery) -> None:
            self._pending -= 1
            self._in_flight_bytes -= size
            if delivery.status is DeliveryStatus.OK:
                part.offsets.append(delivery.offset)
            elif not self._failure:
                self._failure = f"{delivery.status.value}: {delivery.reason}"

        return report

    def _wait(self, done: Callable[[], bool]) -> None:
        """Poll until `done`, longer than the client itself waits for a delivery."""
        deadline = self._clock() + self._producer.delivery_timeout_s + _GRACE_S
        while not done():
            self._producer.poll(0.1)
            self._check()
            if self._clock() > deadline:
                self._failure = "no delivery report in time"
        self._check()

    def _check(self) -> None:
        if self._failure:
            raise PersistFailed(
                "a chunk did not become durable, so its change set never counts",
                topic=self._topic,
                writer=self._grant.writer,
                sqn=self.sqn,
                reason=self._failure,
                hint="Open the writer again and resume the source from last_commit",
            )

    def _entry(self, partition: int, part: _PartitionPart) -> Entry:
        offsets = part.offsets
        if len(offsets) != part.chunks or any(a >= b for a, b in pairwise(offsets)):
            self._failure = f"partition {partition} reported offsets out of order"
            self._check()
        return Entry(
            partition=partition,
            sqn=self.sqn,
            chunks=part.chunks,
            changes=part.changes,
            size_bytes=part.size_bytes,
            first_offset=offsets[0],
            end_offset=offsets[-1] + 1,
            checksum=part.checksum.value,
            key_groups=part.key_groups,
        )
