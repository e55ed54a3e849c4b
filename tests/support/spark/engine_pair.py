"""Two logs of one history: the local engine rolls up one, Spark's the other, and their snapshots must be equal."""

import random
from pathlib import Path
from typing import Any

from statelog.materializer.engine import EngineMaker
from statelog.materializer.outcome import CompletedRound
from statelog.materializer.round import Round, run_round
from statelog.materializer.settings import MaterializerSettings
from statelog.producer.writer import Writer
from statelog.recovery import recover_snapshot
from tests.support.rigs.log import settings_for
from tests.support.spark.rig import SparkLog, write_numbers

__all__ = ["EnginePair", "change", "run_paths", "settings_at", "snapshot_rows"]


class EnginePair:
    """`local` and `remote`, which get the same changes, chosen by `rng`."""

    def __init__(self, name: str, bootstrap: str, directory: Path, seed: int = 7) -> None:
        self.local, self.remote = (SparkLog.create(f"{name}-{kind}", bootstrap, directory) for kind in "ab")
        self.directory = directory
        self.rng = random.Random(seed)

    def change(self, most_keys: int | None = None) -> None:
        """Make the same commit in both."""
        change(self.rng, [self.local, self.remote], most_keys)

    def roll_up_local(self) -> None:
        """Run a round of the local engine on its log."""
        run_round(self.local.log, settings_at(self.directory))

    def roll_up(self, make_engine: EngineMaker) -> CompletedRound:
        """Run a round of each engine: snapshots of the same rows, all of whose runs are in the store."""
        self.roll_up_local()
        outcome = Round(self.remote.log, settings_at(self.directory), make_engine=make_engine).run()
        assert isinstance(outcome, CompletedRound)
        self.expect_equal()
        assert self.named(outcome.number) <= run_paths(self.remote)
        return outcome

    def expect_equal(self) -> None:
        """Raise AssertionError unless both snapshots have the same rows."""
        assert snapshot_rows(self.remote) == snapshot_rows(self.local)

    def named(self, number: int) -> set[str]:
        """Return the runs that a manifest of Spark's log names."""
        return {run.path for run in self.remote.log.manifests.read(number).runs}

    def all_named(self) -> set[str]:
        """Return the runs that any manifest of Spark's log names."""
        return {path for number in self.remote.log.manifests.numbers() for path in self.named(number)}


def settings_at(scratch: Path, **changed: Any) -> MaterializerSettings:
    """Return settings under which every second round merges, and no file is retained for its age."""
    return settings_for(scratch, fanout=2, **changed)


def change(rng: random.Random, rigs: list[SparkLog], most_keys: int | None = None) -> None:
    """Make the same commit in every log, of a few keys or of many."""
    deleted = {rng.randrange(300): rng.random() < 0.3 for _ in range(most_keys or rng.choice((3, 200)))}
    number = rng.randrange(1000)
    numbers = {key: None if is_delete else number + key for key, is_delete in deleted.items()}
    for rig in rigs:
        with Writer(rig.log, "w") as writer:
            write_numbers(writer, numbers)
            writer.commit()


def snapshot_rows(rig: SparkLog) -> list[dict[str, Any]]:
    """Return the rows of the newest snapshot alone, by key."""
    with recover_snapshot(rig.log.name, rig.where) as recovery:
        return recovery.to_arrow().sort_by("key").to_pylist()


def run_paths(rig: SparkLog) -> set[str]:
    """Return the runs that lie in the store, named or not."""
    return {info.path for info in rig.log.store.list("runs/")}
