"""File systems that behave as real ones do in the one respect that a test is about."""

import errno
import io
import uuid
from threading import RLock
from typing import BinaryIO

from fsspec.implementations.memory import MemoryFileSystem

__all__ = ["CarelessFileSystem", "HdfsLikeFileSystem", "unique_directory"]


class CarelessFileSystem(MemoryFileSystem):
    """A store that takes a conditional write and ignores the condition, as some S3 gateways do."""

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: object) -> object:
        """Write in any case."""
        return super().pipe_file(path, value, mode="overwrite", **kwargs)


class HdfsLikeFileSystem(MemoryFileSystem):
    """HDFS as fsspec shows it: no exclusive create, and a rename that refuses a name that is taken."""

    _lock = RLock()

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: object) -> object:
        """Write; with mode "create" raise, because Arrow's file has no such mode."""
        if mode != "overwrite":
            raise ValueError(f"unsupported mode for Arrow filesystem: {mode!r}")
        return super().pipe_file(path, value, mode="overwrite", **kwargs)

    def open(self, path: str, mode: str = "rb", **kwargs: object) -> BinaryIO:
        """Every reader gets a cursor of its own, which fsspec's memory does not give."""
        if mode == "rb":
            return io.BytesIO(self.cat_file(path))
        return super().open(path, mode, **kwargs)

    def mv(self, path1: str, path2: str, **kwargs: object) -> None:
        """Rename in one step, or raise what libhdfs raises."""
        with self._lock:
            if path2 in self.store:
                raise OSError(errno.EIO, f"HDFS rename failed: {path2}")
            self.store[path2] = self.store.pop(path1)


def unique_directory() -> str:
    """A directory of the process's one memory file system that no other test uses."""
    return f"/{uuid.uuid4().hex}"
