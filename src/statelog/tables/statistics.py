"""`TableStatistics`: how far a table is behind with what it does by itself."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatistics:
    """What a table still has to do.

    `overdue_s`: seconds since the oldest row is due that is neither deleted nor handed to `run_due` yet; 0.0 if none.
    `overdue`: how many committed rows are due.
    """

    overdue_s: float = 0.0
    overdue: int = 0
