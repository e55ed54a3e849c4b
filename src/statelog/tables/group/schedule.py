"""The partitions of a worker: `OpenSchedule` says when the table of each opens, and an `AssignedPartition` has its
table, how far it is processed, and its commits.

    assigned ─► due ─► opened ─► (a commit) ─► nothing held against it
                 ▲        │ its table failed: Fenced, PersistFailed, OutcomeUnknown, Unavailable
                 └────────┘ a little later, a few times in a row; then the error is raised
                            LogInUse: as long as it takes, after a while beside the directory that is in use

A fenced worker cannot know whether the partition still is its own: it opens again only once the group has confirmed
that this process is a member of its present generation.

Invariants:
- A partition is in the schedule or has a table, or is not ours.
- Failures in a row are counted until a commit is history; nothing is tried without end, and nothing without a pause.
- What a commit names as processed is what the table holds: offsets are counted before the table is committed, and never
  in between; the table is committed by nobody else, and gives up nothing of what is counted.
- Whoever commits has no message in hand: all that the table holds then is processed, hooks' changes included.
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
"""So many failures of a table in a row end the worker."""
IN_USE_MAX_S = 5.0
"""So long another process of this machine may keep the directory of a table. It is stopped then, perhaps, and who owns
the table is said by its Open: it opens beside that directory.
"""
_PAUSE_S, _PAUSE_MAX_S = 0.25, 4.0


def passes(error: BaseException) -> bool:
    """Whether a table that ended so may do better in its next life. The others need an operator."""
    return isinstance(error, Fenced | PersistFailed | OutcomeUnknown | Unavailable | LogInUse)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacancy:
    """A partition without a table: when to open it, and whether to ask the group first, naming the offset; `beside` the
    directory that another process has.
    """

    partition: int
    due_s: float = -math.inf
    asks: bool = False
    offset: int = 0
    beside: bool = False


class OpenSchedule:
    """The vacancies of one worker. `now_s` is any monotonic clock's."""

    def __init__(self) -> None:
        self._vacant: dict[int, Vacancy] = {}
        self._failures: dict[int, int] = {}
        self._in_use_s: dict[int, float] = {}

    def assigned(self, partitions: Iterable[int]) -> None:
        """The group gave these."""
        for partition in partitions:
            self._vacant[partition] = Vacancy(partition=partition)

    def gone(self, partitions: Iterable[int]) -> None:
        """The group took these."""
        for partition in partitions:
            self._vacant.pop(partition, None)
            self._failures.pop(partition, None)
            self._in_use_s.pop(partition, None)

    @property
    def partitions(self) -> frozenset[int]:
        """Those that are waiting for their tables: any thread may ask."""
        return frozenset(tuple(self._vacant))

    def due(self, now_s: float, begun: Container[int] = ()) -> Vacancy | None:
        """One to open now, the longest due first, of those that are not `begun`."""
        if not self._vacant:
            return None
        waiting = (one for one in self._vacant.values() if one.partition not in begun)
        found = min(waiting, key=lambda one: one.due_s, default=None)
        return found if found is not None and found.due_s <= now_s else None

    def opened(self, partition: int) -> None:
        """It has a table now."""
        self._vacant.pop(partition, None)
        self._in_use_s.pop(partition, None)

    def failed(self, partition: int, error: Exception, now_s: float, offset: int | None = None) -> None:
        """Its table failed, or did not open; `offset` is how far it was. Raises the error if it is to come out."""
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
            asks=was.asks or isinstance(error, Fenced),
            beside=is_in_use and now_s - self._in_use_s.setdefault(partition, now_s) >= IN_USE_MAX_S,
            offset=was.offset if offset is None else offset,
        )

    def asked(self, partition: int, now_s: float, *, is_current: bool) -> None:
        """The group said whether this process is still a member; if not, it is asked again a little later."""
        was = self._vacant[partition]
        self._vacant[partition] = replace(was, asks=False) if is_current else replace(was, due_s=now_s + _PAUSE_S)

    def committed(self, partition: int) -> None:
        """A commit of its table is history: nothing is held against it."""
        self._failures.pop(partition, None)


class PartitionStatistics(NamedTuple):
    """A partition of a worker. Without an open table `lag` and `commit_age_s` are None.

    `lag` is how many records of the input were behind what is processed, as far as the client knew a second ago;
    `commit_age_s` is since the newest commit was seen in the ledger, or the table opened.
    """

    partition: int
    lag: int | None = None
    commit_age_s: float | None = None


class AssignedPartition:
    """A partition with its table. `next_offset` is the first one that is not processed; `tick_s` is when its next tick
    is due, `committed_s` when its newest commit was seen to be history, or it was opened; `input_end` is where its
    input ended a second ago, if that is known. `is_told` once `on_open` has returned: then `on_close` is owed.
    """

    def __init__(self, partition: int, table: Table[Any, Any], source: DescribedInput, next_offset: int) -> None:
        self.partition = partition
        self.table = table
        self.next_offset = next_offset
        self.input = source
        self.tick_s = self.committed_s = -math.inf
        self.is_told = False
        self.input_end: int | None = None
        self.adopt: Callable[[], None] = lambda: None
        """Makes the table, once the thread that opened it has handed it over, the caller's."""
        self._commit = table.lend()
        self._sent = next_offset, table.changes
        self._pending: Pending[LastCommit] | None = None
        self._history = table.last_commit

    @property
    def is_waiting(self) -> bool:
        """Whether a commit is pending."""
        return self._pending is not None

    @property
    def has_news(self) -> bool:
        """Whether something is processed, or changed by a hook, that no commit says, sent or not."""
        return self._sent != (self.next_offset, self.table.changes)

    def statistics(self, now_s: float) -> PartitionStatistics:
        """As it is now; from any thread."""
        lag = None if self.input_end is None else max(0, self.input_end - self.next_offset)
        return PartitionStatistics(self.partition, lag, now_s - self.committed_s)

    @property
    def committed_offset(self) -> int:
        """The first offset that no commit calls processed."""
        return int(self.table.progress.get("offset", 0))

    def send(self, *, always: bool = False) -> None:
        """Commit what is new, and wait for nothing but room. Raises as `wait`."""
        if always or self.has_news:
            sent = self.next_offset, self.table.changes
            self._pending = self._commit(self.input.progress(self.next_offset))
            self._sent = sent

    def step(self) -> None:
        """Take what has come in. Raises Fenced, PersistFailed, OutcomeUnknown, Unavailable, Damaged."""
        if self._pending is not None and self._pending.done():
            self._pending = None

    def wait(self) -> None:
        """Wait for the pending commits. Raises Fenced, PersistFailed, OutcomeUnknown, Unavailable, Damaged."""
        if self._pending is not None:
            self._pending.result()
            self._pending = None

    def has_committed(self) -> bool:
        """Whether a commit has become history since this was asked last."""
        was, self._history = self._history, self.table.last_commit
        return was is not self._history

    def abandon(self) -> None:
        """Drop the table, with all that no commit holds: another life goes on from its progress."""
        self.table.__exit__(RuntimeError, None, None)
