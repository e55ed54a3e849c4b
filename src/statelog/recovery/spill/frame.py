"""Frames: changes, and how much of the log is applied with them, as bytes. Pure.

A frame is that (five 64-bit numbers, little-endian, padded to 64 bytes) and one Arrow IPC stream, which holds its own
schema: so frames of several value schemas can follow each other.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from statelog.errors import Corrupt
from statelog.schemas.changes.changes import chunk_slices
from statelog.schemas.changes.chunk import DECODING_ERRORS
from statelog.schemas.ledger.place import Place

__all__ = ["DONE", "Applied", "cut_to_frames", "decode_frame", "encode_frame"]

DONE = -1
"""The `next_key_group` once the whole state is applied."""
_APPLIED = struct.Struct("<qq8sqq24x")  # Padded to 64 bytes, so that Arrow finds its buffers aligned.
_MOST_BYTES = 1 << 31


class Applied(NamedTuple):
    """What is applied of the state at `place`: the key groups below `next_key_group` whole, and `rows` rows of that
    one.

    Behind the whole state, `rows` counts the changes of the next commit: so many of it are applied, too.
    """

    place: Place
    next_key_group: int = 0
    rows: int = 0

    @classmethod
    def complete(cls, place: Place) -> "Applied":
        """The whole state at a place."""
        return cls(place, DONE)

    @property
    def has_state(self) -> bool:
        """Whether the whole state is applied."""
        return self.next_key_group == DONE

    @property
    def is_complete(self) -> bool:
        """Whether the whole state is applied, and no part of a later commit."""
        return self.has_state and self.rows == 0

    def inside_commit(self, changes: int) -> "Applied":
        """With so many more changes of the next commit, before its last."""
        return self._replace(rows=self.rows + changes)

    def after(self, sorted_rows: pa.Table | pa.RecordBatch) -> "Applied":
        """With the next rows of the state, which are sorted and at least one."""
        groups = np.asarray(sorted_rows.column("key_group"), np.uint16)
        last = int(groups[-1])
        rows = len(groups) - int(np.searchsorted(groups, last))
        return Applied(self.place, last, rows + (self.rows if last == self.next_key_group else 0))


def encode_frame(changes: pa.RecordBatch, applied: Applied) -> memoryview:
    """Changes, and what is applied with them, as bytes."""
    place, next_key_group, rows = applied
    sink = pa.BufferOutputStream()
    sink.write(_APPLIED.pack(place.position, place.last_offset, place.last_hash, next_key_group, rows))
    with pa.ipc.new_stream(sink, changes.schema) as writer:
        writer.write_batch(changes)
    return memoryview(sink.getvalue())


def decode_frame(data: memoryview) -> tuple[pa.Table, Applied]:
    """The inverse; nothing is copied. Raises Corrupt."""
    try:
        position, last_offset, last_hash, next_key_group, rows = _APPLIED.unpack_from(data)
        with pa.ipc.open_stream(pa.py_buffer(data).slice(_APPLIED.size)) as reader:
            table = reader.read_all()
        table.validate(full=True)
        if table.num_rows > data.nbytes:
            raise ValueError("more rows than bytes")
    except DECODING_ERRORS as error:
        raise Corrupt(f"a frame does not decode: {error}", size_bytes=data.nbytes) from error
    return table, Applied(Place.of_fields(position, last_offset, last_hash), next_key_group, rows)


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
