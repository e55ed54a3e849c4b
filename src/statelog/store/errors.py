"""Translates failures of the operating system, of fsspec and of the cloud clients below it into statelog's errors.

It reads codes and attributes only, so that no client library has to be imported.

Invariant: only an answer that says "this file is not there" becomes NotFound. A missing bucket or a refused login is
StoreRefused, a silence is StoreUnavailable, because a decision taken on it as on an absence could delete live files.
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
_DENIED_HINT = "Check the credentials in the storage options, and what they may do on this path"
_LOCAL_HINT = (
    "Check which user this is, and the rights of the log's directory: a log that several users share is made with the "
    "storage option directory_mode=2770, or given to their group with chmod -R g+rwXs"
)
_NO_PLACE_HINT = "Create the bucket or container, or correct the root URL; statelog never creates one"
OURS = (StatelogError, TypeError, AttributeError, AssertionError, MemoryError)
"""Errors of ours already, and of the program."""

T = TypeVar("T")


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
            parts = cast("Mapping[str, Mapping[str, object]]", response)
            status = parts.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            return _Answer(str(parts.get("Error", {}).get("Code", "")), status if isinstance(status, int) else 0)
        code = getattr(seen, "error_code", "") or ""
        code = getattr(code, "value", code)  # Azure's are members of an enumeration.
        for name in ("status_code", "status", "code"):
            status = getattr(seen, name, None)
            if isinstance(status, int):
                return _Answer(str(code), status)
        seen = seen.__cause__
    return _Answer("", 0)


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


def is_transient(error: BaseException) -> bool:
    """Whether the same call may well succeed at once: the store says so, or a connection broke. Not a timeout, which
    took its time already, nor a connection that broke below a client that repeats by itself.
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
    """The error of ours for a call that tried to `action` the file `path` of `url`. Only one that is `reading` can find
    a file missing; a write that finds nothing has lost its place.
    """
    if reading and is_missing(error):
        return NotFound(f"There is no {path}", store=url, path=path)
    answer = _answer(error)
    number = getattr(error, "errno", None)
    if isinstance(error, FileNotFoundError) and number is None and not answer.code and url.startswith("gs:"):
        # gcsfs does not say so: nothing else is missing to a write, but for a local file, which has a number.
        answer = _Answer("NoSuchBucket", answer.status)
    # Azure's texts go on with the answer's headers and its XML.
    reason = mask_url(f"{type(error).__name__}: {(str(error).strip() or '-').splitlines()[0]}")
    code = answer.code or (errno.errorcode.get(number, "") if isinstance(number, int) else "")
    kind, hint = _kind_and_hint(error, answer, url)
    facts = {"code": code} if code else {}
    return kind(f"Cannot {action} {path}: {reason}", hint=hint, store=url, path=path, **facts)


REPEAT_DELAYS_S = (0.1, 0.3, 1.0, 3.0)
"""The pause before each repeat. A store that is away for longer is the caller's to wait for."""


def repeated(call: Callable[[], T], sleep: Callable[[float], None] = time.sleep) -> T:
    """What `call` returns or raises in the end, made again a few times where it failed for a moment by its own word.

    A store of many machines answers 500 or 503 now and then, and a merge of a large state, which makes tens of
    thousands of requests, would hardly ever end if each of these ended it. All calls of the port may be made twice: a
    create that then finds its own file says AlreadyExists, which its caller compares.
    """
    for delay_s in REPEAT_DELAYS_S:
        try:
            return call()
        except Exception as error:
            if not is_transient(error):
                raise
        sleep(delay_s)
    return call()
