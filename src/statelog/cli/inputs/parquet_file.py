"""A Parquet file as an input.

Such a file cannot grow, so its mark is the number of rows taken, beside the SHA-256 of the whole file.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from statelog.cli.inputs.fields import FieldMapping
from statelog.cli.inputs.mark import InputMark, other_input
from statelog.errors import InvalidChange

__all__ = ["KIND", "ParquetInput"]

KIND = "parquet"
_BATCH_ROWS = 65_536


class ParquetInput:
    """Reads rows from the file at `path`. Raises InvalidChange if it is no Parquet file."""

    def __init__(self, path: Path, mapping: FieldMapping, *, batch_rows: int = _BATCH_ROWS) -> None:
        self._path = path
        self._mapping = mapping
        self._batch_rows = batch_rows
        self._rows = 0
        self._size_bytes = path.stat().st_size
        with path.open("rb") as file:
            self._digest = hashlib.file_digest(file, "sha256").hexdigest()
        try:
            self._file = pq.ParquetFile(path)
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable(error) from None

    @property
    def mark(self) -> InputMark:
        """How far it was taken."""
        return InputMark(
            kind=KIND,
            mapping=self._mapping.fingerprint(),
            rows=self._rows,
            size_bytes=self._size_bytes,
            digest=self._digest,
        )

    @property
    def fraction(self) -> float | None:
        """How much of the rows was taken."""
        total = self._file.metadata.num_rows
        return self._rows / total if total else None

    def resume(self, mark: InputMark) -> None:
        """Skip what `mark` covers. Raises CheckpointMismatch if it is another input."""
        if mark.kind != KIND:
            raise other_input(f"it was {mark.kind}", mark, input=str(self._path))
        if (mark.digest, mark.size_bytes) != (self._digest, self._size_bytes):
            raise other_input("the file differs", mark, input=str(self._path))
        self._rows = mark.rows

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows behind the mark. Raises InvalidChange if the file is damaged."""
        groups, skip = self._groups_behind(self._rows)
        if not groups:
            return
        try:
            for batch in self._file.iter_batches(self._batch_rows, row_groups=groups):
                dropped = min(skip, batch.num_rows)
                skip -= dropped
                if dropped < batch.num_rows:
                    yield batch.slice(dropped)
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable(error) from None

    def take(self, rows: int) -> None:
        """Move the mark behind the next `rows` rows."""
        self._rows += rows

    def place(self, row: int) -> dict[str, int]:
        """The number of a row in the file, from 1."""
        return {"row": self._rows + row + 1}

    def _groups_behind(self, rows: int) -> tuple[list[int], int]:
        """The row groups that hold rows behind the first `rows`, and how many of theirs come before."""
        start = 0
        for group in range(self._file.num_row_groups):
            end = start + self._file.metadata.row_group(group).num_rows
            if end > rows:
                return list(range(group, self._file.num_row_groups)), rows - start
            start = end
        return [], 0

    def _unreadable(self, error: Exception) -> InvalidChange:
        return InvalidChange("the Parquet file cannot be read", input=str(self._path), problem=str(error))
