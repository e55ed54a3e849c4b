"""`RemoteRun`: one run of a snapshot, read by row group: which may hold a key, and what is in them.

The manifest's index says which row groups hold a key group. Where several do, the statistics of the file's footer tell
them apart by their least and greatest key.

Invariants:
- A row group is left out only if its statistics prove that the key is not in it. They are bounds, not keys: a writer
  may have cut them short, so what begins as the greatest one may still be there.
- What is read was verified: `storage.runs.read`.
"""

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from statelog.environment import Environment, begin
from statelog.errors import CorruptRun, NotFound
from statelog.reading.converter import Converter
from statelog.reading.planner import SnapshotFailed
from statelog.recovery.run_opener import RunOpener
from statelog.recovery.run_reading import RunHandles
from statelog.schemas.snapshot.run_ref import RunRef
from statelog.storage.runs.read import KeyBounds
from statelog.tables.remote.row_group import RowGroup, SortableKey

__all__ = ["RemoteRun", "may_hold", "may_reach"]

T = TypeVar("T")


def may_hold(bounds: KeyBounds | None, key: SortableKey) -> bool:
    """Whether a row group with these bounds may hold a key."""
    return bounds is None or (bounds.least <= key and may_reach(bounds, key, None))


def may_reach(bounds: KeyBounds | None, start: SortableKey | None, end: SortableKey | None) -> bool:
    """Whether it may hold keys from `start` on and below `end` (None: no bound)."""
    if bounds is None:
        return True
    if end is not None and end <= bounds.least:
        return False
    greatest: SortableKey = bounds.greatest
    return start is None or start <= greatest or (isinstance(start, bytes) and start.startswith(greatest))


class RemoteRun:
    """One run. Its row groups are read from any thread; all else belongs to the table's. Close it to close files."""

    def __init__(self, ref: RunRef, opener: RunOpener, converter: Converter, environment: Environment) -> None:
        self.ref = ref
        self._opener = opener
        self._converter = converter
        self._start = environment.start
        self._handles = RunHandles(ref.file, opener.open)
        self._of_group: dict[int, tuple[int, ...]] = {}
        self._bounds: Future[list[KeyBounds | None]] | None = None

    @property
    def path(self) -> str:
        """Its file's."""
        return self.ref.path

    def warm(self) -> None:
        """Fetch the footer, on a thread of its own: the first read by key needs it, and the open file."""
        if self._bounds is None:
            self._bounds = begin(self._start, self._read_bounds)

    def with_key(self, key_group: int, key: SortableKey) -> list[int]:
        """The numbers of the row groups that may hold a key: one or none, unless statistics are missing or cut short.

        Raises as `row_group`.
        """
        return self._chosen(key_group, lambda bounds: may_hold(bounds, key))

    def between(self, key_group: int, start: SortableKey | None, end: SortableKey | None) -> list[int]:
        """Those that may hold keys of a key group between two, in the order of the keys. Raises as `row_group`."""
        return self._chosen(key_group, lambda bounds: may_reach(bounds, start, end))

    def row_group(self, number: int) -> RowGroup:
        """A row group, decoded, its values in the table's schema.

        Raises SnapshotFailed if the run is gone or damaged, StoreUnavailable, ClosedError.
        """
        table = self._told(lambda: self._handles.row_groups([number], None)[0])
        return RowGroup(self._converter.table(table, self.ref.value_schema_id))

    def close(self) -> None:
        """Close its files. Idempotent."""
        self._handles.close()

    def _chosen(self, key_group: int, is_wanted: Callable[[KeyBounds | None], bool]) -> list[int]:
        numbers = self._of_group.get(key_group)
        if numbers is None:
            spans = enumerate(self.ref.index.row_groups)
            found = (number for number, span in spans if span.first_key_group <= key_group < span.end_key_group)
            numbers = self._of_group[key_group] = tuple(found)
        if len(numbers) < 2:
            return list(numbers)
        bounds = self._known_bounds()
        return [number for number in numbers if is_wanted(bounds[number])]

    def _known_bounds(self) -> list[KeyBounds | None]:
        """Those of all row groups; after a failure the footer is fetched again."""
        self.warm()
        assert self._bounds is not None
        try:
            return self._bounds.result()
        except BaseException:
            self._bounds = None
            raise

    def _read_bounds(self) -> list[KeyBounds | None]:
        return self._told(self._handles.key_bounds)

    def _told(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except (CorruptRun, NotFound) as error:
            failed = SnapshotFailed(error)
            failed.is_copy = isinstance(error, CorruptRun) and self._opener.distrust(self.ref.file)
            raise failed from error
