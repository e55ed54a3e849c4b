"""Commits of a table while its loop runs: get and put of every change, `commit_async` behind every thousandth.

A commit's time is from its call to its outcome, for which the loop looks behind every hundred changes; its pause is
what the call itself takes of the loop: turning changes into Arrow, sending them, and applying what has become history.
"""

import tempfile
import time
from collections import deque
from pathlib import Path

from bench.figures import Figure, latency
from bench.logs import bench_log
from bench.setting import Setting
from bench.tables import BACKENDS, open_table
from bench.workload import Pairs, batches, pairs
from statelog.pending import Pending
from statelog.schemas.ledger.state import LastCommit
from statelog.tables import Table

__all__ = ["table_commit"]

_CHANGES, _LOOK = 1000, 100
_WARM = 20


def table_commit(setting: Setting) -> list[Figure]:
    """Milliseconds, p50 and p99, of both backends."""
    few = pairs(batches(setting.scaled(0.1), setting.keys))
    figures: list[Figure] = []
    for kind in BACKENDS:
        with tempfile.TemporaryDirectory() as scratch, bench_log(setting.bootstrap, setting.root) as log:
            home = Path(scratch) / "table"
            with open_table(setting, log.name, kind, home) as state:
                commits, pauses = _loop(state, few)
        for label, found in (("commit under the loop", commits), ("pause of the loop", pauses)):
            figures += [
                latency(f"{label}, {_CHANGES:,} changes, {kind}, {name}", share, found[min(_WARM, len(found) // 5) :])
                for name, share in (("p50", 0.5), ("p99", 0.99))
            ]
    return figures


def _loop(state: Table[bytes, bytes], few: Pairs) -> tuple[list[float], list[float]]:
    """Seconds of each commit, and of its call."""
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
