"""Commits of 100 and of 5 changes over eight partitions: latency and CPU time.

The baselines are a Kafka transaction of the same changes, and a plain flush, which is not atomic. The floor is the work
that every commit needs. The broker's CPU time is shown if the broker is the run's own.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain
from operator import attrgetter

from bench.commit_ways import Way, commits_of, latencies, least_commits, without_garbage
from bench.cost import in_turns
from bench.figures import Figure, medians
from bench.figures import latency as milliseconds
from bench.logs import bench_log
from bench.plain import plain_topic
from bench.processors import TICK_S
from bench.setting import Setting
from bench.workload import Pairs, batches, pairs

__all__ = ["latency"]

_SIZES = (100, 5)
_OURS = "ours"
_OTHERS = ("one Kafka transaction", "flush, not atomic")
_FLOOR = "floor: chunks made and sent, then a record in the ledger"
_SHARES = ((0.5, "p50"), (0.99, "p99"))
_WARM = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Take:
    """The seconds of each commit of a take, and the CPU milliseconds per commit of client and broker."""

    seconds: list[float]
    client_ms: float
    broker_ms: float


def latency(setting: Setting) -> list[Figure]:
    """Measure the milliseconds of a commit, on the clock and of CPU time."""
    few = pairs(batches(100_000, setting.keys))
    figures: list[Figure] = []
    with (
        plain_topic(setting.bootstrap) as topic,
        bench_log(setting.bootstrap, setting.root) as log,
        bench_log(setting.bootstrap, setting.root) as unread,
    ):
        ways: dict[str, Way] = {
            _OURS: partial(commits_of, log),
            _OTHERS[0]: lambda of: nullcontext(topic.transaction(of)),
            _OTHERS[1]: lambda _: nullcontext(topic.flush()),
            _FLOOR: partial(least_commits, unread),
        }
        for size in _SIZES:
            sets = [few[i % 900 * 100 :][:size] for i in range(setting.commits)]
            takes = {name: partial(_take, setting, way, sets) for name, way in ways.items()}
            took = in_turns(takes, warm=1, turns=setting.rounds)
            figures += _figures(f"commit of {size} changes", took, tells_broker=setting.broker_pid is not None)
    return figures


def _take(setting: Setting, way: Way, sets: Sequence[Pairs]) -> _Take:
    first = min(_WARM, len(sets) // 2)
    without_garbage()
    with way(None) as commit:
        latencies(commit, sets[:first])
        client_s, broker_s = time.process_time(), setting.broker_cpu_s()
        seconds = latencies(commit, sets[first:])
        client_s, broker_s = time.process_time() - client_s, max(TICK_S, setting.broker_cpu_s() - broker_s)
    each_ms = 1e3 / len(seconds)
    return _Take(seconds=seconds, client_ms=client_s * each_ms, broker_ms=broker_s * each_ms)


def _figures(name: str, took: dict[str, list[_Take]], *, tells_broker: bool) -> list[Figure]:
    ours, others = took[_OURS], (*_OTHERS, _FLOOR)
    figures = [
        milliseconds(f"{name}, {label}", share, _seconds(ours), other, _seconds(took[other]))
        for share, label in _SHARES
        for other in others
    ]
    for label, each in _PROCESSORS[: 1 + tells_broker]:
        figures += [
            medians(f"{name}, {label}", "CPU ms", [*map(each, ours)], other, [*map(each, took[other])])
            for other in others
        ]
    return figures


def _seconds(takes: Sequence[_Take]) -> list[float]:
    return [*chain.from_iterable(one.seconds for one in takes)]


_PROCESSORS: tuple[tuple[str, Callable[[_Take], float]], ...] = (
    ("CPU", attrgetter("client_ms")),
    ("the broker's CPU", attrgetter("broker_ms")),
)
