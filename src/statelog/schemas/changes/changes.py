"""Changes in bulk: (key group, op, key, value) as Arrow columns, from the writer's split to a reader's fold.

Where a row has a due, there is a fifth column: `due`.

A put's value is the whole result, so that applying a change twice is harmless; a delete's value is null. The value
column is binary (opaque) or a struct (typed). Row order is the order of the changes.

Never loops over rows in Python. Never does I/O. `key_order` owns the comparison of keys.

Invariants:
- Splitting, cutting and folding preserve the order of the changes of one key.
- Arrow raises for a column beyond its 32-bit offsets (2 GiB of keys or values in one array). Callers bound their folds.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from statelog.errors import InvalidChange, KeyGroupMismatch, ValueTooLarge
from statelog.schemas.arrays import column_of, fits, numbers_of, numbers_or_zeros, taken, whole_column
from statelog.schemas.changes.due import concat_changes, dues_fit, with_due
from statelog.schemas.changes.key_order import sorted_last_rows
from statelog.schemas.key_groups import KeyType, partition_starts

PUT = 0
DELETE = 1
OPAQUE = pa.binary()
_FRAMING = 1 << 10  # The most that a chunk's head and Kafka's framing take.


@cache
def change_schema(key_type: KeyType, value_type: pa.DataType = OPAQUE) -> pa.Schema:
    """Return the schema of changes: key_group uint16, op uint8, key in the log's key type, value in `value_type`.

    Arrow's fields are all nullable, as every engine writes them; only the value of a delete may be null.
    """
    return pa.schema(
        [("key_group", pa.uint16()), ("op", pa.uint8()), ("key", key_type.arrow_type), ("value", value_type)]
    )


@cache
def change_bytes_max(record_bytes_max: int, schema: pa.Schema) -> int:
    """Return the largest change, as `row_sizes` measures it, of a log with records of this size.

    It leaves room for the head, Kafka's framing, and Arrow's metadata and padding, which grow with the columns.
    """
    nulls = pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in schema], schema=schema)
    return min(record_bytes_max * 15 // 16, record_bytes_max - 2 * nulls.serialize().size - _FRAMING)


def changes_batch(
    schema: pa.Schema,
    key_groups: NDArray[np.uint16],
    ops: NDArray[np.uint8],
    keys: pa.Array,
    values: pa.Array,
    dues: pa.Array | None = None,
) -> pa.RecordBatch:
    """Make changes of their columns. Raises InvalidChange unless a value is null in deletes and only there.

    `schema`: without the column of dues.
    Keys are not checked against key groups: that depends on the log's hash, and is the writer's task.
    """
    if keys.null_count:
        raise InvalidChange("a key is null", hint="Every change needs a key", nulls=keys.null_count)
    if len(ops) and int(ops.max()) > DELETE:
        raise InvalidChange("an op is neither put nor delete", hint="Use 0 for put, 1 for delete", op=int(ops.max()))
    if not values_fit(ops, values):
        raise InvalidChange(
            "a put has no value, or a delete has one", hint="Delete a key to remove it; put b'' for an empty value"
        )
    columns = [column_of(key_groups), column_of(ops), keys, values]
    if dues is None:
        return pa.RecordBatch.from_arrays(columns, schema=schema)
    if not dues_fit(ops, dues):
        raise InvalidChange("a delete has a due, or a due is outside of the years 1970 to 9999")
    return pa.RecordBatch.from_arrays([*columns, dues], schema=with_due(schema))


def values_fit(ops: NDArray[np.uint8], values: pa.Array) -> bool:
    """Return whether every change is a put with a value or a delete without one."""
    if not values.null_count:
        return not np.count_nonzero(ops)
    return bool((ops == numbers_of(values.is_null())).all())


# ---- on the way in: by partition, then by size


def split(batch: pa.RecordBatch, partitions: int, key_groups: int) -> list[tuple[int, pa.RecordBatch]]:
    """Split the batch by partition, ascending, without empty ones. Each part is sorted by key group.

    Fastest for batches of 20,000 to 100,000 changes, which fit in the cache. Raises KeyGroupMismatch.
    """
    groups = numbers_of(batch.column("key_group"))
    if len(groups) == 0:
        return []
    if int(groups.max()) >= key_groups:
        raise KeyGroupMismatch("the log lacks a key group", key_group=int(groups.max()), key_groups=key_groups)
    if bool((groups[1:] < groups[:-1]).any()):
        # A stable sort of small integers is a radix sort, fastest for one byte.
        order = np.argsort(groups.astype(np.uint8) if key_groups <= 256 else groups, kind="stable")
        batch = taken(batch, order)
        groups = groups[order]
    cuts = np.searchsorted(groups, partition_starts(partitions, key_groups)).tolist()
    return [
        (partition, batch.slice(start, end - start))
        for partition, (start, end) in enumerate(pairwise(cuts))
        if end > start
    ]


def chunk_slices(batch: pa.RecordBatch, chunk_bytes: int, max_bytes: int) -> list[pa.RecordBatch]:
    """Cut the batch, in order, into slices of at most `chunk_bytes`; a larger change gets a slice of its own.

    Raises ValueTooLarge for a change of more than `max_bytes`.
    """
    if fits(batch, min(chunk_bytes, max_bytes)):
        return [batch] if batch.num_rows else []
    ends = np.cumsum(sum((row_sizes(column) for column in batch.columns), np.zeros(batch.num_rows, np.int64)))
    largest = int(np.diff(ends, prepend=0).max())
    if largest > max_bytes:
        raise ValueTooLarge(
            "a change is larger than a chunk may be",
            hint="Store the large part elsewhere and its address here, or split the value over several keys, or make a"
            " log with a larger max.message.bytes, for changes of up to 15 MiB",
            size_bytes=largest,
            max_bytes=max_bytes,
        )
    slices: list[pa.RecordBatch] = []
    start, before = 0, 0
    while start < batch.num_rows:
        end = max(start + 1, int(np.searchsorted(ends, before + chunk_bytes, side="right")))
        slices.append(batch.slice(start, end - start))
        start, before = end, int(ends[end - 1])
    return slices


def row_sizes(column: pa.Array) -> NDArray[np.int64]:
    """Estimate the bytes of each row of a column in a chunk: its data and offsets, without validity bits."""
    kind = column.type
    if isinstance(kind, pa.StructType):
        sizes = np.ones(len(column), np.int64)
        for index in range(kind.num_fields):
            sizes += row_sizes(cast("pa.StructArray", column).field(index))
        return sizes
    if isinstance(column, pa.ListArray | pa.MapArray):
        children = [column.keys, column.items] if isinstance(column, pa.MapArray) else [column.values]
        offsets = numbers_of(column.offsets).astype(np.int64)
        sizes = np.full(len(column), 4, np.int64)
        for child in children:
            sizes += np.diff(np.concatenate(([0], np.cumsum(row_sizes(child))))[offsets])
        return sizes
    if kind.equals(pa.binary()) or kind.equals(pa.string()):
        return 4 + numbers_or_zeros(pc.binary_length(column)).astype(np.int64)
    return np.full(len(column), _fixed_width(kind), np.int64)


def _fixed_width(kind: pa.DataType) -> int:
    try:
        return max(1, kind.bit_width // 8)
    except ValueError as error:
        raise InvalidChange(
            "a value has a type that changes cannot hold", hint="Use the Arrow types that Avro has", type=str(kind)
        ) from error


# ---- on the way out: the last change per key


def newest_sorted(changes: pa.Table, *, drop_deletes: bool = False) -> pa.Table:
    """Return the last change of every (key group, key), sorted in the keys' native order; optionally only puts."""
    rows = sorted_last_rows(whole_column(changes.column("key_group")), whole_column(changes.column("key")))
    if drop_deletes:
        rows = rows[numbers_of(changes.column("op"))[rows] == PUT]
    return changes.take(column_of(rows))


def live(changes: pa.Table) -> pa.Table:
    """Return the puts. A table without deletes is not copied."""
    is_put = numbers_of(changes.column("op")) == PUT
    return changes if is_put.all() else changes.filter(column_of(is_put))


def deletes_and_puts(rows: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Return the deletes and the puts. Rows without deletes are not copied."""
    is_delete = numbers_of(rows.column("op")) == DELETE
    if not is_delete.any():
        return rows.slice(0, 0), rows
    return rows.filter(column_of(is_delete)), rows.filter(column_of(~is_delete))


# ---- sorted tables


def merge_tables(tables: Sequence[pa.Table], *, drop_deletes: bool) -> pa.Table:
    """Merge tables to one sorted table with the newest change of every key. The only merge in the system.

    `tables`: at least one, oldest first, of one schema but for dues, each in a run's order with one row per key.
    Together they are below 2 GiB, the limit of an Arrow column; `store.merge` ensures that.
    `drop_deletes`: leave deletes out, which is only right if nothing older exists that they could hide.
    """
    filled = [table for table in tables if table.num_rows]
    if not filled:
        return tables[0]
    if len(filled) == 1:
        return live(filled[0]) if drop_deletes else filled[0]
    # One chunk per column: taking rows from many chunks is several times slower.
    return newest_sorted(concat_changes(filled).combine_chunks(), drop_deletes=drop_deletes)


def cut_by_bytes(table: pa.Table, most_bytes: int) -> Iterator[pa.Table]:
    """Yield the table in order, in slices of at most `most_bytes`, or of one row. Copies nothing."""
    pending = [table]
    while pending:
        piece = pending.pop()
        half = piece.num_rows // 2
        if half == 0 or piece.nbytes <= most_bytes:
            yield piece
        else:
            pending += [piece.slice(half), piece.slice(0, half)]
