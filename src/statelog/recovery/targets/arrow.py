"""Target: one Arrow table in memory."""

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from statelog.recovery.reading.plan_reader import PlanReader
from statelog.recovery.targets.target import Filled

__all__ = ["STATE_COLUMNS", "ArrowTarget", "fill_table"]

STATE_COLUMNS = ("key_group", "key", "value")


@dataclass(frozen=True, slots=True)
class ArrowTarget:
    """A table, by partition and in no order within it, or `ordered` by (key group, key)."""

    ordered: bool

    def check(self) -> None:
        """Memory is always there."""

    def fill(self, reader: PlanReader) -> Filled[pa.Table]:
        """The table, and its rows."""
        tables = reader.sorted_tables() if self.ordered else reader.slices()
        table = fill_table(tables, reader.schema)
        return Filled(table, table.num_rows)


def fill_table(slices: Iterable[pa.Table], schema: pa.Schema) -> pa.Table:
    """The columns key_group (uint16), key, value out of slices of live changes with `schema`."""
    wanted = pa.schema([schema.field(name) for name in STATE_COLUMNS])
    tables = [table.select(list(STATE_COLUMNS)) for table in slices]
    return pa.concat_tables(tables) if tables else wanted.empty_table()
