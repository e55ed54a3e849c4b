"""The loop of `statelog append`: takes batches from an input, appends them, and commits the input's mark with them.

Invariants:
- A commit's metadata is the mark of exactly the rows that it and earlier commits made part of history.
- Where commits lie follows from the input and the settings alone, not from how the input came in batches.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from statelog.cli.inputs.fields import FieldMapping, LogShape, to_changes
from statelog.cli.inputs.input_source import InputSource
from statelog.cli.inputs.named_fields import NamedFields
from statelog.errors import ClosedError, ConfigError, InvalidChange, Misuse
from statelog.producer.writer import Writer

__all__ = ["Appended", "Appender", "CheckpointRule", "commit_points"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRule:
    """When to commit: every so many rows, or whenever a field changes its value. Raises ConfigError."""

    every: int | None = None
    field: str | None = None

    def __post_init__(self) -> None:
        if (self.every is None) == (self.field is None):
            raise ConfigError("--checkpoint-every and --checkpoint-field exclude each other", hint="Give one of them")
        if self.every is not None and self.every < 1:
            raise ConfigError("--checkpoint-every is below 1", checkpoint_every=self.every)


@dataclass(slots=True, kw_only=True)
class Appended:
    """What a run did so far: rows and bytes that count, commits, the last checkpoint, and rows of earlier runs."""

    rows: int = 0
    rows_before: int = 0
    commits: int = 0
    checkpoint: int = 0


def commit_points(rows: int, pending: int, every: int | None, changed: NDArray[np.bool_] | None) -> list[int]:
    """After how many of a batch's rows to commit. `pending` rows wait from earlier batches; `changed` says by row
    whether its checkpoint field differs from the row before.
    """
    if every is not None:
        return list(range(every - pending, rows + 1, every))
    assert changed is not None, "one of the two rules is given"
    points: list[int] = np.flatnonzero(changed).tolist()
    return [point for point in points if point + pending > 0]


class Appender:
    """Appends one input through one writer. `on_rows` is called after every piece."""

    def __init__(
        self,
        writer: Writer,
        source: InputSource,
        mapping: FieldMapping,
        shape: LogShape,
        rule: CheckpointRule,
        appended: Appended,
        on_rows: Callable[[int], None],
    ) -> None:
        self._writer = writer
        self._source = source
        self._mapping = mapping
        self._shape = shape
        self._rule = rule
        self._appended = appended
        self._on_rows = on_rows
        self._fields = NamedFields(mapping)
        self._pending = 0
        self._last_value: object = None
        self._seen = False

    def append(self, batch: pa.RecordBatch) -> None:
        """Append a batch, with the commits that fall into it."""
        self._fields.look(batch)
        changed = None if self._rule.field is None else self._changes_of(batch, self._rule.field)
        points = commit_points(batch.num_rows, self._pending, self._rule.every, changed)
        start = 0
        for point in points:
            self._append(batch.slice(start, point - start))
            self._commit()
            start = point
        self._append(batch.slice(start))

    def finish(self) -> None:
        """Commit what waits behind the last checkpoint."""
        if self._pending:
            self._commit()

    def _append(self, piece: pa.RecordBatch) -> None:
        if not piece.num_rows:
            return
        try:
            self._writer.append_batch(to_changes(piece, self._mapping, self._shape))
        except ClosedError:
            raise
        except Misuse as error:
            raise self._located(piece, error) from None
        self._source.take(piece.num_rows)
        self._pending += piece.num_rows
        self._on_rows(self._appended.rows + self._pending)

    def _commit(self) -> None:
        self._fields.require()
        made = self._writer.commit(metadata=self._source.mark.to_metadata())
        self._appended.checkpoint = made.checkpoint.id
        self._appended.commits += 1
        self._appended.rows += self._pending
        self._pending = 0

    def _changes_of(self, batch: pa.RecordBatch, field: str) -> NDArray[np.bool_]:
        """By row, whether the field differs from the row before; the first row of a run never does."""
        number = batch.schema.get_field_index(field)
        if number < 0:
            raise InvalidChange(
                f"the input has no field {field!r}", hint="See --checkpoint-field", **self._source.place(0)
            )
        column = batch.column(number)
        codes = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        assert isinstance(codes, pa.DictionaryArray)
        indices = codes.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        changed = np.concatenate([[False], indices[1:] != indices[:-1]])
        first = column[0].as_py()
        changed[0] = self._seen and first != self._last_value
        self._seen, self._last_value = True, column[batch.num_rows - 1].as_py()
        return changed

    def _located(self, piece: pa.RecordBatch, error: Misuse) -> Misuse:
        """The same error, with the place of the first row that is refused, found by halving.

        Rows before it are appended on the way. That is harmless: this writer will not commit any more.
        """
        start, end = 0, piece.num_rows
        while end - start > 1:
            middle = (start + end) // 2
            try:
                self._writer.append_batch(to_changes(piece.slice(start, middle - start), self._mapping, self._shape))
                start = middle
            except Misuse as closer:
                end, error = middle, closer
        return error.restated(hint=error.hint, **self._source.place(start))
