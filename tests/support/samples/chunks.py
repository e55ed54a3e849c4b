"""Chunks and changes for tests, from plain rows, and mutations of stored bytes."""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from statelog.schemas.changes.changes import OPAQUE, change_schema
from statelog.schemas.changes.chunk import EncodedChunk, encode_chunk
from statelog.schemas.changes.due import DUE
from statelog.schemas.changes.few import Changes, Dues, have_due, key_groups_in
from statelog.schemas.key_groups import KeyType
from statelog.schemas.ledger.place import LastRecord, Place
from tests.support.samples.folds import Row

__all__ = ["NONCE", "chunk_of", "mutations", "rows_batch"]

KEY = bytes(range(16))
NONCE = bytes(range(16))


def rows_batch(
    rows: Sequence[Row],
    key_type: KeyType = KeyType.BYTES,
    value_type: pa.DataType = OPAQUE,
    dues: Dues | None = None,
) -> pa.RecordBatch:
    """Return a batch of (key group, op, key, value) rows, with the column of dues if `dues` has them."""
    schema = change_schema(key_type, value_type)
    columns: list[list[object]] = [list(column) for column in zip(*rows, strict=True)] or [[], [], [], []]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return batch if dues is None else batch.append_column(DUE, pa.array(dues, DUE.type))


WITNESS = Place(11, LastRecord(10, 0x1122334455667788))


def chunk_of(batch: Changes, *, sqn: int = 3, index: int = 0, value_schema_id: int = 0) -> EncodedChunk:
    """Return a chunk of epoch 7 that holds this batch."""
    return encode_chunk(
        epoch=7,
        nonce=NONCE,
        sqn=sqn,
        index=index,
        value_schema_id=value_schema_id,
        witness=WITNESS,
        key=KEY,
        key_groups=key_groups_in(batch),
        body=memoryview(batch.serialize()),
        has_due=have_due(batch),
    )


_FLIPS = (0x01, 0x80, 0xFF)


def mutations(data: bytes, *, spare: bytes = b"") -> Iterator[bytes]:
    """Yield every byte flipped in three ways, every cut, and one byte more. `spare`, a part of `data`, stays."""
    start = data.find(spare) if spare else 0
    assert start >= 0, "the bytes to spare are not there"
    for i in range(len(data)):
        if start <= i < start + len(spare):
            continue
        for flip in _FLIPS:
            yield data[:i] + bytes([data[i] ^ flip]) + data[i + 1 :]
    for end in range(len(data)):
        yield data[:end]
    yield data + b"\0"
