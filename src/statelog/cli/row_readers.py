"""`RowReader`: parse lines as rows in the log's types, with Arrow's JSON and CSV readers.

Types are never guessed; values that a format or its reader cannot hold are refused.
"""

import base64
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.json as pj

from statelog.cli.fields import Fields
from statelog.errors import ConfigError, InvalidChange
from statelog.operate.rows import BytesText
from statelog.schemas.arrays import numbers_or_zeros
from statelog.schemas.values.arrow import default_array
from statelog.schemas.values.json_text import encode_json, strict_json
from statelog.schemas.values.types import ValueType

_DELIMITERS = {"csv": ",", "tsv": "\t"}
_NESTED = ("record", "array", "map")
_COLUMN = re.compile(r"^In CSV column #(\d+): (?:CSV )?")
_AROUND_CSV = re.compile(r"^CSV parse error: (?:Row #\d+: )?")
_PARALLEL_BYTES = 1 << 20
_SCALARS = (pa.string(), pa.bool_(), pa.int64(), pa.float64())
_AROUND_JSON = re.compile(r"^JSON parse error: | in row \d+$")
_CHANGED_TYPE = re.compile(r"^Column\(/(.+)\) changed from (\w+) to (\w+)$")


class RowReader(ABC):
    """A reader of rows as batches in the log's types. Raises ConfigError for values that the format cannot hold.

    `kind`, `title`: the name of the format in a commit's mark, and in messages.
    `blanks`: lines of these bytes alone are skipped.
    `no_row`, `not_one`: the problem of a line that is not a row, and of lines that do not make as many rows.
    """

    kind: str
    title: ClassVar[str]
    blanks: ClassVar[bytes]
    no_row: ClassVar[str]
    not_one: ClassVar[str]
    has_header: ClassVar[bool] = False

    def __init__(self, fields: Fields) -> None:
        self._fields = fields
        root = fields.value_schema.root
        named = (fields.op_field, fields.due_field, fields.checkpoint_field)
        self._types = {name: pa.null() for name in named if name is not None}
        """The types by field; null for op, due and checkpoint until they are known."""
        plain = {fields.value_field: fields.value_schema.shown_type}
        self._types |= {one.name: one.type.arrow for one in root.fields} if root else plain
        self._types |= {"key_group": pa.int64()} if fields.named_groups else {}
        self._types[fields.key_field] = fields.key_type.arrow_type
        self._defaults = {
            one.name: default_array(one.default, one.type, one.name)[0]
            for one in (root.fields if root else ())
            if one.default is not None and not one.type.nullable
        }
        if fields.bytes_text is BytesText.BASE64 and fields.key_field in fields.value_fields:
            raise ConfigError("with base64 the key cannot also be a field of the value", field=fields.key_field)
        for path, problem in self._lacking(root, "value") if root else ():
            hint = "Append Parquet, or write with a Writer"
            raise ConfigError(f"{self.title} for this log cannot be read: {problem}", hint=hint, field=path)

    def begin(self, header: bytes) -> None:  # noqa: B027 - most formats have none
        """Read the header, if the format has one. Raises InvalidChange if it does not fit the log."""

    @abstractmethod
    def are_rows(self, text: bytes, lines: int) -> bool:
        """Tell whether every line of a text can be a row. If it has as many rows as lines, each line is a row."""

    @abstractmethod
    def read(self, rows: bytes) -> pa.RecordBatch | str:
        """Read lines as a batch, or return the reason why they cannot be read."""

    @abstractmethod
    def _lacking(self, kind: ValueType, path: str) -> Iterator[tuple[str, str]]:
        """Yield the fields of a type that the format cannot hold: the path, and the problem in words."""

    def _fitted(self, batch: pa.RecordBatch) -> pa.RecordBatch | str:
        """Cast each column of a parsed batch to the log's type."""
        columns: list[pa.Array] = []
        for name in batch.schema.names:
            try:
                columns.append(self._column(name, batch.column(name)))
            except (pa.ArrowException, ValueError) as error:
                return f"the field {name!r} is not {self._types[name]}: {error}"
        return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)

    def _column(self, name: str, column: pa.Array) -> pa.Array:
        """Cast a column to the log's type: decode bytes, and fill missing values with the default."""
        kind = self._types[name]
        if self._is_base64(kind):
            texts = column.to_pylist()
            column = pa.array([text if text is None else base64.b64decode(text, validate=True) for text in texts])
        column = _narrowed(column, kind)
        return column.fill_null(self._defaults[name]) if column.null_count and name in self._defaults else column

    def _is_base64(self, kind: pa.DataType) -> bool:
        are_bytes = pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind)
        return are_bytes and self._fields.bytes_text is BytesText.BASE64


class CsvRows(RowReader):
    """Rows with fields in the order of the header; `kind` is csv or tsv. An empty field is null, `""` an empty text.

    Fields outside the schema are text.
    """

    title = "CSV"
    blanks = b"\r\n"
    no_row = "it has a carriage return before its end"
    not_one = "it has an open quote, and a field cannot continue in the next line"
    has_header = True

    def __init__(self, fields: Fields, kind: str = "csv") -> None:
        super().__init__(fields)
        self.kind = kind
        self._types = {name: pa.string() if type_ == pa.null() else type_ for name, type_ in self._types.items()}
        self._parsing = pc.ParseOptions(delimiter=_DELIMITERS[kind])
        self._names: list[str] = []
        self._converting = pc.ConvertOptions()

    def begin(self, header: bytes) -> None:
        """Read the names of the fields. Raises InvalidChange if some are missing, unknown or duplicate."""
        line = header + b"\n"
        hint = "Name each field once in the first line; check the separator: the file's name or --format chooses it"
        if not self.are_rows(line, 1) or self._is_open(line):
            raise InvalidChange("the first line is not a CSV header", hint=hint)
        try:
            line.decode()
        except UnicodeDecodeError as error:
            raise InvalidChange(f"the header is broken: {error}", hint=hint) from None
        self._names = self._parsed(line).column_names
        known = [name for name in self._names if name in self._types]
        twice = sorted({name for name in known if known.count(name) > 1})
        if twice:
            raise InvalidChange("the header has a field twice", hint=hint, fields=", ".join(twice))
        columns = [pa.array([], self._types.get(name, pa.null())) for name in self._names]
        self._fields.to_changes(pa.RecordBatch.from_arrays(columns, names=self._names))  # Raises if they do not fit.
        kinds = {name: pa.string() if self._is_base64(self._types[name]) else self._types[name] for name in known}
        kinds = {name: pa.float64() if kind == pa.float32() else kind for name, kind in kinds.items()}
        self._converting = pc.ConvertOptions(
            column_types=kinds,
            include_columns=known,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            check_utf8=False,  # `read` checks it.
        )

    def are_rows(self, text: bytes, lines: int) -> bool:  # noqa: ARG002 - the base's signature
        """Tell whether no line is blank and none has a carriage return inside, where Arrow would end a row."""
        is_blank = text[:1] in (b"", b"\n", b"\r") or b"\n\n" in text or b"\n\r" in text
        return not is_blank and text.count(b"\r") == text.count(b"\r\n")

    def read(self, rows: bytes) -> pa.RecordBatch | str:
        """Read lines as a batch, or return the reason why they cannot be read."""
        if not rows.endswith(b"\n"):
            return "it has no line end, and may have been cut off"
        if self._is_open(rows[rows.rfind(b"\n", 0, -1) + 1 :]):
            return self.not_one
        try:
            rows.decode()
            table = self._parsed(rows, self._converting, column_names=self._names)
        except (pa.ArrowException, ValueError) as error:
            named = _COLUMN.sub(lambda found: f"the field {self._names[int(found[1])]!r}: ", str(error))
            return _AROUND_CSV.sub("", named)
        return self._fitted(table.combine_chunks().to_batches()[0])

    def _is_open(self, line: bytes) -> bool:
        """Tell whether a line ends with an open quote: Arrow closes it silently, but reads two such lines as one."""
        try:
            return self._parsed(line + line, autogenerate_column_names=True).num_rows == 1
        except pa.ArrowInvalid:
            return True

    def _parsed(self, text: bytes, converting: pc.ConvertOptions | None = None, **names: Any) -> pa.Table:
        """Parse a text in one block, because at a block's end a field with a line end looks like two rows.

        A blank line comes first: Arrow drops a leading byte order mark, which belongs to a field here.
        """
        reading = pc.ReadOptions(block_size=len(text) + 2, **names)
        given = pa.BufferReader(b"\n" + text)
        return pc.read_csv(given, read_options=reading, parse_options=self._parsing, convert_options=converting)

    def _lacking(self, kind: ValueType, path: str) -> Iterator[tuple[str, str]]:
        for one in kind.fields:
            if one.type.kind in _NESTED:
                yield f"{path}.{one.name}", f"it has a nested field ({one.type.kind}), which CSV cannot hold"


class JsonRows(RowReader):
    """Rows as JSON objects. Fields outside the schema have the types of the first row."""

    kind = "json-lines"
    title = "JSON lines"
    blanks = b" \t\r\n"
    no_row = "it is not one JSON object (for CSV use --format csv)"
    not_one = "it holds more than one object"
    _wire: pa.Schema | None = None

    def are_rows(self, text: bytes, lines: int) -> bool:
        """Tell whether every line begins and ends like an object."""
        return text.startswith(b"{") and text.endswith((b"}\n", b"}")) and text.count(b"}\n{") == lines - 1

    def read(self, rows: bytes) -> pa.RecordBatch | str:
        """Read objects as a batch, or return the reason why they cannot be read."""
        if self._fields.value_schema.is_json:
            try:
                rows = _with_texts(rows, self._fields.value_field)
            except InvalidChange as error:
                return error.message
            except (ValueError, RecursionError) as error:
                return str(error)
        if self._wire is None:
            self._wire = self._wire_schema(rows.partition(b"\n")[0])
        batch = self._read_as(rows, self._wire)
        if isinstance(batch, str):
            return self._unknown(rows) if batch == "unexpected field" else batch
        return self._fitted(batch)

    def _unknown(self, lines: bytes) -> str:
        found = _parsed(lines, None, "infer")  # Arrow cannot always infer the types.
        names = [] if isinstance(found, str) else [name for name in found.schema.names if name not in self._types]
        return f"it has fields that the log does not have: {', '.join(names) or 'nested ones'}"

    def _wire_schema(self, first: bytes) -> pa.Schema:
        """Return the schema for parsing. Fields outside the log's have the type of the first row; null is text."""
        for name in [name for name, type_ in self._types.items() if type_ == pa.null()]:
            read = (kind for kind in _SCALARS if not isinstance(_parsed(first, pa.schema([(name, kind)])), str))
            self._types[name] = next(read, pa.string())
        return pa.schema([(name, _wire(kind)) for name, kind in self._types.items()])

    def _read_as(self, rows: bytes, wire: pa.Schema) -> pa.RecordBatch | str:
        """Parse objects. If they do not fit, parse dues as text or as numbers: the rows before may have had none."""
        unexpected, due = "ignore" if self._fields.ignore_unknown else "error", self._fields.due_field
        batch = _parsed(rows, wire, unexpected)
        if due is None or due in (self._fields.key_field, self._fields.value_field, *self._fields.value_fields):
            return batch
        for kind in (pa.string(), pa.float64()) if isinstance(batch, str) else ():
            other = wire.set(wire.get_field_index(due), pa.field(due, kind))
            again = _parsed(rows, other, unexpected)
            if not isinstance(again, str):
                self._types[due], self._wire = kind, other
                return again
        return batch

    def _lacking(self, kind: ValueType, path: str, depth: int = 0) -> Iterator[tuple[str, str]]:
        if kind.kind == "map":
            yield path, "it has a map, which Arrow's JSON reader cannot read"
        elif str(kind.arrow).startswith("time") and not pa.types.is_timestamp(kind.arrow):
            yield path, "it has a time of day, which Arrow's JSON reader cannot read"
        elif depth > 1 and self._is_base64(kind.arrow):
            yield path, "it has nested bytes, where base64 is not decoded"
        if kind.items is not None:
            yield from self._lacking(kind.items, f"{path}[]", depth + 1)
        for one in kind.fields:
            if one.default is not None and (depth or one.type.nullable):
                problem = "it has a default, and Arrow's JSON reader cannot tell null from a missing field"
                yield f"{path}.{one.name}", problem
            yield from self._lacking(one.type, f"{path}.{one.name}", depth + 1)


def _with_texts(rows: bytes, value_field: str) -> bytes:
    """Put the text of each JSON value in its place, which Arrow reads. Raises ValueError, InvalidChange."""
    lines: list[bytes] = []
    for line in rows.removesuffix(b"\n").split(b"\n"):
        row = cast("dict[str, object]", strict_json(line))  # It begins and ends like an object.
        if row.get(value_field) is not None:
            row[value_field] = encode_json(row[value_field], None).decode()
        lines.append(encode_json(row, None) + b"\n")
    return b"".join(lines)


def _parsed(
    text: bytes, schema: pa.Schema | None, unexpected: str = "ignore", block_bytes: int = _PARALLEL_BYTES
) -> pa.RecordBatch | str:
    try:
        text.decode()  # Arrow does not check it.
        table = pj.read_json(
            pa.BufferReader(text),
            read_options=pj.ReadOptions(block_size=block_bytes),
            parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected),
        )
    except (pa.ArrowException, ValueError) as error:
        if "straddling" in str(error) and block_bytes <= len(text):
            return _parsed(text, schema, unexpected, len(text) + 1)  # A row is longer than Arrow's blocks.
        return _CHANGED_TYPE.sub(r"the field '\1' is of JSON's type \3, and not \2", _AROUND_JSON.sub("", str(error)))
    return table.combine_chunks().to_batches()[0]


def _wire(kind: pa.DataType) -> pa.DataType:
    """Return the type that Arrow's reader reads for a type, before a cast."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, _wire(one.type)) for one in cast("pa.StructType", kind)])
    if pa.types.is_list(kind):
        return pa.list_(_wire(cast("pa.ListType", kind).value_type))
    if kind == pa.float32():
        return pa.float64()  # A number too large for float32 would silently become infinite.
    return pa.string() if str(kind).startswith("date") or pa.types.is_fixed_size_binary(kind) else kind


def _narrowed(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast a column. Raises ArrowException or ValueError for values that do not fit.

    Arrow itself does not report numbers that become infinite.
    """
    if column.type == kind:
        return column
    made = column.cast(kind)
    if list(_infinite(column)) != list(_infinite(made)):
        raise ValueError("a number is too large")
    return made


def _infinite(column: pa.Array) -> Iterator[int]:
    """Count the infinite numbers in each floating-point part of a column."""
    if column.type in (pa.float32(), pa.float64()):
        yield int(np.count_nonzero(np.isinf(numbers_or_zeros(column))))
    elif pa.types.is_struct(column.type):
        for part in cast("pa.StructArray", column).flatten():
            yield from _infinite(part)
    elif pa.types.is_list(column.type):
        yield from _infinite(cast("pa.ListArray", column).flatten())
