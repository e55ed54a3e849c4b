"""A store behind a simulated network: local files with a delay for every request and every byte."""

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO

from statelog.store.local import LocalStore
from statelog.store.port import FileInfo, RangeReader

__all__ = ["Link", "RemoteStore"]

_REQUEST_BYTES = 8 << 20


class Link:
    """The network that all readers of a process share. `size_bytes` and `requests` count its traffic."""

    def __init__(self, request_s: float, bytes_s: float) -> None:
        self.size_bytes = 0
        self.requests = 0
        self._request_s = request_s
        self._bytes_s = bytes_s
        self._lock = threading.Lock()

    def transfer(self, size_bytes: int) -> None:
        """Wait for the duration of a request of this size."""
        time.sleep(self._request_s)
        with self._lock:
            self.requests += 1
            self.size_bytes += size_bytes
            time.sleep(size_bytes / self._bytes_s)


class RemoteStore(LocalStore):
    """A local store behind a link."""

    def __init__(self, root: Path, log: str, link: Link) -> None:
        super().__init__(root, log)
        self._link = link

    def read(self, path: str) -> bytes:
        """Read a file in one request."""
        data = super().read(path)
        self._link.transfer(len(data))
        return data

    def list(self, prefix: str = "") -> Iterator[FileInfo]:
        """List files in one request."""
        self._link.transfer(0)
        return super().list(prefix)

    def put(self, path: str, data: bytes) -> None:
        """Write a file in one request."""
        self._link.transfer(len(data))
        super().put(path, data)

    def put_if_absent(self, path: str, data: bytes) -> None:
        """Create a file in one request."""
        self._link.transfer(len(data))
        super().put_if_absent(path, data)

    def download(self, path: str, local: Path) -> None:
        """Copy a file in requests of 8 MiB, without syncing the copy, like clients of object stores."""
        shutil.copyfile(self._directory / path, local)
        size_bytes = local.stat().st_size
        for start in range(0, size_bytes, _REQUEST_BYTES):
            self._link.transfer(min(_REQUEST_BYTES, size_bytes - start))

    def open(self, path: str) -> AbstractContextManager[BinaryIO]:
        """Return a reader of ranges, each in one request, as from an object store."""

        def ask(read: Callable[[], bytes]) -> bytes:
            data = read()
            self._link.transfer(len(data))
            return data

        with super().open(path):
            pass
        return RangeReader.of((self._directory / path).open("rb", buffering=0), ask)
