"""The Kafka port: every request of statelog to a broker.

Two implementations, one contract suite (`tests/contract/test_kafka_contract.py`, `test_kafka_records.py`):
`client.ConfluentKafka` on confluent-kafka, and `statelog.testing.MemoryKafka`, its in-memory twin.

Every implementation promises:

- A producer is idempotent and keeps the order of each partition. A *new* producer never has the producer id of one
  that was closed with records in flight, or that has a record of unknown outcome. So none of those records is taken for
  its own.
- A delivery is reported exactly once, to the callback, from inside `poll` or `close`. Unless it is certain, it is
  `UNKNOWN`: the record may be in the log now, or appear there later.
- A reader returns exactly the records of its ranges, in offset order per partition, or raises. It never skips, resets
  or ends early. Gaps in offsets are not errors. Records that cannot be unpacked are reported by their offsets, and only
  inside a range: the caller decides whether they count (`errors.read_past`).
- An output producer that starts fences every earlier one of its name. What it commits is there as a whole, with the
  stored offset, or not at all; a commit that raises OutcomeUnknown is one or the other.
- Nothing here decides anything: no retries of semantics, no validity, no policy.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from statelog.errors import Misuse
from statelog.schemas.outputs.output import Output
from statelog.schemas.topic_policy import TopicDescription, TopicSpec

__all__ = [
    "STALL_TIMEOUT_S",
    "Delivery",
    "DeliveryStatus",
    "GroupOffset",
    "Kafka",
    "OffsetRange",
    "OutputProducer",
    "PartitionFollower",
    "Producer",
    "Reader",
    "Record",
    "TopicDescription",
    "TopicSpec",
    "report_limit_s",
    "with_remedy",
]

STALL_TIMEOUT_S = 30.0
"""How long to wait for a record, or a delivery report, without any progress."""
_GRACE_S = 5.0


class _Range(NamedTuple):
    start: int
    end: int


class OffsetRange(_Range):
    """Half-open: `start` is the first offset, `end` the one after the last.

    Raises Misuse for a negative one: Kafka gives those a special meaning, and clients return them for unknown offsets.
    """

    __slots__ = ()

    def __new__(cls, start: int, end: int) -> "OffsetRange":
        """Check and make."""
        if start < 0 or end < 0:
            hint = "Ask again: an offset below zero is no answer"
            raise Misuse("an offset is negative", hint=hint, start_offset=start, end_offset=end)
        return super().__new__(cls, start, end)


class Record(NamedTuple):
    """One Kafka record, as it was produced. statelog uses neither keys nor headers.

    `timestamp_ms`: when the broker appended it, in milliseconds since 1970; -1 if the topic has the senders' times. It
    is for people: it comes from several machines' clocks, so nothing is decided by it.
    """

    partition: int
    offset: int
    value: bytes
    timestamp_ms: int = -1


class DeliveryStatus(Enum):
    """The known outcome of a record that was sent. No failure is certain: clients send again by themselves, and a
    refused record may be in the log by an earlier try.
    """

    OK = "ok"
    """It is in the log, at `offset`."""
    UNKNOWN = "unknown"
    """It may be in the log now or later."""


class Delivery(NamedTuple):
    """The report on one record. `offset` is -1 unless the status is OK; `reason` is empty if it is OK.

    `latency_s`: the time from the send to the answer, with the client's own retries; 0 if unknown.
    `remedy`: what a person has to do before another try can succeed; empty if another try may succeed as it is.
    """

    status: DeliveryStatus
    offset: int
    reason: str
    latency_s: float = 0.0
    remedy: str = ""


def report_limit_s(producer: "Producer") -> float:
    """Return how long to wait for the report of one record: a little longer than the client's own limit."""
    return min(producer.delivery_timeout_s, STALL_TIMEOUT_S) + _GRACE_S


def with_remedy(delivery: Delivery, hint: str) -> str:
    """Return the hint for a record of unknown outcome, behind the delivery's remedy, if it has one."""
    return f"{delivery.remedy}. Then: {hint[:1].lower()}{hint[1:]}" if delivery.remedy else hint


class Producer(Protocol):
    """One idempotent producer instance. Owned by one thread; never shared across a fork."""

    def connect(self) -> None:
        """Begin to connect, and wait for nothing. Without it the first send connects, and waits. Writes no record.

        Raises ConfigError, ClosedError.
        """

    def send(self, topic: str, partition: int, value: bytes, on_delivery: Callable[[Delivery], None]) -> bool:
        """Queue a record. Return False, with nothing queued, if the queue is full: poll and try again.

        Raises ValueTooLarge if the record exceeds the client's limit, NotFound, BrokerUnavailable if the client is
        dead, ClosedError; then nothing was queued. `on_delivery` must not raise.
        """
        ...

    def poll(self, timeout_s: float) -> int:
        """Run the callbacks that are due, waiting up to `timeout_s` for the first. Return how many ran."""
        ...

    @property
    def in_flight(self) -> int:
        """How many queued or sent records have no report yet."""
        ...

    @property
    def is_sound(self) -> bool:
        """Whether its client has reported no error by the last poll. Transient errors count, too: this is for callers
        that have sent nothing yet, and can use a new producer.
        """
        ...

    @property
    def delivery_timeout_s(self) -> float:
        """After this many seconds every record has a report. It is long, for slow links: callers that wait for one
        record, or for any report, stop earlier, and treat the outcome as unknown.
        """
        ...

    def close(self) -> None:
        """Report whatever is in flight as UNKNOWN and release the client, without waiting. Idempotent."""


class GroupOffset(NamedTuple):
    """The offset that a group has stored for a partition, and its text; -1 if there is none."""

    offset: int = -1
    text: str = ""


class OutputProducer(Protocol):
    """Sends records to any topics, and stores with them how far that is: a group's offset of one topic's partition 0.

    With transactions, readers with `isolation.level=read_committed` see the records of a commit once and together.
    Without, the offset is stored once the records are there. Owned by one thread; never shared across a fork.

    Each method raises Fenced once a later producer of its name has started, and ConfigError, Unavailable, ClosedError.
    """

    def start(self) -> GroupOffset:
        """Fence every earlier producer of this name, end its transaction, and return the offset that is stored then.

        Called first, and once.
        """
        ...

    def begin(self) -> None:
        """Begin a transaction. Writes nothing."""

    def send(self, record: Output) -> None:
        """Queue a record of the transaction; wait while the queue is full. Raises ValueTooLarge."""

    def commit(self, offset: int, text: str = "") -> None:
        """Wait until every record is there, store the offset, and commit the transaction.

        Raises NotFound, ConfigError, ValueTooLarge if a topic refuses a record: nothing was committed. Raises
        OutcomeUnknown if the transaction was committed or not: close this producer, and start another.
        """

    def abort(self) -> None:
        """Abort the transaction, if one has begun."""

    def close(self) -> None:
        """Abort as `abort` does, without its errors, and release the client. Idempotent."""


class Reader(Protocol):
    """Reads one topic. Owned by one thread; keeps its connection between reads."""

    def read(self, ranges: Mapping[int, OffsetRange], *, stall_timeout_s: float) -> Iterator[Record]:
        """Yield every record of `ranges`, by offset within a partition, partitions interleaved freely.

        Empty ranges yield nothing. At most one `read` of a reader is active; abandoning the iterator is fine.

        Raises OffsetGone if a start lies below the log start, BeyondEnd if an end lies above the log end,
        BrokerUnavailable after `stall_timeout_s` without progress. Raises Unreadable for records that the client cannot
        unpack, after the records before them; another read may go on behind them.
        """
        ...

    def close(self) -> None:
        """Release the client. Idempotent."""


class PartitionFollower(Protocol):
    """Follows partition 0 of one topic from an offset on: its fetch waits at the broker. One thread at a time polls.

    It may not report a deleted topic: ask for its offsets.
    """

    @property
    def position(self) -> int:
        """The next offset: every record below it was returned."""
        ...

    @property
    def is_sound(self) -> bool:
        """Whether its client reported no error, for example a lost broker, in the last poll."""
        ...

    def poll(self, timeout_s: float) -> Sequence[Record]:
        """Return the next records, by offset; none if none came within `timeout_s`.

        Raises OffsetGone if the log starts above its position, BeyondEnd if it ends below, Unreadable, NotFound,
        BrokerUnavailable, ClosedError. Any error ends it: make a new one.
        """
        ...

    def close(self) -> None:
        """Release the client. Idempotent."""


class Kafka(Protocol):
    """One cluster, as seen by one process."""

    def cluster_id(self) -> str:
        """Return the cluster's own id. Raises BrokerUnavailable."""
        ...

    def describe_topic(self, topic: str) -> TopicDescription | None:
        """Describe the topic as it is now; None if there is none. Raises BrokerUnavailable."""
        ...

    def identify(self, topics: Sequence[str]) -> tuple[str, list[TopicDescription | None]]:
        """Return the cluster's own id, and these topics as they are now, in one request. Raises BrokerUnavailable."""
        ...

    def create_topic(self, spec: TopicSpec) -> None:
        """Create a topic, and wait until its leaders are known. Raises AlreadyExists, BrokerUnavailable."""

    def delete_topic(self, topic: str) -> None:
        """Delete a topic; a missing one counts as deleted. Raises BrokerUnavailable."""

    def offsets(
        self, topic: str, partitions: Sequence[int], *, at_least: Mapping[int, int] | None = None
    ) -> dict[int, OffsetRange]:
        """Ask for log start and log end of each partition now, uncommitted records included.

        `at_least`: ends that a commit or a snapshot shows. A lower end is asked for again, because a deposed leader
        answers with its own. If the time ends, it is returned, and records were lost.
        Raises NotFound if the topic or a partition is missing, BrokerUnavailable.
        """
        ...

    def delete_records(self, topic: str, before: Mapping[int, int]) -> dict[int, int]:
        """Truncate: delete all records below the offsets in `before`. Return the log starts afterwards.

        An offset at or below the log start changes nothing. Raises Misuse for a negative offset (Kafka would read it as
        "all"), BeyondEnd for one above the log end, BrokerUnavailable.
        """
        ...

    def publish_offset(self, group: str, topic: str, partition: int, offset: int, metadata: str = "") -> None:
        """Commit a group offset, for Kafka's own lag tools, with a text. Raises BrokerUnavailable."""

    def published(self, group: str, topic: str, partition: int) -> GroupOffset:
        """Return the group's offset and text, when no transaction is about to change it. Raises BrokerUnavailable."""
        ...

    def producer(self) -> Producer:
        """Make an idempotent producer."""
        ...

    def output_producer(self, name: str, topic: str, *, is_transactional: bool = True) -> OutputProducer:
        """Make an output producer. `name`: of its transactions, and of the group that stores an offset of `topic`."""
        ...

    def reader(self, topic: str) -> Reader:
        """Make a reader of one topic."""
        ...

    def follower(self, topic: str, offset: int) -> PartitionFollower:
        """Make a follower of partition 0 of one topic, from an offset on."""
        ...

    def close(self) -> None:
        """Release all clients that this object holds itself (not its producers and readers). Idempotent."""
