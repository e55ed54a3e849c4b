"""`python -m bench`: the benchmarks of a writer's puts, of restores and of tables, at a tiny size."""

import io
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench import __main__ as program
from bench import due, fleet, put, table_commit, table_loop, table_open, table_takeover, tables
from bench.figures import Figure
from bench.run import BENCHMARKS
from bench.setting import Setting
from tests.support.services.broker import Broker

pytestmark = pytest.mark.broker

FLOOR_OF_A_COMMIT = "floor: chunks made and sent, then a record in the ledger"
ROWS = {
    "put of a Writer, one commit": "produce_batch, one flush",
    "the same, 10 commits under way": "produce_batch, one flush",
    "the same, 10 commits that wait": "produce_batch, one flush",
    "restore to Arrow, 10 x the keys and a tail": "read_table of the runs",
    "restore to a dict": "client and one dict",
    "restore to a dict, by CPU": "client and one dict",
    "restore to a dict, commits of 100 changes": "client alone",
    "restore to a dict, commits of 5 changes": "client alone",
    "open of a table, commits of 5 changes": "one record per change, to a dict",
    "commit of 100 changes, p50": FLOOR_OF_A_COMMIT,
    "commit of 5 changes, p99": FLOOR_OF_A_COMMIT,
    "commit of 5 changes, CPU": FLOOR_OF_A_COMMIT,
    "commit of 100 changes, the broker's CPU": FLOOR_OF_A_COMMIT,
    "append, keys: `key-` and 12 digits": "one record per change",
    "recovery to a dict, keys: URLs of 84 bytes": "one record per change, to a dict",
    "a round, keys: UUIDs as text, by CPU": "sort and write by pyarrow",
    "put of a Table in rocksdb, 10 commits under way": "produce_batch, one flush",
    "loop over a topic, rocksdb": "",
    "worker over a topic, rocksdb": "",
    "get and put, rocksdb": "",
    "commit under the loop, 1,000 changes, rocksdb, p50": "one Kafka transaction",
    "pause of the loop, 1,000 changes, rocksdb, p99": "one Kafka transaction",
    "restart after a kill, 100 keys, open": "without the directory",
    "restart after a kill, 100 keys, first commit": "without the directory",
    "cold open, 100 keys, rocksdb, local store, on-demand": "all of it first",
    "cold open, 100 keys, rocksdb, 30 ms a request, behind": "all of it first",
    "cold get, rocksdb, local store, p50": "the same once more",
    "takeover, standby level, 100 keys, rocksdb": "open without a standby",
    "3 logs in one daemon, a round each": "one by one",
    "takeover, standby behind, 100 keys, rocksdb": "open without a standby",
    "put with a due, rocksdb": "no dues",
    "open again, 100 keys with a due, rocksdb": "no dues",
}
"""The measured work and its baseline, if that needs no other library."""


NAMES = (
    "put", "latency", "restore", "key-kinds", "table-loop", "table-commit", "table-restart", "table-open",
    "table-takeover", "due", "fleet",
)  # fmt: skip


def test_each_prints_its_rows(broker: Broker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each benchmark prints its row with its baseline and the ratio, and says which comparison was left out."""
    monkeypatch.setenv("STATELOG_BENCH_BROKER", broker.bootstrap)
    for peer in ("QUIX", "STREAMS"):
        monkeypatch.delenv(f"STATELOG_BENCH_{peer}", raising=False)
    for module in (due, put, table_commit, table_loop, table_open, table_takeover):
        monkeypatch.setattr(module, "BACKENDS", ("rocksdb",))
    monkeypatch.setattr(tables, "_LIFE_S", 0.05)
    monkeypatch.setattr(table_open, "_REQUEST_S", 0.001)
    monkeypatch.setattr(fleet, "LOGS", 3)
    told = io.StringIO()
    with redirect_stderr(told):
        for name, figures in _measured(broker, tmp_path / "root").items():
            monkeypatch.setitem(BENCHMARKS, name, partial(_as_measured, figures))
    run = CliRunner().invoke(program.main, NAMES)
    assert run.exception is None, run.output
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in run.stdout.splitlines() if "│" in line]
    found = {row[0]: row for row in rows}
    for name, baseline in ROWS.items():
        what, *_, compared_with, _, better_by = found[name]
        assert (what, compared_with) == (name, baseline)
        assert better_by.endswith("x") if baseline else not better_by
    assert "left out: the comparison with Quix Streams" in told.getvalue()
    assert "left out: the comparison with Kafka Streams" in told.getvalue()


def _measured(broker: Broker, root: Path) -> dict[str, list[Figure]]:
    """Return all figures, measured concurrently: most of the time they wait."""
    setting = Setting(
        bootstrap=broker.bootstrap, root=root, changes=1000, keys=100, rounds=1, commits=4, broker_pid=os.getpid()
    )  # The broker's process may be on another machine, so this one stands for it.
    with ThreadPoolExecutor(len(NAMES)) as pool:
        measured = {name: pool.submit(BENCHMARKS[name], setting) for name in NAMES}
    return {name: figures.result() for name, figures in measured.items()}


def _as_measured(figures: list[Figure], _: Setting) -> list[Figure]:
    return figures
