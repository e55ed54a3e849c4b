"""Restores, each beside its floor: the least that the work needs by the libraries that it uses.

A table of a snapshot and a tail: pyarrow reads the snapshot's runs, checks nothing and merges nothing. A dict of a log:
the client reads the same records, and two lists that are there already become a dict. Many small commits: the client
reads the same records.
"""

import gc
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bench.figures import Figure, Took, rate, timed
from bench.logs import bench_log, bulk_append, passed_over, read_records
from bench.setting import Setting
from bench.workload import batches, every_key
from statelog.materializer.outcome import CompletedRound
from statelog.materializer.round import run_round
from statelog.materializer.settings import MaterializerSettings
from statelog.producer import Writer
from statelog.recovery import recover

__all__ = ["restore"]

_LARGER = 10
_SMALL = 100


def restore(setting: Setting) -> list[Figure]:
    """To Arrow from ten times the keys and a tail of a tenth of that; to a dict from W; from commits of 100 changes."""
    return [*_to_arrow(setting), *_to_dict(setting), *_small_commits(setting)]


def _to_arrow(setting: Setting) -> list[Figure]:
    keys, tail = setting.keys * _LARGER, batches(setting.keys, setting.keys * _LARGER)
    with tempfile.TemporaryDirectory() as scratch, bench_log(setting.bootstrap, setting.root) as log:
        settings = MaterializerSettings(scratch=Path(scratch))
        all_keys = every_key(keys)
        for first in range(0, len(all_keys), _LARGER):
            bulk_append(log, all_keys[first : first + _LARGER], commits=1)
        del all_keys
        while isinstance(run_round(log, settings), CompletedRound):
            continue  # A large state takes several rounds.
        bulk_append(log, tail, commits=5)
        with recover(log) as recovery:
            files = [setting.root / log.name / part.run.path for part in recovery.plan.runs]
        ours, floor = _in_turns(setting, lambda: recover(log).to_arrow(), lambda: _read(files))
    count = keys + setting.keys
    return _rates("restore to Arrow, 10 x the keys and a tail", count, ours, "read_table of the runs", keys, floor)


def _read(files: list[Path]) -> pa.Table:
    return pa.concat_tables([pq.read_table(file) for file in files])


def _to_dict(setting: Setting) -> list[Figure]:
    with bench_log(setting.bootstrap, setting.root) as log:
        bulk_append(log, batches(setting.changes, setting.keys), commits=10)
        state = recover(log).to_dict()
        keys, values = list(state), list(state.values())
        del state

        def floor() -> dict[bytes, bytes]:
            passed_over(read_records(log))
            return dict(zip(keys, values, strict=True))

        ours, least = _in_turns(setting, lambda: recover(log).to_dict(), floor)
    return _rates("restore to a dict", setting.changes, ours, "client and one dict", setting.changes, least)


def _small_commits(setting: Setting) -> list[Figure]:
    few = batches(setting.scaled(0.1), setting.keys, _SMALL)
    with bench_log(setting.bootstrap, setting.root) as log:
        with Writer(log, "bench") as writer:
            for batch in few:
                writer.append_batch(batch)
                writer.commit()
        ours, floor = _in_turns(setting, lambda: recover(log).to_dict(), lambda: passed_over(read_records(log)))
    count = _SMALL * len(few)
    return _rates("restore to a dict, commits of 100 changes", count, ours, "client alone", count, floor)


def _in_turns(
    setting: Setting, ours: Callable[[], object], floor: Callable[[], object]
) -> tuple[list[Took], list[Took]]:
    found: tuple[list[Took], list[Took]] = ([], [])
    for _ in range(setting.rounds):
        for work, took in zip((ours, floor), found, strict=True):
            gc.collect()
            took.append(timed(work))
    return found


def _rates(
    name: str, count: int, ours: list[Took], floor_name: str, floor_count: int, floor: list[Took]
) -> list[Figure]:
    """By the clock, and by the seconds of the processors, which others on the machine do not lengthen as much."""
    by_clock = rate(name, count, ours, floor_name, [(floor_count, one) for one in floor])
    of_floor = [(floor_count, one.cpu_s) for one in floor]
    by_cpu = rate(f"{name}, by CPU", count, [one.cpu_s for one in ours], floor_name, of_floor)
    return [by_clock, replace(by_cpu, unit="M changes/CPU s")]
