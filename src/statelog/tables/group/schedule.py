"""The partitions of a worker: `OpenSchedule` decides when a table opens; an `AssignedPartition` has a table, its offset
in the input, and its commits.

    assigned ─► due ─► opened ─► (a commit) ─► failures are forgotten
                 ▲        │ its table failed: Fenced, PersistFailed, OutcomeUnknown, Unavailable
                 └────────┘ a little later, a few times in a row; then the error is raised
                            LogInUse: without a limit; after a while in a directory of its own

A fenced worker cannot know whether the partition is still its own. It opens the table again only once the group has
confirmed that this process is a member of its present generation.

Invariants:
- An assigned partition is in the schedule or has a table.
- Failures in a row are counted until a commit is history. No retry is endless but that of LogInUse, and none is
  without a pause.
- A commit names as processed what the table holds. Offsets are counted before the table is committed, never in between.
  Nobody else commits the table, and it takes back nothing that is counted.
- At a commit no message is half processed: all changes of the table are complete, hooks' changes included.
"""

import math
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from statelog.errors import Fenced, LogInUse, OutcomeUnknown, PersistFailed, Unavailable
from statelog.pending import Pending
from statelog.schemas.ledger.state import LastCommit
from statelog.tables.group.context import DescribedInput
from statelog.tables.table import Table

FAILURES_MAX = 4
"""This many failures of a table in a row end the worker."""
IN_USE_MAX_S = 5.0
"""How long to wait for another process of this machine that has a table's directory open. It may be stopped, and the
Open alone decides who owns the table. After this time the table opens in another directory.
"""
_PAUSE_S, _PAUSE_MAX_S = 0.25, 4.0


def passes(error: BaseException) -> bool:
    """Return whether opening the table again may mend this error. Other errors need an operator."""
    return isinstance(error, Fenced | PersistFailed | OutcomeUnknown | Unavailable | LogInUse)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacancy:
    """A partition without a table, and when to open one.

    `checks_group`: ask the group first whether this process is a current member, naming `offset`.
    `in_own_directory`: open it in a directory of this process, because another has the usual one.
    """

    partition: int
    due_s: float = -math.inf
    checks_group: bool = False
    offset: int = 0
    in_own_directory: bool = False


class OpenSchedule:
    """The vacancies of one worker. `now_s` comes from any monotonic clock."""

    def __init__(self) -> None:
        self._vacant: dict[int, Vacancy] = {}
        self._failures: dict[int, int] = {}
        self._in_use_s: dict[int, float] = {}

    def assigned(self, partitions: Iterable[int]) -> None:
        """Add partitions that the group gave."""
        for partition in partitions:
            self._vacant[partition] = Vacancy(partition=partition)

    def taken(self, partitions: Iterable[int]) -> None:
        """Remove partitions that the group took."""
        for partition in partitions:
            self._vacant.pop(partition, None)
            self._failures.pop(partition, None)
            self._in_use_s.pop(partition, None)

    @property
    def partitions(self) -> frozenset[int]:
        """The partitions that wait for their tables. On any thread."""
        return frozenset(tuple(self._vacant))

    def due(self, now_s: float, begun: Container[int] = ()) -> Vacancy | None:
        """Return the vacancy to open now, the longest due first, without those that have `begun`."""
        if not self._vacant:
            return None
        waiting = (one for one in self._vacant.values() if one.partition not in begun)
        found = min(waiting, key=lambda one: one.due_s, default=None)
        return found if found is not None and found.due_s <= now_s else None

    def opened(self, partition: int) -> None:
        """Remove a partition that has a table now."""
        self._vacant.pop(partition, None)
        self._in_use_s.pop(partition, None)

    def failed(self, partition: int, error: Exception, now_s: float, offset: int | None = None) -> None:
        """Schedule a table again that failed, or did not open. Raises the error if it needs an operator, or has come
        too often in a row. `offset`: how far it was committed.
        """
        if not passes(error):
            raise error
        is_in_use = isinstance(error, LogInUse)
        if is_in_use:
            failures = 0
        else:
            failures = self._failures[partition] = self._failures.get(partition, 0) + 1
            if failures >= FAILURES_MAX:
                raise error
        was = self._vacant.get(partition, Vacancy(partition=partition))
        self._vacant[partition] = replace(
            was,
            due_s=now_s + min(_PAUSE_S * 2**failures, _PAUSE_MAX_S),
            checks_group=was.checks_group or isinstance(error, Fenced),
            in_own_directory=is_in_use and now_s - self._in_use_s.setdefault(partition, now_s) >= IN_USE_MAX_S,
            offset=was.offset if offset is None else offset,
        )

    def checked(self, partition: int, now_s: float, *, is_current: bool) -> None:
        """Note whether the group says that this process is a current member. If not, it is asked again later."""
        was = self._vacant[partition]
        self._vacant[partition] = (
            replace(was, checks_group=False) if is_current else replace(was, due_s=now_s + _PAUSE_S)
        )

    def committed(self, partition: int) -> None:
        """Forget the failures of a partition, because a commit of its table is history."""
        self._failures.pop(partition, None)


class PartitionStatistics(NamedTuple):
    """A partition of a worker. Without an open table the others are None.

    `lag`: the number of records after the processed ones, as the client knew it a second ago.
    `commit_age_s`: seconds since the newest commit was seen in the ledger, or since the table opened.
    `overdue_s`: seconds since the oldest row is due that is still there; 0.0 if none is.
    """

    partition: int
    lag: int | None = None
    commit_age_s: float | None = None
    overdue_s: float | None = None


class AssignedPartition:
    """A partition with its table.

    `next_offset`: the first offset that is not processed; `input_end`: the input's end a second ago, if known.
    `tick_s`: when its next tick is due; `committed_s`: when a commit was last seen to be history, or the table opened.
    `is_announced`: whether `on_open` has returned, so that `on_close` has to be called.
    `sweeps`: whether commits delete rows that are due.
    """

    def __init__(
        self, partition: int, table: Table[Any, Any], source: DescribedInput, next_offset: int, *, sweeps: bool = True
    ) -> None:
        self.partition = partition
        self.table = table
        self.next_offset = next_offset
        self.input = source
        self.tick_s = self.committed_s = -math.inf
        self.is_announced = False
        self.input_end: int | None = None
        self.adopt: Callable[[], None] = lambda: None
        """Take over the table on the calling thread, after the opening thread has handed it over."""
        self._commit = table.lend(sweeps=sweeps)
        self._sent = next_offset, table.changes
        self._pending: Pending[LastCommit] | None = None
        self._history = table.last_commit

    @property
    def is_waiting(self) -> bool:
        """Whether a commit is pending."""
        return self._pending is not None

    @property
    def has_news(self) -> bool:
        """Whether the next commit has something to say: messages were processed, a hook changed the table, or rows are
        due.
        """
        return self._sent != (self.next_offset, self.table.changes) or self.table.has_overdue

    def statistics(self, now_s: float) -> PartitionStatistics:
        """Return the present statistics. On any thread."""
        lag = None if self.input_end is None else max(0, self.input_end - self.next_offset)
        return PartitionStatistics(self.partition, lag, now_s - self.committed_s, self.table.overdue_s)

    @property
    def committed_offset(self) -> int:
        """The first offset that no commit names as processed."""
        return int(self.table.progress.get("offset", 0))

    def send(self, *, always: bool = False) -> None:
        """Commit the news. Waits only if too many commits are pending. Raises the errors of `wait`."""
        if always or self.has_news:
            sent = self.next_offset, self.table.changes
            self._pending = self._commit(self.input.progress(self.next_offset))
            self._sent = sent

    def step(self) -> None:
        """Take answers that have arrived. Raises Fenced, PersistFailed, OutcomeUnknown, Unavailable, Damaged."""
        if self._pending is not None and self._pending.done():
            self._pending = None

    def wait(self) -> None:
        """Wait for the pending commits. Raises Fenced, PersistFailed, OutcomeUnknown, Unavailable, Damaged."""
        if self._pending is not None:
            self._pending.result()
            self._pending = None

    def has_committed(self) -> bool:
        """Return whether a commit has become history since the last call."""
        was, self._history = self._history, self.table.last_commit
        return was is not self._history

    def abandon(self) -> None:
        """Drop the table with its uncommitted changes. The next owner goes on from its progress."""
        self.table.__exit__(RuntimeError, None, None)
