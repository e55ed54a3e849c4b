"""A log whose store is HDFS, Azure or Google: rounds, recovery, rights, and errors of wrong credentials."""

import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from azure.storage.blob import AccountSasPermissions, ResourceTypes, generate_account_sas

from statelog.errors import ConfigError, StatelogError, StoreRefused
from statelog.log import Log, LogOptions, Where
from statelog.materializer.outcome import CompletedRound
from statelog.materializer.round import run_round
from statelog.producer.writer import Writer
from statelog.recovery import recover
from statelog.store.fsspec import open_store
from statelog.testing.cluster import MemoryCluster
from statelog.testing.kafka import MemoryKafka
from tests.support.rigs.log import settings_for, where_at
from tests.support.services.emulators import AZURE_ACCOUNT, AZURE_KEY, EmulatedStore
from tests.support.services.hdfs import Hdfs

pytestmark = pytest.mark.xdist_group("tests/contract/test_store_contract.py")  # Its process has an HDFS already.


@pytest.fixture(params=["hdfs", "azure", "gcs"])
def where(request: pytest.FixtureRequest) -> Where:
    """Return a place for logs, on a new twin of a broker and each store in turn."""
    kafka = MemoryKafka(cluster=MemoryCluster())
    if request.param == "hdfs":
        hdfs: Hdfs = request.getfixturevalue("hdfs")
        return where_at(kafka, hdfs.root(f"logs/{uuid.uuid4().hex}"))
    store: EmulatedStore = request.getfixturevalue(request.param)
    return where_at(kafka, store.root(), storage_options=store.options)


def test_a_log_lives_on_a_remote_store(where: Where, tmp_path: Path) -> None:
    """A log is made, written, rolled up with merges and cleanup, and recovered, all over the store's own protocol."""
    model: dict[object, object] = {}
    with Log.create("x", where, LogOptions(partitions=2)) as log:
        for number in range(5):
            with Writer(log, "writer") as writer:
                writer.put(b"k%d" % number, b"v" * 2000)
                model[b"k%d" % number] = b"v" * 2000
                writer.commit(checkpoint_id=number + 1)
            outcome = run_round(log, settings_for(tmp_path, fanout=2))
            assert isinstance(outcome, CompletedRound)
            assert not outcome.cleanup.held_back
        assert log.manifests.numbers() == [4, 5]
        assert recover(log).to_dict() == model
        paths = {info.path for info in log.store.list()}
        assert not [path for path in paths if path.startswith("leases/")]


def test_another_user_is_told_of_the_right_that_is_missing(hdfs: Hdfs) -> None:
    """A refusal of HDFS names the user in one line, and nothing is written."""
    root = f"private-{uuid.uuid4().hex}"
    open_store(hdfs.root(root), "x").put_if_absent("descriptor.avro", b"x")
    store = open_store(hdfs.root(root, user="mallory"), "x")
    with pytest.raises(StatelogError) as caught:
        store.put_if_absent("manifests/1.avro", b"x")
    assert "user=mallory" in caught.value.message
    assert "\n" not in str(caught.value)
    assert [info.path for info in store.list()] == ["descriptor.avro"]


@pytest.mark.parametrize("root", ["hdfs://name-node:8020/state", "webhdfs://name-node/state"])
def test_a_root_of_hdfs_own_protocol_is_refused(root: str) -> None:
    """The refusal of HDFS's own protocol gives the same place in the right form."""
    with pytest.raises(ConfigError) as caught:
        open_store(root, "x")
    assert "webhdfs://" in caught.value.hint


def _azure(service: EmulatedStore, credential: str) -> dict[str, object]:
    return {"connection_string": f"BlobEndpoint=http://127.0.0.1:{service.port}/{AZURE_ACCOUNT};{credential}"}


def _signed(*, hours: int = 1, **rights: bool) -> str:
    until = datetime.now(UTC) + timedelta(hours=hours)
    kinds, may = ResourceTypes(container=True, object=True), AccountSasPermissions(**rights)
    return f"SharedAccessSignature={generate_account_sas(AZURE_ACCOUNT, AZURE_KEY, kinds, may, until)}"


def test_azure_takes_a_shared_access_signature(azure: EmulatedStore) -> None:
    """A shared access signature with all rights suffices for a store; a read-only one lists and reads, and says so."""
    root = azure.root()
    every = _azure(azure, _signed(read=True, write=True, create=True, delete=True, list=True))
    store = open_store(root, "x", every)
    store.check()
    store.put_if_absent("descriptor.avro", b"x")
    reader = open_store(root, "x", _azure(azure, _signed(read=True, list=True)))
    assert reader.read("descriptor.avro") == b"x"
    assert [info.path for info in reader.list()] == ["descriptor.avro"]
    with pytest.raises(StoreRefused, match="not authorized") as caught:
        reader.put("leases/a.avro", b"x")
    assert caught.value.facts["code"] == "AuthorizationPermissionMismatch"


@pytest.mark.parametrize(
    "credential",
    [
        pytest.param(lambda: f"AccountName={AZURE_ACCOUNT};AccountKey={'eHh4' * 16}", id="another-key"),
        pytest.param(lambda: f"AccountName={AZURE_ACCOUNT}", id="anonymous"),
        pytest.param(lambda: _signed(hours=-1, read=True, list=True, write=True), id="expired"),
    ],
)
def test_azure_refuses_credentials(azure: EmulatedStore, credential: Callable[[], str]) -> None:
    """Every call with wrong credentials fails in one line that says so and shows none of them."""
    store = open_store(azure.root(), "x", _azure(azure, credential()))
    for ask in (store.check, lambda: store.read("descriptor.avro"), store.list):
        with pytest.raises(StoreRefused, match="authenticate") as caught:
            ask()
        assert "credentials in the storage options" in caught.value.hint
        assert "\n" not in str(caught.value)
        assert "sig=" not in str(caught.value)
        assert AZURE_KEY not in str(caught.value)


@pytest.mark.parametrize("root", ["abfs://no-such-container/logs", "gs://no-such-bucket/logs"])
def test_a_bucket_that_is_not_there(root: str, request: pytest.FixtureRequest) -> None:
    """The store's check of a missing bucket says what to create, or to correct."""
    service: EmulatedStore = request.getfixturevalue("azure" if root.startswith("abfs") else "gcs")
    with pytest.raises(StoreRefused) as caught:
        open_store(root, "x", service.options).check()
    assert "Create the bucket or container" in caught.value.hint


@pytest.mark.parametrize(
    ("root", "options", "blamed"),
    [
        ("abfs://container/logs", {}, "connection_string or account_name"),
        ("abfs://container/logs", {"connection_string": "no such thing"}, "Connection string is either blank"),
        ("gs://bucket/logs", {"token": {"client_id": "x"}}, "refresh_token"),
    ],
)
def test_credentials_of_the_wrong_form(root: str, options: dict[str, object], blamed: str) -> None:
    """Malformed credentials are a mistake of the configuration, before anything is sent."""
    with pytest.raises(ConfigError, match=blamed):
        open_store(root, "x", options).check()
