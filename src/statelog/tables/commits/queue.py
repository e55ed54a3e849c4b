"""`CommitQueue`: commits of one table that are under way: persisted in order, confirmed in order, several at a time.

    persisted ──► durable ──► Commit sent ──► valid: told, and handed to the backend
     (any number)              (one at a time; it takes all that are durable by then)

A handle holds everything since the last confirmed checkpoint, so one Commit can make several checkpoints history at
once; it carries the progress of the newest. So the ledger's round trip limits how fine commits come, not how many there
are.

Invariants:
- Outcomes come in the order of the commits. Once one is not "committed", none behind it is.
- Everything happens in the table's thread, while it puts, commits or waits: there is no other.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from statelog.producer import PendingCommit, PendingHandle, Writer
from statelog.schemas.ledger.metadata import Metadata
from statelog.schemas.ledger.state import LastCommit
from statelog.tables.commits.table_commit import TableCommit

__all__ = ["CommitQueue"]


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    """One that is persisted, or about to be, and what its caller waits for."""

    pending: PendingHandle
    progress: Metadata
    commit: TableCommit


class CommitQueue:
    """The commits of one table. `committed` is told how many checkpoints, the oldest ones, are history, and
    the ledger offset of the commit that made them so."""

    def __init__(self, writer: Writer, committed: Callable[[int, int], None], advance: Callable[[bool], None]) -> None:
        self._writer = writer
        self._committed = committed
        self._advance = advance
        self._checkpoints: deque[_Checkpoint] = deque()
        self._confirming: PendingCommit | None = None
        self._taken = 0

    def __len__(self) -> int:
        """How many are under way."""
        return len(self._checkpoints)

    def add(self, progress: Metadata) -> TableCommit:
        """Persist what the writer was given as the next checkpoint. Raises as `Writer.persist`."""
        pending = self._writer.persist()
        checkpoint = _Checkpoint(pending, dict(progress), TableCommit(self._advance))
        self._checkpoints.append(checkpoint)
        return checkpoint.commit

    def step(self, *, wait: bool) -> None:
        """Take what has come in. With `wait`, go on until the oldest commit is over. Raises as `TableCommit.result`."""
        while self._checkpoints:
            is_over = self._confirming is not None and (wait or self._confirming.done())
            if is_over:
                self._conclude()
                if wait:
                    self._confirm(wait=False)
                    return
            elif self._confirming is not None or not self._confirm(wait=wait):
                return

    def fail(self, error: BaseException) -> None:
        """Nothing that is under way will be told to be committed."""
        while self._checkpoints:
            self._checkpoints.popleft().commit.end(None, error)
        self._confirming = None

    def _confirm(self, *, wait: bool) -> bool:
        """Send a Commit of all checkpoints that are durable; False if not even the oldest one is."""
        if not self._checkpoints or not (wait or self._checkpoints[0].pending.done()):
            return False
        durable = [self._checkpoints[0]]
        handle = durable[0].pending.result()
        for checkpoint in list(self._checkpoints)[1:]:
            if not checkpoint.pending.done():
                break
            handle = checkpoint.pending.result()
            durable.append(checkpoint)
        self._confirming = self._writer.confirm_async(handle, durable[-1].progress)
        self._taken = len(durable)
        return True

    def _conclude(self) -> None:
        """The outcome of the Commit that was sent."""
        assert self._confirming is not None
        last: LastCommit = self._confirming.result()
        self._confirming = None
        self._committed(self._taken, last.offset)
        for _ in range(self._taken):
            self._checkpoints.popleft().commit.end(last)
