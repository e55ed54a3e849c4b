"""`State`: the committed state of a table: a local store, and the snapshot that has the missing key groups.

    local      the value, or that the key was deleted     store.py
    missing    its key group: the snapshot                base.py, snapshot.py

A state that misses nothing has no snapshot, and is its store. Missing key groups are loaded before the table opens, by
a thread of their own, or never. Loading puts merged rows of the base into the store, some thousand at a time.

Invariants:
- Reads show the committed state at the place of `apply`, whatever is local and whichever snapshot is the base. The
  snapshot may be newer only for keys that an uncommitted layer shadows.
- Rows of the snapshot are taken under the lock that `apply` takes, and never during a scan or after `close`. So a
  thread that waits for the object store does no harm once its table is closed.
- A key group is complete only once a row of a later one, or the end, was read.
- Once all is local, no snapshot is held, and reads go to the store directly.
- The state of an owner hides rows that are due from `get`, scans and `len`. That of a standby shows them: only an owner
  has a clock. Nothing else depends on a due.
- A snapshot that can neither be read nor replaced ends the state: `apply`, and every call that needs it, raises why.
"""

import heapq
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from operator import itemgetter
from threading import Condition, Event
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakSet

import pyarrow as pa
import pyarrow.compute as pc

from statelog.environment import GRACE_S, Environment
from statelog.errors import ClosedError, Damaged, Fenced, NotFound, StorageFull, Unavailable
from statelog.schemas.changes.due import dues_of, has_due, is_due
from statelog.schemas.snapshot.runs import key_groups_of
from statelog.tables.state.base import BaseSnapshot
from statelog.tables.state.dues import NO_DUES, DueKey, Dues, IsWanted
from statelog.tables.state.keys import KeyRule
from statelog.tables.state.snapshot import sortable
from statelog.tables.state.store import UNKNOWN, DictStore, StatePlace
from statelog.tables.state.values import ValueRule

if TYPE_CHECKING:  # It needs rocksdict, which is an extra.
    from statelog.tables.state.rocksdb import RocksdbStore

Store: TypeAlias = "DictStore | RocksdbStore"
_ROWS = 8192
"""The most rows that are taken at once: a commit waits for no more."""
_PAUSE_S = 1.0


class _ScanUnderWay:
    """A running scan, while anybody references it."""


class State:
    """A store over a base, None for a whole state. Belongs to the table's thread, but for loading, and `missing`.

    Keys, values, changes and errors are those of a `Store`. Reads of the snapshot also raise Damaged, NotFound, Fenced,
    Unavailable.
    """

    def __init__(self, store: Store, keys: KeyRule, values: ValueRule, base: BaseSnapshot | None = None) -> None:
        self.store = store
        self._base = base
        self._keys = keys
        self.values = values
        self._local_get = store.get
        self._lock = Condition()  # Reentrant: a scan may be dropped, and so end, wherever memory is freed.
        self._scans: WeakSet[_ScanUnderWay] = WeakSet()  # Weak: a signal's handler may interrupt the end of a scan.
        self._rows: int | None = None
        self._counted = 0
        self._failure: Exception | None = None
        self._closed = Event()
        self._loading: Future[object] | None = None
        self._now_ms: Callable[[], int] | None = None

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
        """A function that returns the value of a key, None if there is none; the store's own once all is local."""
        return self.stored if self._now_ms is None else self._unhidden

    @property
    def stored(self) -> Callable[[Any], Any]:
        """`get` that hides nothing."""
        return self._local_get if self.is_local else self._get

    def _get(self, key: Any) -> Any:
        value = self._local_get(key)
        if value is not None:
            return value
        row = self._remote(key)
        if row is UNKNOWN:
            return self._local_get(key)
        return None if row is None else self.values.of_column(row.column("value"), [key])[0]

    def _remote(self, key: Any) -> Any:
        """Return the snapshot's row of a key without a local value, None if it has none; UNKNOWN if the key is local by
        now.
        """
        group, base = self._keys.group(key), self._base
        if self.store.is_deleted(group, key):
            return None
        if group not in self.store.missing:
            return UNKNOWN
        assert base is not None
        base.renew()
        try:
            with self._retaining_failure():
                return base.ask(lambda snapshot: snapshot.find(group, sortable(self._keys.plain(key))))
        except ClosedError:
            if self._closed.is_set() or group in self.store.missing:
                raise
            return UNKNOWN  # The rest was loaded meanwhile, and the snapshot released.

    def __len__(self) -> int:
        """Count the keys, in one pass over all that is not local. The count is retained until a run cannot be read, or
        a commit changes a key that only a snapshot may have: a commit reads no object store.
        """
        return self._count() - (0 if self._now_ms is None else self.overdue_count(self._now_ms()))

    def _count(self) -> int:
        base = self._base
        if base is None or self.is_local:
            return len(self.store)
        if self._rows is None or self._counted != base.replacements:
            counted = base.replacements
            with self._scanning():
                rows = len(self.store)
                for table in self._remote_tables(self.missing):
                    rows += self.store.unchanged(table).num_rows
            self._rows, self._counted = rows, counted
        return self._rows

    def items(self, key_groups: Sequence[int] | None) -> Iterator[tuple[Any, Any]]:
        """Iterate over keys and values of these key groups (None: all), in any order. Loading pauses meanwhile."""
        read = self.store.items if self.is_local else self._all_items
        return read(key_groups, self._scan_ms())

    def _all_items(self, key_groups: Sequence[int] | None, now_ms: int | None) -> Iterator[tuple[Any, Any]]:
        with self._scanning():
            yield from self.store.items(key_groups, now_ms)
            wanted = self.missing if key_groups is None else self.missing & frozenset(key_groups)
            for table in self._remote_tables(wanted):
                yield from self._shown(table, now_ms)

    def range(self, start: Any, end: Any, *, reverse: bool = False) -> Iterator[tuple[Any, Any]]:
        """Iterate over keys and values from `start` on and below `end` (None: no bound), in key order or in reverse.

        Merges local rows with those of the missing key groups that may have such keys. Loading pauses meanwhile.
        """
        read = self.store.range if self.is_local else self._all_range
        return read(start, end, reverse=reverse, now_ms=self._scan_ms())

    def _all_range(self, start: Any, end: Any, *, reverse: bool, now_ms: int | None) -> Iterator[tuple[Any, Any]]:
        with self._scanning():
            bounds = list(self._keys.group_bounds(sorted(self.missing), start, end))
            read = self._remote_reversed if reverse else self._remote_range
            remote = (
                read(group, sortable(first), sortable(behind), now_ms, streams=len(bounds))
                for group, first, behind in bounds
            )
            local = self.store.range(start, end, reverse=reverse, now_ms=now_ms)
            yield from heapq.merge(local, *remote, key=itemgetter(0), reverse=reverse)

    # ---- dues

    def hide_due(self, now_ms: Callable[[], int]) -> None:
        """Hide rows that are due, from now on. `now_ms` returns the time of their owner."""
        self._now_ms = now_ms

    @property
    def is_timed(self) -> bool:
        """Whether any row may have a due."""
        base = self._base
        with self._steadily():
            return self.store.is_timed or (base is not None and not self.is_local and base.has_dues)

    @property
    def earliest_due_ms(self) -> int | None:
        """The earliest due of the rows that are local by now; None if none has one."""
        with self._steadily():
            return self.store.earliest_due_ms

    def due_ms(self, key: Any) -> int | None:
        """Return the due of a key, hidden or not; None if it has none."""
        if self.is_local or self._local_get(key) is not None:
            return self.store.due_ms(key)
        row = self._remote(key)
        if row is UNKNOWN:
            return self.store.due_ms(key)
        return dues_of(row)[0] if row is not None and has_due(row) else None

    def overdue(self, now_ms: int, most: int, is_wanted: IsWanted) -> list[DueKey]:
        """Return up to `most` wanted keys that are due at `now_ms`, with their dues, oldest first: those that are local
        by now. A thread may be loading others.
        """
        with self._steadily():
            return self.store.overdue(now_ms, most, is_wanted)

    def overdue_count(self, now_ms: int) -> int:
        """Count the keys that are due at `now_ms`, in one pass over all that is not local."""
        with self._scanning():
            count = self.store.overdue_count(now_ms)
            for table in self._remote_tables(self.missing):
                if has_due(table):
                    count += self.store.unchanged(table.filter(is_due(table, now_ms))).num_rows
        return count

    def _steadily(self) -> AbstractContextManager[object]:
        """Keep loaded rows out of the block: nobody reads an index of dues while it changes."""
        return nullcontext() if self._base is None else self._lock

    def _scan_ms(self) -> int | None:
        """The time of a scan that begins now, whose due rows are hidden; None to hide nothing."""
        return None if self._now_ms is None else self._now_ms()

    def _unhidden(self, key: Any) -> Any:
        store = self.store
        value = self._get(key) if store.missing else self._local_get(key)
        if value is None:
            return None
        assert self._now_ms is not None
        now_ms, due_ms = self._now_ms(), None
        if store.missing:
            due_ms = self.due_ms(key)
        elif (earliest_ms := store.earliest_due_ms) is not None and earliest_ms <= now_ms:  # Mostly nothing is due.
            due_ms = store.due_ms(key)
        return None if due_ms is not None and due_ms <= now_ms else value

    # ---- changes

    def apply(self, changes: dict[Any, Any], place: StatePlace, dues: Dues = NO_DUES) -> None:
        """Take committed changes with the dues of their keys, and the place that they lead to, between two portions of
        loaded rows. Raises the error of a failed loading, too.
        """
        base = self._base
        if base is None:
            self.store.apply(changes, place, dues)
            return
        if self._failure is not None:
            raise self._failure
        if self._rows is not None:
            was = self._count_local(changes)
            live = sum(value is not None for value in changes.values())
            self._rows = None if was is None else self._rows + live - was
        with self._lock:
            self.store.apply(changes, place, dues)
        base.advance(place.position)
        base.renew()

    def _count_local(self, keys: Iterable[Any]) -> int | None:
        """Count the existing ones of these keys; None if only a snapshot can say."""
        count = 0
        for key in keys:
            value = self._local_get(key)
            if value is None:
                group = self._keys.group(key)
                if self.store.is_deleted(group, key):
                    continue
                if group in self.store.missing:
                    return None
                value = self._local_get(key)  # Maybe just loaded.
            count += value is not None
        return count

    # ---- what is missing

    def load_missing(self, environment: Environment) -> int:
        """Load all missing key groups, and return the number of rows. Raises Damaged, NotFound, Fenced, Unavailable,
        StorageFull, ClosedError.
        """
        base, read = self._base, 0
        assert base is not None
        while missing := self.missing:
            for rows, complete in _steps(self._remote_tables(missing), missing, base.schema):
                self._take(rows, complete)
                read += rows.num_rows
                self._renew()
                if complete:
                    environment.crash("group-loaded")
        base.release()
        environment.crash("all-loaded")
        return read

    def start_loading(self, environment: Environment) -> None:
        """Load all missing key groups on another thread, which ends with the state."""
        self._loading = environment.begin(lambda: self._load_behind(environment))
        if self._loading.done():
            self._loading.result()  # A simulation runs it at once, and may crash in it.

    def _load_behind(self, environment: Environment) -> int:
        while True:
            try:
                return self.load_missing(environment)
            except ClosedError:
                return 0
            except Exception as error:  # noqa: BLE001 - raised again in the table's thread
                if not isinstance(error, Unavailable) or isinstance(error, StorageFull):
                    self._failure = error
                    return 0
                self._closed.wait(_PAUSE_S)

    def _take(self, rows: pa.Table, complete: Collection[int]) -> None:
        """Take rows of the snapshot, which complete these key groups. Waits while the state is scanned."""
        with self._lock:
            while self._scans and not self._closed.is_set():
                self._lock.wait(_PAUSE_S)
            self._check_open()
            self.store.fill(self.store.unchanged(rows), complete)

    def _renew(self) -> None:
        self._check_open()
        if self._base is not None:
            self._base.renew()

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise ClosedError("the table was closed before all of its state was local")

    def close(self) -> None:
        """Take no more rows, release the snapshot and close the store. Idempotent."""
        self._closed.set()
        with ExitStack() as closing:
            closing.callback(self.store.close)
            if self._base is not None:
                closing.callback(self._base.release)
            with self._lock:  # Rows that are being taken are complete then.
                self._lock.notify_all()
            if self._loading is not None:
                wait([self._loading], GRACE_S)

    @contextmanager
    def _scanning(self) -> Generator[None]:
        scan = _ScanUnderWay()
        try:
            with self._lock:
                self._scans.add(scan)
            with self._retaining_failure():
                yield
        finally:
            with self._lock:
                self._scans.discard(scan)
                self._lock.notify_all()

    @contextmanager
    def _retaining_failure(self) -> Generator[None]:
        """Retain an error that a retry cannot mend, and raise it from then on."""
        if self._failure is not None:
            raise self._failure
        try:
            yield
        except (Damaged, Fenced, NotFound) as error:
            self._failure = error
            raise

    def _remote_tables(self, wanted: frozenset[int]) -> Iterator[pa.Table]:
        if self._base is None or not wanted:
            return iter(())
        return self._base.tables(lambda snapshot: snapshot.tables(wanted, self._renew))

    def _remote_range(
        self, group: int, start: Any, end: Any, now_ms: int | None, *, streams: int
    ) -> Iterator[tuple[Any, Any]]:
        assert self._base is not None
        for table in self._base.tables(lambda snapshot: snapshot.between(group, start, end, streams=streams)):
            yield from self._shown(table, now_ms)

    def _remote_reversed(
        self, group: int, start: Any, end: Any, now_ms: int | None, *, streams: int
    ) -> Iterator[tuple[Any, Any]]:
        """Yield the same in reverse, the last few rows at a time."""
        base = self._base
        assert base is not None

        def first_of_last(end: Any) -> Any:
            return base.ask(lambda snapshot: snapshot.last_few(group, start, end, streams=streams))

        while (first := first_of_last(end)) is not None:
            yield from reversed(list(self._remote_range(group, first, end, now_ms, streams=streams)))
            end = first

    def _shown(self, table: pa.Table, now_ms: int | None) -> Iterator[tuple[Any, Any]]:
        if now_ms is not None and has_due(table):
            table = table.filter(pc.invert(is_due(table, now_ms)))
        for rows in self.store.unchanged(table).to_batches():
            keys = self._keys.of_columns(rows)
            yield from zip(keys, self.values.of_column(rows.column("value"), keys), strict=True)


def _steps(
    tables: Iterator[pa.Table], missing: frozenset[int], schema: pa.Schema
) -> Iterator[tuple[pa.Table, frozenset[int]]]:
    """Yield rows to take at once, and the key groups that they complete. The last step completes the rest."""
    left, held = missing, schema.empty_table()
    for table in tables:
        for start in range(0, table.num_rows, _ROWS):
            rows = table.slice(start, _ROWS)
            first = int(key_groups_of(rows)[0])
            complete = frozenset(group for group in left if group < first)
            yield held, complete
            left, held = left - complete, rows
    yield held, left
