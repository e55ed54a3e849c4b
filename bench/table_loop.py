"""The loop of a table: get and put of every record, a commit every second; over an input topic, and over memory.

The peers are Quix Streams and Kafka Streams, with their state in RocksDB and its changelog, committed every second.
Each is the usual program of its users, in a process of its own.

- Over the topic, of eight partitions, reading is part of the loop, and Kafka Streams has two stream threads. A `worker`
  is the equivalent of the peers: a member of a group with a state for each partition, message by message. The loop with
  one table for all partitions is the same without a group.
- Over memory only the state works. Quix's is called as by its application; Kafka Streams has no such interface.

statelog uses one thread, and is exactly once. The peers are at-least-once, and over the topic also exactly once. Kafka
Streams also runs with its store in memory, like a table in a dict.

The floors are the same loop without state, whose calls do nothing: the cost of reading and calling; and with two dicts,
one for uncommitted and one for committed changes, without a log: the cost of memory.

The measurement runs from the record at a fifth, when JIT compilers and caches are warm, to the last. statelog's
includes the last commit. CPU seconds are those of the process that holds the state, without the broker's.
"""

import tempfile
import time
import uuid
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import statelog
from bench.cost import Cost, figures_of
from bench.figures import Figure
from bench.logs import bench_log, bench_where
from bench.peers import Peer, peers
from bench.plain import PlainTopic, plain_topic
from bench.setting import Setting
from bench.tables import BACKENDS, open_table
from bench.workload import Pairs, batches, pairs
from statelog.log import Log
from statelog.tables import Table

__all__ = ["table_loop"]

_WAYS = {"topic": "loop over a topic", "worker": "worker over a topic", "state": "get and put"}
_NO_STATE, _NO_LOG = "no state", "two dicts and no log"
_FLOORS = (_NO_LOG, _NO_STATE)
_BATCH = 1000


class _NoState:
    """A table that stores nothing."""

    def get(self, key: bytes) -> bytes | None:
        """Return None."""

    def put(self, key: bytes, value: bytes) -> None:
        """Do nothing."""

    def commit_every(self, interval_s: float, progress: Mapping[str, int]) -> None:
        """Do nothing."""

    def commit(self, progress: Mapping[str, int]) -> None:
        """Do nothing."""


class _TwoDicts(_NoState):
    """A table that stores the state in memory only."""

    def __init__(self) -> None:
        self._state: dict[bytes, bytes] = {}
        self._changed: dict[bytes, bytes] = {}
        self._committed_s = time.perf_counter()

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key."""
        value = self._changed.get(key)
        return self._state.get(key) if value is None else value

    def put(self, key: bytes, value: bytes) -> None:
        """Set a key to a value."""
        self._changed[key] = value

    def commit_every(self, interval_s: float, progress: Mapping[str, int]) -> None:
        """Move the changes to the state, if the interval has passed."""
        if time.perf_counter() - self._committed_s >= interval_s:
            self.commit(progress)

    def commit(self, progress: Mapping[str, int]) -> None:  # noqa: ARG002 - nothing is stored
        """Move the changes to the state."""
        self._state.update(self._changed)
        self._changed = {}
        self._committed_s = time.perf_counter()


def table_loop(setting: Setting) -> list[Figure]:
    """Measure changes per second of both backends and of each peer, on the clock and by CPU time."""
    few = pairs(batches(setting.scaled(0.2), setting.keys))
    count, warm = len(few), len(few) // 5
    ours = {
        (way, kind): list[Cost]() for way in _WAYS for kind in (BACKENDS if way == "worker" else (*BACKENDS, *_FLOORS))
    }
    theirs = {(way, peer): list[Cost]() for peer in peers() for way in peer.kinds if way in _WAYS}
    for _ in range(setting.rounds):
        with plain_topic(setting.bootstrap) as topic:
            topic.produce(few)
            for (way, kind), costs in ours.items():
                if way == "worker":
                    costs.append(_worker(setting, kind, topic, count, warm))
                    continue
                with _table(setting, kind) as state:
                    costs.append(_over_topic(state, topic, count, warm) if way == "topic" else _over(state, few, warm))
            for (way, peer), costs in theirs.items():
                costs.append(peer.loop(setting.bootstrap, topic.name, count, warm, way))
    return [figure for named in ours.items() for figure in _figures(*named, theirs, count - warm)]


def _figures(
    named: tuple[str, str], mine: list[Cost], theirs: dict[tuple[str, Peer], list[Cost]], count: int
) -> list[Figure]:
    way, kind = named
    name = f"{_WAYS[way]}, {kind}"
    same = "topic" if way == "worker" else way
    found = [(peer.name, costs) for (other_way, peer), costs in theirs.items() if other_way == same]
    return [
        figure
        for peer_name, costs in found or [("", [])]
        for figure in figures_of(name, count, mine, peer_name, costs, noun="changes")
    ]


@contextmanager
def _table(setting: Setting, kind: str) -> Generator[Table[bytes, bytes] | _NoState]:
    """Yield a new table, and delete it at the end."""
    if kind in (_NO_STATE, _NO_LOG):
        yield _NoState() if kind == _NO_STATE else _TwoDicts()
        return
    with (
        tempfile.TemporaryDirectory() as directory,
        bench_log(setting.bootstrap, setting.root) as log,
        open_table(setting, log.name, kind, Path(directory) / "table") as state,
    ):
        yield state


def _over_topic(state: Table[bytes, bytes] | _NoState, topic: PlainTopic, count: int, warm: int) -> Cost:
    """Run a good user's loop: batches of records, with the next offsets as the table's progress."""
    consumer, get, put = topic.consumer(), state.get, state.put
    offsets: dict[str, int] = {}
    seen, clock = 0, None
    while seen < count:
        if clock is None and seen >= warm:
            clock = _Clock()
        for message in consumer.consume(_BATCH, 0.1):
            key, value = message.key(), message.value()
            if key and value:  # Not a probe.
                get(key)
                put(key, value)
                seen += 1
            offsets[str(message.partition())] = (message.offset() or 0) + 1
        state.commit_every(1.0, offsets)
    state.commit(offsets)
    consumer.close()
    assert clock is not None
    return clock.cost()


def _worker(setting: Setting, kind: str, topic: PlainTopic, count: int, warm: int) -> Cost:
    """Run the program of a user of the peers: `commit_every` after each message, as in the guide."""
    name = f"bench-{uuid.uuid4().hex[:12]}"
    where = bench_where(setting.bootstrap, setting.root)
    seen, clock = 0, _Clock()
    with tempfile.TemporaryDirectory() as directory:
        kept: dict[str, Any] = {"backend": kind, "directory": directory if kind == "rocksdb" else None}
        with statelog.worker(name, where, topic=topic.name, create=True, **kept) as worker:
            for message, state in worker:
                key, value = message.key(), message.value()
                if key and value:  # Not a probe.
                    state.get(key)
                    state.put(key, value)
                    seen += 1
                worker.commit_every(1.0)
                if seen == warm:
                    clock = _Clock()
                if seen == count:
                    break
            worker.commit()
            cost = clock.cost()
    Log.delete(name, where)
    return cost


def _over(state: Table[bytes, bytes] | _NoState, few: Pairs, warm: int) -> Cost:
    """Run the same loop over changes in memory, with `commit_every` after each, as in the guide."""
    get, put, commit_every = state.get, state.put, state.commit_every
    clock = _Clock()
    for offset, (key, value) in enumerate(few):
        get(key)
        put(key, value)
        commit_every(1.0, {"offset": offset + 1})
        if offset == warm:
            clock = _Clock()
    state.commit({"offset": len(few)})
    return clock.cost()


class _Clock:
    """Measures this process from the clock's construction on."""

    def __init__(self) -> None:
        self._started_s, self._started_cpu_s = time.perf_counter(), time.process_time()

    def cost(self) -> Cost:
        """Return the cost so far."""
        return Cost(wall_s=time.perf_counter() - self._started_s, cpu_s=time.process_time() - self._started_cpu_s)
