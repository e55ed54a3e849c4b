"""The store port: everything that statelog asks of a distributed file system.

Three implementations, one contract suite (`tests/contract/test_store_contract.py`):
`fsspec.FsspecStore` on any fsspec file system, `local.LocalStore`, and `statelog.testing.MemoryStore`, their
in-memory twin.

Paths are relative to one log's directory, with '/' between parts and no '..'. What every implementation promises:

- A file is visible whole or not at all, and only after the call that wrote it returned or was cut off.
- `put_if_absent` has one winner. A cut-off call may still take effect later: the caller reads the slot and
  compares what it finds with what it wrote.
- Reads and lists see every write that returned before; nothing is answered from a cache.
- "Not there" is NotFound, and only that. What could not be asked is StoreUnavailable.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

__all__ = ["FileInfo", "Store"]


class FileInfo(NamedTuple):
    """One file of a listing. `modified_s` is the store's own time of the last write, in seconds since 1970."""

    path: str
    size_bytes: int
    modified_s: float


class Store(Protocol):
    """One log's directory."""

    @property
    def url(self) -> str:
        """Where it is, for people; secrets are masked."""
        ...

    def check(self) -> None:
        """Prove that this store honours put-if-absent: create a probe twice, and the second must fail.

        Asked when a log is made, and once by every process that puts manifests.

        Raises UnsafeStore if the second succeeds, StoreUnavailable, StorageFull.
        """
        ...

    def put_if_absent(self, path: str, data: bytes) -> None:
        """Create a file, whole and durable. `data` is not empty.

        Raises AlreadyExists (perhaps by this very call, retried below us: compare before believing it),
        StoreUnavailable (may still take effect), StorageFull.
        """
        ...

    def put(self, path: str, data: bytes) -> None:
        """Write a file, replacing an earlier one atomically. Only leases are ever replaced.

        Raises StoreUnavailable, StorageFull.
        """
        ...

    def upload(self, local: Path, path: str) -> None:
        """Copy a finished local file to a path with no other writer. Raises StoreUnavailable, StorageFull."""
        ...

    def download(self, path: str, local: Path) -> None:
        """Copy a whole file to a local path. Raises NotFound, StoreUnavailable, StorageFull (locally)."""
        ...

    def read(self, path: str) -> bytes:
        """A whole file. Raises NotFound, StoreUnavailable."""
        ...

    def open(self, path: str) -> AbstractContextManager[BinaryIO]:
        """A seekable reader, for ranges of a large file. Raises NotFound, StoreUnavailable."""
        ...

    def list(self, prefix: str = "") -> Iterator[FileInfo]:
        """Every file whose path starts with `prefix` ('runs/', 'manifests/', or '' for all), in any order.

        A listing that cannot be completed raises StoreUnavailable; it is never partial.
        """
        ...

    def delete(self, path: str) -> None:
        """Delete a file; one that is not there counts as deleted. Raises StoreUnavailable."""
        ...

    def sweep(self, now_s: float) -> None:
        """Delete what calls that were killed left unpublished more than a day before `now_s`, by the store's own clock.

        Raises StoreUnavailable.
        """
        ...

    def tidy(self) -> None:
        """Remove what is empty of the log's directory, and that itself, once the log is deleted. Never raises.

        Only a local root does: an object store has no directories, and empty ones of HDFS stay.
        """
        ...

    def now_s(self) -> float:
        """The store's own clock, in seconds since 1970, on the scale of `FileInfo.modified_s`."""
        ...
