"""A small S3 service inside the test's process, which fails requests on demand: before or after their effect.

It answers the requests that s3fs makes of a bucket (whole objects, ranges, conditional puts, listings by delimiter). So
the client under test is the real one with all its own repeats. Other tests check the behaviour of a real S3 store.
"""

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from hashlib import md5
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.support.services.http import Answering, serving
from tests.support.services.s3 import read_models_once

__all__ = ["BROKEN", "FaultyS3", "Told", "faulty_s3"]

BROKEN = 0
"""The status of a request whose connection breaks without an answer."""
_CODES = {
    500: "InternalError",
    502: "BadGateway",
    503: "ServiceUnavailable",
    504: "GatewayTimeout",
    403: "AccessDenied",
}


class Told(NamedTuple):
    """A fault: the next request of a method, for a key with `part`, ends with `status`; `after` it took effect."""

    method: str
    status: int
    after: bool = False
    part: str = ""


@dataclass(slots=True)
class FaultyS3:
    """A running service. `faults` are played in order, each once; `requests` are the methods that were called."""

    endpoint: str
    objects: dict[str, tuple[bytes, float]] = field(default_factory=dict[str, tuple[bytes, float]])
    faults: list[Told] = field(default_factory=list[Told])
    requests: list[str] = field(default_factory=list[str])
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def options(self) -> dict[str, object]:
        """Storage options for s3fs."""
        return {"endpoint_url": self.endpoint, "key": "key", "secret": "secret", "client_kwargs": {"region_name": "x"}}

    def take(self, method: str, key: str) -> Told | None:
        """Return the fault that this request meets."""
        with self.lock:
            self.requests.append(method)
            for fault in self.faults:
                if fault.method == method and fault.part in key:
                    self.faults.remove(fault)
                    return fault
        return None


@contextmanager
def faulty_s3() -> Generator[FaultyS3]:
    """Yield a service on a free port of this machine, with any bucket that is asked for."""

    class Handler(_Handler):
        """The handler of this service."""

    read_models_once()
    with serving(Handler) as endpoint:
        Handler.service = FaultyS3(endpoint)
        yield Handler.service


class _Handler(Answering):
    protocol_version = "HTTP/1.1"
    service: FaultyS3

    def serve(self) -> None:
        """Do the request, unless a fault is due."""
        place = urlsplit(self.path)
        key = unquote(place.path).lstrip("/")
        body = self._object()
        method = "LIST" if "list-type" in place.query else self.command
        fault = self.service.take(method, key)
        if fault is None:
            self.answer(*self._done(method, key, place.query, body))
            return
        if fault.after:
            self._done(method, key, place.query, body)
        if fault.status == BROKEN:
            self.close_connection = True
            return
        self.answer(fault.status, _error(_CODES[fault.status]))

    def _object(self) -> bytes:
        data = self.body()
        if "aws-chunked" not in self.headers.get("Content-Encoding", ""):
            return data
        whole, rest = b"", data
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            length = int(size.split(b";")[0], 16)
            if not length:
                break
            whole, rest = whole + rest[:length], rest[length + 2 :]
        return whole

    def _done(self, method: str, key: str, query: str, body: bytes) -> tuple[int, bytes, dict[str, str]]:
        """Do the request; return status, body, headers."""
        service = self.service
        with service.lock:
            if method == "LIST":
                return 200, _listing(service.objects, key.rstrip("/"), parse_qs(query)), {}
            found = service.objects.get(key)
            if method == "PUT":
                if self.headers.get("If-None-Match") == "*" and found is not None:
                    return 412, _error("PreconditionFailed"), {}
                service.objects[key] = (body, time.time())
                return 200, b"", {"ETag": _etag(body)}
            if method == "DELETE":
                service.objects.pop(key, None)
                return 204, b"", {}
            return (404, _error("NoSuchKey"), {}) if found is None else self._content(*found)

    def _content(self, data: bytes, modified_s: float) -> tuple[int, bytes, dict[str, str]]:
        headers = {"ETag": _etag(data), "Last-Modified": formatdate(modified_s, usegmt=True)}
        wanted = self.headers.get("Range", "")
        if not wanted:
            return 200, data, headers
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        start, end = int(first), min(int(last) + 1, len(data)) if last else len(data)
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
        return 206, data[start:end], headers


def _etag(data: bytes) -> str:
    return f'"{md5(data, usedforsecurity=False).hexdigest()}"'


def _error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>told to</Message></Error>".encode()


def _listing(objects: dict[str, tuple[bytes, float]], bucket: str, query: dict[str, list[str]]) -> bytes:
    prefix, delimiter = query.get("prefix", [""])[0], query.get("delimiter", [""])[0]
    rows, folders = "", set[str]()
    for key, (data, modified_s) in sorted(objects.items()):
        name = key.removeprefix(f"{bucket}/")
        if not key.startswith(f"{bucket}/{prefix}"):
            continue
        if delimiter and delimiter in name[len(prefix) :]:
            folders.add(prefix + name[len(prefix) :].split(delimiter)[0] + delimiter)
            continue
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(modified_s))
        facts = f"<LastModified>{stamp}</LastModified><Size>{len(data)}</Size>"
        rows += f"<Contents><Key>{escape(name)}</Key>{facts}</Contents>"
    rows += "".join(f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in sorted(folders))
    return f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>".encode()
