"""Newest rows: of the rows of a key in a task, the one with the greatest sequence.

Rows are held in memory, and only the newest of every key once they exceed a budget: so a task holds what it will write,
and as much again. Whole columns at a time; no row is looked at in Python.

Invariants:
- The result does not depend on the order in which the rows came.
- Two rows of a key with its greatest sequence are one if they are equal in all columns, and refused otherwise.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from statelog.errors import InvalidChange
from statelog.schemas.changes.key_order import sorted_rows

__all__ = ["NewestRows"]

_BUDGET_BYTES = 64 << 20

Rows = NDArray[np.int64]


class NewestRows:
    """Collects rows with the columns `key` and `sequence`, and `key_group` where it is part of the key."""

    def __init__(self, sequence: str, budget_bytes: int = _BUDGET_BYTES) -> None:
        self._sequence = sequence
        self._budget_bytes = budget_bytes
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Take some rows. Raises InvalidChange for a null sequence."""
        nulls = rows.column(self._sequence).null_count
        if nulls:
            raise InvalidChange(
                "a row has no sequence", hint="Fill it, or leave such rows out", column=self._sequence, nulls=nulls
            )
        self._held.append(rows)
        self._held_bytes += rows.nbytes
        if self._held_bytes > self._budget_bytes:
            held = pa.concat_batches(self._held)
            ranking = _rank(held, self._sequence)
            newest = held.take(pa.array(ranking.rows[ranking.is_newest]))
            self._held, self._held_bytes = [newest], newest.nbytes
            self._budget_bytes = max(self._budget_bytes, 2 * newest.nbytes)

    def take(self) -> pa.RecordBatch | None:
        """One row for every key, None if there was none. Raises InvalidChange for a tie of different rows."""
        if not self._held:
            return None
        held, self._held, self._held_bytes = pa.concat_batches(self._held), [], 0
        ranking = _rank(held, self._sequence)
        tied = np.flatnonzero(ranking.is_newest & ~ranking.is_last)
        one, other = ranking.rows[tied], ranking.rows[ranking.last[tied]]
        if not held.take(pa.array(one)).equals(held.take(pa.array(other))):
            raise InvalidChange(
                "different rows of a key have the same sequence, so none is the last",
                hint="Choose a sequenceBy that grows with every change of a key, such as an offset or a version",
                column=self._sequence,
                tied_rows=len(tied),
            )
        return held.take(pa.array(ranking.rows[ranking.is_last]))


class _Ranking(NamedTuple):
    """Row numbers by key, and by sequence for each key. The rest is by place in that order.

    `last` is the place of the key's last row, `is_last` whether this is it, `is_newest` whether it has its sequence.
    """

    rows: Rows
    last: Rows
    is_last: NDArray[np.bool_]
    is_newest: NDArray[np.bool_]


def _rank(rows: pa.RecordBatch, sequence: str) -> _Ranking:
    by_sequence = pc.sort_indices(rows.column(sequence))
    keys, groups = rows.column("key").take(by_sequence), _groups(rows, by_sequence)
    # Stable, so that the rows of a key stay in sequence.
    by_key = sorted_rows(groups, keys)
    order = by_sequence.to_numpy()[by_key].astype(np.int64)
    is_last = np.ones(len(order), np.bool_)
    is_last[:-1] = ~(_equal_to_next(keys, by_key) & _equal_to_next(groups, by_key))
    ends = np.flatnonzero(is_last)
    last = ends[np.searchsorted(ends, np.arange(len(order)))]
    sequences = rows.column(sequence).take(pa.array(order))
    is_newest = pc.equal(sequences, sequences.take(pa.array(last))).to_numpy(zero_copy_only=False)
    return _Ranking(order, last, is_last, is_newest)


def _groups(rows: pa.RecordBatch, order: pa.Array) -> pa.Array:
    if "key_group" not in rows.schema.names:
        return pa.array(np.zeros(rows.num_rows, np.uint16))
    return rows.column("key_group").take(order)


def _equal_to_next(column: pa.Array, order: Rows) -> NDArray[np.bool_]:
    """Whether each row of an order is equal to the next one: one less than there are rows."""
    ordered = column.take(pa.array(order))
    equal: NDArray[np.bool_] = pc.equal(ordered.slice(0, len(order) - 1), ordered.slice(1)).to_numpy(
        zero_copy_only=False
    )
    return equal
