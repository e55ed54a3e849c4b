"""Handles: durable change sets on their way from persist to commit.

A handle is a value: it travels between processes, is stored by a caller's own two-phase commit, and is adopted by a
later incarnation of the writer.

Invariants:
- All change sets of a handle were written under its one (epoch, nonce). Its steps are checkpoints in ascending order;
  the first one continues `base`.
- A handle includes the change sets of earlier unconfirmed checkpoints since `base`. So an unconfirmed checkpoint needs
  no cleanup: the next one lists its change sets again.
- Messages that leave with a commit are listed beside the changes, and never among them. A handle without any has the
  bytes of version 1.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate, chain, islice, pairwise, repeat
from typing import Any, NamedTuple

import xxhash

from statelog.errors import CheckpointMismatch, Corrupt, OverlappingTasks, UnknownFormat
from statelog.schemas.avro import Datum, RecordCodec, blob, block, long_bytes
from statelog.schemas.key_groups import bitmaps_overlap, merge_bitmaps
from statelog.schemas.ledger.place import LogIdentity

_COLUMNS = ("partitions", "sqns", "chunks", "changes", "size_bytes", "first_offsets", "end_offsets")
"""The columns of an Entry's first fields, in the record of a step."""
MANY_PIECES = 10_000
"""A commit of so many entries burdens every planner: each is 34 bytes of ledger, 4 us and 342 bytes of memory."""
_HANDLES = RecordCodec("handle")
_FIRST = RecordCodec("handle-1")
_MAGIC = b"SLHD"
_VERSION = 2  # Version 1 lists no messages.
_PREFIX = struct.Struct("<4sB3xQ")  # magic, version, padding, xxh3-64 of the record that follows


class Checkpoint(NamedTuple):
    """A writer's checkpoint: its id, and the nonce of the epoch that persisted it.

    The nonce is needed because two incarnations of a writer can both take the id 7.
    """

    id: int
    nonce: bytes

    def to_fields(self, name: str) -> dict[str, Any]:
        """Return the fields that a record has for a checkpoint of this name."""
        return {f"{name}_id": self.id, f"{name}_nonce": self.nonce}

    @classmethod
    def from_fields(cls, datum: Datum, name: str) -> dict[str, Any]:
        """Return the fields of such a record, with the checkpoint as one of them."""
        others = dict(datum)
        return others | {name: cls(others.pop(f"{name}_id"), others.pop(f"{name}_nonce"))}


NO_CHECKPOINT = Checkpoint(0, bytes(16))


class Entry(NamedTuple):
    """One change set in one partition; or its messages, counted as changes, and without key groups.

    `size_bytes`: the sum of its record values.
    `checksum`: the xxh3-64 over its chunks' checksums in index order.
    `key_groups`: a bitmap over the partition's key groups.
    `gaps`: the number of foreign offsets between each chunk and the next; empty if there are none.

    So an entry names the offset of every chunk. Only the writer got them from the brokers, so nobody else who writes
    to the topic can slip in a chunk.
    """

    partition: int
    sqn: int
    chunks: int
    changes: int
    size_bytes: int
    first_offset: int
    end_offset: int
    checksum: int
    key_groups: bytes
    gaps: tuple[int, ...] = ()

    @property
    def offsets(self) -> Iterator[int]:
        """The offsets of its chunks, in index order."""
        if self.gaps:
            return accumulate(self.gaps, lambda offset, gap: offset + 1 + gap, initial=self.first_offset)
        return iter(range(self.first_offset, self.first_offset + self.chunks))

    def check(self) -> None:
        """Raise Corrupt unless its numbers are possible for a change set."""
        partition, _, chunks, changes, size_bytes, first_offset, end_offset, _, _, gaps = self
        if (
            partition < 0
            or first_offset < 0
            or not 0 < chunks <= changes
            or size_bytes < 0
            or (gaps and (len(gaps) != chunks - 1 or min(gaps) < 0))
            or end_offset - first_offset != (chunks + sum(gaps) if gaps else chunks)
        ):
            raise Corrupt("an entry has impossible numbers", partition=partition, first_offset=first_offset)


def gaps_of(offsets: Sequence[int]) -> tuple[int, ...]:
    """Return the gaps of an entry whose chunks lie at these offsets."""
    if offsets[-1] - offsets[0] == len(offsets) - 1:
        return ()
    return tuple(after - before - 1 for before, after in pairwise(offsets))


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The change sets and the meta records that one checkpoint added. A meta value of None removes the key.

    `outputs`: the messages of these change sets.
    """

    checkpoint_id: int
    entries: tuple[Entry, ...] = ()
    meta: Mapping[str, bytes | None] = field(default_factory=dict[str, bytes | None])
    outputs: tuple[Entry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Handle:
    """Durable change sets since `base`, written under (epoch, nonce), not yet committed."""

    identity: LogIdentity
    writer: str
    epoch: int
    nonce: bytes
    base: Checkpoint
    steps: tuple[Step, ...]

    @property
    def checkpoint(self) -> Checkpoint:
        """The writer's checkpoint once this handle is committed."""
        return Checkpoint(self.steps[-1].checkpoint_id, self.nonce)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The change sets of all steps."""
        return tuple(entry for step in self.steps for entry in step.entries)

    @property
    def outputs(self) -> tuple[Entry, ...]:
        """The messages of all steps."""
        return tuple(entry for step in self.steps for entry in step.outputs)

    @property
    def listed(self) -> Iterator[Entry]:
        """All that has a place in the data topic: change sets, and messages."""
        return chain(self.entries, self.outputs)

    @property
    def of_outputs(self) -> "Handle":
        """The handle with its messages in the place of changes, for what reads both alike."""
        return replace(self, steps=tuple(replace(one, entries=one.outputs, outputs=()) for one in self.steps))

    @property
    def is_quiet(self) -> bool:
        """Whether it holds neither changes nor messages nor meta records."""
        return not any(step.entries or step.outputs or step.meta for step in self.steps)

    @property
    def changes(self) -> int:
        """The number of changes."""
        return sum(entry.changes for entry in self.entries)

    @property
    def messages(self) -> int:
        """The number of messages."""
        return sum(entry.changes for entry in self.outputs)

    @property
    def size_bytes(self) -> int:
        """The size of all record values, but for messages."""
        return sum(entry.size_bytes for entry in self.entries)

    @property
    def chunks(self) -> int:
        """The number of chunks of changes."""
        return sum(entry.chunks for entry in self.entries)

    def continuing(self, last: Checkpoint) -> "Handle":
        """Return this handle without the steps that are committed if the writer is at `last`.

        Raises CheckpointMismatch if the handle does not continue `last`: all of it is committed already, or the log
        went on without it.
        """
        if last == self.base:
            return self
        done = [i for i, step in enumerate(self.steps[:-1]) if Checkpoint(step.checkpoint_id, self.nonce) == last]
        if not done:
            raise CheckpointMismatch(
                f"the handle for checkpoint {self.checkpoint.id} does not continue the log",
                writer=self.writer,
                handle_base=self.base.id,
                log_checkpoint=last.id,
                hint="Drop this handle and resume from last_commit: the log went on without it",
            )
        return replace(self, base=last, steps=self.steps[done[-1] + 1 :])

    def to_record(self) -> bytes:
        """Encode it in Avro's single-object encoding, as a commit embeds it."""
        version = self._version
        about = _about(version, self.writer, self.epoch, self.nonce, self.identity)
        steps = block([_step_bytes(one, version) for one in self.steps])
        return b"".join((about, long_bytes(self.base.id), self.base.nonce, steps))

    @property
    def _version(self) -> int:
        return _VERSION if any(step.outputs for step in self.steps) else 1

    @classmethod
    def from_record(cls, data: bytes) -> "Handle":
        """Decode Avro's single-object encoding. The caller has verified the bytes."""
        codec = _FIRST if data.startswith(_FIRST.prefix) else _HANDLES
        datum = codec.decode_whole(data)
        base_id, steps = datum["base_id"], tuple(map(_step_from_datum, datum["steps"]))
        ids = [base_id, *(step.checkpoint_id for step in steps)]
        if not steps or any(before >= after for before, after in pairwise(ids)):
            raise Corrupt("a handle's checkpoints do not ascend", base=base_id, steps=len(steps))
        identity = LogIdentity(**datum["identity"])
        return cls(**dict[str, Any](Checkpoint.from_fields(datum, "base"), identity=identity, steps=steps))

    def to_bytes(self) -> bytes:
        """Encode it with magic, version and checksum, to be stored or sent."""
        record = self.to_record()
        return _PREFIX.pack(_MAGIC, self._version, xxhash.xxh3_64_intdigest(record)) + record

    @classmethod
    def from_bytes(cls, data: bytes) -> "Handle":
        """Decode `to_bytes`. Raises Corrupt, UnknownFormat."""
        if len(data) < _PREFIX.size or data[:4] != _MAGIC:
            raise Corrupt("these bytes are not a statelog handle", size_bytes=len(data))
        _, version, checksum = _PREFIX.unpack_from(data)
        if version > _VERSION:
            raise UnknownFormat("a handle has a newer format version", found=version, known=_VERSION)
        record = data[_PREFIX.size :]
        if version < 1 or any(data[5:8]) or checksum != xxhash.xxh3_64_intdigest(record):
            raise Corrupt("a handle's checksum differs", size_bytes=len(data))
        if not record.startswith(_codec(version).prefix):
            raise Corrupt("a handle is of another version than it says", version=version)
        return cls.from_record(record)


@lru_cache(maxsize=64)
def _about(version: int, writer: str, epoch: int, nonce: bytes, identity: LogIdentity) -> bytes:
    """Encode the start of a handle's record, once per epoch. By hand: Avro's encoder is several times slower."""
    ids = (identity.cluster_id, identity.data_topic_id, identity.ledger_topic_id)
    return b"".join(
        (_codec(version).prefix, blob(writer.encode()), long_bytes(epoch), nonce, *(blob(i.encode()) for i in ids))
    )


def _codec(version: int) -> RecordCodec:
    return _FIRST if version == 1 else _HANDLES


def _step_bytes(step: Step, version: int) -> bytes:
    columns: Iterable[tuple[Any, ...]] = zip(*step.entries, strict=True) if step.entries else ((),) * len(Entry._fields)
    *numbers, checksums, key_groups, _ = columns
    return b"".join((
        long_bytes(step.checkpoint_id),
        *[block([*map(long_bytes, column)]) for column in numbers],
        blob(struct.pack(f"<{len(checksums)}Q", *checksums)),
        block([*map(blob, key_groups)]),
        block([long_bytes(gap) for entry in step.entries for gap in entry.gaps]),
        block([
            blob(key.encode()) + (b"\0" if value is None else b"\2" + blob(value)) for key, value in step.meta.items()
        ]),
        block([*map(_output_bytes, step.outputs)]) if version > 1 else b"",
    ))  # fmt: skip


def _output_bytes(entry: Entry) -> bytes:
    """Encode the messages of a change set, row by row: a step has few."""
    *numbers, checksum, _, gaps = entry
    return b"".join((*map(long_bytes, numbers), checksum.to_bytes(8, "little"), block([*map(long_bytes, gaps)])))


def _step_from_datum(datum: Datum) -> Step:
    """Make a step of its columns. Raises Corrupt if they do not fit together."""
    columns: list[list[int]] = [datum[name] for name in _COLUMNS]
    key_groups: list[bytes] = datum["key_groups"]
    gaps: list[int] = datum["gaps"]
    count = len(key_groups)
    try:
        # Long ledgers have millions of entries, and hardly any has gaps.
        own_gaps = _own_gaps(columns, gaps) if gaps else repeat((), count)
        sums = struct.unpack(f"<{count}Q", datum["checksums"])
        entries = tuple(map(Entry._make, zip(*columns, sums, key_groups, own_gaps, strict=True)))
    except (ValueError, struct.error) as error:
        raise Corrupt("the columns of a handle's step differ in length", entries=count) from error
    for entry in entries:
        entry.check()
    listed = datum.get("outputs")
    outputs = tuple(map(_output_from_datum, listed)) if listed else ()
    return Step(checkpoint_id=datum["checkpoint_id"], entries=entries, meta=datum["meta"], outputs=outputs)


def _output_from_datum(datum: Datum) -> Entry:
    *numbers, checksum, gaps = datum.values()
    entry = Entry._make((*numbers, int.from_bytes(checksum, "little"), b"", tuple(gaps)))
    entry.check()
    return entry


def _own_gaps(columns: Sequence[Sequence[int]], gaps: Iterable[int]) -> list[tuple[int, ...]]:
    """Return the gaps of each entry. Entries whose chunks are adjacent have none. Raises Corrupt."""
    _, _, chunks, _, _, first_offsets, end_offsets = columns
    left = iter(gaps)
    own = [
        () if end - first == count else tuple(islice(left, max(0, count - 1)))
        for count, first, end in zip(chunks, first_offsets, end_offsets, strict=True)
    ]
    if next(left, None) is not None:
        raise Corrupt("a handle's step has more gaps than chunks", entries=len(own))
    return own


def next_checkpoint_id(wanted: int | None, last_id: int, **facts: str) -> int:
    """Return the id of the checkpoint after `last_id`: the wanted one, or `last_id` plus 1.

    Raises CheckpointMismatch, with these facts, for an id that is not later or out of range.
    """
    checkpoint_id = last_id + 1 if wanted is None else wanted
    is_bool = isinstance(checkpoint_id, bool)
    is_whole = isinstance(checkpoint_id, int) and not is_bool  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
    if not is_whole or not 0 < checkpoint_id < 1 << 63:
        raise CheckpointMismatch(f"a checkpoint id is a whole number from 1 to 2^63 - 1, and not {checkpoint_id!r}")
    if checkpoint_id <= last_id:
        message = f"checkpoint {checkpoint_id} is not later than the last one"
        hint = "Use an id greater than the writer's last one"
        raise CheckpointMismatch(message, hint=hint, last_checkpoint=last_id, **facts)
    return checkpoint_id


def refuse_overlaps(handles: Sequence[Handle]) -> None:
    """Raise OverlappingTasks if two handles hold the same key group: the order between them is arbitrary."""
    seen: dict[int, bytes] = {}
    for handle in handles:
        for entry in handle.entries:
            before = seen.get(entry.partition, b"")
            if bitmaps_overlap(before, entry.key_groups):
                raise OverlappingTasks("two tasks of one commit wrote the same key group", partition=entry.partition)
            seen[entry.partition] = merge_bitmaps(before, entry.key_groups)


def refuse_repeats(handles: Sequence[Handle]) -> None:
    """Raise OverlappingTasks if two change sets of a partition share a number, or the messages of two: readers cannot
    tell them apart.
    """
    _refuse_repeats(entry for handle in handles for entry in handle.entries)
    _refuse_repeats(entry for handle in handles for entry in handle.outputs)


def _refuse_repeats(entries: Iterable[Entry]) -> None:
    seen: set[tuple[int, int]] = set()
    for entry in entries:
        if (entry.partition, entry.sqn) in seen:
            message = "two change sets of one commit have the same number"
            hint = "Pass each handle once, and give each attempt of each task its own slot"
            raise OverlappingTasks(message, hint=hint, partition=entry.partition, sqn=entry.sqn)
        seen.add((entry.partition, entry.sqn))
