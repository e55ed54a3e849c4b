"""The mapping from an input's fields to the log, and from its rows to changes. Pure.

Works on Arrow batches, by column. Every row of the result has an explicit op, put or delete: a missing value never
makes a delete.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc

from statelog.errors import ConfigError, InvalidChange
from statelog.operate.rows import BytesText
from statelog.schemas.changes.due import DUE, due_ms_of
from statelog.schemas.key_groups import KeyType
from statelog.schemas.ledger.place import has_utf8
from statelog.schemas.values.schema import ValueSchema

_MICROSECONDS = pa.timestamp("us", tz="UTC")
_SEE = "See --key-field, --value-field, --op-field and --ignore-unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """The mapping that the options and the log define. Raises ConfigError.

    `op_field`: the field that holds `put` or `delete`. Without it, every row is a put.
    `delete_value`: the value of `op_field` in a delete. If it is given, every other row is a put.
    `due_field`: the field that says when a row is due, as a time with a zone or as seconds since 1970.
    `checkpoint_every`, `checkpoint_field`: commit after so many rows, or where this field changes.
    `named_groups`: the caller names the key group of each key.
    """

    key_type: KeyType
    value_schema: ValueSchema
    named_groups: bool = False
    key_field: str = "key"
    value_field: str = "value"
    op_field: str | None = None
    delete_value: str | None = None
    due_field: str | None = None
    checkpoint_every: int | None = None
    checkpoint_field: str | None = None
    bytes_text: BytesText = BytesText.UTF8
    ignore_unknown: bool = False

    def __post_init__(self) -> None:
        fields = (self.key_field, self.value_field, self.op_field, self.due_field, self.checkpoint_field)
        named = (*fields, self.delete_value)
        if not all(has_utf8(one or "") for one in named):
            raise ConfigError("the name of a field, or --delete-value, is not UTF-8", hint="Write it as in the input")
        if self.delete_value is not None and self.op_field is None:
            raise ConfigError("--delete-value is given without --op-field", hint="Name the field that holds it")
        if self.checkpoint_every is not None and self.checkpoint_field is not None:
            raise ConfigError("--checkpoint-every and --checkpoint-field exclude each other", hint="Give one of them")
        if self.checkpoint_every is not None and self.checkpoint_every < 1:
            raise ConfigError("--checkpoint-every is below 1", checkpoint_every=self.checkpoint_every)

    @property
    def value_fields(self) -> tuple[str, ...]:
        """The fields of a typed value; empty for opaque bytes."""
        root = self.value_schema.root
        return tuple(one.name for one in root.fields) if root else ()

    @property
    def optional(self) -> Mapping[str, str]:
        """Fields that only an option names and that a row may lack, by option: a misspelt name gives no error."""
        named = {
            "--op-field": self.op_field if self.delete_value else None,
            "--due-field": self.due_field,
            "--checkpoint-field": self.checkpoint_field,
        }
        return {option: name for option, name in named.items() if name is not None}

    def fingerprint(self) -> str:
        """Return the settings that must be unchanged when an input is resumed."""
        parts = {
            "key": self.key_field,
            "value": self.value_field,
            "op": self.op_field,
            "delete": self.delete_value,
            "due": self.due_field,
            "bytes": self.bytes_text.value,
        }
        return " ".join(f"{name}={value}" for name, value in parts.items() if value is not None)

    def to_changes(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert rows to a batch for `Writer.append_batch`: key, op, value, and due and key group if named.

        Raises InvalidChange.
        """
        columns = {"key": column_of(batch, self.key_field, "key"), "op": self._ops(batch), "value": self._values(batch)}
        if self.due_field is not None:
            columns["due"] = _dues(column_of(batch, self.due_field, "due"), self.due_field)
        if self.named_groups:
            columns["key_group"] = column_of(batch, "key_group", "key group")
        self._refuse_unknown(batch)
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

    def _ops(self, batch: pa.RecordBatch) -> pa.Array:
        if self.op_field is None:
            return pa.repeat(pa.scalar("put", pa.string()), batch.num_rows)
        column = column_of(batch, self.op_field, "op")
        try:
            ops = column.cast(pa.string())
        except (pa.ArrowException, UnicodeDecodeError):
            problem = f"the field {self.op_field!r} is {column.type}, which is not an op"
            raise InvalidChange(problem, hint="See --op-field") from None
        if self.delete_value is None:
            return ops
        return pc.if_else(pc.equal(ops, self.delete_value).fill_null(False), "delete", "put")

    def _values(self, batch: pa.RecordBatch) -> pa.Array:
        if self.value_schema.is_opaque or self._is_struct(batch):
            return column_of(batch, self.value_field, "value")
        if self.value_field not in ("value", *batch.schema.names):
            column_of(batch, self.value_field, "value")  # Raises: a value field that was named explicitly must exist.
        names = [name for name in self.value_fields if name in batch.schema.names]
        if not names:
            problem = "the input has none of the fields of the log's values"
            raise InvalidChange(problem, hint=_SEE, fields=", ".join(batch.schema.names))
        return pa.StructArray.from_arrays([column_of(batch, name, "value") for name in names], names=names)

    def _is_struct(self, batch: pa.RecordBatch) -> bool:
        """Tell whether one column holds the whole of a typed value."""
        name = self.value_field
        is_there = name in batch.schema.names and name not in self.value_fields
        return is_there and pa.types.is_struct(batch.schema.field(name).type)

    def _refuse_unknown(self, batch: pa.RecordBatch) -> None:
        known = {self.key_field, self.op_field, self.due_field, self.checkpoint_field, "key_group", *self.value_fields}
        if self.value_schema.is_opaque or self._is_struct(batch):
            known.add(self.value_field)
        unknown = [name for name in batch.schema.names if name not in known]
        if unknown and not self.ignore_unknown:
            problem = "the input has fields that the log does not have"
            raise InvalidChange(problem, hint="--ignore-unknown drops them", fields=", ".join(unknown))


def _dues(column: pa.Array, name: str) -> pa.Array:
    """Return times with a zone of a column of such times, of seconds, or of either as text. Raises InvalidChange."""
    kind = column.type
    if pa.types.is_null(kind) or (isinstance(kind, pa.TimestampType) and kind.tz is not None):
        return column
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return _of_seconds(column)
    problem = f"the field {name!r} is {kind}, which is no time with a zone"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        for wanted in (_MICROSECONDS, pa.float64()):
            try:
                return _dues(column.cast(wanted), name)
            except pa.ArrowException as error:
                problem = f"the field {name!r} has a text that is neither a time with a zone nor seconds: {error}"
    raise InvalidChange(problem, hint="Write 2030-01-31T12:00:00Z, or seconds since 1970")


def _of_seconds(column: pa.Array) -> pa.Array:
    dues = [None if one is None else due_ms_of(one) for one in column.to_pylist()]
    return pa.array(dues, DUE.type)


def column_of(batch: pa.RecordBatch, name: str, what: str) -> pa.Array:
    """Return a column without dictionary encoding, which Parquet files may have. Raises InvalidChange."""
    names = batch.schema.names
    if names.count(name) != 1:
        problem = f"the input has no field {name!r} for the {what}"
        problem = f"the input has the field {name!r} twice" if name in names else problem
        raise InvalidChange(problem, hint=_SEE, fields=", ".join(names))
    column = batch.column(names.index(name))
    if pa.types.is_dictionary(column.type):
        return column.cast(cast("pa.DictionaryType", column.type).value_type)
    return column
