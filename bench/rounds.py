"""Long series of rounds: forty rounds over tails of one size onto all keys, each with the floor of the same changes.

The floor is the work that every round needs. pyarrow sorts the tail, selects the last change of each key, and writes
them as Parquet, in one thread, from memory. It does not read Kafka, check, merge, or read back.
The floor with both ends also reads the tail's records by the client alone, and then hashes and decodes its file.
The floor with merges has a file for each run of the log. When a round merges runs, it reads its files of these, and
merges and writes them with the tail, cut like the runs. The files are sorted by key and the tail is sorted first, so
numpy's stable sort, a timsort, only merges them. Without merges a reader has forty files.
"""

import hashlib
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.figures import Figure, Took, summed, timed
from bench.logs import bench_log, bulk_append, passed_over
from bench.setting import Setting
from bench.workload import batches, every_key
from statelog.kafka.port import OffsetRange
from statelog.log import Log
from statelog.materializer.cleanup import VerifiedRuns
from statelog.materializer.outcome import CompletedRound
from statelog.materializer.round import Round
from statelog.materializer.settings import MaterializerSettings
from statelog.recovery import recover
from statelog.schemas.arrays import binary_column
from statelog.schemas.key_groups import key_groups_of
from statelog.schemas.snapshot.run_ref import RunRef

__all__ = ["merge_newest", "rounds", "write_newest"]

_ROUNDS = 40
_WINDOW = 10
_SHARES = {4: "a quarter", 20: "a twentieth"}
_FLOOR = "sort and write by pyarrow"
_BOTH_ENDS = "the same, the records read by the client and the file read back"
_MERGES = "the same, and the same runs merged"
_STALL_S = 60
_COLUMNS = ["key_group", "key", "value"]
_KEY = "S16"
"""The keys of the workload. They have no trailing zero bytes, which numpy would drop."""


@dataclass(slots=True)
class _Takes:
    """The time and the bytes written of each round."""

    took: list[Took] = field(default_factory=list[Took])
    written_bytes: list[int] = field(default_factory=list[int])


def rounds(setting: Setting) -> list[Figure]:
    """Measure changes per CPU second, the longest round, and the bytes written, of rounds and of the floor."""
    figures: list[Figure] = []
    for share, words in _SHARES.items():
        changes = max(1000, setting.keys // share)
        ours, floor, both_ends, merges = _forty(setting, changes)
        name = f"{_ROUNDS} rounds over tails of {words} of the keys"
        figures += [
            _by_cpu(name, changes, ours, floor, _FLOOR),
            _by_cpu(name, changes, ours, both_ends, _BOTH_ENDS),
            _by_cpu(name, changes, ours, merges, _MERGES),
            _longest(name, ours, floor, _FLOOR),
            _longest(name, ours, merges, _MERGES),
            _bytes(name, changes, ours, floor, _FLOOR),
            _bytes(name, changes, ours, merges, _MERGES),
        ]
    return figures


def _forty(setting: Setting, changes: int) -> tuple[_Takes, _Takes, _Takes, _Takes]:
    ours, floor, both_ends, merges = _Takes(), _Takes(), _Takes(), _Takes()
    with tempfile.TemporaryDirectory() as scratch, bench_log(setting.bootstrap, setting.root) as log:
        settings, verified = MaterializerSettings(scratch=Path(scratch)), VerifiedRuns()

        def roll_up() -> bool:
            outcome = Round(log, settings, verified=verified).run()
            assert isinstance(outcome, CompletedRound)
            ours.written_bytes.append(outcome.size_bytes)
            return outcome.behind

        bulk_append(log, every_key(setting.keys), commits=20)
        while roll_up():
            continue  # A large state takes several rounds.
        ours.written_bytes.clear()
        files = _FloorFiles(log, setting.root / log.name, Path(scratch))
        for seed in range(_ROUNDS):
            tail = batches(changes, setting.keys, seed=seed)
            bulk_append(log, tail, commits=2)
            file = Path(scratch) / "floor.parquet"
            floor.took.append(timed(partial(write_newest, pa.Table.from_batches(tail), file)))
            floor.written_bytes.append(file.stat().st_size)
            with recover(log) as recovery:
                ranges = {p: OffsetRange(found[0][0], found[-1][1]) for p, found in recovery.plan.replay.ranges.items()}
            with closing(log.kafka.reader(log.data_topic)) as reader:
                read = timed(partial(passed_over, reader.read(ranges, stall_timeout_s=_STALL_S)))
            both_ends.took.append(summed(floor.took[-1], read, timed(partial(_read_back, [file]))))
            ours.took.append(timed(roll_up))
            write = timed(partial(files.follow, tail, _runs(log)))
            merges.took.append(summed(write, read, timed(partial(_read_back, files.written))))
            merges.written_bytes.append(sum(one.stat().st_size for one in files.written))
    return ours, floor, both_ends, merges


def _runs(log: Log) -> tuple[RunRef, ...]:
    newest = log.manifests.newest()
    assert newest is not None
    return newest.runs


class _FloorFiles:
    """The floor's files: one for each run of a log, of the newest rows of its keys, by key."""

    def __init__(self, log: Log, store: Path, directory: Path) -> None:
        """Make files like the runs in the `store`."""
        self._key_groups = log.descriptor.key_groups
        self._directory = directory
        self.written: list[Path] = []
        self._files = {run.path: (run, self._file_of(run)) for run in _runs(log)}
        for run, file in self._files.values():
            _write(pq.read_table(store / run.path, columns=_COLUMNS), file)

    def follow(self, tail: list[pa.RecordBatch], runs: Sequence[RunRef]) -> None:
        """Write the files of new runs into `written`, from the files of replaced runs, oldest first, and the tail."""
        paths = {run.path for run in runs}
        gone = sorted((one for one in self._files.values() if one[0].path not in paths), key=_begins_at)
        new = {run.path: (run, self._file_of(run)) for run in runs if run.path not in self._files}
        rows = [(run, pq.read_table(file)) for run, file in gone]
        changes = _newest(pa.Table.from_batches([_with_key_groups(batch, self._key_groups) for batch in tail]))
        newest = max(run.end_position for run in runs)
        for run, file in new.values():
            covered = range(run.start_position, run.end_position)
            mine = [_of_key_groups(table, old, run) for old, table in rows if old.start_position in covered]
            mine += [_of_key_groups(changes, None, run)] * (run.end_position == newest)
            _write(merge_newest(mine), file)
        self._files = {path: one for path, one in (self._files | new).items() if path in paths}
        self.written = [file for _, file in new.values()]

    def _file_of(self, run: RunRef) -> Path:
        return self._directory / f"floor-{Path(run.path).stem}.parquet"


def _begins_at(one: tuple[RunRef, Path]) -> int:
    return one[0].start_position


def _with_key_groups(batch: pa.RecordBatch, key_groups: int) -> pa.RecordBatch:
    groups = pa.array(key_groups_of(batch.column("key"), key_groups))
    return pa.RecordBatch.from_arrays([groups, *batch.columns], names=_COLUMNS)


def _of_key_groups(table: pa.Table, old: RunRef | None, run: RunRef) -> pa.Table:
    """Return the rows of an old run, or of a tail, that belong to a new run."""
    first, end = run.first_key_group, run.end_key_group
    if old is not None and first <= old.first_key_group and old.end_key_group <= end:
        return table
    groups = table.column("key_group")
    return table.filter(pc.and_(pc.greater_equal(groups, first), pc.less(groups, end)))


def write_newest(changes: pa.Table, file: Path) -> None:
    """Sort changes by key, and write the last one of each."""
    _write(_newest(changes), file)


def _newest(changes: pa.Table) -> pa.Table:
    table = changes.combine_chunks()
    order = pc.sort_indices(table, sort_keys=[("key", "ascending")])  # Stable.
    keys = table.column("key").take(order)
    is_last = pa.concat_arrays([*pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1)).chunks, pa.array([True])])
    return table.take(order.filter(is_last))


def merge_newest(tables: Sequence[pa.Table]) -> pa.Table:
    """Merge tables that are sorted by a key of 16 bytes: the last row of each key, of the last table that has it."""
    table = pa.concat_tables(tables)
    keys = np.concatenate([binary_column(chunk).data.view(_KEY) for chunk in table.column("key").chunks])
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    is_last = np.append(keys[1:] != keys[:-1], True)
    return table.combine_chunks().take(pa.array(order[is_last]))


def _write(table: pa.Table, file: Path) -> None:
    with pq.ParquetWriter(str(file), table.schema, compression="lz4", use_dictionary=False) as writer:
        writer.write_table(table)


def _read_back(files: Sequence[Path]) -> None:
    for file in files:
        data = file.read_bytes()
        hashlib.sha256(data)
        pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)


def _by_cpu(name: str, changes: int, ours: _Takes, floor: _Takes, floor_name: str) -> Figure:
    """Return the figure over all rounds, with the lowest and highest of ten in a row, which show any drift."""
    rates = [_rate(changes, ours.took[first : first + _WINDOW]) for first in range(0, _ROUNDS, _WINDOW)]
    return Figure(
        name=f"{name}, by CPU",
        unit="M changes/CPU s",
        value=_rate(changes, ours.took),
        lowest=min(rates),
        highest=max(rates),
        baseline_name=floor_name,
        baseline=_ROUNDS * changes / sum(one.cpu_s for one in floor.took) / 1e6,
        cpu_s=sum(one.cpu_s for one in ours.took),
        peak_bytes=max((one.peak_bytes or 0 for one in ours.took), default=0) or None,
        baseline_cpu_s=sum(one.cpu_s for one in floor.took),
    )


def _rate(changes: int, took: Sequence[Took]) -> float:
    return len(took) * changes / sum(one.cpu_s for one in took) / 1e6


def _longest(name: str, ours: _Takes, floor: _Takes, floor_name: str) -> Figure:
    return Figure(
        name=f"{name}, the longest",
        unit="s",
        value=max(ours.took),
        lowest=min(ours.took),
        highest=max(ours.took),
        baseline_name=floor_name,
        baseline=max(floor.took),
        higher_is_better=False,
    )


def _bytes(name: str, changes: int, ours: _Takes, floor: _Takes, floor_name: str) -> Figure:
    each = [size_bytes / changes for size_bytes in ours.written_bytes]
    return Figure(
        name=f"{name}, bytes written",
        unit="bytes a change",
        value=sum(each) / len(each),
        lowest=min(each),
        highest=max(each),
        baseline_name=floor_name,
        baseline=sum(floor.written_bytes) / len(each) / changes,
        higher_is_better=False,
    )
