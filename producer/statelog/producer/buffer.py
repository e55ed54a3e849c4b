"""The append buffer: changes that no chunk holds yet, in the order in which they were appended.

Single changes go into two plain lists, which cost a fifth of any work done per change, and become Arrow
when enough have come. Batches are Arrow from the start. No I/O, no durability.

Invariants:
- Order of appends is kept, whichever way a change came in.
- What was refused was not buffered; what was buffered is a valid change.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from statelog.producer.settings import WriterSettings
from statelog.schemas.changes import DELETE, MAX_CHANGE_BYTES, PUT, change_schema, changes_batch, chunk_slices
from statelog.schemas.descriptor import Descriptor, HashRule
from statelog.schemas.errors import InvalidChange, KeyGroupMismatch, ValueTooLarge
from statelog.schemas.key_groups import KeyType, key_group_of, key_groups_of, key_groups_of_partition, partition_of
from statelog.schemas.values import ValueSchema, columns_of, rows_to_struct, struct_from_columns

__all__ = ["ChangeBuffer", "Key", "Value"]

Key = bytes | str | int
Value = bytes | Mapping[str, object]

_KEY_CLASS: Mapping[KeyType, type] = {KeyType.BYTES: bytes, KeyType.STRING: str, KeyType.LONG: int}
_TEXT_OR_BYTES = ("string", "large_string", "binary", "large_binary", "fixed_size_binary", "null")
_KEY_KINDS: Mapping[KeyType, tuple[str, ...]] = {
    KeyType.BYTES: _TEXT_OR_BYTES,
    KeyType.STRING: _TEXT_OR_BYTES,
    KeyType.LONG: ("int", "uint", "null"),
}
"""How the names of the Arrow types begin that a column of keys may have; a null key is refused by itself."""
_TYPED_VALUE_BYTES = 256  # What a typed value counts for besides its texts and bytes, until Arrow has measured it.
_OP_NAMES = pa.array(["put", "delete"])


class ChangeBuffer:
    """Collects changes for one writer until they are taken as one Arrow batch."""

    def __init__(
        self, descriptor: Descriptor, value_schema: ValueSchema, owned: Collection[int], settings: WriterSettings
    ) -> None:
        self._descriptor = descriptor
        self._foreign = _foreign_groups(descriptor, owned)
        self._value_schema = value_schema
        self._settings = settings
        self._schema = change_schema(descriptor.key_type, value_schema.arrow_type)
        self._by_caller = descriptor.hash_rule is HashRule.CALLER
        self._opaque = value_schema.id == 0
        self._key_class = _KEY_CLASS[descriptor.key_type]
        self._keys: list[Key] = []
        self._values: list[Value | None] = []
        self._groups: list[int] = []
        self._list_bytes = 0
        self._batches: list[pa.RecordBatch] = []
        self._batch_bytes = 0

    @property
    def changes(self) -> int:
        """How many changes wait."""
        return len(self._keys) + sum(batch.num_rows for batch in self._batches)

    @property
    def full(self) -> bool:
        """Whether enough has come to be split and sent."""
        return self._batch_bytes >= self._settings.roll_bytes

    def put(self, key: Key, value: Value) -> bool:
        """Buffer a put. True if the buffer is full. Raises InvalidChange."""
        if not self._opaque:
            if not isinstance(value, Mapping):
                raise InvalidChange(f"a value of this log is a mapping of its fields, not {type(value).__name__}")
            return self._push(key, value, _TYPED_VALUE_BYTES + _text_bytes(value.values()))
        if not isinstance(value, bytes):
            raise InvalidChange(
                f"a value of this log is bytes, not {type(value).__name__}", hint="To remove a key, delete it"
            )
        return self._push(key, value, len(value))

    def delete(self, key: Key) -> bool:
        """Buffer a delete. True if the buffer is full. Raises InvalidChange."""
        return self._push(key, None, 0)

    def append(self, key_group: int, key: Key, value: Value | None) -> bool:
        """Buffer a change whose key group the caller names; a value of None is a delete.

        Raises KeyGroupMismatch if the log hashes its keys and this is not the key's group.
        """
        if not 0 <= key_group < self._descriptor.key_groups:
            raise KeyGroupMismatch(
                "the log lacks this key group", key_group=key_group, key_groups=self._descriptor.key_groups
            )
        if self._by_caller:
            self._check_owned(key_group)
            self._groups.append(key_group)
            try:
                return self.delete(key) if value is None else self.put(key, value)
            except BaseException:
                del self._groups[len(self._keys) :]  # A refused change leaves no key group behind for the next one.
                raise
        own = self.group_of(key)
        if own != key_group:
            raise KeyGroupMismatch("the named key group is not the key's own", key_group=key_group, own_key_group=own)
        return self.delete(key) if value is None else self.put(key, value)

    def group_of(self, key: Key) -> int:
        """The key group of a key, by the log's hash. Raises InvalidChange."""
        return key_group_of(key, self._descriptor.key_type, self._descriptor.key_groups)

    def extend(self, table: object) -> bool:
        """Buffer the many changes of an Arrow table or record batch.

        Columns: `key`, optional `op` (0 or "put", 1 or "delete"), `key_group` if the caller places keys, and the
        value: one column `value`, or for typed values the fields themselves.

        True if the buffer is full. Raises InvalidChange, KeyGroupMismatch.
        """
        if not isinstance(table, pa.Table | pa.RecordBatch):
            raise InvalidChange(f"changes in bulk are an Arrow table or batch, not {type(table).__name__}")
        self._roll_lists()
        batches = table.to_batches() if isinstance(table, pa.Table) else [table]
        ready = [self._batch_of(batch) for batch in batches if batch.num_rows]
        for batch in ready:
            self._keep(batch)
        return self.full

    def take(self) -> pa.RecordBatch | None:
        """All that waits, in order, and the buffer is empty; None if nothing waits."""
        self._roll_lists()
        batches, self._batches, self._batch_bytes = self._batches, [], 0
        if not batches:
            return None
        return batches[0] if len(batches) == 1 else pa.concat_batches(batches)

    # ---- lists to Arrow

    def _push(self, key: Key, value: Value | None, value_bytes: int) -> bool:
        if type(key) is not self._key_class:
            raise InvalidChange(
                f"a key of this log is {self._descriptor.key_type.value}, not {type(key).__name__}",
                hint="The key type is fixed when a log is made",
            )
        size = value_bytes + (8 if self._key_class is int else len(key))  # type: ignore[arg-type]  # bytes or str
        if size > MAX_CHANGE_BYTES:
            raise ValueTooLarge("a change is larger than a chunk may be", size_bytes=size, max_bytes=MAX_CHANGE_BYTES)
        if self._key_class is int:
            self._check_long(key)
        if self._by_caller:
            self._check_named()
        elif self._foreign is not None:
            self._check_owned(self.group_of(key))
        self._list_bytes += size
        self._keys.append(key)
        self._values.append(value)
        if len(self._keys) >= self._settings.roll_rows or self._list_bytes >= self._settings.list_bytes:
            self._roll_lists()
        return self.full

    def _check_named(self) -> None:
        if len(self._groups) != len(self._keys) + 1:
            raise KeyGroupMismatch("this log's caller names the key groups", hint="Use append(key_group, key, value)")

    @staticmethod
    def _check_long(key: Key) -> None:
        assert isinstance(key, int)
        if not -(1 << 63) <= key < 1 << 63:
            raise InvalidChange("a key does not fit in a signed 64-bit long", key=str(key))

    def _roll_lists(self) -> None:
        """Turn the lists into Arrow. If a typed value or a key does not fit, they stay as they are and the error comes
        back with every further call: dropping the rest of them would be a silent loss.
        """
        if not self._keys:
            return
        keys = self._key_column(self._keys)
        values = self._value_column(self._values)
        ops = values.is_null().to_numpy(zero_copy_only=False).astype(np.uint8)
        changes = changes_batch(self._schema, self._groups_of(keys, self._groups), ops, keys, values)
        self._keys, self._values, self._groups, self._list_bytes = [], [], [], 0
        self._keep(changes)

    def _value_column(self, values: Sequence[Value | None]) -> pa.Array:
        if self._opaque:
            return pa.array(values, pa.binary())
        return rows_to_struct(cast("Sequence[Mapping[str, object] | None]", values), self._value_schema)

    def _key_column(self, keys: Sequence[Key]) -> pa.Array:
        try:
            return pa.array(keys, self._descriptor.key_type.arrow_type)
        except (pa.ArrowException, UnicodeError, OverflowError) as error:
            raise InvalidChange(f"keys do not fit the log's key type: {error}") from error

    def _groups_of(self, keys: pa.Array, named: list[int]) -> NDArray[np.uint16]:
        return np.array(named, np.uint16) if self._by_caller else key_groups_of(keys, self._descriptor.key_groups)

    def _keep(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._batch_bytes += batch.nbytes

    # ---- batches

    def _batch_of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        names = batch.schema.names
        if "key" not in names:
            raise InvalidChange("a batch needs a column `key`", columns=", ".join(names))
        keys = self._cast_keys(batch.column("key"))
        ops = _ops_of(batch)
        values = self._values_of(batch, ops)
        if ops is None:
            ops = values.is_null().to_numpy(zero_copy_only=False).astype(np.uint8)
        groups = self._batch_groups(batch, keys)
        self._check_all_owned(groups)
        changes = changes_batch(self._schema, groups, ops, keys, values)
        chunk_slices(changes, MAX_CHANGE_BYTES)  # Raises for a change that no chunk could hold, before it is buffered.
        return changes

    def _check_all_owned(self, groups: NDArray[np.integer]) -> None:
        if self._foreign is not None:
            foreign = groups[self._foreign[groups]]
            if len(foreign):
                self._check_owned(int(foreign[0]))

    def _check_owned(self, key_group: int) -> None:
        if self._foreign is not None and self._foreign[key_group]:
            descriptor = self._descriptor
            raise KeyGroupMismatch(
                "a change belongs to a partition that this writer does not own",
                key_group=key_group,
                partition=partition_of(key_group, descriptor.partitions, descriptor.key_groups),
            )

    def _cast_keys(self, column: pa.Array) -> pa.Array:
        wanted = self._descriptor.key_type.arrow_type
        if column.type == wanted:
            return column
        kind = str(column.type).removeprefix("dictionary<values=")
        if not kind.startswith(_KEY_KINDS[self._descriptor.key_type]):
            # Arrow would make a key of a number, a time or a truth, which `put` refuses, and nobody finds it again.
            raise InvalidChange(
                f"column `key` is {column.type}, the log's keys are {wanted}", hint="Cast it as your readers expect it"
            )
        try:
            return column.cast(wanted)
        except pa.ArrowException as error:
            raise InvalidChange(f"column `key` is {column.type}, the log's keys are {wanted}: {error}") from error

    def _values_of(self, batch: pa.RecordBatch, ops: NDArray[np.uint8] | None) -> pa.Array:
        names = batch.schema.names
        if self._opaque:
            if "value" not in names:
                raise InvalidChange("a batch for this log needs a column `value`", columns=", ".join(names))
            values = self._cast_values(batch.column("value"))
            return values if ops is None else _nulled(values, ops)
        deletes = None if ops is None else pa.array(ops == DELETE)
        if "value" in names and pa.types.is_struct(batch.schema.field("value").type):
            column = batch.column("value")
            deletes = column.is_null() if deletes is None else deletes
            return struct_from_columns(columns_of(column), self._value_schema, deletes)
        fields = [name for name in names if name not in ("key", "op", "key_group")]
        return struct_from_columns(batch.select(fields), self._value_schema, deletes)

    def _cast_values(self, column: pa.Array) -> pa.Array:
        try:
            return column if column.type == pa.binary() else column.cast(pa.binary())
        except pa.ArrowException as error:
            raise InvalidChange(f"column `value` is {column.type}, this log's values are bytes: {error}") from error

    def _batch_groups(self, batch: pa.RecordBatch, keys: pa.Array) -> NDArray[np.uint16]:
        named = batch.column("key_group") if "key_group" in batch.schema.names else None
        if self._by_caller:
            if named is None:
                raise KeyGroupMismatch("this log's caller names the key groups", hint="Add a column key_group")
            return _small_ints(named, self._descriptor.key_groups)
        own = key_groups_of(keys, self._descriptor.key_groups)
        if named is not None and not np.array_equal(named.to_numpy(zero_copy_only=False), own):
            raise KeyGroupMismatch("column key_group differs from the keys' own groups", hint="Leave it out")
        return own


def _text_bytes(fields: Iterable[object]) -> int:
    """About how much text and bytes there are in the fields of a typed value, nested ones included."""
    size = 0
    for field in fields:
        match field:
            case str() | bytes():
                size += len(field)
            case list() | tuple():
                size += _text_bytes(cast("Iterable[object]", field))
            case dict():
                size += _text_bytes(chain.from_iterable(cast("dict[object, object]", field).items()))
            case _:
                pass
    return size


def _ops_of(batch: pa.RecordBatch) -> NDArray[np.uint8] | None:
    if "op" not in batch.schema.names:
        return None
    column = batch.column("op")
    if column.null_count:
        raise InvalidChange("an op is null", hint="Use put or delete")
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        found = pc.index_in(column.cast(pa.string()), _OP_NAMES)
        if found.null_count:
            raise InvalidChange("an op is neither put nor delete")
        return found.to_numpy().astype(np.uint8)
    return _small_ints(column, DELETE + 1).astype(np.uint8)


def _small_ints(column: pa.Array, end: int) -> NDArray[np.uint16]:
    try:
        numbers = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
    except pa.ArrowException as error:
        raise InvalidChange(f"a column of small integers is {column.type}: {error}") from error
    if len(numbers) and not (numbers.min() >= PUT and numbers.max() < end):
        raise InvalidChange(f"a number is not from 0 to {end - 1}", least=int(numbers.min()), most=int(numbers.max()))
    return numbers.astype(np.uint16)


def _nulled(values: pa.Array, ops: NDArray[np.uint8]) -> pa.Array:
    """The values with null in the place of deletes, whatever stood there."""
    if not ops.any():
        return values
    return pc.if_else(pa.array(ops == DELETE), pa.scalar(None, values.type), values)


def _foreign_groups(descriptor: Descriptor, owned: Collection[int]) -> NDArray[np.bool_] | None:
    """By key group, whether its partition is not the writer's; None if it owns all."""
    if len(set(owned)) == descriptor.partitions:
        return None
    foreign = np.ones(descriptor.key_groups, np.bool_)
    for partition in owned:
        groups = key_groups_of_partition(partition, descriptor.partitions, descriptor.key_groups)
        foreign[groups.start : groups.stop] = False
    return foreign
