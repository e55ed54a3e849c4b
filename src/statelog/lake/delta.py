"""`export`: bring a Delta Lake table to the state of a log. delta-rs writes it.

The first call writes the state of the log. Every later call merges the changes behind the table's position, the newest
change of each key. A call that dies anywhere can be repeated; nothing is applied twice.

Invariants:
- Every version of the table that an export made is the state of the log at one position. Rows and position change in
  one Delta commit. The position is the version of an application transaction, Delta's mechanism for idempotent
  writers, under an id that names the log and its ledger topic.
- A commit applies to the table as the export opened it. It fails if anybody committed meanwhile, and delta-rs does not
  rebase it. So two exporters never apply the same changes twice.
- All rows are written again, with a log line, if the log was truncated past the table's position, or the table's
  history no longer shows the last writer. So they are after a change of the value schema, because unchanged rows would
  lack the defaults of new fields.
- A table that holds anything else, or whose rows somebody else changed since, is refused without `replace`: its
  position says nothing about these rows. A source that fails leaves the table unchanged.
"""

import json
import logging
import os
import re
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from statelog.errors import (
    AlreadyExists,
    AnchorMismatch,
    BeyondEnd,
    ConfigError,
    NotFound,
    OffsetGone,
    StoreUnavailable,
)
from statelog.log import Log
from statelog.log.log import check_log
from statelog.reading import AtPosition, Plan, plan_changes
from statelog.recovery.changes import newest_changes
from statelog.recovery.recover import recover
from statelog.recovery.settings import RecoverySettings
from statelog.schemas.changes.changes import DELETE
from statelog.schemas.descriptor import HashRule
from statelog.schemas.ledger.place import ORIGIN, Place
from statelog.schemas.names import check_kind, settings_or
from statelog.schemas.values.schema import BATCH_ROWS, ValueSchema, state_batches, state_schema
from statelog.store.url import mask_url

if TYPE_CHECKING:
    import deltalake

_LOG = logging.getLogger("statelog.lake")
_ATTEMPTS = 5
_DELETED = "statelog-deleted"
"""The column of a merge's source that marks deleted keys. No field of a value can have its name."""
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
"""Operations that others may run on the table between two exports: they change no row."""
_SCHEME = re.compile(r"(file(?=:)|[a-z][a-z0-9+.-]+(?=:/))", re.IGNORECASE)
_FILE_URL = re.compile(r"file:(?://(?:localhost)?(?=/)|(?!//))/+([^?#]*)", re.IGNORECASE)
_BARRED = re.compile(r"[\x00-\x1f\x7f\\\[\]|^#?\ud800-\udfff]|%[0-9a-f]{2}", re.IGNORECASE)
"""Parts of local paths that make delta-rs panic, use another path in some calls, or show no history of the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The result of `export`: the table moved from the state at `previous_position` to that at `position`.

    `previous_position` is None if the table is new or was replaced. If `is_rewritten`, all rows were written, and
    `inserted` counts them.
    """

    position: int
    previous_position: int | None
    is_rewritten: bool
    inserted: int = 0
    updated: int = 0
    deleted: int = 0


class Overtaken(Exception):
    """Somebody else committed to the table since the export opened it."""


def export(
    log: Log,
    table: str | os.PathLike[str],
    *,
    include_key_group: bool = False,
    include_due: bool = False,
    replace: bool = False,
    storage_options: Mapping[str, str] | None = None,
    settings: RecoverySettings | None = None,
) -> Exported:
    """Bring the Delta Lake table at the URL or path `table` to the newest state of the log. Needs `statelog[delta]`.

        >>> export(log, "/tmp/statelog/lake/example", replace=True).inserted
        2

    The columns are those of `spark.read.format("statelog")`, with `due` if it is included: the time from which a row
    is expired, or null. `storage_options` are delta-rs's, for object stores. `replace` overwrites the table, whatever
    it holds. statelog's memory is bounded as in `Recovery.to_parquet`; delta-rs merges in this process, and spills by
    its own rules.

    Raises AlreadyExists for a table that is no export of this log or that others changed since. Raises BeyondEnd or
    AnchorMismatch if the log lost changes that the table has. Raises ConfigError also for times of day, for which Delta
    Lake has no type, and for columns whose names differ only in case. Raises StoreUnavailable, Damaged, Unavailable.
    """
    check_log(log)
    check_kind("table", table, str, os.PathLike, example='"/tables/visits", or the URL of a table')
    check_kind("replace", replace, bool, example="True to overwrite the table, or False")
    check_kind("include_key_group", include_key_group, bool, example="True for a column of its own, or False")
    check_kind("include_due", include_due, bool, example="True for a column of its own, or False")
    chosen = settings_or(settings, RecoverySettings(holder="export"))
    storage_options = storage_options or {}
    check_kind("storage_options", storage_options, Mapping, example="a dict of text")
    for name, value in storage_options.items():
        check_kind(f"storage_options[{name!r}]", value, str, example="text")
    url = _table_url(os.fspath(table))
    if find_spec("deltalake") is None:
        hint = "Install the extra: pip install 'statelog[delta]'"
        raise ConfigError("Delta Lake needs the package deltalake", hint=hint)
    job = _Export(log, chosen, include_key_group=include_key_group, include_due=include_due)
    for _ in range(_ATTEMPTS):
        try:
            with _typed_panics(url):
                return job.run(DeltaTarget(log, url, storage_options), replace=replace)
        except (BeyondEnd, AnchorMismatch) as error:
            more = "" if replace else ". If the table has changes that were accepted as lost, pass replace=True"
            raise error.restated(hint=error.hint + more) from error
        except Overtaken as other:
            _LOG.warning("%s: %s; the export starts again", mask_url(url), other)
    raise StoreUnavailable(
        "other writers keep committing to the table",
        url=mask_url(url),
        hint="Run one export at a time, and maintain the table between exports",
    )


def _table_url(table: str) -> str:
    """Return the URL for all calls of delta-rs: absolute and percent-encoded for a local table, else as given.

    Raises ConfigError for an invalid path, or a local path that delta-rs cannot use.
    """
    scheme, named = _SCHEME.match(table), _FILE_URL.fullmatch(table)
    if scheme and scheme[1].lower() != "file":
        return table
    if not table or (scheme and not named):
        hint = "Give a path, or file:///absolute/path"
        raise ConfigError(f"the table {table!r} is neither a path nor a file URL", hint=hint)
    path = str(Path(table).expanduser()) if table.startswith("~/") else table
    path = "/" + unquote(named[1], errors="surrogateescape") if named else path
    barred = _BARRED.search(path) or _BARRED.search(path := os.path.realpath(path))
    if barred is not None:
        hint = "Name a path without [ ] | ^ # ?, backslashes, control characters, and % before two hexadecimal digits"
        raise ConfigError(f"delta-rs cannot use a path with {barred[0]!r}", hint=hint, table=ascii(path))
    return Path(path).as_uri()


@contextmanager
def _typed_panics(url: str) -> Generator[None]:
    """Raise StoreUnavailable if delta-rs panics: its PanicException is a BaseException, which callers do not catch."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        hint = "Export again: nothing is applied twice. If it fails again, use another path or version of deltalake"
        raise StoreUnavailable(f"delta-rs panicked: {error}", url=mask_url(url), hint=hint) from error


@dataclass(frozen=True, slots=True)
class _Export:
    log: Log
    settings: RecoverySettings
    include_key_group: bool
    include_due: bool

    def run(self, target: "DeltaTarget", *, replace: bool) -> Exported:
        """Try the export once. Raises Overtaken if somebody else committed to the table meanwhile."""
        is_known = not replace and target.check_own()
        if target.position is None or replace:
            why = "the table is new" if target.is_new else "`replace` was given"
        elif not is_known:
            why = "the table's history no longer reaches back to the last export"
        else:
            try:
                plan = plan_changes(self.log, AtPosition(target.position), seen=[target.seen])
                columns = self._columns(self.log.value_schemas.get(plan.value_schema_id or 0))
                if target.has_columns(columns):
                    return self._merge(target, target.position, plan, columns)
                why = "the columns of the log changed"
            except (NotFound, OffsetGone) as error:
                why = f"the log was truncated past the table's position: {error.message}"
        return self._write(target, why)

    def _write(self, target: "DeltaTarget", why: str) -> Exported:
        """Write the whole state."""
        _LOG.info("%s: writing all rows: %s", target.shown, why)
        with recover(self.log, at_least=target.seen, settings=self.settings) as recovery:
            place, columns = recovery.plan.place, self._columns(recovery.value_schema)
            with recovery.stream(due=self.include_due) as stream:
                rows = (batch for portion in stream for batch in state_batches(portion.changes, columns))
                written = target.write(rows, columns, place)
        return Exported(position=place.position, previous_position=target.position, is_rewritten=True, inserted=written)

    def _merge(self, target: "DeltaTarget", previous: int, plan: Plan, columns: pa.Schema) -> Exported:
        """Merge the changes behind the table's position."""
        counts: dict[str, int] = {}
        if plan.position > previous:
            keys = ["key", "key_group"] if self._names_key_groups else ["key"]
            with closing(newest_changes(self.log, plan, due=self.include_due, settings=self.settings)) as tables:
                counts = target.merge(_merge_rows(tables, columns), columns, keys, plan.place)
        return Exported(position=plan.position, previous_position=previous, is_rewritten=False, **counts)

    @property
    def _names_key_groups(self) -> bool:
        """True if callers choose key groups, so that a key is unique only within its group."""
        return self.log.descriptor.hash_rule is HashRule.CALLER

    def _columns(self, value_schema: ValueSchema) -> pa.Schema:
        found = state_schema(
            self.log.descriptor,
            value_schema,
            include_key_group=self.include_key_group or self._names_key_groups,
            include_due=self.include_due,
        )
        for field in found:
            if "time64[" in str(field.type):
                raise ConfigError(
                    f"Delta Lake has no type for the times of day in column {field.name}",
                    given=str(field.type),
                    hint="Write the table with Spark, from spark.read.format('statelog') with a cast to text",
                )
        for one, other in _alike(found):
            raise ConfigError(
                f"Delta Lake cannot tell the columns {one} and {other} apart",
                hint="Write the table with Spark, from spark.read.format('statelog') with other names",
            )
        return found


def _alike(fields: Iterable[pa.Field]) -> Iterator[tuple[str, str]]:
    """Yield pairs of sibling names, at any depth, that differ only in case."""
    seen: dict[str, str] = {}
    for field in fields:
        same = seen.setdefault(field.name.lower(), field.name)
        if same != field.name:
            yield same, field.name
        parts = cast("pa.StructType", field.type)  # Or a list, or a map.
        yield from _alike(parts.field(place) for place in range(parts.num_fields))


def _merge_rows(tables: Iterable[pa.Table], columns: pa.Schema) -> Generator[pa.RecordBatch]:
    """Yield the newest changes as the source of a merge: the table's columns, and whether the key was deleted."""
    wanted = columns.append(pa.field(_DELETED, pa.bool_()))
    for table in tables:
        pieces = table.to_batches(max_chunksize=BATCH_ROWS)
        for piece, batch in zip(pieces, state_batches(table, columns), strict=True):
            deleted = pc.equal(piece.column("op"), DELETE)
            yield pa.RecordBatch.from_arrays([*batch.columns, deleted], schema=wanted)


class DeltaTarget:
    """The current table, and the export's part of it. Decides nothing, and never reads the log.

    `position`: the position of its state; None if the table does not exist or has no export.
    `seen`: that position with the ledger record below it, once `check_own` has found it. Raises StoreUnavailable.
    """

    def __init__(self, log: Log, url: str, storage_options: Mapping[str, str]) -> None:
        self._url, self._storage_options = url, dict(storage_options) or None
        self._application = f"statelog/{log.name}/{log.descriptor.identity.ledger_topic_id}"
        self.shown = mask_url(url)
        self._table, self.position = self._opened()
        self.seen = ORIGIN

    def _opened(self) -> "tuple[deltalake.DeltaTable | None, int | None]":
        """Open the table, and read its position."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        try:
            table = DeltaTable(self._url, storage_options=self._storage_options)
            return table, table.transaction_version(self._application)
        except TableNotFoundError:
            return None, None
        except (DeltaError, OSError) as error:
            raise self._unavailable("be opened", error) from error

    @property
    def is_new(self) -> bool:
        """True if there was no table."""
        return self._table is None

    def has_columns(self, columns: pa.Schema) -> bool:
        """Tell whether the table has exactly these columns, of these types."""
        from deltalake import Schema

        return self._table is not None and self._table.schema() == Schema.from_arrow(columns)

    def check_own(self) -> bool:
        """Tell whether the table's history reaches back to the last export, which proves that the rows are its own.

        Raises AlreadyExists if the table holds anything else or somebody changed its rows since, StoreUnavailable.
        """
        if self._table is None:
            return True
        if self.position is None:
            raise self._refused("the table is not an export of this log with its present topics")
        self.seen = Place(self.position)
        for commit in self._history(self._table):
            if commit.get(_APPLICATION) == self._application:
                self.seen = Place.from_json(json.loads(str(commit.get(_PLACE, f"[{self.position}]"))))
                return True
            if commit.get("operation") not in _KEEPING_ROWS:
                raise self._refused(f"somebody else changed the table since the last export: {commit.get('operation')}")
        return False

    def _history(self, table: "deltalake.DeltaTable") -> Iterator[Mapping[str, object]]:
        """Yield the commits to the table, newest first. The newest is read alone, because it is often enough."""
        from deltalake.exceptions import DeltaError

        try:
            yield from table.history(1)
            yield from table.history()
        except (DeltaError, OSError) as error:
            raise self._unavailable("be read", error) from error

    def write(self, rows: Iterable[pa.RecordBatch], columns: pa.Schema, place: Place) -> int:
        """Make the table, or replace all its rows and columns. Returns the number of rows.

        Raises Overtaken, StoreUnavailable.
        """
        from deltalake import write_deltalake

        source, commit = _Source(rows, columns), self._commit(place)
        with self._raising(source):
            write_deltalake(
                self._table or self._url,
                source.reader,
                mode="error" if self.is_new else "overwrite",
                schema_mode=None if self.is_new else "overwrite",
                storage_options=self._storage_options,
                commit_properties=commit,
            )
        return source.rows

    def merge(
        self, rows: Iterable[pa.RecordBatch], columns: pa.Schema, keys: Iterable[str], place: Place
    ) -> dict[str, int]:
        """Apply the newest change of each key. Returns how many rows were inserted, updated and deleted.

        `rows` have `columns`, and whether the key was deleted. Raises Overtaken, StoreUnavailable.
        """
        assert self._table is not None, "a merge needs an existing table"
        values = {_quoted(name): f"s.{_quoted(name)}" for name in columns.names}
        source = _Source(rows, columns.append(pa.field(_DELETED, pa.bool_())))
        with self._raising(source):
            found = (
                self._table.merge(
                    source.reader,
                    " AND ".join(f"t.{_quoted(key)} = s.{_quoted(key)}" for key in keys),
                    source_alias="s",
                    target_alias="t",
                    commit_properties=self._commit(place),
                )
                .when_matched_delete(f"s.{_quoted(_DELETED)}")
                .when_matched_update(values)
                .when_not_matched_insert(values, predicate=f"NOT s.{_quoted(_DELETED)}")
                .execute()
            )
        return {kind: found[f"num_target_rows_{kind}"] for kind in ("inserted", "updated", "deleted")}

    def _commit(self, place: Place) -> "deltalake.CommitProperties":
        """Return the properties of a commit. A retry of delta-rs could add rows that another commit already added."""
        from deltalake import CommitProperties, Transaction

        return CommitProperties(
            custom_metadata={
                _APPLICATION: self._application,
                "statelog.position": str(place.position),
                _PLACE: json.dumps(place.to_json()),
            },
            app_transactions=[Transaction(self._application, place.position)],
            max_commit_retries=0,
        )

    @contextmanager
    def _raising(self, source: "_Source") -> Generator[None]:
        """Translate errors in the block: raise the error of the source's batches, Overtaken, or StoreUnavailable."""
        from deltalake.exceptions import CommitFailedError, DeltaError

        try:
            yield
        except Exception as error:  # Ctrl-C passes unchanged.
            if source.failure is not None:
                raise source.failure from None
            # If a new table exists by now, somebody else made it.
            if isinstance(error, CommitFailedError) or (self.is_new and self._opened()[0] is not None):
                raise Overtaken("another writer committed to the table") from error
            if isinstance(error, (DeltaError, OSError)):
                raise self._unavailable("be written", error) from error
            raise

    def _refused(self, why: str) -> AlreadyExists:
        return AlreadyExists(why, url=self.shown, hint="Name another table, or overwrite this one with replace=True")

    def _unavailable(self, what: str, error: Exception) -> StoreUnavailable:
        return StoreUnavailable(
            f"the table cannot {what}: {error}",
            url=self.shown,
            hint="Export again once the table's store answers: nothing is applied twice",
        )


class _Source:
    """Batches as a reader for delta-rs. Counts their rows, and stores their error: delta-rs passes on only its text."""

    def __init__(self, batches: Iterable[pa.RecordBatch], columns: pa.Schema) -> None:
        self.failure: BaseException | None = None
        self.rows = 0
        self.reader = pa.RecordBatchReader.from_batches(columns, self._passing(batches))

    def _passing(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            for batch in batches:
                self.rows += batch.num_rows
                yield batch
        except BaseException as error:
            self.failure = error
            raise


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
