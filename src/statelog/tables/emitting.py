"""`Emitting`: the methods of a table that are about messages for other topics. `TableOutputs` has the rules.

    table.send("large-orders", value, key=key)     in the next commit, and published behind it

Invariant: a message counts as a change of the table, but for scans: a loop over the table may send.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from statelog.log.options import K, V
from statelog.producer import Writer
from statelog.producer.guard import Guarded
from statelog.schemas.outputs.output import Headers, Text
from statelog.tables.layers import Layers
from statelog.tables.outputs import TableOutputs
from statelog.tables.scheduler import CommitScheduler
from statelog.tables.statistics import TableStatistics
from statelog.tables.timers import Timed


class Emitting(Timed[K, V]):
    """A table that sends messages, and whose rows may expire. Belongs to one thread."""

    _outputs: TableOutputs
    _writer: Writer
    _layers: Layers
    _commits: CommitScheduler
    _count: int
    """How often it was changed, and has sent."""
    _sends: int
    """How often it has sent."""

    @abstractmethod
    def _failing(self, work: Callable[[], Any]) -> Any:
        """Run `work`, and end the table with any error but a refusal."""

    @Guarded.turn
    def send(
        self,
        topic: str,
        value: Text | None,
        key: Text | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
    ) -> None:
        """Send a message to a topic of the log's cluster: it is part of the next commit, or never was.

            table.send("large-orders", b"123", key=b"alice")

        Readers with `isolation.level=read_committed` see it once, some milliseconds behind that commit, in the order of
        this table's messages to the partition. A transaction that raises and a rollback undo it.

        The value is bytes, text in UTF-8, or None for a tombstone; `headers` is a mapping or a sequence of pairs.
        Without a `partition` the key chooses one, as for Java's producers.

        Raises InvalidChange, NotFound for a topic that does not exist, ValueTooLarge, Unavailable, ClosedError; nothing
        is sent then.
        """
        output = self._writer.make_output(topic, value, key, headers, partition)
        self._count += 1
        self._sends += 1
        self._layers.active.outputs.append((self._count, output))
        self._commits.weigh(output.size_bytes)

    @Guarded.turn
    def check_outputs(self) -> None:
        """Raise the error that ended the publishing of what it sent, if any; that ends the table, too."""
        self._failing(self._outputs.check)

    @property
    def _counts(self) -> tuple[int, int]:
        """The number of changes, messages and commits, and that of messages alone."""
        return self._count + self._commits.applied, self._sends

    @Guarded.turn
    def statistics(self) -> TableStatistics:
        """Return what the table still has to do: rows to delete because they are due, and messages to publish."""
        left, seconds = self.unpublished_messages, self.unpublished_s
        return replace(self._expiry.statistics(), unpublished_messages=left, unpublished_s=seconds)

    @property
    def unpublished_messages(self) -> int:
        """How many committed messages of this table are not published yet. On any thread."""
        found = self._outputs.statistics()
        return 0 if found is None else found.unpublished_messages

    @property
    def unpublished_s(self) -> float:
        """Seconds since the oldest commit whose messages are not published yet; 0.0 if none is left. On any thread."""
        found = self._outputs.statistics()
        return 0.0 if found is None else found.oldest_s
