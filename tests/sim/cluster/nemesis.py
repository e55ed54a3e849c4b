"""The nemesis of a play on a cluster: one track of faults for the nodes and one for the actors, both out of one seed.

A track is an iterator that does harm and yields how long to wait before it goes on. At most one fault of each track is
under way, and the next one of the nodes waits until all replicas are in sync again: no acknowledged commit may be lost.
A fault of every kind comes once, in a random order, before any comes again.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from tests.sim.cluster.cast import NAMES, Cast
from tests.sim.cluster.nodes import SESSION_S, Cluster, Node
from tests.sim.cluster.story import JOB, PARTITIONS, PARTITIONS_OF

__all__ = ["Nemesis"]

Track = Iterator[float]
_IN_SYNC_TIMEOUT_S = 240.0
_TAKEOVER_TIMEOUT_S = 30.0
_LONGER_S = 600.0
"""For how much longer than asked for a play may go on until it has done enough."""
_WRITERS = tuple(name for name in PARTITIONS_OF if name != JOB)


class Nemesis:
    """Faults on a log's cluster and cast. `faults` counts those that were begun, by kind."""

    def __init__(self, cluster: Cluster, cast: Cast, log: str, seed: int) -> None:
        self._cluster = cluster
        self._cast = cast
        self._topics = (log, f"{log}.ledger")
        self.seed = seed
        self._chance = random.Random(seed)
        self.faults: Counter[str] = Counter()

    def torment(self, duration_s: float, is_enough: Callable[[], bool]) -> None:
        """Do harm for so long, on a slow machine until it is enough, then let what is under way come to its end."""
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
        """Who leads the ledger, or some partition of the data; anybody if nobody says."""
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
            assert time.monotonic() < deadline, "the replicas did not come together again"
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
        """A life is paused, the next one takes over and commits, and then the first goes on."""
        life = self._cast.pause(name)
        yield self._chance.uniform(0.0, 1.0)
        heir = self._cast.start(name)
        deadline = time.monotonic() + _TAKEOVER_TIMEOUT_S
        while time.monotonic() < deadline and not self._cast.has_committed(name, heir):
            yield 0.3
        self._cast.resume(name, life)


def _of_role(role: str) -> tuple[str, ...]:
    return tuple(name for name, played in NAMES.items() if played == role)
