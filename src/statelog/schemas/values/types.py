"""Value types: an Avro record schema read into a tree that knows its Arrow types. Pure.

Only schemas with one plain meaning in Avro, Arrow and Parquet are accepted: a record at the top, unions of null and one
other type, no recursion, no type of zero bytes. Every refusal names the field path.

Invariants:
- A tree is at most 64 deep and has at most 10,000 nodes, even if the schema text repeats types by name.
- Arrow fields are always nullable (Spark compares them so); `values.arrow` checks the fields that must not be null.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import cast

import pyarrow as pa

from statelog.errors import ConfigError
from statelog.schemas.ledger.place import has_utf8
from statelog.schemas.names import check_kind

_MAX_DEPTH = 64
_MAX_NODES = 10_000
_MAX_TEXT = 1024 * 1024
_MAX_PRECISION = 38
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_PRIMITIVES: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
}
_LOGICAL: Mapping[tuple[str, str], pa.DataType] = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("string", "uuid"): pa.string(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueField:
    """One field of a record. `default` is JSON as in the schema; it counts only if `has_default`."""

    name: str
    type: "ValueType"
    has_default: bool = False
    default: object = None
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueType:
    """One node of a value schema.

    `kind`: Avro's type name.
    `logical`: its logical type or ''.
    `name`: the unqualified name of a record, enum or fixed.
    `items`: the inner type of an array or map.
    `null_last`: whether the union with null names null second. Only Avro's binary form needs it.
    `size`: the size of a fixed. Only Avro's binary form needs it.
    """

    kind: str
    arrow: pa.DataType
    nullable: bool = False
    null_last: bool = False
    logical: str = ""
    name: str = ""
    aliases: tuple[str, ...] = ()
    symbols: tuple[str, ...] = ()
    symbol_default: str | None = None
    fields: tuple[ValueField, ...] = ()
    items: "ValueType | None" = None
    size: int = 0

    @property
    def inner(self) -> "ValueType":
        """The inner type of an array or map."""
        assert self.items is not None, "only arrays and maps have items"
        return self.items

    def path_inside(self, path: str) -> str:
        """Return the path, for errors, of the items of an array or map with this path."""
        return path + ("[]" if self.kind == "array" else "{}")

    def __str__(self) -> str:
        named = f"{self.kind} {self.name}" if self.name else self.kind
        logical = f" ({self.arrow})" if self.logical or self.kind == "fixed" else ""
        inner = f"<{self.items}>" if self.items is not None else ""
        return f"{named}{logical}{inner}{' or null' if self.nullable else ''}"


def canonical_json(avsc: str) -> str:
    """Return the schema text with sorted keys and no spaces: equal texts mean equal schemas. Raises ConfigError."""
    text = json.dumps(_loads(avsc), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    if not has_utf8(text):
        raise _refused("a text in the schema is not valid Unicode", "value", "Remove lone surrogates")
    return text


def parse_value_type(avsc: str) -> ValueType:
    """Read an Avro schema (JSON text) whose top is a record. Raises ConfigError with the path of the field."""
    raw = _loads(avsc)
    root = _Parser().parse(raw, "value", "", 0)
    if root.kind != "record" or root.nullable:
        raise _refused("a value schema is a record at the top", "value", f"found {root}; wrap it into a record")
    return root


def _loads(avsc: str) -> object:
    check_kind("value_schema", avsc, str, example="the text of an .avsc file; that of a dict is json.dumps(schema)")
    if len(avsc) > _MAX_TEXT:
        raise _refused(f"a value schema of more than {_MAX_TEXT} characters", "value", "Shorten it")
    try:
        return json.loads(avsc.removeprefix("\ufeff"), parse_constant=_number, parse_float=_number)
    except (ValueError, RecursionError) as error:
        raise _refused(f"the schema is not JSON: {error}", "value", "Give the text of an .avsc file") from error


def _number(text: str) -> float:
    """Parse a number. Refuse an infinite one, such as 1e999: it could not be read again from the stored text."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not JSON")
    return number


def _refused(message: str, path: str, hint: str) -> ConfigError:
    return ConfigError(message, hint=hint, field=path)


@dataclass(slots=True)
class _Parser:
    """One pass over a schema's JSON. Remembers named types, because a name may be used again later."""

    named: dict[str, ValueType] = field(default_factory=dict[str, ValueType])
    open_names: set[str] = field(default_factory=set[str])
    nodes: int = 0

    def parse(self, raw: object, path: str, namespace: str, depth: int) -> ValueType:
        self._count(path, depth, 1)
        if isinstance(raw, str):
            return self._by_name(raw, path, namespace, depth)
        if isinstance(raw, list):
            return self._union(cast("list[object]", raw), path, namespace, depth)
        if isinstance(raw, dict):
            return self._complex(cast("dict[str, object]", raw), path, namespace, depth)
        raise _refused(f"{raw!r} is not a type", path, "Use a type name, an object or a list")

    def _count(self, path: str, depth: int, nodes: int) -> None:
        self.nodes += nodes
        if depth > _MAX_DEPTH:
            raise _refused(f"more than {_MAX_DEPTH} types inside each other", path, "Make the schema flatter")
        if self.nodes > _MAX_NODES:
            raise _refused(f"more than {_MAX_NODES} types", path, "Make the schema smaller")

    def _by_name(self, name: str, path: str, namespace: str, depth: int) -> ValueType:
        if name in _PRIMITIVES:
            return ValueType(kind=name, arrow=_PRIMITIVES[name])
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        if full in self.open_names:
            raise _refused(f"{name} contains itself", path, "Recursive types cannot be columns; use bytes")
        if full not in self.named:
            raise _refused(f"{name!r} is not a type", path, "Name an Avro type, or define it before this field")
        known = self.named[full]
        nodes, levels = _size(known)
        self._count(path, depth + levels, nodes)
        return known

    def _union(self, branches: list[object], path: str, namespace: str, depth: int) -> ValueType:
        others = [branch for branch in branches if branch != "null" and branch != {"type": "null"}]
        if len(others) != 1 or len(branches) != 2:
            raise _refused("a union of anything but null and one type", path, 'Use ["null", X]')
        inner = self.parse(others[0], path, namespace, depth)
        if inner.nullable:
            raise _refused("a union inside a union", path, 'Use ["null", X]')
        return replace(inner, nullable=True, null_last=branches[0] is others[0])

    def _complex(self, raw: dict[str, object], path: str, namespace: str, depth: int) -> ValueType:
        kind = raw.get("type")
        if kind == "record":
            return self._record(raw, path, namespace, depth)
        if kind == "enum":
            return self._enum(raw, path, namespace)
        if kind == "fixed":
            return self._fixed(raw, path, namespace)
        if kind == "array":
            items = self.parse(raw.get("items"), f"{path}[]", namespace, depth + 1)
            return ValueType(kind="array", arrow=pa.list_(items.arrow), items=items)
        if kind == "map":
            items = self.parse(raw.get("values"), f"{path}{{}}", namespace, depth + 1)
            return ValueType(kind="map", arrow=pa.map_(pa.string(), items.arrow), items=items)
        if isinstance(kind, str) and kind in _PRIMITIVES:
            return _logical(raw, kind, path)
        return self.parse(kind, path, namespace, depth + 1)

    def _record(self, raw: dict[str, object], path: str, namespace: str, depth: int) -> ValueType:
        full, short, inside = self._define(raw, path, namespace)
        given = raw.get("fields")
        if not isinstance(given, list) or not given:
            raise _refused("a record without fields", path, "Add a field: an empty record cannot be a column")
        self.open_names.add(full)
        fields = tuple(self._field(item, path, inside, depth) for item in cast("list[object]", given))
        self.open_names.remove(full)
        names = [one.name for one in fields]
        if len(set(names)) != len(names):
            raise _refused("two fields of one name", path, f"Fields: {', '.join(names)}")
        arrow = pa.struct([pa.field(one.name, one.type.arrow) for one in fields])
        made = ValueType(kind="record", arrow=arrow, name=short, aliases=_aliases(raw, path), fields=fields)
        return self._named(full, made)

    def _field(self, raw: object, path: str, namespace: str, depth: int) -> ValueField:
        if not isinstance(raw, dict):
            raise _refused("a field that is not an object", path, 'Use {"name": ..., "type": ...}')
        given = cast("dict[str, object]", raw)
        name = _check_name(given.get("name"), path)
        inner = self.parse(given.get("type"), f"{path}.{name}", namespace, depth + 1)
        return ValueField(
            name=name,
            type=inner,
            has_default="default" in given,
            default=given.get("default"),
            aliases=_aliases(given, f"{path}.{name}"),
        )

    def _enum(self, raw: dict[str, object], path: str, namespace: str) -> ValueType:
        full, short, _ = self._define(raw, path, namespace)
        given = raw.get("symbols")
        symbols = (
            tuple(_check_name(one, path) for one in cast("list[object]", given)) if isinstance(given, list) else ()
        )
        default = raw.get("default")
        known = default is None or (isinstance(default, str) and default in symbols)
        if not symbols or len(set(symbols)) != len(symbols) or not known:
            hint = "Make its symbols distinct, and its default one of them"
            raise _refused("an enum needs different symbols, its default among them", path, hint)
        made = ValueType(kind="enum", arrow=pa.string(), name=short, aliases=_aliases(raw, path), symbols=symbols)
        return self._named(full, replace(made, symbol_default=None if default is None else str(default)))

    def _fixed(self, raw: dict[str, object], path: str, namespace: str) -> ValueType:
        full, short, _ = self._define(raw, path, namespace)
        size = raw.get("size")
        if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= _MAX_TEXT:
            raise _refused(f"a fixed of size {size!r}", path, "Give a size in bytes, at least 1")
        is_decimal, aliases = raw.get("logicalType") == "decimal", _aliases(raw, path)
        arrow, logical = (_decimal(raw, path), "decimal") if is_decimal else (pa.binary(size), "")
        made = ValueType(kind="fixed", arrow=arrow, logical=logical, size=size, name=short, aliases=aliases)
        return self._named(full, made)

    def _define(self, raw: dict[str, object], path: str, namespace: str) -> tuple[str, str, str]:
        """Return the full name, the unqualified name and the inner namespace of a new named type."""
        name = raw.get("name")
        if not isinstance(name, str) or not all(_NAME.match(part) for part in name.split(".")):
            raise _refused(f"{name!r} is not an Avro name", path, "Use letters, digits and '_', not a digit first")
        given = raw.get("namespace", namespace)
        if not isinstance(given, str) or not all(_NAME.match(part) for part in given.split(".") if given):
            raise _refused(f"{given!r} is not an Avro namespace", path, "Use names joined by '.'")
        inside, _, short = name.rpartition(".") if "." in name else (given, "", name)
        full = f"{inside}.{short}" if inside else short
        if full in self.named or full in self.open_names or full in _PRIMITIVES or full == "null":
            raise _refused(f"{full} is defined twice", path, "Give each type its own name")
        return full, short, inside

    def _named(self, full: str, made: ValueType) -> ValueType:
        self.named[full] = made
        return made


def _check_name(name: object, path: str) -> str:
    if not isinstance(name, str) or not _NAME.match(name):
        raise _refused(f"{name!r} is not an Avro name", path, "Use letters, digits and '_', not a digit first")
    return name


def _aliases(raw: dict[str, object], path: str) -> tuple[str, ...]:
    given = raw.get("aliases", [])
    if not isinstance(given, list):
        raise _refused("aliases that are not a list", path, "Use a list of names")
    return tuple(_check_name(str(one).rpartition(".")[2], path) for one in cast("list[object]", given))


def _logical(raw: dict[str, object], kind: str, path: str) -> ValueType:
    """Return a primitive with its logical type. An unknown or unsuitable one is ignored, as Avro demands."""
    logical = raw.get("logicalType")
    if logical == "decimal" and kind == "bytes":
        return ValueType(kind=kind, arrow=_decimal(raw, path), logical="decimal")
    if not isinstance(logical, str) or (kind, logical) not in _LOGICAL:
        return ValueType(kind=kind, arrow=_PRIMITIVES[kind])
    return ValueType(kind=kind, arrow=_LOGICAL[kind, logical], logical=logical)


def _decimal(raw: dict[str, object], path: str) -> pa.DataType:
    precision, scale = raw.get("precision"), raw.get("scale", 0)
    if not isinstance(precision, int) or not isinstance(scale, int) or not 0 <= scale <= precision <= _MAX_PRECISION:
        hint = f"Use 0 <= scale <= precision <= {_MAX_PRECISION}"
        raise _refused(f"a decimal of precision {precision!r} and scale {scale!r}", path, hint)
    if precision < 1:
        raise _refused("a decimal of precision 0", path, "Use a precision of at least 1")
    return pa.decimal128(precision, scale)


def _size(known: ValueType) -> tuple[int, int]:
    """Return the number of types in it, itself included, and the depth of types inside it."""
    inner = [one.type for one in known.fields] + ([known.items] if known.items is not None else [])
    sizes = [_size(one) for one in inner]
    return 1 + sum(nodes for nodes, _ in sizes), max((1 + depth for _, depth in sizes), default=0)
