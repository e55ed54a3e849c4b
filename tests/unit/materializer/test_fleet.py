"""Many logs in one process, on twins and real threads: the trouble of one log does not affect another."""

import threading
import time
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from statelog.errors import StoreUnavailable
from statelog.log import Log, LogOptions
from statelog.materializer import Control, Event, EventKind
from statelog.materializer.copy import copy_log
from statelog.materializer.engine import LocalEngine
from statelog.materializer.fleet import Fleet, FleetSettings, Kit, MemberState
from statelog.materializer.outcome import CompletedRound
from statelog.producer import Writer
from statelog.testing import Twin
from statelog.testing.store import Fault, MemoryStore
from tests.support.rigs.log import settings_for
from tests.support.waiting import wait_for


@dataclass(slots=True)
class FleetBench:
    """Logs on a twin, and the fleet that drives them. `calls` sees each call of the store first."""

    scratch: Path
    twin: Twin = field(default_factory=Twin)
    settings: FleetSettings = field(default_factory=lambda: FleetSettings(retry_s=0.05, find_s=0.05))
    of_log: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    calls: Callable[[str, str], Fault | None] = lambda _log, _method: None
    events: list[Event] = field(default_factory=list[Event])
    opened: list[str] = field(default_factory=list[str])
    fleet: Fleet = field(init=False)

    def make(self, *names: str) -> None:
        """Make logs, each with a commit."""
        for name in names:
            Log.create(name, self.twin.where(), LogOptions(partitions=1, key_groups=4)).close()
            self.write(name)

    def write(self, name: str) -> None:
        """Write one more commit."""
        with Log.open(name, self.twin.where()) as log, Writer(log, "w") as writer:
            writer.put(b"k", str(time.monotonic()).encode())
            writer.commit()

    @contextmanager
    def running(
        self, *names: str, find: Callable[[], Collection[str]] | None = None, control: Control | None = None
    ) -> Generator[None]:
        """Run the fleet on its own thread until the block ends."""
        control = control or Control()
        self.fleet = Fleet(
            self._kit, names, find=find, settings=self.settings, control=control, on_event=self.events.append
        )
        thread = threading.Thread(target=self.fleet.run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            control.stop()
            control.insist()
            thread.join(60)
        assert not thread.is_alive()

    def rounds(self, name: str) -> int:
        """Return how many rounds of a log put a manifest."""
        return self.told(EventKind.ROUND_COMPLETED, name)

    def merged(self, name: str) -> int:
        """Return how many of them named runs in place of others."""
        outcomes = (one.outcome for one in list(self.events) if one.log == name)
        return sum(isinstance(outcome, CompletedRound) and outcome.runs_merged > 0 for outcome in outcomes)

    def told(self, kind: EventKind, name: str) -> int:
        """Return how many events of a kind a log has."""
        return sum(one.kind is kind and one.log == name for one in list(self.events))

    def state(self, name: str) -> MemberState | None:
        """Return the state of a log."""
        return next((one for one in self.fleet.states() if one.log == name), None)

    def _kit(self, name: str) -> Kit:
        given: dict[str, Any] = {"interval_s": 0.02, "jitter": 0.0, "alarm_age_s": 60.0, **self.of_log.get(name, {})}
        return Kit(lambda: self._open(name), settings_for(self.scratch, **given), LocalEngine)

    def _open(self, name: str) -> Log:
        self.opened.append(name)
        store = MemoryStore(self.twin.disk, name, faults=lambda method, _: self.calls(name, method))
        return Log.open(name, replace(self.twin.where(), root=store))


@pytest.fixture
def bench(tmp_path: Path) -> FleetBench:
    """Return a bench without logs."""
    return FleetBench(tmp_path)


def test_each_log_gets_its_rounds(bench: FleetBench) -> None:
    """Each log has rounds by its own settings and its own counts. All logs are closed at the end."""
    bench.make("a", "b", "c")
    bench.of_log["c"] = {"interval_s": 59.0, "jitter": 1.0, "alarm_age_s": 1e5}
    with bench.running("a", "b", "c"):
        wait_for(lambda: bench.rounds("a") > 0 and bench.rounds("b") > 0)
        for _ in range(3):
            before = bench.rounds("a")
            bench.write("a")
            wait_for(lambda before=before: bench.rounds("a") > before)  # type: ignore[misc]  # a lambda with a default
        state = bench.state("a")
        assert state is not None
        assert state.statistics is not None
        assert state.statistics.completed >= 4
        assert bench.fleet.late_s == 0
    assert bench.rounds("b") == 1
    assert bench.rounds("c") <= 1
    assert {one.log for one in bench.events if one.kind is EventKind.STOPPED} == {"a", "b", "c"}


def test_a_damaged_log_is_set_aside_and_the_others_go_on(bench: FleetBench) -> None:
    """A damaged log is quarantined with its reason, and resumes once it is mended."""
    bench.make("bad", "good")
    [manifest_path] = [one.path for one in bench.twin.disk.files("bad/descriptor")]
    whole = bench.twin.disk.get(manifest_path)
    bench.twin.disk.flip_byte(manifest_path, 12)
    with bench.running("bad", "good"):
        wait_for(lambda: bench.told(EventKind.LOG_SET_ASIDE, "bad") >= 2)
        state = bench.state("bad")
        assert state is not None
        assert "CorruptDescriptor" in state.problem
        before = bench.rounds("good")
        bench.write("good")
        wait_for(lambda: bench.rounds("good") > before)
        bench.twin.disk.write(manifest_path, whole, absent=False)
        wait_for(lambda: bench.rounds("bad") == 1)
        mended = bench.state("bad")
        assert mended is not None
        assert not mended.problem
    assert bench.told(EventKind.LOG_SET_ASIDE, "good") == 0


def test_rounds_that_hang_keep_no_other_log_from_its_rounds(bench: FleetBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hanging rounds do not count against the limit of concurrent rounds, so another log still has its rounds."""
    monkeypatch.setattr("statelog.materializer.fleet._PATIENCE_S", 0.1)
    bench.settings = FleetSettings(rounds=2, looks=2, retry_s=0.05, find_s=0.05)
    hanging = ["h1", "h2", "h3"]
    bench.make(*hanging, "well")
    over, hung = threading.Event(), set[str]()

    def hang(log: str, method: str) -> Fault | None:
        if log in hanging and method == "upload":
            hung.add(log)
            over.wait(60)
        return None

    bench.calls = hang
    with bench.running(*hanging, "well"):
        wait_for(lambda: hung == set(hanging))
        for _ in range(3):
            before = bench.rounds("well")
            bench.write("well")
            wait_for(lambda before=before: bench.rounds("well") > before)  # type: ignore[misc]  # as above
        state = bench.state("h1")
        assert state is not None
        assert state.statistics is not None
        assert state.statistics.silent_s > 0.1
        over.set()
        wait_for(lambda: all(bench.rounds(name) for name in hanging))


def test_merges_that_hang_keep_no_other_log_from_its_merges(bench: FleetBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hanging background merges do not count against the limit, so another log still merges."""
    monkeypatch.setattr("statelog.materializer.fleet._PATIENCE_S", 0.1)
    bench.settings = FleetSettings(rounds=1, retry_s=0.05, find_s=0.05)
    names, over, hung = ["hangs", "well"], threading.Event(), set[str]()
    bench.of_log = {name: {"fanout": 2, "merge_bytes": 1} for name in names}
    bench.make(*names)

    def hang(log: str, method: str) -> Fault | None:
        if log == "hangs" and method == "open" and bench.rounds(log) == 2:
            hung.add(log)
            over.wait(300)
        return None

    bench.calls = hang
    with bench.running(*names):
        wait_for(lambda: bench.rounds("hangs") == 1)
        bench.write("hangs")
        wait_for(lambda: "hangs" in hung)
        wait_for(lambda: bench.rounds("well") == 1)
        bench.write("well")
        wait_for(lambda: bench.merged("well") > 0)
        over.set()
        wait_for(lambda: bench.merged("hangs") > 0)


def test_few_rounds_go_on_at_once(bench: FleetBench) -> None:
    """Few rounds run at once, however many logs are due, and each log has its rounds."""
    bench.settings = FleetSettings(rounds=2)
    names = [f"log{number}" for number in range(12)]
    bench.make(*names)
    lock, at_once, most = threading.Lock(), 0, 0

    def count(_log: str, method: str) -> Fault | None:
        nonlocal at_once, most
        if method == "upload":
            with lock:
                at_once += 1
                most = max(most, at_once)
            time.sleep(0.02)
            with lock:
                at_once -= 1
        return None

    bench.calls = count
    with bench.running(*names):
        wait_for(lambda: all(bench.rounds(name) for name in names))
    assert most == 2


def test_a_log_that_is_always_behind_starves_no_other(bench: FleetBench) -> None:
    """A log that is always due starves no other: with one round at a time, logs that were due before come first."""
    bench.settings = FleetSettings(rounds=1)
    bench.make("busy", "a", "b")
    for _ in range(40):
        bench.write("busy")
    bench.of_log["busy"] = {"budget_commits": 1}
    with bench.running("busy", "a", "b"):
        wait_for(lambda: bench.rounds("busy") >= 40)
    order = [one.log for one in bench.events if one.kind is EventKind.ROUND_COMPLETED]
    assert {"a", "b"} <= set(order[:10])


def test_logs_appear_and_go(bench: FleetBench) -> None:
    """Logs below the root are found while the fleet runs. A directory that is no log does not matter."""
    bench.make("first")
    bench.twin.disk.write("stray/file", b"x", absent=True)

    def find() -> Collection[str]:
        return {one.path.partition("/")[0] for one in bench.twin.disk.files("")}

    with bench.running(find=find):
        wait_for(lambda: bench.rounds("first") == 1)
        bench.make("second")
        wait_for(lambda: bench.rounds("second") == 1)
        Log.delete("first", bench.twin.where())
        wait_for(lambda: bench.state("first") is None)
        bench.write("second")
        wait_for(lambda: bench.rounds("second") == 2)
        wait_for(lambda: [one.log for one in bench.fleet.states() if one.statistics] == ["second"])
    assert bench.told(EventKind.LOG_GONE, "first") == 1
    assert [one.log for one in bench.events if one.log == "stray"] == []


def test_a_named_log_that_does_not_exist_is_waited_for(bench: FleetBench) -> None:
    """A named log that does not exist is reported once and is not ready. Once it is made, it is rolled up."""
    bench.make("there")
    with bench.running("there", "missing"):
        wait_for(lambda: bench.told(EventKind.LOG_GONE, "missing") == 1)
        state = bench.state("missing")
        assert state is not None
        assert state.problem == "it does not exist"
        bench.make("missing")
        wait_for(lambda: bench.rounds("missing") == 1)
    assert bench.told(EventKind.LOG_GONE, "missing") == 1


def test_a_copy_that_is_not_finished_is_no_log_yet(bench: FleetBench) -> None:
    """An unfinished copy is no log yet: it may stay so for months, and nothing alarms."""
    bench.make("a")
    with Log.open("a", bench.twin.where()) as log:
        copy_log(log, "copy", bench.twin.where(), settings=settings_for(bench.scratch))
    with bench.running("copy", find=lambda: ["a", "copy", "other"]):
        wait_for(lambda: bench.rounds("a") > 0 and bench.opened.count("copy") >= 3)
        state = bench.state("copy")
        assert state is not None
        assert state.problem == "it is a copy that is not finished"
        assert [one.kind for one in bench.events if one.log == "copy"] == [EventKind.LOG_GONE]
        with Log.open("a", bench.twin.where()) as log:
            copy_log(log, "copy", bench.twin.where(), finish=True, settings=settings_for(bench.scratch))
        bench.write("copy")
        wait_for(lambda: bench.rounds("copy") > 0)
    assert bench.told(EventKind.LOG_SET_ASIDE, "copy") == 0


def test_a_root_that_cannot_be_listed_is_told_and_asked_again(bench: FleetBench) -> None:
    """A root that cannot be listed is reported and retried. Known logs continue meanwhile."""
    bench.make("a")
    fails = iter([False, True, True])

    def find() -> Collection[str]:
        if next(fails, False):
            raise StoreUnavailable("no answer")
        return ["a"]

    problems: set[str] = set()
    with bench.running(find=find):

        def is_seen() -> bool:
            problems.add(bench.fleet.problem)
            return len(problems) > 1 and not bench.fleet.problem

        wait_for(is_seen)
        wait_for(lambda: bench.rounds("a") == 1)
    assert problems == {"", "logs cannot be searched for: no answer [StoreUnavailable]"}


def test_a_log_whose_settings_are_refused_is_no_other_ones_trouble(bench: FleetBench) -> None:
    """A log with refused settings does not hold up the others. It resumes once its settings are valid."""
    bench.make("a", "bad", "c")
    bench.of_log["bad"] = {"fanout": 1}
    with bench.running(find=lambda: ["a", "bad", "c"]):
        wait_for(lambda: bench.rounds("a") == 1 and bench.rounds("c") == 1)
        assert "bad cannot be added: fanout is 1" in bench.fleet.problem
        bench.of_log.clear()
        wait_for(lambda: bench.rounds("bad") == 1)
        wait_for(lambda: not bench.fleet.problem)


class _Hasty(Control):
    """A control that requests a round right after the fleet has checked for one."""

    is_armed = _is_asked = False

    @property
    def is_triggered(self) -> bool:
        found = self._is_asked
        if self.is_armed:
            self.is_armed = False
            self.trigger()
        return found

    @is_triggered.setter
    def is_triggered(self, value: bool) -> None:
        self._is_asked = value


def test_no_request_for_a_round_is_missed(bench: FleetBench) -> None:
    """A request right after the fleet's check is served by its next pass."""
    bench.make("a")
    bench.of_log["a"] = {"interval_s": 1e4, "alarm_age_s": 1e5}
    control = _Hasty()
    with bench.running("a", control=control):
        wait_for(lambda: bench.rounds("a") == 1)
        bench.write("a")
        control.is_armed = True
        control.ring()
        wait_for(lambda: bench.rounds("a") == 2)


def test_a_round_that_is_wanted_at_the_start_is_one_of_the_logs_that_are_found(bench: FleetBench) -> None:
    """A round requested at the start covers logs that are found only later."""
    names = ["a", "b"]
    bench.make(*names)
    bench.of_log = {name: {"interval_s": 1e6, "jitter": 1.0, "alarm_age_s": 1e7} for name in names}
    control = Control()
    control.trigger()
    with bench.running(find=lambda: names, control=control):
        wait_for(lambda: all(bench.rounds(name) == 1 for name in names))


def test_a_log_that_is_still_being_opened_at_the_end_is_closed_then(
    bench: FleetBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fleet's end does not wait for a log that is still being opened, whose store may hang.

    It is closed when it opens.
    """
    bench.make("slow")
    asked, over, closed = threading.Event(), threading.Event(), list[str]()
    close = Log.close

    def hang(_log: str, method: str) -> Fault | None:
        if method == "list":  # Its due time is asked once it is open.
            asked.set()
            over.wait(60)
        return None

    def counted(log: Log) -> None:
        closed.append(log.name)
        close(log)

    bench.calls = hang
    monkeypatch.setattr(Log, "close", counted)
    with bench.running("slow"):
        assert asked.wait(60)
    assert not closed
    over.set()
    wait_for(lambda: closed == ["slow"])
    assert bench.told(EventKind.STARTED, "slow") == 0


def test_a_log_that_was_deleted_is_not_opened_anew_while_its_old_round_hangs(bench: FleetBench) -> None:
    """A deleted log is not opened again while its old round hangs, found or named. Its absence is reported once."""
    names = ["found", "named"]
    hung, over = set[str](), threading.Event()
    bench.make(*names)
    bench.of_log = {name: {"round_timeout_s": 0.2, "failures_tolerated": 1000} for name in names}

    def hang(log: str, method: str) -> Fault | None:
        if method == "upload" and log not in hung and not over.is_set():
            hung.add(log)
            over.wait(60)
        return None

    def find() -> Collection[str]:
        return {one.path.partition("/")[0] for one in bench.twin.disk.files("")} - {"named"}

    bench.calls = hang
    with bench.running("named", find=find):
        wait_for(lambda: hung == set(names) and all(bench.told(EventKind.ROUND_FAILED, name) for name in names))
        for name in names:
            Log.delete(name, bench.twin.where())
        wait_for(lambda: all(bench.told(EventKind.LOG_GONE, name) for name in names))
        bench.make(*names)
        time.sleep(0.5)
        assert sorted(bench.opened) == names
        over.set()
        wait_for(lambda: all(bench.rounds(name) for name in names))
    assert [bench.told(EventKind.LOG_GONE, name) for name in names] == [1, 1]


def test_a_log_that_cannot_even_be_closed_is_no_other_ones_trouble(
    bench: FleetBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A failing close of a log does not affect others. It is reported, and the first error quarantines the log."""
    close = Log.close

    def broken(log: Log) -> None:
        close(log)
        if log.name == "bad":
            raise RuntimeError("a bug")

    bench.make("bad", "good")
    with bench.running("bad", "good"):
        wait_for(lambda: bench.rounds("bad") == 1)
        monkeypatch.setattr(Log, "close", broken)
        [manifest] = [one.path for one in bench.twin.disk.files("bad/manifests")]
        bench.twin.disk.flip_byte(manifest, 12)
        wait_for(lambda: bench.told(EventKind.LOG_SET_ASIDE, "bad") > 0)
        before = bench.rounds("good")
        bench.write("good")
        wait_for(lambda: bench.rounds("good") > before)
        state = bench.state("bad")
        assert state is not None
        assert "RuntimeError" not in state.problem
        monkeypatch.undo()
    assert "bad: a defect" in caplog.text
