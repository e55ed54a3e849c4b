"""Outputs in bulk: the messages of a commit as one Arrow record batch, in the order in which they were sent. Pure.

They are written in plain Python: a message is a Python call anyway, and one call of Arrow takes longer than the work on
a few. Arrow reads them.

Invariants:
- What is read back equals what was written, headers and their order included.
- A batch that Arrow does not find valid, or whose messages no `make_output` would make, is refused.
"""

import struct
from collections.abc import Sequence
from functools import cache
from itertools import accumulate, chain, pairwise
from typing import cast

import numpy as np
import pyarrow as pa

from statelog.errors import Corrupt
from statelog.schemas.changes.changes import change_bytes_max
from statelog.schemas.changes.chunk import DECODING_ERRORS, BatchFrame, is_compressed
from statelog.schemas.outputs.output import Output, is_topic

OUTPUT_SCHEMA = pa.schema(
    [
        ("topic", pa.utf8()),
        ("partition", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("name", pa.utf8()), ("value", pa.binary())]))),
    ]
)
_FEW_ROWS = 64
_FIRST_END = struct.Struct("<4xi")


@cache
def output_bytes_max(record_bytes_max: int) -> int:
    """Return the size of the largest message of a log with records of this size, as `Output.size_bytes` measures it."""
    return change_bytes_max(record_bytes_max, OUTPUT_SCHEMA)


def serialize_outputs(outputs: Sequence[Output]) -> bytes:
    """Return the record batch of messages (at least one) as one IPC message, without a schema."""
    topics, values, keys, headers, partitions = zip(*outputs, strict=True)
    count = len(outputs)
    pairs = list(chain.from_iterable(headers)) if any(headers) else ()
    header_values, header_count = [value for _, value in pairs], len(pairs)
    nodes = (
        count, 0, count, partitions.count(None), count, keys.count(None), count, values.count(None),
        count, 0, header_count, 0, header_count, 0, header_count, header_values.count(None),
    )  # fmt: skip
    buffers = (
        b"", *_binary([topic.encode() for topic in topics]),
        *_partitions(partitions),
        *_nullable(keys),
        *_nullable(values),
        b"", _ends(headers) if pairs else bytes(4 * count + 4),
        b"",
        b"", *_binary([name.encode() for name, _ in pairs]),
        *_nullable(header_values),
    )  # fmt: skip
    return _frame().nested(count, nodes, buffers)


def read_outputs(data: bytes, at: int, messages: int) -> list[Output]:
    """Read so many messages from the batch that begins at an offset of verified bytes. Raises Corrupt."""
    try:
        message = pa.ipc.read_message(pa.py_buffer(data).slice(at))
        if is_compressed(message):
            raise Corrupt("a batch of messages is compressed, but only the producer may compress")
        batch = pa.ipc.read_record_batch(message, OUTPUT_SCHEMA)
        batch.validate(full=True)  # Without `full` an offset past the end is followed, and the process dies.
        if batch.num_rows != messages or messages == 0:
            raise Corrupt("a batch has another number of messages than its head", found=batch.num_rows)
        return _outputs(batch)
    except DECODING_ERRORS as error:
        raise Corrupt(f"a batch of messages does not decode: {error}") from error


def _outputs(batch: pa.RecordBatch) -> list[Output]:
    topics, partitions, keys, values = (column.to_pylist() for column in batch.columns[:4])
    if batch.column(0).null_count or not all(map(is_topic, set(topics))):
        raise Corrupt("a message has no topic, or an impossible one")
    if any(partition is not None and partition < 0 for partition in partitions):
        raise Corrupt("a message has a negative partition")
    headers = _header_lists(cast("pa.ListArray", batch.column(4)))
    return [*map(Output, topics, values, keys, headers, partitions)]


def _header_lists(column: pa.ListArray) -> list[tuple[tuple[str, bytes | None], ...]]:
    pairs = cast("pa.StructArray", column.values)
    if not len(pairs) and not column.null_count:
        return [()] * len(column)
    names, values = pairs.field(0), pairs.field(1)
    if column.null_count or pairs.null_count or names.null_count:
        raise Corrupt("a message has a header without a name")
    found = list(zip(names.to_pylist(), values.to_pylist(), strict=True))
    return [tuple(found[start:end]) for start, end in pairwise(column.offsets.to_pylist())]


# ---- buffers


@cache
def _frame() -> BatchFrame:
    return BatchFrame.of(OUTPUT_SCHEMA)


def _ends(rows: Sequence[Sequence[object]]) -> bytes:
    """Return the offsets of a column; none of one without rows."""
    if len(rows) == 1:
        return _FIRST_END.pack(len(rows[0]))
    return struct.pack(f"<{len(rows) + 1}i", *accumulate(map(len, rows), initial=0)) if rows else b""


def _binary(rows: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Return a column's offsets and data."""
    return _ends(rows), b"".join(rows)


def _nullable(rows: Sequence[bytes | None]) -> tuple[bytes, bytes, bytes]:
    """Return a column's validity, offsets and data."""
    if None not in rows:
        return b"", *_binary(cast("Sequence[bytes]", rows))
    return _validity(rows), *_binary([row or b"" for row in rows])


def _partitions(rows: Sequence[int | None]) -> tuple[bytes, bytes]:
    """Return the validity and the numbers of the column."""
    if None not in rows:
        return b"", struct.pack(f"<{len(rows)}i", *rows)
    return _validity(rows), struct.pack(f"<{len(rows)}i", *[row or 0 for row in rows])


def _validity(rows: Sequence[object]) -> bytes:
    """Return the bitmap of rows that are not null."""
    if len(rows) > _FEW_ROWS:
        return np.packbits([row is not None for row in rows], bitorder="little").tobytes()
    bits = sum(1 << at for at, row in enumerate(rows) if row is not None)
    return bits.to_bytes(-(-len(rows) // 8), "little")
