"""Writes runs: to a local file, row group by row group, and then whole to the store.

`schemas.snapshot.run_ref.Cuts` decides where sorted changes are cut into several runs.

Invariants:
- The runs that changes were cut into tile the requested key groups, whatever rows there are; without rows there is one
  run. After an error no file is left.
- A writer that is closed before `finish` leaves no file. The hash that `finish` returns was taken before the bytes went
  to the disk: a file that the disk damaged does not match it.
- The file has the column `due` if and only if a row has a due. So what uses none stays byte for byte.
- Changes that are not strictly ascending by (key group, key) are refused: a run out of order would hide changes.
"""

import hashlib
import io
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from statelog.closing import Closing, undone_by_errors
from statelog.environment import DiskHook, no_faults
from statelog.errors import CorruptRun, Fact
from statelog.schemas.changes.due import DUE, DueSpan, concat_changes, shown, with_due, without_due
from statelog.schemas.names import run_path
from statelog.schemas.snapshot.run_ref import Cuts
from statelog.schemas.snapshot.runs import (
    TARGET_ROWS,
    RowGroupPacker,
    RowGroupSpan,
    RunFile,
    RunIndex,
    RunMetadata,
    first_unsorted,
    key_groups_of,
)
from statelog.store.disk.disk import local_disk
from statelog.store.port import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenRun:
    """A finished run on the local disk, and its entry for a manifest, named after the local file."""

    local: Path
    file: RunFile


class _HashedFile(io.FileIO):
    """A new file that hashes the bytes written to it: all of them, and each stretch, which `cut` ends."""

    def __init__(self, local: Path) -> None:
        super().__init__(local, "wb")
        self.sha256, self._stretch = hashlib.sha256(), xxhash.xxh3_64()
        self._start = self.size_bytes = 0

    def write(self, data: Any) -> int:
        """Hash the bytes, then write all of them. Raises OSError."""
        left = memoryview(data)
        self.sha256.update(left)
        self._stretch.update(left)
        self.size_bytes += len(left)
        while left:
            left = left[super().write(left) :]
        return len(data)

    def cut(self) -> tuple[int, int, int]:
        """End a stretch. Return where it began, its length, and its xxh3-64."""
        found = self._start, self.size_bytes - self._start, self._stretch.intdigest()
        self._start, self._stretch = self.size_bytes, xxhash.xxh3_64()
        return found


class _RunFileWriter:
    """A run on the local disk in the making: row groups, and where each lies. After an error no file is left."""

    def __init__(self, local: Path, schema: pa.Schema, metadata: RunMetadata, disk: DiskHook) -> None:
        self._local = local
        self._disk = disk
        self.schema = schema
        self.spans: list[RowGroupSpan] = []
        is_timed = DUE.name in schema.names
        # After an error there is no writer that the caller could close.
        with undone_by_errors(local.unlink, missing_ok=True), local_disk(local, "open", disk):
            self.sink = _HashedFile(local)
            with undone_by_errors(self.sink.close):
                self._file = pq.ParquetWriter(
                    self.sink,
                    schema.with_metadata(metadata.to_parquet(due=is_timed)),
                    compression="lz4",
                    use_dictionary=["key_group", "op"],
                    write_statistics=["key_group", "key", *[DUE.name] * is_timed],
                    write_page_checksum=True,
                    column_encoding={DUE.name: "DELTA_BINARY_PACKED"} if is_timed else None,
                )
            self.sink.cut()  # Parquet's magic.

    def write(self, table: pa.Table) -> None:
        """Write a row group. Raises StorageFull, StoreUnavailable."""
        groups = key_groups_of(table)
        with local_disk(self._local, "write", self._disk):
            self._file.write_table(table, row_group_size=table.num_rows)
        self.spans.append(RowGroupSpan(int(groups[0]), int(groups[-1]) + 1, table.num_rows, *self.sink.cut()))

    def finish(self) -> RunIndex:
        """Complete the file, and return its index. Raises StorageFull, StoreUnavailable."""
        with local_disk(self._local, "finish", self._disk):
            self._file.close()
            self.sink.close()
        footer, _, checksum = self.sink.cut()
        return RunIndex(row_groups=tuple(self.spans), footer_offset=footer, footer_checksum=checksum)

    def close(self) -> None:
        """Close the file, which is removed. So a failure to write its last bytes does not matter."""
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):
            self.sink.close()
        self._local.unlink(missing_ok=True)


class RunWriter(Closing):
    """Writes one run to a local file, row group by row group, with about two row groups in memory.

    Leaving its context without `finish` removes the file.
    """

    def __init__(
        self,
        local: Path,
        schema: pa.Schema,
        metadata: RunMetadata,
        *,
        target_rows: int = TARGET_ROWS,
        disk: DiskHook = no_faults,
    ) -> None:
        self._local = local
        self._disk = disk
        self._metadata = metadata
        self._schema = without_due(schema)
        self._timed_schema = with_due(self._schema)
        self._packer = RowGroupPacker(target_rows)
        self._dues: list[DueSpan] = []
        self._last: pa.Table | None = None
        self._pending_bytes = 0
        self._open = True
        self._file = _RunFileWriter(local, self._schema, metadata, disk)

    @property
    def size_bytes(self) -> int:
        """About how large the file will be: the bytes written, and those buffered."""
        return self._file.sink.size_bytes + self._pending_bytes

    def append(self, table: pa.Table) -> None:
        """Add changes that come after all earlier ones by (key group, key).

        Raises CorruptRun if they do not, and for the local disk StorageFull, StoreUnavailable.
        """
        if table.schema not in (self._schema, self._timed_schema):
            raise self._broken("a table of another schema", got=str(table.schema), expected=str(self._schema))
        if not table.num_rows:
            return
        joined = table if self._last is None else concat_changes([self._last, table])
        row = first_unsorted(joined)
        if row is not None:
            raise self._broken("changes out of order, or two of one key", row=row - joined.num_rows + table.num_rows)
        self._last = table.slice(table.num_rows - 1)
        self._pending_bytes += table.nbytes
        for row_group in self._packer.add(table):
            self._write(row_group)

    def finish(self) -> WrittenRun:
        """Complete the file, which then belongs to the caller, and describe it."""
        for row_group in self._packer.finish():
            self._write(row_group)
        index = self._file.finish()
        run = RunFile(
            path=run_path(self._local.stem),
            size_bytes=self._file.sink.size_bytes,
            rows=index.rows,
            sha256=self._file.sink.sha256.digest(),
            index=index,
            due_rows=sum(one.rows for one in self._dues),
            first_due_ms=min((one.first_ms for one in self._dues), default=0),
            last_due_ms=max((one.last_ms for one in self._dues), default=0),
        )
        self._open = False
        return WrittenRun(local=self._local, file=run)

    def close(self) -> None:
        """Remove the file, unless `finish` returned it."""
        if self._open:
            self._open = False
            self._file.close()

    def _write(self, table: pa.Table) -> None:
        self._pending_bytes -= table.nbytes
        dues = DueSpan.of(table)
        if dues.rows:
            if not self._dues:
                self._add_column()
            self._dues.append(dues)
        self._file.write(shown(table, due=bool(self._dues)))

    def _add_column(self) -> None:
        """Give the file the column, now that the first row has a due: write the row groups so far again."""
        if not self._file.spans:
            self._file.close()
            self._file = _RunFileWriter(self._local, self._timed_schema, self._metadata, self._disk)
            return
        self._file.finish()
        earlier = self._local.with_suffix(".untimed")
        with local_disk(self._local, "rewrite", self._disk):
            self._local.rename(earlier)
        try:
            self._file = _RunFileWriter(self._local, self._timed_schema, self._metadata, self._disk)
            with local_disk(earlier, "read", self._disk), pq.ParquetFile(earlier) as file:
                for number in range(file.num_row_groups):
                    group = file.read_row_group(number).replace_schema_metadata(None)
                    self._file.write(shown(group, due=True))
        finally:
            earlier.unlink(missing_ok=True)

    def _broken(self, message: str, **facts: Fact) -> CorruptRun:
        hint = "Report this: it is a defect of the program that merged. Nothing was published"
        return CorruptRun(message, hint=hint, path=str(self._local), **facts)


def upload_run(store: Store, written: WrittenRun) -> RunFile:
    """Upload a finished run, and remove the local file in any case. Raises StoreUnavailable, StorageFull."""
    try:
        store.upload(written.local, written.file.path)
    finally:
        written.local.unlink(missing_ok=True)
    return written.file


def write_cut(
    tables: Iterable[pa.Table], new_writer: Callable[[], RunWriter], cuts: Cuts, key_groups: range
) -> list[tuple[range, WrittenRun]]:
    """Write sorted tables with rows of `key_groups` as one or, where they are cut, several runs.

    Returns each with the key groups that it covers. Raises CorruptRun, StorageFull, StoreUnavailable.
    """
    cut = _CutRuns(new_writer, cuts, key_groups.start)
    with undone_by_errors(cut.abort):
        for table in tables:
            cut.append(table)
        return cut.finish(key_groups.stop)


class _CutRuns:
    """The run that is being written, and the finished ones before it."""

    def __init__(self, new_writer: Callable[[], RunWriter], cuts: Cuts, first_key_group: int) -> None:
        self._new_writer = new_writer
        self._cuts = cuts
        self._first_key_group = first_key_group
        self._last_key_group = first_key_group
        self._done: list[tuple[range, WrittenRun]] = []
        self._writer = new_writer()

    def append(self, table: pa.Table) -> None:
        if not table.num_rows:
            return
        groups = key_groups_of(table)
        if self._writer.size_bytes + table.nbytes < self._cuts.least_bytes:
            self._writer.append(table)
        else:
            starts = np.flatnonzero(np.diff(groups)) + 1
            for start, end in pairwise([0, *starts.tolist(), len(groups)]):
                self._cut_before(int(groups[start]))
                self._writer.append(table.slice(start, end - start))
                self._last_key_group = int(groups[start])
        self._last_key_group = int(groups[-1])

    def finish(self, end_key_group: int) -> list[tuple[range, WrittenRun]]:
        self._done.append((range(self._first_key_group, end_key_group), self._writer.finish()))
        return self._done

    def abort(self) -> None:
        self._writer.close()
        for _, run in self._done:
            run.local.unlink(missing_ok=True)

    def _cut_before(self, key_group: int) -> None:
        point = self._cuts.before(key_group, self._last_key_group, self._writer.size_bytes)
        if point is not None and key_group > self._last_key_group:
            self.finish(point)
            self._first_key_group = point
            self._writer = self._new_writer()
