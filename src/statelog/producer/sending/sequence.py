"""`Sequence`: which change sets of a writer's life are sent, durable, in a checkpoint, committed. Pure.

Bookkeeping over one frozen value. A change set's number is its SQN. Change sets are sent, persisted and confirmed in
the order of their numbers, so a few boundaries say everything; each is the first number that is not there yet:

    1 ..... confirmed <= held <= sent <= next        confirmed <= durable <= sent
            history      in a    sent as the active
                         checkpoint  a whole  change set

Invariants:
- A number is never used twice, and no boundary ever moves back.
- A failure takes every later change set of the writer with it: none of them can become durable any more.
- Truncation forgets nothing that an unconfirmed checkpoint holds.
"""

from enum import Enum
from typing import NamedTuple

from statelog.errors import Misuse, PersistFailed, SequenceAhead, SequenceTruncated

__all__ = ["INITIAL", "Sequence", "Stage"]

INITIAL = 1


class Stage(Enum):
    """Where a change set is."""

    ACTIVE = "active"
    """It takes appends; parts of it may be on their way already."""
    UNSENT = "unsent"
    IN_FLIGHT = "in flight"
    DURABLE = "durable"
    COMMITTED = "committed"
    FAILED = "failed"
    """A chunk of it, or of one before it, is not surely in the log. It never counts."""


class Sequence(NamedTuple):
    """The boundaries; see above. `next` is the active change set's number, `failed` the first one that failed."""

    next: int = INITIAL
    sent: int = INITIAL
    durable: int = INITIAL
    held: int = INITIAL
    confirmed: int = INITIAL
    truncated: int = INITIAL
    failed: int | None = None

    def stage(self, sqn: int) -> Stage:
        """Where the change set of this number is. Raises SequenceAhead, SequenceTruncated."""
        self._check_known(sqn, INITIAL)
        if sqn < self.confirmed:
            return Stage.COMMITTED
        if sqn < self.durable:
            return Stage.DURABLE
        if self.failed is not None and sqn >= self.failed:
            return Stage.FAILED
        if sqn == self.next:
            return Stage.ACTIVE
        return Stage.IN_FLIGHT if sqn < self.sent else Stage.UNSENT

    # ---- what happens, in this order

    def rolled_over(self) -> "Sequence":
        """The active change set ends; the next one begins."""
        return self._replace(next=self.next + 1)

    def all_sent(self) -> "Sequence":
        """Everything that was rolled over is with the client."""
        return self if self.sent == self.next else self._replace(sent=self.next)

    def all_held(self) -> "Sequence":
        """Everything that was sent is in a checkpoint."""
        return self if self.held == self.sent else self._replace(held=self.sent)

    def durable_below(self, end_sqn: int) -> "Sequence":
        """Every delivery report below `end_sqn` is there, and good."""
        assert self.durable <= end_sqn <= self.sent
        assert self.failed is None or end_sqn <= self.failed
        return self._replace(durable=end_sqn)

    def fails(self, sqn: int) -> "Sequence":
        """A chunk of this change set is not surely in the log."""
        assert self.durable <= sqn <= self.next
        return self._replace(failed=sqn if self.failed is None else min(sqn, self.failed))

    def confirmed_below(self, end_sqn: int) -> "Sequence":
        """A commit made everything below `end_sqn` history. What is history already stays so."""
        assert end_sqn <= min(self.held, self.durable)
        return self._replace(confirmed=max(self.confirmed, end_sqn))

    def truncated_below(self, sqn: int) -> "Sequence":
        """Nothing starts below `sqn` any more. Raises as `check_truncation`."""
        self.check_truncation(sqn)
        return self._replace(truncated=max(self.truncated, sqn))

    # ---- what is refused

    def check_start(self, from_sqn: int | None) -> None:
        """Refuse a persist from here on; None is the first number that is not history.

        Raises PersistFailed if the range holds a change set that failed, SequenceTruncated, SequenceAhead.
        """
        start = self.confirmed if from_sqn is None else from_sqn
        if self.failed is not None and start <= self.next:
            raise PersistFailed(
                "a change set failed, and with it every later one of this writer",
                from_sqn=start,
                failed_sqn=self.failed,
                hint="Open the writer again and resume the source from last_commit",
            )
        if from_sqn is not None:
            self._check_known(from_sqn, self.truncated)

    def check_truncation(self, sqn: int) -> None:
        """Refuse a truncation up to `sqn`. Raises SequenceAhead, Misuse if it would drop what no checkpoint holds."""
        self.check_end(sqn)
        if sqn > self.held:
            raise Misuse(
                "a truncation would drop changes that are in no checkpoint yet",
                sqn=sqn,
                held_sqn=self.held,
                hint="Persist them first; to drop them use truncate_and_close",
            )

    def check_end(self, sqn: int) -> None:
        """Raise SequenceAhead for a number above the next one."""
        self._check_known(max(sqn, INITIAL), INITIAL)

    def _check_known(self, sqn: int, first: int) -> None:
        if sqn < first:
            raise SequenceTruncated("this sequence number is truncated", sqn=sqn, truncated_sqn=first)
        if sqn > self.next:
            raise SequenceAhead("no change set has this number yet", sqn=sqn, next_sqn=self.next)
