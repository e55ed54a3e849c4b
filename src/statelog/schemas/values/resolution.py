"""Schema resolution: reads values written with another schema, by Avro's rules, on Arrow arrays. Pure.

A resolution names the source of every field of the reader. It follows from the two schemas alone, so it works for every
value. A rule that could fail on some values (bytes to string, a missing enum symbol) is refused when the schema is
registered, not years later in a merge.

Merges rewrite old values to newer schemas at any time. `compose` serves to refuse a new schema if reading through an
older one gives another value than reading directly: readers must not observe when a merge ran.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc

from statelog.errors import IncompatibleSchema
from statelog.schemas.arrays import column_of_rows
from statelog.schemas.values.arrow import Nested, default_array, repeated, struct_children, struct_of
from statelog.schemas.values.types import ValueField, ValueType

_PROMOTIONS: Mapping[str, tuple[str, ...]] = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
}


@dataclass(frozen=True, slots=True)
class Unchanged:
    """The same value."""


@dataclass(frozen=True, slots=True)
class Promotion:
    """A number or text converted through these Avro types, first to last."""

    through: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DefaultFill:
    """The reader's default, as an array of one row."""

    default: pa.Array


@dataclass(frozen=True, slots=True)
class SymbolMap:
    """Every symbol of the writer's enum and the reader's symbol for it."""

    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ItemResolution:
    """An array or map with a resolution for its items."""

    items: "Resolution"


@dataclass(frozen=True, slots=True)
class FieldResolutions:
    """The reader's fields in order: name, the writer's field ('' for none), resolution."""

    sources: tuple[tuple[str, str, "Resolution"], ...]


Resolution = Unchanged | Promotion | DefaultFill | SymbolMap | ItemResolution | FieldResolutions


def make_resolution(reader: ValueType, writer: ValueType, path: str) -> Resolution:
    """Resolve the writer's type to the reader's. Raises IncompatibleSchema with the path and both types."""
    if writer.nullable and not reader.nullable:
        raise _incompatible(reader, writer, path, "Keep the field nullable: values may be null already")
    if reader.kind != writer.kind:
        if reader.kind not in _PROMOTIONS.get(writer.kind, ()) or reader.logical or writer.logical:
            raise _incompatible(reader, writer, path, "Add a new field with a default instead")
        return Promotion((writer.kind, reader.kind))
    if reader.name != writer.name and writer.name not in reader.aliases:
        raise _incompatible(reader, writer, path, "Keep the type's name, or give the old one as an alias")
    if reader.kind == "record":
        return _resolve_record(reader, writer, path)
    if reader.kind in ("array", "map"):
        return ItemResolution(make_resolution(reader.inner, writer.inner, reader.path_inside(path)))
    if reader.kind == "enum":
        return _resolve_enum(reader, writer, path)
    if reader.arrow != writer.arrow or reader.logical not in ("", writer.logical):
        raise _incompatible(reader, writer, path, "Add a new field with a default instead")
    return Unchanged()


def _resolve_record(reader: ValueType, writer: ValueType, path: str) -> FieldResolutions:
    written = {one.name: one for one in writer.fields}
    sources = tuple(_resolve_field(one, written, f"{path}.{one.name}") for one in reader.fields)
    taken: dict[str, str] = {}
    for name, source, _ in sources:
        if source and taken.setdefault(source, name) != name:
            raise _ambiguous(f"{path}.{name}", f"{taken[source]}, {name}", source)
    return FieldResolutions(sources)


def _resolve_field(one: ValueField, written: Mapping[str, ValueField], path: str) -> tuple[str, str, Resolution]:
    sources = [name for name in dict.fromkeys((one.name, *one.aliases)) if name in written]
    if len(sources) > 1:
        raise _ambiguous(path, one.name, ", ".join(sources))
    if sources:
        return one.name, sources[0], make_resolution(one.type, written[sources[0]].type, path)
    if not one.has_default:
        message, hint = "a field that earlier values lack", "Give the new field a default"
        raise IncompatibleSchema(message, hint=hint, field=path, new=str(one.type), earlier="absent")
    return one.name, "", DefaultFill(default_array(one.default, one.type, path))


def _ambiguous(path: str, new: str, earlier: str) -> IncompatibleSchema:
    """Make the error for an ambiguous field, which Avro libraries read differently."""
    hint = "Map each new field to one earlier field: drop an alias, or a field"
    return IncompatibleSchema(
        "a field that matches twice by name or alias", hint=hint, field=path, new=new, earlier=earlier
    )


def _resolve_enum(reader: ValueType, writer: ValueType, path: str) -> SymbolMap:
    pairs = [(one, one if one in reader.symbols else reader.symbol_default) for one in writer.symbols]
    lost = [one for one, other in pairs if other is None]
    if lost:
        raise _incompatible(reader, writer, path, f"Keep the symbols {', '.join(lost)}, or give the enum a default")
    return SymbolMap(cast("tuple[tuple[str, str], ...]", tuple(pairs)))


def _incompatible(reader: ValueType, writer: ValueType, path: str, hint: str) -> IncompatibleSchema:
    message = "a type that cannot read earlier values"
    return IncompatibleSchema(message, hint=hint, field=path, new=str(reader), earlier=str(writer))


def apply_resolution(resolution: Resolution, column: pa.Array, reader: ValueType) -> pa.Array:
    """Convert a column of the writer's type to the reader's. Nulls stay null."""
    match resolution:
        case Unchanged() | ItemResolution(Unchanged()):
            return column
        case Promotion():
            return column.cast(reader.arrow, safe=False)
        case DefaultFill(default):
            return repeated(default, len(column))
        case SymbolMap(pairs):
            return _rename(column, pairs)
        case ItemResolution(inner):
            offsets, keys, items = Nested.of(column)
            return Nested(offsets, keys, apply_resolution(inner, items, reader.inner)).as_type(reader.arrow)
        case FieldResolutions(sources):
            return _apply_fields(sources, column, reader)


def _rename(column: pa.Array, pairs: Sequence[tuple[str, str]]) -> pa.Array:
    if all(old == new for old, new in pairs):
        return column
    numbers = pc.index_in(column, column_of_rows([old for old, _ in pairs], pa.string()))
    return column_of_rows([new for _, new in pairs], pa.string()).take(numbers)


def _apply_fields(sources: Sequence[tuple[str, str, Resolution]], column: pa.Array, reader: ValueType) -> pa.Array:
    names = cast("pa.StructType", column.type).names
    written = dict(zip(names, struct_children(column), strict=True))
    children = [
        apply_resolution(resolution, written[source] if source else column, one.type)
        for one, (_, source, resolution) in zip(reader.fields, sources, strict=True)
    ]
    return struct_of(children, reader, column.is_null())


def compose(first: Resolution, then: Resolution, reader: ValueType) -> Resolution:
    """Return the resolution that applies `first` and then `then`, whose result is of `reader`'s type."""
    match first, then:
        case Unchanged(), _:
            return then
        case DefaultFill(default), _:
            return DefaultFill(apply_resolution(then, default, reader))
        case _, Unchanged() | DefaultFill():
            return first if isinstance(then, Unchanged) else then
        case Promotion(before), Promotion(after):
            return Promotion(_shortest(before + after[1:]))
        case SymbolMap(before), SymbolMap(after):
            renamed = dict(after)
            return SymbolMap(tuple((old, renamed[new]) for old, new in before))
        case ItemResolution(before), ItemResolution(after):
            return ItemResolution(compose(before, after, reader.inner))
        case FieldResolutions(), FieldResolutions():
            return _compose_fields(first, then, reader)
        case _:
            raise AssertionError("resolutions of one schema follow each other")


def _shortest(through: tuple[str, ...]) -> tuple[str, ...]:
    """Shorten a chain of promotions to one step, unless a 32-bit float in the middle loses digits of the result."""
    return through if "float" in through[1:-1] else (through[0], through[-1])


def _compose_fields(first: FieldResolutions, then: FieldResolutions, reader: ValueType) -> FieldResolutions:
    before = {name: (source, resolution) for name, source, resolution in first.sources}
    made: list[tuple[str, str, Resolution]] = []
    for one, (name, middle, resolution) in zip(reader.fields, then.sources, strict=True):
        source, inner = before.get(middle, ("", Unchanged()))
        made.append((name, source, compose(inner, resolution, one.type)) if middle else (name, "", resolution))
    return FieldResolutions(tuple(made))


def first_difference(one: Resolution, other: Resolution, path: str) -> str | None:
    """Return the path of the first field that two resolutions of one reader treat differently, or None."""
    match one, other:
        case FieldResolutions(mine), FieldResolutions(theirs):
            for (name, source, resolution), (_, other_source, other) in zip(mine, theirs, strict=True):
                if source != other_source:
                    return f"{path}.{name}"
                inner = first_difference(resolution, other, f"{path}.{name}")
                if inner is not None:
                    return inner
            return None
        case ItemResolution(mine), ItemResolution(theirs):
            return first_difference(mine, theirs, f"{path}[]")
        case _:
            return None if one == other else path
