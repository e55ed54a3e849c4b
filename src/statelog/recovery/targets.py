"""The targets of a recovery in memory and as a file: a dict, an Arrow table, a digest, Parquet. `Recovery` fills them.

Invariant: a file appears under its name whole or not at all, and only after every check has passed. The leftovers of a
killed process are swept by the next target of that name.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from statelog.environment import DiskHook
from statelog.errors import NoSuchYear
from statelog.reading import Converter
from statelog.recovery.plan_reader import PlanReader
from statelog.schemas.arrays import column_of
from statelog.schemas.changes.digest import StateDigest
from statelog.schemas.changes.due import DUE, dues_of, has_due, shown
from statelog.schemas.values.json_text import decode_json
from statelog.schemas.values.schema import columns_of, with_text
from statelog.store.disk.disk import local_disk, make_parents, sync
from statelog.store.disk.own_directory import make_own

_STATE_COLUMNS = ["key_group", "key", "value"]
T = TypeVar("T")

Target = Callable[[PlanReader], tuple[T, int]]
"""Takes one state. Returns the caller's result, and its number of rows. A second call starts from the beginning. It
knows nothing of plans and leases; errors of reading pass through.
"""


# ---- in memory


ValuesOf = Callable[[pa.Array, Sequence[Any]], list[Any]]
"""Makes values of a value column and the keys of its rows."""


def fill_dict(reader: PlanReader, *, with_group: bool, values_of: ValuesOf) -> tuple[dict[Any, Any], int]:
    """Fill a dict from key to the value that `values_of` makes.

    `with_group` makes (key group, key) the key, for logs whose callers name the key groups: there one key may be in
    several of them.
    """
    state = _filled(reader, with_group, values_of, None)
    return state, len(state)


def fill_dicts(
    reader: PlanReader, *, with_group: bool, values_of: ValuesOf
) -> tuple[tuple[dict[Any, Any], dict[Any, int]], int]:
    """Fill the dict of `fill_dict`, and one from key to due, in milliseconds, of the keys that have one."""
    dues = dict[Any, int]()
    state = _filled(reader, with_group, values_of, dues)
    return (state, dues), len(state)


def _filled(reader: PlanReader, with_group: bool, values_of: ValuesOf, dues: dict[Any, int] | None) -> dict[Any, Any]:
    """Return the dict from key to value, and put the dues of keys into `dues`."""
    state = dict[Any, Any]()
    for table in reader.slices():
        for batch in table.to_batches():
            keys = batch.column("key").to_pylist()
            if with_group:
                keys = list(zip(batch.column("key_group").to_pylist(), keys, strict=True))
            state.update(zip(keys, values_of(batch.column("value"), keys), strict=True))
            if dues is not None and has_due(batch):
                found: Any = zip(keys, dues_of(batch), strict=True)
                if batch.column(DUE.name).null_count:
                    found = (one for one in found if one[1] is not None)
                dues.update(found)
    return state


def values_of(column: pa.Array, keys: Sequence[Any]) -> list[Any]:
    """Return bytes, or a dict of the fields of the value schema, for each row. Raises NoSuchYear.

    Structs become dicts by column, which is several times faster than asking Arrow for row after row.
    """
    if not pa.types.is_struct(column.type):
        return column.to_pylist()
    fields = columns_of(column)
    names = fields.schema.names
    try:
        columns = [_python(one) for one in fields.columns]
    except (OverflowError, ValueError):
        raise _first_lacking(fields, keys) from None
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def json_of(column: pa.Array, _: Sequence[Any]) -> list[Any]:
    """Return the JSON value of each row of a value column."""
    return list(map(decode_json, column.to_pylist()))


def _python(column: pa.Array) -> list[Any]:
    values, mend = column.to_pylist(), _mender(column.type)
    return values if mend is None else [one if one is None else mend(one) for one in values]


def _mender(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Return a function that makes dicts of a value's maps, which Arrow returns as lists of pairs; None if no maps."""
    if isinstance(kind, pa.StructType):
        menders = {field.name: mend for field in kind if (mend := _mender(field.type)) is not None}
        return partial(_mended_record, menders=menders) if menders else None
    if isinstance(kind, pa.ListType):
        inner = _mender(kind.value_field.type)
        return None if inner is None else lambda value: [one if one is None else inner(one) for one in value]
    if isinstance(kind, pa.MapType):
        item_of = _mender(kind.item_field.type)
        return lambda value: {name: one if one is None or item_of is None else item_of(one) for name, one in value}
    return None


def _mended_record(value: dict[str, Any], menders: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
    for name, mend in menders.items():
        if value[name] is not None:
            value[name] = mend(value[name])
    return value


def _first_lacking(fields: pa.RecordBatch, keys: Sequence[Any]) -> NoSuchYear:
    for name, column in zip(fields.schema.names, fields.columns, strict=True):
        for key, item in zip(keys, column, strict=True):
            try:
                item.as_py()
            except (OverflowError, ValueError):
                return no_such_year(f"value.{name}", key)
    raise AssertionError("Arrow reads every row, but not the whole column")


def no_such_year(field: str, key: object) -> NoSuchYear:
    """Make the error for a value that Python's types cannot hold."""
    return NoSuchYear("a value holds a time whose year Python does not have", key=ascii(key)[:200], field=field)


def fill_table(reader: PlanReader, *, ordered: bool, due: bool = False) -> tuple[pa.Table, int]:
    """Fill a table of key_group (uint16), key, value, in any order or `ordered` by (key group, key).

    `due`: with that column, too.
    """
    tables = reader.sorted_tables() if ordered else reader.slices()
    found = [_compact(_state_of(table, reader.converter, due=due)) for table in tables]
    table = pa.concat_tables(found) if found else _state_schema(reader.converter, due=due).empty_table()
    return table, table.num_rows


def fill_digest(reader: PlanReader) -> tuple[StateDigest, int]:
    """Compute the digest of the rows. Raises Corrupt for a key in another key group than its own."""
    tables = map(reader.log.descriptor.check_key_groups, reader.sorted_tables())
    digest = StateDigest.of(tables, reader.converter.target)
    return digest, digest.rows


def _compact(table: pa.Table) -> pa.Table:
    """Copy a table that is a small slice of its buffers, which it would otherwise hold in memory."""
    if table.get_total_buffer_size() * 4 <= table.nbytes * 5:
        return table
    return table.take(column_of(np.arange(table.num_rows)))


def _state_of(table: pa.Table, converter: Converter, *, due: bool) -> pa.Table:
    names = [*_STATE_COLUMNS, *[DUE.name] * due]
    return with_text(shown(table, due=due).select(names), converter.target)


def _state_schema(converter: Converter, *, due: bool) -> pa.Schema:
    return _state_of(converter.schema.empty_table(), converter, due=due).schema


# ---- one Parquet file on the local disk


def fill_parquet(reader: PlanReader, *, path: Path, due: bool = False) -> tuple[int, int]:
    """Write a file sorted by (key group, key), replacing an older one. The result is its number of rows.

    `due`: with that column, too. Missing parent directories are made. Raises StorageFull and StoreUnavailable for the
    local disk.
    """
    disk, schema = reader.environment.disk, _state_schema(reader.converter, due=due)
    with local_disk(path, "make", disk):
        make_parents(path)
        partial = make_own(path.parent, f".{path.name}.", ".partial", new_id=reader.environment.new_id)
    with partial:
        made = partial.path / "state.parquet"
        with local_disk(path, "open", disk):
            writer = pq.ParquetWriter(str(made), schema, compression="lz4", write_page_checksum=True)
        tables = (_state_of(table, reader.converter, due=due) for table in reader.sorted_tables())
        rows = _write(writer, tables, path, disk)
        with local_disk(path, "sync", disk):
            sync(made)
        with local_disk(path, "rename", disk):
            made.replace(path)
            sync(path.parent)
    return rows, rows


def _write(writer: pq.ParquetWriter, tables: Iterable[pa.Table], path: Path, disk: DiskHook) -> int:
    rows = 0
    try:
        for table in tables:
            with local_disk(path, "write", disk):
                writer.write_table(table, row_group_size=max(1, table.num_rows))
            rows += table.num_rows
    finally:
        with local_disk(path):
            writer.close()
    return rows
