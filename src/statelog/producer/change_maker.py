"""`ChangeMaker`: makes valid changes, as Arrow batches, out of the caller's columns or lists of single changes.

It alone decides what a change of this log may be: names and types of columns, key groups, partitions, sizes. Pure;
holds nothing.

Invariants:
- Its output is valid. Every key has its own key group, in a partition of the writer. A put has a value, a delete none.
  Each change fits in a chunk.
- Other input is refused as a whole, with the reason.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from statelog.errors import InvalidChange, KeyGroupMismatch
from statelog.schemas.arrays import column_of, column_of_rows, numbers_of
from statelog.schemas.changes.changes import DELETE, PUT, change_bytes_max, change_schema, changes_batch, chunk_slices
from statelog.schemas.changes.due import due_column, due_numbers, with_due
from statelog.schemas.changes.few import Dues
from statelog.schemas.descriptor import Descriptor, HashRule
from statelog.schemas.key_groups import KeyType, key_groups_of_partition, partition_of, ranges_text
from statelog.schemas.values.json_text import check_json
from statelog.schemas.values.schema import ValueSchema, columns_of, rows_to_struct, struct_from_columns

Key = bytes | str | int
"""A key, by the key type of the log."""
Value = bytes | Mapping[str, object] | list[Any] | str | float
"""A value: bytes, in a typed log the fields by name, or what JSON has."""

_TEXT_OR_BYTES = ("string", "large_string", "binary", "large_binary", "fixed_size_binary", "null")
_KEY_KINDS: Mapping[KeyType, tuple[str, ...]] = {
    KeyType.BYTES: _TEXT_OR_BYTES,
    KeyType.STRING: _TEXT_OR_BYTES,
    KeyType.LONG: ("int", "uint", "null"),
}
"""The first letters of the Arrow types that a column of keys may have. Null keys are refused elsewhere."""
_OURS = ("key", "op", "key_group")
_DUE = "due"


class ChangeMaker:
    """Makes changes for one writer, which owns the partitions `owned`."""

    def __init__(self, descriptor: Descriptor, value_schema: ValueSchema, owned: Collection[int]) -> None:
        self._descriptor = descriptor
        self._value_schema = value_schema
        self._schema = change_schema(descriptor.key_type, value_schema.arrow_type)
        self._change_bytes_max, self._with_due_bytes_max = (
            change_bytes_max(descriptor.record_bytes_max, schema) for schema in (self._schema, with_due(self._schema))
        )
        self._owned = frozenset(owned)
        self._foreign: NDArray[np.bool_] | None = None
        """By key group, whether another writer owns its partition; None if this one owns all."""
        if len(self._owned) < descriptor.partitions:
            self._foreign = np.ones(descriptor.key_groups, np.bool_)
            for partition in self._owned:
                mine = key_groups_of_partition(partition, descriptor.partitions, descriptor.key_groups)
                self._foreign[mine.start : mine.stop] = False
        self._by_caller = descriptor.hash_rule is HashRule.CALLER
        self._opaque = value_schema.id == 0
        root = value_schema.root
        self._has_due_field = root is not None and any(one.name == _DUE for one in root.fields)

    @property
    def owned(self) -> bytes | None:
        """By key group: 1 if it is the writer's, else 0. None if all are."""
        return None if self._foreign is None else (~self._foreign).tobytes()

    def check_owned(self, key_group: int) -> None:
        """Raise KeyGroupMismatch if the partition of this key group is not the writer's."""
        if self._foreign is not None and self._foreign[key_group]:
            descriptor = self._descriptor
            raise KeyGroupMismatch(
                "a change belongs to a partition that this writer does not own",
                key_group=key_group,
                partition=partition_of(key_group, descriptor.partitions, descriptor.key_groups),
                owned_partitions=ranges_text(self._owned),
            )

    def of_rows(
        self, keys: Sequence[Key], values: Sequence[Value | None], named: Sequence[int], dues: Dues | None = None
    ) -> pa.RecordBatch:
        """Make single changes; a value of None deletes. `named`: their key groups, where the caller names them.

        Raises InvalidChange for a key or a typed value that does not fit, ValueTooLarge, KeyGroupMismatch.
        """
        try:
            key_column = column_of_rows(keys, self._descriptor.key_type.arrow_type)
        except (pa.ArrowException, UnicodeError, OverflowError) as error:
            raise InvalidChange(f"keys do not fit the log's key type: {error}") from error
        if self._opaque:
            column = column_of_rows(values, pa.binary())
        else:
            column = rows_to_struct(cast("Sequence[Mapping[str, object] | None]", values), self._value_schema)
        ops = _deletes(column)
        groups = np.array(named, np.uint16) if self._by_caller else self._descriptor.key_groups_of(key_column)
        return self._made(groups, ops, key_column, column, None if dues is None else _due_column_of(dues))

    def of_batch(self, batch: pa.RecordBatch, default_due_ms: int | None = None) -> pa.RecordBatch:
        """Make the changes of a batch, which has the columns of `Writer.append_batch`.

        `default_due_ms`: the due of puts without one. Raises InvalidChange, ValueTooLarge, KeyGroupMismatch.
        """
        self._check_names(batch.schema.names)
        keys = self._cast_keys(batch.column("key"))
        ops = _ops_of(batch)
        values = self._values_of(batch, ops)
        if ops is None:
            ops = _deletes(values)
        return self._made(self._batch_groups(batch, keys), ops, keys, values, self._dues_of(batch, ops, default_due_ms))

    def _made(
        self,
        groups: NDArray[np.uint16],
        ops: NDArray[np.uint8],
        keys: pa.Array,
        values: pa.Array,
        dues: pa.Array | None,
    ) -> pa.RecordBatch:
        if self._foreign is not None:
            foreign = groups[self._foreign[groups]]
            if len(foreign):
                self.check_owned(int(foreign[0]))
        changes = changes_batch(self._schema, groups, ops, keys, values, dues)
        most_bytes = self._change_bytes_max if dues is None else self._with_due_bytes_max
        chunk_slices(changes, most_bytes, most_bytes)  # Raises ValueTooLarge for a change that no chunk holds.
        return changes

    # ---- the columns of a batch

    def _check_names(self, names: Sequence[str]) -> None:
        """Refuse columns that would be ignored: a misspelt `op` would turn every delete into a put."""
        if len(set(names)) != len(names):
            raise InvalidChange("a batch has two columns of the same name", columns=", ".join(names))
        if "key" not in names:
            raise InvalidChange("a batch needs a `key` column", columns=", ".join(names))
        if self._opaque and "value" not in names:
            raise InvalidChange("a batch for this log needs a `value` column", columns=", ".join(names))
        unknown = [name for name in names if name not in (*_OURS, _DUE, "value")]
        if self._opaque and unknown:
            raise InvalidChange(
                "a batch has columns that this log does not know",
                unknown=", ".join(unknown),
                hint="Use key, value, and op, due or key_group where needed; leave others out",
            )

    def _cast_keys(self, column: pa.Array) -> pa.Array:
        wanted = self._descriptor.key_type.arrow_type
        if column.type == wanted:
            return column
        kind = str(column.type).removeprefix("dictionary<values=")
        if not kind.startswith(_KEY_KINDS[self._descriptor.key_type]):
            # Arrow would make a key of a number, a time or a boolean, which `put` refuses and no lookup finds.
            raise InvalidChange(
                f"column `key` is {column.type}, the log's keys are {wanted}",
                hint="Cast it to what your readers expect",
            )
        try:
            return column.cast(wanted)
        except pa.ArrowException as error:
            raise InvalidChange(f"column `key` is {column.type}, the log's keys are {wanted}: {error}") from error

    def _values_of(self, batch: pa.RecordBatch, ops: NDArray[np.uint8] | None) -> pa.Array:
        names = batch.schema.names
        if self._opaque:
            values = self._cast_values(batch.column("value"))
            values = values if ops is None else _nulled(values, ops)
            if self._value_schema.is_json:
                check_json(values, batch.column("key"))
            return values
        deletes = None if ops is None else column_of(ops == DELETE)
        fields = [name for name in names if name not in _OURS and (name != _DUE or not self._is_due_ours(batch))]
        if _has_whole_value(batch):
            if len(fields) > 1:
                raise InvalidChange("a batch has columns besides its struct column `value`", columns=", ".join(names))
            column = batch.column("value")
            deletes = column.is_null() if deletes is None else deletes
            return struct_from_columns(columns_of(column), self._value_schema, deletes)
        return struct_from_columns(batch.select(fields), self._value_schema, deletes)

    def _cast_values(self, column: pa.Array) -> pa.Array:
        try:
            return column if column.type == pa.binary() else column.cast(pa.binary())
        except pa.ArrowException as error:
            what = "JSON text" if self._value_schema.is_json else "bytes"
            raise InvalidChange(f"column `value` is {column.type}, this log's values are {what}: {error}") from error

    def _is_due_ours(self, batch: pa.RecordBatch) -> bool:
        """Return whether a column `due` has dues, and is no field of the value that comes as a column of its own."""
        return not self._has_due_field or _has_whole_value(batch)

    def _dues_of(self, batch: pa.RecordBatch, ops: NDArray[np.uint8], default_due_ms: int | None) -> pa.Array | None:
        """Return the dues of puts; None if there is none."""
        if _DUE in batch.schema.names and self._is_due_ours(batch):
            due_ms, is_null = due_numbers(batch.column(_DUE))
        elif default_due_ms is None:
            return None
        else:
            due_ms, is_null = np.zeros(len(ops), np.int64), np.ones(len(ops), np.bool_)
        if default_due_ms is not None:
            due_ms[is_null] = default_due_ms
            is_null = np.zeros(len(ops), np.bool_)
        is_null = is_null | (ops == DELETE)
        due_ms[is_null] = 0
        return None if is_null.all() else due_column(due_ms, is_null)

    def _batch_groups(self, batch: pa.RecordBatch, keys: pa.Array) -> NDArray[np.uint16]:
        named = batch.column("key_group") if "key_group" in batch.schema.names else None
        if self._by_caller:
            if named is None:
                raise KeyGroupMismatch(
                    "in this log the caller chooses each key's key group", hint="Add a column key_group"
                )
            return _small_ints(named, self._descriptor.key_groups)
        own = self._descriptor.key_groups_of(keys)
        if named is not None and not np.array_equal(named.to_numpy(zero_copy_only=False), own):
            raise KeyGroupMismatch("column key_group differs from the keys' own groups", hint="Leave it out")
        return own


def _has_whole_value(batch: pa.RecordBatch) -> bool:
    """Return whether one column has all fields of a typed value."""
    return "value" in batch.schema.names and pa.types.is_struct(batch.schema.field("value").type)


def _ops_of(batch: pa.RecordBatch) -> NDArray[np.uint8] | None:
    if "op" not in batch.schema.names:
        return None
    column = batch.column("op")
    if isinstance(column.type, pa.DictionaryType):
        column = column.cast(column.type.value_type)
    if column.null_count:
        raise InvalidChange("an op is null", hint="Use put or delete")
    if str(column.type) in ("string", "large_string", "string_view"):
        found = pc.index_in(column.cast(pa.string()), column_of_rows(["put", "delete"], pa.string()))
        if found.null_count:
            other = column.filter(found.is_null())[0].as_py()
            raise InvalidChange(f"an op is {other!r}", hint="Write put or delete, in lower case, or 0 or 1")
        return numbers_of(found).astype(np.uint8)
    return _small_ints(column, DELETE + 1).astype(np.uint8)


def _due_column_of(dues: Dues) -> pa.Array:
    return due_column(np.array([due or 0 for due in dues], np.int64), np.array([due is None for due in dues], np.bool_))


def _deletes(values: pa.Array) -> NDArray[np.uint8]:
    """Return the ops of values that come without any: a null deletes."""
    if not values.null_count:
        return np.zeros(len(values), np.uint8)
    return numbers_of(values.is_null()).astype(np.uint8)


def _small_ints(column: pa.Array, end: int) -> NDArray[np.uint16]:
    if column.null_count:
        raise InvalidChange("a column of small integers has nulls", nulls=column.null_count)
    try:
        numbers = numbers_of(column.cast(pa.int64()))
    except pa.ArrowException as error:
        raise InvalidChange(f"a column of small integers has type {column.type}: {error}") from error
    if len(numbers) and not (numbers.min() >= PUT and numbers.max() < end):
        raise InvalidChange(f"a number is outside 0 to {end - 1}", least=int(numbers.min()), most=int(numbers.max()))
    return numbers.astype(np.uint16)


def _nulled(values: pa.Array, ops: NDArray[np.uint8]) -> pa.Array:
    """Return the values with null in the place of every delete."""
    if not ops.any():
        return values
    return pc.if_else(column_of(ops == DELETE), pa.nulls(1, values.type)[0], values)
