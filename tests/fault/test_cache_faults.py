"""The recovery cache when its process is killed or its disk is full: no file stays that nobody cleans up."""

import errno
import os
import signal
from pathlib import Path

import pytest

from statelog.errors import NotFound, StorageFull, StoreUnavailable
from statelog.recovery.run_cache import CacheDirectory
from statelog.testing.store import Fault, MemoryStore
from tests.support.rigs.cache import CacheRig


def test_a_killed_process_is_swept_and_a_living_one_is_not(tmp_path: Path) -> None:
    """The next cache removes the files of a SIGKILL in the middle of a download; a live cache retains its own."""
    living = CacheRig(tmp_path)
    run = living.put("a", b"data")
    living.read(run)
    standing, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            doomed = CacheRig(tmp_path)
            doomed.read(doomed.put("a", b"data"))
            doomed.on_download = lambda _: _stand(told, doomed)
            doomed.read(doomed.put("b", b"more"))
        finally:
            os._exit(1)
    try:
        assert os.read(standing, 1) == b"x"
        assert len(living.files()) == 3
        next_one = CacheDirectory(tmp_path)
        assert len(living.files()) == 3
    finally:
        os.kill(pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code == -signal.SIGKILL
    assert len(living.files()) == 3
    after = CacheDirectory(tmp_path)
    assert len(living.files()) == 1
    assert (living.read(run), living.downloads[run.path]) == (b"data", 1)
    for end in (standing, told):
        os.close(end)
    for directory in (next_one, after):
        directory.remove()
    living.cache.close()
    assert list(tmp_path.iterdir()) == []


def _stand(told: int, doomed: CacheRig) -> None:
    (doomed.directory.path / "b.partial").write_bytes(b"mo")
    os.write(told, b"x")
    signal.pause()


class _Full(MemoryStore):
    """A store whose downloads fill the local disk half-way."""

    full = True

    def download(self, path: str, local: Path) -> None:
        """Write a part, and fail as the operating system does."""
        if self.full:
            local.write_bytes(b"da")
            raise OSError(errno.ENOSPC, "No space left on device")
        super().download(path, local)


def test_a_full_disk_leaves_no_part_of_a_file(tmp_path: Path) -> None:
    """A full disk is StorageFull with the code, without a partial file; the same call succeeds when there is space."""
    rig = CacheRig(tmp_path)
    run = rig.put("a", b"data")
    store = _Full(rig.disk, "rig")
    with rig.cache:
        with pytest.raises(StorageFull) as caught:
            rig.cache.open(store, run)
        assert caught.value.facts["code"] == "ENOSPC"
        assert (rig.files(), rig.cache.statistics().files) == ([], 0)
        store.full = False
        with rig.cache.open(store, run) as file:
            assert file.read() == b"data"


@pytest.mark.parametrize(("fault", "kind"), [(Fault.BEFORE, StoreUnavailable), (None, NotFound)])
def test_a_store_that_fails_leaves_nothing(tmp_path: Path, fault: Fault | None, kind: type[Exception]) -> None:
    """A store that does not answer, or lacks the run, is that error, and the cache is as before."""
    rig = CacheRig(tmp_path)
    run = rig.put("a", b"data")
    failing = MemoryStore(rig.disk, "rig", faults=lambda _method, _path: fault)
    if fault is None:
        rig.disk.remove(f"rig/{run.path}")
    with rig.cache:
        with pytest.raises(kind):
            rig.cache.open(failing, run)
        assert (rig.files(), rig.cache.statistics().readers) == ([], 0)
