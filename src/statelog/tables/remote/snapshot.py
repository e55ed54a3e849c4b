"""`RemoteSnapshot`: the state of one snapshot, read from its runs where they lie: by key, by range, or whole.

    find      by key       the row groups of all runs that may hold it, at the same time; the newest run decides
    between   by range     of one key group, in the order of the keys
    tables    whole        of some key groups, merged as a recovery merges them

Invariants:
- Runs are looked at newest first, and all of them, before a key is said not to be there.
- What is decoded is held by the cache, within its bound; a range holds a portion of each run beside it.
- A run that is gone or damaged is SnapshotFailed, never "not there".
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa

from statelog.environment import Environment
from statelog.reading.converter import Converter
from statelog.reading.plan import make_plan
from statelog.recovery import RecoverySettings
from statelog.recovery.plan_reader import PlanReader
from statelog.recovery.run_opener import RunOpener
from statelog.schemas.snapshot.manifest import Manifest
from statelog.storage import Log
from statelog.storage.runs.merge import merge_streams
from statelog.tables.remote.remote_run import RemoteRun
from statelog.tables.remote.row_group import RowGroup, RowGroupCache, SortableKey

__all__ = ["Reading", "RemoteSnapshot"]

_LEAST_PORTION_BYTES = 8 << 10
"""Of each run that is open for a range, whatever the cache may hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What every snapshot of one table is read with."""

    log: Log
    opener: RunOpener
    converter: Converter
    cache: RowGroupCache
    cache_bytes: int
    settings: RecoverySettings
    environment: Environment


class RemoteSnapshot:
    """The runs of a manifest. Belongs to the table's thread, but for `tables`. Close it to close its files."""

    def __init__(self, manifest: Manifest, reading: Reading) -> None:
        self.manifest = manifest
        self._reading = reading
        self._runs = [RemoteRun(ref, reading.opener, reading.converter, reading.environment) for ref in manifest.runs]
        self._of_group: dict[int, list[RemoteRun]] = {}

    def warm(self) -> None:
        """Fetch the footers of all runs, at the same time, and do not wait."""
        for run in self._runs:
            run.warm()

    def find(self, key_group: int, key: SortableKey) -> pa.Array | None:
        """The value of a key as a column of one; None if it is not there.

        Raises SnapshotFailed, StoreUnavailable, and ClosedError if it was closed meanwhile.
        """
        cache = self._reading.cache
        places = [(run, n) for run in self._newest_first(key_group) for n in run.with_key(key_group, key)]
        held = [cache.get(run.path, number) for run, number in places]
        for row_group in held:
            if row_group is None:
                break
            row = row_group.find(key_group, key)
            if row is not None:
                return None if row_group.is_delete(row) else row_group.value(row)
        else:
            return None
        for row_group in self._fetched(places, held):
            row = row_group.find(key_group, key)
            if row is not None:
                return None if row_group.is_delete(row) else row_group.value(row)
        return None

    def between(
        self, key_group: int, start: SortableKey | None, end: SortableKey | None, *, streams: int
    ) -> Iterator[pa.Table]:
        """The rows of a key group from `start` on and below `end`, sorted, in tables; deletes are gone.

        `streams` is how many key groups are read so at the same time: they share the memory. Raises as `find`.
        """
        runs = self._newest_first(key_group)[::-1]
        most_bytes = max(_LEAST_PORTION_BYTES, self._reading.cache_bytes // max(1, streams * len(runs)))
        tables = [self._portions(run, key_group, (start, end), most_bytes) for run in runs]
        return merge_streams(tables, drop_deletes=True)

    def tables(self, key_groups: frozenset[int], beat: Callable[[], None]) -> Generator[pa.Table]:
        """The rows of some key groups by (key group, key), in tables. `beat` is called often. From any one thread.

        Reads around the cache. Raises as `find`.
        """
        reading = self._reading
        plan = make_plan(reading.log.descriptor, self.manifest, self.manifest, (), key_groups)
        reader = PlanReader(
            reading.log,
            plan,
            reading.settings,
            lambda _: beat(),
            converter=reading.converter,
            opener=reading.opener,
            environment=reading.environment,
        )
        with closing(reader.open_tail()) as nothing:
            yield from reader.merge(nothing, drop_deletes=True)

    def close(self) -> None:
        """Close the files. Idempotent."""
        for run in self._runs:
            run.close()

    # ---- inside

    def _newest_first(self, key_group: int) -> list[RemoteRun]:
        runs = self._of_group.get(key_group)
        if runs is None:
            wanted = (run for run in self._runs if run.ref.first_key_group <= key_group < run.ref.end_key_group)
            runs = self._of_group[key_group] = list(wanted)[::-1]
        return runs

    def _fetched(self, places: Sequence[tuple[RemoteRun, int]], held: Sequence[RowGroup | None]) -> Generator[RowGroup]:
        """The row groups in these places, those that are not held fetched at the same time."""
        missing = [place for place, row_group in zip(places, held, strict=True) if row_group is None]
        first, others = missing[0], missing[1:]
        ahead = {place: self._reading.environment.begin(_read(*place)) for place in others}
        fetched = {first: _read(*first)()}  # This thread waits anyway.
        fetched |= {place: result.result() for place, result in ahead.items()}
        for (run, number), row_group in fetched.items():
            self._reading.cache.put(run.path, number, row_group)
        yield from (row_group or fetched[place] for place, row_group in zip(places, held, strict=True))

    def _portions(
        self, run: RemoteRun, key_group: int, bounds: tuple[SortableKey | None, SortableKey | None], most_bytes: int
    ) -> Iterator[pa.Table]:
        """Copies of a run's rows, a few at a time: a row group is not held on to in between, but asked for again."""
        for number in run.between(key_group, *bounds):
            rows: range | None = None
            while rows is None or rows:
                row_group = self._held(run, number)
                rows = row_group.between(key_group, *bounds) if rows is None else rows
                step = max(1, most_bytes // max(1, row_group.row_bytes))
                portion, rows = row_group.copy(rows[:step]), rows[step:]
                del row_group
                yield portion

    def _held(self, run: RemoteRun, number: int) -> RowGroup:
        found = self._reading.cache.get(run.path, number)
        if found is None:
            found = run.row_group(number)
            self._reading.cache.put(run.path, number, found)
        return found


def _read(run: RemoteRun, number: int) -> Callable[[], RowGroup]:
    return lambda: run.row_group(number)
