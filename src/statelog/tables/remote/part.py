"""`LocalPart`: a backend of which some key groups are missing: of those it holds what changed since a snapshot.

A key of a missing key group that was deleted since is gone: that has to be remembered, because the snapshot has it.

    MemoryPart     a dict                 here
    RocksdbPart    a RocksDB directory    remote/rocksdb_part.py

Invariants:
- Rows of the snapshot never replace a local change: whoever fills asks first which of them are unchanged.
- A key group stops to be missing once all of its rows are here, and only then what is gone of it is forgotten. So who
  finds a key neither here nor gone, and then its key group not missing, has to look here once more, and no further.
"""

from collections.abc import Collection, Mapping
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statelog.schemas.changes.changes import DELETE
from statelog.tables.backends.backend import Backend, StatePlace
from statelog.tables.backends.memory import MemoryBackend
from statelog.tables.changes.keys import KeyRule
from statelog.tables.changes.values import ValueRule

__all__ = ["LocalPart", "MemoryPart"]


class LocalPart(Backend, Protocol):
    """A backend that lacks key groups. Changed by one thread at a time, and read by the table's at any time."""

    @property
    def missing(self) -> Collection[int]:
        """The key groups that are not here yet; those that are wanted never come back."""
        ...

    def is_gone(self, key_group: int, key: Any) -> bool:
        """Whether a key of a missing key group was deleted since the snapshot."""
        ...

    def unchanged(self, rows: pa.Table) -> pa.Table:
        """The rows of a snapshot that no local change replaces."""
        ...

    def fill(self, rows: pa.Table, complete: Collection[int]) -> None:
        """Take unchanged rows of a snapshot, with which these key groups are missing no more. Raises as `apply`."""
        ...


class MemoryPart(MemoryBackend):
    """A dict, and the keys that are gone."""

    def __init__(self, keys: KeyRule, values: ValueRule, missing: Collection[int]) -> None:
        super().__init__(keys, values, {})
        self.missing = set(missing)
        self._gone: dict[int, set[Any]] = {}

    def is_gone(self, key_group: int, key: Any) -> bool:
        """Whether it is remembered as deleted."""
        gone = self._gone.get(key_group)
        return gone is not None and key in gone

    def apply(self, changes: Mapping[Any, Any], place: StatePlace) -> None:
        """Change the dict; deletes are remembered first."""
        if self.missing:
            for key, value in changes.items():
                if value is None:
                    self._remember(self._keys.group(key), key)
        super().apply(changes, place)

    def load(self, changes: pa.Table) -> None:
        """As `apply`."""
        if self.missing:
            deletes = changes.filter(pc.equal(changes.column("op"), DELETE))
            for rows in deletes.to_batches():
                for group, key in zip(rows.column("key_group").to_pylist(), self._keys.of_columns(rows), strict=True):
                    self._remember(group, key)
        super().load(changes)

    def unchanged(self, rows: pa.Table) -> pa.Table:
        """By comparing sets of keys."""
        keys = [key for batch in rows.to_batches() for key in self._keys.of_columns(batch)]
        asked = set(keys)
        changed = self._state.keys() & asked
        for gone in self._gone.values():
            changed |= asked & gone
        if not changed:
            return rows
        is_changed = np.fromiter(map(changed.__contains__, keys), np.bool_, len(keys))
        return rows.filter(pa.array(~is_changed))

    def fill(self, rows: pa.Table, complete: Collection[int]) -> None:
        """Into the dict."""
        super().load(rows)
        self.missing.difference_update(complete)
        for group in complete:
            self._gone.pop(group, None)

    def _remember(self, group: int, key: Any) -> None:
        if group in self.missing:
            self._gone.setdefault(group, set()).add(key)
