"""Real rounds whose runs are cut at random key groups: the snapshot is the plain fold, whatever was merged."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from statelog.environment import inline
from statelog.errors import StatelogError
from statelog.materializer.merging import BackgroundMerge
from statelog.materializer.outcome import CompletedRound
from statelog.materializer.round import Round
from statelog.recovery import recover
from statelog.schemas.changes.changes import DELETE
from statelog.schemas.key_groups import KeyType, key_group_of
from statelog.schemas.snapshot.run_ref import Merge, RunRef, lanes
from statelog.store.run_reader import RunReader
from tests.support.rigs.engine import split_engine
from tests.support.rigs.log import TwinLog, settings_for, state_of_snapshot
from tests.support.samples.runs import table_of


@pytest.fixture(autouse=True)
def small_tiers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put runs of some kilobytes into several tiers, so that merges above the first run happen, too."""
    monkeypatch.setattr("statelog.schemas.snapshot.run_ref._SMALLEST_TIER_BYTES", 512)


class _History:
    """Random rounds on one log."""

    def __init__(self, seed: int, scratch: Path) -> None:
        self.rng = random.Random(seed)
        self.twin = TwinLog(partitions=4)
        self.scratch = scratch
        self.most_runs = self.most_columns = self.merged_beside = 0
        self.beside = self._daemon()

    def round(self) -> None:
        """Commit some changes, roll them up with runs cut in some way, and compare."""
        keys = [f"k{self.rng.randrange(60)}".encode() for _ in range(self.rng.choice((1, 5, 60)))]
        size_bytes = self.rng.choice((4, 200, 4000))
        self.twin.write({key: None if self.rng.random() < 0.4 else self.rng.randbytes(size_bytes) for key in keys})
        settings = settings_for(
            self.scratch,
            fanout=self.rng.choice((2, 3)),
            max_run_bytes=self.rng.choice((1, 9000, 4 << 30)),
            merge_bytes=self.rng.choice((1, 20_000, 8 << 30)),
        )
        with self.twin.open() as log:
            make_engine = split_engine(self.rng.choice((1, 2, 5)))
            # Without it the round is another materializer's, which may merge the very runs that ours merges
            # concurrently.
            beside = self.beside if self.rng.random() < 0.8 else None
            is_over = beside is not None and beside.is_over
            one = self.twin.environment.run(Round, log, settings, make_engine=make_engine, beside=beside)
            outcome = one.run()
            assert isinstance(outcome, CompletedRound)
            self.merged_beside += is_over
            if self.rng.random() < 0.5:
                self.beside.begin()
            manifest = log.manifests.read(outcome.number)
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
                    held = table_of(reader)
                assert set(held.column("key_group").to_pylist()) <= set(range(run.first_key_group, run.end_key_group))
                if run.start_position == 0:
                    assert DELETE not in held.column("op").to_pylist(), "a delete that hides nothing was retained"

    def _daemon(self) -> BackgroundMerge:
        environment = replace(self.twin.environment, start=inline)
        settings = settings_for(self.scratch, threads=4)
        return environment.run(BackgroundMerge, self.twin.open(), settings, ring=lambda: None)


def _group(key: bytes) -> int:
    return key_group_of(key, KeyType.BYTES, 8)


def _play(seed: int, scratch: Path) -> _History:
    history = _History(seed, scratch)
    for _ in range(12):
        history.round()
    history.beside.close()
    return history


def test_snapshots_of_split_runs_are_the_fold(tmp_path: Path) -> None:
    """After every round the runs, and recoveries of all and of some key groups, hold exactly the committed state."""
    histories = [_play(seed, tmp_path) for seed in range(4)]
    assert max(history.most_columns for history in histories) > 3
    assert max(history.most_runs for history in histories) > 6
    assert sum(history.merged_beside for history in histories) > 3
    assert list(tmp_path.iterdir()) == [tmp_path / "state.parquet"]


@pytest.mark.soak
def test_snapshots_of_split_runs_are_the_fold_for_long(tmp_path: Path) -> None:
    """Snapshots of split runs are the fold over many more histories."""
    for seed in range(1000, 1300):
        _play(seed, tmp_path)


def _drops_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Merge, "drops_deletes", property(lambda _: True))


def _never_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    def only(_runs: object, tier: tuple[RunRef, ...]) -> Merge:
        return Merge(tier)

    monkeypatch.setattr("statelog.schemas.snapshot.run_ref._closed", only)


def _asks_for_no_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    def any_of(merge: Merge, runs: Sequence[RunRef]) -> Merge:
        return Merge(tuple(run for run in runs if run in merge.runs) or merge.runs)

    monkeypatch.setattr("statelog.materializer.merging._still_named", any_of)


@pytest.mark.parametrize("remove", [_drops_early, _never_closes, _asks_for_no_inputs])
def test_a_missing_guard_is_noticed(
    remove: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A history breaks with deletes dropped above older runs, a merge that is no rectangle, or one of missing runs."""
    remove(monkeypatch)
    for seed in range(12):
        try:
            _play(seed, tmp_path)
        except (AssertionError, StatelogError):
            return
    pytest.fail("no history noticed the missing guard")
