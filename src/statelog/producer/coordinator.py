"""`Coordinator`: one process opens and commits for tasks; `TaskWriter`: writes one task's changes in another process.

    coordinator = Coordinator(log, "job-1")                  # one process
    task = TaskWriter(producer, coordinator.task(), slot=0)  # any process: a TaskGrant pickles
    task.append_batch(table); handle = task.finish()         # handles pickle, too
    coordinator.commit(handles, {"offset": 42})

Tasks that lose, retry or arrive late are never listed: they cost bytes, and readers never see them.

Invariants:
- A task sends nothing of checkpoint N + 1 before N is confirmed: `task` grants the next checkpoint only.
- A task touches neither the ledger nor the DFS. Its change set has a number of its own within the epoch: the slot,
  which the caller keeps unique among all attempts of all tasks, and random bits. So even a slot used twice mixes
  nothing up.
"""

from collections.abc import Sequence
from dataclasses import replace
from numbers import Integral

import pyarrow as pa

from statelog.environment import current_environment
from statelog.errors import ConfigError
from statelog.kafka.port import Producer
from statelog.log import Log
from statelog.producer.buffer import ChangeBuffer
from statelog.producer.change_set import ChangeSet
from statelog.producer.change_writer import ChangeWriter
from statelog.producer.committer import Committer, GrantHolder, check_handle
from statelog.producer.epoch import Grant, TaskGrant, open_epoch, resume_grant
from statelog.producer.guard import Guard, Guarded, Life
from statelog.producer.outbox import Outbox
from statelog.producer.settings import WriterSettings
from statelog.reading import verify_handle
from statelog.schemas.changes.digest import StateDigest
from statelog.schemas.ledger.handle import Checkpoint, Handle, Step, next_checkpoint_id, refuse_overlaps
from statelog.schemas.ledger.place import ORIGIN, Metadata, Place
from statelog.schemas.ledger.state import LastCommit
from statelog.schemas.names import check_kind, settings_or

_SLOTS = 1 << 31
_SALT_BYTES = 4
_APART = "Commit in the thread that opened it, or hand its grant to another: Coordinator(log, name, grant=...)"
_TASK_AGAIN = "Make a new one for every attempt of a task"
_TASK_APART = "Make one in each, with a slot of its own"


class Coordinator(GrantHolder, Guarded):
    """Opens a writer for tasks in other processes, and commits their handles. One thread, one process.

        >>> with Coordinator(log, "job") as coordinator:
        ...     with TaskWriter(producer, coordinator.task(), slot=0) as task:
        ...         task.put(b"alice", b"2")
        ...         handle = task.finish()
        ...     coordinator.commit([handle], {"offset": 42}).checkpoint.id
        1

    `partitions` and `expect` are those of `Writer`. `grant`: that of an ended coordinator of the same name; the new one
    goes on under it and opens nothing. Raises Fenced if the grant is over, IdentityChanged if it is another log's.
    """

    def __init__(
        self,
        log: Log,
        name: str,
        *,
        partitions: Sequence[int] | None = None,
        expect: int | None = None,
        grant: Grant | None = None,
    ) -> None:
        if grant is None:
            opened = open_epoch(log, name, partitions=partitions, expect=expect)
        else:
            check_kind("grant", grant, Grant, example="coordinator.grant, of the one that has ended")
            if grant.writer != name:
                raise ConfigError(f"the grant is that of {grant.writer}", hint="Name its writer", name=name)
            opened = resume_grant(log, grant)
        self._log = log
        try:
            self._committer = Committer(log, opened, is_shared=True)
            self._guard = Guard("coordinator", name, log=log.name, again="Open it again", apart=_APART)
        except BaseException:
            opened.close()
            raise

    @property
    def base(self) -> Checkpoint:
        """The checkpoint that the next commit continues."""
        return self._committer.base

    @Guarded.turn
    def task(self, checkpoint_id: int | None = None) -> TaskGrant:
        """Return the grant for the tasks of the next checkpoint. The id defaults to the last one plus 1.

        Raises CheckpointMismatch if it is not later than the last, ClosedError.
        """
        checkpoint_id = next_checkpoint_id(checkpoint_id, self.base.id)
        grant = replace(self.grant, witness=self._committer.place)
        return TaskGrant(grant=grant, base=self.base, checkpoint_id=checkpoint_id)

    @Guarded.turn
    def commit(
        self,
        handles: Sequence[Handle] = (),
        metadata: Metadata | None = None,
        *,
        checkpoint_id: int | None = None,
        unique_keys: bool = False,
        final: bool = False,
    ) -> LastCommit:
        """Commit the winners' handles as one checkpoint, all or nothing. The id defaults to theirs, or to the next one.

        `unique_keys` declares that no key comes from two tasks; without it two tasks in one key group raise
        OverlappingTasks before anything is written. Raises Fenced, CommitRefused, OutcomeUnknown, Damaged or
        Unavailable, which end the coordinator, and CheckpointMismatch and other misuse, which do not.
        """
        check_kind("handles", handles, Sequence, example="[task.finish()]")
        for handle in handles:
            check_kind("a handle", handle, Handle, example="what TaskWriter.finish gave")
        if checkpoint_id is None:
            checkpoint_id = handles[0].checkpoint.id if handles else self.base.id + 1
        if not unique_keys:
            refuse_overlaps(handles)
        for handle in handles:
            check_handle(self.grant, handle, checkpoint_id)  # Also the quiet ones, which are not listed.
        listed = [handle for handle in handles if not handle.is_quiet]
        for handle in listed:
            if handle.nonce != self.grant.nonce:  # An earlier life's: its chunks may be lost.
                verify_handle(self._log, handle.continuing(self.base))
        self._committer.begin(listed, checkpoint_id, metadata or {}, final=final)
        return self._committer.finish()

    @Guarded.turn
    def refresh(self, seen: Place = ORIGIN) -> None:
        """Read what other processes of the same job committed under this grant. `seen`: a place that one of them
        observed, for example the `witness` of its grant; the ledger must reach it.

        Raises Fenced if the grant is over, Damaged, Unavailable, ClosedError.
        """
        self._committer.refresh(seen)

    @Guarded.last_turn
    def close(self) -> None:
        """Release the clients. Idempotent. Raises ClosedError in a second thread while the owner's is alive."""
        if self._guard.end():
            self._committer.close()


class TaskWriter(ChangeWriter):
    """Writes one change set for a coordinator. One thread, one process.

        >>> with TaskWriter(producer, coordinator.task(), slot=0) as task:
        ...     task.put(b"alice", b"2")
        ...     handle = task.finish()  # durable, not visible yet; the coordinator commits it

    `slot`: unique among all attempts of all tasks under the grant's epoch, for example Spark's task attempt id.
    `producer`: the caller's, and not closed here; the tasks of a process may use it one after another.
    `is_digested`: keep a `digest` of the appended batches, to compare a repetition with.

    Raises ConfigError for a slot below 0 or from 2^31 on.
    """

    def __init__(
        self,
        producer: Producer,
        task: TaskGrant,
        *,
        slot: int,
        settings: WriterSettings | None = None,
        is_digested: bool = False,
    ) -> None:
        self.digest = StateDigest() if is_digested else None
        check_kind("task", task, TaskGrant, example="coordinator.task()")
        check_kind("slot", slot, Integral, example="slot=0, for the first attempt of the first task")
        if not 0 <= slot < _SLOTS:
            raise ConfigError(f"slot is {slot} and must be from 0 to {_SLOTS - 1}")
        grant, environment = task.grant, current_environment()
        settings = settings_or(settings, WriterSettings())
        self._task = task
        self._outbox = Outbox(producer, grant, settings, clock=environment.clock)
        self._change_set = ChangeSet(
            slot << 8 * _SALT_BYTES | int.from_bytes(environment.nonce()[-_SALT_BYTES:], "big")
        )
        super().__init__(
            Guard("task writer", grant.writer, log=grant.descriptor.name, again=_TASK_AGAIN, apart=_TASK_APART),
            ChangeBuffer(grant.descriptor, grant.value_schema, grant.partitions, settings),
        )

    @Guarded.turn
    def finish(self) -> Handle:
        """Make the changes durable, and return their handle for the coordinator. Raises PersistFailed.

        Any error ends this task writer: write the task's changes again with a new one.
        """
        with self._guard:
            self._send()
            outbox, change_set = self._outbox, self._change_set
            outbox.wait(change_set.sqn, lambda: change_set.all_landed or outbox.failure is not None)
            outbox.check()
            entries, _ = change_set.entries(outbox)
            self._guard.become(Life.CLOSED)
        task = self._task
        return task.grant.handle(task.base, (Step(checkpoint_id=task.checkpoint_id, entries=entries),))

    def _send(self) -> None:
        """Send everything that is buffered. Any error ends the writer: to go on would silently lose a part."""
        with self._guard:
            changes = self._buffer.take()
            if changes is not None:
                if self.digest is not None and isinstance(changes, pa.RecordBatch):
                    self.digest = self.digest.of_changes(changes, self._task.grant.value_schema)
                self._change_set.hold(changes)
                self._change_set.send(self._outbox)

    def _has_uncommitted(self) -> bool:
        return bool(self._buffer.changes) or not self._change_set.is_empty

    def _release(self) -> None:
        """Do nothing: the caller owns the producer."""
