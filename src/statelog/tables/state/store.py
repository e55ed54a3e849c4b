"""`KeyedStore`: what is local of a table's committed state. Small, so that there may be others.

    DictStore       a dict                                  state/memory.py
    RocksdbStore    a RocksDB directory, kept between lives state/rocksdb.py

Above it is `Layers`, with all that no commit holds; so a store sees committed changes only, each with its place in the
ledger: those of its own table with `apply`, a commit at a time; what was committed elsewhere with `load` and `move`, in
bulk. Some key groups may be missing: of those it holds what changed since a snapshot. A key of theirs that was deleted
since is gone: that has to be remembered, because the snapshot has it. A store that misses nothing is a whole state.

Invariants:
- After `apply`, and after `move`, it holds the state at that place, exactly. A kill in the middle of `apply` leaves the
  state before it, or after it, together with the place of the one it is; a kill between `load` and `move` leaves the
  older place under newer changes, which are loaded once more; where a state is in memory only, a kill leaves nothing.
- What it gives is what it was given: keys and values as the rules of the table have them. Who gets them copies them.
- Rows of the snapshot never replace a local change: whoever fills asks first which of them are unchanged.
- A key group stops to be missing once all of its rows are here, and only then what is gone of it is forgotten. So who
  finds a key neither here nor gone, and then its key group not missing, has to look here once more, and no further.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol

import pyarrow as pa

from statelog.tables.state.record import StatePlace, TableRecord

__all__ = ["BackendKind", "KeyedStore"]


class BackendKind(StrEnum):
    """The backends that there are."""

    DICT = "dict"
    ROCKSDB = "rocksdb"


class KeyedStore(Protocol):
    """What is local of the committed state of one table. Changed by one thread at a time, and read by the table's.

    Keys are those that `KeyRule.admit` gives, values those of `ValueRule.admit`. A state that is changed while it is
    scanned is its caller's mistake, and told by the table.
    """

    @property
    def missing(self) -> Collection[int]:
        """The key groups that are not here yet; none ever comes back."""
        ...

    @property
    def first_position(self) -> int:
        """From where on the changes of missing key groups are here."""
        ...

    @property
    def get(self) -> Callable[[Any], Any]:
        """A function that gives the value of a key; None if it is not there."""
        ...

    def is_gone(self, key_group: int, key: Any) -> bool:
        """Whether a key of a missing key group was deleted since the snapshot."""
        ...

    def __len__(self) -> int:
        """How many keys there are."""
        ...

    def items(self, key_groups: Sequence[int] | None) -> Iterator[tuple[Any, Any]]:
        """Keys and values of these key groups (None: of all), in any order."""
        ...

    def range(self, start: Any, end: Any) -> Iterator[tuple[Any, Any]]:
        """Keys and values from `start` on and below `end` (None: no bound), in the order of the keys."""
        ...

    def apply(self, changes: Mapping[Any, Any], place: StatePlace) -> None:
        """Take committed changes, None deletes, and the place of the state that they make. Raises StorageFull,
        StoreUnavailable.
        """
        ...

    def load(self, changes: pa.Table) -> None:
        """Take committed changes (key_group, op, key, value) in bulk, ahead of the place that they lead to.

        They are the newest of each key between the place that it has and the one that `move` gives next, those of the
        table's key groups only, with values in the table's value schema. Any number of tables may come before `move`,
        also of several commits, oldest first. Until then what is read is of no place. Raises as `apply`.
        """
        ...

    def move(self, place: StatePlace) -> None:
        """What was loaded is the state at this place. Raises as `apply`."""
        ...

    def adopt(self, record: TableRecord, place: StatePlace) -> None:
        """It was just made, and is a table's at this place from now on. Raises as `apply`."""
        ...

    def unchanged(self, rows: pa.Table) -> pa.Table:
        """The rows of a snapshot that no local change replaces."""
        ...

    def fill(self, rows: pa.Table, complete: Collection[int]) -> None:
        """Take unchanged rows of a snapshot, with which these key groups are missing no more. Raises as `apply`."""
        ...

    def close(self) -> None:
        """Release what is held, and keep what outlives the process. Idempotent."""
        ...
