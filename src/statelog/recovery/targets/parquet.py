"""Target: one Parquet file on the local disk, sorted by (key group, key).

Invariant: the file appears under its name whole or not at all, and only after every check has passed. What a kill
leaves beside it is swept by the next one of that name.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from statelog.environment import DiskHook, Environment
from statelog.errors import AlreadyExists
from statelog.recovery.reading.plan_reader import PlanReader
from statelog.recovery.targets.arrow import STATE_COLUMNS
from statelog.recovery.targets.durable import make_parents, sync
from statelog.recovery.targets.target import Filled
from statelog.storage.local.disk import local_disk
from statelog.storage.local.own_directory import make_own

__all__ = ["ParquetTarget", "fill_parquet"]


@dataclass(frozen=True, slots=True)
class ParquetTarget:
    """A file. Raises AlreadyExists, StorageFull, StoreUnavailable for the local disk."""

    path: Path

    def check(self) -> None:
        """Raise AlreadyExists if there is a directory."""
        _require_file(self.path)

    def fill(self, reader: PlanReader) -> Filled[int]:
        """Write the file; its rows."""
        rows = fill_parquet(reader.sorted_tables(), reader.schema, self.path, reader.environment)
        return Filled(rows, rows)


def _require_file(path: Path) -> None:
    """Raise AlreadyExists if there is a directory: a file is replaced, nothing else."""
    if path.is_dir():
        raise AlreadyExists("a directory is there already", path=str(path), hint="Name a file, also in this directory")


def fill_parquet(
    tables: Iterable[pa.Table], schema: pa.Schema, path: Path, environment: Environment | None = None
) -> int:
    """Write sorted tables of live changes; returns the rows. An existing file is replaced at the end, atomically.

    Directories above that are missing are made. Raises AlreadyExists for a directory, StorageFull, StoreUnavailable for
    the local disk, and whatever reading the tables raises.
    """
    wanted = pa.schema([schema.field(name) for name in STATE_COLUMNS])
    _require_file(path)
    environment = environment or Environment()
    with local_disk(path, "make", environment.disk):
        make_parents(path)
        partial = make_own(path.parent, f".{path.name}.", ".partial", new_id=environment.new_id)
    with partial:
        made = partial.path / "state.parquet"
        with local_disk(path, "open", environment.disk):
            writer = pq.ParquetWriter(str(made), wanted, compression="lz4", write_page_checksum=True)
        rows = _write(writer, tables, path, environment.disk)
        with local_disk(path, "sync", environment.disk):
            sync(made)
        with local_disk(path, "rename", environment.disk):
            made.replace(path)
            sync(path.parent)
    return rows


def _write(writer: pq.ParquetWriter, tables: Iterable[pa.Table], path: Path, disk: DiskHook) -> int:
    rows = 0
    try:
        for table in tables:
            with local_disk(path, "write", disk):
                writer.write_table(table.select(list(STATE_COLUMNS)), row_group_size=max(1, table.num_rows))
            rows += table.num_rows
    finally:
        with local_disk(path):
            writer.close()
    return rows
