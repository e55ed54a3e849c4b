"""Parses JSON lines into an Arrow batch, or finds the first broken row and the reason. Pure.

Whole blocks are parsed at once. Only when that fails is the broken row searched, by halving.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.json as pj

from statelog.cli.inputs.fields import BytesText, FieldMapping, LogShape, decode_text
from statelog.cli.inputs.json_rows import parse_rows, strict_object
from statelog.cli.inputs.json_types import needs_rows, wire_schema, with_defaults
from statelog.cli.inputs.line_index import LineIndex
from statelog.errors import ConfigError, InvalidChange
from statelog.schemas.keys.key_groups import KeyType

__all__ = ["BrokenRow", "LineParser"]

_PARALLEL_BYTES = 1 << 20
_SEE = "(see --key-field, --value-field, --op-field and --ignore-unknown)"


@dataclass(frozen=True, slots=True)
class BrokenRow:
    """The first row of a block that cannot be read, and why."""

    row: int
    problem: str


class LineParser:
    """Parses blocks for one log. The types of fields that no schema names are those of the first row it sees."""

    def __init__(self, mapping: FieldMapping, shape: LogShape) -> None:
        self._mapping = mapping
        self._shape = shape
        self._by_rows = needs_rows(shape, mapping)
        self._schema: pa.Schema | None = None
        if self._decodes_keys and mapping.key_field in shape.value_fields:
            raise ConfigError("a base64 key cannot also be a field of the value", field=mapping.key_field)

    def parse(self, data: bytes, index: LineIndex) -> tuple[pa.RecordBatch | None, BrokenRow | None]:
        """The rows before the first broken one (None if there are none), and the broken one."""
        found = BrokenRow(index.good, index.problem) if index.good < len(index.ends) else None
        if index.good == 0:
            return None, found
        try:
            return self._parse(data, index, index.good), found
        except InvalidChange:
            found = self._first_broken(data, index)
            return (self._parse(data, index, found.row) if found.row else None), found

    def _first_broken(self, data: bytes, index: LineIndex) -> BrokenRow:
        """The smallest number of rows that does not parse has the broken one at its end."""
        good, bad = 0, index.good
        while bad - good > 1:
            middle = (good + bad) // 2
            try:
                self._parse(data, index, middle)
                good = middle
            except InvalidChange:
                bad = middle
        return BrokenRow(good, self._explain(data[index.starts[good] : index.ends[good]], data, index, good))

    def _parse(self, data: bytes, index: LineIndex, rows: int) -> pa.RecordBatch:
        """The first `rows` rows. Raises InvalidChange."""
        if self._by_rows:
            ends = index.ends[:rows].tolist()
            lines = [data[start:end] for start, end in zip(index.starts[:rows].tolist(), ends, strict=True)]
            return self._decoded(parse_rows(lines, self._mapping, self._shape))
        longest = int((index.ends[:rows] - index.starts[:rows]).max())
        batch = self._read(data[: index.ends[rows - 1]], self._types(data, index), 2 * longest)
        if batch.num_rows != rows:
            raise InvalidChange("a line holds more than one object")
        return self._decoded(self._typed(batch))

    def _read(self, data: bytes, schema: pa.Schema, least_bytes: int) -> pa.RecordBatch:
        unexpected = "ignore" if self._mapping.ignore_unknown else "error"
        try:
            table = pj.read_json(
                pa.BufferReader(data),
                read_options=pj.ReadOptions(block_size=max(_PARALLEL_BYTES, least_bytes)),
                parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected),
            )
        except (pa.ArrowException, ValueError) as error:
            raise InvalidChange(str(error)) from None
        return table.combine_chunks().to_batches()[0]

    def _types(self, data: bytes, index: LineIndex) -> pa.Schema:
        """Found once, so that every block of an input is read alike."""
        if self._schema is None:
            first = strict_object(data[index.starts[0] : index.ends[0]])
            self._schema = wire_schema(first, self._shape, self._mapping)
        return self._schema

    def _typed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The fields of a typed value in the types of the log."""
        batch = with_defaults(batch, self._shape)
        root = self._shape.value_schema.root
        for one in root.fields if root else ():
            number = batch.schema.get_field_index(one.name)
            column = batch.column(number)
            if column.type != one.type.arrow and one.name != self._mapping.key_field:
                batch = batch.set_column(
                    number, pa.field(one.name, one.type.arrow), _cast(column, one.type.arrow, one.name)
                )
        return batch

    @property
    def _decodes_keys(self) -> bool:
        return self._mapping.bytes_text is BytesText.BASE64 and self._shape.key_type is KeyType.BYTES

    def _decoded(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Base64 texts of keys and opaque values as bytes; those of typed values are decoded row by row."""
        names: list[str] = [self._mapping.key_field] if self._decodes_keys else []
        if self._mapping.bytes_text is BytesText.BASE64 and self._shape.value_schema.is_opaque:
            names.append(self._mapping.value_field)
        for name in dict.fromkeys(names):
            number = batch.schema.get_field_index(name)
            batch = batch.set_column(number, pa.field(name, pa.binary()), decode_text(batch.column(number)))
        return batch

    # ---- why a row is broken

    def _explain(self, line: bytes, data: bytes, index: LineIndex, row: int) -> str:
        """The reason in words, from whatever finds one: JSON's rules, the names of fields, or Arrow's parser."""
        try:
            given = strict_object(line)
            self._explain_names(given)
            one = LineIndex(
                starts=index.starts[row : row + 1] * 0,
                ends=index.ends[row : row + 1] - index.starts[row],
                numbers=index.numbers[row : row + 1],
                lines=1,
                good=1,
            )
            self._types(data, index)
            self._parse(line, one, 1)
        except InvalidChange as error:
            return error.message
        return "it cannot be read"

    def _explain_names(self, given: Mapping[str, object]) -> None:
        if self._schema is None or self._mapping.ignore_unknown:
            return
        unknown = [name for name in given if name not in self._schema.names]
        if unknown:
            raise InvalidChange(f"it has fields that the log does not have: {', '.join(unknown)} {_SEE}")


def _cast(column: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    try:
        return column.cast(kind)
    except (pa.ArrowException, ValueError) as error:
        raise InvalidChange(f"the field {name!r} is not a {kind}: {error}") from None
