"""Four recoveries of one state at once, with and without the recovery cache.

On a local store, and on one with a simulated network: 20 ms a request and 100 MB/s for the whole process. The clock
covers the recoveries with their planning, and for the cache also creating and removing its files.
"""

import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from bench.figures import Figure, timed
from bench.logs import bench_log, bulk_append
from bench.remote_store import Link, RemoteStore
from bench.setting import Setting
from bench.workload import batches, every_key
from statelog.log import Log
from statelog.materializer.round import run_round
from statelog.materializer.settings import MaterializerSettings
from statelog.recovery import CacheSettings, Recovery, RecoverySettings, recover
from statelog.store.local import LocalStore

__all__ = ["cache"]

RECOVERIES = 4
_REQUEST_S = 0.02
_BYTES_S = 100e6


def cache(setting: Setting) -> list[Figure]:
    """Measure the seconds of four concurrent recoveries, and the bytes that they fetch from the remote store."""
    found: dict[str, list[float]] = {name: [] for name in ("local", "local+", "remote", "remote+", "mb", "mb+")}
    with tempfile.TemporaryDirectory() as scratch, bench_log(setting.bootstrap, setting.root) as log:
        _fill(log, setting, Path(scratch))
        cached = RecoverySettings(cache=CacheSettings(directory=Path(scratch) / "cache"))
        for _ in range(setting.rounds):
            log.store = LocalStore(setting.root, log.name)
            found["local"].append(timed(partial(_recover_all, log, RecoverySettings())))
            found["local+"].append(timed(partial(_recover_all, log, cached)))
            for mark, settings in (("", RecoverySettings()), ("+", cached)):
                link = Link(_REQUEST_S, _BYTES_S)
                log.store = RemoteStore(setting.root, log.name, link)
                found["remote" + mark].append(timed(partial(_recover_all, log, settings)))
                found["mb" + mark].append(link.size_bytes / 1e6)
    return [
        _figure("4 recoveries at once, cached, local store", "s", found["local+"], found["local"]),
        _figure("4 recoveries at once, cached, 100 MB/s store", "s", found["remote+"], found["remote"]),
        _figure("bytes of 4 recoveries at once, cached", "MB", found["mb+"], found["mb"]),
    ]


def _fill(log: Log, setting: Setting, scratch: Path) -> None:
    """Fill a log with a quarter of the keys in three runs, and a short tail."""
    keys = setting.keys // 4
    rounds = MaterializerSettings(scratch=scratch)
    bulk_append(log, every_key(keys), commits=2)
    run_round(log, rounds)
    for seed in (1, 2):
        bulk_append(log, batches(keys // 10, keys, seed=seed), commits=1)
        run_round(log, rounds)
    bulk_append(log, batches(keys // 100, keys, seed=3), commits=1)


def _recover_all(log: Log, settings: RecoverySettings) -> None:
    held = [recover(log, settings=settings) for _ in range(RECOVERIES)]
    with ThreadPoolExecutor(RECOVERIES) as pool:
        rows = {table.num_rows for table in pool.map(Recovery.to_arrow, held)}
    assert len(rows) == 1


def _figure(name: str, unit: str, values: list[float], baseline: list[float]) -> Figure:
    return Figure(
        name=name,
        unit=unit,
        value=sorted(values)[len(values) // 2],
        lowest=min(values),
        highest=max(values),
        baseline_name="without the cache",
        baseline=sorted(baseline)[len(baseline) // 2],
        higher_is_better=False,
    )
