"""Rounds for ever: forty rounds over tails of one size onto all keys, each beside the floor of the same changes.

The floor is what a round cannot do without: pyarrow sorts the tail, keeps the last change of each key, and writes them
as Parquet, in one thread, from memory. It reads nothing from Kafka, checks and merges nothing, and reads nothing back.
The floor with both ends also reads the tail's records, by the client alone, and then its file: hashes and decodes it.
The floor with merges has files of its own for the same ledger ranges as our runs: where a round merges runs into one,
it reads its files of these, and sorts and writes them with the tail, as one. Without merges a reader has forty files.
"""

import hashlib
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.figures import Figure, Took, summed, timed
from bench.logs import bench_log, bulk_append, passed_over
from bench.setting import Setting
from bench.workload import batches, every_key
from statelog.materializer.cleanup import VerifiedRuns
from statelog.materializer.outcome import CompletedRound
from statelog.materializer.round import Round
from statelog.materializer.settings import MaterializerSettings
from statelog.recovery import recover
from statelog.schemas.snapshot.run_ref import RunRef
from statelog.storage import Log
from statelog.storage.kafka import OffsetRange

__all__ = ["rounds"]

_ROUNDS = 40
_WINDOW = 10
_SHARES = {4: "a quarter", 20: "a twentieth"}
_FLOOR = "sort and write by pyarrow"
_BOTH_ENDS = "the same, the records read by the client and the file read back"
_MERGES = "the same, and the same ledger ranges merged"
_STALL_S = 60
_COLUMNS = ["key", "value"]


@dataclass(slots=True)
class _Takes:
    """What each round took and wrote."""

    took: list[Took] = field(default_factory=list[Took])
    written_bytes: list[int] = field(default_factory=list[int])


def rounds(setting: Setting) -> list[Figure]:
    """Changes for each second of the processors, the longest round, and the bytes written, beside the floor's."""
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
        files = _FloorFiles(Path(scratch), setting.root / log.name, _runs(log))
        for seed in range(_ROUNDS):
            tail = batches(changes, setting.keys, seed=seed)
            bulk_append(log, tail, commits=2)
            file = Path(scratch) / "floor.parquet"
            floor.took.append(timed(partial(_write_newest, tail, file)))
            floor.written_bytes.append(file.stat().st_size)
            with recover(log) as recovery:
                ranges = {p: OffsetRange(found[0][0], found[-1][1]) for p, found in recovery.plan.replay.ranges.items()}
            with closing(log.kafka.reader(log.data_topic)) as reader:
                read = timed(partial(passed_over, reader.read(ranges, stall_timeout_s=_STALL_S)))
            both_ends.took.append(summed(floor.took[-1], read, timed(partial(_read_back, file))))
            ours.took.append(timed(roll_up))
            write = timed(partial(files.follow, tail, _runs(log)))
            merges.took.append(summed(write, read, timed(partial(_read_back, files.newest))))
            merges.written_bytes.append(files.newest.stat().st_size)
    return ours, floor, both_ends, merges


def _runs(log: Log) -> tuple[RunRef, ...]:
    newest = log.manifests.newest()
    assert newest is not None
    return newest.runs


class _FloorFiles:
    """The floor's files: one for each ledger range of the runs, of the keys' newest rows, by key."""

    def __init__(self, directory: Path, store: Path, runs: Sequence[RunRef]) -> None:
        """As they are of runs that stand in the store."""
        self._directory = directory
        self._files: dict[range, Path] = {}
        for one in dict.fromkeys(map(_ledger_range, runs)):
            tables = [pq.read_table(store / run.path) for run in runs if _ledger_range(run) == one]
            self._write(one, [batch for table in tables for batch in table.select(_COLUMNS).to_batches()])

    def follow(self, tail: list[pa.RecordBatch], runs: Sequence[RunRef]) -> None:
        """The file of the one new range of these runs: of the files within, oldest first, and of the tail."""
        (new,) = {_ledger_range(run) for run in runs} - self._files.keys()
        within = sorted((one for one in self._files if new.start <= one.start < new.stop), key=lambda one: one.start)
        old = [batch for one in within for batch in pq.read_table(self._files.pop(one)).to_batches()]
        self._write(new, [*old, *tail])

    def _write(self, covered: range, batches: list[pa.RecordBatch]) -> None:
        self.newest = self._files[covered] = self._directory / f"floor-{covered.start}-{covered.stop}.parquet"
        _write_newest(batches, self.newest)


def _ledger_range(run: RunRef) -> range:
    return range(run.start_position, run.end_position)


def _write_newest(rows: list[pa.RecordBatch], file: Path) -> None:
    table = pa.Table.from_batches(rows).combine_chunks()
    order = pc.sort_indices(table, sort_keys=[("key", "ascending")])  # Stable.
    keys = table.column("key").take(order)
    is_last = pa.concat_arrays([*pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1)).chunks, pa.array([True])])
    newest = table.take(order.filter(is_last))
    with pq.ParquetWriter(str(file), newest.schema, compression="lz4", use_dictionary=False) as writer:
        writer.write_table(newest)


def _read_back(file: Path) -> None:
    data = file.read_bytes()
    hashlib.sha256(data)
    pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)


def _by_cpu(name: str, changes: int, ours: _Takes, floor: _Takes, floor_name: str) -> Figure:
    """Over all rounds; the lowest and the highest of ten in a row, which tell whether it stays as it is."""
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
