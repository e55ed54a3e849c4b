"""Target: one Parquet file on the local disk, sorted by (key group, key).

Invariant: the file appears under its name whole or not at all, and only after every check has passed.
"""

import errno
import os
import uuid
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from statelog.recovery.target_arrow import STATE_COLUMNS
from statelog.schemas.errors import StorageFull, StoreUnavailable

__all__ = ["fill_parquet"]


def fill_parquet(tables: Iterable[pa.Table], schema: pa.Schema, path: Path) -> int:
    """Write sorted tables of live changes; returns the rows. An existing file is replaced at the end, atomically.

    Raises StorageFull, StoreUnavailable for the local disk, and whatever reading the tables raises.
    """
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    wanted = pa.schema([schema.field(name) for name in STATE_COLUMNS])
    try:
        with _local_disk(path):
            writer = pq.ParquetWriter(str(partial), wanted, compression="lz4", write_page_checksum=True)
        rows = _write(writer, tables, path)
        with _local_disk(path):
            _make_durable(partial)
            partial.replace(path)
            _make_durable(path.parent)
    finally:
        partial.unlink(missing_ok=True)
    return rows


def _write(writer: pq.ParquetWriter, tables: Iterable[pa.Table], path: Path) -> int:
    rows = 0
    try:
        for table in tables:
            with _local_disk(path):
                writer.write_table(table.select(list(STATE_COLUMNS)), row_group_size=max(1, table.num_rows))
            rows += table.num_rows
    finally:
        with _local_disk(path):
            writer.close()
    return rows


def _make_durable(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _local_disk(path: Path) -> Generator[None]:
    """Failures of the local disk in our own terms."""
    try:
        yield
    except OSError as error:
        kind = StorageFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else StoreUnavailable
        raise kind(f"the local disk failed: {error}", path=str(path)) from error
