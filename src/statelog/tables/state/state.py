"""`State`: the committed state of a table: what is local of it, and of what is missing the snapshot that has it.

    here       the value, or that it is gone     state/store.py
    missing    its key group: the snapshot       remote/base.py, remote/snapshot.py

A read asks in this order. A state that misses nothing has no snapshot, and is its store. The key groups that are
missing are loaded before the table opens, by a thread of its own, or never.

Invariants:
- What it shows is the committed state at the place of `apply`, whatever is local by then and whichever snapshot it
  stands on. Only of keys in layers above it a snapshot may know more.
- A row of the snapshot is taken under the lock that `apply` takes, and not while the state is scanned.
- Once all is local, nothing of a snapshot is held, and reads go to the store directly.
- A snapshot that cannot be read, and cannot be replaced, ends it: every call that needs it, and `apply`, tells why.
"""

import heapq
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from threading import Condition
from typing import Any

import pyarrow as pa

from statelog.errors import ClosedError, Damaged, Fenced, NotFound
from statelog.reading.planner import SnapshotFailed
from statelog.tables.changes.keys import KeyRule
from statelog.tables.changes.values import ValueRule
from statelog.tables.remote.base import Base
from statelog.tables.remote.row_group import sortable
from statelog.tables.remote.snapshot import RemoteSnapshot
from statelog.tables.state.record import StatePlace
from statelog.tables.state.store import KeyedStore

__all__ = ["State"]


class State:
    """A store over a base, None for a whole one. Belongs to the table's thread, but for `take`, `finish`, `fail` and
    `missing`.

    Keys, values and changes are those of a `KeyedStore`, and so is what is raised; what a snapshot has is Damaged,
    NotFound, Fenced, Unavailable besides.
    """

    def __init__(self, store: KeyedStore, keys: KeyRule, values: ValueRule, base: Base | None = None) -> None:
        self.store = store
        self._base = base
        self._keys = keys
        self._values = values
        self._near = store.get
        self._turn = Condition()  # Reentrant: a scan may be dropped, and so end, wherever memory is freed.
        self._scans = 0
        self._rows: int | None = None
        self._counted = 0
        self._failure: Exception | None = None
        self._is_closed = False
        self._closing: Callable[[], None] | None = None

    # ---- what it is

    @property
    def is_local(self) -> bool:
        """Whether no key group is missing."""
        return not self.store.missing

    @property
    def missing(self) -> frozenset[int]:
        """The key groups that are not local."""
        return frozenset(self.store.missing)

    # ---- reads

    @property
    def get(self) -> Callable[[Any], Any]:
        """A function that gives the value of a key, None if it is not there; the store's own once all is local."""
        return self._near if self.is_local else self._get

    def _get(self, key: Any) -> Any:
        value = self._near(key)
        if value is not None:
            return value
        group = self._keys.group(key)
        if self.store.is_gone(group, key):
            return None
        return self._far(group, key) if group in self.store.missing else self._near(key)  # It may have come just now.

    def _far(self, group: int, key: Any) -> Any:
        wanted, base = sortable(self._keys.plain(key)), self._base
        assert base is not None
        base.renew()
        while group in self.store.missing:
            with self._telling():
                snapshot: RemoteSnapshot | None = None
                try:
                    snapshot = base.snapshot
                    found = snapshot.find(group, wanted)
                except SnapshotFailed as failed:
                    assert snapshot is not None
                    base.replace(failed, snapshot)
                except ClosedError:  # It went in between: all is local, or another has taken its place.
                    if self._is_closed or (group in self.store.missing and not _has_gone(base, snapshot)):
                        raise
                else:
                    return None if found is None else self._values.of_column(found)[0]
        return self._near(key)

    def __len__(self) -> int:
        """How many keys there are: from one pass over all that is not local. Counted once, and kept as long as runs can
        be read and no commit changes a key of which only they say whether it was there: a commit asks no store.
        """
        base = self._base
        if base is None or self.is_local:
            return len(self.store)
        if self._rows is None or self._counted != base.replacements:
            self._counted = base.replacements
            with self._scanning():
                rows = len(self.store)
                for table in self._far_tables(self.missing):
                    rows += self.store.unchanged(table).num_rows
            self._rows = rows
        return self._rows

    def items(self, key_groups: Sequence[int] | None) -> Iterator[tuple[Any, Any]]:
        """Keys and values of these key groups (None: of all), in any order: what is local, and then the rest as it is
        read. Nothing is loaded meanwhile.
        """
        return self.store.items(key_groups) if self.is_local else self._all_items(key_groups)

    def _all_items(self, key_groups: Sequence[int] | None) -> Iterator[tuple[Any, Any]]:
        with self._scanning():
            yield from self.store.items(key_groups)
            wanted = self.missing if key_groups is None else self.missing & frozenset(key_groups)
            for table in self._far_tables(wanted):
                yield from self._shown(table)

    def range(self, start: Any, end: Any) -> Iterator[tuple[Any, Any]]:
        """Keys and values from `start` on and below `end` (None: no bound), in the order of the keys: a merge of what
        is local and of missing key groups where such keys may be. Nothing is loaded meanwhile.
        """
        return self.store.range(start, end) if self.is_local else self._all_range(start, end)

    def _all_range(self, start: Any, end: Any) -> Iterator[tuple[Any, Any]]:
        with self._scanning():
            bounds = list(self._keys.group_bounds(sorted(self.missing), start, end))
            far = (self._far_range(*one, streams=len(bounds)) for one in bounds)
            yield from heapq.merge(self.store.range(start, end), *far, key=_key)

    # ---- changes

    def apply(self, changes: Mapping[Any, Any], place: StatePlace) -> None:
        """Take committed changes, and the place that they lead to, between two rows of what is loaded. Raises what
        ended the loading, too.
        """
        base = self._base
        if base is None:
            self.store.apply(changes, place)
            return
        if self._failure is not None:
            raise self._failure
        if self._rows is not None:
            was = self._count_near(changes)
            live = sum(value is not None for value in changes.values())
            self._rows = None if was is None else self._rows + live - was
        with self._turn:
            self.store.apply(changes, place)
        base.stand(place.position)
        base.renew()

    def _count_near(self, keys: Iterable[Any]) -> int | None:
        """How many of these keys are there; None if only a snapshot can say."""
        count = 0
        for key in keys:
            value = self._near(key)
            if value is None:
                group = self._keys.group(key)
                if self.store.is_gone(group, key):
                    continue
                if group in self.store.missing:
                    return None
                value = self._near(key)  # It may have come just now.
            count += value is not None
        return count

    def load(self, changes: pa.Table) -> None:
        """Take committed changes in bulk, ahead of the place that they lead to."""
        with self._turn:
            self._rows = None
            self.store.load(changes)

    def move(self, place: StatePlace) -> None:
        """What was loaded is the state at this place."""
        self.store.move(place)
        if self._base is not None:
            self._base.stand(place.position)

    # ---- for who loads

    def take(self, rows: pa.Table, complete: Collection[int]) -> None:
        """Rows of the snapshot, with which these key groups are complete. Waits while the state is scanned.

        Raises ClosedError once it is closed, StorageFull, StoreUnavailable.
        """
        with self._turn:
            while self._scans and not self._is_closed:
                self._turn.wait()
            if self._is_closed:
                raise ClosedError("the table was closed before all of its state was local")
            self.store.fill(self.store.unchanged(rows), complete)

    def finish(self) -> None:
        """All is local: let the snapshot go."""
        if self._base is not None:
            self._base.let_go()

    def fail(self, error: Exception) -> None:
        """Nothing more is loaded. The next commit tells, and so does a read of what is not local."""
        self._failure = error

    def on_close(self, closing: Callable[[], None]) -> None:
        """What to call when it is closed, once nothing is taken any more."""
        self._closing = closing

    def close(self) -> None:
        """Take no more rows; let the snapshot go, and close the store. Idempotent."""
        with self._turn:
            self._is_closed = True
            self._turn.notify_all()
        loading, self._closing = self._closing, None
        with ExitStack() as closing:
            closing.callback(self.store.close)
            closing.callback(self.finish)
            if loading is not None:
                loading()

    # ---- inside

    @contextmanager
    def _scanning(self) -> Generator[None]:
        with self._turn:
            self._scans += 1
        try:
            with self._telling():
                yield
        finally:
            with self._turn:
                self._scans -= 1
                self._turn.notify_all()

    @contextmanager
    def _telling(self) -> Generator[None]:
        """What cannot become better is kept, and told from then on."""
        if self._failure is not None:
            raise self._failure
        try:
            yield
        except (Damaged, Fenced, NotFound) as error:
            self._failure = error
            raise

    def _far_tables(self, wanted: frozenset[int]) -> Iterator[pa.Table]:
        base = self._base
        if base is None or not wanted:
            return iter(())
        return base.tables(lambda snapshot: snapshot.tables(wanted, base.renew))

    def _far_range(self, group: int, start: Any, end: Any, *, streams: int) -> Iterator[tuple[Any, Any]]:
        assert self._base is not None
        first, behind = (None if key is None else sortable(key) for key in (start, end))
        for table in self._base.tables(lambda snapshot: snapshot.between(group, first, behind, streams=streams)):
            yield from self._shown(table)

    def _shown(self, table: pa.Table) -> Iterator[tuple[Any, Any]]:
        for rows in self.store.unchanged(table).to_batches():
            yield from zip(self._keys.of_columns(rows), self._values.of_column(rows.column("value")), strict=True)


def _has_gone(base: Base, snapshot: RemoteSnapshot | None) -> bool:
    """Whether this is not the snapshot any more that is read."""
    try:
        return snapshot is not None and base.snapshot is not snapshot
    except ClosedError:
        return True


def _key(item: tuple[Any, Any]) -> Any:
    return item[0]
