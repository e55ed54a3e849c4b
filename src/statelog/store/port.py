"""The store port: everything that statelog asks of a distributed file system, and what every store does alike.

Three implementations, one contract suite (`tests/contract/test_store_contract.py`):
`fsspec.FsspecStore` on any fsspec file system, `local.LocalStore`, and `statelog.testing.MemoryStore`, their
in-memory twin.

Paths are relative to one log's directory, with '/' between parts and no '..'. What every implementation promises:

- A file is visible whole or not at all, and only after the call that wrote it returned or was cut off.
- `put_if_absent` has one winner. A cut-off call may still take effect later: the caller reads the slot and
  compares what it finds with what it wrote.
- Reads and lists see every write that returned before; nothing is answered from a cache.
- "Not there" is NotFound, and only that. What could not be asked is StoreUnavailable.

Files with temporary names are hidden from listings, prove that the store honours put-if-absent, and are swept once no
running call can still be waiting for them: nothing names them, so removing one under a call that is still running makes
that call fail, never lie. So the age limit serves liveness, and safety needs no clock.
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
    """A seekable, unbuffered file of which each read fetches a range, to an offset or (None) to the end."""

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
        """A file, each read of which is made by `ask`. Closing it closes the file."""

        def read(start: int, end: int | None) -> bytes:
            file.seek(start)
            return file.read(-1 if end is None else end - start)

        def fetch(start: int, end: int | None) -> bytes:
            return ask(lambda: read(start, end))

        reader = cls(fetch, lambda: file.seek(0, io.SEEK_END), file.close)
        return cast("BinaryIO", reader)

    def readable(self) -> bool:
        """True: it only reads."""
        return True

    def seekable(self) -> bool:
        """True: ranges are what it is for."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Move, and return the new position in bytes. Fetches nothing."""
        start = 0 if whence == io.SEEK_SET else self._position if whence == io.SEEK_CUR else self._size_bytes()
        self._position = start + offset
        return self._position

    def read(self, size: int = -1, /) -> bytes:
        """The next bytes, fewer only at the end; without a size all that follow."""
        data = self._fetch(self._position, None if size < 0 else self._position + size)
        self._position += len(data)
        return data

    def close(self) -> None:
        """Release what is behind it. Idempotent."""
        if not self.closed:
            self._release()
        super().close()


class Store(ABC):
    """One log's directory. What is only an implementation's takes any path below it, temporary names included."""

    @property
    @abstractmethod
    def url(self) -> str:
        """Where it is, for people; secrets are masked."""

    @abstractmethod
    def now_s(self) -> float:
        """The store's own clock, in seconds since 1970, on the scale of `FileInfo.modified_s`."""

    # ---- files

    def put_if_absent(self, path: str, data: bytes) -> None:
        """Create a file, whole and durable, so that exactly one caller wins. `data` is not empty. Raises AlreadyExists
        (perhaps by this very call, repeated below us), StoreUnavailable (may still take effect), StorageFull.
        """
        self._create(check_path(path), data)

    @abstractmethod
    def put(self, path: str, data: bytes) -> None:
        """Write a file, replacing an earlier one, as of leases, atomically. Raises StoreUnavailable, StorageFull."""

    @abstractmethod
    def upload(self, local: Path, path: str) -> None:
        """Copy a finished local file to a path with no other writer. Raises StoreUnavailable, StorageFull."""

    @abstractmethod
    def download(self, path: str, local: Path) -> None:
        """Copy a whole file to a local path. Raises NotFound, StoreUnavailable, StorageFull (locally)."""

    def read(self, path: str) -> bytes:
        """A whole file. Raises NotFound, StoreUnavailable."""
        return self._read(check_path(path))

    @abstractmethod
    def open(self, path: str) -> AbstractContextManager[BinaryIO]:
        """A seekable reader, for ranges of a large file. NotFound comes from here or from the first read."""

    def list(self, prefix: str = "") -> Iterator[FileInfo]:
        """Every file whose path starts with `prefix`, in any order; all of them, or StoreUnavailable."""
        return iter([info for info in self._files(check_prefix(prefix)) if not is_temporary(info.path)])

    @abstractmethod
    def siblings(self) -> Sequence[str]:
        """The names of the root's directories, this log's own included, in any order; all, or StoreUnavailable."""

    def delete(self, path: str) -> None:
        """Delete a file; one that is not there counts as deleted. Raises StoreUnavailable."""
        self._delete(check_path(path))

    def sweep(self, now_s: float) -> None:
        """Delete what killed calls left unpublished a day before `now_s`, the store's time. Raises StoreUnavailable."""
        for file in self._files(""):
            if is_temporary(file.path) and now_s - file.modified_s > STALE_AFTER_S:
                self._delete(file.path)

    def tidy(self) -> None:  # noqa: B027 - nothing to do is the common case, and a local root overrides it
        """Remove the empty directories of a log that was deleted, below a local root. Never raises."""

    # ---- what it is worth

    def free_bytes(self) -> int | None:
        """How much more can be written; None where the store does not tell. Raises StoreUnavailable."""
        return None

    def check(self) -> None:
        """Prove that this store honours put-if-absent, and sweep it: when a log is made, and once in every process that
        puts manifests. Raises UnsafeStore if it does not, StoreUnavailable, StorageFull.
        """
        self.prove(uuid4().hex)
        self.sweep(self.now_s())

    def prove(self, token: str) -> None:
        """Create a probe twice. Raises UnsafeStore if the second call succeeds, or if the first one's bytes are gone.
        AlreadyExists on the first call can only be an earlier try of it, because `token` makes its name unique.
        """
        path = temporary_name(f"probe-{token}")
        try:
            self._prove(path, f"first {token}".encode(), f"second {token}".encode())
        except BaseException:
            with suppress(StatelogError):  # Why the proof failed is what counts; what it left is swept.
                self._delete(path)
            raise
        self._delete(path)

    def _prove(self, path: str, first: bytes, second: bytes) -> None:
        if not self._is_created(path, first) and self._content(path) != first:
            raise StoreUnavailable("A probe of a new name is there already", store=self.url, path=path)
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
        """What the file system raises in this block is raised as an error of ours."""
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

    # ---- what an implementation has; it raises as the methods above

    @abstractmethod
    def _create(self, path: str, data: bytes) -> None: ...

    @abstractmethod
    def _read(self, path: str) -> bytes: ...

    @abstractmethod
    def _delete(self, path: str) -> None: ...

    @abstractmethod
    def _files(self, prefix: str) -> Sequence[FileInfo]:
        """All files below a prefix, complete or not at all."""
