"""Directories of caches: nothing of the living is touched, a fork has none of its parent's, the dead are swept."""

import errno
import os
import stat
from pathlib import Path

import pytest

from statelog.recovery.cache_directory import CacheDirectory
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
