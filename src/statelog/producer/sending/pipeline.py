"""`Pipeline`: the change sets of one writer's life, from append to durable. Checkpoints wait on it.

Owns the active change set, those rolled over, the unconfirmed checkpoints, and the sequence that tracks where each is.
Never opens, never commits.

Invariants:
- Changes are sent in the order of their appends, whether a checkpoint or a full buffer triggers it.
- A change set is sent once. A later checkpoint that needs it waits for the same delivery reports.
- Uncommitted change sets stay here, so the next checkpoint includes them.
"""

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa

from statelog.errors import PersistFailed
from statelog.producer.sending.change_set import ChangeSet
from statelog.producer.sending.copies import LocalCopies
from statelog.producer.sending.meta_buffer import meta_size
from statelog.producer.sending.outbox import Outbox
from statelog.producer.sending.sequence import INITIAL, Sequence
from statelog.producer.settings import WriterSettings
from statelog.schemas.ledger.handle import Entry, Step

__all__ = ["PendingStep", "Pipeline"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingStep:
    """What a checkpoint adds, durable or not: its change sets, all of them below `end_sqn`, and its meta records."""

    checkpoint_id: int
    end_sqn: int
    change_sets: tuple[ChangeSet, ...]
    meta: Mapping[str, bytes | None]
    meta_bytes: int

    def entries(self, outbox: Outbox) -> tuple[Entry, ...]:
        """The entries of its change sets, which have all landed."""
        return tuple(entry for change_set in self.change_sets for entry in change_set.entries(outbox))


class Pipeline:
    """Change sets between the buffer and the commit. One thread."""

    def __init__(self, outbox: Outbox, settings: WriterSettings) -> None:
        self.sequence = Sequence()
        self.steps: list[PendingStep] = []
        self.copies = LocalCopies(settings, outbox.meter, outbox.grant)
        self._outbox = outbox
        self._ahead_bytes = settings.roll_bytes
        self._active = ChangeSet(INITIAL)
        self._rolled: list[ChangeSet] = []
        self._unsent: list[ChangeSet] = []
        self._unsent_bytes = 0
        self._landing: deque[ChangeSet] = deque()

    @property
    def outbox(self) -> Outbox:
        """What is on its way now."""
        return self._outbox

    @property
    def unsent_changes(self) -> int:
        """How many changes wait here to be sent. From any thread."""
        return sum(change_set.held_changes for change_set in self._unsent)

    @property
    def meta_bytes(self) -> int:
        """How many bytes of meta records are in checkpoints that no commit has confirmed."""
        return sum(step.meta_bytes for step in self.steps)

    @property
    def is_untouched(self) -> bool:
        """Whether nothing was appended in this life, or all of it is history."""
        return self._active.is_empty and not self._rolled and not self.steps

    def is_beyond(self, checkpoint_id: int) -> bool:
        """Whether anything was sent, or persisted, that this checkpoint does not hold."""
        is_ahead = self._active.is_begun or self.sequence.sent > self.sequence.held
        return is_ahead or any(step.checkpoint_id > checkpoint_id for step in self.steps[-1:])

    def reconnect(self, outbox: Outbox) -> None:
        """Go on through another outbox. Only if nothing is on its way, and nothing was sent that is not history."""
        self._outbox = outbox

    # ---- appended

    def roll_over(self, changes: pa.RecordBatch | None) -> None:
        """End the active change set with these last changes. An empty one stays active: it needs no other number.

        What waits is sent once it is enough. Raises as `send_ahead`.
        """
        self._roll_over(changes)
        if changes is not None:
            self._unsent_bytes += changes.nbytes
            if self._unsent_bytes >= self._ahead_bytes:
                self.send_ahead(None)

    def send_ahead(self, changes: pa.RecordBatch | None) -> None:
        """Send everything, before a checkpoint asks for it; `changes` come last. Raises PersistFailed, Unavailable."""
        self._outbox.meter.ahead += 1
        self._send_rolled()
        if changes is not None:
            self._active.hold(changes)
            self._send(self._active)
        self.take_reports()
        self._outbox.check()

    # ---- persisted

    def hold(self, checkpoint_id: int, changes: pa.RecordBatch | None, meta: Mapping[str, bytes | None]) -> PendingStep:
        """Roll over, with these last changes; send what is not sent yet, and make all that no checkpoint holds a
        checkpoint. Raises as `send_ahead`.
        """
        self._roll_over(changes)
        self._send_rolled()
        self.sequence = self.sequence.all_held()
        change_sets, self._rolled = tuple(self._rolled), []
        step = PendingStep(
            checkpoint_id=checkpoint_id,
            end_sqn=self.sequence.held,
            change_sets=change_sets,
            meta=meta,
            meta_bytes=sum(meta_size(key, value) for key, value in meta.items()),
        )
        self.steps.append(step)
        return step

    def take_reports(self) -> None:
        """Note what has become durable, and what failed, as far as the delivery reports have come."""
        while self._landing and self._has_landed(self._landing[0]):
            first = self._landing[0]
            with suppress(PersistFailed):  # Which is noted below.
                first.entries(self._outbox)
                self.copies.completed(first.sqn)
                self.sequence = self.sequence.durable_below(first.sqn + 1)
                self._landing.popleft()  # Last: after an interrupt the next look begins with it once more.
        if self._outbox.failure is not None:
            self.sequence = self.sequence.fails(self._outbox.failure.sqn)

    def _has_landed(self, change_set: ChangeSet) -> bool:
        """A report that comes after its change set was given up changes nothing any more."""
        failure = self._outbox.failure
        given_up = failure is not None and failure.sqn <= change_set.sqn
        return change_set.sqn < self.sequence.sent and change_set.all_landed and not given_up

    def wait(self, end_sqn: int, timeout_s: float | None) -> bool:
        """Wait until everything below `end_sqn` is durable; False if the time is over. Raises PersistFailed."""
        self.take_reports()
        if self.sequence.durable < end_sqn:
            self._outbox.wait(self.sequence.durable, self._is_settled(end_sqn), timeout_s)
            self.take_reports()
        if self.sequence.durable >= end_sqn:
            return True
        if self.sequence.failed is not None and self.sequence.failed < end_sqn:
            self._outbox.check()
        return False

    def wait_for_checkpoints(self, end_sqn: int) -> None:
        """Wait for the checkpoints that end at or below `end_sqn`. Raises PersistFailed."""
        ends = [step.end_sqn for step in self.steps if step.end_sqn <= end_sqn]
        if ends:
            self.wait(ends[-1], None)

    def step(self, pending: PendingStep) -> Step:
        """What a handle says of a checkpoint that is durable."""
        return Step(checkpoint_id=pending.checkpoint_id, entries=pending.entries(self._outbox), meta=dict(pending.meta))

    # ---- confirmed, or not

    def confirm(self, checkpoint_id: int) -> None:
        """A commit made the checkpoints up to this one history."""
        while self.steps and self.steps[0].checkpoint_id <= checkpoint_id:
            self.sequence = self.sequence.confirmed_below(self.steps.pop(0).end_sqn)

    def reset(self, checkpoint_id: int) -> None:
        """The last checkpoint was aborted: its local copies and those of earlier ones go. An older one is ignored."""
        if self.steps and self.steps[-1].checkpoint_id == checkpoint_id:
            self.copies.discard(self.sequence.confirmed, self.sequence.held)

    def truncate(self, to_sqn: int) -> None:
        """Let nothing start below `to_sqn` any more. Raises as `Sequence.check_truncation`."""
        self.sequence = self.sequence.truncated_below(to_sqn)
        self.copies.discard(INITIAL, min(self.sequence.truncated, self.sequence.confirmed))

    def close(self) -> None:
        """Drop the local copies that no handle names."""
        self.copies.discard(min(self.sequence.held, self.sequence.durable), self.sequence.next + 1)

    def _roll_over(self, changes: pa.RecordBatch | None) -> None:
        if changes is not None:
            self._active.hold(changes)
        if self._active.is_empty:
            return
        for queue in (self._rolled, self._unsent, self._landing):
            queue.append(self._active)
        self.sequence = self.sequence.rolled_over()
        self._outbox.meter.change_sets += 1
        self._active = ChangeSet(self.sequence.next)

    def _send_rolled(self) -> None:
        for change_set in self._unsent:
            self._send(change_set)
        self._unsent.clear()
        self._unsent_bytes = 0
        self.sequence = self.sequence.all_sent()

    def _send(self, change_set: ChangeSet) -> None:
        if not change_set.is_begun:
            change_set.copy = self.copies.new(self._outbox.grant, change_set.sqn)
        change_set.send(self._outbox)

    def _is_settled(self, end_sqn: int) -> Callable[[], bool]:
        """Whether everything below `end_sqn` has landed, or some of it failed."""
        awaited = [change_set for change_set in self._landing if change_set.sqn < end_sqn]

        def settled() -> bool:
            failure = self._outbox.failure
            if failure is not None and failure.sqn < end_sqn:
                return True
            while awaited and awaited[-1].all_landed:
                awaited.pop()
            return not awaited

        return settled
