"""A round that exceeds its time is abandoned, the daemon continues, and a late outcome does no harm."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from statelog.environment import Environment
from statelog.errors import CorruptManifest, RoundGivenUp
from statelog.materializer import run_round
from statelog.materializer.events import EventKind
from statelog.materializer.outcome import CompletedRound, LostRound, SkippedRound
from statelog.materializer.round import CRASH_POINTS, Round
from statelog.materializer.statistics import MaterializerStatistics, with_outcome
from statelog.schemas.snapshot.manifest import Manifest
from statelog.schemas.topic_policy import Rights, Truncation
from tests.support.rigs.daemon import DaemonBench
from tests.support.rigs.log import TwinLog, rolled_up, settings_for, state_of

BEFORE_PUT = CRASH_POINTS[: CRASH_POINTS.index("after-put")]


def given_up_at(point: str, twin: TwinLog, tmp_path: Path) -> CompletedRound:
    """Run a round that is abandoned as soon as it has passed a point."""
    passed: list[str] = []
    outcome = (
        replace(twin.environment, crash=passed.append)
        .run(
            Round,
            twin.open(),
            settings_for(tmp_path, fanout=2),
            is_given_up=lambda: point in passed,
        )
        .run()
    )
    assert isinstance(outcome, CompletedRound)
    return outcome


@pytest.fixture
def twin(tmp_path: Path) -> TwinLog:
    """Return a log with a snapshot and a tail."""
    return rolled_up(tmp_path)


@pytest.mark.parametrize("point", BEFORE_PUT)
def test_a_round_given_up_before_its_put_ends_at_that_step(point: str, twin: TwinLog, tmp_path: Path) -> None:
    """A round abandoned before its put raises and leaves nothing. The next round does its work."""
    with pytest.raises(RoundGivenUp):
        given_up_at(point, twin, tmp_path)
    assert twin.open().manifests.numbers() == [1]
    assert list(tmp_path.iterdir()) == []
    outcome = twin.environment.run(run_round, twin.open(), settings_for(tmp_path))
    assert isinstance(outcome, CompletedRound)
    assert outcome.number == 2
    assert state_of(twin.open()) == twin.model


@pytest.mark.parametrize("point", [point for point in CRASH_POINTS if point not in BEFORE_PUT])
def test_a_round_given_up_after_its_put_is_finished(point: str, twin: TwinLog, tmp_path: Path) -> None:
    """A round abandoned after its put is finished. Its manifest counts, and cleaning up is always right."""
    assert given_up_at(point, twin, tmp_path).number == 2
    assert state_of(twin.open()) == twin.model


def test_a_round_given_up_in_the_middle_of_a_step_ends_between_two_tables(twin: TwinLog, tmp_path: Path) -> None:
    """An abandoned round stops a long merge between two tables: writing checks before each."""
    asked: list[int] = []
    passed: list[str] = []

    def is_given_up() -> bool:
        asked.append(len(passed))
        return passed[-1:] == ["after-fold"] and asked.count(len(passed)) > 1

    with pytest.raises(RoundGivenUp):
        Environment(crash=passed.append).run(Round, twin.open(), settings_for(tmp_path), is_given_up=is_given_up).run()
    assert passed == ["after-newest", "after-fold"]


def test_a_round_that_hangs_is_given_up_and_the_schedule_moves_on(tmp_path: Path) -> None:
    """A hanging round fails after its time. The next round follows after the interval, and its outcome counts."""
    bench = DaemonBench(tmp_path, round_timeout_s=50)
    bench.twin.write({b"a": b"1"})
    bench.hold()
    bench.at(60, bench.go_on)
    bench.run(until_s=160)

    assert bench.rounds == [(0, "interval"), (150, "interval")]
    assert bench.kinds == ["round-failed", "round-completed", "stopped"]
    counts = bench.daemon.statistics()
    assert (counts.failed, counts.completed, counts.hanging, counts.late) == (1, 1, 1, 0)
    failed = next(event for event in bench.events if event.kind is EventKind.ROUND_FAILED)
    assert isinstance(failed.error, RoundGivenUp)
    assert failed.error.facts["round_timeout_s"] == 50


def test_a_round_given_up_stops_at_its_next_step_when_it_goes_on(tmp_path: Path) -> None:
    """An abandoned round that continues puts nothing. The daemon sees it end, and does not count it twice."""
    bench = DaemonBench(tmp_path, round_timeout_s=50)
    bench.twin.write({b"a": b"1"})
    bench.hold()
    bench.at(60, bench.go_on, bench.release)
    bench.run(until_s=70)
    late = [event.outcome for event in bench.events if event.kind is EventKind.ROUND_ENDED_LATE]
    assert late == [None]
    assert bench.log.manifests.numbers() == []
    counts = bench.daemon.statistics()
    assert (counts.failed, counts.completed, counts.hanging, counts.late) == (1, 0, 0, 0)


def test_a_round_given_up_at_its_put_counts_after_all(tmp_path: Path) -> None:
    """A round abandoned at its put that wins its slot is reported as late and counted. It ends the row of failures."""
    bench = DaemonBench(tmp_path, round_timeout_s=50)
    bench.twin.write({b"a": b"1"})
    put, is_at_put, may_put = bench.log.manifests.put, threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    def put_slowly(manifest: Manifest) -> bool:
        is_at_put.set()
        assert may_put.wait(60)
        return put(manifest)

    def start(work: Callable[[], None]) -> None:
        threads.append(threading.Thread(target=work, daemon=True))
        threads[-1].start()
        if len(threads) == 2:  # The first check was the initial one, and the round is on its way to its put.
            assert is_at_put.wait(60)
        else:
            threads[-1].join(60)

    bench.log.manifests.put = put_slowly  # type: ignore[method-assign] # the moment in question
    bench.start = start
    bench.at(60, may_put.set, lambda: threads[1].join(60))
    bench.run(until_s=100)

    assert bench.kinds[:3] == ["round-failed", "round-ended-late", "round-completed"]
    assert bench.log.manifests.numbers() == [1]
    counts = bench.daemon.statistics()
    assert (counts.failed, counts.completed, counts.late, counts.hanging) == (1, 1, 1, 0)
    assert (counts.failures_in_a_row, counts.number) == (0, 1)
    assert counts.tail is not None
    assert (counts.tail.number, counts.tail.commits) == (1, 0)
    assert state_of(bench.log) == bench.twin.model


def test_a_late_outcome_takes_no_newer_one_back() -> None:
    """A late outcome of a lost race is counted, and the newest known manifest stays the newest."""
    known = with_outcome(MaterializerStatistics(), SkippedRound(number=7, position=70), duration_s=1.0)
    after = with_outcome(known, LostRound(number=3), duration_s=9.0)
    assert (after.number, after.position, after.lost) == (7, 70, 1)
    assert with_outcome(known, SkippedRound(number=3, position=30), duration_s=9.0).position == 70


def test_no_more_rounds_hang_than_failures_are_tolerated(tmp_path: Path) -> None:
    """The daemon ends after as many hanging rounds as tolerated failures: each is a thread that nobody can end."""
    bench = DaemonBench(tmp_path, round_timeout_s=50, failures_tolerated=2)
    bench.hold()
    with pytest.raises(RoundGivenUp):
        bench.daemon.run()
    assert bench.rounds == [(0, "interval"), (150, "interval"), (300, "interval")]
    assert bench.daemon.statistics().hanging == 3


def test_hanging_rounds_count_even_between_good_ones(tmp_path: Path) -> None:
    """A good round resets the failures in a row, but not the number of hanging rounds."""
    bench = DaemonBench(tmp_path, round_timeout_s=50, failures_tolerated=1)
    bench.hold()
    bench.at(60, bench.go_on)
    bench.at(200, bench.hold)
    with pytest.raises(RoundGivenUp):
        bench.daemon.run()
    assert [kind for kind in bench.kinds if kind.startswith("round")] == [
        "round-failed",
        "round-skipped",
        "round-failed",
    ]


def test_damage_that_a_late_round_found_ends_the_daemon(tmp_path: Path) -> None:
    """Damage that a late round found ends the daemon."""
    bench = DaemonBench(tmp_path, round_timeout_s=50)
    bench.twin.write({b"a": b"1"})
    run_round(bench.twin.open(), settings_for(tmp_path))
    bench.hold()
    bench.at(60, lambda: bench.twin.disk.flip_byte("log/manifests/00000000000000000001.avro", -40), bench.release)
    with pytest.raises(CorruptManifest):
        bench.daemon.run()
    assert bench.now_s == 60


def test_a_stop_does_not_wait_for_a_round_that_was_given_up(tmp_path: Path) -> None:
    """A stop waits for a hanging round until its time is over, and no longer."""
    bench = DaemonBench(tmp_path, round_timeout_s=50)
    bench.hold()
    bench.at(10, bench.control.stop)
    bench.daemon.run()
    assert bench.now_s == 50
    assert bench.kinds == ["round-failed", "stopped"]


def test_a_single_round_is_given_up_as_well(tmp_path: Path) -> None:
    """`run_once` has no second thread, so the round itself ends at the step at which its time is over."""
    bench = DaemonBench(tmp_path, round_timeout_s=50)
    bench.twin.write({b"a": b"1"})
    verify = bench.log.verify

    def verify_slowly(rights: Rights) -> Truncation:
        found = verify(rights)
        bench.now_s += 60
        return found

    bench.log.verify = verify_slowly  # type: ignore[method-assign, assignment] # a cluster that answers late
    with pytest.raises(RoundGivenUp):
        bench.daemon.run_once()
    assert bench.daemon.statistics().failed == 1


def test_a_round_that_ends_as_soon_as_it_began_leaves_the_daemon_quiet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round that ends right after a check leaves the daemon quiet, so its log can be opened again."""
    bench = DaemonBench(tmp_path)

    class EndsOnceAsked(Future[Any]):
        def done(self) -> bool:
            was_done = super().done()
            bench.release()
            return was_done

    monkeypatch.setattr("statelog.environment.Future", EndsOnceAsked)
    bench.hold()
    bench.daemon.begin(0.0)
    bench.daemon.turn()
    assert [bench.daemon.is_quiet for _ in range(2)][-1]


def test_a_clock_that_is_set_back_meanwhile_takes_no_time_away(twin: TwinLog, tmp_path: Path) -> None:
    """A clock that is set back never makes the durations of a round, its replay and its reading back negative."""
    back = count(2e9, -3600.0)
    environment = replace(twin.environment, wall_clock=lambda: next(back))
    outcome = environment.run(run_round, twin.open(), settings_for(tmp_path))
    assert isinstance(outcome, CompletedRound)
    assert min(outcome.duration_s, outcome.replay_s, outcome.read_back_s) >= 0.0
