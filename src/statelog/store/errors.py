"""Translates failures of the operating system, of fsspec and of the cloud clients below it into statelog's errors.

Only codes and attributes are read, so no client library has to be imported.

Invariant: only an answer that says that this file does not exist becomes NotFound. A missing bucket or a refused login
is StoreRefused, no answer is StoreUnavailable: a caller that took these for an absence could delete live files.
"""

import errno
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar, cast

from statelog.errors import NotFound, StatelogError, StorageFull, StoreRefused, StoreUnavailable
from statelog.store.url import mask_url

_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})
_REFUSED_ERRNOS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_FULL_CODES = frozenset({"QuotaExceeded", "XMinioStorageFull", "InsufficientStorage", "quotaExceeded"})
_FULL_WORDS = ("QuotaExceededException", "No space left on device")
_NO_PLACE_CODES = frozenset({"NoSuchBucket", "ContainerNotFound", "FilesystemNotFound"})
_CONFLICT_CODES = frozenset({"ConditionalRequestConflict", "OperationAborted"})
_TRANSIENT_STATUSES = frozenset({500, 502, 503, 504})
_BROKEN_NAMES = frozenset({"ConnectionError", "ChunkedEncodingError"})
_DENIED_NAMES = frozenset(
    {"NoCredentialsError", "PartialCredentialsError", "RefreshError", "ClientAuthenticationError"}
)
_DENIED_HINT = "Check the credentials in the storage options, and their rights on this path"
_LOCAL_HINT = (
    "Check which user this is, and the rights of the log's directory. To share a log, create it with the storage "
    "option directory_mode=2770, or give it to the users' group with chmod -R g+rwXs"
)
_NO_PLACE_HINT = "Create the bucket or container, or correct the root URL; statelog never creates one"
OURS = (StatelogError, TypeError, AttributeError, AssertionError, MemoryError)
"""Errors that are not translated: statelog's own, and defects of the program."""

T = TypeVar("T")


class _Answer(NamedTuple):
    """The code and HTTP status of a cloud store's answer; '' and 0 without one."""

    code: str
    status: int


def _answer(error: BaseException) -> _Answer:
    """Find the store's own answer in an exception and its causes."""
    cause: BaseException | None = error
    for _ in range(4):
        if cause is None:
            break
        response = getattr(cause, "response", None)
        if isinstance(response, Mapping):
            parts = cast("Mapping[str, Mapping[str, object]]", response)
            status = parts.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            return _Answer(str(parts.get("Error", {}).get("Code", "")), status if isinstance(status, int) else 0)
        code = getattr(cause, "error_code", "") or ""
        code = getattr(code, "value", code)  # Azure's are members of an enumeration.
        for name in ("status_code", "status", "code"):
            status = getattr(cause, name, None)
            if isinstance(status, int):
                return _Answer(str(code), status)
        cause = cause.__cause__
    return _Answer("", 0)


def is_taken(error: BaseException) -> bool:
    """Return whether a conditional create was refused because the file exists."""
    return isinstance(error, FileExistsError) or _answer(error).status == 412


def is_conflict(error: BaseException) -> bool:
    """Return whether two conditional creates collided, so that the outcome is unknown and the caller must retry."""
    answer = _answer(error)
    return answer.status == 409 or answer.code in _CONFLICT_CODES


def is_missing(error: BaseException) -> bool:
    """Return whether the store says that this file (not its bucket or container) does not exist."""
    return isinstance(error, FileNotFoundError) and _answer(error).code not in _NO_PLACE_CODES


def is_transient(error: BaseException) -> bool:
    """Return whether the same call may succeed at once: the store says so, or a connection broke.

    Timeouts do not count, as they took long already. Errors that the client has retried do not, either.
    """
    if isinstance(error, ConnectionError):
        return True
    names = {kind.__name__ for kind in type(error).__mro__}
    if isinstance(error, OSError) and names & _BROKEN_NAMES and "Timeout" not in names:
        return True
    return _answer(error).status in _TRANSIENT_STATUSES


def _kind_and_hint(error: Exception, answer: _Answer, url: str) -> tuple[type[StatelogError], str]:
    number, text = getattr(error, "errno", None), str(error)
    is_said_full = answer.code in _FULL_CODES or answer.status == 507 or any(word in text for word in _FULL_WORDS)
    if number in _FULL_ERRNOS or is_said_full:
        return StorageFull, ""
    if answer.code in _NO_PLACE_CODES:
        return StoreRefused, _NO_PLACE_HINT
    is_denied = answer.status in (401, 403) or type(error).__name__ in _DENIED_NAMES
    if number in _REFUSED_ERRNOS or isinstance(error, PermissionError) or is_denied:
        return StoreRefused, _LOCAL_HINT if url.startswith("file:") else _DENIED_HINT
    return StoreUnavailable, ""


def translate(error: Exception, *, action: str, url: str, path: str, reading: bool) -> StatelogError:
    """Return statelog's error for a call that tried to `action` the file `path` of `url`.

    Only a call that is `reading` becomes NotFound; for a write, the bucket or directory is missing.
    """
    if reading and is_missing(error):
        return NotFound(f"There is no {path}", store=url, path=path)
    answer = _answer(error)
    number = getattr(error, "errno", None)
    if isinstance(error, FileNotFoundError) and number is None and not answer.code and url.startswith("gs:"):
        # gcsfs gives no code. A write can only miss the bucket, or a local file, whose error has an errno.
        answer = _Answer("NoSuchBucket", answer.status)
    # Azure's texts continue with the answer's headers and its XML.
    reason = mask_url(f"{type(error).__name__}: {(str(error).strip() or '-').splitlines()[0]}")
    code = answer.code or (errno.errorcode.get(number, "") if isinstance(number, int) else "")
    kind, hint = _kind_and_hint(error, answer, url)
    facts = {"code": code} if code else {}
    return kind(f"Cannot {action} {path}: {reason}", hint=hint, store=url, path=path, **facts)


REPEAT_DELAYS_S = (0.1, 0.3, 1.0, 3.0)
"""The pause before each retry. Callers have to wait for a longer outage themselves."""


def repeated(call: Callable[[], T], sleep: Callable[[float], None] = time.sleep) -> T:
    """Return the result of `call`, after a few retries if it fails with a transient error.

    Distributed stores answer 500 or 503 now and then, and merging a large state takes tens of thousands of requests.
    All calls of the port may be repeated: a create that finds its own file raises AlreadyExists, and its caller
    compares the content.
    """
    for delay_s in REPEAT_DELAYS_S:
        try:
            return call()
        except Exception as error:
            if not is_transient(error):
                raise
        sleep(delay_s)
    return call()
