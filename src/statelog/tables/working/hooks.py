"""`Hooks`: what a program does when a partition's table is open, now and then, behind a commit, and at the end.

    open ─► on_open ─► messages, on_tick ─► commits, each ─► on_commit ─► ... ─► the last ─► on_commit ─► on_close

Invariants:
- All run in the worker's thread, between two messages, and none inside of another.
- What they change is part of the table's next commit, but for `on_close`, whose table takes no more.
- `on_close` is called once for each `on_open`, whatever ended the table, and whatever else fails.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from statelog.errors import ConfigError
from statelog.tables.table import Table

__all__ = ["Hook", "Hooks"]

Hook = Callable[[int, Table[Any, Any]], object]
"""Takes a partition and its table. What it raises comes out of the loop, and ends the worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """The hooks of one worker, and how many seconds lie between two ticks of a table. Raises ConfigError."""

    on_open: Hook | None = None
    on_tick: Hook | None = None
    on_commit: Hook | None = None
    on_close: Hook | None = None
    tick_s: float = 1.0

    def __post_init__(self) -> None:
        if not self.tick_s > 0:
            raise ConfigError(f"tick_s is {self.tick_s} and must be positive", hint="Leave out on_tick for no ticks")
