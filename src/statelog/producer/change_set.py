"""`ChangeSet`: one change set on its way to the log: held, cut into chunks, sent, durable. `LocalCopies`: when a writer
makes and drops its local copies of them.

A committed change set stays in the tail that recoveries replay until a snapshot covers it, and so does its copy:

- persist registers the copy; from then on it is whole, or there is none.
- confirm drops none.
- reset drops the uncommitted copies of the aborted checkpoint and of those before it.
- truncate drops the copies of committed change sets below its number.
- Above `local_copies_bytes_max` the oldest go first, earlier lives' included: snapshots cover them first. Each
  counts as at least one disk block, which bounds the number of small ones, too.
- close drops the copies that no checkpoint holds. A persisted handle may be adopted, so its copies stay.

Invariants:
- Chunks of a partition carry index 0, 1, 2 ... in the order in which they were sent. So do those of its messages.
- Its messages lie in the writer's lowest partition, and in no local copy.
- A change set is durable if and only if every delivery report is OK. A failed or unknown report fails all of it: its
  number is never used again, and no commit ever lists it.
- Whatever the local disk does, nothing here raises OSError.
"""

import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

from statelog.producer.epoch import Grant
from statelog.producer.outbox import Outbox
from statelog.producer.outputs import cut_outputs
from statelog.producer.settings import WriterSettings, WriterStatistics
from statelog.reading import LocalCopy, attempt_directory, copies_of_writer
from statelog.schemas.arrays import fits
from statelog.schemas.changes.changes import chunk_slices, split
from statelog.schemas.changes.chunk import EncodedChunk, combine_checksums, encode_chunk
from statelog.schemas.changes.due import only_used
from statelog.schemas.changes.few import Changes, FewChanges, KeyGroups, have_due, key_groups_in
from statelog.schemas.descriptor import Descriptor
from statelog.schemas.key_groups import key_groups_of_partition, merge_bitmaps, partition_of, to_bitmap
from statelog.schemas.ledger.handle import Entry, gaps_of
from statelog.schemas.ledger.inline import Inline, bitmap_of
from statelog.schemas.ledger.place import Place
from statelog.schemas.outputs.batch import output_bytes_max
from statelog.schemas.outputs.chunk import encode_output_chunk
from statelog.schemas.outputs.output import Output

_BLOCK_BYTES = 4096


class LocalCopies:
    """One writer's copies, over all its epochs in this process. Makes none if the settings name no directory."""

    def __init__(self, settings: WriterSettings, meter: WriterStatistics, grant: Grant) -> None:
        self._directory = settings.local_copies
        self._bytes_max = settings.local_copies_bytes_max
        self._meter = meter
        self._copies: dict[int, LocalCopy] = {}
        self._size_bytes = 0
        self._earlier: deque[tuple[Path, int]] = deque()
        if self._directory is None:
            return
        try:
            for path in copies_of_writer(self._directory, grant.descriptor.name, grant.writer):
                cost = _cost(path.stat().st_size)
                self._earlier.append((path, cost))
                self._size_bytes += cost
        except OSError:
            self._meter.local_copy_failures += 1

    def new(self, grant: Grant, sqn: int) -> LocalCopy | None:
        """Begin the copy of a change set that is about to be sent under `grant`."""
        if self._directory is None:
            return None
        descriptor = grant.descriptor
        directory = attempt_directory(self._directory, descriptor.name, grant.writer, grant.epoch, grant.nonce)
        self._copies[sqn] = LocalCopy(directory, sqn)
        return self._copies[sqn]

    def completed(self, sqn: int) -> None:
        """Note that the change set `sqn` is durable. Its copy is whole now, or there is none."""
        copy = self._copies.get(sqn)
        if copy is None:
            return
        if copy.error is not None:
            self._meter.local_copy_failures += 1
            del self._copies[sqn]
        else:
            self._size_bytes += _cost(copy.size_bytes)
        while self._size_bytes > self._bytes_max and self._drop_oldest():
            pass

    def discard(self, first_sqn: int, end_sqn: int) -> None:
        """Remove the copies of the numbers from `first_sqn` to below `end_sqn`."""
        for sqn in [sqn for sqn in self._copies if first_sqn <= sqn < end_sqn]:
            self._drop(sqn)

    def _drop_oldest(self) -> bool:
        if self._earlier:
            path, cost = self._earlier.popleft()
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
                path.parent.rmdir()  # Fails until the last copy of the epoch is deleted.
            self._size_bytes -= cost
        elif self._copies:
            self._drop(next(iter(self._copies)))
        return bool(self._earlier or self._copies)

    def _drop(self, sqn: int) -> None:
        copy = self._copies.pop(sqn)
        self._size_bytes -= _cost(copy.size_bytes)
        copy.discard()


def _cost(size_bytes: int) -> int:
    """Return the bytes that a copy counts for; 0 before it is whole."""
    return max(size_bytes, _BLOCK_BYTES) if size_bytes else 0


@dataclass(slots=True)
class _PartitionPart:
    """One partition's part of a change set, or its messages. Reports come in sending order, so `offsets` grow."""

    chunks: int = 0
    changes: int = 0
    size_bytes: int = 0
    key_groups: bytes = b""
    checksums: list[int] = field(default_factory=list[int])
    offsets: list[int] = field(default_factory=list[int])


def carried_of(changes: Changes, descriptor: Descriptor, value_schema_id: int) -> tuple[Inline, bytes]:
    """Return changes as a ledger record carries them: their description in its head, and the batch."""
    groups = key_groups_in(changes)
    found = sorted(set(groups if isinstance(groups, Sequence) else np.unique(groups).tolist()))
    batch = bytes(memoryview(changes.serialize()))
    inline = Inline(
        value_schema_id=value_schema_id,
        changes=changes.num_rows,
        size_bytes=len(batch),
        first_key_group=found[0],
        last_key_group=found[-1],
        partitions=bitmap_of(partition_of(group, descriptor.partitions, descriptor.key_groups) for group in found),
        has_due=have_due(changes),
    )
    return inline, batch


class ChangeSet:
    """The change set of number `sqn`. It is sent through one outbox, under its grant, and copied to `copy`."""

    def __init__(self, sqn: int) -> None:
        self.sqn = sqn
        self.copy: LocalCopy | None = None
        self._parts: dict[int, _PartitionPart] = {}
        self._held: list[Changes] = []
        self._outputs = _PartitionPart()
        self._held_outputs: list[Output] = []
        self._missing = 0
        self._entries: tuple[tuple[Entry, ...], tuple[Entry, ...]] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether it has neither a change nor a message."""
        return not (self._parts or self._held or self._outputs.chunks or self._held_outputs)

    @property
    def is_begun(self) -> bool:
        """Whether the client was given any chunk."""
        return bool(self._parts or self._outputs.chunks)

    @property
    def needs_copy(self) -> bool:
        """Whether its first changes are about to be sent."""
        return bool(self._held) and not self._parts

    @property
    def held_changes(self) -> int:
        """How many changes wait to be sent."""
        return sum(batch.num_rows for batch in self._held)

    @property
    def held_messages(self) -> int:
        """How many messages wait to be sent."""
        return len(self._held_outputs)

    @property
    def all_landed(self) -> bool:
        """Whether everything was sent and every report is good."""
        return not (self._missing or self._held or self._held_outputs)

    def hold(self, changes: Changes) -> None:
        """Add changes, to be sent later."""
        self._held.append(changes)

    def hold_outputs(self, outputs: Sequence[Output]) -> None:
        """Add messages, to be sent later."""
        self._held_outputs += outputs

    def send(self, outbox: Outbox) -> None:
        """Send what is held, in order. Block while too much is in flight. Raises PersistFailed, Unavailable."""
        if self._held_outputs:
            outputs, self._held_outputs = self._held_outputs, []
            self._send_outputs(outbox, outputs)
        if self._held:
            held, self._held = self._held, []
            for changes in held:
                self._send(outbox, changes)
            if self.copy is not None:
                self.copy.pause()

    def entries(self, outbox: Outbox) -> tuple[tuple[Entry, ...], tuple[Entry, ...]]:
        """Return the entries by partition, and that of the messages, once all has landed. Raises PersistFailed."""
        if self._entries is None:
            changes = tuple(self._entry(outbox, *part) for part in sorted(self._parts.items()))
            outputs = [(outbox.grant.partitions[0], self._outputs)] if self._outputs.chunks else []
            self._entries = changes, tuple(self._entry(outbox, *part) for part in outputs)
            if self.copy is not None:
                self.copy.complete({partition: part.offsets for partition, part in self._parts.items()})
        return self._entries

    def _send(self, outbox: Outbox, changes: Changes) -> None:
        pieces = [(partition, piece, key_groups_in(piece)) for partition, piece in _pieces(outbox, changes)]
        witness = outbox.witness()
        for partition, piece, key_groups in pieces:
            self._send_chunk(outbox, partition, piece, key_groups, witness)
        for partition, _, key_groups in pieces:  # While the brokers handle the chunks.
            self._add_key_groups(outbox.grant.descriptor, partition, key_groups)
        outbox.meter.changes += changes.num_rows
        outbox.poll()
        outbox.check()

    def _send_chunk(
        self, outbox: Outbox, partition: int, changes: Changes, key_groups: KeyGroups, witness: Place
    ) -> None:
        grant = outbox.grant
        part = self._parts.setdefault(partition, _PartitionPart())
        chunk = encode_chunk(
            epoch=grant.epoch,
            nonce=grant.nonce,
            sqn=self.sqn,
            index=part.chunks,
            value_schema_id=grant.value_schema.id,
            witness=witness,
            key=grant.descriptor.seal_key,
            key_groups=key_groups,
            body=memoryview(changes.serialize()),
            has_due=have_due(changes),
        )
        if self.copy is not None:
            self.copy.add(partition, chunk.value)
        self._hand_over(outbox, partition, part, chunk, changes.num_rows)

    def _send_outputs(self, outbox: Outbox, outputs: Sequence[Output]) -> None:
        grant, part, witness = outbox.grant, self._outputs, outbox.witness()
        most_bytes = min(outbox.chunk_bytes, output_bytes_max(grant.descriptor.record_bytes_max))
        for piece in cut_outputs(outputs, most_bytes):
            chunk = encode_output_chunk(
                epoch=grant.epoch,
                nonce=grant.nonce,
                sqn=self.sqn,
                index=part.chunks,
                witness=witness,
                key=grant.descriptor.seal_key,
                outputs=piece,
            )
            self._hand_over(outbox, grant.partitions[0], part, chunk, len(piece))
        outbox.meter.messages += len(outputs)
        outbox.poll()
        outbox.check()

    def _hand_over(self, outbox: Outbox, partition: int, part: _PartitionPart, chunk: EncodedChunk, rows: int) -> None:
        part.chunks += 1
        part.changes += rows
        part.size_bytes += len(chunk.value)
        part.checksums.append(chunk.checksum)
        self._missing += 1

        def landed(offset: int) -> None:
            part.offsets.append(offset)
            self._missing -= 1

        outbox.send(self.sqn, partition, chunk.value, landed)

    def _add_key_groups(self, descriptor: Descriptor, partition: int, key_groups: KeyGroups) -> None:
        part = self._parts[partition]
        first = key_groups_of_partition(partition, descriptor.partitions, descriptor.key_groups).start
        bitmap = to_bitmap(key_groups, first)
        part.key_groups = merge_bitmaps(part.key_groups, bitmap) if part.key_groups else bitmap

    def _entry(self, outbox: Outbox, partition: int, part: _PartitionPart) -> Entry:
        offsets = part.offsets
        if len(offsets) != part.chunks or any(a >= b for a, b in pairwise(offsets)):
            outbox.fail(self.sqn, f"partition {partition} reported offsets out of order")
            outbox.check()
        return Entry(
            partition=partition,
            sqn=self.sqn,
            chunks=part.chunks,
            changes=part.changes,
            size_bytes=part.size_bytes,
            first_offset=offsets[0],
            end_offset=offsets[-1] + 1,
            checksum=combine_checksums(part.checksums),
            key_groups=part.key_groups,
            gaps=gaps_of(offsets),
        )


def _pieces(outbox: Outbox, changes: Changes) -> Iterator[tuple[int, Changes]]:
    """Yield the changes by ascending partition, in pieces that fit in a chunk. `FewChanges` always fit."""
    descriptor = outbox.grant.descriptor
    if isinstance(changes, FewChanges):
        yield from changes.split(descriptor.partitions, descriptor.key_groups)
        return
    is_small = fits(changes, outbox.chunk_bytes)  # Checked once, not for each slice.
    for partition, batch in split(changes, descriptor.partitions, descriptor.key_groups):
        pieces = [batch] if is_small else chunk_slices(batch, outbox.chunk_bytes, outbox.change_bytes_max)
        yield from ((partition, only_used(piece)) for piece in pieces)
