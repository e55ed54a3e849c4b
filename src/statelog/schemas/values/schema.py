"""Value schemas: the type of a log's values, its evolution, and values as Arrow columns. Pure.

Schema id 0 means opaque bytes. Every other id names an Avro record schema; its values are one Arrow struct column,
in chunks, runs and results alike. A null in that column is a delete's.

Invariants:
- A schema that `check_compatible` let pass reads every value of every earlier schema, and reads it the same whether or
  not merges rewrote it to schemas in between.
- Conversion is by column. Nothing here loops over rows, except `rows_to_struct`, whose input is Python rows.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import pyarrow as pa

from statelog.errors import ConfigError, IncompatibleSchema, InvalidChange
from statelog.schemas.values.arrow import default_array, fit, fit_fields, from_rows, struct_children
from statelog.schemas.values.resolution import Resolution, apply_resolution, compose, first_difference, make_resolution
from statelog.schemas.values.types import ValueType, canonical_json, parse_value_type

__all__ = [
    "OPAQUE",
    "ValueSchema",
    "avsc_from_arrow",
    "check_compatible",
    "columns_of",
    "convert",
    "fit_struct",
    "parse_value_schema",
    "resolve",
    "rows_to_struct",
    "struct_from_columns",
]

_ROOT = "value"
_SIMPLE: Mapping[str, object] = {
    "bool": "boolean",
    "int8": "int",
    "int16": "int",
    "int32": "int",
    "uint8": "int",
    "uint16": "int",
    "uint32": "long",
    "int64": "long",
    "halffloat": "float",
    "float": "float",
    "double": "double",
    "string": "string",
    "large_string": "string",
    "string_view": "string",
    "binary": "bytes",
    "large_binary": "bytes",
    "binary_view": "bytes",
    "date32[day]": {"type": "int", "logicalType": "date"},
    "date64[ms]": {"type": "int", "logicalType": "date"},
    "time32[s]": {"type": "int", "logicalType": "time-millis"},
    "time32[ms]": {"type": "int", "logicalType": "time-millis"},
    "time64[us]": {"type": "long", "logicalType": "time-micros"},
    "time64[ns]": {"type": "long", "logicalType": "time-micros"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueSchema:
    """What the values of some changes are. `id` 0 is opaque bytes; `avsc` is canonical JSON, '' for opaque."""

    id: int
    avsc: str
    root: ValueType | None = field(default=None, compare=False, repr=False)

    @property
    def is_opaque(self) -> bool:
        """Whether values are bytes that statelog never looks into."""
        return self.root is None

    @property
    def arrow_type(self) -> pa.DataType:
        """The Arrow type of the value column: binary, or a struct of nullable fields."""
        return pa.binary() if self.root is None else self.root.arrow


OPAQUE = ValueSchema(id=0, avsc="")


def parse_value_schema(avsc: str, schema_id: int) -> ValueSchema:
    """Read an Avro record schema. `schema_id` is at least 1.

    Raises ConfigError with the field's path: recursive types, unions of other than null and one type, records without
    fields, more than 64 levels, names that are not Avro's, defaults of a wrong type.
    """
    if schema_id < 1:
        raise ConfigError("a value schema has an id of at least 1", hint="0 means opaque bytes", schema_id=schema_id)
    root = parse_value_type(avsc)
    _check_defaults(root, _ROOT)
    return ValueSchema(id=schema_id, avsc=canonical_json(avsc), root=root)


def _check_defaults(kind: ValueType, path: str) -> None:
    for one in kind.fields:
        if one.has_default:
            default_array(one.default, one.type, f"{path}.{one.name}")
        _check_defaults(one.type, f"{path}.{one.name}")
    if kind.items is not None:
        _check_defaults(kind.items, f"{path}[]")


def resolve(reader: ValueSchema, writer: ValueSchema) -> Resolution | None:
    """How values written with `writer` become the reader's; None if they are the same already.

    Avro's rules: fields by name or alias, added ones take their default, removed ones are dropped, int to long to float
    to double, string to bytes, unknown enum symbols to the enum's default. Narrower than Avro in one way: what could
    fail for some value (bytes to string) is refused for all. Raises IncompatibleSchema with the field and both types.
    """
    if reader.root is None or writer.root is None:
        if reader.root is not writer.root:
            raise _mixed(reader, writer)
        return None
    return None if reader.avsc == writer.avsc else make_resolution(reader.root, writer.root, _ROOT)


def check_compatible(new: ValueSchema, all_earlier: Sequence[ValueSchema]) -> None:
    """Check that `new` may follow `all_earlier` (by ascending id). Raises IncompatibleSchema.

    Beside reading every earlier value, it must read them the same through the schema before it: a removed name that
    comes back, or a default that changes, would make values depend on when a merge ran.
    """
    if new.root is None or not all_earlier or all_earlier[-1].root is None:
        for earlier in all_earlier:
            resolve(new, earlier)
        return
    last = all_earlier[-1].root
    for earlier in all_earlier:
        if earlier.root is None:
            raise _mixed(new, earlier)
        direct = make_resolution(new.root, earlier.root, _ROOT)
        through = compose(make_resolution(last, earlier.root, _ROOT), make_resolution(new.root, last, _ROOT), new.root)
        path = first_difference(direct, through, _ROOT)
        if path is not None:
            message = "a field that a merge through the previous schema would change"
            hint = "Give it a new name; do not bring removed names back, and do not change defaults"
            raise IncompatibleSchema(message, hint=hint, field=path, new=new.id, earlier=earlier.id)


def _mixed(new: ValueSchema, earlier: ValueSchema) -> IncompatibleSchema:
    hint = "Opaque and typed values do not mix in one log; create a new log"
    return IncompatibleSchema("opaque and typed values", hint=hint, new=new.id, earlier=earlier.id)


def convert(column: pa.Array, writer: ValueSchema, reader: ValueSchema) -> pa.Array:
    """A value column of the writer's schema as the reader's. Deletes (nulls) stay null. Raises IncompatibleSchema."""
    plan = resolve(reader, writer)
    return column if plan is None or reader.root is None else apply_resolution(plan, column, reader.root)


def rows_to_struct(values: Sequence[Mapping[str, object] | None], schema: ValueSchema) -> pa.Array:
    """Python values (None is a delete's) as the value column of a typed schema. Missing fields take their default.

    Raises InvalidChange with the path of a field that is unknown, missing, null, or of another type.
    """
    return from_rows(values, _typed(schema), _ROOT)


def struct_from_columns(
    columns: pa.Table | pa.RecordBatch, schema: ValueSchema, deletes: pa.Array | None = None
) -> pa.Array:
    """Flat columns, one for each field of the schema, as the value column. `deletes` (booleans) are null in it,
    whatever their fields hold; without it no row is a delete.

    Types may differ within a family (large strings, dictionaries, integers that fit); a missing column takes the
    field's default. Raises InvalidChange with the path of what does not fit.
    """
    given = {name: _one(columns.column(number)) for number, name in enumerate(columns.column_names)}
    if len(given) != columns.num_columns:
        raise InvalidChange("two columns of one name", hint="Rename one", columns=", ".join(columns.column_names))
    if deletes is None:
        deletes = pa.repeat(pa.scalar(value=False, type=pa.bool_()), columns.num_rows)
    return fit_fields(given, _typed(schema), _ROOT, deletes)


def fit_struct(column: pa.Array, schema: ValueSchema) -> pa.Array:
    """A struct column of kindred types as the value column; nulls (deletes) are kept. Raises InvalidChange."""
    return fit(column, _typed(schema), _ROOT)


def columns_of(struct: pa.Array) -> pa.RecordBatch:
    """The fields of a value column as flat columns; a delete's are all null."""
    return pa.RecordBatch.from_arrays(struct_children(struct), names=cast("pa.StructType", struct.type).names)


def _one(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(column, pa.Array):
        return column
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)


def _typed(schema: ValueSchema) -> ValueType:
    if schema.root is None:
        raise InvalidChange("this log's values are opaque bytes", hint="Give bytes, or make a log with a value schema")
    return schema.root


def avsc_from_arrow(kind: pa.DataType | pa.Schema, name: str) -> str:
    """The Avro schema (canonical JSON) of a record called `name` whose fields are those of a struct type or schema.

    Nullable fields become `["null", X]` with null as default. Raises ConfigError with the field's path for types that
    no value schema has (64-bit unsigned, durations, maps whose keys are no strings).
    """
    if isinstance(kind, pa.Schema):
        return canonical_json(json.dumps(_record_of(list(kind), name, _ROOT)))
    if not pa.types.is_struct(kind):
        raise ConfigError("a value schema is made from columns", hint="Give a struct type or a schema", got=str(kind))
    return canonical_json(json.dumps(_record_of(list(cast("pa.StructType", kind)), name, _ROOT)))


def _record_of(fields: Sequence[pa.Field], name: str, path: str) -> object:
    return {"type": "record", "name": name, "fields": [_field_of(one, name, f"{path}.{one.name}") for one in fields]}


def _field_of(one: pa.Field, name: str, path: str) -> object:
    made: dict[str, object] = {"name": one.name, "type": _type_of(one, f"{name}_{one.name}", path)}
    return {**made, "default": None} if one.nullable else made


def _type_of(one: pa.Field, name: str, path: str) -> object:
    inner = _bare_type(one.type, name, path)
    return ["null", inner] if one.nullable else inner


def _bare_type(kind: pa.DataType, name: str, path: str) -> object:
    text = str(kind)
    if text in _SIMPLE:
        return _SIMPLE[text]
    if pa.types.is_struct(kind):
        return _record_of(list(cast("pa.StructType", kind)), name, path)
    if pa.types.is_dictionary(kind):
        return _bare_type(cast("pa.DictionaryType", kind).value_type, name, path)
    if pa.types.is_timestamp(kind):
        zoned = cast("pa.TimestampType", kind)
        unit = "micros" if zoned.unit in ("us", "ns") else "millis"
        return {"type": "long", "logicalType": f"{'' if zoned.tz else 'local-'}timestamp-{unit}"}
    if pa.types.is_decimal128(kind):
        number = cast("pa.Decimal128Type", kind)
        return {"type": "bytes", "logicalType": "decimal", "precision": number.precision, "scale": number.scale}
    if pa.types.is_fixed_size_binary(kind):
        return {"type": "fixed", "name": name, "size": kind.byte_width}
    if text.startswith(("list<", "large_list<", "fixed_size_list<")):
        return {"type": "array", "items": _type_of(cast("pa.ListType", kind).value_field, f"{name}_item", f"{path}[]")}
    if pa.types.is_map(kind) and str(cast("pa.MapType", kind).key_type) in ("string", "large_string"):
        return {"type": "map", "values": _type_of(cast("pa.MapType", kind).item_field, f"{name}_item", f"{path}{{}}")}
    raise ConfigError(f"no value schema has {kind}", hint="Cast the column before it is written", field=path)
