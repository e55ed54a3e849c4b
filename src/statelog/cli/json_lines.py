"""Rows of JSON lines, by Arrow's JSON reader; what that lacks is refused."""

import re
from collections.abc import Iterator
from typing import cast

import pyarrow as pa
import pyarrow.json as pj

from statelog.cli.lines import RowReader
from statelog.schemas.values.types import ValueType

_PARALLEL_BYTES = 1 << 20
_SCALARS = (pa.string(), pa.bool_(), pa.int64(), pa.float64())
_AROUND_REASON = re.compile(r"^JSON parse error: | in row \d+$")
_CHANGED = re.compile(r"^Column\(/(.+)\) changed from (\w+) to (\w+)$")


class JsonRows(RowReader):
    """A row is an object. Fields that no schema names have the types of the first row."""

    kind = "json-lines"
    title = "JSON lines"
    blanks = b" \t\r\n"
    no_row = "it is not one JSON object (for CSV say --format csv)"
    not_one = "it holds more than one object"
    _wire: pa.Schema | None = None

    def are_rows(self, text: bytes, lines: int) -> bool:
        """Whether every line begins and ends as an object does."""
        return text.startswith(b"{") and text.endswith((b"}\n", b"}")) and text.count(b"}\n{") == lines - 1

    def read(self, rows: bytes) -> pa.RecordBatch | str:
        """Objects as a batch; or why they cannot be read."""
        if self._wire is None:
            self._wire = self._wire_schema(rows.partition(b"\n")[0])
        batch = _parsed(rows, self._wire, "ignore" if self._fields.ignore_unknown else "error")
        if isinstance(batch, str):
            return self._unknown(rows) if batch == "unexpected field" else batch
        return self._fitted(batch)

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

    def _lacking(self, kind: ValueType, path: str, depth: int = 0) -> Iterator[tuple[str, str]]:
        if kind.kind == "map":
            yield path, "it has a map, which Arrow's JSON reader lacks"
        elif str(kind.arrow).startswith("time") and not pa.types.is_timestamp(kind.arrow):
            yield path, "it has a time of day, which Arrow's JSON reader lacks"
        elif depth > 1 and self._is_base64(kind.arrow):
            yield path, "it has bytes within a field, where base64 is not decoded"
        if kind.items is not None:
            yield from self._lacking(kind.items, f"{path}[]", depth + 1)
        for one in kind.fields:
            if one.default is not None and (depth or one.type.nullable):
                problem = "it has a default, and Arrow's JSON reader cannot tell null from a field that is missing"
                yield f"{path}.{one.name}", problem
            yield from self._lacking(one.type, f"{path}.{one.name}", depth + 1)


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
        return _CHANGED.sub(r"the field '\1' is of JSON's type \3, and not \2", _AROUND_REASON.sub("", str(error)))
    return table.combine_chunks().to_batches()[0]


def _wire(kind: pa.DataType) -> pa.DataType:
    """What Arrow's reader reads for a type; a cast makes the type of it."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, _wire(one.type)) for one in cast("pa.StructType", kind)])
    if pa.types.is_list(kind):
        return pa.list_(_wire(cast("pa.ListType", kind).value_type))
    return pa.string() if str(kind).startswith("date") or pa.types.is_fixed_size_binary(kind) else kind
