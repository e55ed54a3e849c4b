"""Arrow bytes from an untrusted source: the errors that decoding may raise, and what is refused before it.

Arrow decompresses the buffers of a message on reading, to the size that each buffer claims: 33 KB become 1 GiB. A
caller that does not want that asks here first. Never decodes itself.
"""

import struct

import pyarrow as pa

__all__ = ["DECODING_ERRORS", "is_compressed"]

DECODING_ERRORS = (
    pa.ArrowException, OSError, EOFError, ValueError, TypeError, LookupError, OverflowError, MemoryError, struct.error,
)  # fmt: skip
"""What Arrow's readers raise for bytes that are not theirs. ArrowIndexError and its kin are among them."""

_VTABLE_SLOT = struct.Struct("<H")
_OFFSET = struct.Struct("<I")
_BACK_OFFSET = struct.Struct("<i")
_HEADER_SLOT = 2  # Message: version, type of the header, header, ...
_COMPRESSION_SLOT = 3  # RecordBatch: length, nodes, buffers, compression, ...


def is_compressed(message: pa.ipc.Message) -> bool:
    """Whether the buffers of an IPC record batch are compressed.

    Read from the message's flatbuffer, which Arrow verified and of which it shows nothing. Raises struct.error.
    """
    metadata = memoryview(message.metadata)
    table = _OFFSET.unpack_from(metadata)[0]
    header = _field(metadata, table, _HEADER_SLOT)
    if header is None:
        return False
    return _field(metadata, header + _OFFSET.unpack_from(metadata, header)[0], _COMPRESSION_SLOT) is not None


def _field(metadata: memoryview, table: int, slot: int) -> int | None:
    """Where a flatbuffer table has the field of this slot; None if it lacks it."""
    vtable = table - _BACK_OFFSET.unpack_from(metadata, table)[0]
    at = 4 + 2 * slot
    if at >= _VTABLE_SLOT.unpack_from(metadata, vtable)[0]:
        return None
    offset = _VTABLE_SLOT.unpack_from(metadata, vtable + at)[0]
    return table + offset if offset else None
