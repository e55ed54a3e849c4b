"""Misfits: what a column's type alone says about values of a schema, before there are any. Pure.

Says of two types what `arrow.fit` would say of a column: that no value can ever fit, or that some may not.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import cast

import pyarrow as pa

from statelog.schemas.values.arrow import family
from statelog.schemas.values.types import ValueType

__all__ = ["Misfit", "Reason", "misfits"]

_UNITS = ("s", "ms", "us", "ns")
_LISTS = ("list", "large_list", "fixed_size_list")


class Reason(StrEnum):
    """Why something does not fit, or may not."""

    TYPE = "another type"
    UNKNOWN = "a field that the schema does not have"
    MISSING = "a field that is missing and has no default"
    NARROW = "a value may be too large or too fine"
    TEXT = "a text may be none that the schema has"
    NULL = "a value may be null"


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """`path` is that of the field, as errors name it. `given` is None for a field that is missing, `wanted` for one
    that the schema does not have.
    """

    path: str
    reason: Reason
    given: pa.DataType | None
    wanted: ValueType | None

    @property
    def is_certain(self) -> bool:
        """Whether not a single row can fit."""
        return self.reason in (Reason.TYPE, Reason.UNKNOWN, Reason.MISSING)


def misfits(given: pa.DataType, wanted: ValueType, path: str, *, nullable: bool) -> Iterator[Misfit]:
    """All misfits of a column of type `given`, nested ones included; `nullable` says whether it may hold nulls."""
    if isinstance(given, pa.DictionaryType):
        given = given.value_type
    if nullable and not wanted.nullable:
        yield Misfit(path=path, reason=Reason.NULL, given=given, wanted=wanted)
    if pa.types.is_null(given):
        return
    if wanted.kind == "record" and pa.types.is_struct(given):
        yield from _of_fields(cast("pa.StructType", given), wanted, path)
    elif wanted.kind == "array" and str(given).partition("<")[0].partition("[")[0] in _LISTS:
        items = cast("pa.ListType", given).value_field
        yield from misfits(items.type, wanted.inner, f"{path}[]", nullable=items.nullable)
    elif wanted.kind == "map" and pa.types.is_map(given):
        item = cast("pa.MapType", given).item_field
        yield from misfits(item.type, wanted.inner, f"{path}{{}}", nullable=item.nullable)
    elif wanted.kind in ("record", "array", "map") or family(given) != family(wanted.arrow):
        yield Misfit(path=path, reason=Reason.TYPE, given=given, wanted=wanted)
    elif wanted.kind == "enum" or wanted.logical == "uuid":
        yield Misfit(path=path, reason=Reason.TEXT, given=given, wanted=wanted)
    elif _is_narrower(wanted.arrow, given):
        yield Misfit(path=path, reason=Reason.NARROW, given=given, wanted=wanted)


def _of_fields(given: pa.StructType, wanted: ValueType, path: str) -> Iterator[Misfit]:
    known = {one.name: one for one in wanted.fields}
    for field in given:
        inner = f"{path}.{field.name}"
        if field.name in known:
            yield from misfits(field.type, known[field.name].type, inner, nullable=field.nullable)
        else:
            yield Misfit(path=inner, reason=Reason.UNKNOWN, given=field.type, wanted=None)
    for name in sorted(set(known) - set(given.names)):
        if not known[name].has_default:
            yield Misfit(path=f"{path}.{name}", reason=Reason.MISSING, given=None, wanted=known[name].type)


def _is_narrower(wanted: pa.DataType, given: pa.DataType) -> bool:
    """Whether a type of the same family cannot hold all that another one can."""
    if pa.types.is_integer(given):
        return wanted.bit_width < given.bit_width
    if isinstance(given, pa.Decimal128Type) and isinstance(wanted, pa.Decimal128Type):
        whole = wanted.precision - wanted.scale < given.precision - given.scale
        return whole or wanted.scale < given.scale
    if pa.types.is_fixed_size_binary(wanted):
        return wanted != given
    return _fineness(wanted) < _fineness(given)


def _fineness(kind: pa.DataType) -> int:
    """By the unit in the name of a temporal type, such as timestamp[us, tz=UTC]."""
    unit = str(kind).partition("[")[2].partition(",")[0].rstrip("]")
    return _UNITS.index(unit) if unit in _UNITS else 0
