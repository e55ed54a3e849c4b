"""Frames: changes, and the place in the log once they are applied, as bytes. Pure.

A frame is the place (three signed 64-bit numbers, little-endian, padded to 32 bytes) and one Arrow IPC stream,
which holds its own schema: so frames of several value schemas can follow each other.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from statelog.errors import Corrupt
from statelog.schemas.changes.arrow_bytes import DECODING_ERRORS
from statelog.schemas.changes.changes import chunk_slices

__all__ = ["DONE", "Place", "cut_to_frames", "decode_frame", "encode_frame"]

DONE = -1
"""The `next_key_group` of a place behind the whole state."""
_PLACE = struct.Struct("<qqq8x")  # Padded to 32 bytes, so that Arrow finds its buffers aligned.
_MOST_BYTES = 1 << 31


class Place(NamedTuple):
    """A place in the state at `position`: the key groups below `next_key_group` whole, and `rows` rows of that one.

    Behind the whole state, `rows` counts the changes of the next commit: so many of it are applied, too.
    """

    position: int
    next_key_group: int = 0
    rows: int = 0

    @classmethod
    def complete(cls, position: int) -> "Place":
        """The whole state at `position`."""
        return cls(position, DONE)

    @property
    def has_state(self) -> bool:
        """Whether the whole state lies before it."""
        return self.next_key_group == DONE

    @property
    def is_complete(self) -> bool:
        """Whether the whole state lies before it, and no part of a later commit."""
        return self.has_state and self.rows == 0

    def inside_commit(self, changes: int) -> "Place":
        """The place after so many more changes of the next commit, before its last."""
        return self._replace(rows=self.rows + changes)

    def after(self, sorted_rows: pa.Table | pa.RecordBatch) -> "Place":
        """The place behind the next rows of the state, which are sorted and at least one."""
        groups = np.asarray(sorted_rows.column("key_group"), np.uint16)
        last = int(groups[-1])
        rows = len(groups) - int(np.searchsorted(groups, last))
        return Place(self.position, last, rows + (self.rows if last == self.next_key_group else 0))


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
        if table.num_rows > data.nbytes:
            raise ValueError("more rows than bytes")
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
