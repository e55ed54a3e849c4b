"""Types of JSON lines: the Arrow type of each field, and which fields need Python, row by row. Pure.

Arrow's parser is fast and strict, but lacks maps, times, base64 and defaults of single rows. Where a log has one of
these, rows are parsed in Python.
"""

import json
from collections.abc import Mapping
from typing import cast

import pyarrow as pa

from statelog.cli.inputs.fields import BytesText, FieldMapping, LogShape
from statelog.errors import InvalidChange
from statelog.schemas.values.types import ValueField, ValueType

__all__ = ["needs_rows", "scalar_type", "wire_schema", "with_defaults"]


def needs_rows(shape: LogShape, mapping: FieldMapping) -> bool:
    """Whether lines for this log have to be parsed in Python."""
    root = shape.value_schema.root
    base64 = mapping.bytes_text is BytesText.BASE64
    if root is None:
        return False
    return any(_needs_rows(one.type, base64) or not _default_is_plain(one) for one in root.fields)


def _default_is_plain(one: ValueField) -> bool:
    """Whether a null column entry can be distinguished from one that takes the default, and filled by Arrow."""
    if one.default is None:
        return True
    plain = isinstance(one.default, bool | int | float | str) and one.type.kind not in ("bytes", "fixed")
    return plain and not one.type.logical and not one.type.nullable


def _needs_rows(kind: ValueType, base64: bool) -> bool:
    text = str(kind.arrow)
    if kind.kind == "map" or (text.startswith("time") and not text.startswith("timestamp")):
        return True
    if base64 and (text == "binary" or text.startswith("fixed_size_binary")):
        return True
    if kind.items is not None and _needs_rows(kind.items, base64):
        return True
    # A field within a record: whether one row lacks it, Arrow does not say.
    return any(_needs_rows(one.type, base64) or one.default is not None for one in kind.fields)


def wire_schema(first: Mapping[str, object], shape: LogShape, mapping: FieldMapping) -> pa.Schema:
    """What a block of lines is parsed as. `first` is the first line's object: it gives the types of op and checkpoint
    field, which no schema names.
    """
    types: dict[str, pa.DataType] = {}
    for name in (mapping.op_field, mapping.checkpoint_field):
        if name is not None:
            types[name] = scalar_type(name, first.get(name))
    if shape.value_schema.root is None:
        types[mapping.value_field] = pa.string()
    else:
        types.update({one.name: _wire(one.type.arrow) for one in shape.value_schema.root.fields})
    if shape.named_groups:
        types["key_group"] = pa.int64()
    types[mapping.key_field] = pa.int64() if str(shape.key_type) == "long" else pa.string()
    return pa.schema(list(types.items()))


def scalar_type(name: str, value: object) -> pa.DataType:
    """The type of a field that no schema names, by its first value; a null counts as text. Raises InvalidChange."""
    for python, arrow in ((bool, pa.bool_()), (int, pa.int64()), (float, pa.float64()), (str, pa.string())):
        if isinstance(value, python):
            return arrow
    if value is None:
        return pa.string()
    raise InvalidChange(f"the field {name!r} is not text, a number or a boolean", value=json.dumps(value))


def with_defaults(batch: pa.RecordBatch, shape: LogShape) -> pa.RecordBatch:
    """The batch with the schema's default in the place of what required fields lack."""
    root = shape.value_schema.root
    for one in root.fields if root else ():
        index = batch.schema.get_field_index(one.name)
        if index >= 0 and one.default is not None and not one.type.nullable and batch.column(index).null_count:
            filled = batch.column(index).fill_null(pa.scalar(one.default, batch.schema.field(index).type))
            batch = batch.set_column(index, batch.schema.field(index), filled)
    return batch


def _wire(kind: pa.DataType) -> pa.DataType:
    """What Arrow's parser reads for a type; a cast makes the type of it."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, _wire(one.type)) for one in cast("pa.StructType", kind)])
    if pa.types.is_list(kind):
        return pa.list_(_wire(cast("pa.ListType", kind).value_type))
    text = str(kind)
    return pa.string() if text.startswith(("date", "fixed_size_binary", "binary")) else kind
