"""`due`: the time from which a row is expired, as an optional column of changes. Pure.

Changes have the column only where a row has a due; other changes have no such column, in memory, in chunks and in runs.
Where both meet they are joined by `concat_changes`, which fills the missing column with nulls. So whoever does not use
dues pays nothing, in bytes or in time.

Only the owner of a table compares a due with a clock. For everybody else it is a column like any other.

Invariants:
- The column is the last one, in milliseconds since 1970 in UTC. A delete has no due.
- Nothing here reads a clock.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

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
_UNITS = {"s": (1000, 1), "ms": (1, 1), "us": (1, 1000), "ns": (1, 1_000_000)}
"""The milliseconds of each, and how many make one, by unit of Arrow."""
_INEXACT_MS = 0.0005
"""A float of seconds may be so much less than the milliseconds that it was made of."""
_OUTSIDE = "it is outside of the years 1970 to 9999"


def due_ms_of(due: object) -> int:
    """Return a time as milliseconds since 1970, rounded up so that nothing expires before its time.

    `due`: seconds since 1970, or a datetime with a time zone. Raises InvalidChange.
    """
    seconds = due if type(due) is float else _seconds(due)
    exact_ms = seconds * 1000
    try:
        due_ms = int(exact_ms + 0.5)
    except (OverflowError, ValueError):  # It is infinite, or not a number.
        raise _refused(due, _OUTSIDE) from None
    if exact_ms - due_ms > _INEXACT_MS:
        due_ms += 1
    if not 0 <= due_ms <= DUE_MS_MAX or exact_ms < 0:
        raise _refused(due, _OUTSIDE)
    return due_ms


def _seconds(due: object) -> float:
    if isinstance(due, datetime):
        if due.utcoffset() is None:
            raise _refused(due, "it has no time zone")
        return due.timestamp()
    if isinstance(due, bool) or not isinstance(due, int | float):
        raise _refused(due, "it is no time")
    return due


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


def aligned(batches: Sequence[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
    """Return batches of changes, all with the column if one has it: then those without get one of nulls."""
    if len({batch.num_columns for batch in batches}) < 2:
        return batches
    return [shown(batch, due=True) for batch in batches]


def only_used(changes: Changes) -> Changes:
    """Return changes without the column if no row has a due."""
    if not has_due(changes) or changes.column(_COLUMNS).null_count < changes.num_rows:
        return changes
    return changes.select(range(_COLUMNS))


# ---- the column


def due_column(due_ms: NDArray[np.int64], is_null: NDArray[np.bool_]) -> pa.Array:
    """Make the column. The numbers of null rows are 0."""
    return column_of(due_ms, is_null if is_null.any() else None).view(DUE.type)


def dues_fit(ops: NDArray[np.uint8], dues: pa.Array) -> bool:
    """Return whether only puts (op 0) have a due, and each is within the years 1970 to 9999."""
    due_ms = numbers_or_zeros(dues.view(pa.int64()))
    is_wrong = (ops != 0) | (due_ms < 0) | (due_ms > DUE_MS_MAX)
    return not bool((is_wrong & numbers_of(dues.is_valid())).any())


def due_numbers(column: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return a caller's column as milliseconds, rounded up, and whether each row is null; then the number is 0.

    Raises InvalidChange unless it has times with a zone, of any unit, or only nulls.
    """
    if isinstance(column.type, pa.DictionaryType):
        column = column.cast(column.type.value_type)
    kind = column.type
    if pa.types.is_null(kind):
        return np.zeros(len(column), np.int64), np.ones(len(column), np.bool_)
    if not isinstance(kind, pa.TimestampType) or kind.tz is None:
        raise InvalidChange(
            f"column `due` is {kind}, and has no times with a time zone",
            hint="Cast it to Arrow's timestamp[ms, UTC]; a row without a due has null there",
        )
    each_ms, parts = _UNITS[kind.unit]
    numbers = numbers_or_zeros(column.view(pa.int64()))
    is_wrong = (numbers < 0) | (numbers // parts > DUE_MS_MAX // each_ms)
    if is_wrong.any():
        row = int(np.flatnonzero(is_wrong)[0])
        raise _refused(f"{numbers[row]} {kind.unit}", _OUTSIDE).restated(row=row)
    due_ms = numbers * each_ms if each_ms > 1 else -(-numbers // parts)
    return cast("NDArray[np.int64]", due_ms), numbers_of(column.is_null())
