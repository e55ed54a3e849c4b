"""Real rounds whose runs are cut at random key groups: the snapshot is the plain fold, whatever was merged."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from statelog.errors import StatelogError
from statelog.materializer.outcome import CompletedRound
from statelog.materializer.round import run_round
from statelog.recovery import recover
from statelog.schemas.changes.changes import DELETE
from statelog.schemas.key_groups import KeyType, key_group_of
from statelog.schemas.snapshot.run_ref import Merge, RunRef, lanes
from statelog.storage.run_reader import RunReader
from tests.support.rigs.engine import split_engine
from tests.support.rigs.log import TwinLog, settings_for, state_of_snapshot


@pytest.fixture(autouse=True)
def small_tiers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of some kilobytes lie in several tiers, so that merges above the first run happen, too."""
    monkeypatch.setattr("statelog.schemas.snapshot.run_ref._SMALLEST_TIER_BYTES", 512)


class _History:
    """Random rounds on one log."""

    def __init__(self, seed: int, scratch: Path) -> None:
        self.rng = random.Random(seed)
        self.twin = TwinLog(partitions=4)
        self.scratch = scratch
        self.most_runs = self.most_columns = 0

    def round(self) -> None:
        """Commit some changes, roll them up with runs cut in some way, and compare."""
        keys = [f"k{self.rng.randrange(60)}".encode() for _ in range(self.rng.choice((1, 5, 60)))]
        size_bytes = self.rng.choice((4, 200, 4000))
        self.twin.write({key: None if self.rng.random() < 0.4 else self.rng.randbytes(size_bytes) for key in keys})
        settings = settings_for(
            self.scratch,
            fanout=self.rng.choice((2, 3)),
            max_run_bytes=self.rng.choice((1, 9000, 4 << 30)),
            merge_bytes=self.rng.choice((1, 8 << 30)),
        )
        with self.twin.open() as log:
            make_engine = split_engine(self.rng.choice((1, 2, 5)))
            outcome = self.twin.environment.run(run_round, log, settings, make_engine=make_engine)
            assert isinstance(outcome, CompletedRound)
            manifest = log.manifests.read(outcome.number).manifest
            self.most_runs = max(self.most_runs, len(manifest.runs))
            self.most_columns = max(self.most_columns, *(len(lane) for lane in lanes(manifest.runs)))
            assert state_of_snapshot(log, manifest) == self.twin.model
            wanted = self.rng.sample(range(8), 3)
            for key_groups in (None, wanted):
                read = recover(log, key_groups=key_groups)
                expected = {k: v for k, v in self.twin.model.items() if key_groups is None or _group(k) in wanted}
                assert read.to_dict() == expected
            rows = recover(log).to_parquet(self.scratch / "state.parquet")
            assert rows == len(self.twin.model)
            for run in manifest.runs:
                with RunReader(log.store.open(run.path), run) as reader:
                    held = reader.table()
                assert set(held.column("key_group").to_pylist()) <= set(range(run.first_key_group, run.end_key_group))
                if run.start_position == 0:
                    assert DELETE not in held.column("op").to_pylist(), "a delete that hides nothing was kept"


def _group(key: bytes) -> int:
    return key_group_of(key, KeyType.BYTES, 8)


def _play(seed: int, scratch: Path) -> _History:
    history = _History(seed, scratch)
    for _ in range(12):
        history.round()
    return history


def test_snapshots_of_split_runs_are_the_fold(tmp_path: Path) -> None:
    """After every round the runs, and recoveries of all and of some key groups, hold exactly the committed state."""
    histories = [_play(seed, tmp_path) for seed in range(4)]
    assert max(history.most_columns for history in histories) > 3
    assert max(history.most_runs for history in histories) > 6


@pytest.mark.soak
def test_snapshots_of_split_runs_are_the_fold_for_long(tmp_path: Path) -> None:
    """The same over many more histories."""
    for seed in range(1000, 1300):
        _play(seed, tmp_path)


def _drops_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Merge, "drops_deletes", property(lambda _: True))


def _never_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    def only(_runs: object, tier: tuple[RunRef, ...]) -> Merge:
        return Merge(tier)

    monkeypatch.setattr("statelog.schemas.snapshot.run_ref._closed", only)


@pytest.mark.parametrize("remove", [_drops_early, _never_closes])
def test_a_missing_guard_is_noticed(
    remove: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Deletes dropped above older runs, or a merge that is no rectangle, break a history."""
    remove(monkeypatch)
    for seed in range(12):
        try:
            _play(seed, tmp_path)
        except (AssertionError, StatelogError):
            return
    pytest.fail("no history noticed that the guard is gone")
