"""Rows that expire: a loop of puts with a due, and the opening of a table whose rows all have one.

- The loop puts every key once and commits four times a second. The dues come half a second after the puts, so commits
  delete what the loop has put before. The baselines are the same loop with dues that do not come, so that nothing is
  swept, and without dues. What a commit deletes is also logged and applied: two changes for each put in place of one.
- A table is opened anew, from a snapshot; in RocksDB also again, from its directory. Every row has a due, all within an
  hour. The baseline is the same state without dues.

CPU seconds of the loop are those of this process, without the broker's.
"""

import shutil
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from bench.cost import Cost, costed, figures_of, figures_of_cost
from bench.figures import Figure
from bench.logs import bench_log, bulk_append
from bench.setting import Setting
from bench.tables import BACKENDS, first_commit, open_table
from bench.workload import Pairs, every_key, pairs
from statelog.materializer import MaterializerSettings, run_round
from statelog.schemas.changes.due import DUE
from statelog.tables import Table

__all__ = ["due"]

_COMES_S, _NEVER_S = 0.5, 86_400.0
_COMMIT_S = 0.25
_HOUR_MS = 3_600_000
_SEED = 7


def due(setting: Setting) -> list[Figure]:
    """Measure puts a second, and the seconds to the first commit, for each backend."""
    loops = [figure for kind in BACKENDS for figure in _loops(setting, kind)]
    return loops + _opens(setting)


# ---- the loop


def _loops(setting: Setting, kind: str) -> list[Figure]:
    rows = pairs(every_key(setting.scaled(0.2)))
    costs: dict[float | None, list[Cost]] = {_COMES_S: [], _NEVER_S: [], None: []}
    for _ in range(setting.rounds):
        for due_s, found in costs.items():
            with _table(setting, kind) as table:
                found.append(_loop(table, rows, due_s))
    return [
        figure
        for name, baseline in (("dues that do not come", _NEVER_S), ("no dues", None))
        for figure in figures_of(
            f"put with a due, {kind}", len(rows), costs[_COMES_S], name, costs[baseline], noun="puts"
        )
    ]


@contextmanager
def _table(setting: Setting, kind: str) -> Generator[Table[bytes, bytes]]:
    """Yield a new table, and delete it at the end."""
    with (
        tempfile.TemporaryDirectory() as directory,
        bench_log(setting.bootstrap, setting.root) as log,
        open_table(setting, log.name, kind, Path(directory) / "table") as table,
    ):
        yield table


def _loop(table: Table[bytes, bytes], rows: Pairs, due_s: float | None) -> Cost:
    """Put every row, due so many seconds later; None: without a due."""
    put, commit_every, clock = table.put, table.commit_every, time.time
    started_s, started_cpu_s = time.perf_counter(), time.process_time()
    for offset, (key, value) in enumerate(rows, 1):
        if due_s is None:
            put(key, value)
        else:
            put(key, value, due=clock() + due_s)
        commit_every(_COMMIT_S, {"offset": offset})
    table.commit({"offset": len(rows)})
    return Cost(wall_s=time.perf_counter() - started_s, cpu_s=time.process_time() - started_cpu_s)


# ---- the opening


def _opens(setting: Setting) -> list[Figure]:
    rows = every_key(setting.keys)
    with (
        tempfile.TemporaryDirectory() as scratch,
        bench_log(setting.bootstrap, setting.root) as timed,
        bench_log(setting.bootstrap, setting.root) as plain,
    ):
        for log, batches in ((timed, [_with_dues(batch) for batch in rows]), (plain, rows)):
            bulk_append(log, batches, commits=10)
            run_round(log, MaterializerSettings(scratch=Path(scratch), budget_bytes=64 << 30))
        costs: dict[tuple[str, str], dict[str, list[Cost]]] = {}
        for _ in range(setting.rounds):
            for kind in BACKENDS:
                for name in (timed.name, plain.name):
                    for way, cost in _open_twice(setting, name, kind, Path(scratch) / "table"):
                        costs.setdefault((kind, way), {timed.name: [], plain.name: []})[name].append(cost)
    return [
        figure
        for (kind, way), found in costs.items()
        for figure in figures_of_cost(
            f"open {way}, {setting.keys:,} keys with a due, {kind}", found[timed.name], "no dues", found[plain.name]
        )
    ]


def _with_dues(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with dues within the second hour from now."""
    after_ms = np.random.default_rng(_SEED).integers(_HOUR_MS, 2 * _HOUR_MS, batch.num_rows)
    dues = pa.array(int(time.time() * 1000) + after_ms).cast(DUE.type)
    return pa.RecordBatch.from_arrays([*batch.columns, dues], [*batch.schema.names, DUE.name])


def _open_twice(setting: Setting, name: str, kind: str, home: Path) -> list[tuple[str, Cost]]:
    """Return the cost of an opening without a directory, and of one from it, each up to its first commit."""
    ways = ("anew", "again") if kind == "rocksdb" else ("anew",)
    found = [(way, _open(partial(open_table, setting, name, kind, home))) for way in ways]
    shutil.rmtree(home, ignore_errors=True)
    return found


def _open(opens: Callable[[], Table[bytes, bytes]]) -> Cost:
    opened: list[Table[bytes, bytes]] = []

    def to_first_commit() -> None:
        opened.append(opens())
        first_commit(opened[0])

    cost = costed(to_first_commit)
    opened[0].close()
    return cost
