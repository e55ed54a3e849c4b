"""Columns: a state as rows of a table, for whoever reads tables: Spark, and a lake. Pure.

A state has `key`, the value, and `key_group` if asked for. An opaque value is one binary column `value`; a typed one is
its fields as columns, or one struct column `value` where a field has a name of statelog's.

Invariant: the types are those that Spark and Delta Lake give back as they are, but for times of day: Delta Lake has
none, and Spark hands them on in nanoseconds.
"""

from collections.abc import Iterator
from typing import cast

import pyarrow as pa

from statelog.schemas.descriptor import Descriptor
from statelog.schemas.values.schema import ValueSchema, columns_of

__all__ = ["BATCH_ROWS", "STATE_NAMES", "state_batches", "state_schema", "table_type"]

STATE_NAMES = ("key", "key_group", "op")
"""Columns whose names belong to statelog."""
BATCH_ROWS = 65_536


def state_schema(descriptor: Descriptor, value: ValueSchema, *, include_key_group: bool) -> pa.Schema:
    """The columns of a state, all nullable."""
    fields = [pa.field("key", descriptor.key_type.arrow_type), *_value_fields(value)]
    if include_key_group:
        fields.append(pa.field("key_group", pa.int32()))
    return pa.schema(fields)


def state_batches(table: pa.Table, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
    """A state (key_group, key, value) as batches of the wanted columns, of at most 65,536 rows."""
    for batch in table.to_batches(max_chunksize=BATCH_ROWS):
        value = batch.column("value")
        given = {"key": batch.column("key"), "key_group": batch.column("key_group"), "value": value}
        if "value" not in wanted.names and pa.types.is_struct(value.type):
            fields = columns_of(value)
            given.update({name: fields.column(number) for number, name in enumerate(fields.column_names)})
        arrays = [given[field.name].cast(field.type) for field in wanted]
        yield pa.RecordBatch.from_arrays(arrays, schema=wanted)


def table_type(kind: pa.DataType) -> pa.DataType:
    """The type of a value, or of a part of it, in a table: times in microseconds, and bytes of any length."""
    if str(kind).startswith("time32"):
        return pa.time64("us")
    if isinstance(kind, pa.TimestampType):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if isinstance(kind, pa.StructType):
        return pa.struct([field.with_type(table_type(field.type)) for field in kind])
    if isinstance(kind, pa.MapType):
        item = kind.item_field
        return pa.map_(kind.key_type, item.with_type(table_type(item.type)).with_name("value"))
    if isinstance(kind, pa.ListType):
        item = kind.value_field
        return pa.list_(item.with_type(table_type(item.type)).with_name("element"))
    return kind


def _value_fields(value: ValueSchema) -> list[pa.Field]:
    fields = [] if value.is_opaque else list(cast("pa.StructType", value.arrow_type))
    if value.is_opaque or {field.name for field in fields} & {*STATE_NAMES, "value"}:
        return [pa.field("value", table_type(value.arrow_type))]
    return [pa.field(field.name, table_type(field.type)) for field in fields]
