"""`CommitWindow`: the commits behind a place of the ledger, folded once and kept while the stream moves on.

Owned by the process that plans a query's micro-batches. Each look at the ledger reads what is new, and nothing twice.

Invariants:
- `base` is a fold at or below the window's start: from there any place of the window can be folded, and planned.
- Commits are those from the start to where the ledger was read; they are dropped as the start moves on.
"""

from collections import deque
from collections.abc import Callable, Iterable

from statelog.closing import Closing
from statelog.reading.commits import Commits, Folded
from statelog.reading.plan import CommitFacts, commit_facts, partitions_of
from statelog.schemas.ledger.place import Place
from statelog.storage.ledger_client import LedgerBase
from statelog.storage.log.log import Log

__all__ = ["CommitWindow"]

_STEP_BYTES = 4 << 20


class CommitWindow(Closing):
    """The commits from `start` on, of which `key_groups` count (None: all). Belongs to one thread.

    `base` lies at or below the start; None is the ledger's first record. Raises OffsetGone if it is truncated,
    AnchorMismatch if the record below the start is another one now.
    """

    def __init__(
        self, log: Log, base: LedgerBase | None, start: Place, key_groups: Iterable[int] | None = None
    ) -> None:
        self._log = log
        groups = None if key_groups is None else frozenset(key_groups)
        self._partitions = partitions_of(groups, log.descriptor)
        self._ledger = Commits(log, base, start.position, seen=[start])
        self._start = start.position
        self.base = self._ledger.folded
        self.commits: deque[CommitFacts] = deque()

    def holds(self, position: int) -> bool:
        """Whether a stream can go on at this position without a new window."""
        return self._start <= position <= self._ledger.position

    def move_to(self, position: int) -> None:
        """Begin at a position that the window holds."""
        while self.commits and self.commits[0].position <= position:
            self.commits.popleft()
        self._start = position

    def read_ahead(self, end_position: int, is_enough: Callable[[], bool]) -> None:
        """Read on, up to the end or until it is enough. Raises OffsetGone, BeyondEnd, Damaged, Unavailable."""
        while self._ledger.position < end_position and not is_enough():
            for found in self._ledger.read_to(end_position, most_bytes=_STEP_BYTES):
                self.commits.append(commit_facts(found, self._partitions))

    def rebase(self) -> Folded:
        """Fold the base up to the start, which it then is; reads again what lies between."""
        if self.base.state.position < self._start:
            with Commits(self._log, self.base, self._start) as ledger:
                self.base = ledger.folded
        return self.base

    def close(self) -> None:
        """Release the ledger's reader. Idempotent."""
        self._ledger.close()
