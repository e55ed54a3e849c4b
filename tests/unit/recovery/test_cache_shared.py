"""Recoveries share a log's cache in one process, on twins and on the local file system."""

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from threading import Thread
from typing import BinaryIO

import pytest

from statelog.environment import Environment
from statelog.errors import ConfigError, CorruptRun, Misuse
from statelog.log import Log
from statelog.producer.writer import Writer
from statelog.reading.claims import list_leases
from statelog.recovery import CacheSettings, RecoverySettings, RunOpener, recover
from statelog.recovery.settings import RecoveryTuning
from statelog.store.local import LocalStore
from statelog.store.port import Store
from statelog.testing.cluster import MemoryCluster
from statelog.testing.kafka import MemoryKafka
from statelog.testing.store import MemoryDisk, MemoryStore
from tests.support.processes.starts import in_fork
from tests.support.rigs.cache import janitors
from tests.support.rigs.history import HistoryRig, history_rig
from tests.support.rigs.log import where_at
from tests.support.told import told
from tests.support.waiting import wait_for

RECOVERIES = 4


class _Reads:
    """Counts of downloads and opened readers by file, through any handle on the store."""

    def __init__(self) -> None:
        self.downloads: Counter[str] = Counter()
        self.opens: Counter[str] = Counter()
        self.before_download: Callable[[Path], None] = lambda _: None
        self.after_download: Callable[[Path], None] = lambda _: None
        self._lock = threading.Lock()

    def count(self, counter: Counter[str], path: str) -> None:
        """Count one of many threads' calls."""
        with self._lock:
            counter[path] += 1


class _CountedMemory(MemoryStore):
    reads: _Reads

    def download(self, path: str, local: Path) -> None:
        """Count a download."""
        self.reads.count(self.reads.downloads, path)
        self.reads.before_download(local)
        super().download(path, local)
        self.reads.after_download(local)

    def open(self, path: str) -> AbstractContextManager[BinaryIO]:
        """Count an opened reader."""
        self.reads.count(self.reads.opens, path)
        return super().open(path)


class _CountedLocal(LocalStore):
    reads: _Reads

    def download(self, path: str, local: Path) -> None:
        """Count a download."""
        self.reads.count(self.reads.downloads, path)
        super().download(path, local)

    def open(self, path: str) -> AbstractContextManager[BinaryIO]:
        """Count an opened reader."""
        self.reads.count(self.reads.opens, path)
        return super().open(path)


class _World:
    """A log with two snapshots of several runs and a tail, opened as often as a test likes."""

    def __init__(self, base: Path, kind: str = "memory") -> None:
        self.base = base / "cache"
        self.base.mkdir()
        self._threads_before = janitors()
        self.cluster = MemoryCluster()
        self.disk = MemoryDisk(lambda: 1000.0)
        self.kind, self.root = kind, base / "root"
        self.reads = _Reads()
        self.settings = RecoverySettings(cache=CacheSettings(directory=self.base))
        self.rig: HistoryRig = history_rig(kafka=MemoryKafka(cluster=self.cluster), store=self.store())
        with Writer(self.rig.log, "w") as writer:
            for stretch in range(1, 4):
                self.rig.commit(writer, stretch, [(b"%d" % i, b"%d-%d" % (stretch, i)) for i in range(stretch, 60)])
                self.rig.snapshot()
            self.rig.commit(writer, 4, [(b"tail", b"1")])
        self.reads.opens.clear()

    @property
    def expected(self) -> dict[object, object]:
        """The newest state."""
        return self.rig.state_at(self.rig.end())

    @property
    def once(self) -> dict[str, int]:
        """Each run of the newest snapshot, once."""
        return {run.path: 1 for run in self.rig.manifests[-1].runs}

    def store(self) -> Store:
        """Return another handle on the store."""
        store = _CountedMemory(self.disk, "rig") if self.kind == "memory" else _CountedLocal(self.root, "rig")
        store.reads = self.reads
        return store

    def open(self) -> Log:
        """Open the log with its own clients."""
        return Log.open("rig", where_at(MemoryKafka(cluster=self.cluster), self.store()))

    def left(self) -> list[Path]:
        """List the cache's base."""
        return list(self.base.iterdir())

    def threads(self) -> list[Thread]:
        """Return the live threads of caches that this world started."""
        return janitors(self._threads_before)


@pytest.mark.parametrize("kind", ["memory", "local"])
def test_concurrent_recoveries_fetch_each_file_once(tmp_path: Path, kind: str) -> None:
    """Four concurrent recoveries, each with its own clients and key groups, download every run exactly once."""
    world = _World(tmp_path, kind)
    assert len(world.once) == 3
    wanted = [None, range(4), range(4, 8), None]
    logs = [world.open() for _ in range(RECOVERIES)]
    held = [recover(log, key_groups=w, settings=world.settings) for log, w in zip(logs, wanted, strict=True)]
    start = threading.Barrier(RECOVERIES)

    def read(number: int) -> dict[object, object]:
        start.wait()
        return held[number].to_dict()

    with ThreadPoolExecutor(RECOVERIES) as pool:
        states = list(pool.map(read, range(RECOVERIES)))
    assert states == [world.rig.state_at(world.rig.end(), groups) for groups in wanted]
    assert (world.reads.downloads, world.reads.opens) == (world.once, {})
    assert (world.left(), world.threads(), list_leases(world.rig.log.store)) == ([], [], [])


def test_whoever_holds_the_cache_keeps_the_files(tmp_path: Path) -> None:
    """Successive recoveries share files while somebody holds the cache, and fetch them again otherwise."""
    world = _World(tmp_path)
    with RunOpener(world.rig.log, world.settings.cache):
        for _ in range(3):
            assert recover(world.rig.log, settings=world.settings).to_dict() == world.expected
        assert world.reads.downloads == world.once
    assert world.left() == []
    assert recover(world.rig.log, settings=world.settings).to_dict() == world.expected
    assert world.reads.downloads == dict.fromkeys(world.once, 2)
    assert (world.left(), world.threads()) == ([], [])


def test_a_recovery_can_be_filled_again(tmp_path: Path) -> None:
    """Every target of one recovery is right, ordered ones too, and each leaves nothing behind."""
    world = _World(tmp_path)
    recovery = recover(world.rig.log, settings=world.settings)
    assert recovery.to_dict() == world.expected
    assert world.left() == []
    assert recovery.to_arrow(ordered=True).num_rows == len(world.expected)
    recovery.close()
    recovery.close()
    assert world.left() == []


@pytest.mark.parametrize("portions", [1, None])
def test_a_stream_shares_the_cache_and_leaves_it(tmp_path: Path, portions: int | None) -> None:
    """A stream fetches its runs through the cache and leaves nothing, whether read to its end or dropped."""
    world = _World(tmp_path)
    rows = 0
    with recover(world.rig.log, settings=world.settings).stream() as stream:
        for portion in islice(stream, portions):
            rows += portion.changes.num_rows
    assert rows == len(world.expected) or portions == 1
    assert (world.reads.downloads, world.reads.opens) == (world.once, {})
    assert (world.left(), world.threads(), list_leases(world.rig.log.store)) == ([], [], [])


def test_without_a_cache_nothing_is_downloaded(tmp_path: Path) -> None:
    """Without a cache, runs are read in ranges from the store, and no local file is made."""
    world = _World(tmp_path)
    with RunOpener(world.rig.log) as opener:
        opener.hold()
        assert recover(world.rig.log).to_dict() == world.expected
        assert not opener.failed(world.rig.manifests[-1].runs[0], CorruptRun("damaged")).is_copy
    assert (world.reads.downloads, world.reads.opens, world.left()) == ({}, world.once, [])


def test_one_cache_for_one_log(tmp_path: Path) -> None:
    """Users of one log share one cache, which the last one closes. Another log has another cache."""
    world = _World(tmp_path)
    (tmp_path / "other").mkdir()
    other = _World(tmp_path / "other", "local")
    settings = CacheSettings(directory=world.base)
    first, second = RunOpener(world.rig.log, settings), RunOpener(world.open(), settings)
    third = RunOpener(other.rig.log, settings)
    for opener in (first, first, second, third):
        opener.hold()
    assert len(world.left()) == 2
    run = world.rig.manifests[-1].runs[0]
    first.open(run).__exit__(None, None, None)
    assert (second.statistics().files, third.statistics().files) == (1, 0)
    first.close()
    first.close()
    third.close()
    assert len(world.left()) == 1
    second.close()
    assert world.left() == []
    with pytest.raises(Misuse):
        second.statistics()


def test_other_settings_for_a_cache_in_use_are_refused(tmp_path: Path) -> None:
    """Two idle times for one cache are a ConfigError with both, and the refused recovery leaves no lease."""
    world = _World(tmp_path)
    with RunOpener(world.rig.log, CacheSettings(directory=world.base, idle_s=1.0)):
        with pytest.raises(ConfigError) as caught:
            recover(world.rig.log, settings=world.settings).to_dict()
        assert "idle_s=1.0" in str(caught.value.facts["in_use"])
        assert list_leases(world.rig.log.store) == []
    with pytest.raises(ConfigError):
        CacheSettings(directory=world.base, idle_s=-1.0)
    with pytest.raises(ConfigError, match=r"pathlib\.Path"):
        CacheSettings(directory=str(world.base))  # type: ignore[arg-type]  # by a program that no checker reads


def test_a_full_cache_is_gone_around(tmp_path: Path) -> None:
    """Runs that do not fit into the cache are read from the store, with a warning and the same state."""
    world = _World(tmp_path)
    cache = CacheSettings(directory=world.base, max_bytes=1)
    with told("max_bytes=1"):
        assert recover(world.rig.log, settings=RecoverySettings(cache=cache)).to_dict() == world.expected
    assert (world.reads.downloads, world.reads.opens, world.left()) == ({}, world.once, [])


def test_a_copy_damaged_on_its_way_does_not_blame_the_snapshot(tmp_path: Path) -> None:
    """A damaged download costs a warning and a read from the store, and no older snapshot is used."""
    world = _World(tmp_path)
    world.reads.after_download = _flip
    with told("sha256"):
        recovery = recover(world.rig.log, settings=world.settings)
        assert recovery.to_dict() == world.expected
    assert (recovery.plan.manifest_number, recovery.warnings) == (3, ())
    assert (world.reads.opens, world.left()) == (world.once, [])


def test_copies_that_decay_are_gone_around(tmp_path: Path) -> None:
    """Each copy that decays after its verification costs a warning, but neither an attempt nor a snapshot."""
    world = _World(tmp_path)
    with RunOpener(world.rig.log, world.settings.cache):
        assert recover(world.rig.log, settings=world.settings).to_dict() == world.expected
        for file in world.base.rglob("*.run"):
            _flip(file)
        recovery = recover(world.rig.log, settings=replace(world.settings, _tuning=RecoveryTuning(attempts=1)))
        with told("is damaged"):
            assert recovery.to_dict() == world.expected
        assert (recovery.plan.manifest_number, recovery.warnings) == (3, ())
        assert recovery.statistics().plans == 1 + len(world.once)
        assert (world.reads.downloads, world.reads.opens.keys()) == (world.once, world.once.keys())
        assert recover(world.rig.log, settings=world.settings).to_dict() == world.expected
    assert world.reads.downloads == dict.fromkeys(world.once, 2)


def test_a_copy_that_somebody_deleted_is_gone_around(tmp_path: Path) -> None:
    """A copy that a cleaner of temporary files removed costs a warning and a read from the store, but no snapshot."""
    world = _World(tmp_path)
    with RunOpener(world.rig.log, world.settings.cache):
        assert recover(world.rig.log, settings=world.settings).to_dict() == world.expected
        for file in world.base.rglob("*.run"):
            file.unlink()
        recovery = recover(world.rig.log, settings=world.settings)
        with told("cannot be opened"):
            assert recovery.to_dict() == world.expected
        assert (recovery.plan.manifest_number, recovery.warnings, recovery.statistics().plans) == (3, (), 1)
        assert recover(world.rig.log, settings=world.settings).to_dict() == world.expected
    assert (world.reads.opens, world.reads.downloads) == (world.once, dict.fromkeys(world.once, 2))


def test_a_failing_recovery_leaves_nothing(tmp_path: Path) -> None:
    """A recovery that fails in the middle of its runs leaves the cache, and the cache removes its directory."""
    world = _World(tmp_path)

    def fail(_: object) -> None:
        if world.reads.downloads:
            raise RuntimeError("the caller's own")

    settings = RecoverySettings(
        cache=CacheSettings(directory=world.base), _tuning=RecoveryTuning(progress_interval_s=0.0)
    )
    recovery = recover(world.rig.log, settings=settings, on_progress=fail)
    with pytest.raises(RuntimeError, match="the caller's own"):
        recovery.to_dict()
    assert (world.left(), world.threads(), list_leases(world.rig.log.store)) == ([], [], [])


def test_a_failure_during_a_download_leaves_no_reader(tmp_path: Path) -> None:
    """A recovery that fails during a download releases the run once it has arrived."""
    world = _World(tmp_path)
    failed = threading.Event()

    def fail(_: object) -> None:
        if world.reads.downloads:
            failed.set()
            raise RuntimeError("the caller's own")

    world.reads.before_download = lambda _: wait_for(failed.is_set)
    cache = CacheSettings(directory=world.base)
    with RunOpener(world.rig.log, cache) as holder:
        settings = RecoverySettings(cache=cache, _tuning=RecoveryTuning(progress_interval_s=0.0))
        with pytest.raises(RuntimeError, match="the caller's own"):
            recover(world.rig.log, settings=settings, on_progress=fail).to_dict()
        assert holder.statistics().files == len(world.reads.downloads)
        assert holder.statistics().readers == 0


def test_a_second_plan_uses_what_the_first_one_fetched(tmp_path: Path) -> None:
    """After a damaged newest snapshot, runs that the older one shares are not fetched again."""
    world = _World(tmp_path)
    *shared, newest = world.once
    world.disk.flip_byte(f"rig/{newest}", 100)
    with told():
        recovery = recover(world.rig.log, settings=world.settings)
        assert recovery.to_dict() == world.expected
    assert recovery.plan.manifest_number == 2
    assert world.reads.downloads == dict.fromkeys([*shared, newest], 1)


def test_a_lease_is_renewed_during_a_download(tmp_path: Path) -> None:
    """A download that takes longer than the lease's time does not cost the lease."""
    world = _World(tmp_path)
    now_s = [0.0]
    store, wrote = world.rig.log.store, Counter[str]()
    put = store.put

    def counted_put(path: str, data: bytes) -> None:
        wrote[path.split("/")[0]] += 1
        put(path, data)

    def slowly(_: Path) -> None:
        before = wrote["leases"]
        now_s[0] += 100.0
        wait_for(lambda: wrote["leases"] > before)

    world.reads.before_download = slowly
    world.rig.log.store.put = counted_put  # type: ignore[method-assign]  # counts what the twin is asked
    recovery = Environment(clock=lambda: now_s[0]).run(recover, world.rig.log, settings=world.settings)
    assert recovery.to_dict() == world.expected
    assert 1 < wrote["leases"] <= 1 + len(world.once)  # Concurrent downloads share a renewal.


def test_a_fork_starts_with_a_cache_of_its_own(tmp_path: Path) -> None:
    """A child shares no cache with its parent, and closing it there leaves the parent's files."""
    world = _World(tmp_path)
    run = world.rig.manifests[-1].runs[0]
    opener = RunOpener(world.rig.log, world.settings.cache)
    opener.hold()

    def child() -> None:
        opener.open(run).__exit__(None, None, None)
        assert len(world.left()) == 2
        opener.close()
        assert len(world.left()) == 1

    assert in_fork(child) == 0
    assert len(world.left()) == 1
    opener.close()
    assert world.left() == []


def _flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)
