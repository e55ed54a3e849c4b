"""Run files: written locally and uploaded whole, read back whole or by row group, verified either way.

Owns the Parquet settings of a run and the checks of every byte of it. Never decides what goes into a run.

Invariants:
- A writer that is closed before `finish` leaves no file. What `finish` returns was hashed from the disk.
- No byte is decoded before its checksum in the index was verified: row groups and the footer alike.
- What does not match is CorruptRun with the path; what is not there is NotFound; neither is ever skipped.
"""

import errno
import hashlib
import mmap
from collections.abc import Collection, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, Self

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from statelog.schemas.errors import CorruptRun, Fact, NotFound, StorageFull, StoreUnavailable
from statelog.schemas.names import run_path
from statelog.schemas.runs import (
    RowGroupPacker,
    RowGroupSpan,
    RunFile,
    RunIndex,
    RunMetadata,
    first_unsorted,
    key_groups_of,
    only_key_groups,
    row_groups_for,
)
from statelog.storage.store import Store

__all__ = ["LocalRun", "RunReader", "RunSource", "RunWriter", "WrittenRun", "read_back", "upload_run"]

_BLOCK_BYTES = 1024 * 1024
_PARQUET_TAIL_BYTES = 8  # the footer's length and the magic


class _Digest(Protocol):
    def update(self, data: bytes, /) -> object: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenRun:
    """A finished run on the local disk, and the facts that its manifest will keep."""

    local: Path
    rows: int
    size_bytes: int
    sha256: str
    index: RunIndex


class RunWriter:
    """Writes one run to a local file, row group by row group; memory stays at about two row groups.

    Use it as a context manager: leaving it without `finish` aborts and removes the file.
    """

    def __init__(self, local: Path, schema: pa.Schema, metadata: RunMetadata) -> None:
        self._local = local
        self._schema = schema
        self._packer = RowGroupPacker()
        self._spans: list[tuple[int, int, int]] = []
        self._last: pa.Table | None = None
        self._open = True
        with _local_disk(local):
            self._file: pq.ParquetWriter = pq.ParquetWriter(
                str(local),
                schema.with_metadata(metadata.to_parquet()),
                compression="lz4",
                use_dictionary=["key_group", "op"],
                write_statistics=["key_group", "key"],
                write_page_checksum=True,
            )

    def append(self, table: pa.Table) -> None:
        """Add changes that come after all earlier ones by (key group, key).

        Raises CorruptRun if they do not: the caller's merge is wrong, and a run out of order would hide changes.
        StorageFull, StoreUnavailable for the local disk.
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
        for row_group in self._packer.add(table):
            self._write(row_group)

    def finish(self) -> WrittenRun:
        """Complete the file, read it once for its checksums, and give its facts. The file is now the caller's."""
        for row_group in self._packer.finish():
            self._write(row_group)
        self._open = False
        with _local_disk(self._local):
            self._file.close()
            return _facts(self._local, self._spans)

    def close(self) -> None:
        """Abort, unless `finish` was reached: the file is removed."""
        if not self._open:
            return
        self._open = False
        try:
            with _local_disk(self._local):
                self._file.close()
        finally:
            self._local.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, table: pa.Table) -> None:
        groups = key_groups_of(table)
        self._spans.append((int(groups[0]), int(groups[-1]) + 1, table.num_rows))
        with _local_disk(self._local):
            self._file.write_table(table, row_group_size=table.num_rows)

    def _broken(self, message: str, **facts: Fact) -> CorruptRun:
        hint = "This is a defect of the program that merged; nothing was published"
        return CorruptRun(message, hint=hint, path=str(self._local), **facts)


def upload_run(store: Store, written: WrittenRun, run_id: str) -> RunFile:
    """Put a finished run under a name that nobody used before, and remove the local file.

    Raises StoreUnavailable, StorageFull; the local file is gone either way, because a retry writes a new run.
    """
    path = run_path(run_id)
    try:
        store.upload(written.local, path)
    finally:
        written.local.unlink(missing_ok=True)
    return RunFile(
        path=path, size_bytes=written.size_bytes, rows=written.rows, sha256=written.sha256, index=written.index
    )


def read_back(store: Store, run: RunFile) -> None:
    """Read a whole run once more and check everything: length, sha256, every checksum, every row group.

    Raises CorruptRun, NotFound, StoreUnavailable.
    """
    with RunReader(store, run) as reader:
        reader.verify()


class RunSource(Protocol):
    """Where a run's bytes come from: any Store, or a local copy."""

    def open(self, path: str) -> AbstractContextManager[BinaryIO]:
        """A seekable reader. Raises NotFound, StoreUnavailable."""
        ...


class LocalRun:
    """The source of a run that was downloaded to a local file, whatever its path in the store."""

    def __init__(self, file: Path) -> None:
        self._local = file

    def open(self, path: str) -> AbstractContextManager[BinaryIO]:
        """Open the local copy. Raises NotFound, StoreUnavailable."""
        try:
            return self._local.open("rb")
        except FileNotFoundError as error:
            raise NotFound("the local copy of a run is gone", path=path, local=str(self._local)) from error
        except OSError as error:
            raise StoreUnavailable(f"the local disk failed: {error}", path=path, local=str(self._local)) from error


class RunReader:
    """Reads one run by row group. Opened files and the decoded footer are kept until `close`.

    Errors of every method: CorruptRun (with path and facts), NotFound, StoreUnavailable.
    """

    def __init__(self, source: RunSource, run: RunFile) -> None:
        self.run = run
        self._context = source.open(run.path)
        self._file = self._context.__enter__()
        try:
            self._check_size()
            self._metadata = self._read_footer()
        except BaseException:
            self.close()
            raise

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the run's columns, without metadata."""
        return self._parquet(_sparse(self.run.size_bytes)).schema_arrow.remove_metadata()

    @property
    def label(self) -> RunMetadata:
        """What the run says about itself."""
        return RunMetadata.from_parquet(self._metadata.metadata or {})

    def tables(self, wanted: Collection[int] | None = None) -> Iterator[pa.Table]:
        """The changes of the wanted key groups (None: all) in order, one table for each row group that has some."""
        index = self.run.index
        numbers = range(len(index.row_groups)) if wanted is None else row_groups_for(index, wanted)
        for number in numbers:
            table = self._row_group(number)
            table = table if wanted is None else only_key_groups(table, wanted)
            if table.num_rows:
                yield table

    def table(self, wanted: Collection[int] | None = None) -> pa.Table:
        """The changes of the wanted key groups (None: all) as one table."""
        tables = list(self.tables(wanted))
        return pa.concat_tables(tables) if tables else self.schema.empty_table()

    def verify(self) -> None:
        """Read and decode the whole file, and compare its sha256."""
        digest = hashlib.sha256()
        last: pa.Table | None = None
        digest.update(self._read(0, self._data_start()))
        for number, span in enumerate(self.run.index.row_groups):
            data = self._bytes_of(span)
            digest.update(memoryview(data)[span.offset : span.offset + span.size_bytes])
            table = self._decode(number, data)
            joined = table if last is None else pa.concat_tables([last, table])
            if first_unsorted(joined) is not None:
                raise self._corrupt("changes out of order", row_group=number)
            last = table.slice(table.num_rows - 1)
        footer = self.run.index.footer_offset
        digest.update(self._read(footer, self.run.size_bytes - footer))
        if digest.hexdigest() != self.run.sha256:
            raise self._corrupt("the file's sha256 differs", got=digest.hexdigest(), expected=self.run.sha256)

    def close(self) -> None:
        """Close the file."""
        self._context.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_size(self) -> None:
        with self._reading():
            size_bytes = self._file.seek(0, 2)
        if size_bytes != self.run.size_bytes:
            raise self._corrupt("the file's length differs", got=size_bytes, expected=self.run.size_bytes)
        index = self.run.index
        ends = self._data_start()
        for span in index.row_groups:
            if span.offset != ends or not 0 <= span.first_key_group < span.end_key_group:
                raise self._corrupt("the index does not describe one file", offset=span.offset, expected=ends)
            ends = span.offset + span.size_bytes
        if ends != index.footer_offset or ends > size_bytes or index.rows != self.run.rows:
            raise self._corrupt("the index does not describe one file", footer=index.footer_offset, expected=ends)

    def _data_start(self) -> int:
        index = self.run.index
        return index.row_groups[0].offset if index.row_groups else index.footer_offset

    def _read_footer(self) -> pq.FileMetaData:
        footer = self.run.index.footer_offset
        data = self._read(footer, self.run.size_bytes - footer)
        if xxhash.xxh3_64_intdigest(data) != self.run.index.footer_checksum:
            raise self._corrupt("the footer's checksum differs", offset=footer)
        with self._decoding():
            metadata = pq.read_metadata(pa.BufferReader(b"PAR1" + data))
        if metadata.num_rows != self.run.rows or metadata.num_row_groups != len(self.run.index.row_groups):
            raise self._corrupt("the footer counts other rows", got=metadata.num_rows, expected=self.run.rows)
        return metadata

    def _row_group(self, number: int) -> pa.Table:
        return self._decode(number, self._bytes_of(self.run.index.row_groups[number]))

    def _bytes_of(self, span: RowGroupSpan) -> mmap.mmap:
        """A map as large as the file in which only this row group is filled in; the rest costs no memory."""
        data = _sparse(self.run.size_bytes)
        body = self._read(span.offset, span.size_bytes)
        if xxhash.xxh3_64_intdigest(body) != span.checksum:
            raise self._corrupt("a row group's checksum differs", offset=span.offset)
        data[span.offset : span.offset + span.size_bytes] = body
        return data

    def _decode(self, number: int, data: mmap.mmap) -> pa.Table:
        span = self.run.index.row_groups[number]
        with self._decoding():
            table = self._parquet(data).read_row_group(number).replace_schema_metadata(None)
        groups = key_groups_of(table)
        if table.num_rows != span.rows:
            raise self._corrupt("a row group has other rows", got=table.num_rows, expected=span.rows)
        if len(groups) and not span.first_key_group <= groups.min() <= groups.max() < span.end_key_group:
            raise self._corrupt("a row group holds a key group outside its span", row_group=number)
        return table

    def _parquet(self, data: mmap.mmap) -> pq.ParquetFile:
        source = pa.BufferReader(pa.py_buffer(data))
        return pq.ParquetFile(source, metadata=self._metadata, pre_buffer=False, page_checksum_verification=True)

    def _read(self, offset: int, size_bytes: int) -> bytes:
        with self._reading():
            self._file.seek(offset)
            data = self._file.read(size_bytes)
        if len(data) != size_bytes:
            raise self._corrupt("the file ends early", offset=offset, got=len(data), expected=size_bytes)
        return data

    @contextmanager
    def _reading(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            raise StoreUnavailable(f"reading a run failed: {error}", path=self.run.path) from error

    @contextmanager
    def _decoding(self) -> Generator[None]:
        try:
            yield
        except (pa.ArrowException, OSError, ValueError) as error:
            raise self._corrupt(f"the Parquet data does not decode: {error}") from error

    def _corrupt(self, message: str, **facts: Fact) -> CorruptRun:
        hint = "Recover from an older snapshot, and restore this file from a copy of the store"
        return CorruptRun(message, hint=hint, path=self.run.path, **facts)


def _sparse(size_bytes: int) -> mmap.mmap:
    return mmap.mmap(-1, size_bytes)


def _facts(local: Path, spans: list[tuple[int, int, int]]) -> WrittenRun:
    """Read a finished file once and describe it: row groups one after the other, then the footer."""
    size_bytes = local.stat().st_size
    starts = _starts(pq.read_metadata(str(local)))
    with local.open("rb") as file:
        file.seek(size_bytes - _PARQUET_TAIL_BYTES)
        footer = size_bytes - _PARQUET_TAIL_BYTES - int.from_bytes(file.read(4), "little")
        file.seek(0)
        digest = hashlib.sha256()
        _checksum(file, starts[0] if starts else footer, digest)
        row_groups = tuple(
            RowGroupSpan(first, end, rows, start, stop - start, _checksum(file, stop - start, digest))
            for (first, end, rows), start, stop in zip(spans, starts, [*starts[1:], footer], strict=True)
        )
        footer_checksum = _checksum(file, size_bytes - footer, digest)
    index = RunIndex(row_groups=row_groups, footer_offset=footer, footer_checksum=footer_checksum)
    return WrittenRun(local=local, rows=index.rows, size_bytes=size_bytes, sha256=digest.hexdigest(), index=index)


def _starts(metadata: pq.FileMetaData) -> list[int]:
    """The offset of every row group's first page."""
    return [
        min(_first_page(metadata.row_group(i).column(j)) for j in range(metadata.num_columns))
        for i in range(metadata.num_row_groups)
    ]


def _first_page(column: pq.ColumnChunkMetaData) -> int:
    if column.dictionary_page_offset is None:
        return column.data_page_offset
    return min(column.dictionary_page_offset, column.data_page_offset)


def _checksum(file: BinaryIO, size_bytes: int, digest: _Digest) -> int:
    """xxh3-64 of the next bytes of the file, which also go into `digest`."""
    checksum = xxhash.xxh3_64()
    while size_bytes:
        block = file.read(min(size_bytes, _BLOCK_BYTES))
        if not block:
            raise OSError(errno.EIO, "a file that was just written ends early")
        checksum.update(block)
        digest.update(block)
        size_bytes -= len(block)
    return checksum.intdigest()


@contextmanager
def _local_disk(local: Path) -> Generator[None]:
    """Failures of the local disk in our own terms."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        kind = StorageFull if full else StoreUnavailable
        raise kind(f"the local disk failed: {error}", path=str(local)) from error
