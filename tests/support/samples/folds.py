"""Folds of changes that the tests compare with: by the rows that `key_order` chooses, and one by one."""

from typing import Any

import pyarrow as pa

from statelog.schemas.arrays import whole_column
from statelog.schemas.changes.changes import PUT
from statelog.schemas.changes.key_order import last_rows, sorted_rows

__all__ = ["apply_to_dict", "last_per_key", "sort_by_key"]


def last_per_key(changes: pa.Table) -> pa.Table:
    """The last change of every (key group, key), in row order."""
    return changes.take(pa.array(last_rows(*_keys_of(changes))))


def sort_by_key(changes: pa.Table) -> pa.Table:
    """All changes by (key group, key) in the keys' native order; those of one key keep their order."""
    return changes.take(pa.array(sorted_rows(*_keys_of(changes))))


def apply_to_dict(changes: pa.Table, state: dict[Any, Any], *, with_group: bool = False) -> None:
    """Apply changes one by one to a dict from key to value, or from (key group, key) if `with_group`."""
    for group, op, key, value in zip(*(column.to_pylist() for column in changes.columns), strict=True):
        place = (group, key) if with_group else key
        if op == PUT:
            state[place] = value
        else:
            state.pop(place, None)


def _keys_of(changes: pa.Table) -> tuple[pa.Array, pa.Array]:
    return whole_column(changes.column("key_group")), whole_column(changes.column("key"))
