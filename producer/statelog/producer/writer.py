"""`Writer`: append changes, persist them, commit them. One writer belongs to one thread of one process.

    with Writer(log, "job-1") as writer:
        resume_from = writer.last_commit
        writer.put(b"key", b"value")
        writer.commit(1, {"offset": "42"})

- append (put, delete, append, append_batch) buffers; a full buffer is cut into chunks and sent. Nothing is promised.
- persist rolls the change set over and returns once it is durable, as a handle. Nothing is visible.
- confirm writes the commit and returns once the ledger shows it valid. From then on every reader sees all of it.

Invariants:
- What was not confirmed is never seen, unless a later checkpoint or a later life of this writer commits it.
- A handle holds everything since the last confirmed checkpoint, so skipping a confirm loses nothing.
- An unknown outcome is settled by a new Open before anything else is sent; nothing is ever sent twice.
"""

import os
import time
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from threading import get_ident
from types import TracebackType
from typing import Self
from weakref import WeakSet

import pyarrow as pa

from statelog.producer.buffer import ChangeBuffer, Key, Value
from statelog.producer.change_set import ChangeSet
from statelog.producer.commit import check_checkpoint_id, check_metadata
from statelog.producer.committer import Committer, nowhere
from statelog.producer.grant import Grant
from statelog.producer.lifecycle import Life
from statelog.producer.opening import open_epoch, random_nonce
from statelog.producer.settings import WriterSettings
from statelog.schemas.errors import CheckpointMismatch, ClosedError, InvalidChange, Misuse
from statelog.schemas.handle import Checkpoint, Handle, Step
from statelog.schemas.ledger_state import LastCommit
from statelog.storage.log import Log
from statelog.storage.replay import verify_handle

__all__ = ["Writer"]

_NO_THREAD = -1
_living: "WeakSet[Writer]" = WeakSet()


class Writer:
    """Appends keyed changes to a log under its own name, exactly once.

    `partitions` limits it to some partitions, so that several writers can share a log; `expect` is the checkpoint id
    to resume from (0: none yet), and opening refuses if the log is elsewhere. Opening fences every earlier writer of
    this name or on these partitions. `crash` is called with the name of every step, for fault tests.

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
        new_nonce: Callable[[], bytes] = random_nonce,
        clock: Callable[[], float] = time.monotonic,
        crash: Callable[[str], None] = nowhere,
    ) -> None:
        self._log = log
        self._settings = settings or WriterSettings()
        self._clock = clock
        self._crash = crash
        self._thread = get_ident()
        self._pid = os.getpid()
        self._life = Life.OPEN
        self._ready_thread = self._thread  # The one compare that a hot put makes; another value sends it to diagnose.
        self._sqn = 0
        self._steps: list[Step] = []
        self._meta: dict[str, bytes] = {}
        opened = open_epoch(log, name, partitions=partitions, expect=expect, new_nonce=new_nonce, clock=clock)
        self._committer = Committer(log, opened, new_nonce=new_nonce, clock=clock, crash=crash)
        self._change_set = self._new_change_set()
        grant = self.grant
        self._buffer = ChangeBuffer(grant.descriptor, grant.value_schema, grant.partitions, self._settings)
        _living.add(self)
        self._crash("opened")

    # ---- what it is

    @property
    def name(self) -> str:
        """The writer's name."""
        return self.grant.writer

    @property
    def grant(self) -> Grant:
        """The grant that this writer writes under."""
        return self._committer.grant

    @property
    def life(self) -> Life:
        """Whether it is open, failed or closed."""
        return self._life

    @property
    def last_commit(self) -> LastCommit | None:
        """This writer's last valid commit (checkpoint, offset, metadata), where its source resumes; None: none."""
        return self._committer.last

    def __repr__(self) -> str:
        return f"Writer({self.name!r}, epoch={self.grant.epoch}, {self._life.value})"

    # ---- append

    def put(self, key: Key, value: Value) -> None:
        """Set `key` to `value`: bytes, or a mapping of the fields of the log's value schema.

        Raises InvalidChange, ValueTooLarge, KeyGroupMismatch, ClosedError; PersistFailed if earlier chunks failed.
        """
        if get_ident() != self._ready_thread:
            self._check_usable()
        try:
            if self._buffer.put(key, value):
                self._send()
        except BaseException as error:
            self._fail_unless_refused(error)
            raise

    def delete(self, key: Key) -> None:
        """Remove `key`; one that is not there is fine. Raises as `put`."""
        if get_ident() != self._ready_thread:
            self._check_usable()
        try:
            if self._buffer.delete(key):
                self._send()
        except BaseException as error:
            self._fail_unless_refused(error)
            raise

    def append(self, key_group: int, key: Key, value: Value | None) -> None:
        """A change whose key group the caller names; None deletes. Raises as `put`."""
        self._check_usable()
        try:
            if self._buffer.append(key_group, key, value):
                self._send()
        except BaseException as error:
            self._fail_unless_refused(error)
            raise

    def append_batch(self, table: pa.Table | pa.RecordBatch) -> None:
        """Many changes at once, in row order. Columns: `key`, optional `op` (0 or "put", 1 or "delete"; without it a
        null value deletes), and `value`, or for typed values the fields themselves. Raises as `put`.
        """
        self._check_usable()
        try:
            if self._buffer.extend(table):
                self._send()
        except BaseException as error:
            self._fail_unless_refused(error)
            raise

    def append_meta(self, key: str, value: bytes) -> None:
        """A meta record of this writer, committed with the changes; the last one of a key wins.

        Raises InvalidChange, ClosedError.
        """
        self._check_usable()
        if type(key) is not str or type(value) is not bytes:
            raise InvalidChange(f"a meta record is text and bytes, not {type(key).__name__} and {type(value).__name__}")
        self._meta[key] = value

    # ---- persist, confirm, commit

    def persist(self, checkpoint_id: int) -> Handle:
        """Make all that was appended durable; the handle includes earlier checkpoints that were not confirmed.

        Raises PersistFailed (the writer is over; open it again), CheckpointMismatch if the id does not grow.
        """
        self._check_usable()
        check_checkpoint_id(checkpoint_id)
        last_id = self._steps[-1].checkpoint_id if self._steps else self._committer.base.id
        if checkpoint_id <= last_id:
            raise CheckpointMismatch(f"checkpoint {checkpoint_id} is not later than {last_id}", writer=self.name)
        with self._failing():
            self._send()
            self._crash("sent")
            entries = self._change_set.persist()
            self._steps.append(Step(checkpoint_id=checkpoint_id, entries=entries, meta=dict(self._meta)))
            self._meta.clear()
            self._change_set = self._new_change_set()
            self._crash("persisted")
        return self._handle(self._steps)

    def confirm(self, handle: Handle, metadata: Mapping[str, str] | None = None, *, final: bool = False) -> int:
        """Commit a handle that this life persisted; returns the commit's ledger offset.

        `final` ends the writer's row in the ledger, and this writer with it.

        Raises Fenced, CommitRefused, OutcomeUnknown if it could not be settled either, Damaged, Unavailable: the writer
        is over. Raises CheckpointMismatch and other misuse before anything is sent: it goes on.
        """
        self._check_usable()
        if handle.nonce != self.grant.nonce:
            raise CheckpointMismatch(
                "the handle was not persisted by this life of the writer",
                writer=self.name,
                checkpoint=handle.checkpoint.id,
                hint="Commit a handle of an earlier life with adopt, which checks that its chunks are still there",
            )
        handles = [handle] if handle.entries or any(step.meta for step in handle.steps) else []
        return self._commit(handles, handle.checkpoint, metadata or {}, final)

    def commit(self, checkpoint_id: int, metadata: Mapping[str, str] | None = None, *, final: bool = False) -> int:
        """Persist and confirm; returns the ledger offset. Without changes, it commits the progress in `metadata`."""
        check_metadata(metadata or {})
        return self.confirm(self.persist(checkpoint_id), metadata, final=final)

    def adopt(self, handle: Handle, metadata: Mapping[str, str] | None = None) -> int:
        """Commit a handle that an earlier life of this writer persisted, after checking that its chunks are there.

        Raises CheckpointMismatch if it does not continue the log, Misuse if this life has appended already, Damaged.
        """
        self._check_usable()
        if self._steps or self._buffer.changes or self._change_set.sent:
            raise Misuse("a handle is adopted before anything is appended", writer=self.name)
        verify_handle(self._log, handle.continuing(self._committer.base))
        return self._commit([handle], handle.checkpoint, metadata or {}, final=False)

    # ---- end

    def close(self) -> None:
        """End this life. What was not confirmed is not part of history. Idempotent; never waits for Kafka."""
        if self._life is Life.CLOSED:
            return
        lost = self._buffer.changes or len(self._meta)
        was_open = self._life is Life.OPEN
        self._become(Life.CLOSED)
        if self._pid != os.getpid():
            return  # The clients belong to the parent; touching them here would hang.
        sent = self._change_set.sent
        self._committer.close()
        if was_open and (lost or sent or self._steps):
            warnings.warn(f"writer {self.name} was closed with uncommitted changes; they are discarded", stacklevel=2)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and self._life is Life.OPEN:
            self._become(Life.FAILED)
        self.close()

    # ---- inside

    def _handle(self, steps: Sequence[Step]) -> Handle:
        grant = self.grant
        return Handle(
            identity=grant.descriptor.identity,
            writer=grant.writer,
            epoch=grant.epoch,
            nonce=grant.nonce,
            base=self._committer.base,
            steps=tuple(steps),
        )

    def _send(self) -> None:
        """Hand everything buffered to the producer."""
        with self._failing():
            changes = self._buffer.take()
            if changes is not None:
                self._change_set.send(changes)

    def _new_change_set(self) -> ChangeSet:
        self._sqn += 1
        opened = self._committer.opened
        return ChangeSet(
            opened.producer, self._log.data_topic, opened.grant, self._sqn, self._settings, clock=self._clock
        )

    def _commit(self, handles: list[Handle], checkpoint: Checkpoint, metadata: Mapping[str, str], final: bool) -> int:
        epoch = self.grant.epoch
        # Chunks of a later change set, out under this epoch, could not be committed under a new one.
        settle = not self._change_set.sent and len(self._steps) <= 1
        try:
            last = self._committer.commit(handles, checkpoint.id, metadata, final=final, settle=settle)
            self._steps = [step for step in self._steps if step.checkpoint_id > last.checkpoint.id]
            if self.grant.epoch != epoch:
                self._change_set = self._new_change_set()
        except BaseException as error:
            if self._committer.is_over or not isinstance(error, Misuse):
                self._become(Life.FAILED)
            raise
        if final:
            self.close()
        elif self._committer.is_over:
            self._become(Life.FAILED)
        return last.offset

    # ---- guards

    def disown(self) -> None:
        """Make this copy of the writer nobody's: after a fork its clients live on in the parent."""
        self._ready_thread = _NO_THREAD

    def _check_usable(self) -> None:
        if self._life is not Life.OPEN and os.getpid() == self._pid:
            raise ClosedError(f"the writer is {self._life.value}", writer=self.name, hint="Open it again")
        if get_ident() != self._thread or os.getpid() != self._pid:
            raise ClosedError(
                "a writer belongs to the thread and process that opened it",
                writer=self.name,
                hint="Open one in each, on disjoint partitions and under its own name",
            )

    def _become(self, life: Life) -> None:
        assert self._life.may_become(life)
        self._life = life
        if life is not Life.OPEN:
            self._ready_thread = _NO_THREAD

    def _fail_unless_refused(self, error: BaseException) -> None:
        """What is not a clear refusal of one change, such as Ctrl-C half way, leaves the buffer in doubt."""
        if not isinstance(error, Misuse):
            self._become(Life.FAILED)

    @contextmanager
    def _failing(self) -> Generator[None]:
        """Whatever leaves this block as an exception, Ctrl-C included, ends the writer: something is half done."""
        try:
            yield
        except BaseException:
            self._become(Life.FAILED)
            raise


def _disown_in_child() -> None:
    for writer in list(_living):
        writer.disown()


os.register_at_fork(after_in_child=_disown_in_child)
