"""Spill files on a local disk, and their segments, for data that does not fit into memory.

A spill file has no name, and exists only as long as this process holds it open: whatever ends the process, the kernel
frees its space. Reads and writes take an offset, so two threads may share a file.

A segment is one file with frames in put order. On disk a frame is its length and the xxh3-64 of its bytes, 8 bytes
little-endian each, and its bytes.

Invariants:
- Failures of the disk are StorageFull or StoreUnavailable.
- A failed append leaves the segment unchanged. After a failed read, the same frame can be read again.
- A mismatch is Corrupt, and so is a file that is shorter than the appended frames; never skipped.
- The file of a segment is open exactly as long as a reference is held. The maker has the first one.
"""

import os
import struct
import tempfile
from collections import deque
from pathlib import Path
from threading import Lock

import xxhash

from statelog.closing import undone_by_errors
from statelog.environment import DiskHook, OpenSpillFile, no_faults
from statelog.errors import ClosedError, ConfigError, Corrupt, StorageFull
from statelog.store.disk.disk import local_disk

_FULL_HINT = "Free space, name more spill_directories, or raise memory_bytes; then run again"
_HEADER = struct.Struct("<QQ")


class NamelessFile:
    """A new, empty `SpillFile` in `directory`. `disk` is called before it is opened, and before each write."""

    def __init__(self, directory: Path, disk: DiskHook = no_faults) -> None:
        self._directory = directory
        self._disk = disk
        with local_disk(directory, "open", disk, full_hint=_FULL_HINT):
            self._file = tempfile.TemporaryFile("w+b", buffering=0, dir=directory)  # noqa: SIM115 - closed by `close`

    def write_at(self, data: memoryview, offset: int) -> int:
        """Write some of `data`, and return how many bytes."""
        with local_disk(self._directory, "write", self._disk, full_hint=_FULL_HINT):
            return os.pwrite(self._file.fileno(), data, offset)

    def read_at(self, size_bytes: int, offset: int) -> bytes:
        """Read at most so many bytes; none at the end of the file."""
        with local_disk(self._directory, full_hint=_FULL_HINT):
            return os.pread(self._file.fileno(), size_bytes, offset)

    def cut(self, size_bytes: int) -> None:
        """Truncate the file to this length."""
        with local_disk(self._directory, full_hint=_FULL_HINT):
            self._file.truncate(size_bytes)

    def size_bytes(self) -> int:
        """Return the file's length."""
        with local_disk(self._directory, full_hint=_FULL_HINT):
            return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        """Close the file, which frees its space. Idempotent."""
        self._file.close()


class SpillSegment:
    """A segment. One thread appends, any may read. `end_offset` is that of the next frame."""

    def __init__(self, directory: Path, open_file: OpenSpillFile = NamelessFile) -> None:
        self._directory = directory
        self._file = open_file(directory)
        self._references = 1
        self._lock = Lock()
        self.end_offset = 0
        self.is_sealed = False

    def append(self, data: memoryview) -> None:
        """Put a frame at the end. Raises StorageFull, StoreUnavailable, ClosedError."""
        self._check_open()
        if self.is_sealed:
            raise ClosedError("a spill segment is sealed")
        header = memoryview(_HEADER.pack(data.nbytes, xxhash.xxh3_64_intdigest(data)))
        with undone_by_errors(self._file.cut, self.end_offset):
            self._write(header, self.end_offset)
            self._write(data, self.end_offset + _HEADER.size)
        self.end_offset += _HEADER.size + data.nbytes

    def seal(self) -> None:
        """Refuse further frames. Raises Corrupt if the file does not have the length of the appended frames."""
        self.is_sealed = True
        size_bytes = self._file.size_bytes()
        if size_bytes != self.end_offset:
            raise self._corrupt("its length differs", size_bytes)

    def read(self, offset: int) -> tuple[memoryview, int]:
        """Return the verified frame at `offset`, and the next offset. Raises Corrupt, StoreUnavailable, ClosedError."""
        self._check_open()
        length, checksum = _HEADER.unpack(self._read(_HEADER.size, offset))
        next_offset = offset + _HEADER.size + length
        if next_offset > self.end_offset:
            raise self._corrupt("a frame's length is impossible", offset)
        data = self._read(length, offset + _HEADER.size)
        if xxhash.xxh3_64_intdigest(data) != checksum:
            raise self._corrupt("a frame's checksum differs", offset)
        return memoryview(data), next_offset

    def hold(self) -> "SpillSegment":
        """Take a reference. Raises ClosedError after the last one was released."""
        with self._lock:
            self._check_open()
            self._references += 1
        return self

    def release(self) -> None:
        """Release a reference; the last one frees the space."""
        with self._lock:
            self._references -= 1
            if self._references == 0:
                self._file.close()

    def _write(self, data: memoryview, offset: int) -> None:
        data = data.cast("B")
        while data.nbytes:
            written = self._file.write_at(data, offset)
            data, offset = data[written:], offset + written

    def _read(self, size_bytes: int, offset: int) -> bytes:
        parts: list[bytes] = []
        while size_bytes:
            part = self._file.read_at(size_bytes, offset)
            if not part:
                raise self._corrupt("it ends inside a frame", offset)
            parts.append(part)
            size_bytes, offset = size_bytes - len(part), offset + len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _check_open(self) -> None:
        if self._references == 0:
            raise ClosedError("a spill segment was used after it was closed")

    def _corrupt(self, what: str, offset: int) -> Corrupt:
        return Corrupt(
            f"a spill segment is not what was written: {what}",
            path=str(self._directory),
            offset=offset,
            end_offset=self.end_offset,
            hint="Check the local disk and this machine's memory, then recover again; the log itself is unharmed",
        )


class SpillDirectories:
    """Begins segments, in the directories in turn.

    Raises ConfigError if there is no directory, or one that cannot be written to.
    """

    def __init__(self, directories: tuple[Path, ...], open_file: OpenSpillFile = NamelessFile) -> None:
        if not directories:
            raise ConfigError("there is no spill directory", hint="Name at least one in spill_directories")
        for directory in directories:
            if not (directory.is_dir() and os.access(directory, os.W_OK | os.X_OK)):
                raise ConfigError(
                    "a spill directory is missing, or cannot be written to",
                    path=str(directory),
                    hint="Make it, or name another in spill_directories",
                )
        self._directories = deque(directories)
        self._open_file = open_file

    def begin(self, data: memoryview) -> SpillSegment:
        """Begin a segment with this frame in the next directory that is not full.

        Raises StorageFull if all are full, StoreUnavailable.
        """
        full: StorageFull | None = None
        for _ in range(len(self._directories)):
            self._directories.rotate(-1)
            try:
                segment = SpillSegment(self._directories[-1], self._open_file)
                with undone_by_errors(segment.release):
                    segment.append(data)
            except StorageFull as error:
                full = error
            else:
                return segment
        assert full is not None, "there is at least one directory"
        raise full
