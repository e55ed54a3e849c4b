"""The benchmark of recovery into RocksDB: ingested SST files, with write batches of the same library as baseline."""

import tempfile
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import rocksdict

from bench.figures import Figure, Took, rate, timed
from bench.logs import bench_log, bulk_append
from bench.setting import Setting
from bench.workload import batches
from statelog.log import Log
from statelog.reading.replay import replay
from statelog.recovery import recover
from statelog.recovery.rocksdb_target import raw_keys, rocksdb_options

__all__ = ["rocksdb"]

_BATCH_ROWS = 50_000
_BUFFER_BYTES = 128 << 20


def rocksdb(setting: Setting) -> list[Figure]:
    """Measure the recovery of a whole log into RocksDB, without a snapshot.

    The baselines are write batches of every change, and of folded rows. The floors are the fold that both need, and an
    SST file of rows: sorted in Python's bytes before, or folded and sorted first.
    """
    seconds: dict[str, list[Took]] = {"sst": [], "changes": [], "folded": [], "fold": [], "rows": [], "both": []}
    with bench_log(setting.bootstrap, setting.root) as log:
        bulk_append(log, batches(setting.changes, setting.keys), commits=10)
        pairs = _sorted_pairs(log)
        for _ in range(setting.rounds):
            seconds["changes"].append(_into_new(lambda path: _load(path, _changes(log))))
            seconds["folded"].append(_into_new(lambda path: _load(path, _folded(log))))
            seconds["sst"].append(_into_new(lambda path: recover(log).to_rocksdb(path)))
            seconds["fold"].append(timed(lambda: recover(log).to_arrow()))
            seconds["rows"].append(_into_new(lambda path: _write(path, pairs)))
            seconds["both"].append(_into_new(lambda path: _write(path, _sorted_pairs(log))))
    ours = "recovery to RocksDB, SST files"
    return [
        rate(ours, setting.changes, seconds["sst"], name, [(setting.changes, second) for second in seconds[key]])
        for name, key in (
            ("write batches, every change", "changes"),
            ("folded, then write batches", "folded"),
            ("the fold alone, to Arrow", "fold"),
            ("an SST file of sorted rows alone", "rows"),
            ("folded in order, then an SST file", "both"),
        )
    ]


def _into_new(work: Callable[[Path], object]) -> Took:
    """Return the seconds that `work` takes to make a database under a new path."""
    with tempfile.TemporaryDirectory() as directory:
        return timed(lambda: work(Path(directory) / "db"))


def _changes(log: Log) -> Iterable[pa.RecordBatch]:
    with recover(log) as recovery, closing(log.kafka.reader(log.data_topic)) as reader:
        chunks = replay(log, reader, recovery.plan.replay, stall_timeout_s=60)
        yield from (chunk.changes for chunk in chunks)


def _folded(log: Log) -> Iterable[pa.RecordBatch]:
    return recover(log).to_arrow().to_batches(max_chunksize=_BATCH_ROWS)


def _sorted_pairs(log: Log) -> list[tuple[list[bytes], list[bytes]]]:
    rows = recover(log).to_arrow(ordered=True).combine_chunks().to_batches()
    return [(raw_keys(batch).to_pylist(), batch.column("value").to_pylist()) for batch in rows]


def _write(path: Path, pairs: list[tuple[list[bytes], list[bytes]]]) -> None:
    """Write sorted rows by the library, one row a call, with the options of a recovery."""
    writer = rocksdict.SstFileWriter(rocksdb_options())
    writer.open(str(path))
    for keys, values in pairs:
        deque(map(writer.__setitem__, keys, values), maxlen=0)
    writer.finish()


def _load(path: Path, found: Iterable[pa.RecordBatch]) -> None:
    """Put rows by write batches without a write-ahead log, the fastest way of the library."""
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(_BUFFER_BYTES)
    options.increase_parallelism(2)
    options.set_compression_type(rocksdict.DBCompressionType.lz4())
    unlogged = rocksdict.WriteOptions()
    setattr(unlogged, "disable_wal", True)  # noqa: B010 - a property, which the library's own types call a method
    with rocksdict.Rdict(str(path), options) as database:
        for batch in found:
            group = rocksdict.WriteBatch(raw_mode=True)
            deque(map(group.put, raw_keys(batch).to_pylist(), batch.column("value").to_pylist()), maxlen=0)
            database.write(group, unlogged)
        database.flush()
