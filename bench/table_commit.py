"""Commits of a table while its loop runs: get and put of every change, `commit_async` after every thousandth.

A commit's time is from its call to its outcome, which the loop checks after every hundred changes. Its pause is the
time of the call itself: turning changes into Arrow, sending them, and applying earlier commits. The baseline of both is
a Kafka transaction of the same changes, for which a plain loop waits.
"""

import tempfile
import time
from collections import defaultdict, deque
from pathlib import Path

from bench.commit_ways import latencies
from bench.figures import Figure, latency
from bench.logs import bench_log
from bench.plain import plain_topic
from bench.setting import Setting
from bench.tables import BACKENDS, open_table
from bench.workload import Pairs, batches, pairs
from statelog.pending import Pending
from statelog.schemas.ledger.state import LastCommit
from statelog.tables import Table

__all__ = ["table_commit"]

_CHANGES, _LOOK = 1000, 100
_WARM = 20
_TRANSACTION = "one Kafka transaction"


def table_commit(setting: Setting) -> list[Figure]:
    """Measure the milliseconds, p50 and p99, of both backends."""
    few = pairs(batches(setting.scaled(0.25), setting.keys))
    commits, pauses = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    transactions: list[float] = []
    for _ in range(setting.rounds):
        transactions += _warm(_transactions(setting, few))
        for kind in BACKENDS:
            for found, took in zip((commits, pauses), _table(setting, kind, few), strict=True):
                found[kind] += _warm(took)
    return [
        latency(f"{label}, {_CHANGES:,} changes, {kind}, {name}", share, found[kind], _TRANSACTION, transactions)
        for kind in BACKENDS
        for label, found in (("commit under the loop", commits), ("pause of the loop", pauses))
        for name, share in (("p50", 0.5), ("p99", 0.99))
    ]


def _warm(found: list[float]) -> list[float]:
    return found[min(_WARM, len(found) // 5) :]


def _transactions(setting: Setting, few: Pairs) -> list[float]:
    with plain_topic(setting.bootstrap) as topic:
        return latencies(topic.transaction(), [few[at : at + _CHANGES] for at in range(0, len(few), _CHANGES)])


def _table(setting: Setting, kind: str, few: Pairs) -> tuple[list[float], list[float]]:
    with (
        tempfile.TemporaryDirectory() as scratch,
        bench_log(setting.bootstrap, setting.root) as log,
        open_table(setting, log.name, kind, Path(scratch) / "table") as state,
    ):
        return _loop(state, few)


def _loop(state: Table[bytes, bytes], few: Pairs) -> tuple[list[float], list[float]]:
    """Return the seconds of each commit, and of its call."""
    under_way: deque[tuple[float, Pending[LastCommit]]] = deque()
    commits: list[float] = []
    pauses: list[float] = []
    for count, (key, value) in enumerate(few, 1):
        state.get(key)
        state.put(key, value)
        if not count % _CHANGES:
            started_s = time.perf_counter()
            under_way.append((started_s, state.commit_async({"offset": count})))
            pauses.append(time.perf_counter() - started_s)
        if not count % _LOOK:
            while under_way and under_way[0][1].done():
                commits.append(time.perf_counter() - under_way.popleft()[0])
    state.commit({"offset": len(few)})
    commits += [time.perf_counter() - started_s for started_s, _ in under_way]
    return commits, pauses
