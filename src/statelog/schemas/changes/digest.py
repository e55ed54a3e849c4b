"""`StateDigest`: 128 bits that two readers of one state agree on, in whatever order and pieces its rows come. Pure.

For comparing states within one process: another version may compute another digest of the same state.

Invariants:
- It is a sum over rows, and each row's part follows from its key group, key and value alone. So order and pieces do not
  matter, and a row that is missing, twice there, or another one makes a difference.
- Values are compared in one value schema: whoever reads converts them first.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

import numpy as np
import pyarrow as pa

from statelog.schemas.arrays import fingerprints, mixed_with, numbers_of
from statelog.schemas.values.avro import avro_values
from statelog.schemas.values.schema import ValueSchema

_PIECE_BYTES = 64 << 20
"""So much is encoded at once, far below what one Arrow array holds."""
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class StateDigest:
    """How many rows, and the two halves of their sum. Equal states have equal digests."""

    rows: int = 0
    first: int = 0
    second: int = 0

    @classmethod
    def of(cls, tables: Iterable[pa.Table], schema: ValueSchema) -> "StateDigest":
        """Of the rows of these tables, as `of_more`."""
        return reduce(lambda digest, table: digest.of_more(table, schema), tables, cls())

    def of_more(self, table: pa.Table, schema: ValueSchema) -> "StateDigest":
        """With the rows of a table of live changes, whose values have this schema."""
        digest = self
        step = max(1, table.num_rows * _PIECE_BYTES // max(1, table.nbytes))
        for batch in table.to_batches(max_chunksize=step):
            keys, values = fingerprints(batch.column("key")), fingerprints(avro_values(batch.column("value"), schema))
            groups = numbers_of(batch.column("key_group")).astype(np.uint64)
            sums = [
                int(np.add.reduce(mixed_with(mixed_with(groups, key, half), value, half), dtype=np.uint64))
                for half, (key, value) in enumerate(zip(keys, values, strict=True))
            ]
            rows = digest.rows + batch.num_rows
            digest = StateDigest(rows, digest.first + sums[0] & _MASK, digest.second + sums[1] & _MASK)
        return digest

    def __str__(self) -> str:
        return f"{self.first:016x}{self.second:016x}"
