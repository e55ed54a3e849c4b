"""A disk that fills up under a real local store: a small file system in memory, mounted for the test."""

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import randbytes

import pytest

from statelog.errors import NotFound, StorageFull, StoreRefused
from statelog.log import Log, LogOptions
from statelog.producer.writer import Writer
from statelog.reading.claims import list_leases
from statelog.recovery import recover
from statelog.recovery.settings import RecoverySettings
from statelog.store.local import LocalStore
from statelog.testing.cluster import MemoryCluster
from statelog.testing.kafka import MemoryKafka
from tests.support.rigs.history import history_rig
from tests.support.rigs.log import where_at
from tests.support.told import told

SIZE_BYTES = 1 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a file system of one mebibyte."""
    directory = tmp_path / "disk"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_BYTES}", "tmpfs", str(directory)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("A full disk is not tested in this run: there is no mount command")
    if done.returncode:
        pytest.skip(f"A full disk is not tested in this run: mounting one is not allowed ({done.stderr.strip()})")
    yield directory
    subprocess.run(["umount", "--lazy", str(directory)], check=True)


def _names(directory: Path) -> set[str]:
    return {path.name for path in directory.rglob("*") if path.is_file()}


def test_a_create_on_a_full_disk_leaves_no_trace(small_disk: Path) -> None:
    """A create on a full disk is StorageFull, without a name or temporary file; with space the same call succeeds."""
    store = LocalStore(small_disk, "orders")
    store.put_if_absent("manifests/1", b"x" * (SIZE_BYTES // 2))
    with pytest.raises(StorageFull) as caught:
        store.put_if_absent("manifests/2", b"y" * SIZE_BYTES)
    assert caught.value.facts["code"] == "ENOSPC"
    assert _names(small_disk) == {"1"}
    assert store.read("manifests/1") == b"x" * (SIZE_BYTES // 2)
    store.delete("manifests/1")
    store.put_if_absent("manifests/2", b"y" * (SIZE_BYTES // 2))


def test_a_replace_on_a_full_disk_keeps_the_old_file(small_disk: Path) -> None:
    """A lease that cannot be renewed is still the old one, whole."""
    store = LocalStore(small_disk, "orders")
    store.put("leases/a", b"old")
    with pytest.raises(StorageFull):
        store.put("leases/a", b"y" * (2 * SIZE_BYTES))
    assert store.read("leases/a") == b"old"
    assert _names(small_disk) == {"a"}


def test_an_upload_on_a_full_disk_leaves_no_trace(small_disk: Path, tmp_path: Path) -> None:
    """A run that does not fit is StorageFull, and no part of it stays to take space."""
    run = tmp_path / "run"
    run.write_bytes(b"z" * (2 * SIZE_BYTES))
    store = LocalStore(small_disk, "orders")
    with pytest.raises(StorageFull):
        store.upload(run, "runs/a")
    with pytest.raises(NotFound):
        store.read("runs/a")
    assert _names(small_disk) == set()


def test_a_download_to_a_full_disk_leaves_no_trace(small_disk: Path, tmp_path: Path) -> None:
    """A download to a full local disk is StorageFull too, without a torn copy."""
    store = LocalStore(tmp_path / "store", "orders")
    store.put("runs/a", b"z" * (2 * SIZE_BYTES))
    with pytest.raises(StorageFull):
        store.download("runs/a", small_disk / "copy")
    assert _names(small_disk) == set()


def test_check_of_a_full_disk_says_full(small_disk: Path) -> None:
    """A full disk is StorageFull at open, not an unsafe store."""
    (small_disk / "filler").write_bytes(b"f" * SIZE_BYTES)
    with pytest.raises(StorageFull):
        LocalStore(small_disk, "orders").check()


def _log_on(disk: Path) -> Log:
    log = Log.create(
        "orders",
        where_at(MemoryKafka(cluster=MemoryCluster()), disk),
        LogOptions(partitions=2),
    )
    with Writer(log, "w") as writer:
        writer.put(b"a", b"1")
        writer.commit(checkpoint_id=1)
    return log


def test_a_full_store_can_still_be_recovered(small_disk: Path) -> None:
    """A full store can still be recovered: the missing room costs only the lease."""
    log = _log_on(small_disk)
    (small_disk / "filler").write_bytes(b"f" * (shutil.disk_usage(small_disk).free))
    with told(), recover(log) as recovery:
        assert recovery.to_dict() == {b"a": b"1"}
        assert not recovery.statistics().has_lease


def test_a_store_that_is_mounted_read_only_can_be_recovered(small_disk: Path) -> None:
    """On a store that is mounted read-only the refusal costs the lease; writers get StoreRefused."""
    log = _log_on(small_disk)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with told(), recover(log) as recovery:
        assert recovery.to_dict() == {b"a": b"1"}
    with pytest.raises(StoreRefused) as caught:
        log.store.check()
    assert caught.value.facts["code"] == "EROFS"


def test_a_database_on_a_full_disk_leaves_no_trace(small_disk: Path) -> None:
    """A full disk under RocksDB is StorageFull, and no part of the database stays to take space."""
    rig = history_rig()
    with Writer(rig.log, "w") as writer:
        rig.commit(writer, 1, [(b"k%d" % number, randbytes(SIZE_BYTES // 4)) for number in range(8)])
    with pytest.raises(StorageFull) as caught:
        recover(rig.log).to_rocksdb(small_disk / "db", sst_bytes=1)
    assert caught.value.facts["path"] == str(small_disk / "db")
    assert list(small_disk.iterdir()) == []


def test_a_stream_that_fills_its_spill_directory_leaves_no_trace(small_disk: Path, tmp_path: Path) -> None:
    """A full spill directory is StorageFull with its name, with its space back and no lease.

    With a second directory the state comes out.
    """
    rig = history_rig()
    with Writer(rig.log, "w") as writer:
        rig.commit(writer, 1, [(b"k%d" % number, randbytes(SIZE_BYTES // 16)) for number in range(48)])
    bounds = RecoverySettings(memory_bytes=SIZE_BYTES // 16, fold_bytes=1, spill_directories=(small_disk,))
    free_bytes = shutil.disk_usage(small_disk).free
    with pytest.raises(StorageFull) as caught:
        recover(rig.log, settings=bounds).stream().apply(lambda _: None)
    assert (caught.value.facts["path"], caught.value.facts["code"]) == (str(small_disk), "ENOSPC")
    assert shutil.disk_usage(small_disk).free == free_bytes
    assert list_leases(rig.log.store) == []
    both = replace(bounds, spill_directories=(small_disk, tmp_path))
    with recover(rig.log, settings=both).stream() as stream:
        assert stream.wait_fetched(60.0)
        assert sum(portion.changes.num_rows for portion in stream) == 48
    assert shutil.disk_usage(small_disk).free == free_bytes
