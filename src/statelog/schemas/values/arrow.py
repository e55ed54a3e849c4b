"""Values as Arrow arrays: from Python rows, from columns of other types, and the checks on the way in. Pure.

Every returned array has exactly the Arrow type of its schema, no null where the schema has none, and only the symbols
of an enum. A value that does not fit is InvalidChange with the path of the field: nothing is truncated, parsed or
encoded silently (but a Python float becomes a 32-bit float where the schema has one).
"""

import datetime
import decimal
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statelog.errors import ConfigError, InvalidChange
from statelog.schemas.arrays import column_of, column_of_rows, numbers_of, numbers_or_zeros
from statelog.schemas.values.types import ValueField, ValueType

_ACCEPTED: Mapping[str, tuple[type, ...]] = {
    "boolean": (bool, np.bool_),
    **dict.fromkeys(("int", "long"), (int, np.integer)),
    **dict.fromkeys(("float", "double"), (int, float, np.integer, np.floating)),
    **dict.fromkeys(("string", "enum", "uuid"), (str,)),
    **dict.fromkeys(("bytes", "fixed"), (bytes, bytearray)),
    "array": (list, tuple),
    **dict.fromkeys(("map", "record"), (Mapping,)),
    "date": (datetime.date,),
    **dict.fromkeys(("time-millis", "time-micros"), (datetime.time,)),
    **dict.fromkeys(("timestamp-millis", "timestamp-micros"), (datetime.datetime,)),
    **dict.fromkeys(("local-timestamp-millis", "local-timestamp-micros"), (datetime.datetime,)),
    "decimal": (decimal.Decimal,),
}
"""The Python types that a logical type, or else a type, accepts."""
_LISTS = ("list", "large_list", "fixed_size_list")
_VIEWED = {"string_view": pa.large_string(), "binary_view": pa.large_binary()}
"""Types that Arrow's functions do not support yet, and a type of the same size that they do."""
FIRST_US, LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The first and the last datetime, in microseconds since 1970."""
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")
"""Defaults without a JSON number, as Jackson, and so a schema registry, spells them."""
_UUID_PATTERN = r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
MAP_KEY = ValueType(kind="string", arrow=pa.string())
"""The type of every map's keys."""


def from_rows(rows: Sequence[object], kind: ValueType, path: str) -> pa.Array:
    """Make an array of Python values; None is null. A field that a row lacks takes its default.

    Raises InvalidChange.
    """
    _check_types(rows, kind, path)
    if kind.kind == "record":
        return _records(cast("Sequence[Mapping[str, object] | None]", rows), kind, path)
    if kind.kind in ("array", "map"):
        return _nested_rows(rows, kind, kind.path_inside(path))
    return _plain(rows, kind, path)


def _nested_rows(rows: Sequence[object], kind: ValueType, path: str) -> pa.Array:
    present = cast("list[Sequence[object]]", [row for row in rows if row is not None])
    lengths = [0 if row is None else len(cast("Sequence[object]", row)) for row in rows]
    keys = None
    if kind.kind == "map":
        keys = _no_nulls(from_rows(list(chain.from_iterable(present)), MAP_KEY, path), MAP_KEY, path)
        present = [list(cast("Mapping[str, object]", row).values()) for row in present]
    items = _no_nulls(from_rows(list(chain.from_iterable(present)), kind.inner, path), kind.inner, path)
    offsets = _offsets(np.array(lengths, np.int64), np.array([row is None for row in rows], np.bool_))
    return Nested(offsets, keys, items).as_type(kind.arrow)


def default_array(default: object, kind: ValueType, path: str) -> pa.Array:
    """Make an array of one row from a schema's JSON default. Raises ConfigError if it is no value of the type."""
    try:
        row = _from_json(default, kind)
        # Null is the usual default. `pa.array` would import pandas in every process that opens the log.
        return pa.nulls(1, kind.arrow) if row is None else from_rows([row], kind, path)
    except (InvalidChange, ValueError, TypeError, OverflowError, ArithmeticError) as error:
        hint = "Give a default of the field's own type"
        raise ConfigError(f"the default does not fit: {error}", hint=hint, field=path) from error


def fit(column: pa.Array, kind: ValueType, path: str) -> pa.Array:
    """Convert an array to the schema's type: integers that fit, large or dictionary strings, records by name.

    Nulls at the top stay, because they are deletes. Raises InvalidChange.
    """
    if pa.types.is_dictionary(column.type):
        try:
            column = column.cast(cast("pa.DictionaryType", column.type).value_type)
        except pa.ArrowInvalid as error:
            raise _too_much(path) from error
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), kind.arrow)
    if kind.kind == "record":
        found = cast("pa.StructType", column.type)
        _expect(pa.types.is_struct(found) and len(set(found.names)) == found.num_fields, column, kind, path)
        return fit_fields(dict(zip(found.names, struct_children(column), strict=True)), kind, path, column.is_null())
    if kind.kind == "array":
        _expect(is_list(column.type), column, kind, path)
        column = column.cast(pa.list_(cast("pa.ListType", column.type).value_type))
    elif kind.kind == "map":
        _expect(pa.types.is_map(column.type), column, kind, path)
    else:
        return _checked_text(_cast(column, kind, path), kind, path)
    inner, (offsets, keys, items) = kind.path_inside(path), Nested.of(column)
    names = None if keys is None else _cast(keys, MAP_KEY, inner)
    return Nested(offsets, names, _no_nulls(fit(items, kind.inner, inner), kind.inner, inner)).as_type(kind.arrow)


class Nested(NamedTuple):
    """The parts of a column of lists or maps: offsets (null where the row is null), keys of maps, and the items."""

    offsets: pa.Array
    keys: pa.Array | None
    items: pa.Array

    @classmethod
    def of(cls, column: pa.Array) -> "Nested":
        """Return the parts of a column, which may be a slice."""
        kind = column.type
        if isinstance(kind, pa.MapType):
            entry = pa.struct([pa.field("key", kind.key_type), pa.field("value", kind.item_type)])
            offsets, _, entries = cls.of(column.cast(pa.list_(entry)))
            return cls(offsets, *struct_children(entries))
        lengths = numbers_or_zeros(pc.list_value_length(column)).astype(np.int64)
        return cls(_offsets(lengths, numbers_of(column.is_null())), None, cast("pa.ListArray", column).flatten())

    def as_type(self, kind: pa.DataType) -> pa.Array:
        """Return the column of this type."""
        if self.keys is None:
            return pa.ListArray.from_arrays(self.offsets, self.items, type=kind)
        return pa.MapArray.from_arrays(self.offsets, self.keys, self.items, type=kind)


def struct_children(column: pa.Array) -> list[pa.Array]:
    """Return a struct array's fields, null where the struct is null."""
    return cast("pa.StructArray", column).flatten()


def struct_of(children: Sequence[pa.Array], kind: ValueType, is_null: pa.Array) -> pa.Array:
    """Make a record column of its fields' columns. Rows of `is_null` are null as a whole."""
    fields = [pa.field(one.name, one.type.arrow) for one in kind.fields]
    return pa.StructArray.from_arrays(children, fields=fields, mask=is_null)


def repeated(one_row: pa.Array, length: int) -> pa.Array:
    """Repeat an array of one row `length` times."""
    return one_row.take(column_of(np.zeros(length, np.int64)))


def _offsets(lengths: np.ndarray[Any, np.dtype[np.int64]], is_null: np.ndarray[Any, np.dtype[np.bool_]]) -> pa.Array:
    ends = np.concatenate([[0], np.cumsum(lengths)])
    return column_of(ends.astype(np.int32), np.append(is_null, False))


def _refused(message: str, path: str) -> InvalidChange:
    return InvalidChange(message, hint="Give values of the log's value schema", field=path)


def _too_much(path: str) -> InvalidChange:
    return InvalidChange(
        "a field of more than 2 GiB", hint="Give fewer rows at a time, or commit more often", field=path
    )


def _expect(holds: bool, column: pa.Array, kind: ValueType, path: str) -> None:
    if not holds:
        raise _refused(f"a column of type {column.type} where the schema has {kind}", path)


def _no_nulls(column: pa.Array, kind: ValueType, path: str, allowed: int = 0) -> pa.Array:
    if column.null_count > allowed and not kind.nullable:
        raise _refused(f"a null where the schema has {kind}", path)
    return column


def fit_fields(given: Mapping[str, pa.Array], kind: ValueType, path: str, is_null: pa.Array) -> pa.Array:
    """Make a record column from columns by name. A missing column takes the field's default. Raises InvalidChange."""
    null_rows = cast("pa.BooleanArray", is_null).true_count

    def child(one: ValueField, inner: str) -> pa.Array:
        if one.name in given:
            return fit(_without(given[one.name], is_null, inner) if null_rows else given[one.name], one.type, inner)
        if one.has_default:
            return repeated(default_array(one.default, one.type, inner), len(is_null))
        raise _refused("a field that is missing and has no default", inner)

    return _record(given, child, kind, path, is_null)


def _record(
    given: Iterable[str], child: Callable[[ValueField, str], pa.Array], kind: ValueType, path: str, is_null: pa.Array
) -> pa.Array:
    """Make a record column of the columns that `child` makes of each field and its path. Refuse unknown fields."""
    unknown = set(given) - {one.name for one in kind.fields}
    if unknown:
        raise _refused(f"fields that the schema does not have: {', '.join(sorted(map(str, unknown)))}", path)
    nulls = cast("pa.BooleanArray", is_null).true_count
    paths = [(one, f"{path}.{one.name}") for one in kind.fields]
    return struct_of([_no_nulls(child(one, at), one.type, at, nulls) for one, at in paths], kind, is_null)


def _without(column: pa.Array, is_null: pa.Array, path: str) -> pa.Array:
    """Return a field's column with null in null rows, so that its null count shows all other nulls."""
    column = column.cast(_VIEWED.get(str(column.type), column.type))
    try:
        return pc.if_else(is_null, pa.nulls(1, column.type)[0], column)
    except pa.ArrowNotImplementedError as error:
        raise _refused(f"a column of type {column.type} together with deletes", path) from error


def is_list(kind: pa.DataType) -> bool:
    """Return whether it is a list of any of Arrow's forms."""
    return str(kind).partition("<")[0].partition("[")[0] in _LISTS


def family(kind: pa.DataType) -> str:
    """Return the family of a type. Types of one family convert into each other, as long as no value changes."""
    text = str(kind)
    if text in ("string", "large_string", "string_view"):
        return "string"
    if text in ("binary", "large_binary", "binary_view") or text.startswith("fixed_size_binary"):
        return "binary"
    if pa.types.is_integer(kind):
        return "integer"
    if text in ("halffloat", "float", "double"):
        return "float"
    if pa.types.is_timestamp(kind):
        return "timestamp" if cast("pa.TimestampType", kind).tz else "local timestamp"
    return text.partition("[")[0].partition("(")[0].rstrip("0123456789")


def _cast(column: pa.Array, kind: ValueType, path: str) -> pa.Array:
    if column.type == kind.arrow:
        return column
    _expect(family(column.type) == family(kind.arrow), column, kind, path)
    try:
        made = column.cast(kind.arrow, safe=True)
    except (pa.ArrowException, ValueError) as error:
        raise _refused(f"a value that {kind} cannot hold: {error}", path) from error
    if kind.kind == "float":
        _check_finite(made, _infinite(column), kind, path)
    return made


def _checked_text(column: pa.Array, kind: ValueType, path: str) -> pa.Array:
    """Return the column. Refuse texts that are no symbol of the enum, or no uuid."""
    if kind.kind == "enum":
        known = pc.is_in(column, column_of_rows([*kind.symbols, None], pa.string()))
    elif kind.logical == "uuid":
        known = pc.match_substring_regex(column, _UUID_PATTERN)
    else:
        return column
    if pc.any(pc.invert(known)).as_py():
        raise _refused(f"a text that is not a {kind}", path)
    return column


def _check_types(rows: Sequence[object], kind: ValueType, path: str) -> None:
    """Check the set of Python types, not every row. A bool is no int, and a datetime no date."""
    accepted = _ACCEPTED[kind.logical or kind.kind]
    refused = () if kind.kind == "boolean" else (bool,)
    if kind.logical == "date":
        refused = (*refused, datetime.datetime)
    for found in set(map(type, rows)) - {type(None)}:
        if not issubclass(found, accepted) or issubclass(found, refused):
            article = "an" if found.__name__.startswith(("i", "o")) else "a"
            raise _refused(f"{article} {found.__name__} where the schema has {kind}", path)


def _plain(rows: Sequence[object], kind: ValueType, path: str) -> pa.Array:
    try:
        if kind.logical.endswith(("timestamp-millis", "timestamp-micros")):
            _check_times(cast("Sequence[datetime.datetime | None]", rows), kind, path)
            column = pa.array(rows, pa.timestamp("us", cast("pa.TimestampType", kind.arrow).tz))
            _check_years(column, kind, path)
        elif kind.logical.startswith("time-"):
            _check_times(cast("Sequence[datetime.time | None]", rows), kind, path)
            column = pa.array(rows, pa.time64("us"))
        else:
            column = pa.array(rows, kind.arrow, from_pandas=False)
            if isinstance(column, pa.ChunkedArray):
                raise _too_much(path)
        if kind.kind == "float" and _infinite(column):
            _check_finite(column, sum(map(math.isinf, filter(None, cast("Sequence[float]", rows)))), kind, path)
        return _checked_text(column.cast(kind.arrow, safe=True), kind, path)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise _refused(f"a value that {kind} cannot hold: {error}", path) from error


def _check_times(rows: Sequence[datetime.datetime | datetime.time | None], kind: ValueType, path: str) -> None:
    aware = kind.logical.startswith("timestamp")
    if any(row is not None and (row.tzinfo is not None) != aware for row in rows):
        wanted = "with a time zone" if aware else "without a time zone"
        raise _refused(f"a time where the schema has {kind}: it must come {wanted}", path)
    if any(getattr(row, "nanosecond", 0) for row in rows):  # pyarrow truncates the nanoseconds of a pandas.Timestamp.
        raise _refused(f"a datetime with nanoseconds where the schema has {kind}", path)


def _check_years(column: pa.Array, kind: ValueType, path: str) -> None:
    """Refuse a time whose year in UTC is not 1 to 9999: readers cannot make a datetime of it."""
    numbers = numbers_or_zeros(column.view(pa.int64()))
    if len(numbers) and not FIRST_US <= int(numbers.min()) <= int(numbers.max()) <= LAST_US:
        raise _refused(f"a datetime whose year in UTC is not 1 to 9999, where the schema has {kind}", path)


def _check_finite(column: pa.Array, infinite: int, kind: ValueType, path: str) -> None:
    """Refuse numbers too large for 32 bits, which Arrow silently makes infinite."""
    if _infinite(column) > infinite:
        raise _refused(f"a number that is too large where the schema has {kind}", path)


def _infinite(column: pa.Array) -> int:
    return int(np.count_nonzero(np.isinf(numbers_or_zeros(column))))


def _records(rows: Sequence[Mapping[str, object] | None], kind: ValueType, path: str) -> pa.Array:
    present = [row for row in rows if row is not None]

    def child(one: ValueField, inner: str) -> pa.Array:
        default = _row_default(one, present, inner)
        return from_rows([None if row is None else row.get(one.name, default) for row in rows], one.type, inner)

    is_null = column_of(np.array([row is None for row in rows], np.bool_))
    return _record(set[str]().union(*present), child, kind, path, is_null)


def _row_default(one: ValueField, present: Sequence[Mapping[str, object]], path: str) -> object:
    """Return the default for rows that lack the field."""
    if all(one.name in row for row in present):
        return None
    if not one.has_default:
        raise _refused("a field that is missing and has no default", path)
    return _from_json(one.default, one.type)


def _from_json(default: object, kind: ValueType) -> object:
    """Convert a JSON default to the Python value that `from_rows` takes. Raises ValueError and the like for misfits."""
    if default is None:
        if not kind.nullable:
            raise ValueError(f"null is not a {kind}")
        return None
    if kind.kind in ("bytes", "fixed"):
        data = str(default).encode("latin-1") if isinstance(default, str) else b"" + cast("bytes", default)
        if kind.logical != "decimal":
            return data
        unscaled, scale = int.from_bytes(data, "big", signed=True), cast("pa.Decimal128Type", kind.arrow).scale
        return decimal.Decimal(unscaled).scaleb(-scale, decimal.Context(prec=80))
    if kind.kind in ("float", "double") and default in _NOT_FINITE:
        return float(default)
    if kind.kind == "float" and isinstance(default, float):
        return pa.array([default], kind.arrow)[0].as_py()  # Infinite if too large: existing logs rely on it.
    if kind.logical and kind.kind in ("int", "long"):
        width = pa.int32() if kind.kind == "int" else pa.int64()
        return pa.array([default], width).view(kind.arrow)[0].as_py()
    if kind.kind == "array":
        return [_from_json(item, kind.inner) for item in cast("list[object]", default)]
    if kind.kind == "map":
        return {key: _from_json(item, kind.inner) for key, item in _items(default)}
    if kind.kind == "record":
        known = {one.name: one.type for one in kind.fields}
        return {name: _from_json(item, known[name]) if name in known else item for name, item in _items(default)}
    return default


def _items(default: object) -> Iterable[tuple[str, object]]:
    """Return a JSON object's pairs. Existing logs may have an empty list instead. Raises ValueError, TypeError."""
    return dict(cast("Mapping[str, object]", default)).items()
