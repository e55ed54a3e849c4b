"""A reader of streams that keeps its state in plain Python, and its place as text, as a checkpoint would."""

from dataclasses import dataclass, field
from typing import Any

from statelog.recovery.cursor import Cursor
from statelog.recovery.stream import Portion
from statelog.schemas.changes.changes import DELETE

__all__ = ["Reader", "rows_of"]

Row = tuple[int, int, Any, Any]


def rows_of(portion: Portion) -> list[Row]:
    """Its changes as (key group, op, key, value)."""
    columns = [column.to_pylist() for column in portion.changes.columns]
    return list(zip(*columns, strict=True))


@dataclass
class Reader:
    """What was applied, in order, and what it makes."""

    state: dict[Any, Any] = field(default_factory=dict[Any, Any])
    rows: list[Row] = field(default_factory=list[Row])
    checkpoint: str = ""

    def apply(self, portion: Portion) -> None:
        """Apply a portion, and take a checkpoint behind it."""
        self.rows += rows_of(portion)
        for _, op, key, value in rows_of(portion):
            self.state.pop(key, None)
            if op != DELETE:
                self.state[key] = value
        self.checkpoint = portion.cursor.to_json()

    @property
    def cursor(self) -> Cursor:
        """The checkpoint, read back."""
        return Cursor.from_json(self.checkpoint)
