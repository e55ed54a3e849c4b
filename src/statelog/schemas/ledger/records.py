"""Ledger records: Mark, Open, Commit, Commits, AcceptLoss and Restart as values, and their bytes.

A record is a 16-byte prefix (magic, version, kind, checksum) and an Avro body. A Commit also has a fixed head before
the body, and a small one changes and messages behind it. The head holds all that validity needs, so a fold of a million
commits decodes no Avro.

Invariants:
- A record without our magic is foreign: `decode` returns None, and every reader treats it as void.
- A record with our magic but an unknown version or kind stops every reader (UnknownFormat): it might be a commit. A
  wrong checksum is CorruptLedger.
- A commit's head and body agree; only `Commit.of` makes them.
"""

import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from typing import Any, NamedTuple, cast

import xxhash

from statelog.errors import ConfigError, Corrupt, CorruptLedger, Misuse, UnknownFormat
from statelog.schemas.avro import RecordCodec, blob, block, datum_of
from statelog.schemas.key_groups import MAX_KEY_GROUPS
from statelog.schemas.ledger.handle import Checkpoint, Entry, Handle
from statelog.schemas.ledger.inline import (
    CommitOutputs,
    Inline,
    flags_of,
    inline_bytes,
    pack_inline,
    padding,
    unpack_inline,
)
from statelog.schemas.ledger.place import ORIGIN, LogIdentity, Metadata, Place, metadata_bytes
from statelog.schemas.names import check_name

_MAGIC = b"SLLG"
_LINKED = 2
"""Since this version an Open names the record below its witness, and a Commit has a witness."""
_INLINE = 3
"""The version of a Commit with inline changes."""
_FLAGGED = 4
"""The version of a Commit with dues or messages. A record of several Commits with such a one has version 2."""
_PREFIX = struct.Struct("<4sBB2xQ")  # magic, version, kind, padding, xxh3-64 of all the rest
_HEAD = struct.Struct("<q16sq16sq16sBxxxI")  # epoch, nonce, base id and nonce, checkpoint id and nonce, flags, extents
_WITNESS = struct.Struct("<qqQ")  # position, offset and hash of the record below it
_EXTENT = struct.Struct("<Iqq")
_ITEM = struct.Struct("<IB3x")  # bytes of a commit's payload, its version
_FINAL = 1
_HAS_META = 2
_MOST_EXTENTS = MAX_KEY_GROUPS  # One per partition; a log has at most as many partitions as key groups.
_MOST_OPEN_BYTES = 1 << 20  # Twice what the longest names and all partitions need.
_OPENS = RecordCodec("open", earlier=["open-1"])
_BODIES = RecordCodec("commit")
_LOSSES = RecordCodec("accept_loss")
_MARKS = RecordCodec("mark")
_RESTARTS = RecordCodec("restart")

VOID_VALUE = b"SLVD"
"""A record that is foreign to ledger and data topic alike. Its only use is to take up an offset."""


class _Kind(IntEnum):
    OPEN = 1
    COMMIT = 2
    ACCEPT_LOSS = 3
    MARK = 4
    RESTART = 5
    COMMITS = 6


@dataclass(frozen=True, slots=True)
class Mark:
    """The first record of a ledger: `digest`, its descriptor's, names the log that owns it. Changes no state."""

    digest: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """A writer takes `partitions`. The record's offset is the epoch.

    `prior`: the newest epoch observed on any of these partitions or this name (-1: none).
    `last`: the writer's last observed checkpoint. If it or `prior` disagrees with the fold, the Open is void.
    `witness`: the place up to which the opener had folded. It proves a lost tail if it lies above the record's own
    offset, or names another record.

    A void Open fences no one. Raises InvalidName, ConfigError for values that no manifest may hold.
    """

    writer: str
    partitions: tuple[int, ...]
    nonce: bytes
    prior: int
    last: Checkpoint
    identity: LogIdentity
    witness: Place = ORIGIN

    def __post_init__(self) -> None:
        check_name("writer", self.writer)
        if min(self.partitions, default=0) < 0:
            raise ConfigError("an Open names a negative partition", writer=self.writer)


Extent = tuple[int, int, int]
"""A partition, and the first and end offset of all that a commit lists in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitBody:
    """The body of a commit: the caller's metadata, and the handles that become history."""

    metadata: Metadata
    handles: tuple[Handle, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Handles become part of history, in all partitions at once.

    `checkpoint`: the new checkpoint (id, and the nonce of the epoch that persisted it).
    `base`: the checkpoint that it continues.
    `packed_extents`, `packed_witness`: as bytes, because a plan holds many commits and the garbage collector visits
    every object.
    `body`: undecoded Avro; see `read_body`.
    `inline`: describes the changes inside the commit's own record, or None.
    `outputs`: describes the messages that leave with it, or None. Extents span those that its handles list, too.
    `batch`: what it carries, to be written: its changes, and then its messages. Empty in a commit that was read.
    """

    epoch: int
    nonce: bytes
    base: Checkpoint
    checkpoint: Checkpoint
    packed_extents: bytes
    packed_witness: bytes
    final: bool = False
    has_meta: bool = False
    body: bytes = field(default=b"", repr=False)
    inline: Inline | None = None
    outputs: CommitOutputs | None = None
    batch: bytes = field(default=b"", repr=False, compare=False)
    start: int = field(default=_PREFIX.size, repr=False, compare=False)
    """The offset of its payload inside its record, which may hold other commits before it."""

    @property
    def size_bytes(self) -> int:
        """The size of its record."""
        carried_bytes = self.inline.size_bytes if self.inline else 0
        carried_bytes += self.outputs.size_bytes if self.outputs else 0
        end = self._body_end
        return end + (padding(end) + carried_bytes if carried_bytes else 0) - self.start + _PREFIX.size

    @property
    def batch_start(self) -> int:
        """The offset of what it carries inside its record: of its changes, if it carries any."""
        end = self._body_end
        return end + padding(end)

    @property
    def output_start(self) -> int:
        """The offset of the messages that it carries inside its record."""
        return self.batch_start + (self.inline.size_bytes if self.inline else 0)

    @property
    def _body_end(self) -> int:
        is_plain = self.inline is None and self.outputs is None
        head_bytes = self._head_bytes + (0 if is_plain else inline_bytes(self.inline, self.outputs))
        return self.start - _PREFIX.size + head_bytes + len(self.body)

    @property
    def _head_bytes(self) -> int:
        return _PREFIX.size + _HEAD.size + len(self.packed_witness) + len(self.packed_extents)

    @property
    def extents(self) -> Sequence[Extent]:
        """One extent for each partition with listed changes, ascending."""
        if not self.packed_extents:  # A commit that carries its changes lists nothing.
            return []
        return cast("list[Extent]", list(_EXTENT.iter_unpack(self.packed_extents)))

    @property
    def witness_numbers(self) -> tuple[int, int, int]:
        """The place up to which its writer had folded, as `Place.numbers`: every fold compares it."""
        return _WITNESS.unpack(self.packed_witness)

    @classmethod
    def of(
        cls,
        *,
        epoch: int,
        nonce: bytes,
        base: Checkpoint,
        checkpoint: Checkpoint,
        metadata: Metadata,
        handles: Sequence[Handle],
        witness: Place,
        final: bool = False,
        inline: Inline | None = None,
        batch: bytes = b"",
        outputs: CommitOutputs | None = None,
    ) -> "Commit":
        """Make the commit of `handles` and of what its record carries. The head is derived from them."""
        if any(handle.outputs for handle in handles):
            outputs = (outputs or CommitOutputs())._replace(is_listed=True)
        return cls(
            epoch=epoch,
            nonce=nonce,
            base=base,
            checkpoint=checkpoint,
            packed_extents=pack_extents(_extents(entry for handle in handles for entry in handle.listed)),
            packed_witness=_packed(witness),
            final=final,
            has_meta=any(step.meta for handle in handles for step in handle.steps),
            body=_body_bytes(metadata, handles),
            inline=inline,
            outputs=outputs,
            batch=batch,
        )

    def read_body(self) -> CommitBody:
        """Decode the body. Raises CorruptLedger if it does not agree with the head."""
        try:
            datum = _BODIES.decode_whole(self.body)
            handles = tuple(Handle.from_record(record) for record in datum["handles"])
        except Corrupt as error:
            raise CorruptLedger(f"a commit's body does not decode: {error}", epoch=self.epoch) from error
        entries = (entry for handle in handles for entry in handle.listed)
        has_meta = any(step.meta for handle in handles for step in handle.steps)
        lists_outputs = any(handle.outputs for handle in handles)
        found = _extents(entries), has_meta, lists_outputs
        if found != (self.extents, self.has_meta, self.outputs is not None and self.outputs.is_listed):
            raise CorruptLedger("a commit's head and body differ", epoch=self.epoch, checkpoint=self.checkpoint.id)
        return CommitBody(metadata=datum["metadata"], handles=handles)


@dataclass(frozen=True, slots=True)
class Commits:
    """Commits (at least one) of several writers of one process, validated in order. All share their record's offset."""

    commits: tuple[Commit, ...]


class LossRange(NamedTuple):
    """A range of the data topic whose committed chunks a person accepted as lost."""

    partition: int
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptLoss:
    """The only way past a detected loss: readers go on without the chunks in these ranges."""

    ranges: tuple[LossRange, ...]
    reason: str
    operator: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """The only way past a ledger that lost records: a person says what counts now, and every earlier epoch ends.

    The snapshot at `position` counts, and the ledger from there on; 0: the whole ledger. The record is repeated until
    its offset is at or above `position`, so that no reader folds over the loss.
    """

    digest: bytes
    position: int
    reason: str
    operator: str


def retained_ranges(accepted: Iterable[LossRange], partition: int, start: int, end: int) -> tuple[tuple[int, int], ...]:
    """Return the offsets [start, end) of a partition without the accepted losses, as ascending ranges."""
    found: list[tuple[int, int]] = []
    for lost in sorted(lost for lost in accepted if lost.partition == partition):
        found.append((start, min(lost.start_offset, end)))
        start = max(start, lost.end_offset)
    return tuple((first, last) for first, last in (*found, (start, end)) if first < last)


def is_forfeited(accepted: Iterable[LossRange], partition: int, start_offset: int, end_offset: int) -> bool:
    """Return whether every offset of this range of a partition was accepted as lost."""
    return not retained_ranges(accepted, partition, start_offset, end_offset)


def check_committed(ranges: Iterable[LossRange], committed: Mapping[int, int]) -> None:
    """Raise ConfigError unless every range holds committed offsets only. `committed`: positions by partition."""
    for lost in ranges:
        end = committed.get(lost.partition, 0)
        if not 0 <= lost.start_offset < lost.end_offset <= end:
            message = "only a non-empty range of committed offsets can be accepted as lost"
            hint = "Take the range from the error that reported the loss"
            raise ConfigError(message, hint=hint, **lost._asdict(), committed_position=end)


def not_forfeited(accepted: Collection[LossRange], committed: Mapping[int, int]) -> dict[int, int]:
    """Return the committed positions, by partition, whose last record was not accepted as lost."""
    return {p: end for p, end in committed.items() if end and not is_forfeited(accepted, p, end - 1, end)}


LedgerRecord = Open | Commit | Commits | AcceptLoss | Mark | Restart
"""One record of the ledger, of any kind."""


def pack_extents(extents: Iterable[Extent]) -> bytes:
    """Encode extents as a commit's record has them."""
    return b"".join(_EXTENT.pack(*extent) for extent in extents)


def _extents(entries: Iterable[Entry]) -> list[Extent]:
    found: dict[int, Extent] = {}
    for entry in entries:
        partition, first, end = entry.partition, entry.first_offset, entry.end_offset
        known = found.get(partition)
        if known is not None:
            first, end = min(first, known[1]), max(end, known[2])
        found[partition] = partition, first, end
    return [found[partition] for partition in sorted(found)]


# ---- bytes


def _body_bytes(metadata: Metadata, handles: Iterable[Handle]) -> bytes:
    """Encode metadata and handles in the order of the schema."""
    return b"".join((_BODIES.prefix, metadata_bytes(metadata), block([blob(handle.to_record()) for handle in handles])))


def encode(record: LedgerRecord) -> bytes:
    """Return the value of the Kafka record."""
    match record:
        case Open():
            others = {**record.last.to_fields("last"), **record.witness.to_fields("witness")}
            datum = datum_of(record, identity=datum_of(record.identity), **others)
            return _seal(_Kind.OPEN, _OPENS.encode(datum), _LINKED)
        case Commit():
            version, payload = _commit_payload(record)
            return _seal(_Kind.COMMIT, payload, version)
        case Commits():
            parts, newest = list[bytes](), _LINKED
            for version, payload in map(_commit_payload, record.commits):
                parts += _ITEM.pack(len(payload), version), payload, bytes(padding(len(payload)))
                newest = max(newest, version)
            return _seal(_Kind.COMMITS, b"".join(parts), 2 if newest >= _FLAGGED else 1)
        case AcceptLoss():
            datum = datum_of(record, ranges=[lost._asdict() for lost in record.ranges])
            return _seal(_Kind.ACCEPT_LOSS, _LOSSES.encode(datum))
        case Mark():
            return _seal(_Kind.MARK, _MARKS.encode(datum_of(record)))
        case Restart():
            return _seal(_Kind.RESTART, _RESTARTS.encode(datum_of(record)))


def _commit_payload(commit: Commit) -> tuple[int, bytes]:
    """Return the commit's version, and the bytes behind the prefix."""
    ids, flags = (*commit.base, *commit.checkpoint), _FINAL * commit.final | _HAS_META * commit.has_meta
    head = _HEAD.pack(commit.epoch, commit.nonce, *ids, flags, len(commit.packed_extents) // _EXTENT.size)
    payload = b"".join((head, commit.packed_witness, commit.packed_extents))
    inline, outputs, body = commit.inline, commit.outputs, commit.body
    if inline is None and outputs is None:
        return _LINKED, payload + body
    payload += pack_inline(inline, outputs, len(body)) + body
    version = _FLAGGED if flags_of(inline, outputs) else _INLINE
    return version, b"".join((payload, bytes(padding(len(payload))), commit.batch)) if commit.batch else payload


def decode(value: bytes) -> LedgerRecord | None:
    """Decode a record; None if it is foreign. Raises UnknownFormat, CorruptLedger."""
    if value[:4] != _MAGIC:
        return None
    if len(value) < _PREFIX.size:
        raise CorruptLedger("a ledger record is cut off", size_bytes=len(value))
    _, version, kind, checksum = _PREFIX.unpack_from(value)
    if checksum != _checksum(version, kind, value[6:8] + value[_PREFIX.size :]):
        raise CorruptLedger("a ledger record's checksum differs", size_bytes=len(value))
    read = _DECODERS.get((kind, version))
    if read is None:
        raise UnknownFormat("a ledger record has an unknown version or kind", version=version, kind=kind)
    try:
        return read(value[_PREFIX.size :])
    except (Corrupt, Misuse, struct.error) as error:
        raise CorruptLedger(f"a ledger record does not decode: {error}", size_bytes=len(value)) from error


def _seal(kind: _Kind, payload: bytes, version: int = 1) -> bytes:
    return _PREFIX.pack(_MAGIC, version, kind, _checksum(version, kind, b"\0\0" + payload)) + payload


def _checksum(version: int, kind: int, rest: bytes) -> int:
    return xxhash.xxh3_64_intdigest(rest, seed=version << 8 | kind)


def _decode_open(payload: bytes) -> Open:
    if len(payload) > _MOST_OPEN_BYTES:
        raise Corrupt("an Open names more partitions than a log can have", size_bytes=len(payload))
    datum = Checkpoint.from_fields(_OPENS.decode_whole(payload), "last")
    witness = Place.of_fields(datum["witness"], datum.pop("witness_offset", -1), datum.pop("witness_hash", b""))
    partitions, identity = tuple(datum["partitions"]), LogIdentity(**datum["identity"])
    return Open(**dict[str, Any](datum, partitions=partitions, identity=identity, witness=witness))


def _packed(witness: Place) -> bytes:
    return _WITNESS.pack(*witness.numbers)


_NO_WITNESS = _packed(ORIGIN)


def _decode_commit_1(payload: bytes) -> Commit:
    return _decode_commit(b"".join((payload[: _HEAD.size], _NO_WITNESS, payload[_HEAD.size :])))


def _decode_commits(payload: bytes, *, newest: int = _INLINE) -> Commits:
    """Decode several commits, of a version from 2 to `newest`."""
    commits, at = list[Commit](), 0
    while at < len(payload):
        size_bytes, version = _ITEM.unpack_from(payload, at)
        start = at + _ITEM.size
        at = start + size_bytes + padding(size_bytes)
        if not _LINKED <= version <= newest or at > len(payload):
            raise Corrupt("a record of several commits holds another kind of record", version=version)
        item = payload[start : start + size_bytes]
        commits.append(_decode_commit(item, version=version, start=_PREFIX.size + start))
    if not commits:
        raise Corrupt("a record of several commits holds none")
    return Commits(tuple(commits))


def _decode_commit(payload: bytes, *, version: int = _LINKED, start: int = _PREFIX.size) -> Commit:
    epoch, nonce, base_id, base_nonce, checkpoint_id, checkpoint_nonce, flags, count = _HEAD.unpack_from(payload)
    extents = _HEAD.size + _WITNESS.size
    end = extents + count * _EXTENT.size
    if count > _MOST_EXTENTS or end > len(payload):
        raise Corrupt("a commit's head names more extents than it holds", extents=count)
    inline, outputs, body, body_end = None, None, end, len(payload)
    if version >= _INLINE:
        inline, outputs, body, body_end = unpack_inline(payload, end, is_flagged=version >= _FLAGGED)
    return Commit(
        epoch=epoch,
        nonce=nonce,
        base=Checkpoint(base_id, base_nonce),
        checkpoint=Checkpoint(checkpoint_id, checkpoint_nonce),
        packed_extents=payload[extents:end],
        packed_witness=payload[_HEAD.size : extents],
        final=bool(flags & _FINAL),
        has_meta=bool(flags & _HAS_META),
        body=payload[body:body_end],
        inline=inline,
        outputs=outputs,
        start=start,
    )


def _decode_loss(payload: bytes) -> AcceptLoss:
    datum = _LOSSES.decode_whole(payload)
    ranges = tuple(LossRange(**lost) for lost in datum["ranges"])
    if any(lost.partition < 0 or not 0 <= lost.start_offset <= lost.end_offset for lost in ranges):
        raise Corrupt("a loss has impossible offsets", ranges=len(ranges))
    return AcceptLoss(ranges=ranges, reason=datum["reason"], operator=datum["operator"])


_DECODERS: dict[tuple[int, int], Callable[[bytes], LedgerRecord]] = {
    (_Kind.OPEN, 1): _decode_open,
    (_Kind.OPEN, _LINKED): _decode_open,
    (_Kind.COMMIT, 1): _decode_commit_1,
    (_Kind.COMMIT, _LINKED): _decode_commit,
    (_Kind.COMMIT, _INLINE): partial(_decode_commit, version=_INLINE),
    (_Kind.COMMIT, _FLAGGED): partial(_decode_commit, version=_FLAGGED),
    (_Kind.COMMITS, 1): _decode_commits,
    (_Kind.COMMITS, 2): partial(_decode_commits, newest=_FLAGGED),
    (_Kind.ACCEPT_LOSS, 1): _decode_loss,
    (_Kind.MARK, 1): lambda payload: Mark(**_MARKS.decode_whole(payload)),
    (_Kind.RESTART, 1): lambda payload: Restart(**_RESTARTS.decode_whole(payload)),
}
"""Decoders by kind and version."""
