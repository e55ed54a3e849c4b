"""What Arrow's readers of lines have in common: the types of the log, and a batch in them."""

import base64
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar

import pyarrow as pa

from statelog.cli.fields import Fields
from statelog.errors import ConfigError
from statelog.operate.rows import BytesText
from statelog.schemas.values.arrow import default_array
from statelog.schemas.values.types import ValueType


class RowReader(ABC):
    """Rows as batches in the types of the log. Raises ConfigError for a log with values that the format lacks.

    `kind` is the format in a commit's mark, `title` in messages. Lines of nothing but `blanks` are no rows. `no_row`
    says what is wrong with a line that cannot be a row, `not_one` with lines that do not make as many rows.
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
        self._types = {name: pa.null() for name in (fields.op_field, fields.checkpoint_field) if name is not None}
        """Those of op and checkpoint are null until they are known."""
        self._types |= {one.name: one.type.arrow for one in root.fields} if root else {fields.value_field: pa.binary()}
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
        """Read the header, where the format has one. Raises InvalidChange if it does not fit the log."""

    @abstractmethod
    def are_rows(self, text: bytes, lines: int) -> bool:
        """Whether every line of a text can be a row: if it has as many rows as lines, each is one."""

    @abstractmethod
    def read(self, rows: bytes) -> pa.RecordBatch | str:
        """Lines that can be rows as a batch; or why they cannot be read."""

    @abstractmethod
    def _lacking(self, kind: ValueType, path: str) -> Iterator[tuple[str, str]]:
        """What the format lacks of a type: where, and in words."""

    def _fitted(self, batch: pa.RecordBatch) -> pa.RecordBatch | str:
        """A batch as parsed, each column in the log's type."""
        columns: list[pa.Array] = []
        for name in batch.schema.names:
            try:
                columns.append(self._column(name, batch.column(name)))
            except (pa.ArrowException, ValueError) as error:
                return f"the field {name!r} is not {self._types[name]}: {error}"
        return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)

    def _column(self, name: str, column: pa.Array) -> pa.Array:
        """A column in the log's type, bytes decoded, with the default for what is missing."""
        kind = self._types[name]
        if self._is_base64(kind):
            texts = column.to_pylist()
            column = pa.array([text if text is None else base64.b64decode(text, validate=True) for text in texts])
        column = column.cast(kind)
        return column.fill_null(self._defaults[name]) if column.null_count and name in self._defaults else column

    def _is_base64(self, kind: pa.DataType) -> bool:
        return self._fields.bytes_text is BytesText.BASE64 and (
            pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind)
        )
