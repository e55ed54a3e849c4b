"""Reading a value that was written with another schema: Avro's resolution rules as a plan, and the plan as Arrow. Pure.

A plan says for every field of the reader where it comes from. It is made from the two schemas alone, so a plan that
exists works for every value: resolutions that could fail on some value (bytes to string, an enum symbol that the reader
lacks) are refused when the schema is registered, not met years later in a merge.

Merges rewrite old values to newer schemas at times of their own. `compose` exists so that a new schema can be refused
if reading through an older one would give another value than reading directly: no reader may see when a merge ran.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc

from statelog.errors import IncompatibleSchema
from statelog.schemas.values.arrow import default_array, list_parts, map_parts, repeated, struct_children, struct_of
from statelog.schemas.values.types import ValueField, ValueType

__all__ = ["Plan", "compose", "first_difference", "make_plan", "run_plan"]

_PROMOTIONS: Mapping[str, tuple[str, ...]] = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
}


@dataclass(frozen=True, slots=True)
class Keep:
    """The value as it is."""


@dataclass(frozen=True, slots=True)
class Promote:
    """A number or text through these Avro types, first to last."""

    through: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fill:
    """The reader's default, as an array of one row."""

    default: pa.Array


@dataclass(frozen=True, slots=True)
class Symbols:
    """Every symbol of the writer's enum and the reader's symbol for it."""

    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Inside:
    """An array or map, each of whose items goes through a plan."""

    items: "Plan"


@dataclass(frozen=True, slots=True)
class Fields:
    """The reader's fields in order: name, the writer's field that it comes from ('' for none), plan."""

    sources: tuple[tuple[str, str, "Plan"], ...]


Plan = Keep | Promote | Fill | Symbols | Inside | Fields


def make_plan(reader: ValueType, writer: ValueType, path: str) -> Plan:
    """How the reader gets its value from the writer's. Raises IncompatibleSchema with the path and both types."""
    if writer.nullable and not reader.nullable:
        raise _incompatible(reader, writer, path, "Values may be null already; keep the field nullable")
    if reader.kind != writer.kind:
        if reader.kind not in _PROMOTIONS.get(writer.kind, ()) or reader.logical or writer.logical:
            raise _incompatible(reader, writer, path, "Add a new field with a default instead")
        return Promote((writer.kind, reader.kind))
    if reader.name != writer.name and writer.name not in reader.aliases:
        raise _incompatible(reader, writer, path, "Keep the type's name, or give the old one as an alias")
    if reader.kind == "record":
        return _plan_record(reader, writer, path)
    if reader.kind in ("array", "map"):
        return Inside(make_plan(reader.inner, writer.inner, path + ("[]" if reader.kind == "array" else "{}")))
    if reader.kind == "enum":
        return _plan_enum(reader, writer, path)
    if reader.arrow != writer.arrow or reader.logical not in ("", writer.logical):
        raise _incompatible(reader, writer, path, "Add a new field with a default instead")
    return Keep()


def _plan_record(reader: ValueType, writer: ValueType, path: str) -> Fields:
    written = {one.name: one for one in writer.fields}
    sources = tuple(_plan_field(one, written, f"{path}.{one.name}") for one in reader.fields)
    taken: dict[str, str] = {}
    for name, source, _ in sources:
        if source and taken.setdefault(source, name) != name:
            raise _ambiguous(f"{path}.{name}", f"{taken[source]}, {name}", source)
    return Fields(sources)


def _plan_field(one: ValueField, written: Mapping[str, ValueField], path: str) -> tuple[str, str, Plan]:
    sources = [name for name in dict.fromkeys((one.name, *one.aliases)) if name in written]
    if len(sources) > 1:
        raise _ambiguous(path, one.name, ", ".join(sources))
    if sources:
        return one.name, sources[0], make_plan(one.type, written[sources[0]].type, path)
    if not one.has_default:
        hint = "Give the new field a default"
        raise IncompatibleSchema(
            "a field that earlier values lack", hint=hint, field=path, new=str(one.type), earlier="absent"
        )
    return one.name, "", Fill(default_array(one.default, one.type, path))


def _ambiguous(path: str, new: str, earlier: str) -> IncompatibleSchema:
    """Avro's libraries differ in what they read then, so nobody shall have to know."""
    hint = "Let one new field stand for one earlier field: drop an alias, or a field"
    return IncompatibleSchema("a name or alias that fits twice", hint=hint, field=path, new=new, earlier=earlier)


def _plan_enum(reader: ValueType, writer: ValueType, path: str) -> Symbols:
    pairs = [(one, one if one in reader.symbols else reader.symbol_default) for one in writer.symbols]
    lost = [one for one, other in pairs if other is None]
    if lost:
        raise _incompatible(reader, writer, path, f"Keep the symbols {', '.join(lost)}, or give the enum a default")
    return Symbols(cast("tuple[tuple[str, str], ...]", tuple(pairs)))


def _incompatible(reader: ValueType, writer: ValueType, path: str, hint: str) -> IncompatibleSchema:
    message = "a type that earlier values cannot be read with"
    return IncompatibleSchema(message, hint=hint, field=path, new=str(reader), earlier=str(writer))


def run_plan(plan: Plan, column: pa.Array, reader: ValueType) -> pa.Array:
    """Convert a column of the writer's type to the reader's. Nulls stay null."""
    match plan:
        case Keep() | Inside(Keep()):
            return column
        case Promote():
            return column.cast(reader.arrow, safe=False)
        case Fill(default):
            return repeated(default, len(column))
        case Symbols(pairs):
            return _rename(column, pairs)
        case Inside(items):
            return _run_inside(items, column, reader)
        case Fields(sources):
            return _run_fields(sources, column, reader)


def _rename(column: pa.Array, pairs: Sequence[tuple[str, str]]) -> pa.Array:
    if all(old == new for old, new in pairs):
        return column
    numbers = pc.index_in(column, pa.array([old for old, _ in pairs], pa.string()))
    return pa.array([new for _, new in pairs], pa.string()).take(numbers)


def _run_inside(plan: Plan, column: pa.Array, reader: ValueType) -> pa.Array:
    if reader.kind == "array":
        offsets, items = list_parts(column)
        return pa.ListArray.from_arrays(offsets, run_plan(plan, items, reader.inner), type=reader.arrow)
    offsets, keys, items = map_parts(column)
    return pa.MapArray.from_arrays(offsets, keys, run_plan(plan, items, reader.inner), type=reader.arrow)


def _run_fields(sources: Sequence[tuple[str, str, Plan]], column: pa.Array, reader: ValueType) -> pa.Array:
    names = cast("pa.StructType", column.type).names
    written = dict(zip(names, struct_children(column), strict=True))
    children = [
        run_plan(plan, written[source] if source else column, one.type)
        for one, (_, source, plan) in zip(reader.fields, sources, strict=True)
    ]
    return struct_of(children, reader, column.is_null())


def compose(first: Plan, then: Plan, reader: ValueType) -> Plan:
    """The plan that does `first` and then `then`, whose result is of `reader`'s type."""
    match first, then:
        case Keep(), _:
            return then
        case Fill(default), _:
            return Fill(run_plan(then, default, reader))
        case _, Keep() | Fill():
            return first if isinstance(then, Keep) else then
        case Promote(before), Promote(after):
            return Promote(_shortest(before + after[1:]))
        case Symbols(before), Symbols(after):
            renamed = dict(after)
            return Symbols(tuple((old, renamed[new]) for old, new in before))
        case Inside(before), Inside(after):
            return Inside(compose(before, after, reader.inner))
        case Fields(), Fields():
            return _compose_fields(first, then, reader)
        case _:
            raise AssertionError("plans of one schema follow each other")


def _shortest(through: tuple[str, ...]) -> tuple[str, ...]:
    """A chain of promotions as one step, unless a 32-bit float in the middle loses digits that the end would show."""
    return through if "float" in through[1:-1] else (through[0], through[-1])


def _compose_fields(first: Fields, then: Fields, reader: ValueType) -> Fields:
    before = {name: (source, plan) for name, source, plan in first.sources}
    made: list[tuple[str, str, Plan]] = []
    for one, (name, middle, plan) in zip(reader.fields, then.sources, strict=True):
        source, inner = before.get(middle, ("", Keep()))
        made.append((name, source, compose(inner, plan, one.type)) if middle else (name, "", plan))
    return Fields(tuple(made))


def first_difference(one: Plan, other: Plan, path: str) -> str | None:
    """The path of the first field that two plans of one reader treat differently, or None."""
    match one, other:
        case Fields(mine), Fields(theirs):
            for (name, source, plan), (_, other_source, other_plan) in zip(mine, theirs, strict=True):
                if source != other_source:
                    return f"{path}.{name}"
                inner = first_difference(plan, other_plan, f"{path}.{name}")
                if inner is not None:
                    return inner
            return None
        case Inside(mine), Inside(theirs):
            return first_difference(mine, theirs, f"{path}[]")
        case _:
            return None if one == other else path
