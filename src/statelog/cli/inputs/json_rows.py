"""Parses JSON lines row by row in Python, for values that Arrow's parser cannot read. Pure, strict, slower.

Strict: no duplicate names, no bare NaN, nothing but an object. Times are ISO 8601 texts, decimals texts or numbers,
bytes texts (UTF-8 or base64), maps objects.
"""

import base64
import datetime
import decimal
import json
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import pyarrow as pa

from statelog.cli.inputs.fields import BytesText, FieldMapping, LogShape
from statelog.cli.inputs.json_types import scalar_type
from statelog.errors import InvalidChange
from statelog.schemas.values.schema import columns_of, rows_to_struct
from statelog.schemas.values.types import ValueType

__all__ = ["parse_rows", "strict_object"]

Row = dict[str, object]

_ISO: Mapping[str, Callable[[str], object]] = {
    "date": datetime.date.fromisoformat,
    "time-millis": datetime.time.fromisoformat,
    "time-micros": datetime.time.fromisoformat,
    "timestamp-millis": datetime.datetime.fromisoformat,
    "timestamp-micros": datetime.datetime.fromisoformat,
    "local-timestamp-millis": datetime.datetime.fromisoformat,
    "local-timestamp-micros": datetime.datetime.fromisoformat,
}


def strict_object(line: bytes) -> Row:
    """The object on a line. Raises InvalidChange with the reason, and the column where JSON's grammar breaks."""
    try:
        found: object = json.loads(line, object_pairs_hook=_without_duplicates)
    except json.JSONDecodeError as error:
        raise InvalidChange(f"it is not JSON: {error.msg} at column {error.colno}") from None
    except (UnicodeDecodeError, RecursionError, ValueError) as error:
        raise InvalidChange(f"it is unreadable JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidChange("it is not one JSON object")
    return cast("Row", found)


def _without_duplicates(pairs: list[tuple[str, object]]) -> Row:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        raise InvalidChange(f"it has a name twice: {next(name for name in names if names.count(name) > 1)}")
    return made


def parse_rows(lines: Sequence[bytes], mapping: FieldMapping, shape: LogShape) -> pa.RecordBatch:
    """Lines for a typed log as a batch of key, op, checkpoint field and the fields of the value.

    Raises InvalidChange.
    """
    rows = [strict_object(line) for line in lines]
    root = shape.value_schema.root
    assert root is not None, "opaque values are parsed by Arrow"
    values = rows_to_struct([_value(row, root, mapping, shape) for row in rows], shape.value_schema)
    fields = columns_of(values)
    columns = dict(zip(fields.schema.names, fields.columns, strict=True))
    key_type = pa.int64() if str(shape.key_type) == "long" else pa.string()
    others = {mapping.op_field: None, mapping.checkpoint_field: None, mapping.key_field: key_type}
    if shape.named_groups:
        others["key_group"] = pa.int64()
    kinds = {one.name: one.type for one in root.fields}
    for name, kind in others.items():
        if name is None:
            continue
        if name not in columns:
            columns[name] = _column(name, [row.get(name) for row in rows], kind)
        elif values.null_count:
            # A delete has no value, but still this field.
            shared = [_from_json(row.get(name), kinds[name], mapping.bytes_text, name) for row in rows]
            columns[name] = _array(name, shared, columns[name].type)
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _column(name: str, values: Sequence[object], kind: pa.DataType | None) -> pa.Array:
    first = next((value for value in values if value is not None), None)
    wanted = kind or scalar_type(name, first)
    if any(value is not None and scalar_type(name, value) != wanted for value in values):
        raise InvalidChange(f"the field {name!r} is not always {wanted}")
    return _array(name, values, wanted)


def _array(name: str, values: Sequence[object], wanted: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, wanted)
    except (pa.ArrowException, UnicodeError, OverflowError) as error:
        raise InvalidChange(f"the field {name!r} is not a {wanted}: {error}") from None


def _value(row: Row, root: ValueType, mapping: FieldMapping, shape: LogShape) -> Row | None:
    """The fields of the value, or None for a delete."""
    if _is_delete(row, mapping):
        return None
    known = {one.name: one.type for one in root.fields}
    around = {
        mapping.key_field,
        mapping.op_field,
        mapping.checkpoint_field,
        "key_group" if shape.named_groups else None,
    }
    made: Row = {}
    for name, value in row.items():
        if name in known:
            if value is None and not known[name].nullable:
                continue  # As on the fast path: null and missing are the same, and take the default.
            made[name] = _from_json(value, known[name], mapping.bytes_text, name)
        elif name not in around and not mapping.ignore_unknown:
            raise InvalidChange(f"it has fields that the log does not have: {name}")
    return made


def _is_delete(row: Row, mapping: FieldMapping) -> bool:
    if mapping.op_field is None:
        return False
    op = row.get(mapping.op_field)
    text = json.dumps(op) if isinstance(op, bool | int | float) else op
    return text == (mapping.delete_value or "delete")


def _from_json(value: object, kind: ValueType, bytes_text: BytesText, path: str) -> object:
    """What JSON has as what Python rows have. Types that do not fit are left to the check of the schema."""
    if value is None:
        return None
    if kind.kind == "record" and isinstance(value, dict):
        types = {one.name: one.type for one in kind.fields}
        inner = cast("Row", value)
        return {
            name: _from_json(one, types[name], bytes_text, f"{path}.{name}") if name in types else one
            for name, one in inner.items()
        }
    if kind.kind == "array" and isinstance(value, list):
        return [_from_json(one, kind.inner, bytes_text, f"{path}[]") for one in cast("list[object]", value)]
    if kind.kind == "map" and isinstance(value, dict):
        entries = cast("Row", value)
        return {name: _from_json(one, kind.inner, bytes_text, f"{path}{{}}") for name, one in entries.items()}
    try:
        return _scalar(value, kind, bytes_text)
    except (ValueError, ArithmeticError) as error:
        raise InvalidChange(f"the field {path!r} is not a {kind}: {error}") from None


def _scalar(value: object, kind: ValueType, bytes_text: BytesText) -> object:
    if kind.logical == "decimal" and isinstance(value, str | int | float) and not isinstance(value, bool):
        return decimal.Decimal(str(value))
    if kind.logical in _ISO and isinstance(value, str):
        return _ISO[kind.logical](value)
    if kind.kind in ("bytes", "fixed") and isinstance(value, str):
        return base64.b64decode(value, validate=True) if bytes_text is BytesText.BASE64 else value.encode()
    return value
