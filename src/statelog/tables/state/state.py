"""`State`: the committed state of a table: what is local of it, and of what is missing the snapshot that has it.

    here       the value, or that it is gone     store.py
    missing    its key group: the snapshot       base.py, snapshot.py

A state that misses nothing has no snapshot, and is its store. The key groups that are missing are loaded before the
table opens, by a thread of its own, or never: merged rows of the base, some thousand at a time, go into the store.

Invariants:
- What it shows is the committed state at the place of `apply`, whatever is local by then and whichever snapshot it
  stands on. The snapshot may be newer only for keys that an uncommitted layer shadows.
- A row of the snapshot is taken under the lock that `apply` takes, not while the state is scanned, and not once it is
  closed; so a thread that waits for the object store does no harm when its table is gone.
- A key group is complete only once a row of a later one, or the end, was read.
- Once all is local, nothing of a snapshot is held, and reads go to the store directly.
- A snapshot that can neither be read nor replaced ends it: every call that needs it, and `apply`, tells why.
"""

import heapq
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager
from operator import itemgetter
from threading import Condition, Event
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakSet

import pyarrow as pa

from statelog.environment import GRACE_S, Environment
from statelog.errors import ClosedError, Damaged, Fenced, NotFound, StorageFull, Unavailable
from statelog.schemas.snapshot.runs import key_groups_of
from statelog.tables.state.base import BaseSnapshot
from statelog.tables.state.keys import KeyRule
from statelog.tables.state.snapshot import sortable
from statelog.tables.state.store import DictStore, StatePlace
from statelog.tables.state.values import ValueRule

if TYPE_CHECKING:  # It needs rocksdict, which is an extra.
    from statelog.tables.state.rocksdb import RocksdbStore

Store: TypeAlias = "DictStore | RocksdbStore"
_ROWS = 8192
"""As many rows are taken at once: a commit waits for no more."""
_PAUSE_S = 1.0


class _ScanUnderWay:
    """A running scan, for as long as anybody has it."""


class State:
    """A store over a base, None for a whole one. Belongs to the table's thread, but for what loads, and `missing`.

    Keys, values and changes are those of a `Store`, and so is what is raised; what a snapshot has is Damaged,
    NotFound, Fenced, Unavailable besides.
    """

    def __init__(self, store: Store, keys: KeyRule, values: ValueRule, base: BaseSnapshot | None = None) -> None:
        self.store = store
        self._base = base
        self._keys = keys
        self.values = values
        self._near = store.get
        self._turn = Condition()  # Reentrant: a scan may be dropped, and so end, wherever memory is freed.
        self._scans: WeakSet[_ScanUnderWay] = WeakSet()  # One whose end a signal's handler broke off is over, too.
        self._rows: int | None = None
        self._counted = 0
        self._failure: Exception | None = None
        self._closed = Event()
        self._loading: Future[object] | None = None

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
        base = self._base
        assert base is not None
        base.renew()
        try:
            with self._telling():
                found = base.ask(lambda snapshot: snapshot.find(group, sortable(self._keys.plain(key))))
        except ClosedError:
            if self._closed.is_set() or group in self.store.missing:
                raise
            return self._near(key)  # All came in between, and the snapshot was let go.
        return None if found is None else self.values.of_column(found, [key])[0]

    def __len__(self) -> int:
        """How many keys there are: from one pass over all that is not local. Counted once, and kept as long as runs can
        be read and no commit changes a key of which only they say whether it was there: a commit asks no store.
        """
        base = self._base
        if base is None or self.is_local:
            return len(self.store)
        if self._rows is None or self._counted != base.replacements:
            counted = base.replacements
            with self._scanning():
                rows = len(self.store)
                for table in self._far_tables(self.missing):
                    rows += self.store.unchanged(table).num_rows
            self._rows, self._counted = rows, counted
        return self._rows

    def items(self, key_groups: Sequence[int] | None) -> Iterator[tuple[Any, Any]]:
        """Keys and values of these key groups (None: of all), in any order. Nothing is loaded meanwhile."""
        return self.store.items(key_groups) if self.is_local else self._all_items(key_groups)

    def _all_items(self, key_groups: Sequence[int] | None) -> Iterator[tuple[Any, Any]]:
        with self._scanning():
            yield from self.store.items(key_groups)
            wanted = self.missing if key_groups is None else self.missing & frozenset(key_groups)
            for table in self._far_tables(wanted):
                yield from self._shown(table)

    def range(self, start: Any, end: Any, *, reverse: bool = False) -> Iterator[tuple[Any, Any]]:
        """Keys and values from `start` on and below `end` (None: no bound), in the order of the keys or in reverse: a
        merge of what is local and of missing key groups where such keys may be. Nothing is loaded meanwhile.
        """
        look = self.store.range if self.is_local else self._all_range
        return look(start, end, reverse=reverse)

    def _all_range(self, start: Any, end: Any, *, reverse: bool) -> Iterator[tuple[Any, Any]]:
        with self._scanning():
            bounds = list(self._keys.group_bounds(sorted(self.missing), start, end))
            look = self._far_reversed if reverse else self._far_range
            far = (look(group, *map(sortable, ends), streams=len(bounds)) for group, *ends in bounds)
            near = self.store.range(start, end, reverse=reverse)
            yield from heapq.merge(near, *far, key=itemgetter(0), reverse=reverse)

    # ---- changes

    def apply(self, changes: dict[Any, Any], place: StatePlace) -> None:
        """Take committed changes, and the place that they lead to, between two rows of what is loaded. Raises Damaged,
        Fenced, NotFound, StorageFull if that ended the loading, too.
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

    # ---- what is missing

    def load_missing(self, environment: Environment) -> int:
        """Load all that is missing, and return how many rows that were. Raises Damaged, NotFound, Fenced, Unavailable,
        StorageFull, ClosedError.
        """
        base, read = self._base, 0
        assert base is not None
        while missing := self.missing:
            for rows, complete in _steps(self._far_tables(missing), missing, base.schema):
                self._take(rows, complete)
                read += rows.num_rows
                self._beat()
                if complete:
                    environment.crash("group-loaded")
        base.let_go()
        environment.crash("all-loaded")
        return read

    def start_loading(self, environment: Environment) -> None:
        """Load all that is missing on a thread of its own, which ends with the state."""
        self._loading = environment.begin(lambda: self._load_behind(environment))
        if self._loading.done():
            self._loading.result()  # Where a simulation had it done at once, it may have died of it.

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
        """Rows of the snapshot, with which these key groups are complete. Waits while the state is scanned."""
        with self._turn:
            while self._scans and not self._closed.is_set():
                self._turn.wait(_PAUSE_S)
            self._check_open()
            self.store.fill(self.store.unchanged(rows), complete)

    def _beat(self) -> None:
        self._check_open()
        if self._base is not None:
            self._base.renew()

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise ClosedError("the table was closed before all of its state was local")

    def close(self) -> None:
        """Take no more rows; let the snapshot go, and close the store. Idempotent."""
        self._closed.set()
        with ExitStack() as closing:
            closing.callback(self.store.close)
            if self._base is not None:
                closing.callback(self._base.let_go)
            with self._turn:  # What is being taken is in then.
                self._turn.notify_all()
            if self._loading is not None:
                wait([self._loading], GRACE_S)

    @contextmanager
    def _scanning(self) -> Generator[None]:
        scan = _ScanUnderWay()
        try:
            with self._turn:
                self._scans.add(scan)
            with self._telling():
                yield
        finally:
            with self._turn:
                self._scans.discard(scan)
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
        if self._base is None or not wanted:
            return iter(())
        return self._base.tables(lambda snapshot: snapshot.tables(wanted, self._beat))

    def _far_range(self, group: int, start: Any, end: Any, *, streams: int) -> Iterator[tuple[Any, Any]]:
        assert self._base is not None
        for table in self._base.tables(lambda snapshot: snapshot.between(group, start, end, streams=streams)):
            yield from self._shown(table)

    def _far_reversed(self, group: int, start: Any, end: Any, *, streams: int) -> Iterator[tuple[Any, Any]]:
        """The same in reverse: a few of the last ones at a time, until there are none."""
        base = self._base
        assert base is not None

        def few(end: Any) -> Any:
            return base.ask(lambda snapshot: snapshot.last_few(group, start, end, streams=streams))

        while (first := few(end)) is not None:
            yield from reversed(list(self._far_range(group, first, end, streams=streams)))
            end = first

    def _shown(self, table: pa.Table) -> Iterator[tuple[Any, Any]]:
        for rows in self.store.unchanged(table).to_batches():
            keys = self._keys.of_columns(rows)
            yield from zip(keys, self.values.of_column(rows.column("value"), keys), strict=True)


def _steps(
    tables: Iterator[pa.Table], missing: frozenset[int], schema: pa.Schema
) -> Iterator[tuple[pa.Table, frozenset[int]]]:
    """Rows to take at once, and the key groups that are complete with them. The last step completes the rest."""
    left, held = missing, schema.empty_table()
    for table in tables:
        for start in range(0, table.num_rows, _ROWS):
            rows = table.slice(start, _ROWS)
            first = int(key_groups_of(rows)[0])
            complete = frozenset(group for group in left if group < first)
            yield held, complete
            left, held = left - complete, rows
    yield held, left
