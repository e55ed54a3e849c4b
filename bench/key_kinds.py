"""Other kinds of keys than those of workload W, which are sorted fastest: random bytes, UUIDs as text, URLs.

The same changes of each kind are appended, read back into Arrow and into a dict, and rolled up by a round. The baseline
of the first three is a record for each change, and those records read into a dict. The floor of the round is pyarrow in
one thread: it sorts the same changes in memory, selects the last one of each key, and writes them as Parquet.
"""

import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa

from bench.figures import Figure, Took, rate, timed
from bench.logs import bench_log, bulk_append
from bench.plain import plain_topic
from bench.rounds import write_newest
from bench.setting import Setting
from bench.workload import KINDS, Pairs, batches, pairs
from statelog.log import Log
from statelog.materializer.outcome import CompletedRound
from statelog.materializer.round import run_round
from statelog.materializer.settings import MaterializerSettings
from statelog.recovery import recover

__all__ = ["key_kinds"]

_APPEND, _TO_ARROW, _TO_DICT, _ROUND = "append", "recovery to Arrow", "recovery to a dict", "a round"
_RECORDS, _RECORDS_READ = "one record per change", "one record per change, to a dict"
_FLOOR = "sort and write by pyarrow"
_BESIDE = {_APPEND: _RECORDS, _TO_ARROW: _RECORDS_READ, _TO_DICT: _RECORDS_READ, _ROUND: _FLOOR}


_Takes = dict[str, list[Took]]
"""The time of each take of each work."""


def key_kinds(setting: Setting) -> list[Figure]:
    """Measure changes per second, and per CPU second, for each kind of keys."""
    figures: list[Figure] = []
    for kind in KINDS:
        found = batches(setting.scaled(0.25), setting.keys, kind=kind)
        changes, takes = pairs(found), defaultdict[str, list[Took]](list)
        for _ in range(setting.rounds):
            for name, took in _taken(setting, found, changes):
                takes[name].append(took)
        figures += _figures(kind, len(changes), takes)
    return figures


def _taken(setting: Setting, found: list[pa.RecordBatch], changes: Pairs) -> Iterator[tuple[str, Took]]:
    """Do each work once, and yield the time that it took."""
    with plain_topic(setting.bootstrap) as topic:
        yield _RECORDS, timed(partial(topic.produce, changes, topic.connected()))
        yield _RECORDS_READ, timed(partial(topic.replay, len(changes)))
    with tempfile.TemporaryDirectory() as scratch, bench_log(setting.bootstrap, setting.root) as log:
        yield _FLOOR, timed(lambda: write_newest(pa.Table.from_batches(found), Path(scratch) / "floor.parquet"))
        yield _APPEND, timed(partial(bulk_append, log, found, commits=5))
        yield _TO_ARROW, timed(lambda: recover(log).to_arrow())
        yield _TO_DICT, timed(lambda: recover(log).to_dict())
        yield _ROUND, timed(partial(_roll_up, log, MaterializerSettings(scratch=Path(scratch))))


def _roll_up(log: Log, settings: MaterializerSettings) -> None:
    while isinstance(outcome := run_round(log, settings), CompletedRound) and outcome.behind:
        continue  # A large state takes several rounds.


def _figures(kind: str, count: int, takes: _Takes) -> list[Figure]:
    return [
        figure
        for name, other in _BESIDE.items()
        for figure in _beside(f"{name}, keys: {kind}", count, takes[name], other, takes[other])
    ]


def _beside(name: str, count: int, ours: list[Took], other: str, beside: list[Took]) -> list[Figure]:
    by_clock = rate(name, count, ours, other, [(count, one) for one in beside])
    by_cpu = rate(f"{name}, by CPU", count, [one.cpu_s for one in ours], other, [(count, one.cpu_s) for one in beside])
    return [by_clock, replace(by_cpu, unit="M changes/CPU s")]
