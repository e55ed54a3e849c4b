"""`StateDigest`: 128 bits of a state that do not depend on the order and grouping of its rows. Pure.

It also digests the changes that the tasks of a batch wrote. That digest has only the `first` 64 bits, because every
written row pays for it.

Invariants:
- It is a sum over rows, and each row's part follows from its key group, key, value and due alone. So order and grouping
  do not matter, and a missing, repeated or different row changes it.
- A digest of changes leaves dues out: in a log with a ttl, a batch that is written again has later ones.
- Values are compared in one value schema: readers convert them first.
- A stored digest (`to_text`) names its version and its value schema. Digests of other ones are not comparable.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from statelog.schemas.arrays import Fingerprints, column_of, fingerprints, mixed_with, numbers_of, numbers_or_zeros
from statelog.schemas.changes.changes import DELETE
from statelog.schemas.changes.due import DUE, has_due
from statelog.schemas.values.avro import avro_values
from statelog.schemas.values.schema import ValueSchema

_PIECE_BYTES = 64 << 20
"""The most that is encoded at once, far below the limit of an Arrow array."""
_PIECE_ROWS = 16384  # Fits in the cache.
_MASK = (1 << 64) - 1
_VERSION = 1
"""Increase it whenever equal rows get another digest."""
_DELETED = np.uint64(DELETE << 32)
_NULL = np.uint64(0x9AE16A3B2F90404F)
_UNSIGNED = {32: pa.uint32(), 64: pa.uint64()}


@dataclass(frozen=True, slots=True)
class StateDigest:
    """The number of rows, and the two halves of their sum. Equal states have equal digests."""

    rows: int = 0
    first: int = 0
    second: int = 0

    @classmethod
    def of(cls, tables: Iterable[pa.Table], schema: ValueSchema) -> "StateDigest":
        """Digest the rows of these tables, as `of_more`."""
        return reduce(lambda digest, table: digest.of_more(table, schema), tables, cls())

    def of_more(self, table: pa.Table, schema: ValueSchema) -> "StateDigest":
        """Add the rows of a table of puts, whose values have this schema."""
        digest = self
        step = max(1, min(_PIECE_ROWS, table.num_rows * _PIECE_BYTES // max(1, table.nbytes)))
        for batch in table.to_batches(max_chunksize=step):
            digest += _of_rows(batch, schema, 2)
        return digest

    def of_changes(self, changes: pa.RecordBatch, schema: ValueSchema) -> "StateDigest":
        """Add the rows of a batch of changes, including deletes."""
        digest, is_delete = self, numbers_of(changes.column("op")) == DELETE
        if is_delete.any():
            digest += _of_rows(changes.filter(column_of(is_delete)), None, 1)
            changes = changes.filter(column_of(~is_delete))
        for start in range(0, changes.num_rows, _PIECE_ROWS):
            digest += _of_rows(changes.slice(start, _PIECE_ROWS), schema, 1)
        return digest

    def __add__(self, other: "StateDigest") -> "StateDigest":
        """Return the digest of the rows of both."""
        first, second = self.first + other.first & _MASK, self.second + other.second & _MASK
        return StateDigest(self.rows + other.rows, first, second)

    def __str__(self) -> str:
        return f"{self.first:016x}{self.second:016x}"

    def to_text(self, schema: ValueSchema) -> str:
        """Write a digest of changes for storage: version, value schema, rows and the first half."""
        return f"{_VERSION}.{schema.id}.{self.rows}.{self.first:016x}"


def _of_rows(batch: pa.RecordBatch, schema: ValueSchema | None, halves: int) -> StateDigest:
    """Return the digest of some rows: puts in this value schema, or deletes (None)."""
    groups = numbers_of(batch.column("key_group")).astype(np.uint64)
    columns = [fingerprints(batch.column("key"), halves)]
    leaves = list(_leaves(batch.column("value")))
    if schema is None:
        groups |= _DELETED
    elif halves == 1 and schema.root is not None and all(_is_plain(leaf.type) for leaf in leaves):
        columns += [_words(leaf) for leaf in leaves]  # A fifth of the time of Avro's form.
    else:
        columns.append(fingerprints(avro_values(batch.column("value"), schema), halves))
    timed, dues = _timed_rows(batch)
    sums = [0, 0]
    for half in range(halves):
        state = groups
        for column in columns:
            state = mixed_with(state, column[half], half)
        if halves == 2 and len(timed):
            state[timed] = mixed_with(state[timed], dues, half)
        sums[half] = int(np.add.reduce(state, dtype=np.uint64))
    return StateDigest(len(groups), *sums)


def _timed_rows(batch: pa.RecordBatch) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Return the rows with a due, and their dues. A row without one has the digest that it has without the column."""
    if not has_due(batch):
        return np.zeros(0, np.int64), np.zeros(0, np.uint64)
    column = batch.column(DUE.name)
    rows = np.flatnonzero(numbers_of(column.is_valid()))
    return rows, numbers_or_zeros(column.view(pa.int64()))[rows].astype(np.uint64)


def _leaves(column: pa.Array) -> Iterator[pa.Array]:
    """Yield the columns that a column of (nested) records consists of."""
    if not isinstance(column, pa.StructArray):
        yield column
        return
    for child in column.flatten():
        yield from _leaves(child)


def _is_plain(kind: pa.DataType) -> bool:
    try:
        return kind.bit_width in (1, 32, 64) and not pa.types.is_fixed_size_binary(kind)
    except ValueError:  # The type has no fixed width.
        return kind in (pa.string(), pa.binary())


def _words(leaf: pa.Array) -> Fingerprints:
    """Return one half of the fingerprints of a column of plain values, or nulls."""
    if leaf.type in (pa.string(), pa.binary()):
        words, _ = fingerprints(leaf.fill_null("") if leaf.null_count else leaf, 1)
    else:
        plain = leaf.cast(pa.uint8()) if leaf.type == pa.bool_() else leaf.view(_UNSIGNED[leaf.type.bit_width])
        words = numbers_or_zeros(plain).astype(np.uint64)
    if leaf.null_count:
        words = np.where(numbers_of(leaf.is_null()), _NULL, words)
    return words, words
