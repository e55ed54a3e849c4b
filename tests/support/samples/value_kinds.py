"""Random value schemas and values of them, schemas that may follow each other, and fastavro's own resolution.

A schema here is Avro's own JSON, of a bounded subset; enums and records carry names that follow from their path.
"""

import io
import json
from typing import Any

from fastavro import parse_schema, schemaless_reader, schemaless_writer
from hypothesis import strategies as st

__all__ = ["Kind", "evolved_record", "kinds", "plain", "read_avro", "records", "through_avro", "values"]

Kind = Any
PRIMITIVES = ["boolean", "int", "long", "float", "double", "string", "bytes"]
PROMOTIONS = {"int": ["long", "float", "double"], "long": ["float", "double"], "float": ["double"], "string": ["bytes"]}
NAMES = ["a", "b", "c", "d"]
SYMBOLS = ["RED", "GREEN", "BLUE"]


@st.composite
def kinds(draw: st.DrawFn, path: str, depth: int) -> Kind:
    """Any type of the subset at this path."""
    choice = draw(st.sampled_from(["simple"] * 4 + ["null", "enum"] + (["array", "map", "record"] if depth else [])))
    if choice == "simple":
        return draw(st.sampled_from(PRIMITIVES))
    if choice == "null":
        inner: Kind = draw(kinds(path, depth).filter(lambda made: not isinstance(made, list)))
        return draw(st.permutations(["null", inner]))
    if choice == "enum":
        symbols = draw(st.lists(st.sampled_from(SYMBOLS), min_size=1, unique=True))
        return {"type": "enum", "name": f"E{path}", "symbols": symbols, "default": symbols[0]}
    if choice == "record":
        return draw(records(f"{path}r", depth - 1))
    return {"type": choice, "items" if choice == "array" else "values": draw(kinds(f"{path}i", depth - 1))}


@st.composite
def records(draw: st.DrawFn, path: str, depth: int) -> Kind:
    """A record with some of four fields."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    return {"type": "record", "name": f"R{path}", "fields": [draw(fields(name, path, depth)) for name in names]}


@st.composite
def fields(draw: st.DrawFn, name: str, path: str, depth: int) -> Kind:
    """A field, with or without a default."""
    kind = draw(kinds(f"{path}{name}", depth))
    return {"name": name, "type": kind, **({"default": draw(defaults(kind))} if draw(st.booleans()) else {})}


@st.composite
def evolved(draw: st.DrawFn, kind: Kind, path: str) -> Kind:
    """A type that a later schema might have there: often compatible, not always."""
    if isinstance(kind, list):
        return draw(st.permutations(["null", draw(evolved_type(present(kind), path))]))
    made: Kind = draw(evolved_type(kind, path))
    return made if draw(st.integers(0, 7)) else ["null", made]


@st.composite
def evolved_type(draw: st.DrawFn, kind: Kind, path: str) -> Kind:
    """The same for a type that is no union."""
    if isinstance(kind, str):
        return draw(st.sampled_from([kind, kind, *PROMOTIONS.get(kind, [])]))
    if kind["type"] == "array":
        return {"type": "array", "items": draw(evolved(kind["items"], f"{path}i"))}
    if kind["type"] == "map":
        return {"type": "map", "values": draw(evolved(kind["values"], f"{path}i"))}
    if kind["type"] == "enum":
        symbols = draw(st.lists(st.sampled_from(SYMBOLS), min_size=1, unique=True))
        return {**kind, "symbols": symbols, "default": draw(st.sampled_from(symbols))}
    return draw(evolved_record(kind, f"{path}r"))


@st.composite
def evolved_record(draw: st.DrawFn, kind: Kind, path: str) -> Kind:
    """A record with fields kept, changed, dropped, added and moved."""
    made: list[Kind] = []
    for one in kind["fields"]:
        if draw(st.integers(0, 5)):
            changed = {"name": one["name"], "type": draw(evolved(one["type"], f"{path}{one['name']}"))}
            kept = changed if changed["type"] != one["type"] else one
            made.append(kept if draw(st.integers(0, 5)) else draw(renamed(kept)))
    # A name that comes back would bring the names of its types back, and no schema may have those twice.
    taken = {one["name"].rstrip("_") for one in kind["fields"]}
    for name in sorted(set(NAMES) - taken):
        if not made or draw(st.booleans()):
            inner = draw(kinds(f"{path}{name}", 0))
            made.append({"name": name, "type": inner, "default": draw(defaults(inner))})
    return {**kind, "fields": draw(st.permutations(made)) if made else kind["fields"]}


@st.composite
def renamed(draw: st.DrawFn, field: Kind) -> Kind:
    """A field under another name, nearly always with the old one as alias."""
    aliases = [field["name"]] if draw(st.integers(0, 9)) else []
    return {**field, "name": f"{field['name']}_", "aliases": aliases}


def present(union: Kind) -> Kind:
    """The type of a union with null that is not null."""
    return union[1] if union[0] == "null" else union[0]


def defaults(kind: Kind) -> st.SearchStrategy[Any]:
    """JSON defaults of a type; that of a union is of its first type."""
    if isinstance(kind, list):
        return st.none() if kind[0] == "null" else defaults(kind[0])
    if kind == "bytes":
        return st.sampled_from(["", "\u00ff\u0000"])
    if isinstance(kind, str):
        return values(kind)
    if kind["type"] == "array":
        return st.just([])
    if kind["type"] == "map":
        return st.just({})
    if kind["type"] == "enum":
        return st.sampled_from(kind["symbols"])
    return st.fixed_dictionaries({one["name"]: defaults(one["type"]) for one in kind["fields"]})


def values(kind: Kind) -> st.SearchStrategy[Any]:
    """Python values of a type. Numbers are such that a 32-bit float holds them, for fastavro does not round."""
    simple: dict[str, st.SearchStrategy[Any]] = {
        "boolean": st.booleans(),
        "int": st.integers(-(2**24), 2**24),
        "long": st.integers(-(2**24), 2**24),
        "float": st.floats(width=32, allow_nan=False, allow_infinity=False),
        "double": st.floats(width=32, allow_nan=False, allow_infinity=False),
        "string": st.text(max_size=3),
        "bytes": st.binary(max_size=3),
    }
    if isinstance(kind, str):
        return simple[kind]
    if isinstance(kind, list):
        return st.none() | values(present(kind))
    if kind["type"] == "array":
        return st.lists(values(kind["items"]), max_size=3)
    if kind["type"] == "map":
        return st.dictionaries(st.text(max_size=2), values(kind["values"]), max_size=3)
    if kind["type"] == "enum":
        return st.sampled_from(kind["symbols"])
    return st.fixed_dictionaries({one["name"]: values(one["type"]) for one in kind["fields"]})


def plain(value: Any, kind: Kind) -> Any:
    """A row in one form, whether it comes from Arrow (maps as pairs) or from fastavro."""
    if value is None or isinstance(kind, str):
        # fastavro hands out a default of bytes as the JSON text that stands for it.
        return value.encode("latin-1") if kind == "bytes" and isinstance(value, str) else value
    if isinstance(kind, list):
        return plain(value, present(kind))
    if kind["type"] == "array":
        return [plain(item, kind["items"]) for item in value]
    if kind["type"] == "map":
        return {key: plain(item, kind["values"]) for key, item in dict(value).items()}
    if kind["type"] == "enum":
        return value
    return {one["name"]: plain(value[one["name"]], one["type"]) for one in kind["fields"]}


def through_avro(row: Any, writer: Kind, reader: Kind) -> Any:
    """A row written with one schema and read with the other, by fastavro."""
    if row is None:
        return None
    sink = io.BytesIO()
    schemaless_writer(sink, parse_schema(json.loads(json.dumps(writer))), row)
    sink.seek(0)
    parsed = [parse_schema(json.loads(json.dumps(kind))) for kind in (writer, reader)]
    return plain(schemaless_reader(sink, parsed[0], parsed[1]), reader)


def read_avro(data: bytes, kind: Kind) -> Any:
    """A row out of Avro's binary form, by fastavro, which must use up every byte."""
    source = io.BytesIO(data)
    row = plain(schemaless_reader(source, parse_schema(json.loads(json.dumps(kind)))), kind)
    assert not source.read()
    return row
