"""Fields: maps columns of an input to key, op and value of changes. Pure.

Works on Arrow batches, by column. Every row of the result has its op, put or delete: no row
becomes a delete because a value is missing.
"""

import base64
import binascii
from dataclasses import dataclass
from enum import StrEnum
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc

from statelog.errors import ConfigError, InvalidChange
from statelog.schemas.descriptor import Descriptor, HashRule
from statelog.schemas.keys.key_groups import KeyType
from statelog.schemas.values.schema import ValueSchema

__all__ = ["BytesText", "FieldMapping", "LogShape", "decode_text", "to_changes"]

_DELETE = "delete"


class BytesText(StrEnum):
    """How bytes are written in JSON."""

    UTF8 = "utf8"
    BASE64 = "base64"


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldMapping:
    """Which field is what. Without `op_field` every row is a put; with it, rows whose field says `delete` (or
    `delete_value`, if given, and then every other row is a put) are deletes.

    `checkpoint_field` is read beside the change; `ignore_unknown` lets fields pass that the log has no place for.
    Raises ConfigError.
    """

    key_field: str = "key"
    value_field: str = "value"
    op_field: str | None = None
    delete_value: str | None = None
    checkpoint_field: str | None = None
    bytes_text: BytesText = BytesText.UTF8
    ignore_unknown: bool = False

    def __post_init__(self) -> None:
        if self.delete_value is not None and self.op_field is None:
            raise ConfigError("--delete-value is given without --op-field", hint="Name the field that holds it")

    def fingerprint(self) -> str:
        """What must be the same when an input is resumed."""
        parts = {
            "key": self.key_field,
            "value": self.value_field,
            "op": self.op_field,
            "delete": self.delete_value,
            "bytes": self.bytes_text.value,
        }
        return " ".join(f"{name}={value}" for name, value in parts.items() if value is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogShape:
    """What a log wants: its key type, its newest value schema, and whether the caller names the key groups."""

    key_type: KeyType
    value_schema: ValueSchema
    named_groups: bool = False

    @classmethod
    def of(cls, descriptor: Descriptor, value_schema: ValueSchema) -> "LogShape":
        """The shape of a log."""
        return cls(
            key_type=descriptor.key_type,
            value_schema=value_schema,
            named_groups=descriptor.hash_rule is HashRule.CALLER,
        )

    @property
    def value_fields(self) -> tuple[str, ...]:
        """The fields of a typed value; empty for opaque bytes."""
        root = self.value_schema.root
        return tuple(one.name for one in root.fields) if root else ()


def to_changes(batch: pa.RecordBatch, mapping: FieldMapping, shape: LogShape) -> pa.RecordBatch:
    """Rows of an input as a batch for `Writer.append_batch`: key, op, value, and the key group if the caller names it.

    Raises InvalidChange.
    """
    ops = _ops(batch, mapping)
    columns = {
        "key": _plain(_column(batch, mapping.key_field, "key")),
        "op": ops,
        "value": _values(batch, mapping, shape, ops),
    }
    if shape.named_groups:
        columns["key_group"] = _column(batch, "key_group", "key group")
    _refuse_unknown(batch, mapping, shape)
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def decode_text(column: pa.Array) -> pa.Array:
    """A column of base64 texts as bytes. Raises InvalidChange."""
    try:
        return pa.array(
            [None if text is None else base64.b64decode(text, validate=True) for text in column.to_pylist()],
            pa.binary(),
        )
    except (binascii.Error, ValueError) as error:
        raise InvalidChange(f"a text is not base64: {error}", hint="Check --bytes") from None


def _column(batch: pa.RecordBatch, name: str, what: str) -> pa.Array:
    if name not in batch.schema.names:
        raise InvalidChange(
            f"the input has no field {name!r} for the {what}",
            fields=", ".join(batch.schema.names),
            hint="See --key-field, --value-field and --op-field",
        )
    return batch.column(batch.schema.get_field_index(name))


def _plain(column: pa.Array) -> pa.Array:
    """Without dictionary encoding, which Parquet files of other programs may have."""
    if pa.types.is_dictionary(column.type):
        return column.cast(cast("pa.DictionaryType", column.type).value_type)
    return column


def _ops(batch: pa.RecordBatch, mapping: FieldMapping) -> pa.Array:
    if mapping.op_field is None:
        return pa.repeat(pa.scalar("put", pa.string()), batch.num_rows)
    column = _text(_plain(_column(batch, mapping.op_field, "op")), mapping.op_field)
    if mapping.delete_value is None:
        return column
    deletes = pc.equal(column, mapping.delete_value).fill_null(False)
    return pc.if_else(deletes, _DELETE, "put")


def _text(column: pa.Array, name: str) -> pa.Array:
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), pa.string())
    try:
        return column.cast(pa.string())
    except (pa.ArrowException, UnicodeDecodeError):
        raise InvalidChange(f"the field {name!r} is {column.type}, which is not an op") from None


def _values(batch: pa.RecordBatch, mapping: FieldMapping, shape: LogShape, ops: pa.Array) -> pa.Array:
    deletes = pc.equal(ops, _DELETE).fill_null(False)
    if shape.value_schema.is_opaque:
        return _emptied(_plain(_column(batch, mapping.value_field, "value")), deletes)
    if mapping.value_field not in shape.value_fields and _is_struct(batch, mapping.value_field):
        return _emptied(_column(batch, mapping.value_field, "value"), deletes)
    if mapping.value_field not in ("value", *batch.schema.names):
        _column(batch, mapping.value_field, "value")  # It was named, so it was meant rather than the fields.
    names = [name for name in shape.value_fields if name in batch.schema.names]
    if not names:
        raise InvalidChange(
            "the input has none of the fields of the log's values", fields=", ".join(batch.schema.names)
        )
    children = [_column(batch, name, "value") for name in names]
    return pa.StructArray.from_arrays(children, names=names, mask=deletes)


def _emptied(values: pa.Array, deletes: pa.Array) -> pa.Array:
    """The values with null in the place of deletes."""
    if not pc.any(deletes).as_py():
        return values
    return pc.if_else(deletes, pa.scalar(None, values.type), values)


def _is_struct(batch: pa.RecordBatch, name: str) -> bool:
    return name in batch.schema.names and pa.types.is_struct(batch.schema.field(name).type)


def _refuse_unknown(batch: pa.RecordBatch, mapping: FieldMapping, shape: LogShape) -> None:
    known = {mapping.key_field, mapping.op_field, mapping.checkpoint_field, "key_group", *shape.value_fields}
    if shape.value_schema.is_opaque or _is_struct(batch, mapping.value_field):
        known.add(mapping.value_field)
    unknown = [name for name in batch.schema.names if name not in known]
    if unknown and not mapping.ignore_unknown:
        raise InvalidChange(
            "the input has fields that the log does not have",
            fields=", ".join(unknown),
            hint="--ignore-unknown drops them",
        )
