"""`Writer`: append changes, persist them, commit them. Belongs to one thread of one process.

    with Writer(log, "job-1") as writer:
        resume_from = writer.last_commit
        writer.put(b"key", b"value")
        writer.commit(metadata={"offset": 42})

- append (put, delete, append, append_batch) buffers; a full buffer is cut into chunks and sent. No promise yet.
- send buffers a message for any topic of the cluster. It is part of the next commit, or never was.
- commit is persist and confirm. Few changes go as one record, with their commit, while the ledger carries little.
- persist rolls the change set over and sends it; its result is a handle, once all of it is durable. Still invisible.
- confirm writes the commit and returns once the ledger shows it valid. From then on every reader sees all of it.

Invariants:
- Unconfirmed changes and messages are never seen, unless a later checkpoint or life of this writer commits them.
- A handle holds everything since the last confirmed checkpoint, so skipping a confirm loses nothing.
- A new Open resolves an unknown outcome before anything else is sent. If chunks beyond the commit are already sent, the
  next life resolves it. Nothing is ever sent twice.
- Only the writer's own thread touches its state: delivery reports are processed while it appends or waits.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from threading import get_ident

from statelog.environment import current_environment
from statelog.errors import CheckpointMismatch, Misuse, PersistFailed
from statelog.log import Log
from statelog.pending import Pending
from statelog.producer.buffer import ChangeBuffer, MetaBuffer
from statelog.producer.change_set import carried_of
from statelog.producer.change_writer import ChangeWriter
from statelog.producer.committer import NOTHING, Cargo, Committer, GrantHolder, check_handle
from statelog.producer.epoch import EpochClients, open_epoch
from statelog.producer.guard import Guard, Guarded, Life, is_refusal
from statelog.producer.outbox import Outbox
from statelog.producer.outputs import OutputWriter
from statelog.producer.pipeline import INITIAL, PendingStep, Pipeline
from statelog.producer.settings import WriterSettings, WriterStatistics
from statelog.reading import verify_handle
from statelog.schemas.changes.few import Changes
from statelog.schemas.ledger.handle import Checkpoint, Handle, next_checkpoint_id
from statelog.schemas.ledger.place import Metadata, check_metadata
from statelog.schemas.ledger.state import LastCommit
from statelog.schemas.names import check_kind, settings_or

_Wait = Callable[[int, float | None], bool]
_Finish = Callable[[Checkpoint, float, bool], LastCommit]
_APART = "Open one in each, on disjoint partitions and under its own name"


class Writer(GrantHolder, OutputWriter, ChangeWriter):
    """Appends keyed changes to a log under its own name, exactly once.

        >>> with Writer(log, "web") as writer:
        ...     writer.put(b"alice", b"1")
        ...     writer.commit(metadata={"offset": 42}).checkpoint.id
        1

    `partitions` limits it to some partitions, so that several writers can share a log. `expect` is the checkpoint id
    to resume from (0: none yet); opening refuses if the log is at another. Opening fences every earlier writer of this
    name or on these partitions.

    Raises CheckpointMismatch, Fenced, Damaged, Unavailable.
    """

    CRASH_POINTS = ("opened", "sent", "persisted", "commit-made", "committed")

    def __init__(
        self,
        log: Log,
        name: str,
        *,
        partitions: Sequence[int] | None = None,
        expect: int | None = None,
        settings: WriterSettings | None = None,
    ) -> None:
        terms = settings_or(settings, WriterSettings())  # Before it fences another writer.
        self._go_on(log, open_epoch(log, name, partitions=partitions, expect=expect), terms)

    def _go_on(self, log: Log, opened: EpochClients, settings: WriterSettings, *, takes_stored: bool = False) -> None:
        self._log = log
        self._settings = settings
        self._environment = current_environment()
        self._meter = WriterStatistics()
        self._meta = MetaBuffer(log.descriptor.record_bytes_max)
        self._take_outputs_of(log, settings)
        self._committing: Pending[LastCommit] | None = None
        try:
            self._committer = Committer(log, opened)
            self._pipeline = Pipeline(self._new_outbox(), self._settings)
            self._environment.crash("opened")
            grant = opened.grant
            schema = grant.value_schema.stored if takes_stored else grant.value_schema
            super().__init__(
                Guard("writer", grant.writer, log=log.name, again="Open it again", apart=_APART),
                ChangeBuffer(grant.descriptor, schema, grant.partitions, self._settings),
            )
        except BaseException:
            opened.close()
            raise
        self._environment.made(self, log.name, self.name)

    # ---- what it is

    @property
    def name(self) -> str:
        """The writer's name."""
        return self.grant.writer

    @property
    def initial_sequence_number(self) -> int:
        """The number of this life's first change set. Numbers of different lives are not comparable."""
        return INITIAL

    @property
    def available(self) -> bool:
        """Whether a whole chunk could be sent now without waiting for room in flight."""
        outbox = self._pipeline.outbox
        if not outbox.available and get_ident() == self._guard.user:
            self._poll()
        return self.life is Life.OPEN and outbox.available

    def statistics(self) -> WriterStatistics:
        """Return counts, sizes and times of this life so far. Callable from any thread, even after close."""
        outbox, buffered_changes = self._pipeline.outbox, self._buffer.changes + self._pipeline.unsent_changes
        return replace(
            self._meter,
            changes=self._meter.changes + buffered_changes,
            buffered_changes=buffered_changes,
            messages=self._meter.messages + len(self._outputs.messages) + self._pipeline.unsent_messages,
            in_flight_bytes=outbox.in_flight_bytes,
            in_flight_chunks=outbox.in_flight_chunks,
            available=self.life is Life.OPEN and outbox.available,
        )

    def __repr__(self) -> str:
        return f"Writer({self.name!r}, epoch={self.grant.epoch}, {self.life.value})"

    # ---- append, beyond what every ChangeWriter does

    @Guarded.turn
    def append_meta(self, key: str, value: bytes | None) -> None:
        """Set a meta record of this writer, committed with the changes; None removes it.

        The last value of a key wins. Raises InvalidChange, ClosedError; ValueTooLarge if unconfirmed ones take
        more than half of the log's largest record: 8 MiB, unless its topics allow less.
        """
        self._meta.put(key, value, self._pipeline.meta_bytes)

    # ---- persist, confirm, commit

    @Guarded.turn
    def next_sequence_number(self) -> int:
        """Return the number of the next change: the exclusive end of everything appended so far.

        Ends the active change set if it holds a change or a message; else the number stays the same.
        Raises InvalidChange, PersistFailed, ClosedError.
        """
        with self._guard:
            self._pipeline.roll_over(self._take())
        return self._pipeline.sequence.next

    @Guarded.late_turn
    def persist(self, checkpoint_id: int | None = None, *, from_sqn: int | None = None) -> Pending[Handle]:
        """Send what is still unsent, and return a pending handle of everything since the last confirmed checkpoint.

        The id defaults to the last one plus 1, pending checkpoints included; several may be pending. Nothing that is
        durable or in flight is sent again. `from_sqn` names the first change set that the caller needs; unconfirmed
        ones below it are still included.

        Raises CheckpointMismatch unless the id grows, SequenceTruncated or SequenceAhead for a wrong `from_sqn`.
        Raises PersistFailed if a change set has failed, which ends the writer: open it again.
        """
        return self._persist(checkpoint_id, from_sqn, self._wait_alone)

    @Guarded.turn
    def confirm(self, handle: Handle, metadata: Metadata | None = None, *, final: bool = False) -> LastCommit:
        """Commit a handle that this life persisted. `final` also ends the writer and its row in the ledger.

        Raises Fenced, CommitRefused, OutcomeUnknown if it could not be resolved, Damaged, Unavailable: these end the
        writer. Raises CheckpointMismatch and other misuse before anything is sent: the writer goes on.
        """
        return self._confirm(handle, metadata, final, self._finish).result()

    @Guarded.turn
    def confirm_async(self, handle: Handle, metadata: Metadata | None = None) -> Pending[LastCommit]:
        """Send a commit as `confirm` does, without waiting for the ledger. At most one may be pending.

            pending = writer.confirm_async(writer.persist().result())
            ...                                                  # more appends, and persists
            print(pending.result().offset)

        Raises CheckpointMismatch and other misuse before anything is sent, Unavailable.
        """
        return self._confirm(handle, metadata, False, self._finish_alone)

    @Guarded.turn
    def commit(
        self, metadata: Metadata | None = None, *, checkpoint_id: int | None = None, final: bool = False
    ) -> LastCommit:
        """Persist and confirm. The id defaults to the last one plus 1. Without changes it commits the metadata alone.

        Raises InvalidMetadata and CheckpointMismatch before anything is sent; PersistFailed, Fenced, CommitRefused,
        OutcomeUnknown, Damaged or Unavailable, which end the writer.
        """
        check_metadata({} if metadata is None else metadata)
        sent = self._carry(metadata, checkpoint_id, final, self._finish)
        if sent is not None:
            return sent.result()
        handle = self._persist(checkpoint_id, None, self._wait).result()
        return self._confirm(handle, metadata, final, self._finish).result()

    @Guarded.turn
    def commit_carried(self, metadata: Metadata | None = None) -> Pending[LastCommit] | None:
        """Send a commit as `commit` does, without waiting, if its record can carry the changes; else do nothing, and
        return None. Raises as `confirm_async`.
        """
        return self._carry(metadata, None, False, self._finish_alone)

    @Guarded.turn
    def adopt(self, handle: Handle, metadata: Metadata | None = None) -> LastCommit:
        """Verify the chunks of a handle that an earlier life of this writer persisted, and commit it.

        Raises CheckpointMismatch if it does not continue the log, IdentityChanged if it is another log's, Misuse if
        this life has already appended, Damaged.
        """
        check_kind("handle", handle, Handle, example="what persist().result() gave, or Handle.from_bytes(data)")
        if self._buffer.changes or self._outputs.messages or not self._pipeline.is_untouched:
            raise Misuse("a handle must be adopted before anything is appended", **self.grant.facts)
        check_handle(self.grant, handle, handle.checkpoint.id)
        verify_handle(self._log, handle.continuing(self._committer.base))
        return self._begin([handle], handle.checkpoint, metadata or {}, False, self._finish).result()

    @Guarded.turn
    def reset(self, checkpoint_id: int) -> None:
        """Abort a checkpoint. The next one includes the same changes, and nothing is sent twice.

        Drops local copies alone, and only for the last checkpoint: a later one needs those of the earlier ones.
        """
        self._pipeline.reset(checkpoint_id)

    @Guarded.turn
    def truncate(self, to_sqn: int) -> None:
        """Let no later persist start below `to_sqn`, and drop local copies of committed change sets below it.

        Unconfirmed checkpoints keep theirs. Raises SequenceAhead; Misuse if a change below it is in no checkpoint.
        """
        self._pipeline.truncate(to_sqn)

    # ---- end

    @Guarded.turn
    def truncate_and_close(self, from_sqn: int) -> None:
        """Drop the changes that were appended from `from_sqn` on, and end this life.

        Waits for pending checkpoints that end at or below it: their handles stay valid. Raises SequenceAhead.
        """
        self._pipeline.sequence.check_end(from_sqn)
        ends = [step.end_sqn for step in self._pipeline.steps if step.end_sqn <= from_sqn]
        with suppress(PersistFailed):  # The result of each checkpoint raises it.
            self._pipeline.wait(max(ends, default=INITIAL), None)
        self._end(is_loss=self._pipeline.sequence.confirmed < min(from_sqn, self._pipeline.sequence.next))

    @Guarded.turn
    def hand_over(self) -> Callable[[], None]:
        """Give it to another thread. No thread may use it until that one calls the returned function, once."""
        return self._guard.hand_over()

    def _has_uncommitted(self) -> bool:
        return bool(self._buffer.changes or self._outputs.messages or self._meta or not self._pipeline.is_untouched)

    def _release(self) -> None:
        self._committing = None  # It refers to the writer, and would keep the clients.
        self._pipeline.close()
        self._committer.close()

    # ---- inside a guarded call

    def _persist(self, checkpoint_id: int | None, from_sqn: int | None, wait: _Wait) -> Pending[Handle]:
        if self.life is not Life.CLOSED:
            self._pipeline.take_reports()
            try:
                self._pipeline.sequence.check_start(from_sqn)
            except PersistFailed:  # Raised every time, rather than that the writer has ended.
                self._guard.fail()
                raise
        self._guard.check_life()
        steps = self._pipeline.steps
        last_id = steps[-1].checkpoint_id if steps else self._committer.base.id
        checkpoint_id = next_checkpoint_id(checkpoint_id, last_id, writer=self.name)
        started_s = self._environment.clock()
        with self._guard:
            step = self._pipeline.hold(checkpoint_id, self._take(), self._meta.take())
            self._environment.crash("sent")
        return self._promise(step, started_s, wait)

    def _confirm(self, handle: Handle, metadata: Metadata | None, final: bool, finish: _Finish) -> Pending[LastCommit]:
        check_kind("handle", handle, Handle, example="writer.persist().result()")
        if handle.nonce != self.grant.nonce:
            raise CheckpointMismatch(
                "the handle was not persisted by this life of the writer",
                **self.grant.facts,
                checkpoint=handle.checkpoint.id,
                hint="Commit a handle of an earlier life with adopt, which checks that its chunks are still there",
            )
        return self._begin([] if handle.is_quiet else [handle], handle.checkpoint, metadata or {}, final, finish)

    def _carry(
        self, metadata: Metadata | None, checkpoint_id: int | None, final: bool, finish: _Finish
    ) -> Pending[LastCommit] | None:
        """Send all changes and messages with their commit, as one record. Return None if they are too many, or none."""
        pipeline, is_open = self._pipeline, self.life is Life.OPEN and self._committing is None
        size_bytes = self._buffer.most_bytes + self._outputs.size_bytes
        is_little = 0 < size_bytes <= self._settings.inline_bytes and not self._meta
        if not (is_open and is_little and pipeline.is_untouched and self._log.history.rate.is_low):
            return None
        checkpoint_id = next_checkpoint_id(checkpoint_id, self._committer.base.id, writer=self.name)
        with self._guard:
            outputs = self._outputs.messages
            changes = self._take()
            pipeline.roll_over(changes)
        grant = self.grant
        inline = None if changes is None else carried_of(changes, grant.descriptor, grant.value_schema.id)
        carried = Cargo.of(inline, outputs)
        checkpoint, seen = Checkpoint(checkpoint_id, self.grant.nonce), self.place
        sent = self._begin([], checkpoint, metadata or {}, final, finish, carried)
        if self._log.history.rate.takes_witness():
            pipeline.outbox.send_witness(seen)
        return sent

    def _take(self) -> Changes | None:
        """Empty the buffers: give the messages to the active change set, and return the changes."""
        if self._outputs.messages:
            self._pipeline.hold_outputs(*self._outputs.take())
        return self._buffer.take()

    def _new_outbox(self) -> Outbox:
        committer = self._committer  # Not the writer: a cycle of it and the outbox would keep closed clients.
        return Outbox(
            committer.opened.producer,
            committer.grant,
            self._settings,
            clock=self._environment.clock,
            meter=self._meter,
            witness=lambda: committer.place,
        )

    @Guarded.turn
    def _poll(self) -> None:
        with self._guard:
            self._pipeline.outbox.poll()

    def _send(self) -> None:
        """Send everything that is buffered, ahead of any checkpoint."""
        with self._guard:
            self._pipeline.send_ahead(self._take())

    def _promise(self, step: PendingStep, started_s: float, wait: _Wait) -> Pending[Handle]:
        """Return the pending handle of `step` and every unconfirmed step before it."""
        grant, base, unconfirmed = self.grant, self._committer.base, tuple(self._pipeline.steps)

        def is_over(timeout_s: float) -> bool:
            try:
                return wait(step.end_sqn, timeout_s)
            except PersistFailed:
                return True

        def take() -> Handle:
            wait(step.end_sqn, None)
            handle = grant.handle(base, tuple(self._pipeline.step(one) for one in unconfirmed))
            self._meter.persist_s = self._meter.persist_s.with_value(self._environment.clock() - started_s)
            self._meter.full_bytes = handle.size_bytes
            self._meter.incremental_bytes = sum(entry.size_bytes for entry in handle.steps[-1].entries)
            self._environment.crash("persisted")
            return handle

        return Pending(f"checkpoint {step.checkpoint_id}", step.checkpoint_id, is_over, take)

    def _wait(self, end_sqn: int, timeout_s: float | None) -> bool:
        """Wait, and return whether everything below `end_sqn` is durable. Works after the writer has failed, too."""
        if self._pipeline.sequence.durable >= end_sqn:
            return True
        if self.life is Life.CLOSED:
            raise PersistFailed("the writer was closed before its checkpoint was durable", **self.grant.facts)
        with self._guard:
            return self._pipeline.wait(end_sqn, timeout_s)

    _wait_alone = Guarded.late_turn(_wait)  # For calls from outside.

    def _begin(
        self,
        handles: list[Handle],
        checkpoint: Checkpoint,
        metadata: Metadata,
        final: bool,
        finish: _Finish,
        carried: Cargo = NOTHING,
    ) -> Pending[LastCommit]:
        """Send a Commit; `finish` takes its result."""
        if self._committing is not None:
            raise Misuse(
                "a commit is under way", **self.grant.facts, hint="Take its result before you confirm the next one"
            )
        started_s = self._environment.clock()
        with self._meter_failures():
            waits = finish == self._finish
            self._committer.begin(handles, checkpoint.id, metadata, final=final, carried=carried, waits=waits)
            if carried is not NOTHING:
                self._pipeline.carry(checkpoint.id)
                self._meter.carried_commits += 1
        what = f"the commit of checkpoint {checkpoint.id}"
        self._committing = Pending(what, checkpoint.id, self._is_answered, lambda: finish(checkpoint, started_s, final))
        return self._committing

    @Guarded.late_turn
    def _is_answered(self, timeout_s: float) -> bool:
        return self.life is not Life.OPEN or self._committer.is_answered(timeout_s)

    def _finish(self, checkpoint: Checkpoint, started_s: float, final: bool) -> LastCommit:
        self._committing = None
        epoch = self.grant.epoch
        # Chunks of a later change set that were sent under this epoch could not be committed under a new one.
        resolve = not self._pipeline.is_beyond(checkpoint.id)
        with self._meter_failures():
            last = self._committer.finish(resolve=resolve)
            self._pipeline.confirm(last.checkpoint.id)
            if self.grant.epoch != epoch:
                self._pipeline.outbox = self._new_outbox()
                self._meter.settled_commits += 1
        self._meter.confirm_s = self._meter.confirm_s.with_value(self._environment.clock() - started_s)
        self._meter.commit_attempts = self._meter.commit_attempts.with_value(self._committer.attempts)
        if final:
            self._end(is_loss=self._has_uncommitted())
        elif self._committer.is_overtaken:
            self._guard.overtake()
        return last

    _finish_alone = Guarded.turn(_finish)  # For calls from outside.

    @contextmanager
    def _meter_failures(self) -> Generator[None]:
        """Count a commit that fails, and end the writer unless it was refused before anything was sent."""
        try:
            yield
        except BaseException as error:
            self._meter.confirm_failures += 1
            if self._committer.is_over or not is_refusal(error):
                self._guard.fail()
            raise


class OpenedWriter(Writer):
    """A writer over an epoch that its owner opened, and whose ledger the owner has read."""

    def __init__(self, log: Log, opened: EpochClients, settings: WriterSettings) -> None:
        self._go_on(log, opened, settings, takes_stored=True)
