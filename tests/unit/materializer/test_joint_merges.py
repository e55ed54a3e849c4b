"""A delta that will be merged at once is written once, as part of the merged run."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from statelog.materializer import run_round
from statelog.materializer.outcome import CompletedRound
from statelog.schemas.snapshot.run_ref import RunRef
from tests.support.rigs.engine import split_engine
from tests.support.rigs.log import TwinLog, settings_for, state_of


class _Rounds:
    """Rounds on one log, and the number of files that each of them began to write."""

    def __init__(self, scratch: Path, **settings: int) -> None:
        self.rng = random.Random(7)
        self.twin = TwinLog(partitions=4)
        self._settings = settings_for(scratch, **settings)
        self._opened = 0
        self._environment = replace(self.twin.environment, disk=self._look)

    def _look(self, step: str, path: Path) -> None:
        self._opened += step == "open" and path.suffix == ".parquet"

    def round(self, keys: range, tasks: int = 1) -> tuple[int, CompletedRound]:
        """Run a round over a put of each of these keys. Return the number of files that it wrote, and its outcome."""
        self.twin.write({f"k{number}".encode(): self.rng.randbytes(200) for number in keys})
        self._opened = 0
        outcome = self._environment.run(run_round, self.twin.open(), self._settings, make_engine=split_engine(tasks))
        assert isinstance(outcome, CompletedRound)
        assert state_of(self.twin.open()) == self.twin.model
        return self._opened, outcome

    def runs(self) -> tuple[RunRef, ...]:
        """Return the runs of the snapshot."""
        newest = self.twin.open().manifests.newest()
        assert newest is not None
        return newest.runs


def test_a_delta_is_merged_before_it_is_written(tmp_path: Path) -> None:
    """The third run fills the tier and is never a file of its own. The counts stay the same."""
    rounds = _Rounds(tmp_path, fanout=3)
    found = [rounds.round(range(first, first + 30)) for first in (0, 10, 20)]
    assert [files for files, _ in found] == [1, 1, 1]
    assert [outcome.runs_merged for _, outcome in found] == [0, 0, 3]
    assert [(outcome.changes, outcome.rows) for _, outcome in found] == [(30, 30)] * 3
    assert [run.rows for run in rounds.runs()] == [50]


def test_merges_that_follow_from_each_other_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three deltas fill a tier, and their merge fills the next one: all is one file, with nothing in between."""
    monkeypatch.setattr("statelog.schemas.snapshot.run_ref._SMALLEST_TIER_BYTES", 8192)
    rounds = _Rounds(tmp_path, fanout=3)
    found = [rounds.round(range(first, first + 30)) for first in range(0, 540, 30)]
    assert [files for files, _ in found] == [1] * len(found)
    assert [outcome.runs_merged for _, outcome in found[:9]] == [0, 0, 3, 0, 0, 3, 0, 0, 5]
    assert [run.rows for run in rounds.runs()] == [270, 270]


def test_changes_of_few_keys_pull_in_no_large_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A delta of few keys does not merge the bottom run, although the replay is as large.

    The last delta gives the estimate.
    """
    monkeypatch.setattr("statelog.schemas.snapshot.run_ref._SMALLEST_TIER_BYTES", 4096)
    rounds = _Rounds(tmp_path, fanout=3)
    rounds.round(range(400))
    (bottom,) = rounds.runs()
    for _ in range(6):
        for _ in range(45):
            rounds.twin.write({b"k1": rounds.rng.randbytes(1000)})
        _, outcome = rounds.round(range(1))
        assert rounds.runs()[0] == bottom
        assert outcome.rows == 2


def test_a_merge_of_more_tasks_than_partitions_is_made_by_itself(tmp_path: Path) -> None:
    """A merge of more tasks than partitions stays separate: a replay can be cut only between partitions."""
    rounds = _Rounds(tmp_path, fanout=3)
    files = [rounds.round(range(first, first + 60), tasks=8)[0] for first in (0, 10, 20)]
    assert files[:2] == [4, 4]
    assert files[2] > 8
