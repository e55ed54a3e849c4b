"""Reads runs, whole or by row group, from a store or a local copy, and verifies them.

Invariants:
- No byte is decoded before its checksum in the index was verified: row groups and the footer alike.
- A mismatch is CorruptRun with the path, a missing file NotFound; neither is ever skipped.
- A run that this process wrote is read back whole. Its sha256 and checksums were taken before the bytes went to disk.
  Two checks show that the encoder wrote valid Parquet: the footer has every row group where the index has it, and the
  widest row group decodes. Decoding all of them was a fifth of a round's CPU: 0.18 s for 1.6 million rows of 116 bytes,
  and 0.07 s for their sha256.
- Memory holds one row group and a few megabytes of the file, 32 while it is verified. The caller's tables come on top.
- A file is used by one thread at a time, and reused by the next. `close` leaves no file open: a file in use is closed
  by its thread.
"""

import errno
import hashlib
import io
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, NamedTuple, TypeVar, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from statelog.closing import Closing, undone_by_errors
from statelog.errors import ClosedError, CorruptRun, Fact, NotFound, StoreUnavailable
from statelog.schemas.changes.changes import DELETE
from statelog.schemas.changes.chunk import DECODING_ERRORS
from statelog.schemas.changes.due import DUE, DueSpan
from statelog.schemas.descriptor import Descriptor
from statelog.schemas.snapshot.runs import RowGroupSpan, RunFile, first_unsorted, key_groups_of, only_key_groups
from statelog.store.port import RangeReader, Store

T = TypeVar("T")

OpenRun = Callable[[RunFile], AbstractContextManager[BinaryIO]]
"""Opens the file of a run, wherever it is. Raises NotFound, StoreUnavailable."""

PIECE_BYTES = 4 << 20
"""The size of one request."""
_VERIFIED_PIECE_BYTES = 16 << 20
"""The size of one request for verification, which waits for each. A run that is not larger takes one request."""


class KeyBounds(NamedTuple):
    """A lower and an upper bound of all keys of a row group: bytes, or numbers. Long ones may be truncated."""

    least: Any
    greatest: Any


def open_local(local: Path, path: str) -> BinaryIO:
    """Open a run in a local file, whatever its `path` in the store. Raises NotFound, StoreUnavailable."""
    try:
        return local.open("rb")
    except FileNotFoundError as error:
        raise NotFound("the local copy of a run is missing", path=path, local=str(local)) from error
    except OSError as error:
        raise StoreUnavailable(f"the local disk failed: {error}", path=path, local=str(local)) from error


class _Footer:
    """The footer of a run, which one of its readers reads for all of them."""

    def __init__(self) -> None:
        self.known: pq.FileMetaData | None = None
        self._lock = Lock()

    def of(self, read: Callable[[], pq.FileMetaData]) -> pq.FileMetaData:
        """Return the footer, and read it if it is not known. Concurrent callers wait."""
        with self._lock:
            self.known = self.known or read()
            return self.known

    def begin(self, read: Callable[[], pq.FileMetaData]) -> None:
        """Read the footer, unless another reader does. Does not wait."""
        if self.known is None and self._lock.acquire(blocking=False):
            try:
                self.known = self.known or read()
            finally:
                self._lock.release()


class RunReader(Closing):
    """Reads one run by row group. Every method raises CorruptRun (with path and facts), NotFound, StoreUnavailable."""

    def __init__(
        self,
        opened: AbstractContextManager[BinaryIO],
        run: RunFile,
        footer: _Footer | None = None,
    ) -> None:
        """Enter `opened`, the run's seekable file, which `close` leaves. A shared `footer` is read when needed."""
        self.run = run
        self._footer = footer or _Footer()
        self._context = opened
        self._file = self._context.__enter__()
        with undone_by_errors(self.close):
            self._check_index()
            if footer is None:
                self._footer.of(self._read_footer)

    @property
    def footer(self) -> pq.FileMetaData:
        """The verified footer."""
        return self._footer.of(self._read_footer)

    def key_bounds(self) -> list[KeyBounds | None]:
        """Return the bounds of the keys of each row group, from the verified footer; None where it has none."""
        with self._decoding():
            return [_key_bounds(self.footer.row_group(i)) for i in range(self.footer.num_row_groups)]

    def row_groups(self, numbers: Sequence[int], wanted: Collection[int] | None) -> Iterator[pa.Table]:
        """Yield the changes of the wanted key groups (None: all), in order, in one table for each row group."""
        spans = self.run.index.row_groups
        if not numbers or numbers[-1] + 1 < len(spans):  # Else the footer is read with the last row group.
            self._footer.begin(self._read_footer)
        for number, data in self._bytes_of(numbers):
            table = self._decode(number, data)
            yield table if wanted is None else only_key_groups(table, wanted)

    def verify(self, descriptor: Descriptor | None = None) -> None:
        """Read and decode the whole file, and compare its sha256.

        With a `descriptor`, also check the keys' key groups. A wrong one raises Corrupt, not CorruptRun: the file is as
        it was written.
        """
        self._verify(range(len(self.run.index.row_groups)), descriptor)

    def verify_written(self) -> None:
        """Verify a run that this process wrote: decode only the footer and the widest row group."""
        spans = self.run.index.row_groups
        widest = max(range(len(spans)), key=lambda number: spans[number].size_bytes, default=0)
        self._verify((widest,), None)

    def _verify(self, decoded: Collection[int], descriptor: Descriptor | None) -> None:
        digest = hashlib.sha256()
        last: pa.Table | None = None
        due_rows = 0
        digest.update(self._read(0, self._data_start()))
        for number, data in self._bytes_of(range(len(self.run.index.row_groups)), _VERIFIED_PIECE_BYTES):
            digest.update(data)
            if number not in decoded:
                continue
            table = self._decode(number, data, checks_pages=True)
            due_rows += self._checked_dues(table)
            joined = table if last is None else pa.concat_tables([last, table])
            if first_unsorted(joined) is not None:
                raise self._corrupt("changes out of order", row_group=number)
            if descriptor is not None:
                descriptor.check_key_groups(table, path=self.run.path)
            last = table.slice(table.num_rows - 1)
        footer = self.run.index.footer_offset
        digest.update(self._read(footer, self.run.size_bytes - footer))
        if digest.digest() != self.run.sha256:
            raise self._corrupt("the file's sha256 differs", got=digest.hexdigest(), expected=self.run.sha256.hex())
        if len(decoded) == len(self.run.index.row_groups) and due_rows != self.run.due_rows:
            raise self._corrupt("it has another number of rows with a due", got=due_rows, expected=self.run.due_rows)
        self._check_footer()

    def _checked_dues(self, table: pa.Table) -> int:
        """Return how many rows have a due. Raises CorruptRun if a delete has one."""
        span = DueSpan.of(table)
        if span.rows and DueSpan.of(table.filter(pc.equal(table.column("op"), DELETE))).rows:
            raise self._corrupt("a delete has a due")
        return span.rows

    def _check_footer(self) -> None:
        """Check that the footer has each row group where the index has it."""
        for number, span in enumerate(self.run.index.row_groups):
            group = self.footer.row_group(number)
            columns = (group.column(i) for i in range(group.num_columns))
            start = min(column.dictionary_page_offset or column.data_page_offset for column in columns)
            if (group.num_rows, start) != (span.rows, span.offset):
                raise self._corrupt("the footer has another row group", row_group=number, got=start)

    def close(self) -> None:
        """Close the file."""
        self._context.__exit__(None, None, None)

    def _check_index(self) -> None:
        index = self.run.index
        ends = self._data_start()
        for span in index.row_groups:
            if span.offset != ends or span.rows < 1 or not 0 <= span.first_key_group < span.end_key_group:
                raise self._corrupt("the index does not describe one file", offset=span.offset, expected=ends)
            ends = span.offset + span.size_bytes
        if ends != index.footer_offset or ends > self.run.size_bytes or index.rows != self.run.rows:
            raise self._corrupt("the index does not describe one file", footer=index.footer_offset, expected=ends)

    def _data_start(self) -> int:
        index = self.run.index
        return index.row_groups[0].offset if index.row_groups else index.footer_offset

    def _read_footer(self) -> pq.FileMetaData:
        return self._parsed_footer(self._read_to_end(self.run.index.footer_offset))

    def _read_to_end(self, offset: int) -> bytes:
        """Read from an offset to the end. So one request also checks the length."""
        with self._reading():
            self._file.seek(offset)
            data = self._file.read()
        if offset + len(data) != self.run.size_bytes:
            raise self._corrupt("the file's length differs", got=offset + len(data), expected=self.run.size_bytes)
        return data

    def _parsed_footer(self, data: bytes | memoryview) -> pq.FileMetaData:
        if xxhash.xxh3_64_intdigest(data) != self.run.index.footer_checksum:
            raise self._corrupt("the footer's checksum differs", offset=self.run.index.footer_offset)
        with self._decoding():
            metadata = pq.read_metadata(pa.BufferReader(b"".join((b"PAR1", data))))
            columns = metadata.schema.to_arrow_schema()
        if metadata.num_rows != self.run.rows or metadata.num_row_groups != len(self.run.index.row_groups):
            raise self._corrupt("the footer counts other rows", got=metadata.num_rows, expected=self.run.rows)
        kinds = [columns.field(name).type for name in ("key_group", "op") if name in columns.names]
        others = [(one.name, one.type) for one in list(columns)[4:]]
        is_known = others == ([(DUE.name, DUE.type)] if self.run.due_rows else [])
        if len({"key", "value"} & set(columns.names)) != 2 or kinds != [pa.uint16(), pa.uint8()] or not is_known:
            raise self._corrupt("it has other columns than a run", columns=", ".join(columns.names))
        return metadata

    def _bytes_of(self, numbers: Sequence[int], piece_bytes: int | None = None) -> Iterator[tuple[int, memoryview]]:
        """Yield the verified bytes of each of some row groups; adjacent ones are read in pieces."""
        for piece in pieces(self.run.index.row_groups, numbers, piece_bytes):
            spans = [self.run.index.row_groups[number] for number in piece]
            start = spans[0].offset
            end = _end(spans[-1])
            if end == self.run.index.footer_offset and self._footer.known is None:
                data = memoryview(self._read_to_end(start))
                self._footer.known = self._parsed_footer(data[end - start :])
            else:
                data = memoryview(self._read(start, end - start))
            for number, span in zip(piece, spans, strict=True):
                mine = data[span.offset - start :][: span.size_bytes]
                if xxhash.xxh3_64_intdigest(mine) != span.checksum:
                    raise self._corrupt("a row group's checksum differs", offset=span.offset)
                yield number, mine

    def _decode(self, number: int, data: memoryview, *, checks_pages: bool = False) -> pa.Table:
        span = self.run.index.row_groups[number]
        with self._decoding():
            opened = self._parquet(data, span.offset, checks_pages=checks_pages)
            table = opened.read_row_group(number, use_threads=False).replace_schema_metadata(None)
            table.validate(full=True)
            groups = key_groups_of(table)
        if table.num_rows != span.rows:
            raise self._corrupt("a row group has other rows", got=table.num_rows, expected=span.rows)
        if len(groups) and not span.first_key_group <= groups.min() <= groups.max() < span.end_key_group:
            raise self._corrupt("a row group holds a key group outside its span", row_group=number)
        return table

    def _parquet(self, data: memoryview, offset: int, *, checks_pages: bool) -> pq.ParquetFile:
        """Open the file as Parquet with only the verified bytes from `offset`. Other reads are an error."""

        def verified(start: int, end: int | None) -> bytes:
            if start < offset or end is None or end > offset + len(data):
                raise OSError(errno.EIO, f"bytes outside the row group: from {start} to {end}")
            return cast("bytes", data[start - offset : end - offset])  # Arrow accepts any buffer, without a copy.

        source = pa.PythonFile(RangeReader(verified, lambda: self.run.size_bytes), mode="r")
        return pq.ParquetFile(source, metadata=self.footer, pre_buffer=False, page_checksum_verification=checks_pages)

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
        except DECODING_ERRORS as error:
            raise self._corrupt(f"the Parquet data does not decode: {error}") from error

    def _corrupt(self, message: str, **facts: Fact) -> CorruptRun:
        hint = "Recover from an older snapshot, and restore this file from a copy of the store"
        return CorruptRun(message, hint=hint, path=self.run.path, **facts)


def stored(store: Store) -> OpenRun:
    """Return a function that opens runs in the store."""
    return lambda run: store.open(run.path)


def read_back(store: Store, run: RunFile, descriptor: Descriptor | None = None) -> None:
    """Read a whole run again and `verify` it. Raises Corrupt, NotFound, StoreUnavailable."""
    _read_back(store, run, lambda reader: reader.verify(descriptor))


def read_back_written(store: Store, run: RunFile) -> None:
    """Read back a run that this process wrote and uploaded, and `verify_written` it. Raises as `read_back`."""
    _read_back(store, run, RunReader.verify_written)


def _read_back(store: Store, run: RunFile, verify: Callable[[RunReader], None]) -> None:
    is_small = run.size_bytes <= _VERIFIED_PIECE_BYTES
    with RunReader(io.BytesIO(store.read(run.path)) if is_small else store.open(run.path), run) as reader:
        verify(reader)


# ---- for several threads


class RunHandles:
    """The open files of a run, opened by `opening`. Thread-safe. Raises the errors of `RunReader`, and ClosedError."""

    def __init__(self, run: RunFile, opening: OpenRun) -> None:
        self._run = run
        self._opening = opening
        self._lock = Lock()
        self._idle: list[RunReader] = []
        self._footer = _Footer()
        self._is_closed = False

    def row_groups(self, numbers: Sequence[int], wanted: Collection[int] | None) -> list[pa.Table]:
        """Return the tables of `RunReader.row_groups`, all at once."""
        return self._ask(lambda reader: list(reader.row_groups(numbers, wanted)))

    def key_bounds(self) -> list[KeyBounds | None]:
        """Return the bounds of `RunReader.key_bounds`."""
        return self._ask(RunReader.key_bounds)

    def close(self) -> None:
        """Close the open files. Idempotent."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for reader in idle:
            reader.close()

    def _ask(self, question: Callable[[RunReader], T]) -> T:
        reader = self._take()
        try:
            return question(reader)
        finally:
            with self._lock:
                is_kept = not self._is_closed
                self._idle += [reader] * is_kept
            if not is_kept:
                reader.close()

    def _take(self) -> RunReader:
        with self._lock:
            if self._is_closed:
                raise ClosedError("a run was read after it was closed")
            if self._idle:
                return self._idle.pop()
        return RunReader(self._opening(self._run), self._run, self._footer)


def pieces(
    spans: Sequence[RowGroupSpan], numbers: Sequence[int], piece_bytes: int | None = None, most: int | None = None
) -> Iterator[list[int]]:
    """Yield groups of adjacent row groups for one request each: at most `most` and so many bytes, or a single one."""
    most_bytes, piece = piece_bytes or PIECE_BYTES, list[int]()
    for number in numbers:
        is_full = len(piece) == most
        if piece and (is_full or number != piece[-1] + 1 or _end(spans[number]) - spans[piece[0]].offset > most_bytes):
            yield piece
            piece = []
        piece.append(number)
    if piece:
        yield piece


def _end(span: RowGroupSpan) -> int:
    return span.offset + span.size_bytes


def _key_bounds(row_group: pq.RowGroupMetaData) -> KeyBounds | None:
    columns = (row_group.column(i) for i in range(row_group.num_columns))
    found = next((column.statistics for column in columns if column.path_in_schema == "key"), None)
    if found is None or not found.has_min_max:
        return None
    return KeyBounds(found.min_raw, found.max_raw)  # type: ignore[attr-defined]  # the stubs lack them
