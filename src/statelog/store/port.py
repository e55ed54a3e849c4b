"""The store port: everything that statelog needs from a distributed file system, and the common part of all stores.

Three implementations, one contract suite (`tests/contract/test_store_contract.py`):
`fsspec.FsspecStore` on any fsspec file system, `local.LocalStore`, and `statelog.testing.MemoryStore`, their
in-memory twin.

Paths are relative to one log's directory, with '/' between parts and no '..'. Every implementation guarantees:

- A file is visible whole or not at all, and only after the call that wrote it returned or was interrupted.
- `put_if_absent` has one winner. An interrupted call may still take effect later: the caller reads the slot and
  compares the content with its own.
- Reads and lists see every write that returned before; nothing is answered from a cache.
- NotFound means that the file does not exist, and nothing else. A question without an answer is StoreUnavailable.

Files with temporary names are hidden from listings, and also serve to prove that the store honours put-if-absent. They
are swept when they are a day old. Nothing names them: if one is removed while its call still runs, the call fails, and
never returns a wrong result. So safety needs no clock.
"""

import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast
from uuid import uuid4

from statelog.errors import AlreadyExists, NotFound, StatelogError, StoreUnavailable, UnsafeStore
from statelog.store.errors import OURS, translate
from statelog.store.url import check_path, check_prefix, is_temporary, temporary_name

__all__ = ["STALE_AFTER_S", "FileInfo", "RangeReader", "Store"]

STALE_AFTER_S = 86_400.0
_HINT = "Use a store that honours conditional writes (If-None-Match), or another gateway in front of it"


class FileInfo(NamedTuple):
    """One file of a listing. `modified_s` is the store's own time of the last write, in seconds since 1970."""

    path: str
    size_bytes: int
    modified_s: float


class RangeReader(io.RawIOBase):
    """A seekable, unbuffered file. Each read fetches a range, to an offset or (None) to the end."""

    def __init__(
        self,
        fetch: Callable[[int, int | None], bytes],
        size_bytes: Callable[[], int],
        release: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__()
        self._fetch = fetch
        self._size_bytes = size_bytes
        self._release = release
        self._position = 0

    @classmethod
    def of(cls, file: BinaryIO, ask: Callable[[Callable[[], bytes]], bytes]) -> BinaryIO:
        """Wrap a file, so that `ask` makes each read. Closing the result closes the file."""

        def read(start: int, end: int | None) -> bytes:
            file.seek(start)
            return file.read(-1 if end is None else end - start)

        def fetch(start: int, end: int | None) -> bytes:
            return ask(lambda: read(start, end))

        reader = cls(fetch, lambda: file.seek(0, io.SEEK_END), file.close)
        return cast("BinaryIO", reader)

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Move, and return the new position in bytes. Fetches nothing."""
        start = 0 if whence == io.SEEK_SET else self._position if whence == io.SEEK_CUR else self._size_bytes()
        self._position = start + offset
        return self._position

    def read(self, size: int = -1, /) -> bytes:
        """Return the next bytes, fewer only at the end; without a size all that follow."""
        data = self._fetch(self._position, None if size < 0 else self._position + size)
        self._position += len(data)
        return data

    def close(self) -> None:
        """Release the source. Idempotent."""
        if not self.closed:
            self._release()
        super().close()


class Store(ABC):
    """One log's directory. The private methods of implementations accept temporary names, too."""

    @property
    @abstractmethod
    def url(self) -> str:
        """The directory's URL, for people; secrets are masked."""

    @abstractmethod
    def now_s(self) -> float:
        """Return the store's own time, in seconds since 1970, comparable with `FileInfo.modified_s`."""

    # ---- files

    def put_if_absent(self, path: str, data: bytes) -> None:
        """Create a file, whole and durable, so that exactly one caller wins. `data` is not empty.

        Raises AlreadyExists (the file may be this call's own, if a client retried it), StoreUnavailable (the call may
        still take effect), StorageFull.
        """
        self._create(check_path(path), data)

    @abstractmethod
    def put(self, path: str, data: bytes) -> None:
        """Write a file, such as a lease, atomically replacing an earlier one. Raises StoreUnavailable, StorageFull."""

    @abstractmethod
    def upload(self, local: Path, path: str) -> None:
        """Copy a finished local file to a path with no other writer. Raises StoreUnavailable, StorageFull."""

    @abstractmethod
    def download(self, path: str, local: Path) -> None:
        """Copy a whole file to a local path. Raises NotFound, StoreUnavailable, StorageFull (locally)."""

    def read(self, path: str) -> bytes:
        """Return a whole file. Raises NotFound, StoreUnavailable."""
        return self._read(check_path(path))

    @abstractmethod
    def open(self, path: str) -> AbstractContextManager[BinaryIO]:
        """Return a seekable reader, for ranges of a large file. This or the first read raises NotFound."""

    def list(self, prefix: str = "") -> Iterator[FileInfo]:
        """Return every file whose path starts with `prefix`, in any order; all of them, or raise StoreUnavailable."""
        return iter([info for info in self._files(check_prefix(prefix)) if not is_temporary(info.path)])

    @abstractmethod
    def siblings(self) -> Sequence[str]:
        """Return the names of all directories in the root, this log's included, in any order.

        Raises StoreUnavailable.
        """

    def delete(self, path: str) -> None:
        """Delete a file; a missing one counts as deleted. Raises StoreUnavailable."""
        self._delete(check_path(path))

    def sweep(self, now_s: float) -> None:
        """Delete temporary files of killed calls, a day old at `now_s`, the store's time. Raises StoreUnavailable."""
        for file in self._files(""):
            if is_temporary(file.path) and now_s - file.modified_s > STALE_AFTER_S:
                self._delete(file.path)

    def tidy(self) -> None:  # noqa: B027 - nothing to do is the common case, and a local root overrides it
        """Remove the empty directories of a log that was deleted, below a local root. Never raises."""

    # ---- its capacity and guarantees

    def free_bytes(self) -> int | None:
        """Return how much more can be written; None if the store does not report it. Raises StoreUnavailable."""
        return None

    def check(self) -> None:
        """Prove that this store honours put-if-absent, and sweep it.

        Called when a log is created, and once in every process that puts manifests.
        Raises UnsafeStore if the store overwrites, StoreUnavailable, StorageFull.
        """
        self.prove(uuid4().hex)
        self.sweep(self.now_s())

    def prove(self, token: str) -> None:
        """Create a probe file twice. `token` makes its name unique: if it exists at first, a client retried the call.

        Raises UnsafeStore if the second call succeeds, or if it replaced the bytes of the first.
        """
        path = temporary_name(f"probe-{token}")
        try:
            self._prove(path, f"first {token}".encode(), f"second {token}".encode())
        except BaseException:
            with suppress(StatelogError):  # The first error is raised; a leftover is swept.
                self._delete(path)
            raise
        self._delete(path)

    def _prove(self, path: str, first: bytes, second: bytes) -> None:
        if not self._is_created(path, first) and self._content(path) != first:
            raise StoreUnavailable("A probe with a new name exists already", store=self.url, path=path)
        if self._is_created(path, second):
            raise UnsafeStore("The store overwrites a file that must only be created", hint=_HINT, store=self.url)
        if self._content(path) != first:
            raise UnsafeStore("The store refused the second create, but kept its bytes", hint=_HINT, store=self.url)

    def _is_created(self, path: str, data: bytes) -> bool:
        try:
            self._create(path, data)
        except AlreadyExists:
            return False
        return True

    @contextmanager
    def _guard(self, action: str, path: str, *, reading: bool) -> Generator[None]:
        """Translate errors of the file system in this block into statelog's."""
        try:
            yield
        except OURS:
            raise
        except Exception as error:
            raise translate(error, action=action, url=self.url, path=path, reading=reading) from error

    def _content(self, path: str) -> bytes:
        try:
            return self._read(path)
        except NotFound as error:
            message = "The store does not show a file that was just written"
            raise UnsafeStore(message, store=self.url, path=path) from error

    # ---- to be implemented, with the errors of the methods above

    @abstractmethod
    def _create(self, path: str, data: bytes) -> None: ...

    @abstractmethod
    def _read(self, path: str) -> bytes: ...

    @abstractmethod
    def _delete(self, path: str) -> None: ...

    @abstractmethod
    def _files(self, prefix: str) -> Sequence[FileInfo]:
        """Return all files below a prefix, or raise StoreUnavailable."""
