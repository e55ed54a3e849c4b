"""Spill files that fill up or get corrupted, on top of the real ones."""

from dataclasses import dataclass, field
from pathlib import Path

from statelog.errors import StorageFull
from statelog.store.disk.spill import NamelessFile

__all__ = ["Disks"]


@dataclass
class Disks:
    """An opener of real spill files that counts the contents of every directory. A directory has `room_bytes`.

    `flip_at` and `cut_at`, if set, flip a bit of the byte at this offset of every file that is read, or end the file
    there.
    """

    room_bytes: int = 1 << 60
    flip_at: int | None = None
    cut_at: int | None = None
    used_bytes: dict[Path, int] = field(default_factory=dict[Path, int])
    opened: list[Path] = field(default_factory=list[Path])
    open_files: int = 0

    def open(self, directory: Path) -> NamelessFile:
        """Open a file, as an OpenSpillFile."""
        self.opened.append(directory)
        self.open_files += 1
        return _File(self, directory)


class _File(NamelessFile):
    def __init__(self, disks: Disks, directory: Path) -> None:
        super().__init__(directory)
        self._disks = disks
        self._size = 0
        self._is_open = True

    def _take(self, size_bytes: int) -> None:
        used = self._disks.used_bytes
        used[self._directory] = used.get(self._directory, 0) + size_bytes

    def write_at(self, data: memoryview, offset: int) -> int:
        """Write at most three quarters at once, as a disk may, and only what fits."""
        room = self._disks.room_bytes - self._disks.used_bytes.get(self._directory, 0)
        data = data[: min(len(data) * 3 // 4 + 1, room)]
        if not data:
            raise StorageFull("the test's disk is full", path=str(self._directory))
        written = super().write_at(data, offset)
        self._take(max(0, offset + written - self._size))
        self._size = max(self._size, offset + written)
        return written

    def read_at(self, size_bytes: int, offset: int) -> bytes:
        if self._disks.cut_at is not None:
            size_bytes = min(size_bytes, max(0, self._disks.cut_at - offset))
        data = bytearray(super().read_at(size_bytes, offset))
        at = -1 if self._disks.flip_at is None else self._disks.flip_at - offset
        if 0 <= at < len(data):
            data[at] ^= 1
        return bytes(data)

    def cut(self, size_bytes: int) -> None:
        self._take(size_bytes - self._size)
        self._size = size_bytes
        super().cut(size_bytes)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._disks.open_files -= 1
            self._take(-self._size)
        super().close()
