"""`BaseStore`: what every store does alike, on the few operations that an implementation has.

Paths are checked. Files with temporary names are hidden from listings, prove that the store honours put-if-absent, and
are swept once no running call can still be waiting for them: nothing names them, so removing one under a call that is
still running makes that call fail, never lie. So the age limit serves liveness, and safety needs no clock.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from uuid import uuid4

from statelog.errors import AlreadyExists, NotFound, StatelogError, StoreUnavailable, UnsafeStore
from statelog.storage.store import FileInfo
from statelog.storage.store.url import check_path, check_prefix, is_temporary, temporary_name

STALE_AFTER_S = 86_400.0
_HINT = "Use a store that honours conditional writes (If-None-Match), or another gateway in front of it"


class BaseStore(ABC):
    """One log's directory. The operations of an implementation take any path below it, temporary names included."""

    @property
    @abstractmethod
    def url(self) -> str:
        """Where it is, for people; it never holds credentials."""

    @abstractmethod
    def now_s(self) -> float:
        """The store's own clock, in seconds since 1970."""

    @abstractmethod
    def _create(self, path: str, data: bytes) -> None:
        """Create a file, whole and durable. Raises AlreadyExists, StoreUnavailable, StorageFull."""

    @abstractmethod
    def _read(self, path: str) -> bytes:
        """A whole file. Raises NotFound, StoreUnavailable."""

    @abstractmethod
    def _delete(self, path: str) -> None:
        """Delete a file; one that is not there counts as deleted. Raises StoreUnavailable."""

    @abstractmethod
    def _files(self, prefix: str) -> Sequence[FileInfo]:
        """All files below a prefix, complete or not at all. Raises StoreUnavailable."""

    def put_if_absent(self, path: str, data: bytes) -> None:
        """Create a file, so that exactly one caller wins."""
        self._create(check_path(path), data)

    def read(self, path: str) -> bytes:
        """A whole file."""
        return self._read(check_path(path))

    def delete(self, path: str) -> None:
        """Delete a file."""
        self._delete(check_path(path))

    def list(self, prefix: str = "") -> Iterator[FileInfo]:
        """Every published file below `prefix`."""
        return iter([info for info in self._files(check_prefix(prefix)) if not is_temporary(info.path)])

    def sweep(self, now_s: float) -> None:
        """Delete temporary files that are a day old."""
        for file in self._files(""):
            if is_temporary(file.path) and now_s - file.modified_s > STALE_AFTER_S:
                self._delete(file.path)

    def tidy(self) -> None:  # noqa: B027 - nothing to do is the common case, and a local root overrides it
        """Nothing: there are no directories, or those that are empty stay."""

    def check(self) -> None:
        """Prove put-if-absent here, and clear out temporary files that a crash left more than a day ago."""
        self.prove(uuid4().hex)
        self.sweep(self.now_s())

    def prove(self, token: str) -> None:
        """Create a probe twice. Raises UnsafeStore if the second call succeeds, or if the first one's bytes are gone.

        `token` makes the probe's name unique, so that AlreadyExists on the first call can only be an earlier try of it.
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

    def _content(self, path: str) -> bytes:
        try:
            return self._read(path)
        except NotFound as error:
            message = "The store does not show a file that was just written"
            raise UnsafeStore(message, store=self.url, path=path) from error
