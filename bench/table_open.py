"""A table's cold open, without a local directory: the time to its first commit, and of gets from then on.

The table has a snapshot of `--keys` keys and a short tail, on a local store, and on one with a simulated network: 30 ms
a request and 100 MB/s for the whole process. The baseline is a table that first recovers the whole state. A cold get is
the first get of a key, from the snapshot; a warm get is the second one of the same key.
"""

import tempfile
from functools import partial
from pathlib import Path
from random import Random

from bench.cost import Cost, costed, figures_of_cost
from bench.figures import Figure, latency, timed
from bench.logs import bench_log, bulk_append
from bench.remote_store import Link, RemoteStore
from bench.setting import Setting
from bench.tables import BACKENDS, first_commit, open_table
from bench.workload import batches, every_key
from statelog.log import Log
from statelog.materializer import MaterializerSettings, run_round
from statelog.store import Store
from statelog.tables import Table, TableSettings

__all__ = ["table_open"]

_REQUEST_S, _BYTES_S = 0.03, 100e6
_GETS = 200


def table_open(setting: Setting) -> list[Figure]:
    """Measure the seconds to the first commit, and the milliseconds of gets, for each backend and store."""
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as scratch, bench_log(setting.bootstrap, setting.root) as log:
        bulk_append(log, every_key(setting.keys), commits=10)
        run_round(log, MaterializerSettings(scratch=Path(scratch), budget_bytes=64 << 30))
        bulk_append(log, batches(10_000, setting.keys), commits=1)
        for place, link in (("local store", None), ("30 ms a request", Link(_REQUEST_S, _BYTES_S))):
            store = None if link is None else RemoteStore(setting.root, log.name, link)
            for kind in BACKENDS:
                figures += _figures(setting, log, store, kind, place)
    return figures


def _figures(setting: Setting, log: Log, store: Store | None, kind: str, place: str) -> list[Figure]:
    costs: dict[str, list[Cost]] = {"first": [], "on-demand": [], "behind": []}
    gets: tuple[list[float], list[float]] = ([], [])
    for _ in range(setting.rounds):
        for loading, found in costs.items():
            found.append(_open(setting, log, store, kind, loading, gets))
    name = f"cold open, {setting.keys:,} keys, {kind}, {place}"
    figures = [
        figure
        for loading in ("on-demand", "behind")
        for figure in figures_of_cost(f"{name}, {loading}", costs[loading], "all of it first", costs["first"])
    ]
    cold, warm = gets
    return figures + [
        latency(f"cold get, {kind}, {place}, {label}", share, cold, "the same once more", warm)
        for share, label in ((0.5, "p50"), (0.99, "p99"))
    ]


def _open(
    setting: Setting, log: Log, store: Store | None, kind: str, loading: str, gets: tuple[list[float], list[float]]
) -> Cost:
    """Return the cost of one cold open and first commit; if loading on demand, then get some keys."""
    with tempfile.TemporaryDirectory() as scratch:
        opened: list[Table[bytes, bytes]] = []

        def to_first_commit() -> None:
            settings = TableSettings(loading=loading)
            opened.append(open_table(setting, log.name, kind, Path(scratch) / "table", store=store, settings=settings))
            first_commit(opened[0])

        cost = costed(to_first_commit)
        with opened[0] as state:
            if loading == "on-demand":
                random = Random(len(gets[0]))
                for key in (b"key-%012d" % random.randrange(setting.keys) for _ in range(_GETS)):
                    for found in gets:
                        found.append(timed(partial(state.get, key)))
        return cost
