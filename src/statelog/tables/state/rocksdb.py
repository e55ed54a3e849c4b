"""`RocksdbStore`: a state in a RocksDB database on the local disk, retained across restarts. Imports rocksdict.

A key is the key group (two bytes, big-endian) and the key's bytes; a value is its bytes, or Avro's plain binary form.
`Recovery.to_rocksdb` makes such databases, and a whole state begins as one. Each commit is one write batch, with the
place that it leads to. No batch is synced: a kill loses none, and `StateDirectory.drop_unsynced` handles a power loss.

Invariants:
- After a kill, the place is neither ahead of the changes nor behind them; both column families are flushed as one.
- Once it is closed, all of it is in files that are synced. A power loss before that leaves no place ahead of its rows.
- After a kill, a partly loaded key group is missing. Its rows are loaded again, but for those that changed since.
- Readers see a key group as complete before its tombstones are dropped.
"""

import ctypes
import heapq
import logging
from collections import deque
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, starmap
from operator import itemgetter
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import rocksdict

from statelog.closing import undone_by_errors
from statelog.errors import Corrupt
from statelog.recovery.rocksdb_dues import DUE_FAMILY
from statelog.recovery.rocksdb_state import STATE_KEY, rocksdb_error
from statelog.recovery.rocksdb_target import raw_keys
from statelog.schemas.arrays import column_of, column_of_rows, numbers_of
from statelog.schemas.changes.changes import deletes_and_puts
from statelog.schemas.changes.due import dues_of, has_due
from statelog.schemas.changes.key_order import sorted_rows
from statelog.schemas.values.avro import avro_values
from statelog.tables.setup import TableSettings, tuning_of
from statelog.tables.state.directory import StateDirectory
from statelog.tables.state.dues import NO_DUES, DueKey, Dues, IsWanted
from statelog.tables.state.keys import KeyRule, raw_bounds
from statelog.tables.state.rocksdb_dues import RocksdbDues, seek
from statelog.tables.state.rocksdb_options import families_of, options_of
from statelog.tables.state.store import (
    FAMILY,
    GONE,
    MISSING_KEY,
    NOTHING,
    PARTIAL_FORMAT,
    PLACE_KEY,
    TABLE_KEY,
    UNKNOWN,
    WRITE,
    Missing,
    RecentCommits,
    StatePlace,
    TableRecord,
    held_bytes,
    missing_from_json,
    place_from_json,
    place_to_json,
    record_from_json,
    record_to_json,
)
from statelog.tables.state.values import ValueRule

_LOG = logging.getLogger("statelog.tables")
_BATCH_ROWS = 50_000
_MANY_ROWS = 2000
"""The least rows whose keys are hashed and sorted as columns, in a third of the time that single rows take."""
_BEHIND_GONE = b"gone0"
"""Sorts behind every key that begins with GONE."""
_TORN = ("Corruption", "No such file", "Invalid argument", "not found", "does not exist", "expected value")
"""How RocksDB's and the library's errors for damaged or missing files begin."""
_ROTTEN = ("Corruption",)
"""The same in writes, if a compaction or a flush found it. A missing file may only be a missing disk."""


class RocksdbStore:
    """The open database of a directory, or a new one at `path` without the `missing` part.

    Raises Corrupt if its files are damaged, StorageFull, StoreUnavailable.
    """

    def __init__(
        self,
        directory: StateDirectory,
        keys: KeyRule,
        values: ValueRule,
        settings: TableSettings,
        path: Path | None = None,
        missing: Missing | None = None,
    ) -> None:
        self._directory = directory
        self._keys = keys
        self._raw, self._of_raw = keys.quick_raw(), keys.quick_of_raw()
        self._values = values
        self._decode = None if values.is_opaque else values.decode
        self._recent = RecentCommits(tuning_of(settings).recent_bytes)
        self._rows: int | None = None
        self._scans: WeakSet[Generator[tuple[Any, Any]]] = WeakSet()
        self._handle: rocksdict.ColumnFamily | None = None
        where = path or directory.database
        options = options_of(settings)
        self._dues = RocksdbDues(options.dues)
        with self._translating():
            is_timed = DUE_FAMILY in families_of(where)
            families = {FAMILY: options.records, **({DUE_FAMILY: options.dues} if is_timed else {})}
            self._family = self._database = rocksdict.Rdict(str(where), options.state, column_families=families)
            with undone_by_errors(self.close):
                self._family = self._database.get_column_family(FAMILY)
                self._handle = self._database.get_column_family_handle(FAMILY)
                self._dues.open(self._database, is_there=is_timed)
                self._written = self._last_write()
                lacks = missing or self._known()
        self.missing, self.first_position = set(lacks.key_groups), lacks.first_position
        directory.databases.add(self)

    # ---- its records

    @property
    def record(self) -> TableRecord:
        """The record that says which state it is. Raises Corrupt."""
        with self._translating():
            return record_from_json(self._family.get(TABLE_KEY))

    @property
    def place(self) -> StatePlace:
        """The place of the state. Raises Corrupt."""
        with self._translating():
            return place_from_json(self._family.get(PLACE_KEY))

    def _known(self) -> Missing:
        data = self._family.get(TABLE_KEY)
        is_partial = data is not None and record_from_json(data).get("format") == PARTIAL_FORMAT
        return missing_from_json(self._family.get(MISSING_KEY)) if is_partial else NOTHING

    def _last_write(self) -> int:
        """Return the number of the newest write batch. Raises Corrupt if an earlier one is missing."""
        found = self._keys_between(self._family, WRITE, b"", b"\xff" * 8)
        if len(found) > 1:
            raise Corrupt("a part of its write-ahead logs is missing", path=str(self._directory.database))
        return int.from_bytes(found[0], "big") if found else 0

    def adopt(self, record: TableRecord, place: StatePlace) -> None:
        """Make the new database a table's, at this place."""
        batch = self._batch(place)
        batch.put(TABLE_KEY, record_to_json(record, is_partial=bool(self.missing)), self._handle)
        if self.missing:
            batch.put(MISSING_KEY, Missing(self.first_position, frozenset(self.missing)).to_json(), self._handle)
        batch.delete(STATE_KEY, self._handle)
        self._write(batch)

    def abandon(self) -> None:
        """Leak the parent's database in a forked child, where freeing it would wait for threads that do not exist."""
        self._dues.abandon()
        for kept in (self._database, self._family, self._handle, *self._scans):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))

    # ---- reads

    def get(self, key: Any) -> Any:
        """Return the value of a key, None if there is none. Raises Corrupt."""
        value = self._recent.find(key)
        if value is not UNKNOWN:
            return value
        try:
            data = self._database.get(self._raw(key))
        except Exception as error:
            raise self._translated(error) from error
        return data if data is None or self._decode is None else self._decode(data, key)

    def is_deleted(self, key_group: int, key: Any) -> bool:  # noqa: ARG002 - the raw key begins with it
        """Return whether a key has a tombstone. Raises Corrupt."""
        with self._translating():
            return self._family.get(GONE + self._raw(key)) is not None

    def due_ms(self, key: Any) -> int | None:
        """Return when a row is due, None if it has no due. Raises Corrupt."""
        with self._translating():
            return self._dues.due_ms(self._raw(key))

    @property
    def is_timed(self) -> bool:
        """Whether any row has a due. Raises Corrupt."""
        return self.earliest_due_ms is not None

    @property
    def earliest_due_ms(self) -> int | None:
        """The earliest due of all rows, None if none has one. Raises Corrupt."""
        try:
            return self._dues.earliest_ms
        except Exception as error:
            raise self._translated(error) from error

    def overdue(self, now_ms: int, most: int, is_wanted: IsWanted) -> list[DueKey]:
        """Return up to `most` wanted keys that are due at `now_ms`, with their dues, oldest first. Raises Corrupt."""
        with self._translating():
            return self._dues.overdue(now_ms, most, self._of_raw, is_wanted)

    def overdue_count(self, now_ms: int) -> int:
        """Count the rows that are due. Raises Corrupt."""
        with self._translating():
            return self._dues.overdue_count(now_ms)

    def __len__(self) -> int:
        """Count the keys, once."""
        if self._rows is None:
            self._rows = sum(1 for _ in self._raw_range(b"", None))
        return self._rows

    def items(self, key_groups: Sequence[int] | None, now_ms: int | None = None) -> Iterator[tuple[Any, Any]]:
        """Yield keys and values in the order of raw keys, key group by key group."""
        if key_groups is None:
            yield from self._raw_range(b"", None, now_ms)
            return
        for group in key_groups:
            yield from self._raw_range(*raw_bounds(group), now_ms)

    def range(
        self, start: Any, end: Any, *, reverse: bool = False, now_ms: int | None = None
    ) -> Iterator[tuple[Any, Any]]:
        """Seek in each key group that may have such keys, and merge the results."""
        step, read = (-1 if reverse else 1), partial(self._raw_range, now_ms=now_ms, reverse=reverse)
        bounds = list(self._keys.group_bounds(self._keys.groups, start, end))[::step]
        ranges = (chain.from_iterable(starmap(read, list(self._keys.raw_ranges(*one))[::step])) for one in bounds)
        if self._keys.is_paired:
            return chain.from_iterable(ranges)
        return heapq.merge(*ranges, key=itemgetter(0), reverse=reverse)

    def _raw_range(
        self, start: bytes, end: bytes | None, now_ms: int | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[Any, Any]]:
        scan = self._scan(start, end, now_ms, reverse=reverse)
        self._scans.add(scan)
        return scan

    def _scan(
        self, start: bytes, end: bytes | None, now_ms: int | None, *, reverse: bool
    ) -> Generator[tuple[Any, Any]]:
        of_raw, decode = self._of_raw, self._values.decode
        with self._translating():
            is_due = None if now_ms is None else self._dues.hidden(start, end, now_ms, reverse=reverse)
            rows = self._database.iter()
            try:
                seek(rows, start, end, reverse=reverse)
                while rows.valid():
                    raw = rows.key()
                    if raw < start if reverse else end is not None and raw >= end:
                        return
                    if is_due is None or not is_due(raw):
                        key = of_raw(raw)
                        yield key, decode(rows.value(), key)
                    if reverse:
                        rows.prev()
                    else:
                        rows.next()
                rows.status()  # Raises if the rows ended too early; the library's `items` hides that.
            finally:
                del rows, is_due  # They hold the database open, and an error's traceback would retain them.

    def unchanged(self, rows: pa.Table) -> pa.Table:
        """Compare the rows with local keys and tombstones between their least and greatest key."""
        if not rows.num_rows:
            return rows
        whole = rows.combine_chunks().to_batches()[0]
        raw = raw_keys(whole)
        bounds: dict[str, bytes] = pc.min_max(raw).as_py()
        least, greatest = bounds["min"], bounds["max"]
        changed = self._keys_between(self._database, b"", least, greatest)
        changed += self._keys_between(self._family, GONE, least, greatest)
        if not changed:
            return rows
        return pa.Table.from_batches([whole.filter(pc.invert(pc.is_in(raw, column_of_rows(changed, raw.type))))])

    def _keys_between(self, family: rocksdict.Rdict, prefix: bytes, least: bytes, greatest: bytes) -> list[bytes]:
        found: list[bytes] = []
        with self._translating():
            rows = family.iter()
            try:
                rows.seek(prefix + least)
                while rows.valid() and (key := rows.key()) <= prefix + greatest:
                    found.append(key[len(prefix) :])
                    rows.next()
                rows.status()
            finally:
                del rows  # As above.
        return found

    # ---- changes

    def apply(self, changes: dict[Any, Any], place: StatePlace, dues: Dues = NO_DUES) -> None:
        """Write the changes, their dues and the place as one batch."""
        batch = self._batch(place)
        if self._rows is not None:
            was = sum(self.get(key) is not None for key in changes)
            self._rows += sum(value is not None for value in changes.values()) - was
        deleted = [key for key, value in changes.items() if value is None]
        raw_deleted = sorted(map(self._raw, deleted))
        self._delete(batch, raw_deleted)
        puts = {key: value for key, value in changes.items() if value is not None} if deleted else changes
        live = list(puts.values())
        values = self._values.encode(live) if puts else []
        keys, order = self._in_raw_order(list(puts))
        raw = _put(batch, keys, order, values)
        if dues or self._dues.is_there:
            by_put = map(raw.__getitem__, np.argsort(numbers_of(order)).tolist())
            named = {key: dues[put] for put, key in zip(puts, by_put, strict=True) if put in dues}
            self._put_dues(batch, raw_deleted + raw, named)
        self._write(batch)
        self._recent.take(changes, keys.nbytes + (sum(map(len, values)) if self._decode is None else held_bytes(live)))

    def _in_raw_order(self, keys: Sequence[Any]) -> tuple[pa.Array, pa.Array]:
        if len(keys) >= _MANY_ROWS:
            return _raw_order(self._keys.rows(keys))
        raw = column_of_rows(list(map(self._raw, keys)), pa.binary())
        order = pc.sort_indices(raw)
        return raw.take(order), order

    def load(self, changes: pa.Table) -> None:
        """Write batches without a place: after a kill, the next open reads them again from the old place on."""
        for rows in changes.to_batches(max_chunksize=_BATCH_ROWS):
            batch = rocksdict.WriteBatch(raw_mode=True)
            deleted, puts = deletes_and_puts(rows)
            raw_deleted = sorted(raw_keys(deleted).to_pylist())
            self._delete(batch, raw_deleted)
            values = avro_values(puts.column("value"), self._values.schema).to_pylist()
            keys, order = _raw_order(puts)
            raw = _put(batch, keys, order, values)
            if has_due(puts) or self._dues.is_there:
                self._put_dues(batch, raw_deleted + raw, _dues_by_key(puts))
            self._write(batch)
        self._rows = None
        self._recent.forget()

    def move(self, place: StatePlace) -> None:
        """Write the place alone."""
        self._write(self._batch(place))

    def fill(self, rows: pa.Table, complete: Collection[int]) -> None:
        """Write the rows and the remaining missing part as one batch, then drop the tombstones of these key groups."""
        batch = rocksdict.WriteBatch(raw_mode=True)
        for part in rows.to_batches():
            values = avro_values(part.column("value"), self._values.schema).to_pylist()
            raw = raw_keys(part).to_pylist()
            deque(map(batch.put, raw, values), maxlen=0)
            if has_due(part):
                self._put_dues(batch, raw, _dues_by_key(part), are_new=True)
        left = Missing(self.first_position, frozenset(self.missing.difference(complete)))
        if complete and left.key_groups:
            batch.put(MISSING_KEY, left.to_json(), self._handle)
        elif complete:
            batch.put(TABLE_KEY, record_to_json(self.record, is_partial=False), self._handle)
            batch.delete(MISSING_KEY, self._handle)
        self._write(batch)
        self._rows = None
        if complete:
            self.missing.difference_update(complete)
            forgotten = rocksdict.WriteBatch(raw_mode=True)
            for group in complete:
                first, behind = raw_bounds(group)
                forgotten.delete_range(GONE + first, _BEHIND_GONE if behind is None else GONE + behind, self._handle)
            self._write(forgotten)

    def close(self) -> None:
        """Flush memory to files, and close the database; its directory stays locked. Idempotent.

        A write that fails is logged and not raised: the next open reads those changes from the log.
        """
        for scan in list(self._scans):
            scan.close()  # It would keep the database open, and locked, while its owner has it.
        self._handle = None
        for part in (*self._dues.release(), self._database, self._family):  # The place last: each is synced by itself.
            try:
                part.close()
            except rocksdict.DbClosedError:
                pass  # Already closed.
            except Exception as error:  # noqa: BLE001 - RocksDB raises no other class
                self._translated(error, _ROTTEN)
                _LOG.warning("the local state %s was not written out: %s", self._directory.database, error)

    def _delete(self, batch: rocksdict.WriteBatch, keys: Sequence[bytes]) -> None:
        """Delete rows in key order, as `_put`."""
        deque(map(batch.delete, keys), maxlen=0)
        if self.missing:
            for key in keys:
                if int.from_bytes(key[:2], "big") in self.missing:
                    batch.put(GONE + key, b"", self._handle)

    def _put_dues(
        self, batch: rocksdict.WriteBatch, raw: list[bytes], dues_ms: Mapping[bytes, int], *, are_new: bool = False
    ) -> None:
        with self._translating():
            self._dues.put(batch, raw, dues_ms, are_new=are_new)

    def _batch(self, place: StatePlace) -> rocksdict.WriteBatch:
        batch = rocksdict.WriteBatch(raw_mode=True)
        batch.put(PLACE_KEY, place_to_json(place), self._handle)
        return batch

    def _write(self, batch: rocksdict.WriteBatch) -> None:
        batch.delete(WRITE + self._written.to_bytes(8, "big"), self._handle)
        batch.put(WRITE + (self._written + 1).to_bytes(8, "big"), b"", self._handle)
        with self._translating(_ROTTEN):
            self._database.write(batch)
        self._written += 1

    @contextmanager
    def _translating(self, signs: tuple[str, ...] = _TORN) -> Generator[None]:
        try:
            yield
        except Exception as error:
            raise self._translated(error, signs) from error

    def _translated(self, error: Exception, signs: tuple[str, ...] = _TORN) -> Exception:
        """Return a library's error as one of ours. Damage is noted for the next open."""
        if type(error) is not Exception:
            return error
        if any(sign in str(error) for sign in signs):
            self._directory.note_damage(str(error))
            hint = "Open the table again, which sets the directory aside and rebuilds the state"
            return Corrupt(f"the local state is damaged: {error}", path=str(self._directory.database), hint=hint)
        return rocksdb_error(error, self._directory.database)


def _raw_order(rows: pa.RecordBatch) -> tuple[pa.Array, pa.Array]:
    """Return the raw keys of rows (key_group, key) in their order, and the row of each."""
    raw, keys = raw_keys(rows), rows.column("key")
    if rows.num_rows < _MANY_ROWS or pa.types.is_integer(keys.type):  # Raw negative numbers sort last.
        order = pc.sort_indices(raw)
    else:
        order = column_of(sorted_rows(rows.column("key_group"), keys))
    return raw.take(order), order


def _put(batch: rocksdict.WriteBatch, keys: pa.Array, order: pa.Array, values: list[bytes]) -> list[bytes]:
    """Put the rows in key order, and return the keys: a memtable takes neighbours in a fifth of the time, now and in a
    replay. That saves more than sorting costs.
    """
    raw: list[bytes] = keys.to_pylist()
    # A deque without a length calls without a Python loop.
    deque(map(batch.put, raw, map(values.__getitem__, order.to_pylist())), maxlen=0)
    return raw


def _dues_by_key(rows: pa.RecordBatch) -> dict[bytes, int]:
    """Return the dues of rows by their raw keys."""
    if not has_due(rows):
        return {}
    keys: list[bytes] = raw_keys(rows).to_pylist()
    return {key: due_ms for key, due_ms in zip(keys, dues_of(rows), strict=True) if due_ms is not None}
