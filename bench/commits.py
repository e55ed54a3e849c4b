"""Commits of other shapes: over 1, 8 and 64 partitions, and of 1 and 20 concurrent writers of one log.

The baselines are a Kafka transaction of the same changes in the same partitions, and the floor of a commit. Each writer
owns partitions of its own, and each transaction has a producer of its own. Each runs in a thread, and all begin once
all are open. The three alternate, and the first turn is not counted: a new broker compiles and collects garbage, at the
expense of the first measurement. The slowest commits are shown by the 99.9th percentile, so ask for thousands.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from itertools import chain
from threading import Barrier

from bench.commit_ways import Way, commits_of, latencies, least_commits, without_garbage
from bench.cost import in_turns
from bench.figures import Figure, latency
from bench.logs import bench_log
from bench.plain import plain_topic
from bench.setting import Setting
from bench.workload import Pairs, batches, pairs
from statelog.log import Log
from statelog.schemas.key_groups import key_group_of, partition_of

__all__ = ["commits"]

_SHARES = ((0.5, "p50"), (0.99, "p99"), (0.999, "p99.9"))
_CHANGES = 100
_OURS, _FLOOR, _TRANSACTION = "", ", floor", "one Kafka transaction"
_SHAPES = ((1, 1, 0.0), (8, 1, 0.0), (8, 1, 0.02), (64, 1, 0.0), (64, 20, 0.0))
"""Partitions of the log, its writers, and the seconds between two commits of a writer.

In a tight loop the ledger's load sends most changes through the data topic.
"""
_PACED_COMMITS = 300
_TURNS_EACH = 2
"""The turns of each round: percentiles show one commit in a hundred, and a turn has few of those."""


def commits(setting: Setting) -> list[Figure]:
    """Measure the milliseconds of a commit of 100 changes."""
    few = pairs(batches(100_000, setting.keys))
    return [figure for shape in _SHAPES for figure in _shape(setting, few, *shape)]


def _shape(setting: Setting, few: Pairs, partitions: int, writers: int, pause_s: float) -> list[Figure]:
    each = max(20, setting.commits // writers)
    if pause_s:
        each = min(each, _PACED_COMMITS)
    first = min(20, each // 2)
    shares = [range(writer, partitions, writers) for writer in range(writers)]
    where = setting.bootstrap, setting.root
    with (
        bench_log(*where, partitions=partitions) as log,
        bench_log(*where, partitions=partitions) as unread,
        plain_topic(setting.bootstrap, partitions=partitions) as topic,
    ):
        owned = list(zip([_sets(log, few, share, each) for share in shares], shares, strict=True))
        ways: dict[str, Way] = {
            _OURS: partial(commits_of, log),
            _FLOOR: partial(least_commits, unread),
            _TRANSACTION: lambda share: nullcontext(topic.transaction(share)),
        }
        works = {
            name: partial(_together, [partial(_take, way, *one, pause_s) for one in owned], first)
            for name, way in ways.items()
        }
        takes = in_turns(works, warm=1, turns=_TURNS_EACH * setting.rounds)
    took = {name: [*chain(*seconds)] for name, seconds in takes.items()}
    name = f"commit of {_CHANGES} changes, {partitions} partitions, {writers} writer{'s' if writers > 1 else ''}"
    name += f", one every {1000 * pause_s:.0f} ms" if pause_s else ""
    return [
        latency(f"{name}{what}, {label}", share, took[what], _TRANSACTION, took[_TRANSACTION])
        for what in (_OURS, _FLOOR)
        for share, label in _SHARES
    ]


def _take(
    way: Way, sets: Sequence[Pairs], share: Sequence[int], pause_s: float, ready: Callable[[], object]
) -> list[float]:
    with way(share) as commit:
        ready()
        return latencies(commit, sets, pause_s)


def _sets(log: Log, few: Pairs, owned: Sequence[int], count: int) -> list[Pairs]:
    """Return the changes of each commit, with keys in these partitions."""
    of = log.descriptor

    def partition(key: bytes) -> int:
        return partition_of(key_group_of(key, of.key_type, of.key_groups), of.partitions, of.key_groups)

    mine = [pair for pair in few if partition(pair[0]) in owned]
    return [[mine[(number * _CHANGES + i) % len(mine)] for i in range(_CHANGES)] for number in range(count)]


def _together(works: Sequence[Callable[[Callable[[], object]], list[float]]], first: int) -> list[float]:
    """Return the seconds of all works, each in a thread, without the `first` commits of each. All begin together."""
    ready = Barrier(len(works), without_garbage, timeout=120)
    with ThreadPoolExecutor(len(works)) as threads:
        return [one for took in [threads.submit(work, ready.wait) for work in works] for one in took.result()[first:]]
