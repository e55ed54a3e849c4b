"""Target: one Arrow table in memory."""

from collections.abc import Iterable

import pyarrow as pa

__all__ = ["STATE_COLUMNS", "fill_table"]

STATE_COLUMNS = ("key_group", "key", "value")


def fill_table(slices: Iterable[pa.Table], schema: pa.Schema) -> pa.Table:
    """The columns key_group (uint16), key, value out of slices of live changes with `schema`."""
    wanted = pa.schema([schema.field(name) for name in STATE_COLUMNS])
    tables = [table.select(list(STATE_COLUMNS)) for table in slices]
    return pa.concat_tables(tables) if tables else wanted.empty_table()
