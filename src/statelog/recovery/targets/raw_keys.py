"""Raw keys: keys as the bytes that a byte-ordered store sorts by, and rows in that order. Pure.

A raw key is the key group (two bytes, big-endian) and the key's bytes. For bytes and strings this order is the one that
sorted tables already have. Longs are two's complement, so negative ones come after the others of their key group.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from statelog.schemas.snapshot.runs import key_groups_of

__all__ = ["in_raw_order", "raw_keys"]


def raw_keys(rows: pa.RecordBatch) -> pa.Array:
    """The raw keys of a batch with the columns key_group and key, as binary."""
    groups = _big_endian(np.asarray(rows.column("key_group"), np.uint16).astype(">u2"))
    keys = rows.column("key")
    data = _big_endian(np.asarray(keys, np.int64).astype(">i8")) if pa.types.is_integer(keys.type) else keys
    return pc.binary_join_element_wise(groups, data.cast(pa.binary()), pa.scalar(b"", pa.binary()))


def _big_endian(numbers: NDArray[np.generic]) -> pa.Array:
    kind = pa.binary(numbers.dtype.itemsize)
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers.tobytes())]).cast(pa.binary())


def in_raw_order(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Tables sorted by (key group, key) as tables in the order of raw keys.

    Of longs, the negative ones of one key group are held back until its others have come; nothing else is held.
    """
    held = _Held([])
    for table in tables:
        if not table.num_rows:
            continue
        if pa.types.is_integer(table.schema.field("key").type):
            yield from filter(_has_rows, held.exchange(table))
        else:
            yield table
    yield from filter(_has_rows, held.tables)


def _has_rows(table: pa.Table) -> bool:
    return table.num_rows > 0


@dataclass(slots=True)
class _Held:
    """Negative keys of one key group, ascending."""

    tables: list[pa.Table]
    key_group: int = -1

    def exchange(self, table: pa.Table) -> Iterator[pa.Table]:
        """Take the next table; give what may come before all that is held now."""
        order = np.argsort(_places(table), kind="stable")
        rest = table.take(pa.array(order))
        places = _places(rest)
        first, last = int(places[0]) >> 1, int(places[-1]) >> 1
        if first == self.key_group:
            others = int(np.searchsorted(places, 2 * first + 1))
            yield rest.slice(0, others)
            rest, places = rest.slice(others), places[others:]
            if first == last:
                self.tables.append(rest)
                return
        yield from self.tables
        end = int(np.searchsorted(places, 2 * last + 1))
        yield rest.slice(0, end)
        self.tables, self.key_group = [rest.slice(end)], last


def _places(table: pa.Table) -> NDArray[np.int64]:
    """Twice the key group, and one more for a negative key: what a table is sorted by, before the keys themselves."""
    negative = np.asarray(table.column("key"), np.int64) < 0
    return key_groups_of(table).astype(np.int64) * 2 + negative
