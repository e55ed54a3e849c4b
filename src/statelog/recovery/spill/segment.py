"""A spill segment: frames in put order, in one spill file.

On disk a frame is its length and the xxh3-64 of its bytes, 8 bytes little-endian each, and its bytes.

Invariants:
- An append that fails leaves the segment as it was. A read that fails moves nothing: the same frame can be read again.
- What does not match is Corrupt, and so is a file that is shorter than what was appended; never skipped.
- The file stays open exactly as long as a reference is held. The maker has the first one.
"""

import struct
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import xxhash

from statelog.environment import OpenSpillFile
from statelog.errors import ClosedError, Corrupt

__all__ = ["Frame", "SpillSegment"]

_HEADER = struct.Struct("<QQ")


class Frame(NamedTuple):
    """The bytes of a frame, and where the next one begins."""

    data: memoryview
    next_offset: int


class SpillSegment:
    """Appended to by one thread, read by any. `end_offset` is where the next frame goes."""

    def __init__(self, directory: Path, open_file: OpenSpillFile) -> None:
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
        try:
            self._write(header, self.end_offset)
            self._write(data, self.end_offset + _HEADER.size)
        except BaseException:
            self._file.cut(self.end_offset)
            raise
        self.end_offset += _HEADER.size + data.nbytes

    def seal(self) -> None:
        """No more frames. Raises Corrupt if the file is not as long as what was appended."""
        self.is_sealed = True
        size_bytes = self._file.size_bytes()
        if size_bytes != self.end_offset:
            raise self._corrupt("its length differs", size_bytes)

    def read(self, offset: int) -> Frame:
        """The frame at `offset`, verified. Raises Corrupt, StoreUnavailable, ClosedError."""
        self._check_open()
        length, checksum = _HEADER.unpack(self._read(_HEADER.size, offset))
        next_offset = offset + _HEADER.size + length
        if next_offset > self.end_offset:
            raise self._corrupt("a frame's length is impossible", offset)
        data = self._read(length, offset + _HEADER.size)
        if xxhash.xxh3_64_intdigest(data) != checksum:
            raise self._corrupt("a frame's checksum differs", offset)
        return Frame(memoryview(data), next_offset)

    def hold(self) -> "SpillSegment":
        """Take a reference. Raises ClosedError after the last one was released."""
        with self._lock:
            self._check_open()
            self._references += 1
        return self

    def release(self) -> None:
        """Give a reference back; the last one frees the space."""
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
            hint="The local disk or its memory is failing: check it, then recover again; the log itself is unharmed",
        )
