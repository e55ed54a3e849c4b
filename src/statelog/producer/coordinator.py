"""`Coordinator`: one process opens and commits for tasks that write in other processes.

    coordinator = Coordinator(log, "job-1")                  # one process
    task = TaskWriter(producer, coordinator.task(), slot=0)  # any process: a TaskGrant pickles
    task.append_batch(table); handle = task.finish()         # handles pickle, too
    coordinator.commit(handles, {"offset": 42})

Tasks that lose, retry or arrive late are never listed: they cost bytes, and readers never see them.

Invariants:
- A task sends nothing of checkpoint N + 1 before N is confirmed: `task` grants the next checkpoint only.
"""

from collections.abc import Sequence
from dataclasses import replace

from statelog.producer.commits.committer import Committer
from statelog.producer.commits.grant import Grant, TaskGrant, check_handle, next_checkpoint_id, refuse_overlaps
from statelog.producer.commits.opening import open_epoch, resume_grant
from statelog.producer.guard import Guard, Guarded
from statelog.schemas.ledger.handle import Checkpoint, Handle
from statelog.schemas.ledger.place import Metadata, Place
from statelog.schemas.ledger.state import LastCommit
from statelog.storage.log.log import Log
from statelog.storage.replay import verify_handle

__all__ = ["Coordinator"]

_APART = "Commit in the thread that opened it, or hand its grant to another: Coordinator(log, name, grant=...)"


class Coordinator(Guarded):
    """Opens a writer for tasks in other processes, and commits their handles. One thread, one process.

        >>> with Coordinator(log, "job") as coordinator:
        ...     with TaskWriter(producer, coordinator.task(), slot=0) as task:
        ...         task.put(b"alice", b"2")
        ...         handle = task.finish()
        ...     coordinator.commit([handle], {"offset": 42}).checkpoint.id
        1

    `partitions` and `expect` are those of `Writer`. With the `grant` of a coordinator of the same name whose process
    has ended, it goes on under that grant and opens nothing; raises Fenced if the grant is over.
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
            opened = resume_grant(log, grant)
        self._log = log
        try:
            self._committer = Committer(log, opened)
            self._guard = Guard("coordinator", name, again="Open it again", apart=_APART)
        except BaseException:
            opened.close()
            raise

    @property
    def grant(self) -> Grant:
        """The grant that tasks write under."""
        return self._committer.grant

    @property
    def last_commit(self) -> LastCommit | None:
        """The writer's last valid commit: where its source resumes. None before the first."""
        return self._committer.last

    @property
    def position(self) -> int:
        """A ledger position that includes all that this coordinator knows."""
        return self._committer.position

    @property
    def place(self) -> Place:
        """That position with the ledger record below it: for `recover(at_least=)` elsewhere, and for what is kept."""
        return self._committer.place

    @property
    def base(self) -> Checkpoint:
        """The checkpoint that the next commit continues."""
        return self._committer.base

    @Guarded.turn
    def task(self, checkpoint_id: int | None = None) -> TaskGrant:
        """What the tasks of the next checkpoint need. The id defaults to the last one plus 1.

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

        `unique_keys` declares that no key comes from two tasks; without it two tasks in one key group are refused with
        OverlappingTasks before anything is written. Raises as `Writer.confirm`; any error but misuse ends the
        coordinator.
        """
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

    @Guarded.turn
    def refresh(self) -> None:
        """Read what other processes of the same job committed under this grant.

        Raises Fenced if the grant is over, Damaged, Unavailable, ClosedError.
        """
        self._committer.refresh()

    @Guarded.last_turn
    def close(self) -> None:
        """Release the clients. Idempotent. Raises ClosedError in a second thread while the owner's is alive."""
        if self._guard.end():
            self._committer.close()
