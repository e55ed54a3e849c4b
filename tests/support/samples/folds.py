"""Changes as plain rows and pairs: writes, and reference folds, one by one or by the rows of `key_order`.

A pair is a key and its value; None deletes the key.
"""

from collections.abc import Iterable
from typing import Any, Protocol

import pyarrow as pa

from statelog.schemas.arrays import whole_column
from statelog.schemas.changes.changes import PUT
from statelog.schemas.changes.key_order import is_last_row, sorted_rows

__all__ = ["Pairs", "Row", "apply_all", "apply_to_dict", "last_per_key", "put_all", "rows_of", "sort_by_key"]

Pairs = Iterable[tuple[Any, Any]]
Row = tuple[int, int, Any, Any]


class _Takes(Protocol):
    """A writer, a task, or a table."""

    def put(self, key: Any, value: Any, /) -> object: ...
    def delete(self, key: Any, /) -> object: ...


def put_all(out: _Takes, changes: Pairs) -> None:
    """Put and delete in this order."""
    for key, value in changes:
        out.delete(key) if value is None else out.put(key, value)


def apply_all(state: dict[Any, Any], changes: Pairs) -> None:
    """Apply the same to a dict, which orders the keys by their last puts."""
    for key, value in changes:
        state.pop(key, None)
        if value is not None:
            state[key] = value


def rows_of(changes: pa.Table | pa.RecordBatch) -> list[Row]:
    """Return the changes as (key group, op, key, value)."""
    columns = (changes.column(i).to_pylist() for i in range(4))
    return list(zip(*columns, strict=True))


def last_per_key(changes: pa.Table) -> pa.Table:
    """Return the last change of every (key group, key), in row order."""
    return changes.filter(pa.array(is_last_row(*_keys_of(changes))))


def sort_by_key(changes: pa.Table) -> pa.Table:
    """Return all changes by (key group, key) in the keys' native order; changes of one key stay in order."""
    return changes.take(pa.array(sorted_rows(*_keys_of(changes))))


def apply_to_dict(changes: pa.Table | pa.RecordBatch, state: dict[Any, Any]) -> None:
    """Apply the changes of a log one by one to a dict from key to value."""
    apply_all(state, ((key, value if op == PUT else None) for _, op, key, value in rows_of(changes)))


def _keys_of(changes: pa.Table) -> tuple[pa.Array, pa.Array]:
    return whole_column(changes.column("key_group")), whole_column(changes.column("key"))
