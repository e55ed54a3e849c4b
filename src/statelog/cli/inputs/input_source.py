"""The port of an input: batches of rows, and a mark that follows what was taken."""

from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa

from statelog.cli.inputs.mark import InputMark

__all__ = ["InputSource"]


class InputSource(Protocol):
    """Rows of one input, in order. A batch is taken, piece by piece, before the next one is asked for."""

    @property
    def mark(self) -> InputMark:
        """How far it was taken."""
        ...

    @property
    def fraction(self) -> float | None:
        """How much of the input was taken, from 0 to 1; None if its size is unknown."""
        ...

    def resume(self, mark: InputMark) -> None:
        """Skip what `mark` covers. Raises CheckpointMismatch if it is another input."""
        ...

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows behind the mark. Raises InvalidChange for what cannot be read, after all rows before it."""
        ...

    def take(self, rows: int) -> None:
        """Move the mark behind the next `rows` rows of the batch that was given last."""
        ...

    def place(self, row: int) -> dict[str, int]:
        """The place of a row, as a fact for people: `row` counts from the first one not taken of the last batch."""
        ...
