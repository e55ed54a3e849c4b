"""Value schemas: the type of a log's values, its evolution, and values as Arrow columns. Pure.

Schema id 0 means opaque bytes. Every other id names an Avro record schema; its values are one Arrow struct column,
in chunks, runs and results alike. A null in that column is a delete's.

Invariants:
- A schema that passed `check_compatible` reads every value of every earlier schema. It reads the same value whether or
  not merges rewrote it to schemas in between.
- Conversion is by column. Nothing here loops over rows, except `rows_to_struct`, whose input is Python rows.
- Spark and Delta Lake return the types of a state's columns unchanged, but for times of day: Delta Lake has none, and
  Spark gives them in nanoseconds.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar, cast

import numpy as np
import pyarrow as pa

from statelog.errors import ConfigError, IncompatibleSchema, InvalidChange
from statelog.schemas.arrays import column_of, whole_column
from statelog.schemas.changes.due import DUE
from statelog.schemas.descriptor import Descriptor
from statelog.schemas.values.arrow import default_array, family, fit_fields, from_rows, is_list, struct_children
from statelog.schemas.values.resolution import Resolution, apply_resolution, compose, first_difference, make_resolution
from statelog.schemas.values.types import ValueType, canonical_json, parse_value_type

_ROOT = "value"
Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)
_SIMPLE: Mapping[str, object] = {
    **dict.fromkeys(("int8", "int16", "int32", "uint8", "uint16"), "int"),
    **dict.fromkeys(("uint32", "int64"), "long"),
    **dict.fromkeys(("halffloat", "float"), "float"),
    **dict.fromkeys(("string", "large_string", "string_view"), "string"),
    **dict.fromkeys(("binary", "large_binary", "binary_view"), "bytes"),
    **{name: {"type": "int", "logicalType": "date"} for name in ("date32[day]", "date64[ms]")},
    **{name: {"type": "int", "logicalType": "time-millis"} for name in ("time32[s]", "time32[ms]")},
    **{name: {"type": "long", "logicalType": "time-micros"} for name in ("time64[us]", "time64[ns]")},
    "bool": "boolean",
    "double": "double",
}
"""Avro types by the name of the Arrow type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueSchema:
    """The schema of values. `id` 0 is opaque bytes; `avsc` is canonical JSON, '' for opaque.

    `is_json`: opaque bytes that are the text of a JSON value, which programs put and get (`json_text.py`).
    """

    id: int
    avsc: str
    is_json: bool = False
    root: ValueType | None = field(default=None, compare=False, repr=False)

    @property
    def is_opaque(self) -> bool:
        """Whether values are bytes that statelog does not interpret."""
        return self.root is None

    @property
    def arrow_type(self) -> pa.DataType:
        """The Arrow type of the value column: binary, or a struct of nullable fields."""
        return pa.binary() if self.root is None else self.root.arrow

    @property
    def shown_type(self) -> pa.DataType:
        """The Arrow type of values in a table: as in the value column, but JSON is text."""
        return pa.string() if self.is_json else self.arrow_type

    @property
    def stored(self) -> "ValueSchema":
        """The schema of values that are bytes already, as JSON is in a table."""
        return OPAQUE if self.is_json else self


OPAQUE = ValueSchema(id=0, avsc="")
JSON = ValueSchema(id=0, avsc="", is_json=True)


def parse_value_schema(avsc: str, schema_id: int) -> ValueSchema:
    """Read an Avro record schema; `schema_id` is at least 1. Raises ConfigError with the field's path."""
    if schema_id < 1:
        hint = "Use an id of at least 1: 0 means opaque bytes"
        raise ConfigError("a value schema's id is below 1", hint=hint, schema_id=schema_id)
    root = parse_value_type(avsc)
    for kind, path in _nodes(root, _ROOT):
        for one in kind.fields:
            if one.has_default:
                default_array(one.default, one.type, f"{path}.{one.name}")
    return ValueSchema(id=schema_id, avsc=canonical_json(avsc), root=root)


def _nodes(kind: ValueType, path: str) -> Iterator[tuple[ValueType, str]]:
    """Yield every type within a type, each with its path."""
    yield kind, path
    for one in kind.fields:
        yield from _nodes(one.type, f"{path}.{one.name}")
    if kind.items is not None:
        yield from _nodes(kind.items, kind.path_inside(path))


def resolve(reader: ValueSchema, writer: ValueSchema) -> Resolution | None:
    """Return the resolution from the writer's values to the reader's; None if their schemas are equal.

    Avro's rules apply. Fields match by name or alias, added fields take their default, and removed ones are dropped.
    Numbers widen (int, long, float, double), strings become bytes, and unknown enum symbols the enum's default. Raises
    IncompatibleSchema with the field and both types.
    """
    if reader.root is None or writer.root is None:
        if reader.root is not writer.root:
            hint = "Create a new log: opaque and typed values do not mix in one log"
            raise IncompatibleSchema("opaque and typed values", hint=hint, new=reader.id, earlier=writer.id)
        return None
    return None if reader.avsc == writer.avsc else make_resolution(reader.root, writer.root, _ROOT)


def check_compatible(new: ValueSchema, all_earlier: Sequence[ValueSchema]) -> None:
    """Check that `new` may follow `all_earlier` (by ascending id).

    It must read every earlier value, with the same result through the schema before it. Raises IncompatibleSchema;
    ConfigError for a schema that no Avro library reads.
    """
    path = _too_narrow(new)
    if path and not any(map(_too_narrow, all_earlier)):
        hint = "Name a larger size, or a smaller precision"
        raise ConfigError("a decimal of more digits than its bytes hold", hint=hint, field=path)
    last = all_earlier[-1].root if all_earlier else None
    for earlier in all_earlier:
        if new.root is None or earlier.root is None or last is None:
            resolve(new, earlier)  # Raises unless both are opaque.
            continue
        direct = make_resolution(new.root, earlier.root, _ROOT)
        through = compose(make_resolution(last, earlier.root, _ROOT), make_resolution(new.root, last, _ROOT), new.root)
        path = first_difference(direct, through, _ROOT)
        if path is not None:
            message = "a field that a merge through the previous schema would change"
            hint = "Give it a new name; do not bring removed names back, and do not change defaults"
            raise IncompatibleSchema(message, hint=hint, field=path, new=new.id, earlier=earlier.id)


def _too_narrow(schema: ValueSchema) -> str | None:
    """Return the path of the first decimal that its fixed cannot hold; None if all fit. Older releases allowed it."""
    for kind, path in _nodes(schema.root, _ROOT) if schema.root else ():
        digits = kind.arrow.precision if isinstance(kind.arrow, pa.Decimal128Type) else 0
        if kind.kind == "fixed" and 10**digits > 1 << 8 * kind.size - 1:
            return path
    return None


def convert(column: pa.Array, writer: ValueSchema, reader: ValueSchema) -> pa.Array:
    """Convert a value column to the reader's schema. Deletes (nulls) stay null. Raises IncompatibleSchema."""
    plan = resolve(reader, writer)
    return column if plan is None or reader.root is None else apply_resolution(plan, column, reader.root)


def rows_to_struct(values: Sequence[Mapping[str, object] | None], schema: ValueSchema) -> pa.Array:
    """Make the value column of a typed schema from Python values (None: a delete). Missing fields take their default.

    Raises InvalidChange with the path of a field that is unknown, missing, null, or of another type.
    """
    return from_rows(values, _typed(schema), _ROOT)


def struct_from_columns(
    columns: pa.Table | pa.RecordBatch, schema: ValueSchema, deletes: pa.Array | None = None
) -> pa.Array:
    """Make the value column from flat columns, one for each field of the schema.

    Rows of `deletes` (booleans) become null, whatever their fields hold. Types may differ within a family (large
    strings, dictionaries, integers that fit). A missing column takes the field's default. Raises InvalidChange with the
    path of a field that does not fit.
    """
    given = {name: whole_column(columns.column(number)) for number, name in enumerate(columns.column_names)}
    if len(given) != columns.num_columns:
        raise InvalidChange("two columns of one name", hint="Rename one", columns=", ".join(columns.column_names))
    if deletes is None:
        deletes = column_of(np.zeros(columns.num_rows, np.bool_))
    return fit_fields(given, _typed(schema), _ROOT, deletes)


def columns_of(struct: pa.Array) -> pa.RecordBatch:
    """Return the fields of a value column as flat columns. In a delete all fields are null."""
    return pa.RecordBatch.from_arrays(struct_children(struct), names=cast("pa.StructType", struct.type).names)


def _typed(schema: ValueSchema) -> ValueType:
    if schema.root is None:
        raise InvalidChange("this log's values are opaque bytes", hint="Give bytes, or make a log with a value schema")
    return schema.root


def avsc_from_arrow(kind: pa.DataType | pa.Schema, name: str) -> str:
    """Return the Avro schema (canonical JSON) of a record called `name` with the fields of a struct type or schema.

    Nullable fields become `["null", X]` with null as default. Raises ConfigError with the field's path for types that
    no value schema has (64-bit unsigned, durations, maps whose keys are no strings).
    """
    if not isinstance(kind, pa.Schema | pa.StructType):
        raise ConfigError("a value schema is made from columns", hint="Give a struct type or a schema", got=str(kind))
    return canonical_json(json.dumps(_record_of(list(kind), name, _ROOT)))


def _record_of(fields: Sequence[pa.Field], name: str, path: str) -> object:
    made = [
        {"name": one.name, "type": _type_of(one, f"{name}_{one.name}", f"{path}.{one.name}")}
        | ({"default": None} if one.nullable else {})
        for one in fields
    ]
    return {"type": "record", "name": name, "fields": made}


def _type_of(one: pa.Field, name: str, path: str) -> object:
    inner = _bare_type(one.type, name, path)
    return ["null", inner] if one.nullable else inner


def _bare_type(kind: pa.DataType, name: str, path: str) -> object:
    text = str(kind)
    if text in _SIMPLE:
        return _SIMPLE[text]
    if isinstance(kind, pa.StructType):
        return _record_of(list(kind), name, path)
    if isinstance(kind, pa.DictionaryType):
        return _bare_type(kind.value_type, name, path)
    if isinstance(kind, pa.TimestampType):
        unit = "micros" if kind.unit in ("us", "ns") else "millis"
        return {"type": "long", "logicalType": f"{'' if kind.tz else 'local-'}timestamp-{unit}"}
    if isinstance(kind, pa.Decimal128Type):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if pa.types.is_fixed_size_binary(kind):
        return {"type": "fixed", "name": name, "size": kind.byte_width}
    if is_list(kind):
        return {"type": "array", "items": _type_of(cast("pa.ListType", kind).value_field, f"{name}_item", f"{path}[]")}
    if isinstance(kind, pa.MapType) and str(kind.key_type) in ("string", "large_string"):
        return {"type": "map", "values": _type_of(kind.item_field, f"{name}_item", f"{path}{{}}")}
    raise ConfigError(f"no value schema has {kind}", hint="Cast the column before it is written", field=path)


# ---- a state as rows of a table: `key`, the value, and optionally `key_group`


STATE_NAMES = ("key", "key_group", "op")
"""Column names reserved by statelog."""
BATCH_ROWS = 65_536


def state_schema(
    descriptor: Descriptor, value: ValueSchema, *, include_key_group: bool, include_due: bool = False
) -> pa.Schema:
    """Return the columns of a state, all nullable.

    An opaque value is one binary column `value`, JSON one string column. A typed value is its fields, or one struct
    column `value` if a field has a reserved name; `due` is one if it is included.
    """
    fields = list(value.arrow_type) if isinstance(value.arrow_type, pa.StructType) else []
    if not fields or {field.name for field in fields} & {*STATE_NAMES, "value", *[DUE.name] * include_due}:
        fields = [pa.field("value", value.shown_type)]
    columns = [pa.field(field.name, table_type(field.type)) for field in fields]
    group = [pa.field("key_group", pa.int32())] if include_key_group else []
    due = [pa.field(DUE.name, table_type(DUE.type))] if include_due else []
    return pa.schema([pa.field("key", descriptor.key_type.arrow_type), *columns, *group, *due])


def state_batches(table: pa.Table, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield a state (key_group, key, value, perhaps due) as batches of the wanted columns, of at most 65,536 rows."""
    for batch in table.to_batches(max_chunksize=BATCH_ROWS):
        value = batch.column("value")
        given = {"key": batch.column("key"), "key_group": batch.column("key_group"), "value": value}
        if DUE.name in wanted.names:  # A field of the value may have this name; then it counts.
            is_there = DUE.name in batch.schema.names
            given[DUE.name] = batch.column(DUE.name) if is_there else pa.nulls(batch.num_rows, DUE.type)
        if "value" not in wanted.names and pa.types.is_struct(value.type):
            fields = columns_of(value)
            given.update({name: fields.column(number) for number, name in enumerate(fields.column_names)})
        arrays = [given[field.name].cast(field.type) for field in wanted]
        yield pa.RecordBatch.from_arrays(arrays, schema=wanted)


def with_text(rows: Rows, value: ValueSchema) -> Rows:
    """Return rows whose column `value` is text, if it has JSON; other rows as they are."""
    if not value.is_json:
        return rows
    place = rows.schema.get_field_index("value")
    texts: Any = rows.column(place).cast(pa.string())
    return rows.set_column(place, pa.field("value", pa.string()), texts)


def table_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of a value, or of a part of it, in a table: times in microseconds, bytes of any length."""
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


# ---- checks of a column's type against a schema, before there are values


_UNITS = ("s", "ms", "us", "ns")


class Reason(StrEnum):
    """Why a type does not fit, or values may not."""

    TYPE = "another type"
    UNKNOWN = "a field that the schema does not have"
    MISSING = "a field that is missing and has no default"
    NARROW = "a value may be too large or too fine"
    TEXT = "a text may be none that the schema has"
    NULL = "a value may be null"


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """A field that does not fit, or may not, with its `path` as in errors.

    `given` is None for a missing field, `wanted` for a field that the schema does not have.
    """

    path: str
    reason: Reason
    given: pa.DataType | None
    wanted: ValueType | None

    @property
    def is_certain(self) -> bool:
        """Whether no row can fit."""
        return self.reason in (Reason.TYPE, Reason.UNKNOWN, Reason.MISSING)


def misfits(given: pa.DataType, wanted: ValueType, path: str, *, nullable: bool) -> Iterator[Misfit]:
    """Yield all misfits of a column of type `given`, nested ones included. `nullable`: whether it may hold nulls.

    They predict the errors of `fit`: no value can fit, or some may not.
    """
    if isinstance(given, pa.DictionaryType):
        given = given.value_type
    if nullable and not wanted.nullable:
        yield Misfit(path=path, reason=Reason.NULL, given=given, wanted=wanted)
    if pa.types.is_null(given):
        return
    if wanted.kind == "record" and isinstance(given, pa.StructType):
        yield from _of_fields(given, wanted, path)
    elif wanted.kind == "map" and isinstance(given, pa.MapType) and family(given.key_type) != family(pa.string()):
        yield Misfit(path=path, reason=Reason.TYPE, given=given, wanted=wanted)
    elif (wanted.kind == "array" and is_list(given)) or (wanted.kind == "map" and pa.types.is_map(given)):
        item = given.item_field if isinstance(given, pa.MapType) else cast("pa.ListType", given).value_field
        yield from misfits(item.type, wanted.inner, wanted.path_inside(path), nullable=item.nullable)
    elif wanted.kind in ("record", "array", "map") or family(given) != family(wanted.arrow):
        yield Misfit(path=path, reason=Reason.TYPE, given=given, wanted=wanted)
    elif wanted.kind == "enum" or wanted.logical == "uuid":
        yield Misfit(path=path, reason=Reason.TEXT, given=given, wanted=wanted)
    elif _is_narrower(wanted.arrow, given):
        yield Misfit(path=path, reason=Reason.NARROW, given=given, wanted=wanted)


def _of_fields(given: pa.StructType, wanted: ValueType, path: str) -> Iterator[Misfit]:
    known = {one.name: one for one in wanted.fields}
    for one in given:
        inner = f"{path}.{one.name}"
        if one.name in known:
            yield from misfits(one.type, known[one.name].type, inner, nullable=one.nullable)
        else:
            yield Misfit(path=inner, reason=Reason.UNKNOWN, given=one.type, wanted=None)
    for name in sorted(set(known) - set(given.names)):
        if not known[name].has_default:
            yield Misfit(path=f"{path}.{name}", reason=Reason.MISSING, given=None, wanted=known[name].type)


def _is_narrower(wanted: pa.DataType, given: pa.DataType) -> bool:
    """Return whether a type cannot hold all values of another type of its family."""
    if pa.types.is_integer(given):
        return wanted.bit_width < given.bit_width
    if isinstance(given, pa.Decimal128Type) and isinstance(wanted, pa.Decimal128Type):
        whole = wanted.precision - wanted.scale < given.precision - given.scale
        return whole or wanted.scale < given.scale
    if pa.types.is_fixed_size_binary(wanted):
        return wanted != given
    return _fineness(wanted) < _fineness(given)


def _fineness(kind: pa.DataType) -> int:
    """Return the rank of the unit in the name of a temporal type, such as timestamp[us, tz=UTC]."""
    unit = str(kind).partition("[")[2].partition(",")[0].rstrip("]")
    return _UNITS.index(unit) if unit in _UNITS else 0
