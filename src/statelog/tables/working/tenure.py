"""`Tenure`: a partition while it is this process's: its table, how far it is processed, and its commits.

Invariants:
- What a commit names as processed is what the table holds: offsets are counted before the table is committed, and never
  in between; the table is committed by nobody else, and gives up nothing of what is counted.
- Whoever commits has no message in hand: all that the table holds then is processed, hooks' changes included.
"""

import math
from typing import Any

from statelog.pending import Pending
from statelog.schemas.ledger.state import LastCommit
from statelog.tables.table import Table
from statelog.tables.working.input import Input

__all__ = ["Tenure"]


class Tenure:
    """One partition's. `next_offset` is the first one that is not processed."""

    def __init__(self, partition: int, table: Table[Any, Any], source: Input, next_offset: int) -> None:
        self.partition = partition
        self.table = table
        self.next_offset = next_offset
        self._input = source
        self.tick_s = -math.inf
        """When its next tick is due."""
        self.is_told = False
        """Whether its `on_open` has returned, and `on_close` is owed."""
        self._commit = table.lend()
        self._sent = next_offset, table.changes
        self._under_way: Pending[LastCommit] | None = None
        self._history = table.last_commit

    @property
    def is_waiting(self) -> bool:
        """Whether a commit is under way."""
        return self._under_way is not None

    @property
    def has_news(self) -> bool:
        """Whether something is processed, or changed by a hook, that no commit says, sent or not."""
        return self._sent != (self.next_offset, self.table.changes)

    @property
    def committed_offset(self) -> int:
        """The first offset that no commit calls processed."""
        return int(self.table.progress.get("offset", 0))

    def check_input(self, now: Input) -> None:
        """Raise IdentityChanged, ConfigError unless the input still is the topic that its offsets are of."""
        self._input.check_is(now)

    def processed(self, end_offset: int) -> None:
        """Everything below this offset is processed, and the table shows it."""
        self.next_offset = max(self.next_offset, end_offset)

    def send(self, *, always: bool = False) -> None:
        """Commit what is new, and wait for nothing but room. Raises as `Table.commit_async`."""
        if always or self.has_news:
            sent = self.next_offset, self.table.changes
            self._under_way = self._commit(self._input.progress(self.next_offset))
            self._sent = sent

    def step(self) -> None:
        """Take what has come in. Raises as `Table.commit`."""
        if self._under_way is not None and self._under_way.done():
            self._under_way = None

    def wait(self) -> None:
        """Wait for the commits that are under way. Raises as `Table.commit`."""
        if self._under_way is not None:
            self._under_way.result()
            self._under_way = None

    def has_committed(self) -> bool:
        """Whether a commit has become history since this was asked last."""
        was, self._history = self._history, self.table.last_commit
        return was is not self._history

    def abandon(self) -> None:
        """Drop the table, with all that no commit holds: another life goes on from its progress."""
        self.table.__exit__(RuntimeError, None, None)
