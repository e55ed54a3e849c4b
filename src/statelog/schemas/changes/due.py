"""`due`: the time from which a row is expired, as an optional column of changes. Pure.

Changes have the column only where a row has a due; other changes have no such column, in memory, in chunks and in runs.
Where both meet they are joined by `concat_changes`, which fills the missing column with nulls. So whoever does not use
dues pays nothing, in bytes or in time.

Only the owner of a table compares a due with a clock. For everybody else it is a column like any other.

Invariants:
- The column is the last one, in milliseconds since 1970 in UTC. A delete has no due.
- Nothing here reads a clock.
"""

import math
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from statelog.errors import InvalidChange
from statelog.schemas.arrays import column_of, numbers_of, numbers_or_zeros, whole_column
from statelog.schemas.names import check_kind

When: TypeAlias = float | datetime
"""A time: seconds since 1970, or a datetime with a time zone."""
DUE = pa.field("due", pa.timestamp("ms", tz="UTC"))
DUE_MS_MAX = 253_402_300_799_999
"""The last millisecond of the year 9999: Python has no later one."""
_COLUMNS = 4
Changes = TypeVar("Changes", pa.Table, pa.RecordBatch)


def due_ms_of(due: object) -> int:
    """Return a time as milliseconds since 1970, rounded up so that nothing expires before its time.

    `due`: seconds since 1970, or a datetime with a time zone. Raises InvalidChange.
    """
    if isinstance(due, datetime):
        if due.utcoffset() is None:
            raise _refused(due, "it has no time zone")
        due = due.timestamp()
    if isinstance(due, bool) or not isinstance(due, int | float):
        raise _refused(due, "it is no time")
    if not math.isfinite(due) or not 0 <= (due_ms := math.ceil(round(due * 1000, 3))) <= DUE_MS_MAX:
        raise _refused(due, "it is outside of the years 1970 to 9999")
    return due_ms


def _refused(due: object, problem: str) -> InvalidChange:
    hint = "Give seconds since 1970, such as `time.time() + 600`, or a datetime with a time zone"
    return InvalidChange(f"the due {due!r:.100} is refused: {problem}", hint=hint)


def has_due(changes: pa.Table | pa.RecordBatch) -> bool:
    """Return whether changes have the column."""
    return changes.num_columns > _COLUMNS


def with_due(schema: pa.Schema) -> pa.Schema:
    """Return a schema of changes with the column."""
    return schema if len(schema) > _COLUMNS else schema.append(DUE)


def without_due(schema: pa.Schema) -> pa.Schema:
    """Return a schema of changes without the column."""
    return pa.schema(list(schema)[:_COLUMNS])


def concat_changes(tables: Sequence[pa.Table]) -> pa.Table:
    """Concatenate tables of changes, at least one, without a copy. One with dues gives all of them the column."""
    if len({table.num_columns for table in tables}) < 2:
        return pa.concat_tables(tables)  # A seventh of the time.
    return pa.concat_tables(tables, promote_options="default")


def dues_of(changes: pa.RecordBatch) -> list[int | None]:
    """Return the dues of changes that have the column, in milliseconds; None for a row without one."""
    found: list[int | None] = changes.column(_COLUMNS).view(pa.int64()).to_pylist()
    return found


def is_due(changes: pa.Table, now_ms: int) -> pa.Array:
    """Return for each row of changes that have the column whether it is due at a time."""
    dues = whole_column(changes.column(_COLUMNS)).view(pa.int64())
    return column_of((numbers_or_zeros(dues) <= now_ms) & numbers_of(dues.is_valid()))


def check_shown(due: object) -> None:
    """Raise ConfigError unless `due`, by which a caller asks for the column, is a bool."""
    check_kind("due", due, bool, example="True for a column of dues, or False")


def shown(changes: Changes, *, due: bool) -> Changes:
    """Return changes with the column, filled with nulls if they have none, or without it. Copies no value."""
    if has_due(changes) is due:
        return changes
    if due:
        return changes.append_column(DUE, pa.nulls(changes.num_rows, DUE.type))
    return changes.select(range(_COLUMNS))


class DueSpan(NamedTuple):
    """The number of rows with a due, and their first and last due in milliseconds; 0 without such a row."""

    rows: int = 0
    first_ms: int = 0
    last_ms: int = 0

    @classmethod
    def of(cls, changes: pa.Table) -> "DueSpan":
        """Return the span of the rows of a table."""
        dues = changes.column(_COLUMNS) if has_due(changes) else None
        if dues is None or dues.null_count == len(dues):
            return cls()
        found: Any = pc.min_max(dues)
        return cls(len(dues) - dues.null_count, found["min"].value, found["max"].value)
