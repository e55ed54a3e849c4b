"""A round that dies: at every named point, and before and after every single store call.

At any moment the committed state is recovered from the remaining files, and the next rounds go on. In the end the store
holds nothing that no retained manifest names.
"""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from statelog.environment import Environment
from statelog.errors import StatelogError
from statelog.materializer import run_round
from statelog.materializer.outcome import CompletedRound
from statelog.materializer.round import CRASH_POINTS
from statelog.testing import Crash
from statelog.testing.cluster import MemoryCluster
from statelog.testing.store import Fault
from tests.support.rigs.log import TwinLog, settings_for, state_of


def _busy_log(tmp_path: Path) -> TwinLog:
    """Return a log with two snapshots, runs that are due for a merge, and a tail."""
    twin = TwinLog()
    for turn in range(3):
        twin.write({f"k{i}".encode(): None if (i + turn) % 3 == 0 else f"{turn}.{i}".encode() for i in range(12)})
        if turn < 2:
            twin.environment.run(run_round, twin.open(), settings_for(tmp_path, fanout=3))
    return twin


def _check_and_settle(twin: TwinLog, tmp_path: Path) -> None:
    """Check that everything is there now, and after a few rounds nothing else."""
    log = twin.open()
    assert state_of(log) == twin.model
    if len(log.manifests.numbers()) > 1:
        assert state_of(log, lambda numbers: numbers[-2]) == twin.model
    for turn in range(3):
        twin.write({b"later": str(turn).encode()})
        outcome = twin.environment.run(run_round, log, settings_for(tmp_path, fanout=3))
        assert isinstance(outcome, CompletedRound)
        assert not outcome.cleanup.held_back
        assert state_of(log) == twin.model
    kept = [log.manifests.read(number) for number in log.manifests.numbers()]
    assert len(kept) == 2
    assert twin.run_paths() == {run.path for manifest in kept for run in manifest.runs}
    assert log.kafka.offsets(log.ledger_topic, [0])[0].start == kept[0].position
    assert {p: there.start for p, there in log.data_offsets().items()} == kept[0].next_offsets


@pytest.mark.usefixtures("busy_ledger")
@pytest.mark.parametrize("point", CRASH_POINTS)
def test_a_crash_at_a_named_point_loses_nothing(point: str, tmp_path: Path) -> None:
    """The next process goes on after a death between two steps as if the round had ended, or never begun."""
    twin = _busy_log(tmp_path)
    reached: list[str] = []

    def crash(name: str) -> None:
        reached.append(name)
        if name == point:
            raise Crash

    def dead(*_: str) -> None:
        if point in reached:
            raise Crash  # It takes nothing back either.

    with pytest.raises(Crash):
        replace(twin.environment, crash=crash).run(run_round, twin.open(dead), settings_for(tmp_path, fanout=3))
    assert tuple(reached) == CRASH_POINTS[: CRASH_POINTS.index(point) + 1]
    _check_and_settle(twin, tmp_path)


def test_a_round_passes_every_named_point_once_and_in_order(tmp_path: Path) -> None:
    """The list of crash points is the list of a round's steps."""
    twin = _busy_log(tmp_path)
    reached: list[str] = []
    outcome = replace(twin.environment, crash=reached.append).run(
        run_round, twin.open(), settings_for(tmp_path, fanout=3)
    )
    assert isinstance(outcome, CompletedRound)
    assert tuple(reached) == CRASH_POINTS
    assert outcome.runs_merged == 3


def _calls_of_a_round(tmp_path: Path) -> int:
    twin = _busy_log(tmp_path)
    calls: list[str] = []
    log = twin.open(lambda method, _path: calls.append(method))
    twin.environment.run(run_round, log, settings_for(tmp_path, fanout=3))
    return len(calls)


def _fault_at(number: int, fault: Fault) -> Callable[[str, str], Fault | None]:
    counter = itertools.count()
    return lambda _method, _path: fault if next(counter) == number else None


@pytest.mark.usefixtures("busy_ledger")
@pytest.mark.parametrize("each", [pytest.param(2, id="some"), pytest.param(1, id="all", marks=pytest.mark.soak)])
def test_a_store_that_fails_at_any_one_call_loses_nothing(tmp_path: Path, each: int) -> None:
    """Each call of the store fails, before or after its effect: an honest error, or the round does without it."""
    calls = _calls_of_a_round(tmp_path)
    assert calls > 20
    failed = 0
    failures = itertools.product(range(calls), (Fault.BEFORE, Fault.AFTER, Fault.LATE))
    for number, fault in itertools.islice(failures, 0, None, each):
        twin = _busy_log(tmp_path)
        try:
            outcome = twin.environment.run(
                run_round,
                twin.open(_fault_at(number, fault)),
                settings_for(tmp_path, fanout=3),
            )
        except StatelogError as error:
            assert type(error).__name__ == "StoreUnavailable", (number, fault, error)
            failed += 1
        else:
            assert isinstance(outcome, CompletedRound), (number, fault, outcome)
        assert state_of(twin.open()) == twin.model
        twin.disk.settle()
        _check_and_settle(twin, tmp_path)
    assert failed > calls // each


@pytest.mark.usefixtures("busy_ledger")
def test_a_broker_that_goes_away_after_the_put_leaves_a_snapshot_that_counts(tmp_path: Path) -> None:
    """A broker that fails after the put fails the round, whose snapshot counts: the next one starts from it."""
    twin = _busy_log(tmp_path)
    cluster: MemoryCluster = twin.cluster

    def crash(name: str) -> None:
        if name == "after-win":
            cluster.set_down(is_down=True)

    with pytest.raises(StatelogError):
        replace(twin.environment, crash=crash).run(run_round, twin.open(), settings_for(tmp_path, fanout=3))
    cluster.set_down(is_down=False)
    assert twin.open().manifests.numbers() == [2, 3]
    _check_and_settle(twin, tmp_path)


def test_the_scratch_directory_is_empty_after_every_end(tmp_path: Path) -> None:
    """A round that completes, loses or fails leaves no file in the scratch directory."""
    twin = _busy_log(tmp_path)
    with pytest.raises(Crash):
        Environment(
            wall_clock=twin.clock,
            crash=lambda name: (_ for _ in ()).throw(Crash()) if name == "after-merge" else None,
        ).run(
            run_round,
            twin.open(),
            settings_for(tmp_path, fanout=3),
        )
    assert list(tmp_path.iterdir()) == []
