"""A play: a log on a cluster, its cast and its nemesis, and the judgement in the end.

    .venv/bin/python -m tests.sim.cluster.play --minutes 10 --seed 7

The nemesis has one track of faults for the nodes and one for the actors, both from one seed. A track is an iterator
that does harm and yields the time to wait before it goes on. At most one fault of each track is active. The next fault
of the nodes waits until all replicas are in sync again: no acknowledged commit may be lost. A fault of every kind comes
once, in a random order, before any comes again.
"""

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import mkdtemp

from statelog.log import Log, LogOptions, Where
from statelog.recovery import AtPosition, recover
from tests.sim.cluster.cast import NAMES, Cast
from tests.sim.cluster.judge import History, Sighting, judge
from tests.sim.cluster.nodes import SESSION_S, Cluster, Node, running_cluster
from tests.sim.cluster.stage import JOB, KEY_GROUPS, PARTITIONS, PARTITIONS_OF, Stage, State, entries

__all__ = ["Figures", "Nemesis", "perform"]

_QUIET_TIMEOUT_S = 240.0
Track = Iterator[float]
_IN_SYNC_TIMEOUT_S = 240.0
_TAKEOVER_TIMEOUT_S = 30.0
_LONGER_S = 600.0
"""The extra time for a play that has not done enough."""
_WRITERS = tuple(name for name in PARTITIONS_OF if name != JOB)


class Nemesis:
    """Faults on a log's cluster and cast. `faults` counts the started ones, by kind."""

    def __init__(self, cluster: Cluster, cast: Cast, log: str, seed: int) -> None:
        self._cluster = cluster
        self._cast = cast
        self._topics = (log, f"{log}.ledger")
        self.seed = seed
        self._chance = random.Random(seed)
        self.faults: Counter[str] = Counter()

    def torment(self, duration_s: float, is_enough: Callable[[], bool]) -> None:
        """Do harm for so long, on a slow machine until it is enough, then let the active faults end."""
        end = time.monotonic() + duration_s

        def is_over() -> bool:
            now = time.monotonic()
            return now >= end and (now >= end + _LONGER_S or is_enough())

        tracks = dict.fromkeys((self._on_nodes(is_over), self._on_actors(is_over)), 0.0)
        while tracks:
            self._cast.tend()
            for track, due in list(tracks.items()):
                if time.monotonic() >= due:
                    pause_s = next(track, None)
                    if pause_s is None:
                        del tracks[track]
                    else:
                        tracks[track] = time.monotonic() + pause_s
            time.sleep(0.1)

    def _on_nodes(self, is_over: Callable[[], bool]) -> Track:
        kinds: Mapping[str, Callable[[], Track]] = {
            "ledger's leader paused beyond its session": lambda: self._pause(self._leader(of_ledger=True), beyond=True),
            "data leader paused beyond its session": lambda: self._pause(self._leader(of_ledger=False), beyond=True),
            "ledger's leader killed": lambda: self._kill([self._leader(of_ledger=True)]),
            "data leader killed": lambda: self._kill([self._leader(of_ledger=False)]),
            "ledger's leader paused for a moment": lambda: self._pause(self._leader(of_ledger=True), beyond=False),
            "node restarted": lambda: self._restart(self._chance.choice(self._cluster.nodes)),
            "two nodes killed": lambda: self._kill(self._chance.sample(self._cluster.nodes, 2)),
        }
        return self._all(kinds, is_over, 1.0, 3.0)

    def _on_actors(self, is_over: Callable[[], bool]) -> Track:
        someone = self._chance.choice
        kinds: Mapping[str, Callable[[], Track]] = {
            "writer slept through a takeover": lambda: self._zombie(someone(_WRITERS)),
            "coordinator slept through a takeover": lambda: self._zombie(JOB),
            "writer killed": lambda: self._murder(someone(_WRITERS)),
            "coordinator killed": lambda: self._murder(JOB),
            "task killed": lambda: self._murder(someone(_of_role("task"))),
            "task slept": lambda: self._sleep(someone(_of_role("task"))),
            "materializer killed": lambda: self._murder(someone(_of_role("materializer"))),
            "materializer slept": lambda: self._sleep(someone(_of_role("materializer"))),
            "reader killed": lambda: self._murder(someone(_of_role("reader"))),
            "follower killed": lambda: self._murder("follower"),
        }
        return self._all(kinds, is_over, 0.5, 2.5)

    def _all(
        self, kinds: Mapping[str, Callable[[], Track]], is_over: Callable[[], bool], least_s: float, most_s: float
    ) -> Track:
        while True:
            for kind in self._chance.sample(sorted(kinds), len(kinds)):
                yield self._chance.uniform(least_s, most_s)
                if is_over():
                    return
                self.faults[kind] += 1
                yield from kinds[kind]()

    # ---- nodes

    def _leader(self, *, of_ledger: bool) -> Node:
        """Return the leader of the ledger, or of some partition of the data; any node if none answers."""
        data, ledger = self._topics
        partition = self._chance.randrange(PARTITIONS)
        leader = self._cluster.leader(ledger) if of_ledger else self._cluster.leader(data, partition)
        return leader or self._chance.choice(self._cluster.nodes)

    def _pause(self, node: Node, *, beyond: bool) -> Track:
        node.pause()
        yield self._chance.uniform(SESSION_S + 1, SESSION_S + 5) if beyond else self._chance.uniform(0.5, SESSION_S / 2)
        node.resume()
        yield from self._until_in_sync()

    def _kill(self, nodes: Sequence[Node]) -> Track:
        for node in nodes:
            node.kill()
        for node in nodes:
            yield self._chance.uniform(0.0, SESSION_S + 2)
            self._cluster.restart(node)
        yield from self._until_in_sync()

    def _restart(self, node: Node) -> Track:
        node.terminate()
        yield self._chance.uniform(0.0, SESSION_S)
        self._cluster.restart(node)
        yield from self._until_in_sync()

    def _until_in_sync(self) -> Track:
        deadline = time.monotonic() + _IN_SYNC_TIMEOUT_S
        while not self._cluster.is_in_sync(self._topics):
            assert time.monotonic() < deadline, "the replicas are not in sync again"
            yield 0.3

    # ---- actors

    def _murder(self, name: str) -> Track:
        self._cast.kill(name)
        yield 0.0

    def _sleep(self, name: str) -> Track:
        life = self._cast.pause(name)
        yield self._chance.uniform(2.0, 8.0)
        self._cast.resume(name, life)

    def _zombie(self, name: str) -> Track:
        """Pause an incarnation, let the next one take over and commit, and then resume the first."""
        life = self._cast.pause(name)
        yield self._chance.uniform(0.0, 1.0)
        heir = self._cast.start(name)
        deadline = time.monotonic() + _TAKEOVER_TIMEOUT_S
        while time.monotonic() < deadline and not self._cast.has_committed(name, heir):
            yield 0.3
        self._cast.resume(name, life)


def _of_role(role: str) -> tuple[str, ...]:
    return tuple(name for name, played in NAMES.items() if played == role)


# ---- the whole play


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of a play. Times are seconds."""

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

    `least` has figures by name (`_done`) that a play must reach; a slow machine takes longer for them.
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
    """Wait after the last fault until every actor makes progress."""
    before = cast.progress()
    waiting: set[str] = {name for name in NAMES if not name.startswith("task")}
    deadline = time.monotonic() + _QUIET_TIMEOUT_S
    while waiting:
        assert time.monotonic() < deadline, f"made no progress: {sorted(waiting)}"
        cast.tend()
        time.sleep(1.0)
        now = cast.progress()
        waiting = {name for name in waiting if now[name] < before[name] + 2}


def _judge(log: Log, stage: Stage) -> History:
    """Return the history; judge the journals against each other, and the log's end and snapshots against them."""
    final = recover(log)
    rows = State(final.to_dict().items()).rows
    last = {name: Sighting(0, "", -1) for name in PARTITIONS_OF}
    for name, commit in final.commits.items():
        last[name] = Sighting(commit.checkpoint.id, str(commit.metadata["life"]), commit.offset)
    history = judge(entries(stage.directory), last)
    assert not history.complaints, "\n".join(history.complaints)
    assert rows == history.state.rows
    held = [log.manifests.read(number).position for number in log.manifests.numbers()]
    assert len(held) >= 2
    for position in held:
        assert State(_state_at(log, position)).digest == history.digest_at(position)
    return history


def _state_at(log: Log, position: int) -> list[tuple[bytes, bytes]]:
    return list(recover(log, at=AtPosition(position)).to_dict().items())


def _done(stage: Stage, cast: Cast, nemesis: Nemesis) -> dict[str, int]:
    """Return how much was achieved so far."""
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
    """Play on a cluster of its own, and print the figures. The journals stay for later questions."""
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
