"""The local store: modes, symbolic links, left-over temporary files, and translated errors."""

import errno
import os
import pickle
import stat
from pathlib import Path

import pytest

from statelog.errors import AlreadyExists, ConfigError, StoreRefused, StoreUnavailable, UnsafeStore
from statelog.store.fsspec import open_store
from statelog.store.local import LocalStore
from statelog.store.port import STALE_AFTER_S
from statelog.store.url import temporary_name


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """Return a store for a log's directory that does not exist yet."""
    return LocalStore(tmp_path, "orders")


def test_files_and_directories_are_private(store: LocalStore, tmp_path: Path) -> None:
    """Every file that statelog makes is 0600 and every directory 0700, including local copies."""
    old = os.umask(0)
    try:
        store.put_if_absent("runs/a", b"x")
        store.put("leases/a", b"x")
        store.upload(tmp_path / "orders" / "runs" / "a", "runs/b")
        store.download("runs/b", tmp_path / "copy")
    finally:
        os.umask(old)
    paths = [tmp_path / "copy", *(tmp_path / "orders").rglob("*"), tmp_path / "orders"]
    modes = {stat.S_IMODE(path.stat().st_mode) for path in paths if path.is_file()}
    assert modes == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths if path.is_dir()} == {0o700}


def test_a_delete_never_follows_a_link_out(store: LocalStore, tmp_path: Path) -> None:
    """Files behind a symbolic link are neither deleted nor listed, and check refuses a log that is a link."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(b"x")
    store.put_if_absent("descriptor.avro", b"x")
    (tmp_path / "orders" / "runs").symlink_to(outside)
    with pytest.raises(UnsafeStore):
        store.delete("runs/precious")
    assert [info.path for info in store.list()] == ["descriptor.avro"]
    (tmp_path / "linked").symlink_to(outside)
    with pytest.raises(UnsafeStore):
        LocalStore(tmp_path, "linked").check()
    assert (outside / "precious").exists()


def test_tidying_removes_only_what_is_empty(store: LocalStore, tmp_path: Path) -> None:
    """Empty directories are removed, the log's own last. The root, files and targets of links stay."""
    outside = tmp_path / "outside"
    (outside / "empty").mkdir(parents=True)
    log = tmp_path / "orders"
    for path in ("leases/a", "runs/kept", "schemas/1.avsc"):
        store.put_if_absent(path, b"x")
    (log / "link").symlink_to(outside)
    for path in ("leases/a", "schemas/1.avsc"):
        store.delete(path)
    store.tidy()
    assert sorted(log.iterdir()) == [log / "link", log / "runs"]
    assert (outside / "empty").is_dir()

    store.delete("runs/kept")
    (log / "link").unlink()
    store.tidy()
    store.tidy()  # Nothing is left.
    assert not log.exists()
    (tmp_path / "linked").symlink_to(outside)
    LocalStore(tmp_path, "linked").tidy()
    assert sorted(tmp_path.iterdir()) == [tmp_path / "linked", outside]
    assert (outside / "empty").is_dir()


def test_a_root_behind_a_link_works(tmp_path: Path) -> None:
    """The root itself may be a symbolic link, as mounts often are."""
    (tmp_path / "real").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "real")
    store = LocalStore(tmp_path / "root", "orders")
    store.put_if_absent("runs/a", b"x")
    store.delete("runs/a")
    assert list(store.list()) == []


def test_check_clears_what_a_crash_left_long_ago_and_nothing_else(store: LocalStore, tmp_path: Path) -> None:
    """Temporary files older than a day are removed by check. Younger ones and published files stay."""
    store.put_if_absent("runs/a", b"x")
    directory, long_ago = tmp_path / "orders" / "runs", store.now_s() - STALE_AFTER_S - 60
    for name in (temporary_name("old"), temporary_name("new")):
        (directory / name).write_bytes(b"x")
    for name in (temporary_name("old"), "a"):
        os.utime(directory / name, (long_ago, long_ago))
    store.check()
    assert {path.name for path in directory.iterdir()} == {"a", temporary_name("new")}


def test_what_is_not_a_file_is_unavailable(store: LocalStore, tmp_path: Path) -> None:
    """A directory in place of a file, and a file in place of a directory, are StoreUnavailable with a code."""
    store.put_if_absent("runs/a", b"x")
    for call in (lambda: store.read("runs"), lambda: store.read("runs/a/b"), lambda: store.put("runs/a/b", b"x")):
        with pytest.raises(StoreUnavailable) as caught:
            call()
        assert caught.value.facts["code"] in ("EISDIR", "ENOTDIR", "EEXIST")


def test_a_missing_local_file_is_not_a_missing_stored_one(store: LocalStore, tmp_path: Path) -> None:
    """An upload of a missing file, and a download into no directory, are StoreUnavailable, never NotFound."""
    store.put_if_absent("runs/a", b"x")
    with pytest.raises(StoreUnavailable):
        store.upload(tmp_path / "none", "runs/b")
    with pytest.raises(StoreUnavailable):
        store.download("runs/a", tmp_path / "none" / "copy")


@pytest.mark.parametrize("is_ours", [False, True])
def test_a_name_that_is_taken_is_ours_only_if_it_is_our_file(
    is_ours: bool, store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A taken name counts as our success only if it is our file.

    A server that repeats a request reports a conflict with itself. A backup that links each file gives ours a second
    name while the slot is another's.
    """
    if not is_ours:
        store.put_if_absent("manifests/1", b"another's")
    link = os.link

    def linked_before(source: Path, target: Path) -> None:
        link(source, target if is_ours else tmp_path / "backup")
        link(source, target)

    monkeypatch.setattr(os, "link", linked_before)
    if is_ours:
        store.put_if_absent("manifests/1", b"ours")
        assert store.read("manifests/1") == b"ours"
    else:
        with pytest.raises(AlreadyExists):
            store.put_if_absent("manifests/1", b"ours")


def test_a_store_travels_by_pickle(store: LocalStore) -> None:
    """A pickled store is the same directory."""
    store.put_if_absent("runs/a", b"x")
    travelled: LocalStore = pickle.loads(pickle.dumps(store))
    assert travelled.read("runs/a") == b"x"


def test_a_log_that_is_made_for_a_group_stays_so_for_everybody(tmp_path: Path) -> None:
    """Files of a log have the rights that its creator chose, whatever the umask of later writers."""
    root = tmp_path / "root"
    open_store(str(root), "orders", {"directory_mode": "2770"}).put_if_absent("descriptor.avro", b"x")
    old = os.umask(0o077)
    try:
        other = open_store(str(root), "orders")
        other.put_if_absent("manifests/1", b"x")
        other.put("leases/a", b"x")
        other.put("leases/a", b"y")
        source = tmp_path / "run"
        source.write_bytes(b"x")
        other.upload(source, "runs/a")
    finally:
        os.umask(old)
    made = list((root / "orders").rglob("*"))
    assert {stat.S_IMODE(path.stat().st_mode) for path in made if path.is_file()} == {0o660}
    directories = [root / "orders", *(path for path in made if path.is_dir())]
    assert {stat.S_IMODE(path.stat().st_mode) for path in directories} == {0o2770}


@pytest.mark.parametrize("mode", ["077", "12770", "rwx", 0o600, "0"])
def test_rights_that_lock_the_owner_out_are_refused(tmp_path: Path, mode: object) -> None:
    """A mode must be octal, give its owner all rights, and have no special bit but the group's."""
    with pytest.raises(ConfigError):
        open_store(str(tmp_path), "orders", {"directory_mode": mode})


def test_another_users_root_is_told_with_what_helps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing rights are a wrong setting, and no outage. The hint says how to share a log."""

    def refuse(_self: Path) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(StoreRefused) as caught:
        LocalStore(tmp_path, "orders").read("descriptor.avro")
    assert "directory_mode=2770" in caught.value.hint
    assert caught.value.facts["code"] == "EACCES"
