"""Tasks: parallel writing for one coordinator. Tasks write chunks anywhere; one process opens and commits.

    coordinator = Coordinator(log, "job-1")                  # one process
    task = TaskWriter(producer, coordinator.task(), slot=0)  # any process: a TaskGrant pickles
    task.append_batch(table); handle = task.finish()         # handles pickle, too
    coordinator.commit(handles, {"offset": 42})

Tasks that lose, retry or come too late are never listed and cost only bytes: readers see none of it.

Invariants:
- A task's change set has a number of its own within the epoch: the slot, which the caller keeps unique among all
  attempts of all tasks, and random bits below it, so that a slot that was given twice all the same mixes nothing up.
- A task sends nothing of checkpoint N + 1 before N is confirmed: `task` gives out grants for the next checkpoint only.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from statelog.closing import Closing
from statelog.errors import CheckpointMismatch, ConfigError, Fenced
from statelog.producer.commits.commit import check_checkpoint_id, check_handle, refuse_overlaps
from statelog.producer.commits.committer import Committer
from statelog.producer.commits.grant import Grant
from statelog.producer.commits.opening import Opened, open_epoch
from statelog.producer.lifecycle import Guard, Life
from statelog.producer.sending.buffer import ChangeBuffer, Key, Value
from statelog.producer.sending.change_set import ChangeSet
from statelog.producer.sending.outbox import Outbox
from statelog.producer.settings import WriterSettings
from statelog.schemas.ledger.handle import Checkpoint, Handle, Step
from statelog.schemas.ledger.metadata import Metadata
from statelog.schemas.ledger.state import LastCommit
from statelog.schemas.names import data_topic
from statelog.seams import REAL, Seams
from statelog.storage.kafka import Producer
from statelog.storage.log.log import Log
from statelog.storage.replay import verify_handle

__all__ = ["Coordinator", "TaskGrant", "TaskWriter", "resume_grant"]

_SLOTS = 1 << 31
_SALT_BYTES = 4
_AGAIN = "Make a new one for every attempt of a task"
_APART = "Commit in the thread that opened it, or hand the grant over: resume_grant makes another of it"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskGrant:
    """The right to write one checkpoint's changes: a grant, the checkpoint, and the one that it continues. Pickles."""

    grant: Grant
    base: Checkpoint
    checkpoint_id: int


class TaskWriter:
    """Writes one change set for a coordinator. One thread, one process; touches neither ledger nor DFS.

    `slot` is unique among all attempts of all tasks under the grant's epoch, for example Spark's task attempt id.
    `producer` is the caller's: tasks of one process may use it one after another, and it is not closed here.

    Raises ConfigError for a slot below 0 or from 2^31 on.
    """

    def __init__(
        self,
        producer: Producer,
        task: TaskGrant,
        *,
        slot: int,
        settings: WriterSettings | None = None,
        seams: Seams = REAL,
    ) -> None:
        if not 0 <= slot < _SLOTS:
            raise ConfigError(f"slot is {slot} and must be from 0 to {_SLOTS - 1}")
        grant = task.grant
        settings = settings or WriterSettings()
        self._task = task
        self._guard = Guard("task writer", grant.writer, again=_AGAIN, apart="Make one in each, with a slot of its own")
        self._buffer = ChangeBuffer(grant.descriptor, grant.value_schema, grant.partitions, settings)
        self._outbox = Outbox(producer, data_topic(grant.descriptor.name), grant, settings, clock=seams.clock)
        self._change_set = ChangeSet(slot << 8 * _SALT_BYTES | int.from_bytes(seams.nonce()[-_SALT_BYTES:], "big"))

    def put(self, key: Key, value: Value) -> None:
        """Set `key` to `value`. Raises as `Writer.put`."""
        self._guard.check()
        try:
            if self._buffer.put(key, value):
                self._send()
        except BaseException as error:
            self._guard.fail_unless_refused(error)
            raise

    def delete(self, key: Key) -> None:
        """Remove `key`. Raises as `Writer.delete`."""
        self._guard.check()
        try:
            if self._buffer.delete(key):
                self._send()
        except BaseException as error:
            self._guard.fail_unless_refused(error)
            raise

    def append_batch(self, table: pa.Table | pa.RecordBatch) -> None:
        """Many changes at once. Columns and errors as `Writer.append_batch`."""
        self._guard.check()
        try:
            for is_full in self._buffer.extend(table):
                if is_full:
                    self._send()
        except BaseException as error:
            self._guard.fail_unless_refused(error)
            raise

    def finish(self) -> Handle:
        """Persist; the handle goes back to the coordinator. Raises PersistFailed.

        After any error this task writer is over: write the task's changes again with a new one.
        """
        self._guard.check()
        with self._guard:
            self._send()
            self._outbox.wait(self._change_set.sqn, self._is_settled)
            self._outbox.check()
            entries = self._change_set.entries(self._outbox)
            self._guard.become(Life.CLOSED)
        task = self._task
        return task.grant.handle(task.base, (Step(checkpoint_id=task.checkpoint_id, entries=entries),))

    def _send(self) -> None:
        """Hand everything buffered to the producer. Going on after an error would lose a part of it silently."""
        with self._guard:
            changes = self._buffer.take()
            if changes is not None:
                self._change_set.hold(changes)
                self._change_set.send(self._outbox)

    def _is_settled(self) -> bool:
        return self._change_set.all_landed or self._outbox.failure is not None


class Coordinator(Closing):
    """Opens a writer for tasks elsewhere and commits what they return. One thread, one process."""

    def __init__(
        self,
        log: Log,
        name: str,
        *,
        partitions: Sequence[int] | None = None,
        expect: int | None = None,
        opened: Opened | None = None,
        seams: Seams = REAL,
    ) -> None:
        if opened is None:
            opened = open_epoch(log, name, partitions=partitions, expect=expect, seams=seams)
        self._log = log
        self._guard = Guard("coordinator", name, again="Open it again", apart=_APART)
        self._committer = Committer(log, opened, seams=seams)

    @property
    def grant(self) -> Grant:
        """The grant that tasks write under now."""
        return self._committer.grant

    @property
    def last_commit(self) -> LastCommit | None:
        """The writer's last valid commit: where its source resumes."""
        return self._committer.last

    @property
    def position(self) -> int:
        """The ledger position that includes everything that this one was told: for `recover(at_least=)` elsewhere."""
        return self._committer.position

    @property
    def base(self) -> Checkpoint:
        """The checkpoint that the next commit continues."""
        return self._committer.base

    def task(self, checkpoint_id: int | None = None) -> TaskGrant:
        """What the tasks of the next checkpoint need. Without an id it is the last one's and 1.

        Raises CheckpointMismatch if it is not later than the last, ClosedError.
        """
        self._guard.check()
        if checkpoint_id is None:
            checkpoint_id = self.base.id + 1
        check_checkpoint_id(checkpoint_id)
        if checkpoint_id <= self.base.id:
            raise CheckpointMismatch(f"checkpoint {checkpoint_id} is not later than {self.base.id}")
        grant = replace(self.grant, witness=self._committer.position)
        return TaskGrant(grant=grant, base=self.base, checkpoint_id=checkpoint_id)

    def commit(
        self,
        handles: Sequence[Handle] = (),
        metadata: Metadata | None = None,
        *,
        checkpoint_id: int | None = None,
        unique_keys: bool = False,
        final: bool = False,
    ) -> LastCommit:
        """Commit the winners' handles as one checkpoint, all or nothing: theirs, or without any the next one.

        `unique_keys` declares that no key comes from two tasks; otherwise two tasks in one key group are refused with
        OverlappingTasks before anything is written. Raises as `Writer.confirm`; unless it is misuse, the coordinator is
        over then.
        """
        self._guard.check()
        if checkpoint_id is None:
            checkpoint_id = handles[0].checkpoint.id if handles else self.base.id + 1
        if not unique_keys:
            refuse_overlaps(handles)
        for handle in handles:
            check_handle(self.grant, handle, checkpoint_id)  # Quiet ones, which are not listed, too.
        listed = [handle for handle in handles if not handle.is_quiet]
        for handle in listed:
            if handle.nonce != self.grant.nonce:  # An earlier life's, adopted: its chunks may be gone with its broker.
                verify_handle(self._log, handle.continuing(self.base))
        return self._committer.commit(listed, checkpoint_id, metadata or {}, final=final)

    def refresh(self) -> None:
        """Read what other processes of the same job committed under this grant. Raises Fenced if the grant is over,
        Damaged, Unavailable, ClosedError.
        """
        self._guard.check()
        self._committer.refresh()

    def close(self) -> None:
        """Release the clients. Idempotent. Raises ClosedError in a second thread while the owner's lives."""
        if self._guard.life is Life.CLOSED:
            return
        self._guard.check_end()
        self._guard.become(Life.CLOSED)
        if not self._guard.is_inherited:  # The clients belong to the parent; touching them here would hang.
            self._committer.close()


def resume_grant(log: Log, grant: Grant) -> Opened:
    """Clients for a grant that another process of the same job opened. Writes nothing to the ledger.

    Raises Fenced if the grant is over, Damaged, Unavailable.
    """
    ledger = log.newest_ledger()
    try:
        ledger.fold_end()
        live = ledger.fold.live_epoch(grant.epoch)
        if live is None or live.nonce != grant.nonce:
            raise Fenced("the grant is over: another writer took over", writer=grant.writer)  # noqa: TRY301  # cleaned below
        return Opened(grant, ledger, log.kafka.producer())
    except BaseException:
        ledger.close()
        raise
