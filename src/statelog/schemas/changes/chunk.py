"""Chunks: the Kafka records of the data topic, each a slice of one change set for one partition.

A chunk is a 16-byte prefix (magic, version, checksum of all that follows), the head in Avro's single-object encoding,
zeros up to a multiple of 8, and the changes. The changes are an Arrow record batch as one IPC message, without its
schema; the version says whether they have dues. See `docs/format-chunk.md` for every byte. Only the producer
compresses.

Invariants:
- A record without the magic is foreign. A listed record with the magic must decode, or it stops the reader.
- Nothing is decoded before its checksum is verified. So every changed byte is detected: the record is foreign (magic),
  an UnknownFormat (version) or a CorruptChunk (all others), never a different value.
- Decoding copies nothing: a batch points into the record. Compressed buffers and offsets past the end are refused
  before anything is allocated or followed.
"""

import hashlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple, cast

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from statelog.errors import Corrupt, CorruptChunk, UnknownFormat
from statelog.schemas.arrays import numbers_of
from statelog.schemas.avro import RecordCodec, long_bytes
from statelog.schemas.changes.changes import values_fit
from statelog.schemas.changes.due import aligned, dues_fit, with_due
from statelog.schemas.ledger.place import Place

DECODING_ERRORS = (
    pa.ArrowException, OSError, EOFError, ValueError, TypeError, LookupError, OverflowError, MemoryError, struct.error,
)  # fmt: skip
"""All that Arrow's readers raise for damaged bytes, including subclasses such as ArrowIndexError."""
_HEADS = RecordCodec("chunk_head", earlier=["chunk_head-1"])
_MAGIC = b"SLCK"
_VERSION, _DUE_VERSION = 2, 3  # Version 1 does not name the record below its witness; version 3 has dues.
_FIELDS_OF_1 = 10
_PREFIX = struct.Struct("<4sB3xQ")  # magic, version, padding, xxh3-64 of all that follows
_DUE_SEED = _DUE_VERSION
"""The seed of the checksum of version 3, else 0. So one version is never taken for another, which would drop dues."""
_ZEROS = bytes(3)
_NO_NONCE, _NO_HASH = bytes(16), bytes(8)
_ALIGNMENT = 8
_HEAD_LIMIT = 10 + 16 + 8 + 8 + 4 * 10 + 5 * 5
"""The longest head: Avro's header, nonce, hash, seal, four longs and five ints."""
_SEALED_1 = struct.Struct("<q16sqiq")
_SEALED = struct.Struct("<q16sqiqq8s")
_VTABLE_SLOT = struct.Struct("<H")
_OFFSET = struct.Struct("<I")
_BACK_OFFSET = struct.Struct("<i")
_HEADER_SLOT, _BODY_BYTES_SLOT = 2, 3  # Message: version, type of the header, header, bytes of the body, ...
_ROWS_SLOT, _NODES_SLOT, _BUFFERS_SLOT, _COMPRESSION_SLOT = range(4)  # RecordBatch
_PREFIX_BYTES = 8  # A continuation marker, and the size of the metadata.
_PADDING = tuple(map(bytes, range(_ALIGNMENT)))
_NUMBER = struct.Struct("<q")


@dataclass(slots=True)  # Not frozen: its construction is a good part of decoding a small chunk.
class ChunkHead:
    """The head of a chunk. `checksum` is of the whole record; `last_key_group` is inclusive.

    `witness`: the ledger position that its writer had folded.
    `witness_offset`, `witness_hash`: the record below it; -1 if unknown.
    `seal`: proves that the author of the witness knew the log's descriptor.
    `has_due`: whether its changes have the column of dues.
    """

    epoch: int
    nonce: bytes
    sqn: int
    index: int
    first_key_group: int
    last_key_group: int
    changes: int
    value_schema_id: int
    witness: int
    witness_offset: int
    witness_hash: bytes
    seal: bytes
    checksum: int
    has_due: bool = False

    @property
    def place(self) -> Place:
        """The place in the ledger up to which the chunk's writer had folded."""
        return Place.of_fields(self.witness, self.witness_offset, self.witness_hash)

    def is_sealed(self, key: bytes) -> bool:
        """Return whether the author of this witness knew the log's descriptor. `key` is the descriptor's."""
        return self.seal == seal_of(key, self.epoch, self.nonce, self.sqn, self.index, self.place)


def head_of(
    first_key_group: int, last_key_group: int, changes: int, value_schema_id: int, *, has_due: bool = False
) -> ChunkHead:
    """Make a head for inline changes of a ledger record, which have none. `decode_batches` compares it."""
    return ChunkHead(
        epoch=-1,
        nonce=_NO_NONCE,
        sqn=0,
        index=0,
        first_key_group=first_key_group,
        last_key_group=last_key_group,
        changes=changes,
        value_schema_id=value_schema_id,
        witness=0,
        witness_offset=-1,
        witness_hash=_NO_HASH,
        seal=_NO_HASH,
        checksum=0,
        has_due=has_due,
    )


class EncodedChunk(NamedTuple):
    """A record value to produce, and its checksum."""

    value: bytes
    checksum: int


def encode_chunk(
    *,
    epoch: int,
    nonce: bytes,
    sqn: int,
    index: int,
    value_schema_id: int,
    witness: Place,
    key: bytes,
    key_groups: Sequence[int] | NDArray[np.uint16],
    body: memoryview,
    has_due: bool = False,
) -> EncodedChunk:
    """Encode a chunk of at least one change.

    `value_schema_id`: 0 for opaque bytes.
    `key`: seals the witness.
    `key_groups`: the key group of each change; a sequence, other than an array, ascends.
    `body`: the record batch as one IPC message.
    `has_due`: whether it has the column of dues.
    """
    assert len(key_groups) > 0, "a chunk has at least one change"
    if isinstance(key_groups, np.ndarray):
        first, last = int(key_groups.min()), int(key_groups.max())
    else:
        first, last = key_groups[0], key_groups[-1]
    before, behind = around(epoch, nonce, sqn, index, value_schema_id, witness, key)
    head = b"".join((before, long_bytes(first), long_bytes(last), long_bytes(len(key_groups)), behind))
    head += bytes(-(_PREFIX.size + len(head)) % _ALIGNMENT)
    version, seed = (_DUE_VERSION, _DUE_SEED) if has_due else (_VERSION, 0)
    hasher = xxhash.xxh3_64(head, seed)
    hasher.update(body)
    checksum = hasher.intdigest()
    return EncodedChunk(b"".join((_PREFIX.pack(_MAGIC, version, checksum), head, body)), checksum)


@lru_cache(maxsize=16)
def around(
    epoch: int, nonce: bytes, sqn: int, index: int, value_schema_id: int, witness: Place, key: bytes
) -> tuple[bytes, bytes]:
    """Encode a head's fields around those that differ by partition. By hand: Avro's encoder is several times slower."""
    before = (_HEADS.prefix, long_bytes(epoch), nonce, long_bytes(sqn), long_bytes(index))
    place = (long_bytes(witness.position), long_bytes(witness.last_offset), witness.last_hash)
    seal = seal_of(key, epoch, nonce, sqn, index, witness)
    return b"".join(before), b"".join((long_bytes(value_schema_id), *place, seal))


def decode_head(value: bytes) -> tuple[ChunkHead, int] | None:
    """Verify a chunk. Return its head and the offset of its changes; None for a foreign record.

    Raises UnknownFormat for a newer version, CorruptChunk for a damaged record.
    """
    if value[: len(_MAGIC)] != _MAGIC:
        return None
    if len(value) < _PREFIX.size:
        raise CorruptChunk("a chunk is cut short", size_bytes=len(value))
    _, version, checksum = _PREFIX.unpack_from(value)
    if version > _DUE_VERSION:
        raise UnknownFormat("a chunk has a newer format version", found=version, known=_DUE_VERSION)
    has_due, rest = version == _DUE_VERSION, memoryview(value)[_PREFIX.size :]
    seed = _DUE_SEED if has_due else 0
    if version < 1 or value[5:8] != _ZEROS or checksum != xxhash.xxh3_64_intdigest(rest, seed):
        raise CorruptChunk("a chunk's checksum differs", size_bytes=len(value))
    try:
        record, size = _HEADS.decode(value[_PREFIX.size : _PREFIX.size + _HEAD_LIMIT])
    except Corrupt as error:
        raise CorruptChunk(f"a chunk's head does not decode: {error.message}", size_bytes=len(value)) from error
    end = _PREFIX.size + size
    fields = tuple(record.values())
    if (len(fields) == _FIELDS_OF_1) is not (version == 1):
        raise CorruptChunk("a chunk's head is of another version than its record", size_bytes=len(value))
    if version == 1:
        fields = (*fields[:-1], -1, bytes(8), fields[-1])
    known = cast("tuple[int, bytes, int, int, int, int, int, int, int, int, bytes, bytes]", fields)
    head = ChunkHead(*known, checksum, has_due)
    return head, end + -end % _ALIGNMENT


class VerifiedChunks:
    """Record values, their heads and the offsets of their changes, as `decode_head` returned them.

    Stored by column, because the garbage collector visits every waiting object, and small chunks are many.
    """

    __slots__ = ("ats", "heads", "values")

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.heads: list[ChunkHead] = []
        self.ats: list[int] = []

    @classmethod
    def of(cls, value: bytes, head: ChunkHead, at: int) -> "VerifiedChunks":
        """Make it of one chunk."""
        found = cls()
        found.add(value, head, at)
        return found

    def add(self, value: bytes, head: ChunkHead, at: int) -> None:
        """Add the next chunk."""
        self.values.append(value)
        self.heads.append(head)
        self.ats.append(at)

    def each(self) -> "Iterator[VerifiedChunks]":
        """Yield each chunk by itself."""
        return map(self.of, self.values, self.heads, self.ats)


def decode_batches(chunks: VerifiedChunks, schema: pa.Schema) -> pa.RecordBatch:
    """Decode the changes of chunks that `decode_head` verified, in order. Changes of one chunk point into its record.

    `schema` is of the log and of each head's `value_schema_id`, without the column of dues. The changes have it if any
    head says so. Raises CorruptChunk if the changes differ from their heads, or are impossible. Among several chunks,
    the error may name any: decode each by itself.
    """
    heads = chunks.heads
    batches = [_decode_whole(*chunk, schema) for chunk in zip(chunks.values, heads, chunks.ats, strict=True)]
    batch = batches[0]
    if len(batches) > 1:
        (batch,) = pa.Table.from_batches(aligned(batches)).combine_chunks().to_batches()
    groups, ops, keys, values, *dues = batch.columns
    if groups.null_count or ops.null_count or keys.null_count:
        raise _corrupt("a chunk has a change without key group, op or key", heads[0])
    if not values_fit(numbers_of(ops), values):
        raise _corrupt("a chunk has a change that is neither a put with a value nor a delete without one", heads[0])
    if dues and not dues_fit(numbers_of(ops), *dues):
        raise _corrupt("a chunk has a delete with a due, or a due outside of the years 1970 to 9999", heads[0])
    numbers, starts = numbers_of(groups), [0, *accumulate(head.changes for head in heads[:-1])]
    found = np.minimum.reduceat(numbers, starts), np.maximum.reduceat(numbers, starts)
    said = [head.first_key_group for head in heads], [head.last_key_group for head in heads]
    if not np.array_equal(found, said):
        raise _corrupt("a chunk's key groups differ from its head", heads[0])
    return batch


def _decode_whole(value: bytes, head: ChunkHead, at: int, schema: pa.Schema) -> pa.RecordBatch:
    """Decode the batch behind a record's head. It is valid, and has as many changes as the head says."""
    try:
        message = pa.ipc.read_message(pa.py_buffer(value).slice(at))
        if is_compressed(message):
            raise _corrupt("a chunk's record batch is compressed, but only the producer may compress", head)
        batch = pa.ipc.read_record_batch(message, with_due(schema) if head.has_due else schema)
        batch.validate(full=True)  # Without `full` an offset past the end is followed, and the process dies.
    except DECODING_ERRORS as error:
        raise _corrupt(f"a chunk's record batch does not decode: {error}", head) from error
    if batch.num_rows != head.changes or batch.num_rows == 0:
        raise _corrupt("a chunk's number of changes differs from its head", head)
    return batch


def _corrupt(message: str, head: ChunkHead) -> CorruptChunk:
    return CorruptChunk(message, epoch=head.epoch, sqn=head.sqn, index=head.index, changes=head.changes)


def seal_of(key: bytes, epoch: int, nonce: bytes, sqn: int, index: int, witness: Place) -> bytes:
    """Seal a witness: the right to write records must not suffice to claim that the ledger lost its tail."""
    where = (epoch, nonce, sqn, index, witness.position)
    if witness.last is None:
        sealed = _SEALED_1.pack(*where)
    else:
        sealed = _SEALED.pack(*where, witness.last_offset, witness.last_hash)
    return hashlib.blake2b(sealed, digest_size=8, key=key).digest()


# ---- the checksum of a change set


def combine_checksums(checksums: Sequence[int]) -> int:
    """Return the checksum of a change set: xxh3-64 over its chunks' checksums in index order, 8 bytes each, LE."""
    return xxhash.xxh3_64_intdigest(struct.pack(f"<{len(checksums)}Q", *checksums))


# ---- the IPC message of a record batch: reading its compression, and writing one without Arrow


def is_compressed(message: pa.ipc.Message) -> bool:
    """Return whether the buffers of an IPC record batch are compressed. Raises struct.error.

    Arrow decompresses them on reading, to the size that each buffer claims: 33 KB become 1 GiB. The flag is in the
    message's flatbuffer, which Arrow verifies but does not expose.
    """
    metadata = memoryview(message.metadata)
    header = _field(metadata, _pointed(metadata, 0), _HEADER_SLOT)
    return header is not None and _field(metadata, _pointed(metadata, header), _COMPRESSION_SLOT) is not None


class BatchFrame(NamedTuple):
    """A template of a record batch's message, and the offsets of the numbers to fill in."""

    metadata: bytes
    body_bytes_at: int
    rows_at: int
    nodes_at: int
    nodes: struct.Struct
    places_at: int
    places: struct.Struct

    @classmethod
    def of(cls, schema: pa.Schema) -> "BatchFrame":
        """Make the template for a schema. All its batches have one size of metadata."""
        batch = pa.RecordBatch.from_arrays([pa.nulls(1, kind) for kind in schema.types], schema=schema).serialize()
        metadata = memoryview(pa.ipc.read_message(batch).metadata)
        table = _pointed(metadata, 0)
        header = _pointed(metadata, _there(metadata, table, _HEADER_SLOT))
        vectors = [_pointed(metadata, _there(metadata, header, slot)) for slot in (_NODES_SLOT, _BUFFERS_SLOT)]
        nodes, places = (struct.Struct(f"<{2 * _OFFSET.unpack_from(metadata, vector)[0]}q") for vector in vectors)
        nodes_at, places_at = (_PREFIX_BYTES + vector + _OFFSET.size for vector in vectors)
        return cls(
            metadata=bytes(memoryview(batch)[: _PREFIX_BYTES + len(metadata)]),
            body_bytes_at=_PREFIX_BYTES + _there(metadata, table, _BODY_BYTES_SLOT),
            rows_at=_PREFIX_BYTES + _there(metadata, header, _ROWS_SLOT),
            nodes_at=nodes_at,
            nodes=nodes,
            places_at=places_at,
            places=places,
        )

    def message(self, rows: int, nulls: Sequence[int], buffers: Sequence[bytes]) -> bytes:
        """Return a batch's message, as `RecordBatch.serialize`. `rows` is at least 1; `nulls` are counts by column."""
        return self.nested(rows, [one for null in nulls for one in (rows, null)], buffers)

    def nested(self, rows: int, nodes: Sequence[int], buffers: Sequence[bytes]) -> bytes:
        """Return a message of columns that may be nested. `nodes`: rows and nulls of each in turn, parents first."""
        metadata = bytearray(self.metadata)
        body: list[bytes | bytearray] = [metadata]
        places, at = list[int](), 0
        for buffer in buffers:
            size = len(buffer)
            places += at, size
            if size:
                padding = -size % _ALIGNMENT
                body += buffer, _PADDING[padding]
                at += size + padding
        _NUMBER.pack_into(metadata, self.body_bytes_at, at)
        _NUMBER.pack_into(metadata, self.rows_at, rows)
        self.nodes.pack_into(metadata, self.nodes_at, *nodes)
        self.places.pack_into(metadata, self.places_at, *places)
        return b"".join(body)


def _pointed(metadata: memoryview, at: int) -> int:
    """Return the target of the offset at `at`."""
    return at + int(_OFFSET.unpack_from(metadata, at)[0])


def _there(metadata: memoryview, table: int, slot: int) -> int:
    found = _field(metadata, table, slot)
    assert found is not None, "Arrow only leaves out fields that are zero"
    return found


def _field(metadata: memoryview, table: int, slot: int) -> int | None:
    """Return the offset of the field of this slot in a flatbuffer table; None if it is left out."""
    vtable = table - _BACK_OFFSET.unpack_from(metadata, table)[0]
    at = 4 + 2 * slot
    if at >= _VTABLE_SLOT.unpack_from(metadata, vtable)[0]:
        return None
    offset = _VTABLE_SLOT.unpack_from(metadata, vtable + at)[0]
    return table + offset if offset else None
