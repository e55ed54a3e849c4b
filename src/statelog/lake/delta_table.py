"""`DeltaExport`: the Delta Lake table of an export, written by delta-rs (the package `deltalake`).

Owns what of the table belongs to the export: its rows, and the position of the log that they are the state at. Decides
nothing, and never reads the log.

Invariants:
- Rows and position change in one Delta commit. The position is the version of an application transaction, Delta's own
  way of making a writer idempotent, under an id that names the log and its ledger topic.
- A commit is made of the table as it was when this object was opened: if anybody committed meanwhile it fails, and
  delta-rs tries no merge of its own. Two exporters therefore never apply the same changes twice.
- A source that fails leaves the table as it was.
- Rows that somebody else changed since the last export are told: a position says nothing about them.
"""

import json
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from statelog.errors import AlreadyExists, ConfigError, StoreUnavailable
from statelog.schemas.ledger.place import ORIGIN, Place
from statelog.storage.store.url import mask_url

if TYPE_CHECKING:
    import deltalake

__all__ = ["DELETED", "DeltaExport", "DeltaPlace", "Merged", "TableMoved", "require_deltalake"]

DELETED = "__statelog_deleted"
"""The column of a merge's source that says which keys are gone. Never one of the table."""
_APPLICATION = "statelog.application"
_PLACE = "statelog.place"
_KEEPING_ROWS = (
    "OPTIMIZE",
    "VACUUM START",
    "VACUUM END",
    "REORG",
    "CLUSTER BY",
    "SET TBLPROPERTIES",
    "UNSET TBLPROPERTIES",
)
"""What others may do to the table between two exports: no row is another one after it."""


class TableMoved(Exception):
    """Somebody else committed to the table since it was opened."""


class Merged(NamedTuple):
    """Rows that a merge inserted, updated and deleted."""

    inserted: int
    updated: int
    deleted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaPlace:
    """Where a table is, and whose export it holds. `application` is the id of its transactions."""

    url: str
    application: str
    storage_options: tuple[tuple[str, str], ...] = ()

    @property
    def shown(self) -> str:
        """The URL without secrets."""
        return mask_url(self.url)


def require_deltalake() -> None:
    """Raise ConfigError if the extra is not installed."""
    if find_spec("deltalake") is None:
        hint = "Install the extra: pip install 'statelog[delta]'"
        raise ConfigError("Delta Lake needs the package deltalake", hint=hint)


class DeltaExport:
    """The table as it is now. `position` is the state it holds, None if it is not there or was never exported to;
    `seen` names the ledger record below it, too, once `check_own` has found it.

    Raises StoreUnavailable.
    """

    def __init__(self, place: DeltaPlace) -> None:
        require_deltalake()
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        self._place = place
        self._table: deltalake.DeltaTable | None = None
        self.position: int | None = None
        self.seen = ORIGIN
        try:
            self._table = DeltaTable(place.url, storage_options=dict(place.storage_options) or None)
            self.position = self._table.transaction_version(place.application)
        except TableNotFoundError:
            return
        except (DeltaError, OSError) as error:
            raise _unavailable(place, "be opened", error) from error

    @property
    def is_new(self) -> bool:
        """Whether there is no table yet."""
        return self._table is None

    def has_columns(self, columns: pa.Schema) -> bool:
        """Whether the table has exactly these columns, of these types."""
        from deltalake import Schema

        return self._table is not None and self._table.schema() == Schema.from_arrow(columns)

    def check_own(self) -> bool:
        """Whether the table's history reaches back to the last export, so that its rows are known to be that export's.

        Raises AlreadyExists if the table holds anything else, or somebody changed its rows since; StoreUnavailable.
        """
        if self._table is None:
            return True
        if self.position is None:
            raise self._refused("the table holds something else than this log's export, or one of topics it had before")
        self.seen = Place(self.position)
        for commit in self._history():
            if commit.get(_APPLICATION) == self._place.application:
                self.seen = Place.from_json(json.loads(str(commit.get(_PLACE, f"[{self.position}]"))))
                return True
            if commit.get("operation") not in _KEEPING_ROWS:
                raise self._refused(f"somebody else changed the table since the last export: {commit.get('operation')}")
        return False

    def _history(self) -> Iterator[Mapping[str, object]]:
        """What was committed to the table, the newest first: often it is the only one that is asked for."""
        from deltalake.exceptions import DeltaError

        assert self._table is not None, "only a table has a history"
        try:
            yield from self._table.history(1)
            yield from self._table.history()
        except (DeltaError, OSError) as error:
            raise _unavailable(self._place, "be read", error) from error

    def _refused(self, why: str) -> AlreadyExists:
        return AlreadyExists(
            why, url=self._place.shown, hint="Name another table, or write this one anew with replace=True"
        )

    def write(self, rows: Iterable[pa.RecordBatch], columns: pa.Schema, place: Place) -> None:
        """Make the table, or replace all its rows and columns. Raises TableMoved, StoreUnavailable."""
        from deltalake import write_deltalake

        source, commit = _Source(rows, columns), self._commit(place)
        options = dict(self._place.storage_options) or None
        with _raising(source, self._place, is_new=self.is_new):
            if self._table is None:
                write_deltalake(
                    self._place.url, source.reader, mode="error", storage_options=options, commit_properties=commit
                )
            else:
                write_deltalake(
                    self._table, source.reader, mode="overwrite", schema_mode="overwrite", commit_properties=commit
                )

    def merge(self, rows: Iterable[pa.RecordBatch], columns: pa.Schema, keys: Iterable[str], place: Place) -> Merged:
        """Apply the newest change of each key. `rows` have `columns`, and `DELETED`. Raises as `write`."""
        assert self._table is not None, "only what was exported is merged into"
        values = {name: f"s.{_quoted(name)}" for name in columns.names}
        source = _Source(rows, columns.append(pa.field(DELETED, pa.bool_())))
        with _raising(source, self._place, is_new=False):
            found = (
                self._table.merge(
                    source.reader,
                    " AND ".join(f"t.{_quoted(key)} = s.{_quoted(key)}" for key in keys),
                    source_alias="s",
                    target_alias="t",
                    commit_properties=self._commit(place),
                )
                .when_matched_delete(f"s.{DELETED}")
                .when_matched_update({_quoted(name): value for name, value in values.items()})
                .when_not_matched_insert(
                    {_quoted(name): value for name, value in values.items()}, predicate=f"NOT s.{DELETED}"
                )
                .execute()
            )
        return Merged(*(found[f"num_target_rows_{kind}"] for kind in Merged._fields))

    def _commit(self, place: Place) -> "deltalake.CommitProperties":
        """What every commit carries. No retries: delta-rs would add our rows to another's, which may be the same."""
        from deltalake import CommitProperties, Transaction

        return CommitProperties(
            custom_metadata={
                _APPLICATION: self._place.application,
                "statelog.position": str(place.position),
                _PLACE: json.dumps(place.to_json()),
            },
            app_transactions=[Transaction(self._place.application, place.position)],
            max_commit_retries=0,
        )


class _Source:
    """Batches as a reader for delta-rs, which remembers what they raised: delta-rs would hand on text."""

    def __init__(self, rows: Iterable[pa.RecordBatch], columns: pa.Schema) -> None:
        self.failure: BaseException | None = None
        self.reader = pa.RecordBatchReader.from_batches(columns, self._remembering(rows))

    def _remembering(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from rows
        except BaseException as error:
            self.failure = error
            raise


@contextmanager
def _raising(source: _Source, place: DeltaPlace, *, is_new: bool) -> Generator[None]:
    """Around the use of a source's reader: raises what its batches raised, TableMoved, StoreUnavailable.

    `is_new`: the table was not there, so if it is now, somebody else made it.
    """
    from deltalake.exceptions import CommitFailedError, DeltaError

    try:
        yield
    except BaseException as error:
        if source.failure is not None:
            raise source.failure from None
        if isinstance(error, CommitFailedError) or (is_new and not DeltaExport(place).is_new):
            raise TableMoved from error
        if isinstance(error, (DeltaError, OSError)):
            raise _unavailable(place, "be written", error) from error
        raise


def _unavailable(place: DeltaPlace, what: str, error: Exception) -> StoreUnavailable:
    return StoreUnavailable(
        f"the table cannot {what}: {error}",
        url=place.shown,
        hint="Nothing of this export counts; export again once the table's store answers",
    )


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
