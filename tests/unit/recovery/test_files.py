"""File targets are made next to their name, synced before they get it, and refused before anything is read."""

import io
import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO

import pytest

from statelog.errors import AlreadyExists, ConfigError, StoreUnavailable
from statelog.operate.rows import whole_file
from statelog.producer.writer import Writer
from statelog.reading.claims import list_leases
from statelog.recovery.plan_reader import Phase
from statelog.recovery.progress import Progress
from statelog.recovery.recover import Recovery, recover
from statelog.recovery.rocksdb_state import read_rocksdb_state
from statelog.recovery.settings import RecoverySettings, RecoveryTuning
from statelog.store.disk.disk import is_there
from statelog.testing.store import MemoryDisk, MemoryStore
from tests.support.rigs.history import HistoryRig, history_rig

TARGETS = ("to_parquet", "to_rocksdb")


@pytest.fixture
def rig() -> HistoryRig:
    """Return a log with a snapshot and a tail."""
    rig = history_rig()
    with Writer(rig.log, "w") as writer:
        rig.commit(writer, 1, [(b"key-%d" % i, b"one") for i in range(50)])
        rig.snapshot()
        rig.commit(writer, 2, [(b"key-%d" % i, b"two") for i in range(0, 50, 2)])
    return rig


def _fill(recovery: Recovery, target: str, path: Path) -> int:
    return recovery.to_parquet(path) if target == "to_parquet" else recovery.to_rocksdb(path)


def test_a_file_is_made_beside_its_name(rig: HistoryRig, tmp_path: Path) -> None:
    """While a file is made, the older file is untouched, and only a hidden directory is next to it."""
    path, beside = tmp_path / "state.parquet", set[bool]()
    path.write_bytes(b"older")

    def look(progress: Progress) -> None:
        if progress.phase is not Phase.DONE:
            assert path.read_bytes() == b"older"
            beside.update(entry.name.startswith(".state.parquet.") for entry in tmp_path.iterdir() if entry != path)

    settings = RecoverySettings(_tuning=RecoveryTuning(progress_interval_s=0))
    assert recover(rig.log, on_progress=look, settings=settings).to_parquet(path) == 50
    assert beside == {True}
    assert path.read_bytes()[:4] == b"PAR1"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("url", ["s3://bucket/state", "file:///tmp/state", "s3:/bucket/state"])
@pytest.mark.parametrize("target", TARGETS)
def test_a_url_is_no_path(
    rig: HistoryRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, url: str
) -> None:
    """A URL is refused as a path, also as a `Path` that lost a slash, and no directory `s3:` is made."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="a path on the local disk is needed here"):
        _fill(recover(rig.log), target, Path(url))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", TARGETS)
def test_everything_is_synced_before_it_has_its_name(
    rig: HistoryRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    """Each file of a target, a database's directory, and then the name in its parent directory are synced."""
    path, fsync = tmp_path / "made" / "state", os.fsync
    synced: list[tuple[int, bool]] = []

    def noting(descriptor: int) -> None:
        synced.append((os.fstat(descriptor).st_ino, path.exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    _fill(recover(rig.log), target, path)
    files = [path, *path.iterdir()] if path.is_dir() else [path]
    assert {file.stat().st_ino for file in files} <= {inode for inode, had_name in synced if not had_name}
    assert (path.parent.stat().st_ino, True) in synced
    assert (tmp_path.stat().st_ino, False) in synced


@pytest.mark.parametrize("target", TARGETS)
def test_missing_directories_are_made(rig: HistoryRig, tmp_path: Path, target: str) -> None:
    """Missing parent directories of a target are made."""
    path = tmp_path / "a" / "b" / "state"
    assert _fill(recover(rig.log), target, path) == 50
    assert path.exists()


@pytest.mark.parametrize("target", TARGETS)
def test_a_directory_in_the_way_is_refused_before_anything_is_read(
    rig: HistoryRig, tmp_path: Path, target: str
) -> None:
    """A directory in the target's place is refused before a run or the tail is read, and no lease is left."""
    (tmp_path / "state" / "other").mkdir(parents=True)
    recovery = recover(rig.log)
    rig.log.store.delete(rig.manifests[0].runs[0].path)
    with pytest.raises(AlreadyExists):
        _fill(recovery, target, tmp_path / "state")
    assert list_leases(rig.log.store) == []


@pytest.mark.parametrize("target", TARGETS)
def test_a_place_that_nobody_can_look_at_is_told(rig: HistoryRig, tmp_path: Path, target: str) -> None:
    """A name that is too long, or in another user's directory, is refused by its path before anything is read."""
    path = tmp_path / ("x" * 300)
    with pytest.raises(StoreUnavailable, match="File name too long") as refused:
        _fill(recover(rig.log), target, path)
    assert refused.value.facts["path"] == str(path)
    with pytest.raises(StoreUnavailable):
        read_rocksdb_state(path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", [*TARGETS, "whole_file"])
def test_what_is_no_file_stays(rig: HistoryRig, tmp_path: Path, target: str) -> None:
    """A pipe or a link to one is refused as a target. It is not replaced, and nothing is made next to it."""
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for path in (pipe, link):
        with pytest.raises(AlreadyExists):
            if target == "whole_file":
                with whole_file(path) as file:
                    file.write("text")
            else:
                _fill(recover(rig.log), target, path)
    assert (pipe.is_fifo(), link.is_symlink(), len(list(tmp_path.iterdir()))) == (True, True, 2)


@pytest.mark.parametrize("target", TARGETS)
def test_a_place_that_cannot_be_written_to_is_told_as_that(rig: HistoryRig, tmp_path: Path, target: str) -> None:
    """An unwritable target is a local error whose hint is about this machine, and not about the store."""
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(StoreUnavailable) as caught:
        _fill(recover(rig.log), target, tmp_path / "file" / "state")
    assert "path" in caught.value.hint
    assert "root URL" not in caught.value.hint


class _Counted(io.BytesIO):
    """A file of the store that counts the bytes that are read."""

    def __init__(self, data: bytes, counts: list[int]) -> None:
        super().__init__(data)
        self._counts = counts

    def read(self, size: int | None = -1, /) -> bytes:
        """Read and count."""
        data = super().read(size)
        self._counts.append(len(data))
        return data


class _CountedStore(MemoryStore):
    """A store that counts reads of its files."""

    def __init__(self, counts: list[int]) -> None:
        super().__init__(MemoryDisk(lambda: 1000.0), "rig")
        self._counts = counts

    def open(self, path: str) -> AbstractContextManager[BinaryIO]:
        """Open a file that counts."""
        return _Counted(self.read(path), self._counts)


@pytest.mark.parametrize("ordered", [False, True])
def test_only_the_wanted_row_groups_are_read(*, ordered: bool) -> None:
    """A recovery of one key group reads its row groups and the footer of a run, and not one byte more."""
    read: list[int] = []

    rig = history_rig(store=_CountedStore(read))
    with Writer(rig.log, "w") as writer:
        rig.commit(writer, 1, [(b"key-%d" % i, b"x" * 100) for i in range(200)])
    (run,) = rig.snapshot().runs
    recovery = recover(rig.log, key_groups=[3])
    read.clear()
    recovery.to_arrow(ordered=ordered)
    (part,) = recovery.plan.runs
    assert 0 < len(part.row_groups) < len(run.index.row_groups)
    assert sum(read) == part.size_bytes + run.size_bytes - run.index.footer_offset


def test_what_cannot_be_known_is_an_error(tmp_path: Path) -> None:
    """An over-long name is an error on every Python. A missing name, one below a file and a circle of links are not."""
    (tmp_path / "file").touch()
    (tmp_path / "circle").symlink_to("circle")
    assert is_there(tmp_path / "file")
    assert not any(is_there(tmp_path / name) for name in ("missing", "file/below", "circle"))
    with pytest.raises(OSError, match="File name too long"):
        is_there(tmp_path / ("x" * 300))
