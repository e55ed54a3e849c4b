"""A background merge is named by a later round, and discarded wherever it no longer fits."""

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from statelog.environment import inline, start_thread
from statelog.errors import CorruptRun, Damaged, DataLoss, RoundGivenUp, StorageFull
from statelog.log import Log
from statelog.materializer.daemon import Work
from statelog.materializer.merging import BackgroundMerge
from statelog.materializer.outcome import CompletedRound, RoundOutcome
from statelog.materializer.round import Round, run_round
from statelog.materializer.settings import MaterializerSettings
from statelog.producer.writer import Writer
from tests.support.rigs.daemon import INTERVAL_S, DaemonBench
from tests.support.rigs.log import TwinLog, settings_for, state_of, state_of_snapshot
from tests.support.waiting import wait_for


class _Materializer:
    """One process with rounds and a background merge. Each merge is too large for a round."""

    def __init__(self, scratch: Path) -> None:
        self.twin = TwinLog()
        self.scratch = scratch / "scratch"
        self.scratch.mkdir()
        self.settings = settings_for(self.scratch, fanout=2, merge_bytes=1)
        self.log = self.twin.open()
        self.rung = list[bool]()
        self.environment = replace(self.twin.environment, start=inline)
        self.beside = self.environment.run(
            BackgroundMerge, self.log, self.settings, ring=lambda: self.rung.append(True)
        )

    def write(self, number: int) -> None:
        self.twin.write({b"a": b"%d" % number, b"k%d" % number: b"v", b"k%d" % (number - 1): None})

    def round(self) -> RoundOutcome:
        return self.environment.run(Round, self.log, self.settings, beside=self.beside).run()

    def rounds(self, numbers: range) -> None:
        for number in numbers:
            self.write(number)
            assert isinstance(self.round(), CompletedRound)

    def other_round(self) -> None:
        """Run a round of a materializer that merges in its rounds."""
        settings = settings_for(self.scratch, fanout=2, merge_bytes=1 << 30)
        assert isinstance(self.twin.environment.run(run_round, self.twin.open(), settings), CompletedRound)

    def check(self) -> None:
        """Check that the newest snapshot equals the model, and that no file of a merge is left."""
        stored = self.log.manifests.newest()
        assert stored is not None
        assert state_of_snapshot(self.log, stored) == self.twin.model
        assert list(self.scratch.iterdir()) == []

    @property
    def runs(self) -> int:
        stored = self.log.manifests.newest()
        return len(stored.runs) if stored else 0


def test_it_takes_the_place_of_what_went_in(tmp_path: Path) -> None:
    """A round that is too small for a merge runs concurrently with one. The next round names the merged run."""
    one = _Materializer(tmp_path)
    one.rounds(range(2))
    assert (one.runs, one.beside.is_due, one.rung) == (2, True, [])
    one.rounds(range(2, 3))
    assert one.runs == 3
    one.beside.begin()
    assert (one.rung, one.beside.is_over) == ([True], True)
    one.write(3)
    outcome = one.round()
    assert isinstance(outcome, CompletedRound)
    assert (outcome.runs_merged, one.runs) == (2, 3)
    one.check()


def test_it_is_named_without_news(tmp_path: Path) -> None:
    """A finished merge is a reason for a round, so an idle log gets its result, too."""
    one = _Materializer(tmp_path)
    one.rounds(range(2))
    one.beside.begin()
    outcome = one.round()
    assert isinstance(outcome, CompletedRound)
    assert (outcome.commits, outcome.runs_merged, one.runs) == (0, 2, 1)
    one.check()


def test_what_went_in_may_reach_farther_by_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quiet round moves the end of the newest runs, and the merged run covers as much."""
    one = _Materializer(tmp_path)
    one.rounds(range(2))
    monkeypatch.setattr("statelog.materializer.round.QUIET_RECORDS", 2)
    for _ in range(2):
        Writer(one.log, "writer").close()
    assert isinstance(one.round(), CompletedRound)
    one.beside.begin()
    one.rounds(range(2, 3))
    assert one.runs == 2
    one.check()


def test_another_one_was_faster(tmp_path: Path) -> None:
    """A merge that another process finished first is discarded silently, with its files."""
    for begin_first in (True, False):
        (tmp_path / str(begin_first)).mkdir()
        one = _Materializer(tmp_path / str(begin_first))
        one.rounds(range(2))
        if begin_first:
            one.beside.begin()
        for number in range(2, 5):
            one.write(number)
            one.other_round()
        one.beside.begin()
        one.rounds(range(5, 6))
        one.check()


def _damaged(log: Log, path: str) -> None:
    store = log.store
    store.delete(path)
    store.put_if_absent(path, b"damaged")


def _gone(log: Log, path: str) -> None:
    log.store.delete(path)


@pytest.mark.parametrize(("damage", "error"), [(_damaged, CorruptRun), (_gone, DataLoss)])
def test_what_it_finds_is_told_by_the_next_round(
    damage: Callable[[Log, str], None], error: type[Damaged], tmp_path: Path
) -> None:
    """A merge that finds a damaged run of the newest manifest raises in the next round."""
    one = _Materializer(tmp_path)
    one.rounds(range(2))
    stored = one.log.manifests.newest()
    assert stored is not None
    damage(one.log, stored.runs[0].path)
    one.beside.begin()
    with pytest.raises(error):
        one.round()
    assert list(one.scratch.iterdir()) == []


def test_a_full_disk_fails_one_round(tmp_path: Path) -> None:
    """A full disk fails one round. The next round starts the merge again."""
    one = _Materializer(tmp_path)

    def full(step: str, path: Path) -> None:
        raise OSError(28, "No space left on device", str(path))

    beside = replace(one.environment, disk=full).run(BackgroundMerge, one.log, one.settings, ring=lambda: None)
    own, one.beside = one.beside, beside
    one.rounds(range(2))
    beside.begin()
    with pytest.raises(StorageFull):
        one.round()
    one.beside = own
    one.rounds(range(2, 3))
    assert own.is_due
    one.check()


def test_a_round_that_fails_throws_it_away(tmp_path: Path) -> None:
    """A failing round discards the merge that it was to name, with its files."""
    one = _Materializer(tmp_path)
    one.rounds(range(2))
    one.beside.begin()
    given_up = one.environment.run(Round, one.log, one.settings, beside=one.beside, is_given_up=lambda: True)
    with pytest.raises(RoundGivenUp):
        given_up.run()
    one.rounds(range(2, 4))
    one.check()


@pytest.mark.parametrize("is_over", [True, False])
def test_its_end_leaves_no_file(is_over: bool, tmp_path: Path) -> None:
    """Closing leaves no file, whether the merge was over or is stopped at its next table."""
    one = _Materializer(tmp_path)
    writing, closed = threading.Event(), threading.Event()

    def slow(step: str, _: Path) -> None:
        if step == "write" and not is_over:
            writing.set()
            assert closed.wait(60)

    environment = replace(one.environment, disk=slow, start=start_thread)
    beside = one.beside = environment.run(BackgroundMerge, one.log, one.settings, ring=closed.set)
    one.rounds(range(2))
    beside.begin()
    if is_over:
        assert closed.wait(60)
    else:
        assert writing.wait(60)
        assert beside.is_at_work(0.0)
    beside.close()
    closed.set()
    wait_for(lambda: list(one.scratch.iterdir()) == [], "the directory is gone")
    one.rounds(range(2, 3))
    assert (beside.is_due, beside.is_over, one.runs) == (False, False, 3)


def test_a_daemon_merges_beside_its_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds continue while the daemon merges. A merge counts as separate work until it is silent for long."""
    bench = DaemonBench(tmp_path, fanout=2, merge_bytes=1)
    found, held, inline, begin = list[list[Work]](), list[Callable[[], None]](), bench.start, BackgroundMerge.begin

    def begin_later(merge: BackgroundMerge) -> None:
        bench.start = held.append
        begin(merge)
        bench.start = inline

    monkeypatch.setattr(BackgroundMerge, "begin", begin_later)
    for number in range(5):
        bench.at(number * INTERVAL_S + 1, partial(bench.twin.write, {b"a": b"%d" % number}))
    looks = [
        lambda: found.append(bench.daemon.works_on(4 * INTERVAL_S)),
        lambda: found.append(bench.daemon.works_on(1.0)),
    ]
    bench.at(4.5 * INTERVAL_S, *looks, lambda: held.pop()())  # noqa: PLW0108 - it is there only then
    bench.run(until_s=6.5 * INTERVAL_S)
    assert found == [[Work.MERGE], []]
    assert bench.kinds.count("round-completed") == 5
    assert [event.outcome.runs_merged for event in bench.events if isinstance(event.outcome, CompletedRound)][-1] == 2
    assert state_of(bench.log) == bench.twin.model
    assert list(tmp_path.iterdir()) == []


def test_a_daemon_that_ended_is_not_quiet_while_it_merges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that ended is not quiet while it merges, so opening its log again waits for a hanging merge."""
    bench = DaemonBench(tmp_path, fanout=2, merge_bytes=1)
    begin = BackgroundMerge.begin

    def begin_and_hang(merge: BackgroundMerge) -> None:
        bench.hold()
        begin(merge)
        bench.go_on()

    monkeypatch.setattr(BackgroundMerge, "begin", begin_and_hang)
    for number in range(2):
        bench.at(number * INTERVAL_S + 1, partial(bench.twin.write, {b"a": b"%d" % number}))
    bench.run(until_s=2.5 * INTERVAL_S)
    assert not bench.daemon.is_quiet
    bench.release()
    assert bench.daemon.is_quiet
    assert list(tmp_path.iterdir()) == []


def test_how_many_threads() -> None:
    """A merge uses half of the threads, so that rounds have the others."""
    assert MaterializerSettings(threads=5).threads_beside == 2
    assert MaterializerSettings(threads=1).threads_beside == 1
