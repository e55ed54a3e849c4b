"""The recovery cache downloads each file once, counts its readers, removes idle files in time, and leaves nothing."""

import io
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from threading import Barrier, Condition, Lock, Thread
from typing import Any, BinaryIO

import pytest

from statelog.errors import ClosedError, ConfigError, CorruptRun, NotFound, StorageFull, StoreUnavailable
from statelog.recovery.run_cache import CacheDirectory, CachedRun, CacheSettings, RunCache
from tests.support.rigs.cache import CacheRig, Gate, janitors, run_of
from tests.support.waiting import wait_for

READERS = 8
_PATIENCE_S = 10.0


def test_many_readers_cost_one_download(tmp_path: Path) -> None:
    """Concurrent readers of the same two runs read the right bytes, and each file is fetched once."""
    rig = CacheRig(tmp_path)
    runs = {rig.put("a", b"a" * 1000): b"a" * 1000, rig.put("b", b"b" * 10): b"b" * 10}
    start = Barrier(READERS)

    def read(number: int) -> None:
        start.wait()
        for run, data in list(runs.items())[:: 1 if number % 2 else -1]:
            assert rig.read(run) == data

    with rig.cache, ThreadPoolExecutor(READERS) as pool:
        list(pool.map(read, range(READERS)))
        assert rig.downloads == {run.path: 1 for run in runs}
        counts = rig.cache.statistics()
        assert (counts.opened, counts.downloads, counts.readers) == (2 * READERS, 2, 0)
        assert (counts.files, counts.size_bytes, counts.downloaded_bytes) == (2, 1010, 1010)


def test_a_download_blocks_only_those_who_need_it(tmp_path: Path) -> None:
    """A download holds up its own readers only. Another run can be opened, read and closed meanwhile."""
    rig = CacheRig(tmp_path)
    slow, quick = rig.put("slow", b"slow"), rig.put("quick", b"quick")
    gate = Gate()
    rig.on_download = lambda path: gate.wait() if path == slow.path else None
    with rig.cache, ThreadPoolExecutor(READERS) as pool:
        reading = [pool.submit(rig.read, slow) for _ in range(READERS)]
        gate.await_reached()
        assert rig.read(quick) == b"quick"
        assert not any(future.done() for future in reading)
        gate.open()
        assert [future.result() for future in reading] == [b"slow"] * READERS
        assert rig.downloads[slow.path] == 1


def test_an_open_retains_where_it_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose idle time is over is not removed between the lookup of its next reader and the opening."""
    rig = CacheRig(tmp_path)
    run = rig.put("a", b"data")

    class SweptAtOnce(Condition):
        """The cache's lock, followed by a sweep each time that it is released."""

        is_armed = False

        def __exit__(self, *details: Any) -> None:
            super().__exit__(*details)
            if self.is_armed:
                self.is_armed = False
                rig.cache.sweep()

    with rig.cache:
        lock = SweptAtOnce(Lock())
        monkeypatch.setattr(rig.cache, "_changed", lock)  # The only way into the gap between two critical sections.
        asked: list[None] = []
        rig.on_clock = lambda: asked.append(None)
        rig.read(run)
        wait_for(lambda: len(asked) == 2)  # The departing reader, and the janitor, which holds the lock until it waits.
        with lock:
            rig.now_s += 1e6
        lock.is_armed = True
        assert rig.read(run) == b"data"
        assert not lock.is_armed
        assert rig.downloads[run.path] == 1


def test_a_failed_download_fails_its_waiters_and_is_tried_again(tmp_path: Path) -> None:
    """A failed download raises a separate typed error for each waiting reader. The next reader gets the file."""
    rig = CacheRig(tmp_path)
    run = rig.put("a", b"data")
    gate = Gate()
    rig.on_download = lambda _: gate.wait()
    rig.disk.remove(f"rig/{run.path}")
    with rig.cache, ThreadPoolExecutor(READERS) as pool:
        reading = [pool.submit(rig.read, run) for _ in range(READERS)]
        wait_for(lambda: rig.cache.statistics().readers == READERS)
        gate.open()
        errors = [future.exception() for future in reading]
        assert {type(error) for error in errors} == {NotFound}
        assert len({id(error) for error in errors}) == READERS
        assert rig.downloads[run.path] == 1
        assert (rig.files(), rig.cache.statistics().files, rig.cache.statistics().failed) == ([], 0, 1)
        rig.disk.write(f"rig/{run.path}", b"data", absent=True)
        assert rig.read(run) == b"data"
        assert rig.downloads[run.path] == 2


@pytest.mark.parametrize("damage", ["flipped", "short"])
def test_a_damaged_download_is_never_cached(tmp_path: Path, damage: str) -> None:
    """A download with wrong bytes or length is CorruptRun and leaves no file. The whole one is fetched later."""
    rig = CacheRig(tmp_path)
    run = rig.put("a", b"data")
    path = f"rig/{run.path}"
    rig.disk.flip_byte(path, 1) if damage == "flipped" else rig.disk.truncate(path, 3)
    with rig.cache:
        with pytest.raises(CorruptRun) as caught:
            rig.read(run)
        assert caught.value.facts["path"] == run.path
        assert (rig.files(), rig.cache.statistics().files) == ([], 0)
        rig.disk.write(path, b"data", absent=False)
        assert rig.read(run) == b"data"


def test_closing_a_reader_twice_counts_once(tmp_path: Path) -> None:
    """Closing a reader twice counts once, so another reader's file stays and can be opened again."""
    rig = CacheRig(tmp_path, idle_s=0)
    run = rig.put("a", b"data")
    with rig.cache:
        first, second = rig.cache.open(rig.store, run), rig.cache.open(rig.store, run)
        first.close()
        first.close()
        assert rig.cache.statistics().readers == 1
        assert rig.files() == [4]
        with rig.cache.open(rig.store, run) as third, second as file:
            assert (third.read(), file.read()) == (b"data", b"data")
        assert (rig.files(), rig.downloads[run.path]) == ([], 1)
        assert rig.read(run) == b"data"
        assert rig.downloads[run.path] == 2


def test_a_file_that_cannot_be_closed_still_counts_its_reader_out() -> None:
    """A reader whose file fails to close is counted out all the same, and the error is raised once."""
    released: list[bool] = []
    reader = CachedRun(_Stuck(), lambda: released.append(True))
    with pytest.raises(OSError, match="stuck"):
        reader.close()
    reader.close()
    assert released == [True]


class _Stuck(io.BytesIO):
    def close(self) -> None:
        super().close()  # Otherwise Python closes it again at collection, and from 3.13 on reports the exception.
        raise OSError("stuck")


def test_idle_runs_go_when_their_time_is_over(tmp_path: Path) -> None:
    """A run is removed `idle_s` after its last reader, never while it is read, and each reader restarts the time."""
    rig = CacheRig(tmp_path, idle_s=60.0)
    run = rig.put("a", b"data")
    with rig.cache:
        rig.read(run)
        rig.now_s += 59.0
        rig.cache.sweep()
        with rig.cache.open(rig.store, run):
            rig.now_s += 1000.0
            rig.cache.sweep()
            assert rig.files() == [4]
        rig.now_s += 59.0
        rig.cache.sweep()
        assert (rig.files(), rig.downloads[run.path]) == ([4], 1)
        rig.now_s += 1.0
        rig.cache.sweep()
        assert (rig.files(), rig.cache.statistics().removed) == ([], 1)
        rig.read(run)
        assert rig.downloads[run.path] == 2


def test_the_janitor_comes_by_itself(tmp_path: Path) -> None:
    """One thread removes idle runs in time, without a call, and ends when the cache is closed."""
    rig = CacheRig(tmp_path)
    runs = [rig.put(name, b"data") for name in "abc"]
    base = tmp_path / "real"
    cache = RunCache(CacheDirectory(base), CacheSettings(directory=base, idle_s=0.05))
    before = janitors()
    for run in runs:
        cache.open(rig.store, run).close()
    assert len(janitors(before)) == 1
    wait_for(lambda: cache.statistics().removed == len(runs))
    assert cache.statistics().files == 0
    cache.close()
    assert janitors(before) == []
    rig.cache.close()


def test_a_bound_removes_what_was_idle_longest(tmp_path: Path) -> None:
    """Within `max_bytes`, the runs that were idle longest make room for new ones. Runs in use are never removed."""
    rig = CacheRig(tmp_path, max_bytes=20)
    a, b, c = (rig.put(name, name.encode() * 8) for name in "abc")
    with rig.cache:
        rig.read(a)
        rig.now_s += 1
        rig.read(b)
        rig.now_s += 1
        rig.read(a)
        rig.read(c)
        rig.read(a)
        assert rig.downloads == {a.path: 1, b.path: 1, c.path: 1}
        with rig.cache.open(rig.store, a), rig.cache.open(rig.store, b):
            assert rig.downloads[b.path] == 2
            with pytest.raises(StorageFull) as caught:
                rig.cache.open(rig.store, c)
            assert (caught.value.facts["max_bytes"], caught.value.facts["size_bytes"]) == (20, 8)
            assert rig.files() == [8, 8]
        with pytest.raises(StorageFull):
            rig.read(rig.put("large", b"x" * 21))
        assert rig.files() == [8, 8]


def test_a_distrusted_copy_is_fetched_anew(tmp_path: Path) -> None:
    """A copy that was found damaged is not handed out again. Present readers retain it, and the last one removes it."""
    rig = CacheRig(tmp_path)
    run = rig.put("a", b"data")
    with rig.cache:
        with rig.cache.open(rig.store, run) as old:
            rig.cache.distrust(run)
            assert rig.read(run) == old.read()
            assert (rig.downloads[run.path], rig.files()) == (2, [4, 4])
        assert rig.files() == [4]
        rig.cache.distrust(run)
        rig.cache.distrust(run)
        assert rig.files() == []


def test_a_copy_that_somebody_deleted_is_fetched_anew(tmp_path: Path) -> None:
    """A deleted copy is an error for one reader. Open readers continue, and the next one gets a new copy."""
    rig = CacheRig(tmp_path)
    run = rig.put("a", b"data")
    with rig.cache:
        with rig.cache.open(rig.store, run) as old:
            for file in tmp_path.rglob("*.run"):
                file.unlink()
            with pytest.raises(CorruptRun, match="cannot be opened"):
                rig.read(run)
            assert old.read() == b"data"
            assert rig.read(run) == b"data"
        counts = rig.cache.statistics()
        assert (rig.downloads[run.path], counts.files, counts.readers, rig.files()) == (2, 1, 0, [4])


def test_a_copy_that_nobody_can_open_is_dropped_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that cannot be opened is an error for each waiting reader, and each is counted out."""
    rig = CacheRig(tmp_path)
    run = rig.put("a", b"data")
    gate = Gate()
    rig.on_download = lambda _: gate.wait()

    def refuse(_: Path) -> BinaryIO:
        raise StoreUnavailable("too many open files")

    with rig.cache, ThreadPoolExecutor(2) as pool, monkeypatch.context() as full:
        full.setattr(rig.directory, "open", refuse)
        reading = [pool.submit(rig.read, run) for _ in range(2)]
        wait_for(lambda: rig.cache.statistics().readers == 2)
        gate.open()
        assert [type(future.exception()) for future in reading] == [CorruptRun] * 2
        full.undo()
        assert (rig.read(run), rig.downloads[run.path], rig.files()) == (b"data", 2, [4])
        assert rig.cache.statistics().readers == 0


def test_close_leaves_nothing(tmp_path: Path) -> None:
    """After close there is no file, directory or thread, whatever is still open. Closing again changes nothing."""
    rig = CacheRig(tmp_path)
    run = rig.put("a", b"data")
    before = janitors()
    rig.read(run)
    assert len(janitors(before)) == 1
    reader = rig.cache.open(rig.store, run)
    rig.cache.close()
    rig.cache.close()
    assert list(tmp_path.iterdir()) == []
    assert janitors(before) == []
    with reader as file:
        assert file.read() == b"data"
    reader.close()
    with pytest.raises(ClosedError):
        rig.cache.open(rig.store, run)
    assert list(tmp_path.iterdir()) == []


def test_close_waits_for_a_download(tmp_path: Path) -> None:
    """A close during a download ends after it and leaves nothing. The reader gets ClosedError."""
    rig = CacheRig(tmp_path)
    run = rig.put("a", b"data")
    gate = Gate()
    rig.on_download = lambda path: gate.wait() if path == run.path else None
    with ThreadPoolExecutor(2) as pool:
        reading = pool.submit(rig.read, run)
        gate.await_reached()
        closing = pool.submit(rig.cache.close)
        wait_for(lambda: _is_closed(rig))
        assert not closing.done()
        gate.open()
        assert isinstance(reading.exception(), ClosedError)
        closing.result()
    assert list(tmp_path.iterdir()) == []


def _is_closed(rig: CacheRig) -> bool:
    try:
        rig.cache.open(rig.store, run_of("missing", b"")).close()
    except (ClosedError, NotFound) as error:
        return isinstance(error, ClosedError)
    return False


def test_limits_without_sense_are_refused(tmp_path: Path) -> None:
    """Negative or endless idle times, and negative bounds, are ConfigError."""
    given: list[tuple[Any, Any]] = [(-1.0, None), (float("inf"), None), (float("nan"), None), ("1", None)]
    given += [(1.0, -1), (1.0, 0.5)]
    for idle_s, max_bytes in given:
        with pytest.raises(ConfigError):
            CacheSettings(directory=tmp_path, idle_s=idle_s, max_bytes=max_bytes)


@pytest.mark.parametrize(
    ("owner", "step", "at"),
    [(RunCache, "_count", 1), (CacheDirectory, "fetch", 1), (RunCache, "_count", 2)],
)
def test_an_interrupted_reader_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type[Any], step: str, at: int
) -> None:
    """Ctrl-C at any step of an opening affects no other reader, and closing does not wait."""
    rig, work, calls, found = CacheRig(tmp_path), getattr(owner, step), count(1), list[bytes]()
    run = rig.put("a", b"data")

    def interrupted(*args: Any, **more: Any) -> Any:
        done = work(*args, **more)
        if next(calls) == at:
            raise KeyboardInterrupt
        return done

    def read_and_close() -> None:
        found.append(rig.read(run))
        rig.cache.close()

    monkeypatch.setattr(owner, step, interrupted)
    with pytest.raises(KeyboardInterrupt):
        rig.read(run)
    after = Thread(target=read_and_close, daemon=True)
    after.start()
    after.join(_PATIENCE_S)
    assert (found, after.is_alive()) == ([b"data"], False)
    assert list(tmp_path.iterdir()) == []
