"""Types: whether the columns of a DataFrame can become changes of a log, decided from types at planning. Pure.

What can never fit is refused with the cast to write. What some rows may not fit is known here and said when one does
not, in the task, beside the value: only here it is known what Spark calls the types.
"""

from collections.abc import Mapping

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import DataType, StructField, StructType

from statelog.errors import InvalidChange
from statelog.schemas.descriptor import Descriptor
from statelog.schemas.key_groups import KeyType
from statelog.schemas.values.schema import STATE_NAMES, Misfit, Reason, ValueSchema, misfits
from statelog.schemas.values.types import ValueType
from statelog.spark.rows.names import Names

__all__ = ["advised", "check_types"]

_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_TEXTS = ("string", "binary")
_KEYS: Mapping[KeyType, tuple[tuple[str, ...], str, str]] = {
    KeyType.LONG: (_INTEGERS, "bigint", "cast({} as bigint)"),
    KeyType.STRING: (_TEXTS, "string", "cast({} as string)"),
    KeyType.BYTES: (_TEXTS, "binary", "cast(cast({} as string) as binary)"),
}
"""By key type: what Spark calls the types that fit, the one that it is, and how to get there."""
_SEQUENCES = (*_INTEGERS, "date", "timestamp", "timestamp_ntz", "decimal", "time")
_ROOT = "value"


def check_types(names: Names, schema: StructType, descriptor: Descriptor, value: ValueSchema) -> dict[str, str]:
    """What to write for values that may not fit, by the path of their field. Raises InvalidChange for what never fits,
    with the column, both types and the cast.
    """
    given = dict(zip(names.columns, schema.fields, strict=True))
    kinds = {name: field.dataType for name, field in given.items()}
    _check_one(kinds, "key", *_KEYS[descriptor.key_type])
    _check_one(kinds, "op", ("string", *_INTEGERS), "string", "cast({} as string)")
    _check_one(kinds, "key_group", _INTEGERS, "int", "cast({} as int)")
    if names.sequence is not None:
        _check_one(kinds, names.sequence, _SEQUENCES, "bigint or timestamp", "cast({} as bigint)")
    if value.root is None:
        _check_one(kinds, "value", _TEXTS, "binary", "cast(cast({} as string) as binary)")
        return {}
    left_out = (*STATE_NAMES, names.sequence) if names.is_extra else STATE_NAMES
    fields = [name for name in names.columns if name not in left_out]
    if "value" in fields and isinstance(kinds["value"], StructType):
        return _check_value(kinds["value"], value.root, "value")
    columns = [StructField(name, kinds[name], given[name].nullable) for name in fields]
    return _check_value(StructType(columns), value.root, None)


def advised(error: InvalidChange, advice: Mapping[str, str]) -> InvalidChange:
    """The error of a task with the advice for its field; as it is, if there is none."""
    path = str(error.facts.get("field", ""))
    return error.restated(hint=advice[path]) if path in advice else error


def _check_one(kinds: Mapping[str, DataType], name: str, fitting: tuple[str, ...], wanted: str, cast_text: str) -> None:
    kind = kinds.get(name)
    if kind is not None and kind.simpleString().partition("(")[0] not in (*fitting, "void"):
        raise _refused(name, kind.simpleString(), wanted, f"Write {cast_text.format(name)}")


def _check_value(columns: StructType, root: ValueType, column: str | None) -> dict[str, str]:
    """Advice by path; `column` is None where every field is a column of its own. Raises InvalidChange for the first
    one that never fits.
    """
    advice: dict[str, list[str]] = {}
    for misfit in misfits(_arrow_of(columns), root, _ROOT, nullable=False):
        name = column or misfit.path.split(".")[1].rstrip("[]{}")
        whole = root if column else {one.name: one.type for one in root.fields}.get(name)
        text = _advice(misfit, name, whole)
        if misfit.is_certain:
            given = "nothing" if misfit.given is None else _spark_name(misfit.given)
            wanted = "nothing" if misfit.wanted is None else _spark_name(misfit.wanted.arrow)
            raise _refused(name, given, wanted, text, field=misfit.path)
        advice.setdefault(misfit.path, []).append(text)
    return {path: "; ".join(texts) for path, texts in advice.items()}


def _advice(misfit: Misfit, column: str, whole: ValueType | None) -> str:
    """What to write: the cast is that of the whole column, whichever part of it does not fit."""
    if misfit.reason is Reason.MISSING:
        return f"Add {misfit.path.removeprefix('value.')}: it has no default"
    if misfit.reason is Reason.UNKNOWN or whole is None or misfit.wanted is None:
        return f"Leave {misfit.path.removeprefix('value.')} out, or evolve the log's value schema"
    if misfit.reason is Reason.NULL:
        return f"Fill the nulls of {column}, as by coalesce({column}, ...), or leave such rows out"
    if misfit.reason is Reason.TEXT:
        symbols = ", ".join(misfit.wanted.symbols)
        return f"Write one of {symbols} into {column}" if symbols else f"Write UUIDs into {column}"
    if misfit.reason is Reason.NARROW and isinstance(misfit.wanted.arrow, pa.TimestampType):
        return f"Write date_trunc('millisecond', {column})"
    return f"Write cast({column} as {_spark_name(whole.arrow)})"


def _arrow_of(columns: StructType) -> pa.StructType:
    """The columns as Arrow has them. Raises InvalidChange for a type that Arrow lacks."""
    fields: list[pa.Field] = []
    for field in columns.fields:
        try:
            fields += to_arrow_schema(StructType([field]), timezone="UTC")
        except PySparkException:
            given = field.dataType.simpleString()
            raise _refused(field.name, given, "a type that Arrow has", "Leave it out, or cast it") from None
    return pa.struct(fields)


def _spark_name(kind: pa.DataType) -> str:
    if str(kind) == "time32[ms]":
        return "time(3)"
    try:
        return from_arrow_type(kind).simpleString()
    except PySparkException:
        return str(kind)


def _refused(column: str, given: str, wanted: str, hint: str, **facts: str) -> InvalidChange:
    return InvalidChange(
        f"column {column} can never be written to this log: it is {given}, and {wanted} is needed",
        hint=hint,
        column=column,
        given=given,
        expected=wanted,
        **facts,
    )
