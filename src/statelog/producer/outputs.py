"""Messages that leave with a writer's commits. `OutputWriter`: the part of a `Writer` that takes them. `OutputMaker`:
makes them, and refuses those that could not be published. `OutputBuffer`: those that are in no chunk yet, in order.

Invariants:
- A message that was made has a topic on the log's own cluster, and fits in one of the log's records.
- A topic is looked up once, and again for a partition that it did not have.
- The log's own topics are refused: a stranger's record there is void, but takes up an offset.
"""

from abc import abstractmethod
from collections.abc import Sequence

from statelog.errors import InvalidChange, NotFound, ValueTooLarge
from statelog.log import Log
from statelog.producer.guard import Guarded
from statelog.producer.settings import WriterSettings, tuning_of
from statelog.schemas.outputs.batch import output_bytes_max
from statelog.schemas.outputs.output import Headers, Output, Text, make_output


class OutputMaker:
    """Makes messages for one log. Belongs to the thread of its owner."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._bytes_max = output_bytes_max(log.descriptor.record_bytes_max)
        self._partitions: dict[str, int] = {}
        """The number of partitions of each known topic."""

    def make(
        self,
        topic: str,
        value: Text | None,
        key: Text | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
    ) -> Output:
        """Make a message. Raises InvalidChange, NotFound, ValueTooLarge, Unavailable."""
        output = make_output(topic, value, key, headers, partition)
        known = self._partitions.get(output.topic, 0)
        if not known or (output.partition is not None and output.partition >= known):
            self._look_up(output)
        if output.size_bytes > self._bytes_max:
            raise ValueTooLarge(
                "a message is larger than a chunk may be",
                hint="Store the large part elsewhere and send its address, or make a log with a larger"
                " max.message.bytes, for messages of up to 15 MiB",
                topic=output.topic,
                size_bytes=output.size_bytes,
                max_bytes=self._bytes_max,
            )
        return output

    def _look_up(self, output: Output) -> None:
        topic, log = output.topic, self._log
        if topic in (log.data_topic, log.ledger_topic):
            raise InvalidChange("a message is sent to a topic of its own log", hint="Choose another one", topic=topic)
        found = log.kafka.describe_topic(topic)
        if found is None:
            hint = "Make the topic first, on the cluster of the log; or correct its name"
            raise NotFound(f"there is no topic {topic}", hint=hint, topic=topic, log=log.name)
        if output.partition is not None and output.partition >= found.partitions:
            raise InvalidChange(
                "a message is sent to a partition that its topic does not have",
                hint=f"Its partitions are 0 to {found.partitions - 1}",
                topic=topic,
                partition=output.partition,
            )
        self._partitions[topic] = found.partitions


class OutputBuffer:
    """Collects messages until `take` returns them. `roll_bytes`: at this size they are sent ahead."""

    __slots__ = ("_roll_bytes", "messages", "size_bytes")

    def __init__(self, roll_bytes: int) -> None:
        self._roll_bytes = roll_bytes
        self.messages: list[Output] = []
        """To read; a commit without messages calls nothing here."""
        self.size_bytes = 0
        """About their size in a chunk."""

    def put(self, output: Output) -> bool:
        """Buffer a message. Return whether there is enough to send."""
        self.messages.append(output)
        self.size_bytes += output.size_bytes
        return self.size_bytes >= self._roll_bytes

    def take(self) -> tuple[list[Output], int]:
        """Empty the buffer. Return the messages in order, and their size."""
        taken = self.messages, self.size_bytes
        self.messages, self.size_bytes = [], 0
        return taken


class OutputWriter(Guarded):
    """A mixin of `Writer`: it makes messages, and buffers them."""

    _maker: OutputMaker
    _outputs: OutputBuffer

    def _take_outputs_of(self, log: Log, settings: WriterSettings) -> None:
        self._maker = OutputMaker(log)
        self._outputs = OutputBuffer(tuning_of(settings).chunk_bytes)

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

        The value is bytes, text in UTF-8, or None for a tombstone. Without a `partition` the key chooses one. The table
        that owns the writer's name publishes what is committed, in the order of the commits and of these calls.

        Raises InvalidChange, NotFound for a topic that does not exist, ValueTooLarge, Unavailable, ClosedError;
        PersistFailed if earlier chunks failed.
        """
        self._push(self._maker.make(topic, value, key, headers, partition))

    @Guarded.turn
    def make_output(
        self,
        topic: str,
        value: Text | None,
        key: Text | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
    ) -> Output:
        """Make a message for `send_output`, with the checks of `send`, and send nothing. Raises as `send`."""
        return self._maker.make(topic, value, key, headers, partition)

    @Guarded.turn
    def send_output(self, output: Output) -> None:
        """Send a message that `make_output` of this writer, or an earlier life of it, made. Raises as `send`."""
        self._push(output)

    def _push(self, output: Output) -> None:
        """Buffer a message. Once there are enough for a chunk, send all that is buffered."""
        if self._outputs.put(output):
            self._send()

    @abstractmethod
    def _send(self) -> None:
        """Send everything that is buffered."""


def cut_outputs(outputs: Sequence[Output], most_bytes: int) -> list[Sequence[Output]]:
    """Cut messages, in order, into pieces of at most so many bytes; a larger message is a piece of its own."""
    pieces: list[Sequence[Output]] = []
    start, size_bytes = 0, 0
    for at, output in enumerate(outputs):
        size = output.size_bytes
        if at > start and size_bytes + size > most_bytes:
            pieces.append(outputs[start:at])
            start, size_bytes = at, 0
        size_bytes += size
    return [*pieces, outputs[start:]] if outputs else []
