"""A play: a log on a cluster, its cast and its nemesis, and the judgement in the end.

.venv/bin/python -m tests.sim.cluster.play --minutes 10 --seed 7
"""

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import mkdtemp

from statelog.recovery import AtPosition, recover
from statelog.storage.log.log import Log
from statelog.storage.log.where import LogOptions, Where
from tests.sim.cluster.cast import NAMES, Cast
from tests.sim.cluster.nemesis import Nemesis
from tests.sim.cluster.nodes import Cluster, running_cluster
from tests.sim.cluster.oracle import History, Sighting, judge
from tests.sim.cluster.part import Stage
from tests.sim.cluster.story import KEY_GROUPS, PARTITIONS, PARTITIONS_OF, State, entries

__all__ = ["Figures", "perform"]

_QUIET_TIMEOUT_S = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a play came to. Times are seconds."""

    seed: int
    duration_s: float
    faults: Counter[str]
    attempts: int
    acknowledged: int
    committed: int
    recoveries: int
    followed: int
    rounds: int
    daemons_given_up: int
    errors: Counter[str]
    longest_silence_s: float

    def __str__(self) -> str:
        return "\n".join(
            (
                f"seed {self.seed}, {self.duration_s:.0f} s, {sum(self.faults.values())} faults: {dict(self.faults)}",
                f"{self.attempts} commits tried, {self.acknowledged} acknowledged, {self.committed} in history",
                f"{self.recoveries} recoveries, {self.followed} commits followed, {self.rounds} rounds",
                f"{self.daemons_given_up} daemons gave up; longest silence {self.longest_silence_s:.1f} s",
                f"errors met: {dict(self.errors)}",
            )
        )


def perform(
    cluster: Cluster, log: str, directory: Path, *, seed: int, duration_s: float, least: Mapping[str, int] | None = None
) -> Figures:
    """Play for so long under faults, then in peace, and judge. Raises AssertionError.

    `least` has figures by name (`_done`) that a play is to reach, for which a slow machine takes longer.
    """
    wanted = least or {}
    stage = Stage(log=log, bootstrap=cluster.bootstrap, root=str(directory / "root"), directory=directory / "stage")
    Log.create(log, Where(stage.kafka(0), stage.root), LogOptions(partitions=PARTITIONS, key_groups=KEY_GROUPS)).close()
    stage.directory.mkdir()
    cast = Cast(stage)
    started_s = time.monotonic()
    try:
        nemesis = Nemesis(cluster, cast, log, seed)
        nemesis.torment(
            duration_s, lambda: all(done >= wanted.get(name, 0) for name, done in _done(stage, cast, nemesis).items())
        )
        _wait_for_quiet(cast)
        cast.end()
    finally:
        cast.kill_all()
    with Log.open(log, Where(stage.kafka(0), stage.root)) as opened:
        history = _judge(opened, stage)
    return _figures(stage, cast, nemesis, history, time.monotonic() - started_s)


def _wait_for_quiet(cast: Cast) -> None:
    """After the last fault, everybody gets on."""
    before = cast.progress()
    waiting: set[str] = {name for name in NAMES if not name.startswith("task")}
    deadline = time.monotonic() + _QUIET_TIMEOUT_S
    while waiting:
        assert time.monotonic() < deadline, f"got no further: {sorted(waiting)}"
        cast.tend()
        time.sleep(1.0)
        now = cast.progress()
        waiting = {name for name in waiting if now[name] < before[name] + 2}


def _judge(log: Log, stage: Stage) -> History:
    """The journals against each other, and what the log holds in the end, and held at its snapshots, against them."""
    final = recover(log)
    rows = State(final.to_dict().items()).rows
    last = {name: Sighting(0, "", -1) for name in PARTITIONS_OF}
    for name, commit in final.commits.items():
        last[name] = Sighting(commit.checkpoint.id, str(commit.metadata["life"]), commit.offset)
    history = judge(entries(stage.directory), last)
    assert not history.complaints, "\n".join(history.complaints)
    assert rows == history.state.rows
    held = [log.manifests.read(number).manifest.position for number in log.manifests.numbers()]
    assert len(held) >= 2
    for position in held:
        assert State(_state_at(log, position)).digest == history.digest_at(position)
    return history


def _state_at(log: Log, position: int) -> list[tuple[bytes, bytes]]:
    return list(recover(log, at=AtPosition(position)).to_dict().items())


def _done(stage: Stage, cast: Cast, nemesis: Nemesis) -> dict[str, int]:
    """How much was achieved so far."""
    what = Counter(str(entry["what"]) for entry in entries(stage.directory))
    return {
        "faults": sum(nemesis.faults.values()),
        "acknowledged": what["ack"],
        "recoveries": what["read"] + what["restored"],
        "followed": what["followed"],
        "rounds": len(cast.rounds()),
    }


def _figures(stage: Stage, cast: Cast, nemesis: Nemesis, history: History, duration_s: float) -> Figures:
    noted, done = entries(stage.directory), _done(stage, cast, nemesis)
    what = Counter(str(entry["what"]) for entry in noted)
    told = [float(entry["at"]) for entry in noted if entry["what"] == "ack"]
    errors = Counter(
        f"{NAMES[str(entry['actor']).partition('.')[0]]} {entry['kind']}" for entry in noted if entry["what"] == "error"
    )
    return Figures(
        seed=nemesis.seed,
        duration_s=duration_s,
        faults=nemesis.faults,
        attempts=what["attempt"],
        acknowledged=done["acknowledged"],
        committed=len(history.commits),
        recoveries=done["recoveries"],
        followed=done["followed"],
        rounds=done["rounds"],
        daemons_given_up=cast.given_up,
        errors=errors,
        longest_silence_s=max((b - a for a, b in pairwise(told)), default=0.0),
    )


def main() -> None:
    """Play on a cluster of its own, and print the figures. What was noted stays, for whoever asks why."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--directory", type=Path)
    given = parser.parse_args()
    directory = given.directory or Path(mkdtemp(prefix="statelog-play-"))
    sys.stderr.write(f"seed {given.seed}, notes in {directory}\n")
    with running_cluster(directory / "cluster") as cluster:
        figures = perform(cluster, "play", directory, seed=given.seed, duration_s=given.minutes * 60)
    sys.stdout.write(f"{figures}\n")


if __name__ == "__main__":
    main()
