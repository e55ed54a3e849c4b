"""The restore-time budget: the estimate of a restore, early rounds because of it, and budgets that none can meet."""

from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statelog.materializer import schedule
from statelog.materializer.events import EventKind
from statelog.materializer.schedule import (
    Rates,
    RestoreEstimate,
    RestoreOutlook,
    Speed,
    cause_of_round,
    check_every_s,
    estimate,
    outlook,
)
from statelog.materializer.settings import MaterializerSettings
from tests.support.rigs.daemon import DaemonBench

SLOW = Rates(
    download=Speed(amount=1000, seconds=1),
    replay=Speed(amount=100, seconds=1),
    changes=Speed(amount=10, seconds=1),
)
"""Rates at which a few hundred bytes take seconds."""


def test_the_estimate_is_download_plus_replay() -> None:
    """The estimate is snapshot bytes by the download rate, plus the slowest of the tail's bytes, changes and chunks."""
    by_bytes = estimate(SLOW, snapshot_bytes=5000, tail_bytes=300, tail_changes=20, tail_chunks=9)
    assert (by_bytes.snapshot_s, by_bytes.tail_s, by_bytes.total_s) == (5.0, 3.0, 8.0)
    by_changes = estimate(SLOW, snapshot_bytes=0, tail_bytes=300, tail_changes=40, tail_chunks=9)
    assert by_changes.total_s == 4.0
    by_chunks = estimate(Rates(), snapshot_bytes=0, tail_bytes=10_000_000, tail_changes=500_000, tail_chunks=400_000)
    assert by_chunks.total_s == 16.0


@pytest.mark.parametrize(
    ("snapshot_s", "tail_s", "expected"),
    [
        (0, 7.9, RestoreOutlook.IN_TIME),
        (0, 8.0, RestoreOutlook.ROUND_DUE),
        (6, 2.0, RestoreOutlook.ROUND_DUE),
        (9, 0.4, RestoreOutlook.IN_TIME),
        (9, 0.5, RestoreOutlook.ROUND_DUE),
        (9, 9.0, RestoreOutlook.ROUND_DUE),
        (10, 0.0, RestoreOutlook.OUT_OF_REACH),
        (99, 99.0, RestoreOutlook.OUT_OF_REACH),
    ],
)
def test_a_round_is_due_when_the_estimate_nears_the_budget(
    snapshot_s: float, tail_s: float, expected: RestoreOutlook
) -> None:
    """A round is due at four fifths of the budget, or at half of what the snapshot leaves, but never without a tail."""
    assert outlook(RestoreEstimate(snapshot_s=snapshot_s, tail_s=tail_s), 10) is expected


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0.01, 1e5))
def test_the_outlook_never_asks_for_a_round_without_a_tail(snapshot_s: float, tail_s: float, budget_s: float) -> None:
    """An empty tail never asks for a round. An exceeded budget always does, if a round can mend it."""
    assert outlook(RestoreEstimate(snapshot_s=snapshot_s, tail_s=0), budget_s) is not RestoreOutlook.ROUND_DUE
    found = outlook(RestoreEstimate(snapshot_s=snapshot_s, tail_s=tail_s), budget_s)
    assert (found is RestoreOutlook.IN_TIME) <= (snapshot_s + tail_s < budget_s)
    assert (found is RestoreOutlook.OUT_OF_REACH) == (snapshot_s >= budget_s)


def test_rates_follow_what_is_measured() -> None:
    """New measurements outweigh older ones and guesses. Small ones, and ones without a duration, are left out."""
    guess = Rates()
    assert guess.after_download(1000, 5.0) == guess
    assert guess.after_replay(1 << 30, 10, 0.0) == guess
    measured = guess
    for _ in range(20):
        measured = measured.after_download(100_000_000, 1.0).after_replay(50_000_000, 1_000_000, 1.0)
    assert measured.download.per_second == pytest.approx(100e6, rel=1e-3)
    assert measured.replay.per_second == pytest.approx(50e6, rel=1e-3)
    assert measured.changes.per_second == pytest.approx(1e6, rel=1e-3)


def slow_bench(tmp_path: Path, **settings: Any) -> DaemonBench:
    """Return a daemon with slow estimated rates, a budget of twenty seconds and a long interval."""
    defaults: dict[str, Any] = {"interval_s": 10_000.0, "alarm_age_s": 20_000.0, "restore_budget_s": 20.0}
    return DaemonBench(tmp_path, SLOW, **defaults | settings)


def write(bench: DaemonBench, changes: int, turn: int = 0) -> None:
    """Commit so many changes. Each takes a tenth of a second to replay."""
    bench.twin.write({b"k%d" % i: b"%d" % turn for i in range(changes)})


def test_a_round_starts_early_when_a_restore_would_take_too_long(tmp_path: Path) -> None:
    """A small tail waits for the interval. A tail that nears the budget starts a round at the next check."""
    bench = slow_bench(tmp_path)
    bench.at(100, lambda: write(bench, 10))
    bench.at(200, lambda: write(bench, 200, 1))
    bench.run(until_s=300)
    assert [cause for _, cause in bench.rounds] == ["interval", "restore budget"]
    assert 200 <= bench.rounds[1][0] <= 202
    tail = bench.daemon.statistics().tail
    assert tail is not None
    assert tail.commits == 0


@pytest.mark.parametrize(("snapshot_s", "tail_s", "expected"), [(999, 9.9, "in time"), (999, 10, "a round is due")])
def test_without_a_budget_a_tail_of_ten_seconds_asks_for_a_round(
    snapshot_s: float, tail_s: float, expected: str
) -> None:
    """Without a budget, a tail of ten seconds starts a round, and no snapshot is too large."""
    assert outlook(RestoreEstimate(snapshot_s=snapshot_s, tail_s=tail_s), None) == expected


def test_without_a_budget_many_small_commits_are_rolled_up_early_and_not_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many small commits are rolled up early because of their number.

    Such rounds come at most ten times in an interval, and nothing alarms.
    """
    monkeypatch.setattr(schedule, "_CHUNKS_PER_SECOND", 2.0)
    bench = DaemonBench(tmp_path, interval_s=1000.0, alarm_age_s=20_000.0)
    bench.at(1000, lambda: write(bench, 200))
    for turn in range(0, 200, 2):
        bench.at(2100 + turn, partial(write, bench, 1, turn))
    bench.run(until_s=2300)
    early = [time_s for time_s, cause in bench.rounds if cause == "restore budget"]
    assert len(early) == 2
    assert early[0] >= 2120
    assert early[1] - early[0] >= 100
    assert EventKind.RESTORE_BUDGET_OUT_OF_REACH not in {event.kind for event in bench.events}


def test_without_a_budget_the_interval_decides_for_an_ordinary_tail(tmp_path: Path) -> None:
    """Without a budget, an ordinary tail gets no round before the interval is over."""
    bench = DaemonBench(tmp_path, interval_s=10_000.0, alarm_age_s=20_000.0)
    bench.at(200, lambda: write(bench, 200))
    bench.run(until_s=9_000)
    assert [cause for _, cause in bench.rounds] == ["interval"]


@pytest.mark.parametrize(
    ("now_s", "lasted_s", "has_failed", "expected"),
    [
        (104, 0, False, None),
        (105, 0, False, "restore budget"),
        (119, 20, False, None),
        (120, 20, False, "restore budget"),
        (999, 0, True, None),
        (1000, 0, True, "interval"),
    ],
)
def test_an_early_round_waits_for_as_long_as_the_last_one_took(
    now_s: float, lasted_s: float, has_failed: bool, expected: str | None
) -> None:
    """An early round waits five seconds after the last one, or its duration if longer, or the interval if it failed."""
    cause = cause_of_round(
        MaterializerSettings(restore_budget_s=30.0),
        now_s=now_s,
        due_s=1000.0,
        is_triggered=False,
        outlook=RestoreOutlook.ROUND_DUE,
        ended_s=100.0,
        lasted_s=lasted_s,
        has_failed=has_failed,
    )
    assert cause == expected


def test_early_rounds_keep_their_distance(tmp_path: Path) -> None:
    """Early rounds are at least the spacing apart, however fast the tail grows."""
    bench = slow_bench(tmp_path, restore_spacing_s=15.0)
    for turn, time_s in enumerate(range(100, 160)):
        bench.at(time_s, partial(write, bench, 200, turn))
    bench.run(until_s=170)
    early = [time_s for time_s, cause in bench.rounds if cause == "restore budget"]
    assert len(early) >= 3
    assert min(after - before for before, after in pairwise(early)) >= 15.0


def test_early_rounds_do_not_use_up_the_failures_that_are_tolerated(tmp_path: Path) -> None:
    """Failing early rounds do not use up the tolerated failures while the ledger is readable."""
    bench = slow_bench(tmp_path)
    bench.at(100, lambda: write(bench, 200), lambda: setattr(bench, "broken_method", "upload"))
    bench.run(until_s=9_000)
    assert [cause for _, cause in bench.rounds] == ["interval", "restore budget"]
    assert bench.daemon.statistics().failures_in_a_row == 1


def test_looks_are_never_so_frequent_that_they_are_all_that_is_done() -> None:
    """Checks are frequent enough for the budget, the alarm and people, and never more than twenty a second."""
    every = [check_every_s(MaterializerSettings(restore_budget_s=budget_s)) for budget_s in (None, 60.0, 20.0, 1e-6)]
    assert every == [30.0, 3.0, 1.0, 0.05]


def test_a_budget_that_the_snapshot_exceeds_is_told_once_and_not_fought(tmp_path: Path) -> None:
    """A budget that the snapshot exceeds is reported once, with both times. Rounds stay at the interval."""
    bench = slow_bench(tmp_path, restore_budget_s=0.5)
    write(bench, 200)
    bench.at(100, lambda: write(bench, 200, 1))
    bench.run(until_s=400)
    assert [cause for _, cause in bench.rounds] == ["interval"]
    told = [event for event in bench.events if event.kind is EventKind.RESTORE_BUDGET_OUT_OF_REACH]
    assert len(told) == 1
    assert told[0].facts["snapshot_s"] > told[0].facts["budget_s"] == 0.5


def test_statistics_tell_what_a_restore_would_take(tmp_path: Path) -> None:
    """Statistics report un-materialized bytes, changes and age, and the restore estimate, as one value."""
    bench = slow_bench(tmp_path)
    bench.at(100, lambda: write(bench, 15))
    bench.run(until_s=150)
    known = bench.daemon.statistics()
    assert known.tail is not None
    assert known.restore is not None
    assert (known.tail.changes, known.age_s) == (15, 50.0)
    assert known.tail.size_bytes > 0
    assert known.restore.total_s == known.restore.snapshot_s + max(1.5, known.tail.size_bytes / 100)
