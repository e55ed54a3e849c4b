"""The row plan: how the rows of a DataFrame become changes. Made at planning, pickled, carried out in every task.

Invariants:
- What can be said of names and types is said at planning, before any task runs.
- Of the rows of a key in a task one is written: the newest, or the only one; `uniqueKeys` declares that.
- A null value deletes only where there is a column `op`, or `nullDeletes`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType

from statelog.errors import ConfigError, InvalidChange
from statelog.schemas.descriptor import Descriptor, HashRule
from statelog.schemas.key_groups import KeyType
from statelog.schemas.values.schema import ValueSchema
from statelog.spark.options.write import WriteOptions
from statelog.spark.rows.names import Names, match_names
from statelog.spark.rows.newest_rows import NewestRows
from statelog.spark.rows.types import advised, check_types
from statelog.spark.rows.unique_keys import UniqueKeys

__all__ = ["ChangeSink", "RowPlan", "plan_rows", "write_rows"]


class ChangeSink(Protocol):
    """What rows are written to: a `TaskWriter`."""

    def append_batch(self, table: pa.RecordBatch) -> None:
        """Append changes in row order."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlan:
    """How rows become changes. `advice` is what to write for values that do not fit, by the path of their field."""

    names: Names
    advice: tuple[tuple[str, str], ...]
    key_type: KeyType
    is_grouped: bool
    unique_keys: bool
    null_deletes: bool


def plan_rows(schema: StructType, options: WriteOptions, descriptor: Descriptor, value: ValueSchema) -> RowPlan:
    """The plan for a DataFrame with these columns. Raises InvalidChange, ConfigError for what can never be written."""
    names = match_names(schema.fieldNames(), descriptor, value, options.sequence_by)
    if options.null_deletes and ("op" in names.columns or "value" not in names.columns):
        raise ConfigError(
            "nullDeletes is for a column value without a column op",
            hint="Leave it out: with a column op, that says what is deleted",
            columns=", ".join(names.given),
        )
    return RowPlan(
        names=names,
        advice=tuple(check_types(names, schema, descriptor, value).items()),
        key_type=descriptor.key_type,
        is_grouped=descriptor.hash_rule is HashRule.CALLER,
        unique_keys=options.unique_keys,
        null_deletes=options.null_deletes,
    )


def write_rows(
    batches: Iterable[pa.RecordBatch], plan: RowPlan, writer: ChangeSink, *, is_case_sensitive: bool
) -> None:
    """Write the rows of a task. Raises InvalidChange, KeyGroupMismatch, ValueTooLarge, and as the writer does."""
    if is_case_sensitive and not plan.names.is_exact:
        raise InvalidChange(
            "column names differ in case from those of the log, and spark.sql.caseSensitive is set",
            hint="Rename them",
            columns=", ".join(plan.names.given),
            expected=", ".join(plan.names.columns),
        )
    try:
        for changes in _changes(batches, plan):
            writer.append_batch(changes)
    except InvalidChange as error:
        raise advised(error, dict(plan.advice)) from error


def _changes(batches: Iterable[pa.RecordBatch], plan: RowPlan) -> Iterator[pa.RecordBatch]:
    """The rows as the log has them, one for each key. What is refused may be refused only after the last of them."""
    if plan.names.sequence is not None:
        newest = NewestRows(plan.names.sequence)
        for batch in batches:
            newest.add(_renamed(batch, plan))
        found = newest.take()
        if found is not None:
            kept = [name for name in plan.names.columns if not plan.names.is_extra or name != plan.names.sequence]
            yield found.select(kept)
        return
    if plan.unique_keys:
        for batch in batches:
            yield _renamed(batch, plan)
        return
    with UniqueKeys() as keys:
        for batch in batches:
            rows = _renamed(batch, plan)
            keys.add(rows.column("key"), _key_groups(rows) if plan.is_grouped else None)
            yield rows
        keys.check()


def _renamed(batch: pa.RecordBatch, plan: RowPlan) -> pa.RecordBatch:
    """Under the log's names, with keys of its type, and checked for nulls."""
    rows = batch.rename_columns(list(plan.names.columns))
    place = plan.names.columns.index("key")
    keys = rows.column(place)
    if keys.null_count:
        raise InvalidChange("a key is null", hint="Every change needs a key", nulls=keys.null_count)
    if keys.type != plan.key_type.arrow_type:
        rows = rows.set_column(place, "key", _cast(keys, plan.key_type))
    if not plan.null_deletes and "op" not in plan.names.columns and "value" in plan.names.columns:
        nulls = rows.column("value").null_count
        if nulls:
            raise InvalidChange(
                "a value is null, and there is no column op",
                hint="Add a column op with put or delete, set nullDeletes if a null deletes, or leave such rows out",
                column="value",
                nulls=nulls,
            )
    return rows


def _cast(keys: pa.Array, key_type: KeyType) -> pa.Array:
    try:
        return keys.cast(key_type.arrow_type)
    except pa.ArrowException as error:
        raise InvalidChange(f"column key cannot be {key_type.value}: {error}", column="key") from error


def _key_groups(rows: pa.RecordBatch) -> "np.ndarray[tuple[int], np.dtype[np.uint16]]":
    return rows.column("key_group").fill_null(0).to_numpy(zero_copy_only=False).astype(np.uint16)
