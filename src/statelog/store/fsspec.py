"""The store port on any fsspec file system, and the factory that picks an implementation for a root URL.

Owns the client's settings, the exclusive create by a conditional write, and the retries after transient errors.
Never calls `exists()`, never renames, never streams into a published name.

Invariants:
- The file system is made in the process that uses it, once per process: a client does not survive a fork.
- A listing comes from the store and is complete, or is an error.
- No secret is in `repr` or in an error.
"""

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from threading import RLock
from typing import Any, BinaryIO, NamedTuple, TypeVar, cast
from urllib.parse import urlsplit
from uuid import uuid4

import fsspec
from fsspec.spec import AbstractFileSystem

from statelog.errors import AlreadyExists, ConfigError, NotFound, StoreRefused, StoreUnavailable
from statelog.secrets import mask_text, read_secrets
from statelog.store.errors import is_conflict, is_missing, is_taken, repeated
from statelog.store.local import LocalStore
from statelog.store.port import FileInfo, RangeReader, Store
from statelog.store.url import (
    RootUrl,
    check_options,
    check_path,
    log_url,
    mask_options,
    parse_directory_mode,
    parse_root,
    secret_of,
    temporary_name,
)

Connect = Callable[[], tuple[AbstractFileSystem, str]]
"""Makes a new file system. Returns it, and the path of the log's directory on it."""

T = TypeVar("T")

_MODIFIED_KEYS = ("LastModified", "last_modified", "mtime", "updated", "modified", "modificationTime", "created")
_CREATE_TRIES = 4
# gcsfs logs the traceback of each failure that it also raises; without a handler that goes to stderr.
logging.getLogger("gcsfs").addHandler(logging.NullHandler())
_PACKAGES = {"s3": "statelog[s3]", "gs": "statelog[gcs]", "abfs": "statelog[azure]", "webhdfs": "statelog[hdfs]"}
# fsspec's memory file system checks and writes in two steps and is shared by the whole process.
_MEMORY_LOCK = RLock()


class _Client(NamedTuple):
    """A connected file system and the process that it belongs to."""

    pid: int
    fs: AbstractFileSystem
    base: str


def open_store(root_url: str, log: str, storage_options: Mapping[str, object] | None = None) -> Store:
    """Return the store of one log below a root URL, without I/O. `check()` proves that it is safe and reachable.

    Raises ConfigError for a URL or options that are not allowed, or if the package for the protocol is missing.
    """
    root = parse_root(_from_home(root_url), cwd=Path.cwd())
    options = dict(storage_options or {})
    check_options(root, options)
    if root.local is not None:
        return LocalStore(root.local, log, directory_mode=parse_directory_mode(options))
    try:
        fsspec.get_filesystem_class(root.protocol)
    except (ImportError, ValueError) as error:
        package = _PACKAGES.get(root.protocol, "fsspec")
        raise ConfigError(f"No installed package opens {root.protocol}:// URLs", hint=f"Install {package}") from error
    return FsspecStore(root, log, options)


def _from_home(root_url: str) -> str:
    """Expand a root that begins at a home directory, as no shell does it in a file or a variable."""
    if not root_url.startswith("~"):
        return root_url
    try:
        return str(Path(root_url).expanduser())
    except RuntimeError as error:
        hint = "Write the whole path"
        raise ConfigError(f"Root {root_url!r} names a home directory that is not known", hint=hint) from error


def client_options(protocol: str, given: Mapping[str, object]) -> dict[str, object]:
    """Return the options of the file system: the caller's, our timeouts as defaults, and those that are fixed."""
    options: dict[str, object] = {}
    if protocol == "s3":
        # s3fs retries timeouts and broken connections, and we retry 500, 502, 503 and 504: botocore's own retries
        # would multiply with both.
        ours = {"connect_timeout": 10, "read_timeout": 30, "retries": {"total_max_attempts": 1, "mode": "standard"}}
        theirs = given.get("config_kwargs", {})
        options["config_kwargs"] = {**ours, **theirs} if isinstance(theirs, Mapping) else theirs
    elif protocol == "gs":
        options["requests_timeout"] = 60
    elif protocol == "abfs":
        options |= {"connection_timeout": 10, "read_timeout": 30}
    rest = {name: value for name, value in given.items() if name != "config_kwargs" or protocol != "s3"}
    return {**options, **rest, "use_listings_cache": False, "skip_instance_cache": True}


class FsspecStore(Store):
    """One log's directory on an fsspec file system. Usable from threads; reconnects in a forked process."""

    def __init__(
        self,
        root: RootUrl,
        log: str,
        storage_options: Mapping[str, object] | None = None,
        *,
        connect: Connect | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Make a store. `connect` replaces the file system that the URL names; `sleep` pauses before a retry."""
        self._root = root
        self._log = log
        self._url = log_url(root, log)
        self._options = dict(storage_options or {})
        self._connect = connect
        self._sleep = sleep
        self._in_memory = root.protocol == "memory"
        self._lock: AbstractContextManager[object] = _MEMORY_LOCK if self._in_memory else nullcontext()
        self._made: _Client | None = None

    def __repr__(self) -> str:
        return f"FsspecStore({self._url!r}, storage_options={mask_options(self._options)!r})"

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        # The receiving process connects again: a client can be neither pickled nor shared.
        return FsspecStore, (self._root, self._log, self._options)

    @property
    def url(self) -> str:
        """The directory's URL; it never holds credentials."""
        return self._url

    def put(self, path: str, data: bytes) -> None:
        """Replace a file with a single write."""
        full = self._full(check_path(path))
        self._ask("write", path, lambda: self._fs.pipe_file(full, data))

    def upload(self, local: Path, path: str) -> None:
        """Copy a local file here. It appears whole or not at all."""
        full = self._full(check_path(path))
        if self._in_memory:
            self._ask("upload", path, lambda: self._fs.pipe_file(full, local.read_bytes()))
        else:
            self._ask("upload", path, lambda: self._fs.put_file(str(local), full))

    def download(self, path: str, local: Path) -> None:
        """Copy a file to `local`, which appears whole or not at all."""
        source = self._full(check_path(path))
        temporary = local.with_name(temporary_name(uuid4().hex))
        with self._guard("make a local copy of", path, reading=False):
            temporary.touch(0o600, exist_ok=False)
        try:
            try:
                self._ask("download", path, lambda: self._fs.get_file(source, str(temporary)), reading=True)
            except NotFound:
                with self._guard("make a local copy of", path, reading=False):
                    temporary.parent.stat()  # Clients report a removed target directory as a missing file.
                raise
            with self._guard("make a local copy of", path, reading=False):
                temporary.replace(local)
        finally:
            temporary.unlink(missing_ok=True)

    def open(self, path: str) -> AbstractContextManager[BinaryIO]:
        """Return an unbuffered reader of ranges: each read is one request, and opening is none."""
        full = self._full(check_path(path))

        def fetch(start: int, end: int | None) -> bytes:
            try:
                return self._ask("read", path, lambda: self._range(full, start, end), reading=True)
            except (StoreUnavailable, StoreRefused):
                if start < self._size_bytes(path):  # Stores refuse a range that begins past the end.
                    raise
                return b""

        return cast("AbstractContextManager[BinaryIO]", RangeReader(fetch, lambda: self._size_bytes(path)))

    def siblings(self) -> Sequence[str]:
        """Return the names of the directories in the root, with one request, or one per page."""
        root = self._connected().base.rpartition("/")[0]
        with self._guard("list", "..", reading=False):
            try:
                entries = self._entries(root)
            except FileNotFoundError as error:
                if not is_missing(error):
                    raise
                return []
        names = [str(entry["name"]).rstrip("/") for entry in entries if entry["type"] == "directory"]
        return [name.rpartition("/")[2] for name in names if name != root]

    def now_s(self) -> float:
        """Return the time that the store stamps on a small object, on some stores in whole seconds. Three requests."""
        path = temporary_name(f"clock-{uuid4().hex}")
        full = self._full(path)
        self._ask("ask the time of", path, lambda: self._fs.pipe_file(full, b"t"))
        try:
            return _modified_s(self._ask("ask the time of", path, lambda: self._fs.info(full)))
        finally:
            self._delete(path)

    # ---- internals, whose paths may be temporary

    @property
    def _fs(self) -> AbstractFileSystem:
        return self._connected().fs

    def _connected(self) -> _Client:
        """Return this process's client. At first, two threads may make one each; either works."""
        made = self._made
        if made is None or made.pid != os.getpid():
            with self._guard("connect to", "the store", reading=False):
                fs, base = self._connect() if self._connect is not None else self._open_url()
            made = self._made = _Client(os.getpid(), fs, base.rstrip("/"))
        return made

    def _open_url(self) -> tuple[AbstractFileSystem, str]:
        options = client_options(self._root.protocol, read_secrets(self._options, secret_of))
        try:
            if self._root.protocol == "webhdfs":
                from statelog.store.webhdfs import WebHdfs  # It needs requests, from an extra.

                place = urlsplit(self._url)
                user = {"user": place.username} if place.username else {}
                return WebHdfs(host=place.hostname, port=place.port, **{**user, **options}), place.path or "/"
            if self._root.protocol == "gs":
                # By default gcsfs asks a second service, by gRPC, for the kind of each bucket. That takes minutes if
                # the service is unreachable, and does not survive a fork.
                from gcsfs.core import GCSFileSystem

                return GCSFileSystem(**options), self._url.removeprefix("gs://")
            fs, base = fsspec.url_to_fs(self._url, **options)
            if self._root.protocol == "s3":
                # s3fs checks most of its options only here; else in the first request.
                cast("Any", fs).connect()
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            text = repr(error) if isinstance(error, KeyError) else str(error)
            hint = "Check their names, and that each has the type that the file system's package takes"
            raise ConfigError(
                f"The storage options do not fit: {mask_text(text)}", hint=hint, store=self._url
            ) from None
        return fs, base

    def _range(self, full: str, start: int, end: int | None) -> bytes:
        with self._lock:  # All readers of a file in memory share one cursor.
            return bytes(self._fs.cat_file(full, start=start, end=end))

    def _size_bytes(self, path: str) -> int:
        return int(self._ask("read", path, lambda: self._fs.size(self._full(path)), reading=True))

    def _full(self, path: str) -> str:
        return f"{self._connected().base}/{path}"

    def _ask(self, action: str, path: str, call: Callable[[], T], *, reading: bool = False) -> T:
        """Return the result of one call of the file system, with retries. Translate its errors."""
        with self._guard(action, path, reading=reading):
            return self._repeated(call)

    def _repeated(self, call: Callable[[], T]) -> T:
        return repeated(call, self._sleep)

    def _create(self, path: str, data: bytes) -> None:
        """Write conditionally. After a collision with another create, read the file, and try again if there is none."""
        with self._guard("create", path, reading=False), self._lock:
            for tries_left in reversed(range(_CREATE_TRIES)):
                try:
                    self._repeated(lambda: self._fs.pipe_file(self._full(path), data, mode="create"))
                except Exception as error:
                    if is_taken(error) or (is_conflict(error) and self._is_there(path)):
                        raise AlreadyExists(f"{path} is there already", store=self._url, path=path) from error
                    if not is_conflict(error) or not tries_left:
                        raise
                else:
                    return

    def _is_there(self, path: str) -> bool:
        try:
            self._read(path)
        except NotFound:
            return False
        return True

    def _read(self, path: str) -> bytes:
        # By default s3fs first asks for the size of a whole file, to read a large one in concurrent parts.
        alone = {"max_concurrency": 1} if self._root.protocol == "s3" else {}
        return self._ask("read", path, lambda: self._fs.cat_file(self._full(path), **alone), reading=True)

    def _delete(self, path: str) -> None:
        def remove() -> None:
            try:
                self._fs.rm_file(self._full(path))
            except FileNotFoundError as error:
                if not is_missing(error):
                    raise

        self._ask("delete", path, remove)

    def _files(self, prefix: str) -> Sequence[FileInfo]:
        """List files with one request per page on S3, elsewhere with one per directory and page."""
        base = self._connected().base
        with self._guard("list", prefix, reading=False):
            if self._root.protocol == "s3":
                found = self._below(base, prefix)
            else:
                found = _walk(self._entries, f"{base}/{prefix.rpartition('/')[0]}".rstrip("/"))
            infos = [self._info(base, entry) for entry in found]
        return [info for info in infos if info.path.startswith(prefix)]

    def _below(self, base: str, prefix: str) -> Sequence[dict[str, object]]:
        """Return all files that S3, which has no directories, has below a prefix; complete, or an error."""
        root, _, name = base.rpartition("/")
        found = self._repeated(lambda: self._fs.find(root, prefix=f"{name}/{prefix}", detail=True))
        return [entry for path, entry in found.items() if entry["type"] != "directory" and not path.endswith("/")]

    def _entries(self, directory: str) -> Sequence[dict[str, object]]:
        return self._repeated(lambda: self._fs.ls(directory, detail=True))

    def _info(self, base: str, entry: Mapping[str, object]) -> FileInfo:
        name, size = str(entry["name"]), entry["size"]
        if not name.startswith(f"{base}/") or not isinstance(size, int):
            raise StoreUnavailable("The store lists a file that is not of this log", store=self._url, path=name)
        return FileInfo(name[len(base) + 1 :], size, _modified_s(entry))


def _walk(ls: Callable[[str], Sequence[dict[str, object]]], directory: str) -> list[dict[str, object]]:
    """Return all files below a directory. fsspec's own `find` silently omits directories that it cannot list."""
    files: list[dict[str, object]] = []
    pending = [directory]
    while pending:
        current = pending.pop()
        try:
            entries = ls(current)
        except FileNotFoundError as error:
            if not is_missing(error):
                raise
            continue
        for entry in entries:
            # An object store may list a marker object of the directory itself.
            name = str(entry["name"]).rstrip("/")
            if entry["type"] != "directory":
                files.append(entry)
            elif name != current:
                pending.append(name)
    return files


def _modified_s(entry: Mapping[str, object]) -> float:
    """Return the time of the last write from a listing's entry, whatever the file system calls it."""
    if "modificationTime" in entry:  # HDFS counts milliseconds.
        entry = {**entry, "modificationTime": float(str(entry["modificationTime"])) / 1000}
    value = next((entry[key] for key in _MODIFIED_KEYS if entry.get(key) is not None), None)
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, int | float):
        return float(value)
    raise StoreUnavailable("The store lists files without the time of their last write", path=str(entry.get("name")))
