"""The fsspec store: client settings, conflicts, listings, forks, pickles and errors."""

import errno
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
import traceback
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from statelog.errors import (
    AlreadyExists,
    ConfigError,
    NotFound,
    StorageFull,
    StoreRefused,
    StoreUnavailable,
    UnsafeStore,
)
from statelog.store.errors import translate
from statelog.store.fsspec import FsspecStore, client_options, open_store
from statelog.store.local import LocalStore
from statelog.store.url import parse_root


class ClientError(Exception):
    """An error as the S3 client raises it."""

    def __init__(self, code: str, status: int) -> None:
        super().__init__(code)
        self.response: Mapping[str, object] = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}


def _caused(error: Exception, code: str, status: int) -> Exception:
    """Return an exception as s3fs raises it: translated, with the client's as its cause."""
    error.__cause__ = ClientError(code, status)
    return error


class CarelessFileSystem(MemoryFileSystem):
    """A store that ignores the condition of a write, as some S3 gateways do."""

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: object) -> object:
        """Write in any case."""
        return super().pipe_file(path, value, mode="overwrite", **kwargs)


class FailingFileSystem(MemoryFileSystem):
    """A store that raises the test's errors on writes, reads or listings until none is left."""

    errors: list[Exception]
    late: Callable[[], object] | None = None

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: object) -> object:
        """Write, or fail."""
        if self.errors:
            if self.late is not None:
                self.late()
            raise self.errors.pop(0)
        return super().pipe_file(path, value, mode=mode, **kwargs)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: object) -> bytes:
        """Read, or fail if nothing was written before."""
        if self.errors and self.late is None:
            raise self.errors.pop(0)
        return super().cat_file(path, start, end, **kwargs)

    def ls(self, path: str, detail: bool = True, **kwargs: object) -> list[dict[str, object]]:
        """List, or fail."""
        if self.errors:
            raise self.errors.pop(0)
        return super().ls(path, detail, **kwargs)


def _store(*errors: Exception) -> tuple[FsspecStore, FailingFileSystem]:
    fs, base = FailingFileSystem(skip_instance_cache=True), f"/{uuid.uuid4().hex}"
    fs.errors = list(errors)
    return FsspecStore(parse_root("memory://x", cwd=Path("/")), "orders", connect=lambda: (fs, base)), fs


def _conflict() -> Exception:
    return _caused(OSError(errno.EIO, "conflict"), "ConditionalRequestConflict", 409)


def test_local_urls_get_the_local_store(tmp_path: Path) -> None:
    """Local URLs get the local store, since fsspec writes local files without fsync."""
    assert isinstance(open_store(str(tmp_path), "orders"), LocalStore)
    assert isinstance(open_store(f"file://{tmp_path}", "orders"), LocalStore)


def test_a_protocol_without_its_package_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing package is a configuration error with the name to install."""

    def missing(_protocol: str) -> type[MemoryFileSystem]:
        raise ImportError("no such package")

    monkeypatch.setattr("fsspec.get_filesystem_class", missing)
    with pytest.raises(ConfigError, match=r"statelog\[s3\]"):
        open_store("s3://bucket", "orders")


def test_the_client_never_caches_and_always_times_out() -> None:
    """Caches are always off. Timeouts are ours unless the caller sets them, and its other settings are retained."""
    options = client_options("s3", {"key": "k", "config_kwargs": {"read_timeout": 7, "region_name": "eu"}})
    assert options["use_listings_cache"] is False
    assert options["skip_instance_cache"] is True
    assert options["key"] == "k"
    assert options["config_kwargs"] == {
        "connect_timeout": 10,
        "read_timeout": 7,
        "region_name": "eu",
        "retries": {"total_max_attempts": 1, "mode": "standard"},
    }
    assert client_options("gs", {})["requests_timeout"] == 60
    assert client_options("abfs", {"read_timeout": 1})["read_timeout"] == 1


def test_a_conflict_that_settles_is_tried_again() -> None:
    """A create that met another one (409) is repeated, and wins if the slot is free."""
    store, fs = _store(_conflict())
    fs.late = lambda: None
    store.put_if_absent("a", b"x")
    assert store.read("a") == b"x"


def test_a_conflict_over_a_taken_slot_is_already_exists() -> None:
    """A conflict over a slot that is taken by then means that the other create won."""
    fs, base = FailingFileSystem(skip_instance_cache=True), f"/{uuid.uuid4().hex}"
    fs.errors = [_conflict()]
    fs.late = lambda: MemoryFileSystem().pipe_file(f"{base}/a", b"other")
    store = FsspecStore(parse_root("memory://x", cwd=Path("/")), "orders", connect=lambda: (fs, base))
    with pytest.raises(AlreadyExists):
        store.put_if_absent("a", b"x")
    assert store.read("a") == b"other"


def test_a_conflict_without_end_is_unavailable() -> None:
    """Repeated conflicts are unavailable after a bounded number of tries."""
    store, fs = _store(*(_conflict() for _ in range(9)))
    fs.late = lambda: None
    with pytest.raises(StoreUnavailable):
        store.put_if_absent("a", b"x")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (FileExistsError("a"), AlreadyExists),
        (_caused(OSError(errno.EINVAL, "precondition"), "PreconditionFailed", 412), AlreadyExists),
        (_caused(FileNotFoundError("bucket"), "NoSuchBucket", 404), StoreRefused),
        (FileNotFoundError("a"), StoreUnavailable),
        (PermissionError("no"), StoreRefused),
        (OSError(errno.ENOSPC, "full"), StorageFull),
        (OSError(errno.EDQUOT, "quota"), StorageFull),
        (OSError(errno.EIO, "DSQuotaExceededException: over"), StorageFull),
        (_caused(OSError(errno.EIO, "full"), "XMinioStorageFull", 507), StorageFull),
        (TimeoutError("slow"), StoreUnavailable),
        (RuntimeError("client library"), StoreUnavailable),
    ],
)
def test_errors_of_a_write(error: Exception, expected: type[Exception]) -> None:
    """Each failure of a create becomes the one error that says what to do."""
    store, _ = _store(error)
    with pytest.raises(expected) as caught:
        store.put_if_absent("a", b"x")
    assert type(caught.value) is expected
    assert caught.value.__cause__ is error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (FileNotFoundError("a"), NotFound),
        (_caused(FileNotFoundError("a"), "NoSuchKey", 404), NotFound),
        (_caused(FileNotFoundError("bucket"), "NoSuchBucket", 404), StoreRefused),
        (PermissionError("no"), StoreRefused),
        (OSError(errno.EIO, "broken"), StoreUnavailable),
    ],
)
def test_errors_of_a_read(error: Exception, expected: type[Exception]) -> None:
    """Only a missing file is NotFound."""
    store, _ = _store(error)
    with pytest.raises(expected):
        store.read("a")


def test_errors_of_our_own_making_are_not_the_stores() -> None:
    """A programming error is raised as it is, and does not look like an outage."""
    store, _ = _store(TypeError("a bug"))
    with pytest.raises(TypeError):
        store.read("a")


def test_a_listing_that_fails_half_way_is_an_error() -> None:
    """A directory that cannot be listed fails the whole listing, and is never left out."""
    store, fs = _store()
    store.put("a", b"x")
    store.put("runs/a", b"x")
    fs.errors = [PermissionError("no")]
    with pytest.raises(StoreRefused) as caught:
        store.list()
    assert "credentials" in caught.value.hint


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"secrett": "canary"}, "secrett"),
        ({"client_kwargs": {"regionname": "x"}}, "regionname"),
        ({"config_kwargs": {"retry": 1}}, "retry"),
        ({"endpoint_url": "me:canary@nowhere"}, "endpoint"),
    ],
    ids=["misspelt", "misspelt in a table", "misspelt in the other", "no url"],
)
def test_options_that_the_client_does_not_know_are_a_setting_that_is_wrong(
    options: dict[str, object], named: str
) -> None:
    """An option that the client does not know is named at the first call, before any request, as a wrong setting."""
    store = open_store("s3://bucket", "orders", {"key": "k", "secret": "canary", **options})
    with pytest.raises(ConfigError, match=named) as caught:
        store.read("a")
    assert "canary" not in "".join(traceback.format_exception(caught.value))


def test_secrets_stay_out_of_repr_errors_and_tracebacks_text() -> None:
    """Neither the store's repr nor an error's text shows a secret of the options or of a URL."""
    store = open_store("memory://x", "orders", {"secret": "canary"})
    failing, _ = _store(OSError(errno.EIO, "GET http://user:canary@localhost/x failed"))
    with pytest.raises(StoreUnavailable) as caught:
        failing.read("a")
    shown = str(caught.value) + repr(store) + repr(dict(caught.value.facts))
    assert "canary" not in shown
    assert "StoreUnavailable" in "".join(traceback.format_exception_only(caught.value))


def test_a_store_travels_by_pickle_without_its_client() -> None:
    """The receiver of a pickled store connects by itself, to the same root."""
    store = open_store("memory://pickled", uuid.uuid4().hex)
    store.put_if_absent("a", b"x")
    travelled: FsspecStore = pickle.loads(pickle.dumps(store))
    assert travelled.read("a") == b"x"
    assert travelled.url == store.url


@pytest.mark.parametrize("is_there", [False, True])
def test_a_place_to_copy_to_that_goes_is_no_missing_file(
    is_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing local target of a download is no missing run, although clients report both alike.

    That would mean a damaged snapshot.
    """
    (store, fs), place = _store(), tmp_path / "cache"
    place.mkdir()

    def get_file(_: str, local: str, **__: object) -> None:
        if not is_there:
            shutil.rmtree(place)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), local)

    monkeypatch.setattr(fs, "get_file", get_file)
    with pytest.raises(NotFound if is_there else StoreUnavailable):
        store.download("runs/a", place / "copy")


def test_a_forked_process_makes_its_own_client() -> None:
    """The file system is made once per process, reused within one, and made again after a fork."""
    made = multiprocessing.get_context("fork").Value("i", 0)

    def connect() -> tuple[MemoryFileSystem, str]:
        with made.get_lock():
            made.value += 1
        return MemoryFileSystem(), "/forked"

    store = FsspecStore(parse_root("memory://x", cwd=Path("/")), "orders", connect=connect)
    store.put("a", b"x")
    store.read("a")
    assert made.value == 1
    child = multiprocessing.get_context("fork").Process(target=store.read, args=("a",))
    child.start()
    child.join(120)
    assert child.exitcode == 0
    assert made.value == 2


def test_a_probe_that_cannot_be_made_tells_the_cause() -> None:
    """A failed probe raises its own cause, even if its cleanup fails for the same reason."""
    store, fs = _store(PermissionError("no writing here"))
    fs.late = lambda: None

    def refuse(path: str) -> None:
        raise PermissionError("no deleting here")

    fs.rm_file = refuse  # type: ignore[method-assign] # a store that refuses everything
    with pytest.raises(StoreRefused, match=r"Cannot create .*no writing here"):
        store.check()


def test_the_proof_refuses_a_store_that_ignores_the_condition() -> None:
    """check() raises UnsafeStore for a store whose second create succeeds, and removes its probe."""
    base = f"/{uuid.uuid4().hex}"
    store = FsspecStore(
        parse_root("memory://careless", cwd=Path("/")),
        "orders",
        connect=lambda: (CarelessFileSystem(), f"{base}/orders"),
    )
    with pytest.raises(UnsafeStore):
        store.check()
    assert not [path for path in CarelessFileSystem.store if path.startswith(base)]


def test_a_failure_without_a_code_shows_none() -> None:
    """An error without a code has no such fact."""
    said = translate(OSError("away"), action="read", url="gs://b", path="x", reading=True)
    assert (said.facts, "None" in str(said)) == ({"store": "gs://b", "path": "x"}, False)
    numbered = translate(OSError(errno.EIO, "away"), action="read", url="file:///b", path="x", reading=True)
    assert numbered.facts["code"] == "EIO"


def test_a_client_that_logs_what_it_raises_is_not_shown() -> None:
    """Errors that the client also logs are not printed without a handler. A program's handler gets those of gcsfs."""
    code = "import statelog.store.fsspec, logging; logging.getLogger('gcsfs').error('traceback')"
    listening = "import logging; logging.basicConfig(); "
    shown = [
        subprocess.run([sys.executable, "-c", one], capture_output=True, check=True, text=True).stderr
        for one in (code, listening + code)
    ]
    assert [text.count("traceback") for text in shown] == [0, 1]
