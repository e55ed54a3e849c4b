"""Threads change when the tasks of a round run, and nothing else."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from statelog.environment import Start, inline, start_thread
from statelog.errors import StorageFull
from statelog.materializer import MaterializerSettings, run_round
from statelog.materializer.outcome import CompletedRound
from statelog.materializer.side_by_side import side_by_side
from tests.support.rigs.engine import split_engine
from tests.support.rigs.log import TwinLog, settings_for, state_of

_LIMIT_S = 60.0

GoOn = Callable[[], None]


def _always() -> None:
    """Continue in any case."""


@pytest.mark.parametrize("start", [start_thread, inline])
@pytest.mark.parametrize("at_once", [1, 2, 9])
def test_results_come_in_the_order_of_the_jobs(start: Start, at_once: int) -> None:
    """Results come in the order of the jobs, with any number of threads or none."""

    def job(number: int) -> Callable[[GoOn], int]:
        return lambda _: number

    assert side_by_side([job(number) for number in range(5)], at_once, _always, start) == [0, 1, 2, 3, 4]
    assert side_by_side([], at_once, _always, start) == []


def test_so_many_at_once_and_no_more() -> None:
    """Two of four jobs run at once, and no more."""
    meeting, going_on, most = threading.Barrier(2), threading.Semaphore(2), list[bool]()

    def job(_: GoOn) -> None:
        most.append(going_on.acquire(blocking=False))
        meeting.wait(_LIMIT_S)
        going_on.release()

    side_by_side([job] * 4, 2, _always, start_thread)
    assert most == [True] * 4


def test_the_first_error_ends_all() -> None:
    """The first error stops running jobs at their next check, prevents further ones, and is raised."""
    failed, begun = threading.Event(), list[int]()
    meeting = threading.Barrier(2)

    def fails(_: GoOn) -> None:
        begun.append(0)
        meeting.wait(_LIMIT_S)
        failed.set()
        raise StorageFull("mine")

    def asks(go_on: GoOn) -> None:
        begun.append(1)
        meeting.wait(_LIMIT_S)
        assert failed.wait(_LIMIT_S)
        while True:
            go_on()

    def never(_: GoOn) -> None:
        begun.append(2)

    with pytest.raises(StorageFull, match="mine"):
        side_by_side([asks, fails, never], 2, _always, start_thread)
    assert sorted(begun) == [0, 1]
    begun.clear()
    with pytest.raises(StorageFull, match="mine"):
        side_by_side([fails, asks, never], 2, _always, start_thread)
    assert sorted(begun) == [0, 1]


def test_who_gives_up_ends_all() -> None:
    """An error that `go_on` raises passes through, and no thread remains."""
    before = threading.active_count()

    def asks(go_on: GoOn) -> None:
        while True:
            go_on()

    def given_up() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        side_by_side([asks] * 3, 3, given_up, start_thread)
    assert threading.active_count() == before


def test_a_thread_that_cannot_begin_ends_all() -> None:
    """A thread that the machine cannot start raises the error, and stops the jobs that began before."""
    begun, over = threading.Event(), list[bool]()

    def start(work: Callable[[], None]) -> None:
        if begun.is_set():
            raise RuntimeError("can't start new thread")
        start_thread(work)
        assert begun.wait(_LIMIT_S)

    def asks(go_on: GoOn) -> None:
        begun.set()
        try:
            while True:
                go_on()
        finally:
            over.append(True)

    with pytest.raises(RuntimeError, match="new thread"):
        side_by_side([asks] * 3, 3, _always, start)
    assert over == [True]


def _twin() -> TwinLog:
    twin = TwinLog()
    for turn in range(3):
        twin.write({f"key {number}".encode(): f"{turn}".encode() for number in range(turn, 400, turn + 1)})
    return twin


def test_a_round_in_threads_writes_what_one_thread_writes(tmp_path: Path) -> None:
    """Threads write the same runs as one thread, except for their names, after a fold and after a merge."""
    found: list[list[tuple[int, int, int, bytes]]] = []
    for threads in (1, 3):
        twin = _twin()
        log, settings = twin.open(), settings_for(tmp_path, fanout=2, threads=threads)
        for turn in range(3):
            twin.write({f"key {turn}".encode(): None, b"more": f"{turn}".encode()})
            outcome = run_round(log, settings, make_engine=split_engine(3))
            assert isinstance(outcome, CompletedRound)
        manifest = log.manifests.newest()
        assert manifest is not None
        found.append([(run.first_key_group, run.end_key_group, run.rows, run.sha256) for run in manifest.runs])
        assert state_of(log) == twin.model
    assert len(found[0]) > 1
    assert [run[:3] for run in found[0]] == [run[:3] for run in found[1]]


def test_runs_are_written_at_the_same_time(tmp_path: Path) -> None:
    """Two tasks have their files open at the same time."""
    twin, meeting = _twin(), threading.Barrier(2)

    def meet(step: str, _: Path) -> None:
        if step == "open":
            meeting.wait(_LIMIT_S)

    environment = replace(twin.environment, start=start_thread, disk=meet)
    settings = settings_for(tmp_path, threads=2)
    outcome = environment.run(run_round, twin.open(), settings, make_engine=split_engine(2))
    assert isinstance(outcome, CompletedRound)
    assert state_of(twin.open()) == twin.model


def test_a_merge_reads_its_runs_at_the_same_time(tmp_path: Path) -> None:
    """Runs of a merge are requested concurrently, whatever the number of tasks."""
    twin, another, waited, merged = TwinLog(), threading.Event(), list[bool](), list[int]()

    def wait_for_another(method: str, path: str) -> None:
        if method != "open" or len(merged) < 2:
            return
        if waited:
            another.set()
        else:
            waited.append(False)
            waited[0] = another.wait(_LIMIT_S)

    for number in range(3):
        twin.write({b"%d" % number: b"1"})
        settings = settings_for(tmp_path, threads=1, fanout=3)
        outcome = twin.environment.run(run_round, twin.open(faults=wait_for_another), settings)
        assert isinstance(outcome, CompletedRound)
        merged.append(outcome.runs_merged)
    assert (merged, waited) == ([0, 0, 3], [True])
    assert state_of(twin.open()) == twin.model


@pytest.mark.parametrize(("merge_bytes", "merged"), [(8 << 30, [0, 4, 6]), (1, [0, 2, 3])])
def test_a_round_leaves_merges_to_the_next_one(tmp_path: Path, merge_bytes: int, merged: list[int]) -> None:
    """Two full columns with room for one merge take turns, and the one that waited merges more."""
    twin, found = TwinLog(partitions=2), list[int]()
    settings = settings_for(tmp_path, fanout=2, merge_bytes=merge_bytes)
    for number in range(3):
        twin.write({f"k{i}".encode(): b"%d" % number for i in range(20)})
        outcome = twin.environment.run(run_round, twin.open(), settings, make_engine=split_engine(2))
        assert isinstance(outcome, CompletedRound)
        found.append(outcome.runs_merged)
        assert state_of(twin.open()) == twin.model
    assert found == merged


def test_a_full_disk_under_one_thread_leaves_nothing(tmp_path: Path) -> None:
    """A full disk under one thread fails the round, and its directory is removed."""
    twin, turn, lock = _twin(), [0], threading.Lock()

    def full(step: str, path: Path) -> None:
        with lock:
            turn[0] += step == "write"
            if turn[0] == 2:
                raise OSError(28, "No space left on device", str(path))

    environment = replace(twin.environment, start=start_thread, disk=full)
    with pytest.raises(StorageFull):
        environment.run(run_round, twin.open(), settings_for(tmp_path, threads=3), make_engine=split_engine(3))
    assert list(tmp_path.iterdir()) == []
    assert twin.open().manifests.newest() is None


def test_how_many_there_are() -> None:
    """The number of threads is the setting, or one for each core up to four."""
    assert MaterializerSettings(threads=7).threads_used == 7
    assert 1 <= MaterializerSettings().threads_used <= 4
