"""Directories of caches: locks, age, sweeps and forks; nothing of the living is touched, nothing of the dead stays."""

import errno
import os
import stat
from pathlib import Path

import pytest

from statelog.recovery.cache_directory import ABANDONED_S, CacheDirectory, CacheWarning, sweep_attempts
from statelog.schemas.errors import ClosedError, StoreUnavailable
from tests.support.cache_rig import CacheRig
from tests.support.forks import in_fork


def _names(base: Path) -> set[str]:
    return {path.name for path in base.iterdir()}


def test_a_directory_is_private_and_made_with_its_parents(tmp_path: Path) -> None:
    """Copies of state are for their user only, wherever the base lies."""
    base = tmp_path / "a" / "b"
    directory = CacheDirectory.create(base)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (base, directory.path)]
    assert modes == [0o700, 0o700]
    directory.remove()
    directory.remove()
    assert _names(base) == set()


def test_the_living_are_not_swept(tmp_path: Path) -> None:
    """However old they look, directories whose lock is held stay, with their files."""
    rig = CacheRig(tmp_path)
    run = rig.put("a", b"data")
    rig.read(run)
    for path in tmp_path.rglob("*"):
        os.utime(path, (0, 0))
    other = CacheDirectory.create(tmp_path)
    assert len(_names(tmp_path)) == 2
    assert (rig.read(run), rig.downloads[run.path]) == (b"data", 1)
    other.remove()
    rig.cache.close()


def test_what_has_no_lock_goes_by_age(tmp_path: Path) -> None:
    """A directory that died on the way in or out is swept when it is old, not before; strangers' files stay."""
    half_made, half_removed = tmp_path / ".new-0", tmp_path / "attempt-0"
    stranger, file = tmp_path / "theirs", tmp_path / "attempt-file"
    for path in (half_made, half_removed, stranger):
        path.mkdir()
    (half_made / "lock").touch()
    (half_removed / "0.run").touch()
    file.touch()
    (tmp_path / "attempt-link").symlink_to(stranger)
    changed_s = max(path.stat().st_mtime for path in (half_made, half_removed))
    strangers = {"theirs", "attempt-file", "attempt-link"}
    sweep_attempts(tmp_path, changed_s + ABANDONED_S - 60.0)
    assert _names(tmp_path) == strangers | {".new-0", "attempt-0"}
    sweep_attempts(tmp_path, changed_s + ABANDONED_S)
    assert _names(tmp_path) == strangers


def test_what_cannot_be_swept_is_told(tmp_path: Path) -> None:
    """A dead directory that cannot be deleted costs a warning, and the new one is made."""
    (tmp_path / "attempt-0" / "directory").mkdir(parents=True)
    (tmp_path / "attempt-0" / "lock").touch()
    with pytest.warns(CacheWarning):
        directory = CacheDirectory.create(tmp_path)
    directory.remove()
    assert _names(tmp_path) == {"attempt-0"}


def test_a_base_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    """A file in the place of the base is StoreUnavailable with its path and code."""
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable) as caught:
        CacheDirectory.create(tmp_path / "file")
    assert caught.value.facts["code"] == errno.errorcode[errno.EEXIST]


def test_a_fork_leaves_its_parents_cache_alone(tmp_path: Path) -> None:
    """A child can neither use nor delete what the parent holds, closes it without effect, and can make its own."""
    rig = CacheRig(tmp_path)
    run = rig.put("a", b"data")
    reader = rig.cache.open(rig.store, run)

    def child() -> None:
        with pytest.raises(ClosedError):
            rig.cache.open(rig.store, run)
        with pytest.raises(ClosedError):
            rig.cache.sweep()
        reader.close()
        rig.cache.close()
        own = CacheDirectory.create(tmp_path)
        assert len(_names(tmp_path)) == 2
        own.remove()

    assert in_fork(child) == 0
    with reader as file:
        assert file.read() == b"data"
    assert (rig.read(run), rig.downloads[run.path]) == (b"data", 1)
    rig.cache.close()
    assert _names(tmp_path) == set()


def test_a_fork_does_not_keep_a_dead_parent_alive(tmp_path: Path) -> None:
    """When its owner is gone, a directory is swept even if a child of the owner lives on."""
    go, held = os.pipe(), os.pipe()

    def parent() -> None:
        CacheDirectory.create(tmp_path)
        if os.fork() == 0:
            os.write(held[1], b"x")
            os.read(go[0], 1)
            os._exit(0)

    try:
        assert in_fork(parent) == 0
        assert os.read(held[0], 1) == b"x"
        assert len(_names(tmp_path)) == 1
        directory = CacheDirectory.create(tmp_path)
        assert _names(tmp_path) == {directory.path.name}
        directory.remove()
    finally:
        os.write(go[1], b"x")
        for end in (*go, *held):
            os.close(end)
