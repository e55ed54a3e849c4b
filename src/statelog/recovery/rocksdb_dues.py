"""The column family `due` of a RocksDB database: which rows are due, and when. Imports without RocksDB. Pure.

    k <raw key>           the due of a row
    t <due> <raw key>     nothing: the rows in the order of their dues
    f                     a time before which no row is due: a hint, which spares a search what was deleted

A due is milliseconds since 1970, eight bytes big-endian. A raw key is that of the row.

Invariants:
- A database has the family once a row had a due. Programs that do not know it cannot open such a database.
- The index is exact: a row with a due has both entries, of the same due, and any other row has none.
"""

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from statelog.schemas.arrays import scalar_of

DUE_FAMILY = "due"
BY_KEY: Final = b"k"
BY_DUE: Final = b"t"
FLOOR: Final = b"f"
DUE_BYTES = 8
_NOTHING = scalar_of(b"", pa.binary())


def due_bytes(due_ms: int) -> bytes:
    """Return a due as the family has it."""
    return due_ms.to_bytes(DUE_BYTES, "big")


def due_entries(raw_keys: pa.Array, dues_ms: NDArray[Any]) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Return for rows with a due, all of them: the keys `k`, the value of each, and the keys `t`, as binary."""
    dues = pa.Array.from_buffers(
        pa.binary(DUE_BYTES), len(dues_ms), [None, pa.py_buffer(dues_ms.astype(np.dtype(">i8")).tobytes())]
    ).cast(pa.binary())
    by_key = pc.binary_join_element_wise(scalar_of(BY_KEY, pa.binary()), raw_keys, _NOTHING)
    return by_key, dues, pc.binary_join_element_wise(scalar_of(BY_DUE, pa.binary()), dues, raw_keys, _NOTHING)
