"""`Roster`: the partitions that the group gave this process and that have no open table: when to open each. Pure.

    assigned ─► due ─► opened ─► (a commit) ─► nothing held against it
                 ▲        │ its table failed: Fenced, PersistFailed, OutcomeUnknown, Unavailable
                 └────────┘ a little later, a few times in a row; then the error is raised
                            LogInUse: as long as it takes, after a while beside the directory that is in use

Who was fenced is no judge of its own case: the group may have given the partition to another, and not said so yet. It
opens again only once the group has confirmed that this process is a member of its present generation. If that goes on
and on, somebody outside of the group owns the table, and the error comes out.

Invariants:
- A partition is here or has a table, or is not ours.
- Failures in a row are counted until a commit is history; nothing is tried without end, and nothing without a pause.
"""

import math
from collections.abc import Container, Iterable
from dataclasses import dataclass, replace

from statelog.errors import Fenced, LogInUse, OutcomeUnknown, PersistFailed, Unavailable

__all__ = ["Roster", "Vacancy", "passes"]

FAILURES_MAX = 4
"""So many failures of a table in a row end the worker."""
IN_USE_MAX_S = 5.0
"""So long another process of this machine may keep the directory of a table. It is stopped then, perhaps, and who owns
the table is said by its Open: it opens beside that directory.
"""
_PAUSE_S, _PAUSE_MAX_S = 0.25, 4.0


def passes(error: BaseException) -> bool:
    """Whether a table that ended so may do better in its next life. The others are for a person."""
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


class Roster:
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

    def has(self, partition: int) -> bool:
        """Whether a partition is waiting for its table."""
        return partition in self._vacant

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

    def unconfirmed(self, partition: int, now_s: float) -> None:
        """The group did not say that this process is still a member: ask again a little later."""
        self._vacant[partition] = replace(self._vacant[partition], due_s=now_s + _PAUSE_S)

    def confirmed(self, partition: int) -> None:
        """The group said so, and the table may be opened."""
        self._vacant[partition] = replace(self._vacant[partition], asks=False)

    def committed(self, partition: int) -> None:
        """A commit of its table is history: nothing is held against it."""
        self._failures.pop(partition, None)
