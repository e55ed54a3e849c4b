"""Merges sorted tables to the last change of every key, in run order. Pure; the only merge in the system.

Inputs are tables of changes, oldest table first, each in a run's order with one row per key. So is the output.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from statelog.schemas.changes.changes import PUT
from statelog.schemas.changes.key_order import sorted_last_rows

__all__ = ["cut_by_bytes", "merge_tables"]


def merge_tables(tables: Sequence[pa.Table], *, drop_deletes: bool) -> pa.Table:
    """One sorted table with the newest change of every key in `tables` (oldest first, at least one, of one schema).

    Together they are below 2 GiB, which is what one column of Arrow's holds: `storage.runs.merge` sees to it.
    `drop_deletes` leaves deletes out: only right when nothing older exists that they could hide.
    """
    filled = [table for table in tables if table.num_rows]
    if not filled:
        return tables[0]
    if len(filled) == 1:
        return _puts(filled[0]) if drop_deletes else filled[0]
    # One chunk per column, because taking rows from many chunks is several times slower.
    together = pa.concat_tables(filled).combine_chunks()
    rows = sorted_last_rows(_only_chunk(together, "key_group"), _only_chunk(together, "key"))
    if drop_deletes:
        rows = rows[np.asarray(together.column("op"), np.uint8)[rows] == PUT]
    return together.take(pa.array(rows))


def _puts(table: pa.Table) -> pa.Table:
    is_put = np.asarray(table.column("op"), np.uint8) == PUT
    return table if is_put.all() else table.filter(pa.array(is_put))


def cut_by_bytes(table: pa.Table, most_bytes: int) -> Iterator[pa.Table]:
    """The table in order, in slices of at most `most_bytes`, or of one row. Copies nothing."""
    pending = [table]
    while pending:
        piece = pending.pop()
        half = piece.num_rows // 2
        if half == 0 or piece.nbytes <= most_bytes:
            yield piece
        else:
            pending += [piece.slice(half), piece.slice(0, half)]


def _only_chunk(table: pa.Table, name: str) -> pa.Array:
    return table.column(name).chunk(0)
