"""Target: a RocksDB database on the local disk, made of SST files that RocksDB ingests as they are.

Sorted rows become SST files of bounded size, which are ingested at once: no row passes through a memtable, a
write-ahead log or a compaction. Needs the extra `statelog[rocksdb]`.

A raw key is the key group (two bytes, big-endian) and the key's bytes, and RocksDB sorts by its bytes. Sorted tables
already have this order for bytes and strings. Longs are two's complement, so negative ones come after the others of
their key group.

Invariants:
- The database appears under its name whole or not at all, and only after every check has passed. An existing database
  is never touched. The leftovers of a killed process are swept by the next target of that name.
- Its own column family names the log and the position.
- Memory holds a few thousand rows in addition to the tables, and 64 MiB where rows have dues.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import rocksdict
from numpy.typing import NDArray

from statelog.environment import DiskHook
from statelog.errors import AlreadyExists
from statelog.recovery.plan_reader import PlanReader
from statelog.recovery.rocksdb_dues import DUE_FAMILY, due_entries
from statelog.recovery.rocksdb_state import (
    STATE_FAMILY,
    STATE_KEY,
    ResumePoint,
    RocksdbState,
    opens_rocksdb,
    rocksdb_disk,
)
from statelog.schemas.arrays import column_of, numbers_of, numbers_or_zeros, scalar_of
from statelog.schemas.changes.due import DUE, has_due
from statelog.schemas.snapshot.runs import key_groups_of
from statelog.schemas.values.avro import avro_values
from statelog.schemas.values.schema import ValueSchema
from statelog.store.disk.disk import is_there, local_disk, make_parents, sync
from statelog.store.disk.own_directory import make_own

_PIECE_BYTES = 4 << 20
_PIECE_ROWS = 50_000
_PORTION_BYTES = 32 << 20
"""The most entries by time that are sorted at once. The sort takes as much again."""
_NOTHING = scalar_of(b"", pa.binary())
"""The separator of a raw key's parts."""
_BLOOM_BITS = 10
"""Bits per key in the filter of a file: a lookup of a missing key reads nothing else."""


def require_absent(path: Path) -> None:
    """Raise AlreadyExists unless the path is free or an empty directory, StoreUnavailable if it cannot be read."""
    with local_disk(path):
        if path.is_dir() and not any(path.iterdir()):
            return
        if is_there(path) or path.is_symlink():
            hint = "Name another path, or remove the old files: a database is never replaced"
            raise AlreadyExists("the path is in use already", path=str(path), hint=hint)


def fill_rocksdb(reader: PlanReader, *, path: Path, sst_bytes: int) -> tuple[int, int]:
    """Make a database whose SST files have about `sst_bytes`. The result is its number of rows.

    Raises AlreadyExists, StorageFull, StoreUnavailable for the local disk, and the errors of reading.
    """
    disk = reader.environment.disk
    with rocksdb_disk(path, "make", disk):
        make_parents(path)
        own = make_own(path.parent, f".{path.name}.", ".partial", new_id=reader.environment.new_id)
    with own:
        sst, made = own.path / "sst", own.path / "db"
        with rocksdb_disk(path, "open", disk):
            sst.mkdir()
        files = _StateFiles(partial(_SstFiles, sst, path, sst_bytes=sst_bytes, disk=disk), reader.converter.target)
        for table in in_raw_order(reader.sorted_tables()):
            files.add(table)
        with rocksdb_disk(path, "sync", disk):
            files.finish()
            _make_database(made, files, _state_of(reader, files.rows))
            for file in [*made.iterdir(), made]:
                sync(file)
        with rocksdb_disk(path, "rename", disk):
            try:
                made.rename(path)  # It fails if the path came into use meanwhile, but for an empty directory.
            except OSError:
                require_absent(path)
                raise
            sync(path.parent)
    return files.rows, files.rows


def _state_of(reader: PlanReader, rows: int) -> RocksdbState:
    descriptor, plan, schema = reader.log.descriptor, reader.plan, reader.converter.target
    return RocksdbState(
        log=descriptor.name,
        identity=descriptor.identity,
        place=plan.place,
        key_type=descriptor.key_type,
        hash_rule=descriptor.hash_rule,
        prefix_bytes=descriptor.prefix_bytes,
        key_groups=descriptor.key_groups,
        recovered_key_groups=None if plan.key_groups is None else tuple(sorted(plan.key_groups)),
        value_schema_id=schema.id,
        value_schema=schema.avsc,
        rows=rows,
        commits={
            writer: ResumePoint(checkpoint_id=last.checkpoint.id, metadata=dict(last.metadata))
            for writer, last in plan.state.commits.items()
        },
    )


@dataclass(slots=True)
class _SstFiles:
    """SST files in the making, one open at a time. `name` begins the names of the files."""

    directory: Path
    target: Path
    name: str
    sst_bytes: int
    disk: DiskHook
    paths: list[str] = field(default_factory=list[str])
    _open: rocksdict.SstFileWriter | None = None

    def put(self, keys: list[bytes], values: Sequence[bytes]) -> None:
        """Append rows whose keys follow all earlier ones."""
        with rocksdb_disk(self.target, "write", self.disk):
            if self._open is None:
                self._open = rocksdict.SstFileWriter(rocksdb_options())
                self.paths.append(str(self.directory / f"{self.name}{len(self.paths):06d}.sst"))
                self._open.open(self.paths[-1])
            # The writer takes one row per call; a deque of length 0 makes the calls without a Python loop.
            deque(map(self._open.__setitem__, keys, values), maxlen=0)
            if self._open.file_size() >= self.sst_bytes:
                self.finish()

    def finish(self) -> None:
        """Close the open file, if any."""
        if self._open is not None:
            self._open.finish()
            self._open = None


class _StateFiles:
    """The SST files of a state: its rows, and its dues by key and by time.

    Entries by time are sorted in portions. The files of different portions overlap, so each portion is ingested alone.
    """

    def __init__(self, new_files: Callable[[str], _SstFiles], schema: ValueSchema) -> None:
        self.rows = 0
        self.state = new_files("")
        self.dues = new_files("due-")
        self.portions: list[_SstFiles] = []
        self._new_files = new_files
        self._schema = schema
        self._pending: list[tuple[pa.Array, NDArray[np.int64]]] = []
        self._pending_bytes = 0

    def add(self, table: pa.Table) -> None:
        """Append rows whose raw keys follow all earlier ones."""
        step = max(1, table.num_rows * _PIECE_BYTES // max(1, table.nbytes))
        for batch in table.to_batches(max_chunksize=step):
            keys = raw_keys(batch)
            self.state.put(keys.to_pylist(), avro_values(batch.column("value"), self._schema).to_pylist())
            if has_due(batch):
                self._add_dues(keys, batch.column(DUE.name))
        self.rows += table.num_rows

    def finish(self) -> None:
        """Close the open files."""
        self._sort_portion()
        for files in (self.state, self.dues):
            files.finish()

    def _add_dues(self, keys: pa.Array, dues: pa.Array) -> None:
        rows = np.flatnonzero(numbers_of(dues.is_valid()))
        if not len(rows):
            return
        dues_ms = numbers_or_zeros(dues.view(pa.int64()))[rows]
        by_key, values, by_due = due_entries(keys.take(column_of(rows)), dues_ms)
        self.dues.put(by_key.to_pylist(), values.to_pylist())
        self._pending.append((by_due, dues_ms))
        self._pending_bytes += by_due.nbytes + dues_ms.nbytes
        if self._pending_bytes >= _PORTION_BYTES:
            self._sort_portion()

    def _sort_portion(self) -> None:
        """Write the pending entries by time. They came in the order of raw keys, so a stable sort by due is enough."""
        if not self._pending:
            return
        entries, dues_ms = zip(*self._pending, strict=True)
        self._pending, self._pending_bytes = [], 0
        order = np.argsort(np.concatenate(dues_ms), kind="stable")
        files = self._new_files(f"time-{len(self.portions):06d}-")
        sorted_entries = pa.concat_arrays(entries).take(column_of(order))
        for start in range(0, len(order), _PIECE_ROWS):
            keys = sorted_entries.slice(start, _PIECE_ROWS).to_pylist()
            files.put(keys, [b""] * len(keys))
        files.finish()
        self.portions.append(files)


def rocksdb_options(blocks: rocksdict.BlockBasedOptions | None = None) -> rocksdict.Options:
    """Return the options of a database of raw keys: compressed files with filters. `blocks` adds block options."""
    opens_rocksdb()
    blocks = blocks or rocksdict.BlockBasedOptions()
    blocks.set_bloom_filter(_BLOOM_BITS, False)
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_compression_type(rocksdict.DBCompressionType.lz4())
    options.set_block_based_table_factory(blocks)
    return options


def _make_database(path: Path, files: _StateFiles, state: RocksdbState) -> None:
    names = [STATE_FAMILY, *[DUE_FAMILY] * bool(files.portions)]
    families = {name: rocksdb_options() for name in names}
    database = rocksdict.Rdict(str(path), rocksdb_options(), column_families=families)
    try:
        _ingest(database, [files.state])
        if files.portions:
            dues = database.get_column_family(DUE_FAMILY)
            _ingest(dues, [files.dues, *files.portions])
            dues.close()
        family = database.get_column_family(STATE_FAMILY)
        family[STATE_KEY] = state.to_json()
        family.flush()
        family.close()
    finally:
        database.close()


def _ingest(family: rocksdict.Rdict, files: Iterable[_SstFiles]) -> None:
    """Move files into a column family. Those of one call do not overlap."""
    move = rocksdict.IngestExternalFileOptions()
    move.set_move_files(True)
    for one in files:
        if one.paths:
            family.ingest_external_file(one.paths, move)


def raw_keys(rows: pa.RecordBatch) -> pa.Array:
    """Return the raw keys of a batch with the columns key_group and key, as binary."""
    groups = _big_endian(numbers_of(rows.column("key_group")).astype(">u2"))
    keys = rows.column("key")
    data = _big_endian(numbers_of(keys).astype(">i8")) if pa.types.is_integer(keys.type) else keys
    return pc.binary_join_element_wise(groups, data.cast(pa.binary()), _NOTHING)


def _big_endian(numbers: NDArray[np.generic]) -> pa.Array:
    kind = pa.binary(numbers.dtype.itemsize)
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers.tobytes())]).cast(pa.binary())


def in_raw_order(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Reorder tables sorted by (key group, key) to the order of raw keys.

    It only holds back the negative longs of one key group, until the others have come.
    """
    return (table for table in _in_raw_order(tables) if table.num_rows)


def _in_raw_order(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    held, held_group = list[pa.Table](), -1
    for table in tables:
        if not table.num_rows or not pa.types.is_integer(table.schema.field("key").type):
            yield table
            continue
        places = key_groups_of(table).astype(np.int64) * 2 + (numbers_of(table.column("key")) < 0)
        order = np.argsort(places, kind="stable")
        rest, places = table.take(column_of(order)), places[order]
        first, last = int(places[0]) >> 1, int(places[-1]) >> 1
        if first == held_group:
            others = int(np.searchsorted(places, 2 * first + 1))
            yield rest.slice(0, others)
            rest, places = rest.slice(others), places[others:]
        if first == last == held_group:
            held.append(rest)
            continue
        yield from held
        end = int(np.searchsorted(places, 2 * last + 1))
        yield rest.slice(0, end)
        held, held_group = [rest.slice(end)], last
    yield from held
