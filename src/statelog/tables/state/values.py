"""`ValueRule`: the values of a table: which it takes, and how it returns them. Pure.

Opaque values are bytes. JSON values are held as the text that is logged, and decoded at each read.

A typed value is a dict of the value schema's fields. It is the same before a commit as after a restart, because the
table admits it as Arrow returns it: a 32-bit float has 32 bits, and omitted fields their defaults. It is handed out as
a copy, so changing it in place changes no state.

Invariants:
- An admitted value can be logged.
- A value with a time whose year Python lacks, which columns may have, is held as a `NoValue`: only reading it raises.
- Bytes of one value are Avro's plain binary form, as in every RocksDB database of this log.
"""

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NoReturn, cast

import fastavro
import pyarrow as pa
from pyarrow.lib import string_to_tzinfo

from statelog.errors import InvalidChange, NoSuchYear
from statelog.producer.buffer import Unquick, hint_for_value
from statelog.recovery.targets import no_such_year, values_of
from statelog.schemas.arrays import column_of_rows
from statelog.schemas.values.arrow import FIRST_US, LAST_US
from statelog.schemas.values.avro import avro_values
from statelog.schemas.values.json_text import decode_json, encode_json
from statelog.schemas.values.schema import ValueSchema, rows_to_struct
from statelog.schemas.values.types import ValueType

_SCALAR_BYTES = 16
"""The size of a decimal; the other scalars take half of it, or less."""
_OFFSET_BYTES = 4
_MOST_UTF8 = 4
_EPOCH = datetime(1970, 1, 1, tzinfo=string_to_tzinfo("UTC"))  # The zone object that Arrow gives, without pandas.
_OUR_TIMES = {f"timestamp-{unit}": f"statelog-{unit}" for unit in ("millis", "micros")}
fastavro.read.LOGICAL_READERS["long-statelog-millis"] = lambda time, _, __: _EPOCH + timedelta(milliseconds=time)
fastavro.read.LOGICAL_READERS["long-statelog-micros"] = lambda time, _, __: _EPOCH + timedelta(microseconds=time)
_INT_MAX = {"int": (1 << 31) - 1, "long": (1 << 63) - 1}
_MICROSECONDS = {
    "date": 86_400_000_000,
    **dict.fromkeys(("timestamp-millis", "local-timestamp-millis"), 1_000),
    **dict.fromkeys(("timestamp-micros", "local-timestamp-micros"), 1),
}
"""The microseconds in a unit of each type that has years."""
_SCALARS: Mapping[str, type] = {
    "boolean": bool,
    "int": int,
    "long": int,
    "double": float,
    "string": str,
    "bytes": bytes,
}


@dataclass(frozen=True, slots=True)
class NoValue:
    """Replaces a value that Python cannot have. Copying it, as a dict, raises NoSuchYear."""

    field: str
    key: object

    def keys(self) -> NoReturn:
        """Raise NoSuchYear."""
        raise no_such_year(self.field, self.key)

    items = keys


class ValueRule:
    """The values of one table. Opaque values are bytes; values of the `quick_class` need no further check."""

    def __init__(self, schema: ValueSchema) -> None:
        self.schema = schema
        self.is_opaque = schema.is_opaque
        self.is_plain = schema.is_opaque and not schema.is_json
        """Whether values are handed out as they are held."""
        self.quick_class: type = bytes if self.is_plain else Unquick
        root = schema.root
        self._fields: dict[str, ValueType] = {} if root is None else {one.name: one.type for one in root.fields}
        self._parsed = None if root is None else _parsed(schema.avsc, frozenset(["uuid"]))
        self._numbers = None if root is None else _parsed(schema.avsc, frozenset(["uuid", *_MICROSECONDS]))
        self._null_bytes = 0 if root is None else max(_null_sizes(root))
        self.copy: Callable[[Any], Any] = decode_json if schema.is_json else _copier(root)
        """Return a held value as it is handed out."""

    def copier(self, *, keys_only: bool) -> Callable[[Any], Any]:
        """Return `copy`, or for an iteration of keys a function that leaves even a `NoValue` alone."""
        return _same if keys_only else self.copy

    def admit(self, value: object, key: object) -> Any:
        """Return the value as the table holds it. Raises InvalidChange."""
        if self.schema.is_json:
            return encode_json(value, key)
        if self.is_opaque:
            if not isinstance(value, bytes):
                raise InvalidChange("a value has to be bytes", found=type(value).__name__, hint=hint_for_value(value))
            return bytes(memoryview(value))
        if not isinstance(value, Mapping):
            hint = hint_for_value(value, is_typed=True)
            raise InvalidChange("a value has to be a mapping of its fields", found=type(value).__name__, hint=hint)
        given = cast("Mapping[str, object]", value)
        is_plain = given.keys() == self._fields.keys() and all(
            _is_plain(given[name], kind) for name, kind in self._fields.items()
        )
        return dict(given) if is_plain else self.of_column(rows_to_struct([given], self.schema), [None])[0]

    def size(self, value: Any) -> int:
        """Return a close upper bound of an admitted value's bytes in the log, as `row_sizes` counts them."""
        match value:
            case str():
                return _OFFSET_BYTES + len(value) * (1 if value.isascii() else _MOST_UTF8)
            case bytes():
                return _OFFSET_BYTES + len(value)
            case dict():
                named = cast("dict[str, Any]", value)
                names_bytes = self.size("".join(named)) + _OFFSET_BYTES * len(named)
                return _SCALAR_BYTES + names_bytes + sum(map(self.size, named.values()))
            case list():
                return _SCALAR_BYTES + sum(map(self.size, cast("Sequence[Any]", value)))
            case None:
                return self._null_bytes
            case _:
                return _SCALAR_BYTES

    def column(self, values: Sequence[Any]) -> pa.Array:
        """Return admitted values as a column of the log; None, for a delete, is null. Raises InvalidChange."""
        return column_of_rows(values, pa.binary()) if self.is_opaque else rows_to_struct(values, self.schema)

    def of_column(self, column: pa.Array, keys: Sequence[Any]) -> list[Any]:
        """Return the values of a column of the log, for these keys and without deletes, as the table holds them."""
        try:
            return values_of(column, keys)
        except NoSuchYear:
            return list(map(self.decode, avro_values(column, self.schema).to_pylist(), keys))

    def encode(self, values: Sequence[Any]) -> list[bytes]:
        """Return the bytes of many admitted values, none of which is None."""
        if self.is_opaque:
            return list(values)
        encoded: list[bytes] = avro_values(self.column(values), self.schema).to_pylist()
        return encoded

    def decode(self, data: bytes, key: object) -> Any:
        """Return the value of `encode`'s bytes, for this key, as the table holds it."""
        try:
            return data if self._parsed is None else fastavro.schemaless_reader(io.BytesIO(data), self._parsed, None)
        except (OverflowError, ValueError):
            numbers = cast("dict[str, Any]", fastavro.schemaless_reader(io.BytesIO(data), self._numbers or {}, None))
            lacking = (name for name, kind in self._fields.items() if _lacks_year(numbers[name], kind))
            return NoValue(".".join(["value", *list(lacking)[:1]]), key)

    def is_same(self, value: Any, other: Any) -> bool:
        """Return whether two admitted values, or None, have the same bytes. 0.0 and -0.0 do not."""
        if value != other or value is None or self.is_opaque:
            return bool(value == other)
        one, another = self.encode([value, other])
        return one == another


def _is_plain(value: object, kind: ValueType) -> bool:
    """Return whether its type alone shows that Arrow returns it as it is."""
    if value is None:
        return kind.nullable
    if kind.logical or type(value) is not _SCALARS.get(kind.kind):
        return False
    match value:
        case bool():
            return True
        case int():
            most = _INT_MAX[kind.kind]
            return -most - 1 <= value <= most
        case str():
            return value.isascii()
        case _:
            return True


def _lacks_year(item: Any, kind: ValueType) -> bool:
    """Return whether Python lacks the year of a time in a value whose times are numbers."""
    if item is None:
        return False
    if kind.logical in _MICROSECONDS:
        return not FIRST_US <= item * _MICROSECONDS[kind.logical] <= LAST_US
    inner: Iterable[tuple[Any, ValueType]] = ((item[one.name], one.type) for one in kind.fields)
    if kind.items is not None:
        items = cast("Iterable[Any]", item.values() if kind.kind == "map" else item)
        inner = ((one, kind.inner) for one in items)
    return any(_lacks_year(*one) for one in inner)


def _null_sizes(kind: ValueType) -> Iterator[int]:
    """Yield the bytes of a null of this type, and of those inside: a null record has all of its fields."""
    yield _null_bytes(kind)
    for inner in (*(one.type for one in kind.fields), *([kind.items] if kind.items is not None else [])):
        yield from _null_sizes(inner)


def _null_bytes(kind: ValueType) -> int:
    return _SCALAR_BYTES + kind.size + sum(_null_bytes(one.type) for one in kind.fields)


def _copier(root: ValueType | None) -> Callable[[Any], Any]:
    if root is None:
        return _same
    return _deep_dict if any(one.type.kind in ("record", "array", "map") for one in root.fields) else dict


def _same(value: Any) -> Any:
    return value


def _deep_dict(value: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _deep_copy(item) for name, item in value.items()}


def _deep_copy(value: Any) -> Any:
    if isinstance(value, dict):
        return _deep_dict(cast("dict[str, Any]", value))
    return [_deep_copy(item) for item in cast("Sequence[Any]", value)] if isinstance(value, list) else value


def _parsed(avsc: str, dropped: frozenset[str]) -> Any:
    return fastavro.parse_schema(_without(json.loads(avsc), dropped))


def _without(schema: Any, dropped: frozenset[str]) -> Any:
    """Return the schema without these logical types: fastavro makes objects of UUIDs, where Arrow has text. Times get
    types of ours, whose zone is the object that Arrow gives.
    """
    if isinstance(schema, list):
        return [_without(one, dropped) for one in cast("Sequence[Any]", schema)]
    if not isinstance(schema, dict):
        return _OUR_TIMES.get(schema, schema) if isinstance(schema, str) else schema
    kept = cast("dict[str, Any]", schema)
    drop = kept.get("logicalType") in dropped
    return {
        name: value if name in ("default", "symbols") else _without(value, dropped)
        for name, value in kept.items()
        if not (drop and name == "logicalType")
    }
