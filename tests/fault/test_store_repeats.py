"""Momentary answers of an S3 store: repeated below the port, by the real client on a service that fails."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from statelog.errors import AlreadyExists, StatelogError, StoreUnavailable
from statelog.schemas.descriptor import Descriptor, HashRule
from statelog.schemas.key_groups import KeyType
from statelog.store.errors import REPEAT_DELAYS_S
from statelog.store.files import ManifestChain
from statelog.store.fsspec import FsspecStore
from statelog.store.url import parse_root
from tests.support.samples.manifests import IDENTITY, first_manifest
from tests.support.services.s3_faulty import BROKEN, FaultyS3, Told, faulty_s3

TRIES = len(REPEAT_DELAYS_S) + 1


class _Rig(NamedTuple):
    """A service and a store on it, which does not really wait. `slept` are its requested pauses, in seconds."""

    service: FaultyS3
    store: FsspecStore
    slept: list[float]


@pytest.fixture(scope="module")
def _rig() -> Iterator[_Rig]:
    slept = list[float]()
    with faulty_s3() as service:
        root = parse_root("s3://bucket/logs", cwd=Path("/"))
        yield _Rig(service, FsspecStore(root, "orders", service.options, sleep=slept.append), slept)


@pytest.fixture
def rig(_rig: _Rig) -> _Rig:
    """Return the module's rig with only a run in the log's directory, and no fault."""
    _rig.service.faults.clear()
    for path in [info.path for info in _rig.store.list()]:
        _rig.store.delete(path)
    _rig.store.put("runs/a", b"0123456789" * 1000)
    for told in (_rig.service.requests, _rig.slept):
        told.clear()
    return _rig


@pytest.fixture
def service(rig: _Rig) -> FaultyS3:
    """Return the service."""
    return rig.service


@pytest.fixture
def store(rig: _Rig) -> FsspecStore:
    """Return the store."""
    return rig.store


@pytest.fixture
def slept(rig: _Rig) -> list[float]:
    """Return the requested pauses, in seconds."""
    return rig.slept


def _chain(store: FsspecStore) -> ManifestChain:
    descriptor = Descriptor(
        name="orders",
        identity=IDENTITY,
        partitions=2,
        key_groups=8,
        hash_rule=HashRule.CRC32,
        key_type=KeyType.BYTES,
        value_schema_id=0,
        nonce=bytes(16),
    )
    return ManifestChain(store, descriptor)


def _calls(store: FsspecStore, tmp_path: Path) -> dict[str, tuple[str, Callable[[], object]]]:
    local = tmp_path / "local"
    local.write_bytes(b"x" * 100)

    def read_a_range() -> bytes:
        with store.open("runs/a") as file:
            file.seek(5000)
            return file.read(10)

    return {
        "read": ("GET", lambda: store.read("runs/a")),
        "range": ("GET", read_a_range),
        "list": ("LIST", lambda: list(store.list("runs/"))),
        "put": ("PUT", lambda: store.put("leases/a", b"x")),
        "create": ("PUT", lambda: store.put_if_absent("manifests/1", b"x")),
        "upload": ("PUT", lambda: store.upload(local, "runs/b")),
        "download": ("GET", lambda: store.download("runs/a", tmp_path / "copy")),
        "delete": ("DELETE", lambda: store.delete("runs/a")),
        "now_s": ("PUT", store.now_s),
    }


@pytest.mark.parametrize(
    ("name", "status"),
    [
        *(("read", status) for status in (500, 502, 503, 504, BROKEN)),
        *((name, 503) for name in ("range", "list", "put", "create", "upload", "download", "delete", "now_s")),
        *((name, BROKEN) for name in ("range", "list", "put", "create", "upload")),
    ],
)
def test_a_moments_failure_is_not_heard_of(
    store: FsspecStore, service: FaultyS3, tmp_path: Path, name: str, status: int
) -> None:
    """Every call of the port survives one failed request, and one broken connection."""
    method, call = _calls(store, tmp_path)[name]
    service.faults.append(Told(method, status))
    call()
    assert service.faults == []


@pytest.mark.parametrize("name", ["read", "range", "put", "create"])
def test_a_failure_that_stays_is_unavailable(
    store: FsspecStore, service: FaultyS3, slept: list[float], tmp_path: Path, name: str
) -> None:
    """A lasting failure is StoreUnavailable with the store's words, after bounded and paced repeats."""
    method, call = _calls(store, tmp_path)[name]
    service.faults += [Told(method, 503)] * 100
    with pytest.raises(StoreUnavailable, match=r"503|ServiceUnavailable|told to"):
        call()
    assert slept == list(REPEAT_DELAYS_S)
    assert 100 - len(service.faults) == TRIES


def test_a_refusal_is_told_at_once(store: FsspecStore, service: FaultyS3, slept: list[float]) -> None:
    """Denied access is StoreRefused at once: no repeat, no pause."""
    service.faults += [Told("PUT", 403)]
    with pytest.raises(StatelogError):
        store.put("leases/a", b"x")
    assert service.requests == ["PUT"]
    assert slept == []


@pytest.mark.parametrize("status", [500, BROKEN])
def test_a_create_that_landed_before_its_failure(store: FsspecStore, service: FaultyS3, status: int) -> None:
    """The repeat of a create that landed before its failure is AlreadyExists, with our bytes to compare."""
    service.faults.append(Told("PUT", status, after=True))
    with pytest.raises(AlreadyExists):
        store.put_if_absent("manifests/1", b"ours")
    assert store.read("manifests/1") == b"ours"


@pytest.mark.parametrize("status", [500, BROKEN])
def test_a_manifest_that_landed_before_its_failure_is_ours(store: FsspecStore, service: FaultyS3, status: int) -> None:
    """A manifest's put that landed, though the store reported a failure and then "exists", wins by its nonce."""
    service.faults.append(Told("PUT", status, after=True, part="manifests/"))
    assert _chain(store).put(first_manifest())
    assert service.faults == []
    assert not _chain(store).put(replace(first_manifest(), nonce=b"another nonce .."))
