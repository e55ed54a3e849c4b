"""Writes runs: to a local file, row group by row group, and then whole to the store.

Where sorted changes are cut into several is decided by `schemas.snapshot.run_ref.Cuts`.

Invariants:
- The runs that changes were cut into tile the key groups that were to be covered, whatever rows there are; without rows
  there is one. After an error no file is left.
- A writer that is closed before `finish` leaves no file. What `finish` returns was hashed from the disk.
- Changes that are not strictly ascending by (key group, key) are refused: a run out of order would hide changes.
"""

import errno
import hashlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from statelog.closing import Closing, undone_by_errors
from statelog.environment import DiskHook, no_faults
from statelog.errors import CorruptRun, Fact
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

_BLOCK_BYTES = 1024 * 1024
_PARQUET_TAIL_BYTES = 8  # the footer's length and the magic


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenRun:
    """A finished run on the local disk, and as its manifest will know it: by the name of the local file."""

    local: Path
    file: RunFile


class RunWriter(Closing):
    """Writes one run to a local file, row group by row group; memory stays at about two row groups. Leaving its context
    without `finish` removes the file.
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
        self._schema = schema
        self._packer = RowGroupPacker(target_rows)
        self._spans: list[tuple[int, int, int]] = []
        self._last: pa.Table | None = None
        self._pending_bytes = 0
        self._open = True
        # No writer is returned that could be closed.
        with undone_by_errors(local.unlink, missing_ok=True), local_disk(local, "open", disk):
            self._file = pq.ParquetWriter(
                str(local),
                schema.with_metadata(metadata.to_parquet()),
                compression="lz4",
                use_dictionary=["key_group", "op"],
                write_statistics=["key_group", "key"],
                write_page_checksum=True,
            )

    @property
    def size_bytes(self) -> int:
        """About how large the file will be: what is written, and what waits in memory. Raises StoreUnavailable."""
        with local_disk(self._local):
            return self._local.stat().st_size + self._pending_bytes

    def append(self, table: pa.Table) -> None:
        """Add changes that come after all earlier ones by (key group, key). Raises CorruptRun if they do not, and for
        the local disk StorageFull, StoreUnavailable.
        """
        if not table.schema.equals(self._schema):
            raise self._broken("a table of another schema", got=str(table.schema), expected=str(self._schema))
        if not table.num_rows:
            return
        joined = table if self._last is None else pa.concat_tables([self._last, table])
        row = first_unsorted(joined)
        if row is not None:
            raise self._broken("changes out of order, or two of one key", row=row - joined.num_rows + table.num_rows)
        self._last = table.slice(table.num_rows - 1)
        self._pending_bytes += table.nbytes
        for row_group in self._packer.add(table):
            self._write(row_group)

    def finish(self) -> WrittenRun:
        """Complete the file, read it once for its checksums, and give its facts. The file is now the caller's."""
        for row_group in self._packer.finish():
            self._write(row_group)
        with local_disk(self._local, "verify", self._disk):
            self._file.close()
            written = _facts(self._local, self._spans)
        self._open = False
        return written

    def close(self) -> None:
        """Abort, unless `finish` was reached: the file is removed."""
        if not self._open:
            return
        self._open = False
        # The file goes away, so it does not matter whether its last bytes could still be written.
        with suppress(OSError):
            self._file.close()
        self._local.unlink(missing_ok=True)

    def _write(self, table: pa.Table) -> None:
        groups = key_groups_of(table)
        self._spans.append((int(groups[0]), int(groups[-1]) + 1, table.num_rows))
        with local_disk(self._local, "write", self._disk):
            self._file.write_table(table, row_group_size=table.num_rows)
        self._pending_bytes -= table.nbytes

    def _broken(self, message: str, **facts: Fact) -> CorruptRun:
        hint = "This is a defect of the program that merged; nothing was published"
        return CorruptRun(message, hint=hint, path=str(self._local), **facts)


def upload_run(store: Store, written: WrittenRun) -> RunFile:
    """Put a finished run under its name; the local file goes in any case. Raises StoreUnavailable, StorageFull."""
    try:
        store.upload(written.local, written.file.path)
    finally:
        written.local.unlink(missing_ok=True)
    return written.file


def _facts(local: Path, spans: list[tuple[int, int, int]]) -> WrittenRun:
    """Read a finished file once and describe it: row groups one after the other, then the footer."""
    size_bytes = local.stat().st_size
    starts = _starts(pq.read_metadata(str(local)))
    with local.open("rb") as file:
        file.seek(size_bytes - _PARQUET_TAIL_BYTES)
        footer = size_bytes - _PARQUET_TAIL_BYTES - int.from_bytes(file.read(4), "little")
        file.seek(0)
        digest = hashlib.sha256()
        _checksum(file, starts[0] if starts else footer, digest.update)
        row_groups = tuple(
            RowGroupSpan(first, end, rows, start, stop - start, _checksum(file, stop - start, digest.update))
            for (first, end, rows), start, stop in zip(spans, starts, [*starts, footer][1:], strict=True)
        )
        footer_checksum = _checksum(file, size_bytes - footer, digest.update)
    index = RunIndex(row_groups=row_groups, footer_offset=footer, footer_checksum=footer_checksum)
    run = RunFile(
        path=run_path(local.stem), size_bytes=size_bytes, rows=index.rows, sha256=digest.digest(), index=index
    )
    return WrittenRun(local=local, file=run)


def _starts(metadata: pq.FileMetaData) -> list[int]:
    """The offset of every row group's first page."""
    columns = range(metadata.num_columns)
    chunks = ([metadata.row_group(i).column(j) for j in columns] for i in range(metadata.num_row_groups))
    return [min(one.dictionary_page_offset or one.data_page_offset for one in group) for group in chunks]


def _checksum(file: BinaryIO, size_bytes: int, digest: Callable[[bytes], object]) -> int:
    """xxh3-64 of the next bytes of the file, which `digest` gets, too."""
    checksum = xxhash.xxh3_64()
    while size_bytes:
        block = file.read(min(size_bytes, _BLOCK_BYTES))
        if not block:
            raise OSError(errno.EIO, "a file that was just written ends early")
        checksum.update(block)
        digest(block)
        size_bytes -= len(block)
    return checksum.intdigest()


def write_cut(
    tables: Iterable[pa.Table], new_writer: Callable[[], RunWriter], cuts: Cuts, key_groups: range
) -> list[tuple[range, WrittenRun]]:
    """Write sorted tables, whose rows lie within `key_groups`, as one run or as several where they are cut, each with
    the key groups that it covers. Raises CorruptRun, StorageFull, StoreUnavailable.
    """
    cut = _CutRuns(new_writer, cuts, key_groups.start)
    with undone_by_errors(cut.abort):
        for table in tables:
            cut.append(table)
        return cut.finish(key_groups.stop)


class _CutRuns:
    """The run that is being written, and those before it."""

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
