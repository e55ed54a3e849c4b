"""Local copies of change sets on the writer's disk, read instead of Kafka if they are complete.

A file per change set, `<directory>/<log>/<writer>/<epoch>-<nonce>/<sqn>.copy`:

    the chunks, back to back, byte for byte as they went to Kafka
    a row per chunk, 16 bytes little-endian: partition (4), length (4), offset (8)
    magic "SLLC", version 1, three zero bytes, number of rows (8), xxh3-64 of the rows (8)

Until the change set is durable the file is called `.partial`. Kafka is the truth, and never a copy.

Invariants:
- Writing never fails the durable path. An error is remembered, and there is no copy: all or nothing.
- Either every wanted change set is here with the checksum that its commit names, or nothing is read from copies. A copy
  that is deleted while it is read is replaced by Kafka.
"""

import contextlib
import mmap
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from statelog.errors import ConfigError, Corrupt, NotFound, StoreUnavailable, UnknownFormat
from statelog.kafka.port import OffsetRange, Reader, Record
from statelog.schemas.changes.chunk import combine_checksums, decode_head
from statelog.schemas.changes.replay_plan import ReplayPlan
from statelog.schemas.ledger.handle import Entry
from statelog.store.disk.disk import is_there, open_private

_MAGIC = b"SLLC"
_VERSION = 1
_TRAILER = struct.Struct("<4sB3xQQ")
_ROW = np.dtype([("partition", "<u4"), ("length", "<u4"), ("offset", "<u8")])


def check_directory(directory: object) -> None:
    """Raise ConfigError unless it is a path for copies, or None for no copies."""
    if not isinstance(directory, Path | None):
        raise ConfigError(f"local_copies is {directory!r} and must be a pathlib.Path")


def attempt_directory(directory: Path, log: str, writer: str, epoch: int, nonce: bytes) -> Path:
    """Return the directory of one epoch's copies. No two epochs share it."""
    return directory / log / writer / _attempt_name(epoch, nonce)


def _attempt_name(epoch: int, nonce: bytes) -> str:
    return f"{epoch:020d}-{nonce.hex()}"


def copies_of_writer(directory: Path, log: str, writer: str) -> list[Path]:
    """Return the copies of all epochs of a writer, oldest first. Remove incomplete ones. Raises OSError."""
    attempts = directory / log / writer
    for partial in attempts.glob("*/*.partial"):
        partial.unlink(missing_ok=True)
    return sorted(attempts.glob("*/*.copy"))


class LocalCopy:
    """Writes the copy of one change set. No method raises OSError: see `error`."""

    __slots__ = ("_directory", "_file", "_is_over", "_rows", "error", "size_bytes", "sqn")

    def __init__(self, directory: Path, sqn: int) -> None:
        self.sqn = sqn
        self.error: OSError | None = None
        self.size_bytes = 0
        self._directory = directory
        self._file: BinaryIO | None = None
        self._rows: list[tuple[int, int]] = []
        self._is_over = False

    @property
    def path(self) -> Path:
        """The path of the complete copy."""
        return self._directory / f"{self.sqn:020d}.copy"

    def add(self, partition: int, chunk: bytes) -> None:
        """Add the next chunk."""
        if self._is_over:
            return
        try:
            if self._file is None:
                self._file = self._opened()
            self._file.write(chunk)
            self._rows.append((partition, len(chunk)))
        except OSError as error:
            self._fail(error)

    def pause(self) -> None:
        """Close the file until the next chunk, so that pending change sets hold no open files."""
        file, self._file = self._file, None
        try:
            if file is not None:
                file.close()
        except OSError as error:
            self._fail(error)

    def complete(self, offsets: Mapping[int, Sequence[int]]) -> None:
        """Complete the copy of a durable change set. `offsets`: of its chunks by partition, in the order of adding."""
        self.pause()
        if not self._rows or self._is_over:
            return
        try:
            with self._opened() as file:
                file.write(_table(self._rows, offsets))
                self.size_bytes = file.tell()
            self._partial.rename(self.path)
        except OSError as error:
            self._fail(error)
        self._is_over = True
        self._rows.clear()

    def discard(self) -> None:
        """Remove the copy, complete or not, and take no more chunks."""
        self._is_over = True
        self._rows.clear()
        with contextlib.suppress(OSError):
            if self._file is not None:
                self._file.close()
        self._file = None
        for path in (self._partial, self.path):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        self.size_bytes = 0

    @property
    def _partial(self) -> Path:
        return self.path.with_suffix(".partial")

    def _opened(self) -> BinaryIO:
        """Open the file to append. A missing file is an error, because its chunks would be missing."""
        if self._rows:
            file = self._partial.open("r+b")
            file.seek(0, os.SEEK_END)
            return file
        _make_private(self._directory)
        return open(self._partial, "wb", opener=open_private)  # Path.open knows no opener

    def _fail(self, error: OSError) -> None:
        self.error = error
        self.discard()


def _make_private(directory: Path) -> None:
    """Make a directory and its missing parents, for this user only: a copy is state in the clear. Raises OSError."""
    if not directory.is_dir():
        _make_private(directory.parent)
        directory.mkdir(mode=0o700, exist_ok=True)


def _table(rows: Sequence[tuple[int, int]], offsets: Mapping[int, Sequence[int]]) -> bytes:
    left = {partition: iter(found) for partition, found in offsets.items()}
    table = np.array([(partition, length, next(left[partition])) for partition, length in rows], _ROW).tobytes()
    return table + _TRAILER.pack(_MAGIC, _VERSION, len(rows), xxhash.xxh3_64_intdigest(table))


class _Place(NamedTuple):
    """The place of a chunk: its file, its first byte, its length."""

    offset: int
    path: Path
    start: int
    length: int


class LocalCopyReader:
    """Reads the change sets of a plan from local copies; implements `kafka.Reader`. At most one file is open.

    The constructor verifies all copies. If a writer deletes one later for its space, the rest of its partition comes
    from `elsewhere`: a reader of the topic, made on demand. Raises NotFound if a copy is missing, Corrupt,
    UnknownFormat if a copy is not what its commit lists, StoreUnavailable.
    """

    def __init__(self, directory: Path, log: str, plan: ReplayPlan, elsewhere: Callable[[], Reader]) -> None:
        self._elsewhere = elsewhere
        self._topic: Reader | None = None
        self._path: Path | None = None
        self._file: BinaryIO | None = None
        self._places: dict[int, list[_Place]] = {partition: [] for partition in plan.listed}
        try:
            for path, entries in _files(directory / log, plan).items():
                self._add(path, entries)
        except OSError as error:
            raise StoreUnavailable(f"a local copy cannot be read: {error}", log=log) from error
        for places in self._places.values():
            places.sort(key=attrgetter("offset"))

    def read(self, ranges: Mapping[int, OffsetRange], *, stall_timeout_s: float) -> Iterator[Record]:
        """Yield the plan's chunks in `ranges`, by offset in a partition. Raises the errors of `elsewhere`."""
        for partition, wanted in ranges.items():
            for place in self._places.get(partition, ()):
                if wanted.start <= place.offset < wanted.end:
                    chunk = self._chunk(place)
                    if chunk is None:
                        self._topic = self._topic or self._elsewhere()
                        rest = {partition: OffsetRange(place.offset, wanted.end)}
                        yield from self._topic.read(rest, stall_timeout_s=stall_timeout_s)
                        break
                    yield Record(partition, place.offset, chunk)

    def close(self) -> None:
        """Release the files. Idempotent."""
        self._places.clear()
        self._close_file()
        if self._topic is not None:
            self._topic.close()

    def _add(self, path: Path, entries: Sequence[Entry]) -> None:
        if not path.stat().st_size:
            raise _corrupt(path, "it is empty")
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            rows = _rows(path, data)
            starts = np.cumsum(rows["length"], dtype=np.int64) - rows["length"]
            for entry in entries:
                mine = np.flatnonzero(rows["partition"] == entry.partition)
                places = [_Place(int(rows["offset"][i]), path, int(starts[i]), int(rows["length"][i])) for i in mine]
                _verify(path, data, places, entry)
                self._places[entry.partition] += places

    def _chunk(self, place: _Place) -> bytes | None:
        """Read a chunk; None if the copy does not have it any more. Chunks of one file follow each other."""
        try:
            if self._file is None or self._path != place.path:
                self._close_file()
                self._path, self._file = place.path, place.path.open("rb")
            self._file.seek(place.start)
            chunk = self._file.read(place.length)
        except OSError:
            return None
        return chunk if len(chunk) == place.length else None

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None


def _files(log_directory: Path, plan: ReplayPlan) -> dict[Path, list[Entry]]:
    """Find the copies that a plan needs, each with its entries. Raises NotFound, OSError."""
    attempts = {path.name: path for path in log_directory.glob("*/*")}
    files: dict[Path, list[Entry]] = {}
    for entry, origin in chain.from_iterable(listed.items() for listed in plan.listed.values()):
        attempt = attempts.get(_attempt_name(origin.epoch, origin.nonce))
        path = attempt / f"{entry.sqn:020d}.copy" if attempt else None
        if path is None or not (path in files or is_there(path)):
            raise NotFound(
                "a change set has no local copy", epoch=origin.epoch, sqn=entry.sqn, partition=entry.partition
            )
        files.setdefault(path, []).append(entry)
    return files


def _rows(path: Path, data: mmap.mmap) -> "NDArray[np.void]":
    end = len(data) - _TRAILER.size
    if end < 0 or data[end : end + 4] != _MAGIC:
        raise _corrupt(path, "it has no trailer")
    _, version, count, checksum = _TRAILER.unpack(data[end:])
    if version > _VERSION:
        raise UnknownFormat("a local copy has a newer format version", path=str(path), found=version, known=_VERSION)
    start = end - count * _ROW.itemsize
    table = data[max(start, 0) : end]
    if version != _VERSION or any(data[end + 5 : end + 8]) or start < 0 or checksum != xxhash.xxh3_64_intdigest(table):
        raise _corrupt(path, "its table is damaged")
    rows = np.frombuffer(table, _ROW)
    if int(rows["length"].sum(dtype=np.int64)) != start:
        raise _corrupt(path, "its table does not cover it")
    return rows


def _verify(path: Path, data: mmap.mmap, places: Sequence[_Place], entry: Entry) -> None:
    """Raise Corrupt unless the places have exactly the chunks that the entry lists."""
    heads = [decode_head(data[start : start + length]) for _, _, start, length in places]
    checksums = [head[0].checksum for head in heads if head is not None]
    if (
        len(checksums) != entry.chunks
        or combine_checksums(checksums) != entry.checksum
        or [place.offset for place in places] != list(entry.offsets)
    ):
        raise _corrupt(path, "it is not the change set that the commit lists")


def _corrupt(path: Path, what: str) -> Corrupt:
    return Corrupt(f"a local copy is not usable: {what}", path=str(path))
