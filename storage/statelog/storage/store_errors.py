"""What goes wrong in a file system, told in statelog's own errors.

Owns the one translation from the exceptions of the operating system, of fsspec and of the cloud clients below
it into NotFound, AlreadyExists, StoreUnavailable, StorageFull. It reads codes and attributes only, so that no
client library has to be imported. Programming errors pass through untouched.

Invariant: only an answer that says "this file is not there" becomes NotFound. A missing bucket, a refused
login or a silence is StoreUnavailable, because a decision taken on it as on an absence could delete live files.
"""

import errno
import io
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, cast

from statelog.schemas.errors import NotFound, StatelogError, StorageFull, StoreUnavailable
from statelog.storage.store_url import mask_url

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

__all__ = ["GuardedReader", "guarded", "is_conflict", "is_missing", "is_taken", "translate"]

_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})
_FULL_CODES = frozenset({"QuotaExceeded", "XMinioStorageFull", "InsufficientStorage", "quotaExceeded"})
_FULL_WORDS = ("QuotaExceededException", "No space left on device")
_NO_PLACE_CODES = frozenset({"NoSuchBucket", "ContainerNotFound", "FilesystemNotFound"})
_CONFLICT_CODES = frozenset({"ConditionalRequestConflict", "OperationAborted"})
_DENIED_NAMES = frozenset(
    {"NoCredentialsError", "PartialCredentialsError", "RefreshError", "ClientAuthenticationError"}
)
_DENIED_HINT = "Check the credentials in the storage options, and what they may do on this path"
_NO_PLACE_HINT = "Create the bucket or container, or correct the root URL; statelog never creates one"
_OURS = (StatelogError, TypeError, AttributeError, AssertionError, MemoryError)


class _Answer(NamedTuple):
    """The code and HTTP status that a cloud store answered with; '' and 0 where there are none."""

    code: str
    status: int


def _answer(error: BaseException) -> _Answer:
    """Look through an exception and its causes for what the store itself said."""
    seen: BaseException | None = error
    for _ in range(4):
        if seen is None:
            break
        response = getattr(seen, "response", None)
        if isinstance(response, Mapping):
            return _aws_answer(cast("Mapping[str, object]", response))
        code = getattr(seen, "error_code", "") or ""
        for name in ("status_code", "status", "code"):
            status = getattr(seen, name, None)
            if isinstance(status, int):
                return _Answer(str(code), status)
        seen = seen.__cause__
    return _Answer("", 0)


def _aws_answer(response: Mapping[str, object]) -> _Answer:
    code = _inner(response, "Error").get("Code", "")
    status = _inner(response, "ResponseMetadata").get("HTTPStatusCode", 0)
    return _Answer(str(code), status if isinstance(status, int) else 0)


def _inner(response: Mapping[str, object], name: str) -> Mapping[str, object]:
    inner = response.get(name)
    return cast("Mapping[str, object]", inner) if isinstance(inner, Mapping) else {}


def is_taken(error: BaseException) -> bool:
    """Whether a conditional create was refused because the file is there."""
    return isinstance(error, FileExistsError) or _answer(error).status == 412


def is_conflict(error: BaseException) -> bool:
    """Whether two conditional creates met: nothing is known yet, ask again."""
    answer = _answer(error)
    return answer.status == 409 or answer.code in _CONFLICT_CODES


def is_missing(error: BaseException) -> bool:
    """Whether the store says that this file (not the place that holds it) is not there."""
    return isinstance(error, FileNotFoundError) and _answer(error).code not in _NO_PLACE_CODES


def _is_full(error: BaseException, answer: _Answer) -> bool:
    number = getattr(error, "errno", None)
    text = str(error)
    return (
        number in _FULL_ERRNOS
        or answer.code in _FULL_CODES
        or answer.status == 507
        or any(word in text for word in _FULL_WORDS)
    )


def _hint(error: BaseException, answer: _Answer) -> str:
    if answer.code in _NO_PLACE_CODES:
        return _NO_PLACE_HINT
    denied = isinstance(error, PermissionError) or answer.status in (401, 403) or type(error).__name__ in _DENIED_NAMES
    return _DENIED_HINT if denied else ""


def translate(error: Exception, *, action: str, url: str, path: str, reading: bool) -> StatelogError:
    """The error of ours that says what `error` means for a call that tried to `action` the file `path` of `url`.

    Only a call that is `reading` can find a file missing; a write that finds nothing has lost its place.
    """
    if reading and is_missing(error):
        return NotFound(f"There is no {path}", store=url, path=path)
    answer = _answer(error)
    number = getattr(error, "errno", None)
    reason = mask_url(f"{type(error).__name__}: {error}")
    code = answer.code or (errno.errorcode.get(number, "") if isinstance(number, int) else "") or None
    kind = StorageFull if _is_full(error, answer) else StoreUnavailable
    return kind(f"Cannot {action} {path}: {reason}", hint=_hint(error, answer), store=url, path=path, code=code)


@contextmanager
def guarded(*, action: str, url: str, path: str, reading: bool) -> Generator[None]:
    """Translate whatever the body's file system raises; our own and programming errors pass."""
    try:
        yield
    except _OURS:
        raise
    except Exception as error:
        raise translate(error, action=action, url=url, path=path, reading=reading) from error


class GuardedReader(io.RawIOBase):
    """A seekable reader whose every read raises our errors. Wrap it in io.BufferedReader."""

    def __init__(self, source: BinaryIO, guard: Callable[[], AbstractContextManager[None]]) -> None:
        super().__init__()
        self._source = source
        self._guard = guard

    def readable(self) -> bool:
        """True: it only reads."""
        return True

    def seekable(self) -> bool:
        """True: ranges are what it is for."""
        return True

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Move, and return the new position in bytes."""
        with self._guard():
            return self._source.seek(offset, whence)

    def tell(self) -> int:
        """The position in bytes."""
        return self._source.tell()

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        """Fill `buffer` as far as one read goes; 0 at the end."""
        with self._guard(), memoryview(buffer).cast("B") as view:
            data = self._source.read(len(view))
            view[: len(data)] = data
            return len(data)

    def close(self) -> None:
        """Close the source too."""
        if not self.closed:
            self._source.close()
        super().close()
