"""`RocksdbPart`: a RocksDB database that may lack key groups, and says so: docs/protocol-table.md. Imports rocksdict.

What was deleted of a missing key group is remembered beside the data, in the same write batch as the delete. Which key
groups are missing changes in one batch with the last rows of a key group. Once none is, the database is a whole one, as
a recovery makes it.

Invariants:
- A kill leaves a key group missing, whatever of its rows was loaded; they are loaded again, but for what changed since.
- A key group is missing no more, for who reads, before what was gone of it is forgotten: see part.py.
"""

from collections import deque
from collections.abc import Collection, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import rocksdict

from statelog.recovery.targets.raw_keys import raw_keys
from statelog.recovery.targets.rocksdb_state import STATE_KEY
from statelog.schemas.values.avro import avro_values
from statelog.tables.backends.backend import StatePlace
from statelog.tables.backends.home import Home
from statelog.tables.backends.record import (
    GONE,
    MISSING_KEY,
    TABLE_KEY,
    Missing,
    TableRecord,
    missing_from_json,
)
from statelog.tables.backends.rocksdb import RocksdbBackend
from statelog.tables.changes.keys import KeyRule
from statelog.tables.changes.values import ValueRule
from statelog.tables.settings import TableSettings

__all__ = ["RocksdbPart"]

_END = b"gone0"
"""Behind every key that begins with GONE."""


class RocksdbPart(RocksdbBackend):
    """The database of a home, or one at `path` that is made for what is `missing` of it. Raises as RocksdbBackend."""

    def __init__(
        self,
        home: Home,
        keys: KeyRule,
        values: ValueRule,
        settings: TableSettings,
        path: Path | None = None,
        missing: Missing | None = None,
    ) -> None:
        super().__init__(home, keys, values, settings, path)
        try:
            self._missing = missing or self._known()
        except BaseException:
            self.close()
            raise
        self.missing = set(self._missing.key_groups)

    @property
    def first_position(self) -> int:
        """From where on the changes of missing key groups are here."""
        return self._missing.first_position

    def _known(self) -> Missing:
        with self._reading():
            data = self._family.get(TABLE_KEY)
            if data is None or not TableRecord.from_json(data).is_partial:
                return Missing(0, frozenset())
            return missing_from_json(self._family.get(MISSING_KEY))

    # ---- reads

    def is_gone(self, key_group: int, key: object) -> bool:  # noqa: ARG002 - the raw key begins with it
        """Whether it is remembered as deleted. Raises Corrupt."""
        try:
            return self._family.get(GONE + self._keys.raw(key)) is not None
        except Exception as error:
            raise self._told(error) from error

    def unchanged(self, rows: pa.Table) -> pa.Table:
        """By comparing with the keys that are here, or gone, between the least and the greatest of these."""
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
        return pa.Table.from_batches([whole.filter(pc.invert(pc.is_in(raw, pa.array(changed, raw.type))))])

    def _keys_between(self, family: rocksdict.Rdict, prefix: bytes, least: bytes, greatest: bytes) -> list[bytes]:
        found: list[bytes] = []
        with self._reading():
            rows = family.iter()
            rows.seek(prefix + least)
            while rows.valid() and (key := rows.key()) <= prefix + greatest:
                found.append(key[len(prefix) :])
                rows.next()
            rows.status()
        return found

    # ---- changes

    def adopt(self, record: TableRecord, place: StatePlace) -> None:
        """As a whole one's, and what is missing."""
        batch = self._batch(place)
        batch.put(TABLE_KEY, record.as_partial(bool(self.missing)).to_json(), self._handle)
        batch.put(MISSING_KEY, self._missing.to_json(), self._handle)
        if not self.missing:
            batch.delete(MISSING_KEY, self._handle)
        batch.delete(STATE_KEY, self._handle)
        self._write(batch)

    def fill(self, rows: pa.Table, complete: Collection[int]) -> None:
        """One write batch, with what is missing from then on; then what is gone of these key groups is forgotten."""
        batch = rocksdict.WriteBatch(raw_mode=True)
        for part in rows.to_batches():
            values = avro_values(part.column("value"), self._values.schema).to_pylist()
            deque(map(batch.put, raw_keys(part).to_pylist(), values), maxlen=0)
        left = Missing(self._missing.first_position, frozenset(self.missing.difference(complete)))
        if complete:
            self._note(batch, left)
        self._write(batch)
        self._rows = None
        if complete:
            self._missing = left
            self.missing.difference_update(complete)
            self._forget(complete)

    def _note(self, batch: rocksdict.WriteBatch, left: Missing) -> None:
        if left.key_groups:
            batch.put(MISSING_KEY, left.to_json(), self._handle)
        else:
            batch.put(TABLE_KEY, self.record.as_partial(False).to_json(), self._handle)
            batch.delete(MISSING_KEY, self._handle)

    def _forget(self, complete: Collection[int]) -> None:
        batch = rocksdict.WriteBatch(raw_mode=True)
        for group in complete:
            behind = (GONE + (group + 1).to_bytes(2, "big")) if group < (1 << 16) - 1 else _END
            batch.delete_range(GONE + group.to_bytes(2, "big"), behind, self._handle)
        self._write(batch)

    def _delete(self, batch: rocksdict.WriteBatch, keys: Sequence[bytes]) -> None:
        super()._delete(batch, keys)
        for key in keys:
            if int.from_bytes(key[:2], "big") in self.missing:
                batch.put(GONE + key, b"", self._handle)
