"""Target: a Python dict in memory."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from statelog.recovery.reading.plan_reader import PlanReader
from statelog.recovery.targets.target import Filled
from statelog.schemas.values.schema import columns_of

__all__ = ["DictTarget", "fill_dict", "values_of"]


@dataclass(frozen=True, slots=True)
class DictTarget:
    """A dict; see `fill_dict`."""

    with_group: bool

    def check(self) -> None:
        """Memory is always there."""

    def fill(self, reader: PlanReader) -> Filled[dict[Any, Any]]:
        """The dict, and its size."""
        state = fill_dict(reader.slices(), with_group=self.with_group)
        return Filled(state, len(state))


def fill_dict(slices: Iterable[pa.Table], *, with_group: bool) -> dict[Any, Any]:
    """Key to value: bytes, or a dict of the fields of the value schema.

    `with_group` makes (key group, key) the key, for logs whose callers name the key groups: there one key may be in
    several of them.
    """
    state: dict[Any, Any] = {}
    for table in slices:
        for batch in table.to_batches():
            keys = batch.column("key").to_pylist()
            if with_group:
                keys = list(zip(batch.column("key_group").to_pylist(), keys, strict=True))
            state.update(zip(keys, values_of(batch.column("value")), strict=True))
    return state


def values_of(column: pa.Array) -> list[Any]:
    """Structs become dicts by column, which is several times faster than asking Arrow for row after row."""
    if not pa.types.is_struct(column.type):
        return column.to_pylist()
    fields = columns_of(column)
    names = fields.schema.names
    columns = [one.to_pylist() for one in fields.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
