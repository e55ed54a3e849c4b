"""`CommitQueue`: commits of one table that are under way: persisted in order, confirmed in order, several at a time.

    persisted ──► durable ──► Commit sent ──► valid: told, and handed to the state
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

from statelog.environment import Clock
from statelog.pending import Pending
from statelog.producer import Writer
from statelog.schemas.ledger.handle import Handle
from statelog.schemas.ledger.place import Metadata
from statelog.schemas.ledger.state import LastCommit

__all__ = ["CommitQueue"]


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    """One that is persisted, or about to be, and what its caller waits for."""

    handle: Pending[Handle]
    progress: Metadata
    commit: Pending[LastCommit]


class CommitQueue:
    """The commits of one table. `committed` is told how many checkpoints, the oldest ones, are history, and
    the ledger offset of the commit that made them so. `advance` is the owner's way to `step`."""

    def __init__(
        self,
        writer: Writer,
        clock: Clock,
        committed: Callable[[int, int], None],
        advance: Callable[[float | None], None],
    ) -> None:
        self._writer = writer
        self._clock = clock
        self._committed = committed
        self._advance = advance
        self._checkpoints: deque[_Checkpoint] = deque()
        self._confirming: Pending[LastCommit] | None = None
        self._taken = 0

    def __len__(self) -> int:
        """How many are under way."""
        return len(self._checkpoints)

    def add(self, progress: Metadata) -> Pending[LastCommit]:
        """Persist what the writer was given as the next checkpoint. Raises as `Writer.persist`."""
        handle = self._writer.persist()
        commit = self._promise(handle.checkpoint_id)
        self._checkpoints.append(_Checkpoint(handle, dict(progress), commit))
        return commit

    def step(self, timeout_s: float | None = 0.0) -> None:
        """Take what has come in, or wait so long for what the oldest commit needs next. Raises as its result."""
        while self._checkpoints:
            if self._confirming is None:
                if not self._confirm(timeout_s):
                    return
            elif timeout_s is None or self._confirming.wait(timeout_s):
                self._conclude()
            else:
                return
            timeout_s = 0.0

    def fail(self, error: BaseException) -> None:
        """Nothing that is under way will be told to be committed."""
        while self._checkpoints:
            self._checkpoints.popleft().commit.fail(error)
        self._confirming = None

    def _promise(self, checkpoint_id: int) -> Pending[LastCommit]:
        advance, clock = self._advance, self._clock

        def is_over(timeout_s: float) -> bool:
            until_s = clock() + timeout_s
            advance(timeout_s)
            while not commit.is_over and clock() < until_s:
                advance(until_s - clock())
            return commit.is_over

        def take() -> LastCommit:
            while not commit.is_over:
                advance(None)
            return commit.result()

        commit: Pending[LastCommit] = Pending(f"the commit of checkpoint {checkpoint_id}", checkpoint_id, is_over, take)
        return commit

    def _confirm(self, timeout_s: float | None) -> bool:
        """Send a Commit of all checkpoints that are durable; False if in so long not even the oldest one is."""
        oldest = self._checkpoints[0].handle
        if timeout_s is not None and not oldest.wait(timeout_s):
            return False
        self._taken, handle = 1, oldest.result()
        for checkpoint in list(self._checkpoints)[1:]:
            if not checkpoint.handle.done():
                break
            self._taken, handle = self._taken + 1, checkpoint.handle.result()
        self._confirming = self._writer.confirm_async(handle, self._checkpoints[self._taken - 1].progress)
        return True

    def _conclude(self) -> None:
        """The outcome of the Commit that was sent."""
        assert self._confirming is not None
        last = self._confirming.result()
        self._confirming = None
        self._committed(self._taken, last.offset)
        for _ in range(self._taken):
            self._checkpoints.popleft().commit.end(last)
