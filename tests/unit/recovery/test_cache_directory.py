"""Directories of live caches are not touched, a fork has none of its parent's, and those of dead ones are swept."""

import errno
import os
import stat
from itertools import count
from pathlib import Path

import pytest

from statelog.environment import Environment
from statelog.errors import ClosedError, CorruptRun, StorageFull, StoreUnavailable
from statelog.recovery.run_cache import CacheDirectory
from tests.support.processes.starts import in_fork
from tests.support.rigs.cache import CacheRig


def _names(base: Path) -> set[str]:
    return {path.name for path in base.iterdir()}


def test_a_directory_is_private_and_made_with_its_parents(tmp_path: Path) -> None:
    """A cache directory is private to its user, wherever its base lies, and is made with its parents."""
    base = tmp_path / "a" / "b"
    directory = CacheDirectory(base)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (base, directory.path)]
    assert modes == [0o700, 0o700]
    directory.remove()
    directory.remove()
    assert _names(base) == set()


def test_the_living_are_not_swept(tmp_path: Path) -> None:
    """A directory whose lock is held is not swept, however old it looks."""
    rig = CacheRig(tmp_path)
    run = rig.put("a", b"data")
    rig.read(run)
    for path in tmp_path.rglob("*"):
        os.utime(path, (0, 0))
    other = CacheDirectory(tmp_path)
    assert len(_names(tmp_path)) == 2
    assert (rig.read(run), rig.downloads[run.path]) == (b"data", 1)
    other.remove()
    rig.cache.close()


def test_a_base_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    """A file in the place of the base is StoreUnavailable, with path and code."""
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable) as caught:
        CacheDirectory(tmp_path / "file")
    assert caught.value.facts["code"] == errno.errorcode[errno.EEXIST]


def test_a_fork_leaves_its_parents_cache_alone(tmp_path: Path) -> None:
    """A child can neither use nor delete its parent's cache, closes it without effect, and can make its own."""
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
        own = CacheDirectory(tmp_path)
        assert len(_names(tmp_path)) == 2
        own.remove()

    assert in_fork(child) == 0
    with reader as file:
        assert file.read() == b"data"
    assert (rig.read(run), rig.downloads[run.path]) == (b"data", 1)
    rig.cache.close()
    assert _names(tmp_path) == set()


def test_a_fork_does_not_keep_a_dead_parent_alive(tmp_path: Path) -> None:
    """The directory of a dead owner is swept, even if a child of the owner lives on."""
    go, held = os.pipe(), os.pipe()

    def parent() -> None:
        CacheDirectory(tmp_path)
        if os.fork() == 0:
            os.write(held[1], b"x")
            os.read(go[0], 1)
            os._exit(0)

    try:
        assert in_fork(parent) == 0
        assert os.read(held[0], 1) == b"x"
        assert len(_names(tmp_path)) == 1
        directory = CacheDirectory(tmp_path)
        assert _names(tmp_path) == {directory.path.name}
        directory.remove()
    finally:
        os.write(go[1], b"x")
        for end in (*go, *held):
            os.close(end)


def test_a_host_plays_faults_of_the_local_disk_and_gives_the_ids(tmp_path: Path) -> None:
    """The environment plays faults of the local disk and gives all names.

    A torn download is never observed, and a full disk is reported.
    """
    rig, numbers, steps = CacheRig(tmp_path / "rig"), count(), list[str]()
    run = rig.put("a", b"data" * 100)

    def disk(step: str, path: Path) -> None:
        steps.append(step)
        if steps.count("verify") == 1 and step == "verify":
            os.truncate(path, 7)
        if steps.count("rename") == 1 and step == "rename":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    environment = Environment(nonce=lambda: next(numbers).to_bytes(16, "big"), disk=disk)
    directory = environment.run(CacheDirectory, tmp_path)
    file = directory.new_file()
    assert (directory.path.name, file.name) == (f"attempt-{0:032x}", f"{1:032x}.run")
    for kind in (CorruptRun, StorageFull):
        with pytest.raises(kind):
            directory.fetch(rig.store, run, file)
        assert [path for path in directory.path.iterdir() if path.is_file()] == []
    directory.fetch(rig.store, run, file)
    assert file.read_bytes() == b"data" * 100
    directory.remove()
