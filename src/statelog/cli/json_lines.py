"""JSON lines as an input: blocks of whole lines, each read by Arrow's JSON reader; what that lacks is refused.

The mark is the number of bytes up to the end of the last row taken, and their SHA-256. So a file may have grown since
it was read the last time: what is new is appended.

Invariant: a row is a line. Blocks whose objects and lines do not match are refused, so that a commit's mark is exact.
"""

import base64
import hashlib
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple, Self, cast

import numpy as np
import pyarrow as pa
import pyarrow.json as pj
from numpy.typing import NDArray

from statelog.cli.fields import Fields
from statelog.errors import ConfigError, InvalidChange, ValueTooLarge
from statelog.operate.rows import BytesText
from statelog.schemas.values.arrow import default_array
from statelog.schemas.values.types import ValueType

BLOCK_BYTES = 4 << 20
_PARALLEL_BYTES = 1 << 20
_MAX_LINE_BYTES = 64 << 20
_BOM = b"\xef\xbb\xbf"
_OTHERS = {
    b"PAR1": "Parquet, which cannot be read from a pipe: name the file",
    b"\x1f\x8b": "gzip: unpack it, as in zcat FILE | statelog append LOG - --writer NAME",
    b"\x28\xb5\x2f\xfd": "zstd: unpack it, as in zstdcat FILE | statelog append LOG - --writer NAME",
    b"BZh": "bzip2: unpack it, as in bzcat FILE | statelog append LOG - --writer NAME",
    b"\xfd7zXZ": "xz: unpack it, as in xzcat FILE | statelog append LOG - --writer NAME",
    b"PK\x03\x04": "a zip archive: unpack it",
    b"\xff\xfe": "UTF-16: convert it, as in iconv -f UTF-16 -t UTF-8 FILE",
    b"\xfe\xff": "UTF-16: convert it, as in iconv -f UTF-16 -t UTF-8 FILE",
}
"""What people try to append, by its first bytes, and what helps."""
_SCALARS = (pa.string(), pa.bool_(), pa.int64(), pa.float64())
_BLANKS = b" \t\r\n"
_NEWLINE = ord("\n")
_ROW = re.compile(rb"[ \t\r\n]*[^ \t\r\n][^\n]*\n?")
_AROUND_REASON = re.compile(r"^JSON parse error: | in row \d+$")


class _Block(NamedTuple):
    """A text of whole rows, how many lines it ends, and where each row ends, behind 0: blank lines belong to the row
    behind them. `rows` is what Arrow reads, a row a line; None if a row is no object.
    """

    text: bytes
    newlines: int
    ends: NDArray[np.int64]
    rows: bytes | None

    @classmethod
    def of(cls, text: bytes) -> Self:
        """Looks at lines one by one only where some are blank, or no objects."""
        newlines = np.flatnonzero(np.frombuffer(text, np.uint8) == _NEWLINE) + 1
        ends = np.concatenate([[0], newlines[: -1 if text.endswith(b"\n") else None], [len(text)]])
        if _are_objects(text, len(ends) - 1):
            return cls(text, len(newlines), ends, text)
        ends = np.array([0, *(row.end() for row in _ROW.finditer(text))], np.int64)
        rows = b"\n".join(text[start:end].strip(_BLANKS) for start, end in pairwise(ends.tolist()))
        return cls(text, len(newlines), ends, rows if _are_objects(rows, len(ends) - 1) else None)


def _are_objects(text: bytes, lines: int) -> bool:
    """Whether every line begins and ends as an object does: if it has as many objects as lines, each has one."""
    return text.startswith(b"{") and text.endswith((b"}\n", b"}")) and text.count(b"}\n{") == lines - 1


class JsonLines:
    """Rows from `read`, which gives at most so many bytes, and none at the end. Raises ConfigError
    for a log with values that it cannot read.

    `name` is the input's, for messages; `size_bytes` its size if it is known. `rows` and `read_bytes` were taken.
    """

    kind = "json-lines"

    def __init__(
        self,
        read: Callable[[int], bytes],
        fields: Fields,
        *,
        name: str,
        size_bytes: int | None = None,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        self._read = read
        self._reader = _RowReader(fields)
        self._name = name
        self._size_bytes = size_bytes
        self._block_bytes = block_bytes
        self._sha256 = hashlib.sha256()
        self.rows = 0
        self.read_bytes = 0
        self._lines = 0
        """Those before the block."""
        self._block = _Block.of(b"")
        self._taken = 0

    @property
    def digest(self) -> str:
        """The SHA-256 of the bytes that were taken."""
        return self._sha256.hexdigest()

    @property
    def fraction(self) -> float | None:
        """How much of the bytes was taken; None if the size is unknown."""
        return self.read_bytes / self._size_bytes if self._size_bytes else None

    def resume(self, rows: int, read_bytes: int, digest: str) -> str | None:
        """Skip what an earlier run took. Returns how this input differs from that one, None if it does not."""
        while self.read_bytes < read_bytes:
            data = self._read(min(self._block_bytes, read_bytes - self.read_bytes))
            if not data:
                return "it is shorter"
            self._take_bytes(data)
            self._lines += data.count(b"\n")
        self.rows = rows
        return None if self.digest == digest else "its beginning differs"

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows behind. Raises InvalidChange with the number of a broken line, after all rows before it."""
        for text in self._texts():
            block = self._block = _Block.of(text)
            self._taken = 0
            found = self._reader.read(block)
            if isinstance(found, str):
                # The shortest beginning that cannot be read ends with the broken row.
                row = bisect_left(block.ends[1:], True, key=lambda end: isinstance(self._beginning(end), str))
                sound = self._beginning(block.ends[row])
                if not isinstance(sound, str):
                    yield sound
                raise self._broken(row)
            yield found
            self._lines += block.newlines

    def _beginning(self, end: int) -> pa.RecordBatch | str:
        return self._reader.read(_Block.of(self._block.text[:end]))

    def take(self, rows: int) -> None:
        """Count the next `rows` rows of the batch that was given last as taken."""
        start, end = self._block.ends[[self._taken, self._taken + rows]]
        self._take_bytes(self._block.text[start:end])
        self._taken += rows
        self.rows += rows

    def place(self, row: int) -> dict[str, int]:
        """The line of a row, from 1: `row` counts from the first one not taken."""
        through = self._block.text[: self._block.ends[self._taken + row + 1]]
        return {"line": self._lines + through.rstrip(_BLANKS).count(b"\n") + 1}

    def _take_bytes(self, data: bytes) -> None:
        self._sha256.update(data)
        self.read_bytes += len(data)

    def _texts(self) -> Iterator[bytes]:
        """Texts of whole rows. Blank lines behind the last one come before the next text's."""
        rest = b""
        while data := self._read(self._block_bytes):
            rest += data if rest or self.read_bytes else self._begun(data)
            kept = len(rest[: rest.rfind(b"\n") + 1].rstrip(_BLANKS))
            end = rest.find(b"\n", kept) + 1 if kept else 0
            if end:
                yield rest[:end]
                rest = rest[end:]
            elif len(rest) > _MAX_LINE_BYTES:
                problem = "a line is too long for a change"
                raise ValueTooLarge(problem, input=self._name, line=self._lines + 1, size_bytes=len(rest))
        if rest.strip(_BLANKS):
            yield rest

    def _begun(self, data: bytes) -> bytes:
        """The first bytes without the mark that some programs put there. Raises InvalidChange for another format."""
        other = next((help_ for magic, help_ in _OTHERS.items() if data.startswith(magic)), None)
        if other is not None:
            raise InvalidChange(f"the input is not JSON lines but {other}", input=self._name)
        if data.startswith(_BOM):
            self._take_bytes(_BOM)  # It is no part of the first line.
        return data.removeprefix(_BOM)

    def _broken(self, row: int) -> InvalidChange:
        place, (start, end) = self.place(row - self._taken), self._block.ends[[row, row + 1]]
        problem = self._reader.read(_Block.of(self._block.text[start:end]))
        hint = "Fix the line and run the same command again; it resumes after the last commit"
        return InvalidChange(f"line {place['line']} is broken: {problem}", hint=hint, input=self._name, **place)


class _RowReader:
    """Rows as batches in the types of the log, by Arrow's reader; fields that no schema names have the types of the
    first row. Raises ConfigError for a log with values that the reader lacks.
    """

    def __init__(self, fields: Fields) -> None:
        self._fields = fields
        self._wire = pa.schema([])
        root = fields.value_schema.root
        self._types = {name: pa.null() for name in (fields.op_field, fields.checkpoint_field) if name is not None}
        self._types |= {one.name: one.type.arrow for one in root.fields} if root else {fields.value_field: pa.binary()}
        self._types |= {"key_group": pa.int64()} if fields.named_groups else {}
        self._types[fields.key_field] = fields.key_type.arrow_type
        self._defaults = {
            one.name: default_array(one.default, one.type, one.name)[0]
            for one in (root.fields if root else ())
            if one.default is not None
        }
        if fields.bytes_text is BytesText.BASE64 and fields.key_field in fields.value_fields:
            raise ConfigError("with base64 the key cannot also be a field of the value", field=fields.key_field)
        for path, problem in _lacking(root, "value", fields.bytes_text) if root else ():
            hint = "Append Parquet, or write with a Writer"
            raise ConfigError(f"JSON lines for this log cannot be read: {problem}", hint=hint, field=path)

    def read(self, block: _Block) -> pa.RecordBatch | str:
        """The rows of a block as a batch; or why they cannot be read."""
        if block.rows is None:
            return "it is not one JSON object"
        if not self._wire.names:
            self._wire = self._wire_schema(block.rows.partition(b"\n")[0])
        batch = _parsed(block.rows, self._wire, "ignore" if self._fields.ignore_unknown else "error")
        if isinstance(batch, str):
            return self._unknown(block.rows) if batch == "unexpected field" else batch
        if batch.num_rows != len(block.ends) - 1:
            return "it holds more than one object"
        columns: list[pa.Array] = []
        for name in batch.schema.names:
            try:
                columns.append(self._column(name, batch.column(name)))
            except (pa.ArrowException, ValueError) as error:
                return f"the field {name!r} is not {self._types[name]}: {error}"
        return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)

    def _unknown(self, lines: bytes) -> str:
        found = _parsed(lines, None, "infer")  # Of which Arrow cannot always tell the types.
        names = [] if isinstance(found, str) else [name for name in found.schema.names if name not in self._types]
        return f"it has fields that the log does not have: {', '.join(names) or 'somewhere within'}"

    def _wire_schema(self, first: bytes) -> pa.Schema:
        """What rows are parsed as. Fields that no schema names have the type of the first row; a null is text."""
        for name in (self._fields.op_field, self._fields.checkpoint_field):
            if name is not None and self._types[name] == pa.null():
                read = (kind for kind in _SCALARS if not isinstance(_parsed(first, pa.schema([(name, kind)])), str))
                self._types[name] = next(read, pa.string())
        return pa.schema([(name, _wire(kind)) for name, kind in self._types.items()])

    def _column(self, name: str, column: pa.Array) -> pa.Array:
        """A column in the log's type, bytes decoded, with the default for what is missing."""
        kind = self._types[name]
        if self._fields.bytes_text is BytesText.BASE64 and _is_bytes(kind):
            texts = column.to_pylist()
            column = pa.array([text if text is None else base64.b64decode(text, validate=True) for text in texts])
        column = column.cast(kind)
        return column.fill_null(self._defaults[name]) if column.null_count and name in self._defaults else column


def _parsed(
    text: bytes, schema: pa.Schema | None, unexpected: str = "ignore", block_bytes: int = _PARALLEL_BYTES
) -> pa.RecordBatch | str:
    try:
        text.decode()  # Arrow does not look.
        table = pj.read_json(
            pa.BufferReader(text),
            read_options=pj.ReadOptions(block_size=block_bytes),
            parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected),
        )
    except (pa.ArrowException, ValueError) as error:
        if "straddling" in str(error) and block_bytes <= len(text):
            return _parsed(text, schema, unexpected, len(text) + 1)  # It has a row that is longer than Arrow's blocks.
        return _AROUND_REASON.sub("", str(error))
    return table.combine_chunks().to_batches()[0]


def _wire(kind: pa.DataType) -> pa.DataType:
    """What Arrow's reader reads for a type; a cast makes the type of it."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, _wire(one.type)) for one in cast("pa.StructType", kind)])
    if pa.types.is_list(kind):
        return pa.list_(_wire(cast("pa.ListType", kind).value_type))
    return pa.string() if str(kind).startswith("date") or pa.types.is_fixed_size_binary(kind) else kind


def _is_bytes(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind)


def _lacking(kind: ValueType, path: str, bytes_text: BytesText, depth: int = 0) -> Iterator[tuple[str, str]]:
    """What Arrow's reader lacks of a type: where, and in words."""
    if kind.kind == "map":
        yield path, "it has a map, which Arrow's JSON reader lacks"
    elif str(kind.arrow).startswith("time") and not pa.types.is_timestamp(kind.arrow):
        yield path, "it has a time of day, which Arrow's JSON reader lacks"
    elif depth > 1 and bytes_text is BytesText.BASE64 and _is_bytes(kind.arrow):
        yield path, "it has bytes within a field, where base64 is not decoded"
    if kind.items is not None:
        yield from _lacking(kind.items, f"{path}[]", bytes_text, depth + 1)
    for one in kind.fields:
        if one.default is not None and (depth or one.type.nullable):
            yield (
                f"{path}.{one.name}",
                "it has a default, and Arrow's JSON reader cannot tell null from a field that is missing",
            )
        yield from _lacking(one.type, f"{path}.{one.name}", bytes_text, depth + 1)
