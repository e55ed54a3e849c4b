"""Merging sorted tables: the last change of every key, in run order. Pure; the one merge of the whole system.

Inputs are tables of changes in a run's order, oldest table first, one row per key in each. The output is in the same
order. Where every key is short, rows are ordered by one fixed-width byte string per row (key group, key, key length),
because a stable sort of those is a merge of the sorted inputs, several times faster than sorting by two columns.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from statelog.schemas.runs import key_groups_of

__all__ = ["DELETE", "PUT", "merge_tables", "sort_order"]

PUT = 0
DELETE = 1
_LONGEST_PACKED_KEY = 64


def merge_tables(tables: Sequence[pa.Table], *, drop_deletes: bool) -> pa.Table:
    """One sorted table with the newest change of every key in `tables` (oldest first, same schema, each sorted).

    `drop_deletes` leaves deletes out: only right when nothing older exists that they could hide.
    """
    filled = [table for table in tables if table.num_rows]
    if len(filled) < 2:
        merged = filled[0] if filled else tables[0]
    else:
        everything = pa.concat_tables(filled).combine_chunks()
        merged = everything.take(pa.array(_newest(everything)))
    return merged.filter(pc.not_equal(merged.column("op"), DELETE)) if drop_deletes else merged


def sort_order(table: pa.Table) -> NDArray[np.int64]:
    """Row numbers in the order (key group, key); rows of one key keep the order that they have in the table."""
    packed = _packed_keys(table)
    if packed is not None:
        order: NDArray[np.int64] = np.argsort(packed, kind="stable")
        return order
    return np.asarray(pc.sort_indices(table, [("key_group", "ascending"), ("key", "ascending")]), np.int64)


def _newest(table: pa.Table) -> NDArray[np.int64]:
    """Row numbers of the last row of every key, in run order."""
    packed = _packed_keys(table)
    if packed is not None:
        order: NDArray[np.int64] = np.argsort(packed, kind="stable")
        in_order = packed[order]
        changes = in_order[1:] != in_order[:-1]
    else:
        order = sort_order(table)
        groups = key_groups_of(table)[order]
        key = _key_array(table).take(pa.array(order))
        other_key = np.asarray(pc.not_equal(key.slice(1), key.slice(0, len(key) - 1)), bool)
        changes = (groups[1:] != groups[:-1]) | other_key
    newest: NDArray[np.int64] = order[np.append(changes, True)]
    return newest


def _key_array(table: pa.Table) -> pa.Array:
    column = table.column("key")
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _packed_keys(table: pa.Table) -> NDArray[np.bytes_] | None:
    """One byte string per row that orders as (key group, key) does; None if the keys are too long for it."""
    key = _key_array(table)
    body = _long_bytes(key) if key.type == pa.int64() else _text_bytes(key)
    if body is None:
        return None
    packed = np.empty((len(key), 2 + body.shape[1]), np.uint8)
    packed[:, :2] = key_groups_of(table).astype(">u2").view(np.uint8).reshape(-1, 2)
    packed[:, 2:] = body
    return packed.view(f"S{packed.shape[1]}").reshape(-1)


def _long_bytes(key: pa.Array) -> NDArray[np.uint8]:
    """Longs as 8 bytes that order as the signed numbers do: big-endian, with the sign bit turned over."""
    unsigned = np.asarray(key, np.int64).view(np.uint64) ^ np.uint64(1 << 63)
    return unsigned.astype(">u8").view(np.uint8).reshape(-1, 8)


def _text_bytes(key: pa.Array) -> NDArray[np.uint8] | None:
    """Keys padded with zero bytes to one width, then their length where lengths differ.

    The length decides between a key and the same key with zero bytes at its end, which the padding makes equal.
    """
    data, ends = _data_and_offsets(key)
    lengths = np.diff(ends)
    width = int(lengths.max(initial=0))
    if width > _LONGEST_PACKED_KEY:
        return None
    if len(lengths) and int(lengths.min()) == width:
        return data[ends[0] : ends[-1]].reshape(-1, width)
    columns = np.arange(width, dtype=np.int64)
    inside = columns < lengths[:, None]
    padded = np.zeros((len(lengths), width + 2), np.uint8)
    padded[:, :width][inside] = data[ends[0] : ends[-1]]
    padded[:, width:] = lengths.astype(">u2").view(np.uint8).reshape(-1, 2)
    return padded


def _data_and_offsets(key: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    _, offsets, data = key.buffers()
    assert offsets is not None, "keys are binary or string"
    ends = np.frombuffer(memoryview(offsets), np.int32)[key.offset : key.offset + len(key) + 1].astype(np.int64)
    return np.frombuffer(memoryview(data) if data is not None else b"", np.uint8), ends
