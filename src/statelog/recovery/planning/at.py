"""Which state of a log to recover: the newest, that at a ledger position, or at a writer's checkpoint. Pure."""

from dataclasses import dataclass

from statelog.errors import Misuse
from statelog.schemas.names import check_name

__all__ = ["At", "AtCheckpoint", "AtPosition"]


@dataclass(frozen=True, slots=True)
class AtPosition:
    """The state at a ledger position: all commits below that offset. Raises Misuse if it is negative."""

    position: int

    def __post_init__(self) -> None:
        if self.position < 0:
            raise Misuse("a ledger position is negative", position=self.position)

    def __str__(self) -> str:
        return f"position {self.position}"


@dataclass(frozen=True, slots=True)
class AtCheckpoint:
    """The state right after a writer's checkpoint was committed; everybody's earlier commits included.

    If a writer took an id again after it had ended (its row in the ledger starts anew), the newest one is meant.
    Raises InvalidName.
    """

    writer: str
    checkpoint_id: int

    def __post_init__(self) -> None:
        check_name("writer", self.writer)

    def __str__(self) -> str:
        return f"checkpoint {self.checkpoint_id} of {self.writer}"


At = AtPosition | AtCheckpoint
"""Which state to recover."""
