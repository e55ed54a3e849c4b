"""`TableStatistics`: how far a table is behind with what it does by itself."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatistics:
    """What a table still has to do.

    `overdue_s`: seconds since the oldest row is due that is neither deleted nor handed to `run_due` yet; 0.0 if none.
    `overdue`: how many committed rows are due.
    `unpublished_messages`: how many messages of its commits are not published yet.
    `unpublished_s`: seconds since the oldest commit with such messages; 0.0 if there is none.
    """

    overdue_s: float = 0.0
    overdue: int = 0
    unpublished_messages: int = 0
    unpublished_s: float = 0.0
