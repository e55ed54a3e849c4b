"""Tables for the benchmarks, and a process that uses one until it is killed."""

import multiprocessing
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

from bench.logs import bench_where
from bench.setting import Setting
from bench.workload import batches, pairs
from statelog.store import Store
from statelog.tables import Table, TableSettings, table

__all__ = ["BACKENDS", "first_commit", "live", "open_table"]

BACKENDS = ("dict", "rocksdb")
_LIFE_S = 1.0
_CHANGES = 200_000


def open_table(
    setting: Setting,
    name: str,
    kind: str,
    home: Path,
    *,
    store: Store | None = None,
    settings: TableSettings | None = None,
) -> Table[bytes, bytes]:
    """Open the table of a benchmark's log; `home`: the directory of a table in RocksDB."""
    where = bench_where(setting.bootstrap, setting.root)
    return table(
        name,
        replace(where, root=store) if store else where,
        backend=kind,
        directory=home if kind == "rocksdb" else None,
        settings=settings,
    )


def first_commit(state: Table[bytes, bytes]) -> None:
    """Commit one change."""
    state.put(b"first", b"change")
    state.commit(state.progress)


def live(setting: Setting, name: str, kind: str, home: Path) -> None:
    """Run a table in a process of its own, which puts and commits as fast as it can. Kill it a second after its first
    commit.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_loop, args=(setting, name, kind, home, theirs))
    process.start()
    assert ours.poll(120), "the table did not commit"
    time.sleep(_LIFE_S)
    process.kill()
    process.join()


def _loop(setting: Setting, name: str, kind: str, home: Path, told: Connection) -> None:
    changes = pairs(batches(min(_CHANGES, setting.changes), setting.keys, seed=time.time_ns() % 1000))
    with open_table(setting, name, kind, home) as state:
        state.commit({"offset": -1})
        told.send(True)
        while True:
            for offset, (key, value) in enumerate(changes):
                state.put(key, value)
                state.commit_every(0.1, {"offset": offset})
