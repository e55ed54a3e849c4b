"""Own directories: locks, sweeps and forks. Live owners' ones are untouched, and dead owners' ones are removed."""

import fcntl
import os
import shutil
import stat
from pathlib import Path

import pytest

from statelog.store.disk.own_directory import make_own, sweep
from tests.support.processes.starts import in_fork
from tests.support.told import told

_DEAD = f"own-{'0' * 32}.d"


def _names(parent: Path) -> set[str]:
    return {path.name for path in parent.iterdir()}


def test_a_directory_is_private_and_goes_with_its_owner(tmp_path: Path) -> None:
    """An own directory is private, is never swept however old it looks, and is removed afterwards, error or not."""
    with pytest.raises(ZeroDivisionError), make_own(tmp_path, "own-", ".d") as own:
        (own.path / "file").write_bytes(b"x")
        os.utime(own.path, (0, 0))
        assert stat.S_IMODE(own.path.stat().st_mode) == 0o700
        assert sweep(tmp_path, "own-", ".d") == []
        with make_own(tmp_path, "own-", ".d") as other:
            assert _names(tmp_path) == {own.path.name, other.path.name}
        raise ZeroDivisionError
    own.close()
    assert _names(tmp_path) == set()


def test_what_the_dead_left_goes_before_a_new_one_is_made(tmp_path: Path) -> None:
    """A directory with a free lock is swept before a new one is made, however young: its owner is dead."""

    def die() -> None:
        (make_own(tmp_path, "own-", ".d").path / "file").write_bytes(b"x")

    assert in_fork(die) == 0
    assert len(_names(tmp_path)) == 1
    with make_own(tmp_path, "own-", ".d") as own:
        assert _names(tmp_path) == {own.path.name}


def test_nothing_else_is_swept(tmp_path: Path) -> None:
    """Files and links of that form, other names, and the targets of links are not swept."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").write_bytes(b"x")
    (tmp_path / f"own-{'1' * 32}.d").write_bytes(b"x")
    (tmp_path / f"own-{'2' * 32}.d").symlink_to(elsewhere)
    for name in (
        _DEAD,
        "own-mine.d",
        f"own-{'3' * 32}",
        f"own-x-{'4' * 32}.d",
        f"own-{'5' * 33}.d",
        f"own-{'6' * 32}.d.mine",
    ):
        (tmp_path / name).mkdir()
    before = _names(tmp_path)
    assert sweep(tmp_path, "own-", ".d") == [tmp_path / _DEAD]
    assert _names(tmp_path) == before - {_DEAD}
    assert (elsewhere / "precious").exists()


def test_what_cannot_be_removed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that cannot be removed, a dead or an own one, costs a warning and no more."""
    (tmp_path / _DEAD).mkdir()

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as broken:
        broken.setattr(shutil, "rmtree", refuse)
        with told(_DEAD):
            own = make_own(tmp_path, "own-", ".d")
        with told(own.path.name):
            own.close()
    assert sweep(tmp_path, "own-", ".d") == sorted([tmp_path / _DEAD, own.path])


def test_a_directory_that_is_swept_before_its_lock_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory that a sweep takes between its creation and its lock is made again, at both moments."""
    taken: list[Path] = []
    real_open, real_flock = os.open, fcntl.flock

    def open_late(path: Path, flags: int) -> int:
        if not taken:
            taken.append(path)
            path.rmdir()
        return real_open(path, flags)

    def lock_late(lock: int, how: int) -> None:
        real_flock(lock, how)
        if len(taken) == 1:
            taken.extend(tmp_path.iterdir())
            taken[-1].rmdir()

    with monkeypatch.context() as sweeping:
        sweeping.setattr(os, "open", open_late)
        sweeping.setattr(fcntl, "flock", lock_late)
        made = make_own(tmp_path, "own-")
    with made as own:
        assert len({own.path, *taken}) == 3
        assert _names(tmp_path) == {own.path.name}


def test_a_directory_that_cannot_be_opened_is_an_error_and_does_not_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory that cannot be opened, as without file descriptors, is the system's own error after one try."""

    def refuse(_path: Path, _flags: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(OSError, match="Too many"):
        make_own(tmp_path, "own-")
    assert _names(tmp_path) == set()


def test_a_fork_leaves_its_parents_directory_alone(tmp_path: Path) -> None:
    """A child that leaves its parent's context removes nothing of the parent's, and has its own directories."""
    with make_own(tmp_path, "own-") as own:

        def child() -> None:
            own.close()
            with make_own(tmp_path, "own-"):
                assert len(_names(tmp_path)) == 2

        assert in_fork(child) == 0
        assert _names(tmp_path) == {own.path.name}
        assert sweep(tmp_path, "own-") == []
    assert _names(tmp_path) == set()
