"""A takeover by a standby, from `promote` to the first acknowledged commit, and an open of the table without a standby.

The owner is a process that puts and commits as fast as it can until it is killed; the standby follows meanwhile. A
standby that is behind is promoted right after the kill, and still has to read the owner's last commits. A standby that
is level has read them before, as usual behind a slower owner.
"""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import statelog
from bench.cost import Cost, costed, figures_of_cost
from bench.figures import Figure
from bench.logs import bench_log, bench_where, bulk_append
from bench.setting import Setting
from bench.tables import BACKENDS, first_commit, live, open_table
from bench.workload import every_key
from statelog.tables import Standby, Table

__all__ = ["table_takeover"]


def table_takeover(setting: Setting) -> list[Figure]:
    """Measure the seconds of both backends."""
    figures: list[Figure] = []
    for kind in BACKENDS:
        promoted: dict[str, list[Cost]] = {"level": [], "behind": []}
        opened: list[Cost] = []
        with tempfile.TemporaryDirectory() as scratch, bench_log(setting.bootstrap, setting.root) as log:
            bulk_append(log, every_key(setting.keys), commits=10)
            for number in range(setting.rounds):
                for where, costs in promoted.items():
                    with _standby(setting, log.name, kind, Path(scratch, f"{number}-{where}-standby")) as standby:
                        live(setting, log.name, kind, Path(scratch, f"{number}-{where}-owner"))
                        while where == "level" and not standby.refresh():
                            pass
                        costs.append(_cost(standby.promote))
                opened.append(_cost(partial(open_table, setting, log.name, kind, Path(scratch, f"{number}-anew"))))
        for where, costs in promoted.items():
            name = f"takeover, standby {where}, {setting.keys:,} keys, {kind}"
            figures += figures_of_cost(name, costs, "open without a standby", opened)
    return figures


def _standby(setting: Setting, name: str, kind: str, home: Path) -> Standby[bytes, bytes]:
    return statelog.standby(
        name,
        bench_where(setting.bootstrap, setting.root),
        backend=kind,
        directory=home if kind == "rocksdb" else None,
    )


def _cost(become: Callable[[], Table[bytes, bytes]]) -> Cost:
    """Return the cost of becoming the owner, up to the first commit."""
    owners: list[Table[bytes, bytes]] = []

    def take_over() -> None:
        owners.append(become())
        first_commit(owners[0])

    cost = costed(take_over)
    owners[0].close()
    return cost
