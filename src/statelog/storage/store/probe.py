"""The proof that a store honours put-if-absent, and the cleanup of what interrupted calls left.

Works on the few operations of an implementation that it is handed, so the proof is the same for all. The
cleanup touches temporary files only, which nothing names: removing one under a call that is still running
makes that call fail, never lie. So its age limit serves liveness, and safety needs no clock.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from statelog.errors import AlreadyExists, NotFound, StatelogError, StoreUnavailable, UnsafeStore
from statelog.storage.store import FileInfo
from statelog.storage.store.url import is_temporary, temporary_name

__all__ = ["STALE_AFTER_S", "ProbeOperations", "prove_put_if_absent", "stale_temporaries"]

STALE_AFTER_S = 86_400.0
_HINT = "Use a store that honours conditional writes (If-None-Match), or another gateway in front of it"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeOperations:
    """The operations of a store, on any path below the log's directory, temporary names included."""

    create: Callable[[str, bytes], None]
    read: Callable[[str], bytes]
    delete: Callable[[str], None]


def prove_put_if_absent(operations: ProbeOperations, *, url: str, token: str) -> None:
    """Create a probe twice. Raises UnsafeStore if the second call succeeds, or if the first one's bytes are gone.

    `token` makes the probe's name unique, so that AlreadyExists on the first call can only be an earlier try of it.
    """
    path = temporary_name(f"probe-{token}")
    first, second = f"first {token}".encode(), f"second {token}".encode()
    try:
        _prove(operations, path, (first, second), url)
    except BaseException:
        with suppress(StatelogError):  # Why the proof failed is what counts; what it left is swept.
            operations.delete(path)
        raise
    operations.delete(path)


def _prove(operations: ProbeOperations, path: str, contents: tuple[bytes, bytes], url: str) -> None:
    _create_first(operations, path, contents[0], url)
    if _succeeds(operations, path, contents[1]):
        raise UnsafeStore("The store overwrites a file that must only be created", hint=_HINT, store=url)
    if _content(operations, path, url) != contents[0]:
        raise UnsafeStore("The store refused the second create, but kept its bytes", hint=_HINT, store=url)


def _create_first(operations: ProbeOperations, path: str, data: bytes, url: str) -> None:
    try:
        operations.create(path, data)
    except AlreadyExists as error:
        if _content(operations, path, url) != data:
            raise StoreUnavailable("A probe of a new name is there already", store=url, path=path) from error


def _succeeds(operations: ProbeOperations, path: str, data: bytes) -> bool:
    try:
        operations.create(path, data)
    except AlreadyExists:
        return False
    return True


def _content(operations: ProbeOperations, path: str, url: str) -> bytes:
    try:
        return operations.read(path)
    except NotFound as error:
        raise UnsafeStore("The store does not show a file that was just written", store=url, path=path) from error


def stale_temporaries(files: Iterable[FileInfo], now_s: float) -> list[str]:
    """The temporary files that no running call can still be waiting for; both clocks are the store's."""
    return [file.path for file in files if is_temporary(file.path) and now_s - file.modified_s > STALE_AFTER_S]
