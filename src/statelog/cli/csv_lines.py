"""Rows of CSV, by Arrow's CSV reader, in the types of the log: none is guessed; what CSV cannot say is refused."""

import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.csv as pc

from statelog.cli.fields import Fields
from statelog.cli.lines import RowReader
from statelog.errors import InvalidChange
from statelog.schemas.values.types import ValueType

_DELIMITERS = {"csv": ",", "tsv": "\t"}
_NESTED = ("record", "array", "map")
_COLUMN = re.compile(r"^In CSV column #(\d+): (?:CSV )?")
_AROUND_REASON = re.compile(r"^CSV parse error: (?:Row #\d+: )?")


class CsvRows(RowReader):
    """A row has its fields in the order of the header; `kind` is csv or tsv. An empty field is null, `""` an empty
    text. Fields that no schema names are text.
    """

    title = "CSV"
    blanks = b"\r\n"
    no_row = "it has a carriage return that does not end it"
    not_one = "it has a quote that it does not close, and a field cannot go on in the next line"
    has_header = True

    def __init__(self, fields: Fields, kind: str = "csv") -> None:
        super().__init__(fields)
        self.kind = kind
        for name in (fields.op_field, fields.checkpoint_field):
            if name is not None and self._types[name] == pa.null():
                self._types[name] = pa.string()
        self._parsing = pc.ParseOptions(delimiter=_DELIMITERS[kind])
        self._names: list[str] = []
        self._converting = pc.ConvertOptions()

    def begin(self, header: bytes) -> None:
        """Read the names of the fields. Raises InvalidChange if some are missing, unknown, or there twice."""
        line = header + b"\n"
        hint = "The first line names the fields, each once; the name of the file, or --format, says what separates them"
        if not self.are_rows(line, 1) or self._is_open(line):
            raise InvalidChange("the first line is no header of CSV", hint=hint)
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
        self._fields.to_changes(pa.RecordBatch.from_arrays(columns, names=self._names))  # Which refuses what is amiss.
        kinds = {name: pa.string() if self._is_base64(self._types[name]) else self._types[name] for name in known}
        self._converting = pc.ConvertOptions(
            column_types=kinds,
            include_columns=known,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            check_utf8=False,  # `read` has looked.
        )

    def are_rows(self, text: bytes, lines: int) -> bool:  # noqa: ARG002 - the base's signature
        """Whether no line is blank, and no carriage return stands within one, where Arrow would end a row."""
        is_blank = text[:1] in (b"", b"\n", b"\r") or b"\n\n" in text or b"\n\r" in text
        return not is_blank and text.count(b"\r") == text.count(b"\r\n")

    def read(self, rows: bytes) -> pa.RecordBatch | str:
        """Lines as a batch; or why they cannot be read."""
        if not rows.endswith(b"\n"):
            return "it has no line end, and may have been cut off"
        if self._is_open(rows[rows.rfind(b"\n", 0, -1) + 1 :]):
            return self.not_one
        try:
            rows.decode()
            table = self._parsed(rows, self._converting, column_names=self._names)
        except (pa.ArrowException, ValueError) as error:
            named = _COLUMN.sub(lambda found: f"the field {self._names[int(found[1])]!r}: ", str(error))
            return _AROUND_REASON.sub("", named)
        return self._fitted(table.combine_chunks().to_batches()[0])

    def _is_open(self, line: bytes) -> bool:
        """Whether a quote is open at the end of a line, which Arrow closes without a word: twice, it is no two rows."""
        try:
            return self._parsed(line + line, autogenerate_column_names=True).num_rows == 1
        except pa.ArrowInvalid:
            return True

    def _parsed(self, text: bytes, converting: pc.ConvertOptions | None = None, **names: Any) -> pa.Table:
        """In one block: at the seam of two, a field that goes on in the next line looks like two rows. Behind a blank
        line, since Arrow drops a byte order mark at the beginning, which belongs to a field here.
        """
        reading = pc.ReadOptions(block_size=len(text) + 2, **names)
        given = pa.BufferReader(b"\n" + text)
        return pc.read_csv(given, read_options=reading, parse_options=self._parsing, convert_options=converting)

    def _lacking(self, kind: ValueType, path: str) -> Iterator[tuple[str, str]]:
        for one in kind.fields:
            if one.type.kind in _NESTED:
                yield f"{path}.{one.name}", f"it has a field of several values ({one.type.kind}), which CSV cannot hold"
