"""Spill files: nameless local files, which exist only as long as this process holds them open.

A file that has no name cannot be left behind, whatever ends the process, SIGKILL included: the kernel frees its space.
So there is nothing to sweep, no attempt can touch another's files, and no cleanup can be forgotten.

Reads and writes say where, so two threads may share a file. Failures of the disk are StorageFull or StoreUnavailable.
"""

import errno
import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from statelog.environment import SpillFile
from statelog.errors import ConfigError
from statelog.storage.local.disk import FULL, local_disk_error

__all__ = ["check_directories", "open_spill_file"]

_FULL_HINT = "Free space, name more spill_directories, or raise memory_bytes; then run again"


def open_spill_file(directory: Path) -> SpillFile:
    """A new, empty file in `directory`. Raises StorageFull, StoreUnavailable."""
    return _NamelessFile(directory)


def check_directories(directories: tuple[Path, ...]) -> None:
    """Raise ConfigError unless there is a directory, and each can be written to."""
    if not directories:
        raise ConfigError("there is no spill directory", hint="Name at least one in spill_directories")
    for directory in directories:
        if not (directory.is_dir() and os.access(directory, os.W_OK | os.X_OK)):
            raise ConfigError(
                "a spill directory is not there, or cannot be written to",
                path=str(directory),
                hint="Make it, or name another in spill_directories",
            )


class _NamelessFile:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        with _local_disk(directory):
            self._file = tempfile.TemporaryFile("w+b", buffering=0, dir=directory)  # noqa: SIM115 - closed by `close`

    def write_at(self, data: memoryview, offset: int) -> int:
        with _local_disk(self._directory):
            return os.pwrite(self._file.fileno(), data, offset)

    def read_at(self, size_bytes: int, offset: int) -> bytes:
        with _local_disk(self._directory):
            return os.pread(self._file.fileno(), size_bytes, offset)

    def cut(self, size_bytes: int) -> None:
        with _local_disk(self._directory):
            self._file.truncate(size_bytes)

    def size_bytes(self) -> int:
        with _local_disk(self._directory):
            return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        self._file.close()


@contextmanager
def _local_disk(directory: Path) -> Generator[None]:
    """Failures of the local disk in our own terms."""
    try:
        yield
    except OSError as error:
        is_full = errno.errorcode.get(error.errno or 0) in FULL
        raise local_disk_error(error, directory, hint=_FULL_HINT if is_full else "") from error
