"""What a stream hands out: some changes, and the place in the log once they are applied; and both as a frame. Pure.

A frame is the place (three signed 64-bit numbers, little-endian, padded to 32 bytes) and one Arrow IPC stream,
which holds its own schema: so frames of several value schemas can follow each other.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa

from statelog.recovery.applied import Applied, Place
from statelog.schemas.arrow_bytes import DECODING_ERRORS
from statelog.schemas.changes import chunk_slices
from statelog.schemas.errors import Corrupt

__all__ = ["Portion", "cut_to_frames", "decode_frame", "encode_frame"]

_PLACE = struct.Struct("<qqq8x")  # Padded to 32 bytes, so that Arrow finds its buffers aligned.
_MOST_BYTES = 1 << 31


class Portion(NamedTuple):
    """Changes (key_group, op, key, value) to apply in order, and how far the reader is once it has applied them.

    A portion may be empty: it tells that the state is complete, or that somebody committed nothing.
    """

    changes: pa.Table
    applied: Applied


def encode_frame(changes: pa.RecordBatch, place: Place) -> memoryview:
    """Changes and the place behind them, as bytes."""
    sink = pa.BufferOutputStream()
    sink.write(_PLACE.pack(*place))
    with pa.ipc.new_stream(sink, changes.schema) as writer:
        writer.write_batch(changes)
    return memoryview(sink.getvalue())


def decode_frame(data: memoryview) -> tuple[pa.Table, Place]:
    """The inverse; nothing is copied. Raises Corrupt."""
    try:
        position, next_key_group, rows = _PLACE.unpack_from(data)
        with pa.ipc.open_stream(pa.py_buffer(data).slice(_PLACE.size)) as reader:
            table = reader.read_all()
        table.validate(full=True)
    except DECODING_ERRORS as error:
        raise Corrupt(f"a frame does not decode: {error}", size_bytes=data.nbytes) from error
    return table, Place(position, next_key_group, rows)


def cut_to_frames(tables: Iterable[pa.Table], frame_bytes: int) -> Iterator[pa.RecordBatch]:
    """The tables, one after the other, in batches of at most about `frame_bytes`; a larger row is alone in its own.

    Small tables are joined, because every frame costs its own calls. None of the batches is empty.
    """
    waiting: list[pa.Table] = []
    waiting_bytes = 0
    for table in tables:
        waiting.append(table)
        waiting_bytes += table.nbytes
        if waiting_bytes >= frame_bytes:
            yield from _cut(waiting, frame_bytes)
            waiting, waiting_bytes = [], 0
    yield from _cut(waiting, frame_bytes)


def _cut(tables: list[pa.Table], frame_bytes: int) -> Iterator[pa.RecordBatch]:
    for batch in pa.concat_tables(tables).combine_chunks().to_batches() if tables else ():
        yield from chunk_slices(batch, frame_bytes, _MOST_BYTES)
