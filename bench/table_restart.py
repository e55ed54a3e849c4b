"""A table's restart after SIGKILL, in the middle of its loop: with its local directory, and without.

A separate process opens the table on a state of `--keys` keys, and puts and commits as fast as it can until it is
killed. The clock covers the next `statelog.table`, including its clients, and its first commit of a change. The
baseline is the same without the directory: the whole state is recovered from a snapshot.
"""

import shutil
import tempfile
from functools import partial
from pathlib import Path

from bench.cost import Cost, costed, figures_of_cost
from bench.figures import Figure
from bench.logs import bench_log, bulk_append
from bench.setting import Setting
from bench.tables import first_commit, live, open_table
from bench.workload import every_key
from statelog.materializer import MaterializerSettings, run_round
from statelog.tables import Table

__all__ = ["table_restart"]

_KIND = "rocksdb"
_STEPS = ("open", "first commit")


def table_restart(setting: Setting) -> list[Figure]:
    """Measure the seconds of the open, and up to the first commit."""
    kept: list[tuple[Cost, Cost]] = []
    anew: list[tuple[Cost, Cost]] = []
    with tempfile.TemporaryDirectory() as scratch, bench_log(setting.bootstrap, setting.root) as log:
        bulk_append(log, every_key(setting.keys), commits=10)
        run_round(log, MaterializerSettings(scratch=Path(scratch), budget_bytes=64 << 30))
        home = Path(scratch) / "table"
        open_table(setting, log.name, _KIND, home).close()
        for _ in range(setting.rounds):
            live(setting, log.name, _KIND, home)
            kept.append(_restart(setting, log.name, home))
            shutil.rmtree(home)
            anew.append(_restart(setting, log.name, home))
    return [
        figure
        for i, step in enumerate(_STEPS)
        for figure in figures_of_cost(
            f"restart after a kill, {setting.keys:,} keys, {step}",
            [costs[i] for costs in kept],
            "without the directory",
            [costs[i] for costs in anew],
        )
    ]


def _restart(setting: Setting, name: str, home: Path) -> tuple[Cost, Cost]:
    """Return the cost of the open, and of the open up to the first commit."""
    opened: list[Table[bytes, bytes]] = []
    opening = costed(lambda: opened.append(open_table(setting, name, _KIND, home)))
    with opened[0] as state:
        commit = costed(partial(first_commit, state))
    return opening, Cost(wall_s=opening.wall_s + commit.wall_s, cpu_s=opening.cpu_s + commit.cpu_s)
