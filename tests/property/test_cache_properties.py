"""The recovery cache against a model, step by step; and readers against cleanup, concurrently."""

import random
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event, Thread

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from statelog.errors import CorruptRun
from statelog.recovery.run_cache import CachedRun
from statelog.schemas.snapshot.runs import RunFile
from tests.support.rigs.cache import CacheRig
from tests.support.waiting import wait_for

_NAMES = "abc"
_IDLE_S = 10


class CacheModel(RuleBasedStateMachine):
    """Opens, closes, time and damage in any order. `idle` is the model: the time until which a run's copy must stay."""

    def __init__(self) -> None:
        super().__init__()
        self.base = tempfile.TemporaryDirectory()
        self.rig = CacheRig(Path(self.base.name), idle_s=_IDLE_S)
        self.runs: dict[str, RunFile] = {name: self.rig.put(name, name.encode() * 50) for name in _NAMES}
        self.open: list[tuple[str, CachedRun, int]] = []
        self.copies: dict[str, int] = {}
        self.idle_until: dict[str, float] = {}
        self.made = 0

    def readers(self, name: str) -> int:
        """Return the number of readers of the copy that is handed out now."""
        return sum(n == name and copy == self.copies.get(name) for n, _, copy in self.open)

    @rule(name=st.sampled_from(_NAMES))
    def open_run(self, name: str) -> None:
        """Add a reader; download only if there is no copy."""
        before = self.rig.downloads[self.runs[name].path]
        reader = self.rig.cache.open(self.rig.store, self.runs[name])
        fetched = self.rig.downloads[self.runs[name].path] - before
        assert fetched == (name not in self.copies)
        if fetched:
            self.made += 1
            self.copies[name] = self.made
        self.idle_until.pop(name, None)
        self.open.append((name, reader, self.copies[name]))

    @rule(which=st.integers(0, 9), times=st.integers(1, 2))
    def close_reader(self, which: int, times: int) -> None:
        """Remove a reader, however often it is closed."""
        if not self.open:
            return
        name, reader, copy = self.open.pop(which % len(self.open))
        for _ in range(times):
            reader.close()
        if copy == self.copies.get(name) and not self.readers(name):
            self.idle_until[name] = self.rig.now_s + _IDLE_S

    @rule(seconds=st.integers(0, 2 * _IDLE_S))
    def time_passes(self, seconds: int) -> None:
        """Let time pass: idle copies are deleted when it is time, and no others."""
        self.rig.now_s += seconds
        self.rig.cache.sweep()
        for name in [name for name, due in self.idle_until.items() if due <= self.rig.now_s]:
            del self.idle_until[name], self.copies[name]

    @rule(name=st.sampled_from(_NAMES))
    def distrust(self, name: str) -> None:
        """Hand the copy out no more."""
        self.rig.cache.distrust(self.runs[name])
        self.copies.pop(name, None)
        self.idle_until.pop(name, None)

    @rule(name=st.sampled_from(_NAMES))
    def fail_a_download(self, name: str) -> None:
        """Fail a download by damage, which leaves everything as it was."""
        if name in self.copies:
            return
        path = f"rig/{self.runs[name].path}"
        self.rig.disk.flip_byte(path, 0)
        try:
            self.rig.cache.open(self.rig.store, self.runs[name])
        except CorruptRun:
            self.rig.disk.flip_byte(path, 0)
        else:
            raise AssertionError("damaged bytes were handed out")

    @invariant()
    def the_disk_holds_what_the_model_says(self) -> None:
        """Check that files are the present copies and the distrusted ones with readers, and that counts agree."""
        distrusted = {copy for name, _, copy in self.open if copy != self.copies.get(name)}
        assert len(self.rig.files()) == len(self.copies) + len(distrusted)
        counts = self.rig.cache.statistics()
        assert counts.files == len(self.copies)
        assert counts.readers == sum(self.readers(name) for name in _NAMES)

    def teardown(self) -> None:
        """Check that every reader still reads its run, and that nothing is left then."""
        for name, reader, _ in self.open:
            with reader as file:
                assert file.read() == name.encode() * 50
        self.rig.cache.close()
        assert list(self.rig.base.iterdir()) == []
        self.base.cleanup()


TestCacheModel = CacheModel.TestCase
TestCacheModel.settings = settings(deadline=None, max_examples=60, stateful_step_count=30)


def test_readers_and_cleanup_at_once(tmp_path: Path) -> None:
    """Four threads open, read and close while a fifth removes idle copies: every read is right, counts end at 0."""
    rig = CacheRig(tmp_path, idle_s=1e-9)
    runs = [rig.put(name, name.encode() * 50) for name in _NAMES]
    over = Event()

    def sweep() -> None:
        while not over.is_set():
            rig.now_s += 1.0
            rig.cache.sweep()

    def read(seed: int) -> None:
        rng = random.Random(seed)
        for turn in range(150):
            if turn == 75:  # All wait here, if needed: then nobody reads, and the sweeper cannot be too late.
                wait_for(lambda: rig.cache.statistics().removed > 0)
            number = rng.randrange(len(runs))
            with rig.cache.open(rig.store, runs[number]) as file:
                assert file.read() == _NAMES[number].encode() * 50

    sweeper = Thread(target=sweep)
    sweeper.start()
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(read, range(4)))
    finally:
        over.set()
        sweeper.join()
    rig.now_s += 1.0
    rig.cache.sweep()
    counts = rig.cache.statistics()
    assert (counts.readers, counts.files, counts.failed, rig.files()) == (0, 0, 0, [])
    assert counts.removed == counts.downloads > len(runs)
    rig.cache.close()


def test_an_open_cannot_come_between_look_and_removal(tmp_path: Path) -> None:
    """An open that starts after cleanup saw no reader, and before it removed the file, gets a file of its own."""
    rig = CacheRig(tmp_path, idle_s=1.0)
    run = rig.put("a", b"data")
    rig.read(run)
    rig.now_s += 2.0
    opening: list[Future[bytes]] = []
    came_between: list[bool] = []

    def open_now() -> None:
        # Cleanup reads the time inside its critical section: an open that starts now has to wait outside.
        if not opening:
            opening.append(pool.submit(rig.read, run))
            came_between.append(bool(wait(opening, 0.1).done))

    with ThreadPoolExecutor(1) as pool:
        rig.on_clock = open_now
        rig.cache.sweep()
        assert opening[0].result() == b"data"
    assert (came_between, rig.downloads[run.path], rig.cache.statistics().removed) == ([False], 2, 1)
    rig.cache.close()
