"""State as rows: parse typed keys, and format keys and values as JSON or for people.

Pure, except for `whole_file`, which writes.
"""

import base64
import binascii
import datetime
import os
import re
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any, TextIO, cast

import pyarrow as pa
import pyarrow.compute as pc

from statelog.errors import InvalidChange
from statelog.formatting import as_json
from statelog.schemas.changes.due import DUE
from statelog.schemas.key_groups import KeyType, key_bytes
from statelog.schemas.values.json_text import decode_json
from statelog.schemas.values.schema import columns_of
from statelog.store.disk.disk import local_disk, require_file, sync

_BATCH_ROWS = 10_000
_NUMBER = re.compile(r"[+-]?[0-9]{1,99}")
Shown = Callable[[Any], object]


class BytesText(StrEnum):
    """The encoding of bytes in JSON."""

    UTF8 = "utf8"
    BASE64 = "base64"


def json_lines(table: pa.Table, bytes_text: BytesText, *, with_groups: bool) -> Iterator[str]:
    """Yield a line for each row of a state: key, and value or the fields of a typed value. `append` reads such lines.

    A table with the column `due` gives a field of that name, null without a due. A typed value with a field `key` or
    `key_group`, or then `due`, goes into a field `value` as a whole. Raises InvalidChange for bytes that are not UTF-8.
    """
    for batch in table.to_batches(max_chunksize=_BATCH_ROWS):
        columns = _columns(batch, bytes_text, with_groups=with_groups)
        names = list(columns)
        for row in zip(*columns.values(), strict=True):
            yield as_json(dict(zip(names, row, strict=True)))


def shown_rows(table: pa.Table, rows: int) -> list[tuple[object, ...]]:
    """Return the first rows of all columns of a state, such as key group, key and value, for people."""
    return [
        row
        for batch in table.slice(0, rows).to_batches()
        for row in zip(*[value_column(column, None) for column in batch.columns], strict=True)
    ]


def read_keys(texts: Sequence[str], key_type: KeyType, bytes_text: BytesText) -> pa.Array:
    """Return the keys as a column. Bytes keys are base64, or the shell's own bytes. Raises InvalidChange."""
    keys = [_read_key(text, key_type, bytes_text) for text in texts]
    for key in keys:
        key_bytes(key, key_type)  # Raises for an invalid key.
    return pa.array(keys, key_type.arrow_type)


def rows_of(table: pa.Table, keys: pa.Array) -> pa.Table:
    """Return the rows of these keys, in the table's order."""
    return table.filter(pc.is_in(table.column("key"), value_set=keys))


def _read_key(text: str, key_type: KeyType, bytes_text: BytesText) -> Any:
    match key_type:
        case KeyType.STRING:
            return text
        case KeyType.LONG if _NUMBER.fullmatch(text):
            return int(text)
        case KeyType.LONG:
            hint = "Write digits; put -- before a negative number"
            raise InvalidChange("the keys of this log are whole numbers", key=text, hint=hint)
        case KeyType.BYTES if bytes_text is BytesText.BASE64:
            try:
                return base64.b64decode(text, validate=True)
            except (binascii.Error, ValueError):
                raise InvalidChange("a key is not base64", key=text, hint="Check --bytes") from None
        case KeyType.BYTES:
            return os.fsencode(text)


@contextmanager
def whole_file(path: Path) -> Generator[TextIO]:
    """Open a text file that appears whole or not at all.

    Raises AlreadyExists if the path is not a file, StorageFull, StoreUnavailable.
    """
    require_file(path)
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    try:
        with local_disk(path):
            with partial.open("w", encoding="utf-8", newline="\n") as file:
                yield file
            sync(partial)
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _columns(batch: pa.RecordBatch, bytes_text: BytesText, *, with_groups: bool) -> Mapping[str, list[object]]:
    columns: dict[str, list[object]] = {}
    if with_groups:
        columns["key_group"] = batch.column("key_group").to_pylist()
    columns["key"] = json_column(batch.column("key"), bytes_text)
    value, is_timed = batch.column("value"), DUE.name in batch.schema.names
    if is_timed:
        columns[DUE.name] = json_column(batch.column(DUE.name), bytes_text)
    reserved = {"key", "key_group", *[DUE.name] * is_timed}
    if not pa.types.is_struct(value.type) or reserved & set(cast("pa.StructType", value.type).names):
        columns["value"] = value_column(value, bytes_text)
        return columns
    fields = columns_of(value)
    for name, column in zip(fields.schema.names, fields.columns, strict=True):
        columns[name] = json_column(column, bytes_text)
    return columns


def json_column(column: pa.Array, bytes_text: BytesText | None) -> list[object]:
    """Return the values of a column as JSON values. Raises InvalidChange for bytes that are not UTF-8.

    `bytes_text` None: format the values for people, and escape such bytes.
    """
    shown = _shower(column.type, bytes_text)
    values = _values(column)
    return values if shown is None else [None if one is None else shown(one) for one in values]


def value_column(column: pa.Array, bytes_text: BytesText | None) -> list[object]:
    """Return a column of whole values as `json_column`. JSON text becomes its value; for people it stays text."""
    if bytes_text is None or not pa.types.is_string(column.type):
        return json_column(column, bytes_text)
    return [None if text is None else decode_json(text) for text in column.cast(pa.binary()).to_pylist()]


def _values(column: pa.Array) -> list[object]:
    """Return the values as Python objects. A time outside Python's years becomes its number in Arrow."""
    try:
        return column.to_pylist()
    except (OverflowError, ValueError):
        if len(column) > 1:
            half = len(column) // 2
            return [*_values(column.slice(0, half)), *_values(column.slice(half))]
        if not pa.types.is_struct(column.type):
            return column.cast(_with_numbers(column.type)).to_pylist()
        fields = columns_of(column)
        return [{name: _values(one)[0] for name, one in zip(fields.schema.names, fields.columns, strict=True)}]


def _with_numbers(kind: pa.DataType) -> pa.DataType:
    """Replace each time in a type by a number."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, _with_numbers(one.type)) for one in cast("pa.StructType", kind)])
    if pa.types.is_map(kind):
        mapping = cast("pa.MapType", kind)
        return pa.map_(mapping.key_type, _with_numbers(mapping.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_with_numbers(cast("pa.ListType", kind).value_type))
    if str(kind).startswith(("date32", "time32")):
        return pa.int32()
    return pa.int64() if str(kind).startswith("time") else kind


def _shower(kind: pa.DataType, bytes_text: BytesText | None) -> Shown | None:
    """Return the function that makes a JSON value of a type's values; None if JSON has the type."""
    if pa.types.is_struct(kind):
        inner = {one.name: _shower(one.type, bytes_text) for one in cast("pa.StructType", kind)}
        return lambda value: {name: _one(one, inner[name]) for name, one in value.items()}
    if pa.types.is_map(kind):
        item = _shower(cast("pa.MapType", kind).item_type, bytes_text)
        return lambda value: {name: _one(one, item) for name, one in value}
    if pa.types.is_list(kind):
        entry = _shower(cast("pa.ListType", kind).value_type, bytes_text)
        return lambda value: [_one(one, entry) for one in value]
    if str(kind) == "binary" or pa.types.is_fixed_size_binary(kind):
        return _BYTES_SHOWERS[bytes_text]
    if str(kind).startswith(("timestamp[ms", "time32[ms")):
        return _in_milliseconds
    if str(kind).startswith(("date", "time", "decimal")):
        return _scalar
    return None


def _one(value: object, shown: Shown | None) -> object:
    return value if value is None or shown is None else shown(value)


def _utf8(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise InvalidChange("bytes that are not UTF-8 do not go into JSON", hint="Use --bytes base64") from None


_BYTES_SHOWERS: Mapping[BytesText | None, Shown] = {
    BytesText.BASE64: lambda value: base64.b64encode(value).decode(),
    BytesText.UTF8: _utf8,
    None: lambda value: value.decode(errors="backslashreplace"),
}


def _in_milliseconds(value: object) -> str:
    """Format with at most three digits of a second, as `append` reads it in such a field."""
    if isinstance(value, datetime.datetime | datetime.time) and value.microsecond:
        return value.isoformat(timespec="milliseconds")
    return _scalar(value)


def _scalar(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime.date | datetime.time) else str(value)
