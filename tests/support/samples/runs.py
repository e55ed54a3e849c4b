"""Tables of changes and runs of them, for all tests that read or write runs."""

import uuid
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from statelog.schemas.changes.due import DUE, has_due
from statelog.schemas.snapshot.runs import TARGET_ROWS, RunFile, RunMetadata, row_groups_for
from statelog.store.port import Store
from statelog.store.run_reader import RunReader
from statelog.store.run_writer import RunWriter, upload_run
from tests.support.samples.folds import Row

__all__ = [
    "LABEL",
    "change_table",
    "label_of",
    "run_schema",
    "table_of",
    "tables_of",
    "timed_rows",
    "timed_table",
    "write_run",
]

LABEL = RunMetadata(log="orders", first_position=10, end_position=20, value_schema_id=0)


def label_of(footer: pq.FileMetaData) -> dict[str, str]:
    """Return our entries in the footer of a run."""
    found = (footer.metadata or {}).items()
    return {key.decode(): value.decode() for key, value in found if key.startswith(b"statelog.")}


def run_schema(key_type: pa.DataType, value_type: pa.DataType) -> pa.Schema:
    """Return the columns of a run whose keys and values have these Arrow types, which may be types that no log has."""
    return pa.schema([("key_group", pa.uint16()), ("op", pa.uint8()), ("key", key_type), ("value", value_type)])


def change_table(
    changes: Iterable[Row], key_type: pa.DataType | None = None, value_type: pa.DataType | None = None
) -> pa.Table:
    """Return changes (key group, op, key, value), in the order of a run."""
    rows = sorted(changes, key=lambda change: (change[0], _order(change[2])))
    schema = run_schema(key_type or pa.binary(), value_type or pa.binary())
    columns = [[row[i] for row in rows] for i in range(4)]
    return pa.table(dict(zip(schema.names, columns, strict=True)), schema=schema)


TimedRow = tuple[int, int, Any, Any, int | None]


def timed_table(changes: Iterable[TimedRow]) -> pa.Table:
    """Return changes (key group, op, key, value, due in milliseconds), in the order of a run, with that column."""
    rows = sorted(changes, key=lambda change: (change[0], _order(change[2])))
    dues = pa.array([row[4] for row in rows], pa.int64()).cast(DUE.type)
    return change_table(row[:4] for row in rows).append_column(DUE, dues)


def timed_rows(changes: pa.Table | pa.RecordBatch) -> list[TimedRow]:
    """Return the changes as (key group, op, key, value, due in milliseconds); None without a due."""
    columns = [column.to_pylist() for column in changes.columns[:4]]
    dues = changes.column(4).cast(pa.int64()).to_pylist() if has_due(changes) else [None] * changes.num_rows
    return list(zip(*columns, dues, strict=True))


def _order(key: object) -> bytes:
    """Return bytes that order as keys do in a run."""
    if isinstance(key, int):
        return (key + (1 << 63)).to_bytes(8, "big")
    return key.encode() if isinstance(key, str) else bytes(key)  # type: ignore[call-overload]  # the only other kind


def write_run(
    store: Store,
    directory: Path,
    tables: Sequence[pa.Table],
    *,
    label: RunMetadata = LABEL,
    target_rows: int = TARGET_ROWS,
) -> RunFile:
    """Write tables, which follow each other, as one run and put it into the store."""
    with RunWriter(directory / uuid.uuid4().hex, tables[0].schema, label, target_rows=target_rows) as writer:
        for table in tables:
            writer.append(table)
        return upload_run(store, writer.finish())


def tables_of(reader: RunReader, wanted: Collection[int] | None = None) -> list[pa.Table]:
    """Return the changes of the wanted key groups (None: all), one table for each row group that may have some."""
    index = reader.run.index
    numbers = range(len(index.row_groups)) if wanted is None else row_groups_for(index, wanted)
    return list(reader.row_groups(numbers, wanted))


def table_of(reader: RunReader, wanted: Collection[int] | None = None) -> pa.Table:
    """Return the changes of the wanted key groups (None: all) as one table."""
    schema = reader.footer.schema.to_arrow_schema().remove_metadata()
    return pa.concat_tables([schema.empty_table(), *tables_of(reader, wanted)])
