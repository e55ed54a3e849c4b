"""HDFS over WebHDFS: fsspec's file system, with the exclusive writes that the store port needs.

HDFS shows a file as soon as it is created, empty. So every file is written under a temporary name and then renamed
atomically. With the option NONE the name node refuses a name that is taken, which makes a create exclusive. With
OVERWRITE it replaces the file, and readers always find one.

Redirects are never followed automatically, because `data_proxy` may have to translate them. An error page is never
taken for data. Invariant: a read is as long as the name node says.
"""

import posixpath
import uuid
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast
from urllib.parse import quote

from fsspec.implementations.webhdfs import WebHDFS

from statelog.store.url import temporary_name

if TYPE_CHECKING:
    from fsspec.implementations.webhdfs import Response

_CONNECT_TIMEOUT_S, _READ_TIMEOUT_S = 10.0, 60.0
_COPY_BYTES = 1 << 20
_KINDS: Mapping[str, type[OSError]] = {
    "FileNotFoundException": FileNotFoundError,
    "FileAlreadyExistsException": FileExistsError,
    "AccessControlException": PermissionError,
    "SecurityException": PermissionError,
}
_STATUS_KINDS: Mapping[int, type[OSError]] = {401: PermissionError, 403: PermissionError, 404: FileNotFoundError}
# A name node that starts, is in standby, or has no data node available, refuses temporarily, with statuses that mean
# something else.
_MOMENTARY = frozenset({
    "RetriableException", "StandbyException", "SafeModeException", "ServerTooBusyException", "Failed to find datanode",
})  # fmt: skip


class _Refused(OSError):
    """An answer without a corresponding OSError; `status` is HTTP's."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class WebHdfs(WebHDFS):
    """A name node's WebHDFS service, for one process. Options are those of fsspec's `webhdfs`."""

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_kwargs: object) -> None:
        """Write a file atomically; with mode "create" raise FileExistsError if the name is taken."""
        with self._published(path, overwrite=mode != "create") as temporary:
            self._create(temporary, value)

    def put_file(self, lpath: str, rpath: str, **_kwargs: object) -> None:
        """Copy a local file to a path, replacing a file there."""
        with self._published(rpath, overwrite=True) as temporary, Path(lpath).open("rb") as source:
            self._create(temporary, source)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_kwargs: object) -> bytes:
        """Return the bytes from `start` (None: 0) to `end` (None: the end); fewer only if the file ends earlier."""
        first, last = start or 0, end
        if last is None:
            last = self._length(path)
        if first >= last:
            return b""
        data = self._opened(path, first, last - first, stream=False).content
        if len(data) < last - first:
            last = min(last, self._length(path))
        _require_length(path, len(data), last - first)
        return data

    def get_file(self, rpath: str, lpath: str, **_kwargs: object) -> None:
        """Copy a file to a local path."""
        wanted, copied = self._length(rpath), 0
        with Path(lpath).open("wb") as target:
            if wanted:
                for block in self._opened(rpath, 0, wanted, stream=True).iter_content(_COPY_BYTES):
                    target.write(block)
                    copied += len(block)
        _require_length(rpath, copied, wanted)

    def rm_file(self, path: str, **_kwargs: object) -> None:
        """Delete a file; a missing one is no error."""
        self._call("DELETE", "delete", path)

    def _call(
        self, op: str, method: str = "get", path: str | None = None, data: object = None, **parameters: object
    ) -> "Response":
        """Call the name node, and check its answer. `parameters` go into the URL, except for `redirect`."""
        parameters.pop("redirect", None)
        place = self._apply_proxy(self.url + quote(_absolute(path or ""), safe="/="))
        arguments = {name: value for name, value in parameters.items() if value is not None}
        return self._request(method, place, params={**arguments, **self.pars, "op": op}, data=data)

    def _request(self, method: str, url: str, *, stream: bool = False, **arguments: object) -> "Response":
        timeout = (_CONNECT_TIMEOUT_S, _READ_TIMEOUT_S)
        answer = self.session.request(
            method.upper(), url, allow_redirects=False, timeout=timeout, stream=stream, **arguments
        )
        if answer.status_code >= 400:
            raise _error(answer)
        return answer

    def _length(self, path: str) -> int:
        length = self.info(path)["length"]
        assert isinstance(length, int), "a file's status has a length"
        return length

    def _opened(self, path: str, offset: int, length: int, *, stream: bool) -> "Response":
        """Return a data node's answer to a read. HttpFS and other gateways answer directly, without a redirect."""
        answer = self._call("OPEN", path=path, offset=offset, length=length)
        place = answer.headers.get("Location")
        return answer if place is None else self._request("get", self._apply_proxy(place), stream=stream)

    def _create(self, path: str, data: "bytes | IO[bytes]") -> None:
        answer = self._call("CREATE", "put", path, overwrite="false")
        headers = {"content-type": "application/octet-stream"}
        self._request("put", self._apply_proxy(answer.headers["Location"]), data=data, headers=headers)

    @contextmanager
    def _published(self, path: str, *, overwrite: bool) -> Generator[str]:
        """Yield a temporary name to write to, then rename the file to `path`. After an error no file is left."""
        temporary = posixpath.join(posixpath.dirname(path), temporary_name(uuid.uuid4().hex))
        try:
            yield temporary
            self._rename(temporary, path, overwrite=overwrite)
        except BaseException:
            with suppress(OSError):
                self.rm_file(temporary)
            raise

    def _rename(self, source: str, target: str, *, overwrite: bool) -> None:
        options = "OVERWRITE" if overwrite else "NONE"
        answer = self._call("RENAME", "put", source, destination=_absolute(target), renameoptions=options)
        # A gateway that does not know the options answers with the old call's boolean.
        if answer.content and cast("Mapping[str, object]", answer.json()).get("boolean") is False:
            raise FileExistsError(target) if not overwrite else _Refused(f"not renamed to {target}", 501)


def _absolute(path: str) -> str:
    return "/" + path.strip("/")


def _require_length(path: str, found: int, wanted: int) -> None:
    if found != wanted:
        raise _Refused(f"{posixpath.basename(path)} came with {found} bytes instead of {wanted}", 502)


def _error(answer: "Response") -> OSError:
    try:
        remote = cast("Mapping[str, Mapping[str, str]]", answer.json())["RemoteException"]
        name, text = remote["exception"], remote["message"]
    except (ValueError, KeyError, TypeError):
        name, text = "", answer.reason
    text = text.partition("\n")[0]  # The rest is the name node's stack.
    status = answer.status_code
    shown = f"{name or status}: {text}"
    if name in _MOMENTARY or any(word in text for word in _MOMENTARY):
        return _Refused(shown, 503)
    kind = _KINDS.get(name) or _STATUS_KINDS.get(status)
    return kind(shown) if kind else _Refused(shown, status)
