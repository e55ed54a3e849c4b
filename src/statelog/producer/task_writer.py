"""`TaskWriter`: writes one task's changes for a coordinator elsewhere. Touches neither ledger nor DFS.

    with TaskWriter(producer, task, slot=0) as writer:
        writer.put(b"key", b"value")
        handle = writer.finish()    # durable; the coordinator commits it

Invariants:
- A task's change set has its own number within the epoch: the slot, which the caller keeps unique among all attempts of
  all tasks, and random bits below it, so that even a slot used twice mixes nothing up.
- The producer is the caller's, and is not closed here.
"""

from statelog.environment import current_environment
from statelog.errors import ConfigError
from statelog.producer.change_writer import ChangeWriter
from statelog.producer.commits.grant import TaskGrant
from statelog.producer.guard import Guard, Guarded, Life
from statelog.producer.sending.buffer import ChangeBuffer
from statelog.producer.sending.change_set import ChangeSet
from statelog.producer.sending.outbox import Outbox
from statelog.producer.settings import WriterSettings
from statelog.schemas.ledger.handle import Handle, Step
from statelog.schemas.names import data_topic
from statelog.storage.kafka import Producer

__all__ = ["TaskWriter"]

_SLOTS = 1 << 31
_SALT_BYTES = 4
_AGAIN = "Make a new one for every attempt of a task"
_APART = "Make one in each, with a slot of its own"


class TaskWriter(ChangeWriter):
    """Writes one change set for a coordinator. One thread, one process.

        >>> with TaskWriter(producer, coordinator.task(), slot=0) as task:
        ...     task.put(b"alice", b"2")
        ...     handle = task.finish()  # durable, not visible yet; the coordinator commits it

    `slot` is unique among all attempts of all tasks under the grant's epoch, for example Spark's task attempt id.
    `producer` is the caller's: the tasks of a process may use it one after another. It is not closed here.

    Raises ConfigError for a slot below 0 or from 2^31 on.
    """

    def __init__(
        self,
        producer: Producer,
        task: TaskGrant,
        *,
        slot: int,
        settings: WriterSettings | None = None,
    ) -> None:
        if not 0 <= slot < _SLOTS:
            raise ConfigError(f"slot is {slot} and must be from 0 to {_SLOTS - 1}")
        grant, environment = task.grant, current_environment()
        settings = settings or WriterSettings()
        self._task = task
        self._outbox = Outbox(producer, data_topic(grant.descriptor.name), grant, settings, clock=environment.clock)
        self._change_set = ChangeSet(
            slot << 8 * _SALT_BYTES | int.from_bytes(environment.nonce()[-_SALT_BYTES:], "big")
        )
        super().__init__(
            Guard("task writer", grant.writer, again=_AGAIN, apart=_APART),
            ChangeBuffer(grant.descriptor, grant.value_schema, grant.partitions, settings),
        )

    @Guarded.turn
    def finish(self) -> Handle:
        """Make the changes durable, and return their handle for the coordinator. Raises PersistFailed.

        Any error ends this task writer: write the task's changes again with a new one.
        """
        with self._guard:
            self._send()
            self._outbox.wait(self._change_set.sqn, self._is_settled)
            self._outbox.check()
            entries = self._change_set.entries(self._outbox)
            self._guard.become(Life.CLOSED)
        task = self._task
        return task.grant.handle(task.base, (Step(checkpoint_id=task.checkpoint_id, entries=entries),))

    def _send(self) -> None:
        """Hand everything buffered to the producer. Going on after an error would silently lose part of it."""
        with self._guard:
            changes = self._buffer.take()
            if changes is not None:
                self._change_set.hold(changes)
                self._change_set.send(self._outbox)

    def _is_settled(self) -> bool:
        return self._change_set.all_landed or self._outbox.failure is not None

    def _has_uncommitted(self) -> bool:
        return bool(self._buffer.changes) or not self._change_set.is_empty

    def _release(self) -> None:
        """Nothing: the producer is the caller's."""
