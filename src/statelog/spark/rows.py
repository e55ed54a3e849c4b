"""The mapping of a DataFrame's rows to changes of a log. Planned from names and types, applied in every task.

Columns that can never fit are refused during planning, with the cast to write. For columns that may not fit in some
rows, planning also prepares the advice, as only it knows Spark's names of the types. Tasks raise it with the value.

Names follow Spark's rule: an exact name wins; else a name that differs only in case counts, unless
`spark.sql.caseSensitive` is set. Only tasks know that setting. So they check whether a mapping depends on the case.

Invariants:
- Of the rows of a key in a task one is written: the newest, or the only one; `uniqueKeys` declares the latter.
- A null value deletes only with a column `op`, or with `nullDeletes`.
- A column `due` has the dues of rows, unless the values have a field `due` and come as one column for each field.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import DataType, StructField, StructType

from statelog.errors import ConfigError, InvalidChange
from statelog.producer.settings import WriterSettings, tuning_of
from statelog.schemas.changes.due import DUE
from statelog.schemas.descriptor import Descriptor, HashRule
from statelog.schemas.key_groups import KeyType
from statelog.schemas.values.schema import STATE_NAMES, Misfit, Reason, ValueSchema, misfits
from statelog.schemas.values.types import ValueType
from statelog.spark.options import WriteOptions
from statelog.spark.repeated_keys import NewestRows, UniqueKeys

_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_TEXTS = ("string", "binary")
_KEYS: Mapping[KeyType, tuple[tuple[str, ...], str, str]] = {
    KeyType.LONG: (_INTEGERS, "bigint", "cast({} as bigint)"),
    KeyType.STRING: (_TEXTS, "string", "cast({} as string)"),
    KeyType.BYTES: (_TEXTS, "binary", "cast(cast({} as string) as binary)"),
}
"""By key type: Spark's names of the types that fit, the exact type, and the cast to it."""
_SEQUENCES = (*_INTEGERS, "date", "timestamp", "timestamp_ntz", "decimal", "time")
_ROOT = "value"
TASK_SETTINGS = WriterSettings()
TASK_BYTES = tuning_of(TASK_SETTINGS).roll_bytes
"""The settings of a task's writer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The columns of a DataFrame in order: as `given`, and by the log's names.

    kept      the columns that are part of the change
    sequence  the column that orders the rows of a key
    """

    given: tuple[str, ...]
    columns: tuple[str, ...]
    kept: tuple[str, ...]
    sequence: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMapping:
    """The mapping of rows to changes.

    `advice`: the hint for values that do not fit, by the path of their field, and whether it is for a null.
    """

    names: Names
    advice: Mapping[tuple[str, bool], str]
    key_type: KeyType
    is_grouped: bool
    unique_keys: bool
    null_deletes: bool


def row_mapping(schema: StructType, options: WriteOptions, descriptor: Descriptor, value: ValueSchema) -> RowMapping:
    """Return the mapping of these columns. Raises InvalidChange, ConfigError for columns that can never be written."""
    names = _match_names(schema.fieldNames(), descriptor, value, options.sequence_by)
    if options.null_deletes and ("op" in names.columns or "value" not in names.columns):
        hint, given = "Omit it: a column op names the deletes", ", ".join(names.given)
        raise ConfigError("nullDeletes is for a column value without a column op", columns=given, hint=hint)
    return RowMapping(
        names=names,
        advice=_check_types(names, schema, descriptor, value),
        key_type=descriptor.key_type,
        is_grouped=descriptor.hash_rule is HashRule.CALLER,
        unique_keys=options.unique_keys,
        null_deletes=options.null_deletes,
    )


def write_rows(
    batches: Iterable[pa.RecordBatch],
    mapping: RowMapping,
    append: Callable[[pa.RecordBatch], object],
    *,
    is_case_sensitive: bool,
) -> None:
    """Write the rows of a task. Raises InvalidChange, KeyGroupMismatch, ValueTooLarge."""
    if is_case_sensitive and mapping.names.given != mapping.names.columns:
        raise InvalidChange(
            "column names differ in case from those of the log, and spark.sql.caseSensitive is set",
            hint="Rename them",
            columns=", ".join(mapping.names.given),
            expected=", ".join(mapping.names.columns),
        )
    try:
        for changes in _changes(batches, mapping):
            append(changes)
    except InvalidChange as error:
        advice = mapping.advice.get((str(error.facts.get("field")), error.message.startswith("a null")))
        if advice is None:
            raise
        raise error.restated(hint=advice) from error


def _changes(batches: Iterable[pa.RecordBatch], mapping: RowMapping) -> Iterator[pa.RecordBatch]:
    """Yield the rows as the log has them, one for each key. Some are refused only after the last row."""
    if mapping.names.sequence is not None:
        newest = NewestRows(mapping.names.sequence)
        for batch in batches:
            newest.add(_renamed(batch, mapping))
        found = newest.take()
        if found is not None:
            yield found.select(list(mapping.names.kept))
        return
    if mapping.unique_keys:
        for batch in _gathered(batches):
            yield _renamed(batch, mapping)
        return
    with UniqueKeys() as keys:
        for batch in _gathered(batches):
            rows = _renamed(batch, mapping)
            groups = rows.column("key_group").to_numpy(zero_copy_only=False) if mapping.is_grouped else None
            keys.add(rows.column("key"), groups)
            yield rows
        keys.check()


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join batches, in order, to the size that a writer sends at once.

    Spark's batches have 10,000 rows, and the overhead of each would be considerable. A writer would cut larger ones
    into pieces, and those into smaller chunks.
    """
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in batches:
        size = batch.nbytes
        if held and held_bytes + size > TASK_BYTES:
            yield pa.concat_batches(held)
            held, held_bytes = [], 0
        if size >= TASK_BYTES:
            yield batch  # Alone: with others it might not fit into one array.
        else:
            held.append(batch)
            held_bytes += size
    if held:
        yield pa.concat_batches(held)


def _renamed(batch: pa.RecordBatch, mapping: RowMapping) -> pa.RecordBatch:
    """Return the rows with the log's names and key type, checked for nulls."""
    rows = batch.rename_columns(list(mapping.names.columns))
    place = mapping.names.columns.index("key")
    keys = rows.column(place)
    if keys.null_count:
        raise InvalidChange("a key is null", hint="Give every change a key", nulls=keys.null_count)
    nulls = rows.column("key_group").null_count if "key_group" in mapping.names.columns else 0
    if nulls:
        raise InvalidChange("a key group is null", hint="Give every change the key group of its key", nulls=nulls)
    if keys.type != mapping.key_type.arrow_type:
        try:
            rows = rows.set_column(place, "key", keys.cast(mapping.key_type.arrow_type))
        except pa.ArrowException as error:
            kind = mapping.key_type.value
            raise InvalidChange(f"column key cannot be {kind}: {error}", column="key") from error
    if not mapping.null_deletes and "op" not in mapping.names.columns and "value" in mapping.names.columns:
        nulls = rows.column("value").null_count
        if nulls:
            hint = "Add a column op with put or delete, set nullDeletes if a null deletes, or filter such rows out"
            raise InvalidChange("a value is null, and there is no column op", column="value", nulls=nulls, hint=hint)
    return rows


def _match_names(given: Sequence[str], descriptor: Descriptor, value: ValueSchema, sequence_by: str | None) -> Names:
    """Return the columns of a write. Raises InvalidChange with the unknown and the missing ones."""
    fields = {field.name for field in value.root.fields} if value.root is not None else set[str]()
    known = {*STATE_NAMES, DUE.name, "value", *fields}
    columns = tuple(_matched(name, known) for name in given)
    sequence = None if sequence_by is None else columns[_sequence(given, sequence_by)]
    dropped = sequence if sequence == DUE.name and sequence not in fields else None  # It only orders the rows.
    kept = tuple(name for name in columns if name != dropped and (name in known or name != sequence))
    unknown = set(kept) - known
    missing = {"key"} - set(columns)
    if descriptor.hash_rule is HashRule.CALLER:
        missing |= {"key_group"} - set(columns)
    if value.is_opaque:
        missing |= {"value"} - set(columns)
    if unknown or missing:
        raise InvalidChange(
            "the columns do not match the log",
            unknown=", ".join(sorted(unknown)),
            missing=", ".join(sorted(missing)),
            expected=", ".join(["key", "op (optional)", "due (optional)", *sorted(fields or {"value"})]),
            hint="Select and rename: key, op if there are deletes, and the value",
        )
    if len(set(columns)) != len(columns):
        raise InvalidChange("two columns of one name", columns=", ".join(given), hint="Rename one, or drop it")
    return Names(given=tuple(given), columns=columns, kept=kept, sequence=sequence)


def _matched(name: str, known: Collection[str]) -> str:
    """Return the known name that matches, or the name itself if there is none, or more than one."""
    if name in known:
        return name
    alike = [one for one in known if one.lower() == name.lower()]
    return alike[0] if len(alike) == 1 else name


def _sequence(given: Sequence[str], wanted: str) -> int:
    """Return the index of the column that `sequenceBy` names."""
    found = _matched(wanted, given)
    if found not in given:
        hint = "Name a column that grows with every change of a key; it need not be part of the value"
        raise InvalidChange(f"there is no column {wanted}, which sequenceBy names", columns=", ".join(given), hint=hint)
    return given.index(found)


def _check_types(
    names: Names, schema: StructType, descriptor: Descriptor, value: ValueSchema
) -> dict[tuple[str, bool], str]:
    """Return the advice of a `RowMapping` for values that may not fit.

    Raises InvalidChange for a column that never fits, with both types and the cast.
    """
    given = dict(zip(names.columns, schema.fields, strict=True))
    kinds = {name: field.dataType for name, field in given.items()}
    _check_one(kinds, "key", *_KEYS[descriptor.key_type])
    _check_one(kinds, "op", ("string", *_INTEGERS), "string", "cast({} as string)")
    _check_one(kinds, "key_group", _INTEGERS, "int", "cast({} as int)")
    if names.sequence is not None:
        _check_one(kinds, names.sequence, _SEQUENCES, "bigint or timestamp", "cast({} as bigint)")
    root = value.root
    is_whole = root is not None and isinstance(kinds.get("value"), StructType)
    has_field = root is not None and any(one.name == DUE.name for one in root.fields)
    reserved = STATE_NAMES if has_field and not is_whole else (*STATE_NAMES, DUE.name)
    if DUE.name in reserved and DUE.name in names.kept:
        _check_one(kinds, DUE.name, ("timestamp",), "timestamp", "cast({} as timestamp)")
    if root is None:
        wanted = ("string", "to_json({})") if value.is_json else ("binary", "cast(cast({} as string) as binary)")
        _check_one(kinds, "value", _TEXTS, *wanted)
        return {}
    fields = [name for name in names.kept if name not in reserved]
    if is_whole:
        return _check_value(cast("StructType", kinds["value"]), root, "value")
    columns = [StructField(name, kinds[name], given[name].nullable) for name in fields]
    return _check_value(StructType(columns), root, None)


def _check_one(kinds: Mapping[str, DataType], name: str, fitting: tuple[str, ...], wanted: str, cast_text: str) -> None:
    kind = kinds.get(name)
    if kind is not None and kind.simpleString().partition("(")[0] not in (*fitting, "void"):
        raise _refused(name, kind.simpleString(), wanted, f"Write {cast_text.format(name)}")


def _check_value(columns: StructType, root: ValueType, column: str | None) -> dict[tuple[str, bool], str]:
    """Return the advice. Raise InvalidChange for the first field that never fits.

    `column` is None if every field is a column of its own.
    """
    advice: dict[tuple[str, bool], str] = {}
    for misfit in misfits(_arrow_of(columns), root, _ROOT, nullable=False):
        name = column or misfit.path.split(".")[1].rstrip("[]{}")
        whole = root if column else {one.name: one.type for one in root.fields}.get(name)
        text = _advice(misfit, name, whole)
        if misfit.is_certain:
            given = "nothing" if misfit.given is None else _spark_name(misfit.given)
            wanted = "nothing" if misfit.wanted is None else _spark_name(misfit.wanted.arrow)
            raise _refused(name, given, wanted, text, field=misfit.path)
        advice[misfit.path, misfit.reason is Reason.NULL] = text
    return advice


def _advice(misfit: Misfit, column: str, whole: ValueType | None) -> str:
    """Return the advice for a misfit. A cast is that of the whole column, whichever part of it does not fit."""
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
    if misfit.reason is Reason.NARROW:
        cast = f"try_cast({column} as {_spark_name(whole.arrow)})"
        return f"Evolve the field to a wider type, or write {cast}, which makes others null"
    return f"Write cast({column} as {_spark_name(whole.arrow)})"


def _arrow_of(columns: StructType) -> pa.StructType:
    """Return the columns' Arrow type. Raises InvalidChange for a type that Arrow lacks."""
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
