"""`Tenure`: a partition while it is this process's: its table, how far it is processed, and its commits.

Invariant: what a commit names as processed is what the table holds: offsets are counted before the table is committed,
and never in between; the table is committed by nobody else, and gives up nothing of what is counted.
"""

from typing import Any

from statelog.tables.commits.table_commit import TableCommit
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
        self._commit = table.lend()
        self._sent_offset = next_offset
        self._under_way: TableCommit | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether a commit is under way."""
        return self._under_way is not None

    @property
    def has_news(self) -> bool:
        """Whether something is processed that no commit says, sent or not."""
        return self.next_offset != self._sent_offset

    @property
    def committed_offset(self) -> int:
        """The first offset that no commit calls processed."""
        return int(self.table.progress.get("offset", 0))

    def check_input(self, now: Input) -> None:
        """Raise IdentityChanged unless the input still is the topic that its offsets are of."""
        self._input.check_is(now)

    def processed(self, end_offset: int) -> None:
        """Everything below this offset is processed, and the table shows it."""
        self.next_offset = max(self.next_offset, end_offset)

    def send(self, *, always: bool = False) -> None:
        """Commit what is new, and wait for nothing but room. Raises as `Table.commit_async`."""
        if always or self.has_news:
            self._under_way = self._commit(self._input.progress(self.next_offset))
            self._sent_offset = self.next_offset

    def step(self) -> bool:
        """Take what has come in; whether a commit has become history. Raises as `TableCommit.result`."""
        if self._under_way is None or not self._under_way.done():
            return False
        self._under_way = None
        return True

    def wait(self) -> bool:
        """Wait for the commits that are under way; whether there were any. Raises as `TableCommit.result`."""
        if self._under_way is None:
            return False
        self._under_way.result()
        self._under_way = None
        return True

    def abandon(self) -> None:
        """Drop the table, with all that no commit holds: another life goes on from its progress."""
        self.table.__exit__(RuntimeError, None, None)
