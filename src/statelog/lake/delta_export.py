"""`export`: keeps a Delta Lake table equal to a log, for those who read tables and not logs.

The first call writes the state of the log, every later one merges the changes behind the position that the table
holds: the newest change of each key. Rows and position change in one commit of the table, so a call that dies anywhere
is simply made again; nothing is applied twice.

Invariants:
- The table is the state of the log at one position, at every version of it that an export made.
- If the log was truncated past the table's position, or the value schema evolved, the table is written anew, with a
  log line: rows that did not change would lack the new fields' defaults. So it is if its history hides who wrote last.
- A table that holds anything else, or that somebody else changed since, is refused, unless the caller says `replace`.
"""

import dataclasses
import logging
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from statelog.errors import ConfigError, NotFound, OffsetGone, StoreUnavailable
from statelog.lake.delta_table import DELETED, DeltaExport, DeltaPlace, Merged, TableMoved
from statelog.reading.changes import plan_changes
from statelog.reading.plan import AtPosition, Plan
from statelog.recovery.changes import newest_changes
from statelog.recovery.recover import recover
from statelog.recovery.settings import RecoverySettings
from statelog.schemas.changes.changes import DELETE
from statelog.schemas.descriptor import HashRule
from statelog.schemas.values.schema import ValueSchema, state_batches, state_schema
from statelog.storage.log.log import Log

__all__ = ["Exported", "export"]

_LOG = logging.getLogger("statelog.lake")
_ATTEMPTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What a call of `export` did: the table is now the state at `position`, and was that at `previous_position`.

    `previous_position` is None if the table is new or was replaced. `is_rewritten` tells whether all rows were written;
    then `inserted` counts them.
    """

    position: int
    previous_position: int | None
    is_rewritten: bool
    inserted: int
    updated: int
    deleted: int


def export(
    log: Log,
    table: str,
    *,
    include_key_group: bool = False,
    replace: bool = False,
    storage_options: Mapping[str, str] | None = None,
    settings: RecoverySettings | None = None,
) -> Exported:
    """Bring the Delta Lake table at the URL or path `table` to the newest state of the log. Needs `statelog[delta]`.

        >>> export(log, "/tmp/statelog/lake/example", replace=True).inserted
        2

    The columns are those of `spark.read.format("statelog")`. `storage_options` are delta-rs's, for object stores.
    `replace` writes the table anew, whatever it holds. Memory is bounded as in `Recovery.to_parquet`, on our side;
    delta-rs merges in this process and spills as it sees fit.

    Raises AlreadyExists for a table that is no export of this log, or that others changed since, BeyondEnd if the log
    ends below the table's position, ConfigError (values with times of day, too: Delta Lake has no such type),
    StoreUnavailable, Damaged, Unavailable.
    """
    place = DeltaPlace(
        url=table,
        application=f"statelog/{log.name}/{log.descriptor.identity.ledger_topic_id}",
        storage_options=tuple(sorted((storage_options or {}).items())),
    )
    job = _Export(log, place, include_key_group, settings or RecoverySettings(holder="export"))
    for _ in range(_ATTEMPTS):
        try:
            return job.run(replace=replace)
        except TableMoved:
            _LOG.warning("%s: another writer committed to the table; the export starts again", place.shown)
    raise StoreUnavailable(
        "other writers keep committing to the table",
        url=place.shown,
        hint="Run one export at a time, and maintenance of the table between two of them",
    )


@dataclass(frozen=True, slots=True)
class _Export:
    log: Log
    place: DeltaPlace
    include_key_group: bool
    settings: RecoverySettings

    def run(self, *, replace: bool) -> Exported:
        """One try. Raises TableMoved if somebody else committed to the table meanwhile."""
        table = DeltaExport(self.place)
        is_known = not replace and table.check_own()
        if table.position is None or replace:
            return self._write(table, "the table is new" if table.is_new else "it is to be replaced")
        if not is_known:
            return self._write(table, "its history was cleaned up, back to after the last export")
        value_schema = self.log.value_schemas.newest()
        if not table.has_columns(self._columns(value_schema)):
            return self._write(table, "the columns of the log changed")
        try:
            plan = plan_changes(
                self.log, AtPosition(table.position), value_schema_id=value_schema.id, seen=[table.seen]
            )
            return self._merge(table, table.position, plan, value_schema)
        except (NotFound, OffsetGone) as error:
            return self._write(table, f"its position was truncated: {error.message}")

    def _write(self, table: DeltaExport, why: str) -> Exported:
        """The whole state."""
        _LOG.info("%s: all rows are written: %s", self.place.shown, why)
        value_schema = self.log.value_schemas.newest()
        count = _Count()
        settings = _of_schema(self.settings, value_schema)
        with recover(self.log, at_least=table.seen, settings=settings) as recovery:
            place, columns = recovery.plan.place, self._columns(value_schema)
            with recovery.stream() as stream:
                rows = count.counting(batch for portion in stream for batch in state_batches(portion.changes, columns))
                table.write(rows, columns, place)
        return Exported(
            position=place.position,
            previous_position=table.position,
            is_rewritten=True,
            inserted=count.rows,
            updated=0,
            deleted=0,
        )

    def _merge(self, table: DeltaExport, previous: int, plan: Plan, value_schema: ValueSchema) -> Exported:
        """The changes behind the table's position."""
        merged = Merged(0, 0, 0)
        if plan.position > previous:
            columns = self._columns(value_schema)
            keys = ["key", "key_group"] if self._names_key_groups else ["key"]
            with closing(newest_changes(self.log, plan, settings=self.settings)) as tables:
                merged = table.merge(_merge_rows(tables, columns), columns, keys, plan.place)
        return Exported(
            position=plan.position,
            previous_position=previous,
            is_rewritten=False,
            **merged._asdict(),
        )

    @property
    def _names_key_groups(self) -> bool:
        """Whether a key is only unique within its key group, which callers choose."""
        return self.log.descriptor.hash_rule is HashRule.CALLER

    def _columns(self, value_schema: ValueSchema) -> pa.Schema:
        with_group = self.include_key_group or self._names_key_groups
        found = state_schema(self.log.descriptor, value_schema, include_key_group=with_group)
        for field in found:
            if "time64[" in str(field.type):
                raise ConfigError(
                    f"Delta Lake has no type for the times of day in column {field.name}",
                    given=str(field.type),
                    hint="Write the table yourself, from spark.read.format('statelog') with a cast to text",
                )
        return found


class _Count:
    """Counts the rows that pass."""

    def __init__(self) -> None:
        self.rows = 0

    def counting(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same batches."""
        for batch in batches:
            self.rows += batch.num_rows
            yield batch


def _merge_rows(tables: Iterable[pa.Table], columns: pa.Schema) -> Generator[pa.RecordBatch]:
    """Newest changes as the source of a merge: the table's columns, and whether the key is gone."""
    wanted = columns.append(pa.field(DELETED, pa.bool_()))
    for table in tables:
        for piece in table.to_batches():
            gone = pc.equal(piece.column("op"), DELETE)
            start = 0
            for batch in state_batches(pa.Table.from_batches([piece]), columns):
                deleted = gone.slice(start, batch.num_rows)
                start += batch.num_rows
                yield pa.RecordBatch.from_arrays([*batch.columns, deleted], schema=wanted)


def _of_schema(settings: RecoverySettings, value_schema: ValueSchema) -> RecoverySettings:
    """For a state in this value schema, also if the log's evolves meanwhile."""
    return dataclasses.replace(settings, value_schema_id=value_schema.id)
