"""Repeated keys in a task: `NewestRows` retains the row with the greatest sequence for each, `UniqueKeys` refuses them.

Nothing orders the rows of a key in a task, so another attempt could write another one of them. Columns are processed
whole, no row in Python.

Invariants:
- The newest rows do not depend on the order of the rows. Two rows of a key with its greatest sequence must be equal in
  all columns, and are refused otherwise. Once rows exceed a budget only the newest row of every key is held: so a task
  holds twice the rows that it will write.
- Every repeated key is found, and two different keys are never taken for one. A key is held as its fingerprint, 16
  bytes: in memory up to a budget, in a spill file above it, so memory is bounded for any number of rows.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from statelog.closing import Closing
from statelog.errors import InvalidChange, ValueTooLarge
from statelog.schemas.arrays import Fingerprints, column_of, fingerprints, numbers_of, taken
from statelog.store.disk.spill import SpillSegment

_BUDGET_BYTES = 64 << 20
_MEMORY_ROWS = 4 << 20
"""So many fingerprints are held in memory, 64 MiB, and about so many are compared in one pass."""
_MIX = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)

Rows = NDArray[np.int64]


class NewestRows:
    """Collects rows with the columns `key` and `sequence`, and with `key_group` if callers choose it."""

    def __init__(self, sequence: str, budget_bytes: int = _BUDGET_BYTES) -> None:
        self._sequence = sequence
        self._budget_bytes = budget_bytes
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows. Raises InvalidChange for a null sequence."""
        nulls = rows.column(self._sequence).null_count
        if nulls:
            hint = "Fill it, or filter such rows out"
            raise InvalidChange("a row has no sequence", hint=hint, column=self._sequence, nulls=nulls)
        if not rows.num_rows:
            return
        self._held.append(rows)
        self._held_bytes += rows.nbytes
        if self._held_bytes > self._budget_bytes:
            held = self._joined()
            ranking = _rank(held, self._sequence)
            newest = taken(held, ranking.rows[ranking.is_newest])
            self._held, self._held_bytes = [newest], newest.nbytes
            self._budget_bytes = max(self._budget_bytes, 2 * newest.nbytes)

    def _joined(self) -> pa.RecordBatch:
        try:
            return pa.concat_batches(self._held)
        except pa.ArrowInvalid as error:
            hint = "Repartition into more tasks"
            raise ValueTooLarge("the newest rows of one task have a column of more than 2 GiB", hint=hint) from error

    def take(self) -> pa.RecordBatch | None:
        """Return one row for every key, None without rows. Raises InvalidChange for a tie of different rows."""
        if not self._held:
            return None
        held, self._held, self._held_bytes = self._joined(), [], 0
        ranking = _rank(held, self._sequence)
        tied = np.flatnonzero(ranking.is_newest & ~ranking.is_last)
        one, other = ranking.rows[tied], ranking.rows[ranking.last[tied]]
        if not _are_same(taken(held, one), taken(held, other)):
            raise InvalidChange(
                "different rows of a key have the same sequence, so none is the last",
                hint="Choose a sequenceBy that grows with every change of a key, such as an offset or a version",
                column=self._sequence,
                tied_rows=len(tied),
            )
        return taken(held, ranking.rows[ranking.is_last])


def _are_same(some: pa.RecordBatch, others: pa.RecordBatch) -> bool:
    """Return whether rows are the same. In Arrow's comparison a NaN equals nothing."""
    return all(
        one.equals(other) or repr(one.to_pylist()) == repr(other.to_pylist())
        for one, other in zip(some.columns, others.columns, strict=True)
    )


class _Ranking(NamedTuple):
    """Row numbers by key, and by sequence for each key; for each of them in that order:

    last       the index of the key's last row
    is_last    whether the row is the key's last
    is_newest  whether the row has the sequence of the key's last
    """

    rows: Rows
    last: Rows
    is_last: NDArray[np.bool_]
    is_newest: NDArray[np.bool_]


def _rank(rows: pa.RecordBatch, sequence: str) -> _Ranking:
    order = numbers_of(pc.sort_indices(rows.column(sequence))).astype(np.int64)
    names = [name for name in ("key", "key_group") if name in rows.schema.names]
    keys = np.stack([numbers_of(rows.column(name).dictionary_encode().indices)[order] for name in names])
    by_key = np.lexsort(keys)  # Stable, so the rows of a key stay in sequence.
    order, keys = order[by_key], keys[:, by_key]
    is_last = np.append(np.any(keys[:, 1:] != keys[:, :-1], axis=0), True)
    ends = np.flatnonzero(is_last)
    last = ends[np.searchsorted(ends, np.arange(len(order)))]
    sequences = rows.column(sequence).take(column_of(order))
    is_newest = numbers_of(pc.equal(sequences, sequences.take(column_of(last))))
    return _Ranking(order, last, is_last, is_newest)


class UniqueKeys(Closing):
    """Collects the keys of a task, and finds repeated ones: in `check`, or earlier."""

    def __init__(self, memory_rows: int = _MEMORY_ROWS) -> None:
        self._memory_rows = memory_rows
        self._held: list[Fingerprints] = []
        self._held_rows = 0
        self._spilled_rows = 0
        self._segment: SpillSegment | None = None

    def add(self, keys: pa.Array, key_groups: NDArray[np.integer] | None = None) -> None:
        """Add the keys of some rows, with their key groups if callers choose these.

        Raises InvalidChange if a key came twice in the last few million rows; StorageFull, StoreUnavailable.
        """
        one, two = fingerprints(keys)
        if key_groups is not None:
            two = two ^ (key_groups.astype(np.uint64) * _MIX)
        self._held.append((one, two))
        self._held_rows += len(keys)
        if self._held_rows >= self._memory_rows:
            self._spill()

    def check(self) -> None:
        """Raise InvalidChange if any key came twice. Raises StoreUnavailable, Corrupt."""
        if self._segment is None:
            _refuse_repeats(_joined(self._held))
            return
        self._spill()
        # Equal fingerprints have the same remainder, so each pass over the file compares those of one remainder.
        passes = -(-self._spilled_rows // self._memory_rows)
        for one in range(passes):
            _refuse_repeats(_joined([_of_pass(block, one, passes) for block in _blocks(self._segment)]))

    def close(self) -> None:
        """Release memory and the spill file. Idempotent."""
        self._held, self._held_rows, self._spilled_rows = [], 0, 0
        if self._segment is not None:
            self._segment.release()
            self._segment = None

    def _spill(self) -> None:
        if not self._held:
            return
        joined = _joined(self._held)
        self._held, self._held_rows = [], 0
        _refuse_repeats(joined)
        if self._segment is None:
            self._segment = SpillSegment(Path(tempfile.gettempdir()))
        self._segment.append(np.concatenate(joined).data)
        self._spilled_rows += len(joined[0])


def _blocks(segment: SpillSegment) -> Iterator[Fingerprints]:
    """Yield the spilled blocks in order."""
    offset = 0
    while offset < segment.end_offset:
        data, offset = segment.read(offset)
        one, two = np.frombuffer(data, np.uint64).reshape(2, -1)
        yield one, two


def _of_pass(block: Fingerprints, number: int, passes: int) -> Fingerprints:
    one, two = block
    mine = ((one * _MIX) >> _HALF) % np.uint64(passes) == number
    return one.compress(mine), two.compress(mine)


def _joined(parts: list[Fingerprints]) -> Fingerprints:
    if not parts:
        return np.zeros(0, np.uint64), np.zeros(0, np.uint64)
    return np.concatenate([one for one, _ in parts]), np.concatenate([two for _, two in parts])


def _refuse_repeats(found: Fingerprints) -> None:
    """Raise InvalidChange for repeated fingerprints.

    Sorting only the first halves, and comparing the second ones of equals, is several times faster than sorting both.
    """
    one, two = found
    ordered = np.sort(one)
    repeated = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    if not len(repeated):
        return
    mine = np.isin(one, repeated)
    pairs = np.stack((one[mine], two[mine]), axis=1)
    twice = len(pairs) - len(np.unique(pairs, axis=0))
    if twice:
        raise InvalidChange(
            "a key comes more than once in a task, and nothing says which row is the last",
            hint="Set sequenceBy to a column that grows with every change of a key, or aggregate by key first",
            repeated_rows=twice,
        )
