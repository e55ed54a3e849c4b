"""Local copies: change sets that their writer kept on its own disk, to be read instead of Kafka's when all are there.

A file per change set, `<directory>/<log>/<writer>/<epoch>-<nonce>/<sqn>.copy`:

    the chunks, back to back, byte for byte as they went to Kafka
    a row per chunk, 16 bytes little-endian: partition (4), length (4), offset (8)
    magic "SLLC", version 1, three zero bytes, number of rows (8), xxh3-64 of the rows (8)

Until the change set is durable the file is called `.partial`. A copy is never the truth: Kafka is.

Invariants:
- Writing never fails the durable path. An error is remembered, the file removed, and there is no copy: all or nothing.
- Reading is all or nothing, too: either every change set that is asked for lies here with the checksum that its commit
  names, or nothing of it is read.
"""

import contextlib
import mmap
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from statelog.schemas.chunk import combine_checksums, decode_head
from statelog.schemas.errors import Corrupt, NotFound, StoreUnavailable, UnknownFormat
from statelog.schemas.handle import Entry
from statelog.schemas.replay_plan import ChangeSetId, ReplayPlan
from statelog.storage.kafka import OffsetRange, Record

__all__ = ["LocalCopy", "LocalCopyReader", "attempt_directory", "copies_of_writer"]

_MAGIC = b"SLLC"
_VERSION = 1
_TRAILER = struct.Struct("<4sB3xQQ")
_ROW = np.dtype([("partition", "<u4"), ("length", "<u4"), ("offset", "<u8")])


def attempt_directory(directory: Path, log: str, writer: str, epoch: int, nonce: bytes) -> Path:
    """Where one epoch of a writer keeps its copies. No two epochs share it."""
    return directory / log / writer / f"{epoch:020d}-{nonce.hex()}"


def copies_of_writer(directory: Path, log: str, writer: str) -> list[Path]:
    """The copies that all epochs of a writer left, oldest first. Removes what was never completed. Raises OSError."""
    attempts = directory / log / writer
    for partial in attempts.glob("*/*.partial"):
        partial.unlink(missing_ok=True)
    return sorted(attempts.glob("*/*.copy"))


class LocalCopy:
    """Writes the copy of one change set. Nothing here raises OSError: see `error`."""

    def __init__(self, directory: Path, sqn: int) -> None:
        self.path = directory / f"{sqn:020d}.copy"
        self.error: OSError | None = None
        self.size_bytes = 0
        self._partial = self.path.with_suffix(".partial")
        self._file: BinaryIO | None = None
        self._rows: list[tuple[int, int]] = []
        self._is_over = False

    def add(self, partition: int, chunk: bytes) -> None:
        """The next chunk."""
        if self._is_over:
            return
        try:
            if self._file is None:
                self._partial.parent.mkdir(parents=True, exist_ok=True)
                self._file = self._partial.open("wb")
            self._file.write(chunk)
            self._rows.append((partition, len(chunk)))
        except OSError as error:
            self._give_up(error)

    def complete(self, offsets: Mapping[int, Sequence[int]]) -> None:
        """The change set is durable: `offsets` are those of its chunks by partition, in the order of adding."""
        if self._file is None or self._is_over:
            return
        self._is_over = True
        try:
            self._file.write(_table(self._rows, offsets))
            self.size_bytes = self._file.tell()
            self._file.close()
            self._partial.rename(self.path)
        except OSError as error:
            self._give_up(error)
        self._file = None

    def discard(self) -> None:
        """Remove the copy, whole or not; nothing more is added to it."""
        self._is_over = True
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None
        for path in (self._partial, self.path):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        self.size_bytes = 0

    def _give_up(self, error: OSError) -> None:
        self.error = error
        self.discard()


def _table(rows: Sequence[tuple[int, int]], offsets: Mapping[int, Sequence[int]]) -> bytes:
    left = {partition: iter(found) for partition, found in offsets.items()}
    table = np.array([(partition, length, next(left[partition])) for partition, length in rows], _ROW).tobytes()
    return table + _TRAILER.pack(_MAGIC, _VERSION, len(rows), xxhash.xxh3_64_intdigest(table))


class _Place(NamedTuple):
    """Where a chunk lies: in which file, from which byte on, how long."""

    offset: int
    data: mmap.mmap
    start: int
    length: int


class LocalCopyReader:
    """Reads the change sets of a plan from local copies; implements `kafka.Reader`.

    Making it verifies all of them. Raises NotFound if a change set has no copy, Corrupt, UnknownFormat if a copy is not
    what its commit lists, StoreUnavailable.
    """

    def __init__(self, directory: Path, log: str, plan: ReplayPlan) -> None:
        self._files: dict[Path, tuple[mmap.mmap, NDArray[np.void]]] = {}
        self._places: dict[int, list[_Place]] = {}
        attempts = {path.name: path for path in (directory / log).glob("*/*")}
        try:
            for partition, listed in plan.listed.items():
                self._places[partition] = sorted(
                    (place for key, entry in listed.items() for place in self._locate(attempts, key, entry)),
                    key=lambda place: place.offset,
                )
        except OSError as error:
            self.close()
            raise StoreUnavailable(f"a local copy cannot be read: {error}", log=log) from error
        except BaseException:
            self.close()
            raise

    def read(self, ranges: Mapping[int, OffsetRange], *, stall_timeout_s: float) -> Iterator[Record]:
        """Yield the chunks of the plan that lie in `ranges`, by offset within a partition."""
        del stall_timeout_s  # A local file has what was verified, or it is an error.
        for partition, wanted in ranges.items():
            for offset, data, start, length in self._places.get(partition, ()):
                if wanted.start <= offset < wanted.end:
                    yield Record(partition, offset, data[start : start + length])

    def close(self) -> None:
        """Release the files. Idempotent."""
        self._places.clear()
        while self._files:
            self._files.popitem()[1][0].close()

    def _locate(self, attempts: Mapping[str, Path], key: ChangeSetId, entry: Entry) -> list[_Place]:
        attempt = attempts.get(attempt_directory(Path(), "", "", key.epoch, key.nonce).name)
        path = attempt / f"{key.sqn:020d}.copy" if attempt else None
        if path is None or not path.exists():
            raise NotFound("a change set has no local copy", epoch=key.epoch, sqn=key.sqn, partition=entry.partition)
        if path not in self._files:
            self._files[path] = _open(path)
        data, rows = self._files[path]
        starts = np.cumsum(rows["length"], dtype=np.int64) - rows["length"]
        mine = np.flatnonzero(rows["partition"] == entry.partition)
        places = [_Place(int(rows["offset"][i]), data, int(starts[i]), int(rows["length"][i])) for i in mine]
        _verify(path, places, entry)
        return places


def _open(path: Path) -> "tuple[mmap.mmap, NDArray[np.void]]":
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise _corrupt(path, "it is empty")
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    try:
        return data, _rows(path, data)
    except BaseException:
        data.close()
        raise


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


def _verify(path: Path, places: Sequence[_Place], entry: Entry) -> None:
    """Raise Corrupt unless the places hold exactly the chunks that the entry lists."""
    heads = [decode_head(data[start : start + length]) for _, data, start, length in places]
    checksums = [head[0].checksum for head in heads if head is not None]
    offsets = [place.offset for place in places]
    if (
        len(checksums) != entry.chunks
        or combine_checksums(checksums) != entry.checksum
        or (offsets[0], offsets[-1] + 1) != (entry.first_offset, entry.end_offset)
    ):
        raise _corrupt(path, "it is not the change set that the commit lists")


def _corrupt(path: Path, what: str) -> Corrupt:
    return Corrupt(f"a local copy is not usable: {what}", path=str(path))
