"""Failures of the local disk as RocksDB tells them: plain exceptions with a text. Needs no RocksDB."""

import errno
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from statelog.environment import DiskHook, no_faults
from statelog.errors import StatelogError
from statelog.storage.local.disk import local_disk_error

__all__ = ["rocksdb_disk", "rocksdb_error"]

_TOLD = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EACCES)  # RocksDB tells them in words only.


@contextmanager
def rocksdb_disk(path: Path, step: str = "", disk: DiskHook = no_faults) -> Generator[None]:
    """As `storage.local.disk`. RocksDB's failures are plain `Exception` with a text."""
    try:
        if step:
            disk(step, path)
        yield
    except Exception as error:
        if isinstance(error, OSError):
            raise local_disk_error(error, path) from error
        if type(error) is not Exception:
            raise
        raise rocksdb_error(error, path) from error


def rocksdb_error(error: Exception, path: Path) -> StatelogError:
    """A failure that RocksDB tells in words only, as StorageFull or StoreUnavailable."""
    number = next((number for number in _TOLD if os.strerror(number) in str(error)), errno.EIO)
    return local_disk_error(OSError(number, str(error)), path)
