"""Output chunks: the Kafka records of the data topic that hold messages of one change set, until they are published.

An output chunk is a chunk under another magic, with another head, and with messages in the place of changes. Readers of
changes take it for a foreign record. See `docs/format-output.md` for every byte.

Invariants:
- A listed record with the magic must decode, or it stops the reader. Nothing is decoded before its checksum is
  verified, so every changed byte is detected.
- It has a witness like any chunk: the last records of a partition may be output chunks alone.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import xxhash

from statelog.errors import Corrupt, CorruptChunk, UnknownFormat
from statelog.schemas.avro import RecordCodec, long_bytes
from statelog.schemas.changes.chunk import EncodedChunk, seal_of
from statelog.schemas.ledger.place import Place
from statelog.schemas.outputs.batch import read_outputs, serialize_outputs
from statelog.schemas.outputs.output import Output

_HEADS = RecordCodec("output_head")
_MAGIC = b"SLOU"
_VERSION = 1
_PREFIX = struct.Struct("<4sB3xQ")  # magic, version, padding, xxh3-64 of all that follows
_ZEROS = bytes(3)
_ALIGNMENT = 8
_HEAD_LIMIT = 10 + 16 + 8 + 8 + 4 * 10 + 2 * 5
"""The longest head: Avro's header, nonce, hash, seal, four longs and two ints."""


@dataclass(slots=True)
class OutputHead:
    """The head of an output chunk. `checksum` is of the whole record; the others are as in a `ChunkHead`."""

    epoch: int
    nonce: bytes
    sqn: int
    index: int
    messages: int
    witness: int
    witness_offset: int
    witness_hash: bytes
    seal: bytes
    checksum: int

    @property
    def changes(self) -> int:
        """The number of messages, as the entry of their change set counts them."""
        return self.messages

    @property
    def place(self) -> Place:
        """The place in the ledger up to which the chunk's writer had folded."""
        return Place.of_fields(self.witness, self.witness_offset, self.witness_hash)

    def is_sealed(self, key: bytes) -> bool:
        """Return whether the author of this witness knew the log's descriptor. `key` is the descriptor's."""
        return self.seal == seal_of(key, self.epoch, self.nonce, self.sqn, self.index, self.place)


def encode_output_chunk(
    *, epoch: int, nonce: bytes, sqn: int, index: int, witness: Place, key: bytes, outputs: Sequence[Output]
) -> EncodedChunk:
    """Encode a chunk of at least one message. `key`: seals the witness."""
    assert outputs, "an output chunk has at least one message"
    numbers = (long_bytes(epoch), nonce, long_bytes(sqn), long_bytes(index), long_bytes(len(outputs)))
    place = (long_bytes(witness.position), long_bytes(witness.last_offset), witness.last_hash)
    head = b"".join((_HEADS.prefix, *numbers, *place, seal_of(key, epoch, nonce, sqn, index, witness)))
    rest = b"".join((head, bytes(-(_PREFIX.size + len(head)) % _ALIGNMENT), serialize_outputs(outputs)))
    checksum = xxhash.xxh3_64_intdigest(rest)
    return EncodedChunk(_PREFIX.pack(_MAGIC, _VERSION, checksum) + rest, checksum)


def decode_output_head(value: bytes) -> tuple[OutputHead, int] | None:
    """Verify an output chunk. Return its head and the offset of its messages; None for any other record.

    Raises UnknownFormat for a newer version, CorruptChunk for a damaged record.
    """
    if value[: len(_MAGIC)] != _MAGIC:
        return None
    if len(value) < _PREFIX.size:
        raise CorruptChunk("an output chunk is cut short", size_bytes=len(value))
    _, version, checksum = _PREFIX.unpack_from(value)
    if version > _VERSION:
        raise UnknownFormat("an output chunk has a newer format version", found=version, known=_VERSION)
    rest = memoryview(value)[_PREFIX.size :]
    if version < 1 or value[5:8] != _ZEROS or checksum != xxhash.xxh3_64_intdigest(rest):
        raise CorruptChunk("an output chunk's checksum differs", size_bytes=len(value))
    try:
        record, size = _HEADS.decode(value[_PREFIX.size : _PREFIX.size + _HEAD_LIMIT])
    except Corrupt as error:
        raise CorruptChunk(f"an output chunk's head does not decode: {error.message}", size_bytes=len(value)) from error
    end = _PREFIX.size + size
    return OutputHead(**record, checksum=checksum), end + -end % _ALIGNMENT


def decode_outputs(value: bytes, head: OutputHead, at: int) -> list[Output]:
    """Decode the messages of a chunk that `decode_output_head` verified, in order. Raises CorruptChunk."""
    try:
        return read_outputs(value, at, head.messages)
    except Corrupt as error:
        raise CorruptChunk(error.message, epoch=head.epoch, sqn=head.sqn, index=head.index) from error
