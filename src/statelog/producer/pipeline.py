"""`Pipeline`: the change sets of one writer's life, from append to durable. Checkpoints wait on it.

Owns the active change set, those rolled over, the unconfirmed checkpoints, and the sequence that tracks them all. The
messages of a change set go where its changes go. Never opens, never commits.

`Sequence` is one frozen, pure value: which change sets are sent, durable, in a checkpoint, committed. Change sets are
sent, persisted and confirmed in the order of their numbers (SQN). Each boundary is the first number not there yet:

    1 ..... confirmed <= held <= sent <= next        confirmed <= durable <= sent
            history      in a    sent as the active
                         checkpoint  a whole  change set

Invariants:
- Changes are sent in the order of their appends, whether a checkpoint or a full buffer triggers it. So are messages.
- A change set is sent once. A later checkpoint that needs it waits for the same delivery reports.
- Uncommitted change sets stay here, so the next checkpoint includes them.
- A number is never used twice, and no boundary ever moves back.
- A failure fails every later change set of the writer, too: none of them can become durable.
- Truncation drops nothing that an unconfirmed checkpoint holds.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from numbers import Integral
from typing import NamedTuple

from statelog.errors import Misuse, PersistFailed, SequenceAhead, SequenceTruncated
from statelog.producer.buffer import meta_size
from statelog.producer.change_set import ChangeSet, LocalCopies
from statelog.producer.outbox import Outbox
from statelog.producer.settings import WriterSettings, tuning_of
from statelog.schemas.arrays import about_bytes
from statelog.schemas.changes.few import Changes, FewChanges
from statelog.schemas.ledger.handle import Step
from statelog.schemas.names import check_kind
from statelog.schemas.outputs.output import Output

INITIAL = 1


class Sequence(NamedTuple):
    """The boundaries; see above. `next` is the active change set's number, `failed` the first one that failed."""

    next: int = INITIAL
    sent: int = INITIAL
    durable: int = INITIAL
    held: int = INITIAL
    confirmed: int = INITIAL
    truncated: int = INITIAL
    failed: int | None = None

    # ---- events, in this order

    def rolled_over(self) -> "Sequence":
        """End the active change set, and begin the next one."""
        return self._replace(next=self.next + 1)

    def all_sent(self) -> "Sequence":
        """Note that the client has everything that was rolled over."""
        return self if self.sent == self.next else self._replace(sent=self.next)

    def all_held(self) -> "Sequence":
        """Note that everything that was sent is in a checkpoint."""
        return self if self.held == self.sent else self._replace(held=self.sent)

    def durable_below(self, end_sqn: int) -> "Sequence":
        """Note that every delivery report below `end_sqn` has come, and is good."""
        assert self.durable <= end_sqn <= self.sent
        assert self.failed is None or end_sqn <= self.failed
        return self._replace(durable=end_sqn)

    def fails(self, sqn: int) -> "Sequence":
        """Note that a chunk of this change set may not be in the log."""
        assert self.durable <= sqn <= self.next
        return self._replace(failed=sqn if self.failed is None else min(sqn, self.failed))

    def confirmed_below(self, end_sqn: int) -> "Sequence":
        """Note that a commit made everything below `end_sqn` history. History stays history."""
        assert end_sqn <= min(self.held, self.durable)
        return self._replace(confirmed=max(self.confirmed, end_sqn))

    def truncated_below(self, sqn: int) -> "Sequence":
        """Let nothing start below `sqn` any more. Raises SequenceAhead; Misuse if it would drop unheld changes."""
        self.check_end(sqn)
        if sqn > self.held:
            raise Misuse(
                "a truncation would drop changes that are in no checkpoint yet",
                sqn=sqn,
                held_sqn=self.held,
                hint="Persist them first; to drop them use truncate_and_close",
            )
        return self._replace(truncated=max(self.truncated, sqn))

    # ---- refusals

    def check_start(self, from_sqn: int | None) -> None:
        """Raise PersistFailed if a persist from here on (None: from the end of history) would hold a failed change set.
        Raise SequenceTruncated or SequenceAhead for a wrong number.
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

    def check_end(self, sqn: int) -> None:
        """Raise SequenceAhead for a number above the next one."""
        self._check_known(sqn, sqn)

    def _check_known(self, sqn: int, first: int) -> None:
        check_kind("a sequence number", sqn, Integral, example="what next_sequence_number gave")
        if sqn < first:
            raise SequenceTruncated("this sequence number is truncated", sqn=sqn, truncated_sqn=first)
        if sqn > self.next:
            raise SequenceAhead("no change set has this number yet", sqn=sqn, next_sqn=self.next)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingStep:
    """The additions of a checkpoint, durable or not: its change sets, all below `end_sqn`, and its meta records."""

    checkpoint_id: int
    end_sqn: int
    change_sets: tuple[ChangeSet, ...]
    meta: Mapping[str, bytes | None]
    meta_bytes: int


class Pipeline:
    """Change sets between the buffer and the commit. One thread."""

    def __init__(self, outbox: Outbox, settings: WriterSettings) -> None:
        self.sequence = Sequence()
        self.steps: list[PendingStep] = []
        self.copies = LocalCopies(settings, outbox.meter, outbox.grant)
        self.outbox = outbox
        """Chunks on their way. Replace it only while it is empty, and everything that was sent is history."""
        self._ahead_bytes = tuning_of(settings).roll_bytes
        self._active = ChangeSet(INITIAL)
        self._sets: list[ChangeSet] = []
        """The change sets that were rolled over, in order, without those that are durable and in a checkpoint."""
        self._unsent_bytes = 0

    def _from(self, sqn: int) -> list[ChangeSet]:
        return [change_set for change_set in self._sets if change_set.sqn >= sqn]

    @property
    def unsent_changes(self) -> int:
        """How many changes wait here to be sent. Callable from any thread."""
        return sum(change_set.held_changes for change_set in self._sets)

    @property
    def unsent_messages(self) -> int:
        """How many messages wait here to be sent. Callable from any thread."""
        return sum(change_set.held_messages for change_set in [*self._sets, self._active])

    @property
    def meta_bytes(self) -> int:
        """The bytes of meta records in checkpoints that no commit has confirmed."""
        return sum(step.meta_bytes for step in self.steps)

    @property
    def is_untouched(self) -> bool:
        """Whether nothing was appended in this life, or all of it is history."""
        return self._active.is_empty and self.sequence.held == self.sequence.next and not self.steps

    def is_beyond(self, checkpoint_id: int) -> bool:
        """Return whether anything was sent or persisted that this checkpoint does not hold."""
        is_ahead = self._active.is_begun or self.sequence.sent > self.sequence.held
        return is_ahead or any(step.checkpoint_id > checkpoint_id for step in self.steps[-1:])

    # ---- appended

    def hold_outputs(self, outputs: list[Output], size_bytes: int) -> None:
        """Add messages to the active change set, to be sent with its changes."""
        self._active.hold_outputs(outputs)
        self._unsent_bytes += size_bytes

    def roll_over(self, changes: Changes | None) -> None:
        """End the active change set with these last changes; an empty one stays active. Send the waiting ones once they
        are large enough. Raises PersistFailed, Unavailable.
        """
        self._roll_over(changes)
        if changes is not None:
            self._unsent_bytes += changes.nbytes if isinstance(changes, FewChanges) else about_bytes(changes)
        if self._unsent_bytes >= self._ahead_bytes:
            self.send_ahead(None)

    def send_ahead(self, changes: Changes | None) -> None:
        """Send everything, before a checkpoint asks for it; `changes` come last. Raises PersistFailed, Unavailable."""
        self.outbox.meter.persists_ahead += 1
        self._send_rolled()
        if changes is not None:
            self._active.hold(changes)
        self._send(self._active)
        self.take_reports()
        self.outbox.check()

    # ---- persisted

    def hold(self, checkpoint_id: int, changes: Changes | None, meta: Mapping[str, bytes | None]) -> PendingStep:
        """Roll over with these last changes, send everything, and make a checkpoint of the change sets that have none.
        Raises PersistFailed, Unavailable.
        """
        self._roll_over(changes)
        self._send_rolled()
        change_sets = tuple(self._from(self.sequence.held))
        self.sequence = self.sequence.all_held()
        step = PendingStep(
            checkpoint_id=checkpoint_id,
            end_sqn=self.sequence.held,
            change_sets=change_sets,
            meta=meta,
            meta_bytes=sum(meta_size(key, value) for key, value in meta.items()),
        )
        self.steps.append(step)
        return step

    def carry(self, checkpoint_id: int) -> None:
        """Note that the commit's own record carries the one change set that is rolled over and not yet history."""
        self.outbox.meter.changes += self.unsent_changes
        self.outbox.meter.messages += self.unsent_messages
        self.sequence = self.sequence.all_sent().all_held().durable_below(self.sequence.next)
        self._sets, self._unsent_bytes = [], 0
        self.steps.append(
            PendingStep(checkpoint_id=checkpoint_id, end_sqn=self.sequence.held, change_sets=(), meta={}, meta_bytes=0)
        )

    def take_reports(self) -> None:
        """Note which change sets are durable, and which failed, by the delivery reports so far."""
        for first in self._from(self.sequence.durable):
            failure = self.outbox.failure
            # A report that comes after its change set failed changes nothing.
            has_failed = failure is not None and failure.sqn <= first.sqn
            if first.sqn >= self.sequence.sent or not first.all_landed or has_failed:
                break
            with suppress(PersistFailed):  # Noted below.
                first.entries(self.outbox)
                self.copies.completed(first.sqn)
                # Last, so that after an interrupt the next call repeats this change set.
                self.sequence = self.sequence.durable_below(first.sqn + 1)
        self._sets = self._from(min(self.sequence.durable, self.sequence.held))
        if self.outbox.failure is not None:
            self.sequence = self.sequence.fails(self.outbox.failure.sqn)

    def wait(self, end_sqn: int, timeout_s: float | None) -> bool:
        """Wait until everything below `end_sqn` is durable. Return False after `timeout_s`. Raises PersistFailed."""
        self.take_reports()
        if self.sequence.durable < end_sqn:
            self.outbox.wait(self.sequence.durable, self._has_outcome(end_sqn), timeout_s)
            self.take_reports()
        if self.sequence.durable >= end_sqn:
            return True
        if self.sequence.failed is not None and self.sequence.failed < end_sqn:
            self.outbox.check()
        return False

    def step(self, pending: PendingStep) -> Step:
        """Return a durable checkpoint as handles list it."""
        listed = [change_set.entries(self.outbox) for change_set in pending.change_sets]
        return Step(
            checkpoint_id=pending.checkpoint_id,
            entries=tuple(entry for changes, _ in listed for entry in changes),
            meta=dict(pending.meta),
            outputs=tuple(entry for _, outputs in listed for entry in outputs),
        )

    # ---- confirmed, or not

    def confirm(self, checkpoint_id: int) -> None:
        """Note that a commit made the checkpoints up to this one history."""
        while self.steps and self.steps[0].checkpoint_id <= checkpoint_id:
            self.sequence = self.sequence.confirmed_below(self.steps.pop(0).end_sqn)

    def reset(self, checkpoint_id: int) -> None:
        """Drop the local copies of the last checkpoint, which was aborted, and of earlier ones. Ignore an older one."""
        if self.steps and self.steps[-1].checkpoint_id == checkpoint_id:
            self.copies.discard(self.sequence.confirmed, self.sequence.held)

    def truncate(self, to_sqn: int) -> None:
        """Let nothing start below `to_sqn` any more. Raises SequenceAhead, Misuse."""
        self.sequence = self.sequence.truncated_below(to_sqn)
        self.copies.discard(INITIAL, min(self.sequence.truncated, self.sequence.confirmed))

    def close(self) -> None:
        """Drop the local copies that no handle names."""
        self.copies.discard(min(self.sequence.held, self.sequence.durable), self.sequence.next + 1)

    def _roll_over(self, changes: Changes | None) -> None:
        if changes is not None:
            self._active.hold(changes)
        if self._active.is_empty:
            return
        self._sets.append(self._active)
        self.sequence = self.sequence.rolled_over()
        self.outbox.meter.change_sets += 1
        self._active = ChangeSet(self.sequence.next)

    def _send_rolled(self) -> None:
        for change_set in self._from(self.sequence.sent):
            self._send(change_set)
        self._unsent_bytes = 0
        self.sequence = self.sequence.all_sent()

    def _send(self, change_set: ChangeSet) -> None:
        if change_set.needs_copy:
            change_set.copy = self.copies.new(self.outbox.grant, change_set.sqn)
        change_set.send(self.outbox)

    def _has_outcome(self, end_sqn: int) -> Callable[[], bool]:
        """Make a test of whether everything below `end_sqn` has landed, or some of it failed."""
        awaited = [one for one in self._from(self.sequence.durable) if one.sqn < end_sqn]

        def has_outcome() -> bool:
            failure = self.outbox.failure
            if failure is not None and failure.sqn < end_sqn:
                return True
            while awaited and awaited[-1].all_landed:
                awaited.pop()
            return not awaited

        return has_outcome
