"""The Kafka port: everything that statelog asks of a broker.

Two implementations, one contract suite (`tests/contract/test_kafka_contract.py`, `test_kafka_records.py`):
`client.ConfluentKafka` on confluent-kafka, and `statelog.testing.MemoryKafka`, its in-memory twin.

What every implementation promises:

- A producer is idempotent and keeps the order of each partition. A *new* producer never has the producer id of one
  that was closed with records in flight, or has one of unknown outcome: none of those can be mistaken for its own.
- A delivery is reported exactly once, to the callback, from inside `poll` or `close`. What is not a clear yes is
  `UNKNOWN`: it may be in the log now, or appear there later.
- A reader returns exactly the records of the ranges it was given, in offset order per partition, or raises.
  It never skips, never resets, never ends early. Gaps in offsets are not errors. What cannot be unpacked is reported by
  its offsets, and only if it lies in a range: the caller decides whether it counts (`errors.read_past`).
- Nothing here decides anything: no retries of semantics, no validity, no policy.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from statelog.errors import Misuse
from statelog.schemas.topic_policy import TopicDescription, TopicSpec

__all__ = [
    "STALL_TIMEOUT_S",
    "Delivery",
    "DeliveryStatus",
    "Kafka",
    "OffsetRange",
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
"""How long a record, or the report of one, is waited for without a sign of life."""
_GRACE_S = 5.0


class _Range(NamedTuple):
    start: int
    end: int


class OffsetRange(_Range):
    """Half-open: `start` is the first offset, `end` the one after the last.

    Raises Misuse for a negative one: Kafka reads those as names of places, and clients give them where they know none.
    """

    __slots__ = ()

    def __new__(cls, start: int, end: int) -> "OffsetRange":
        """Check and make."""
        if start < 0 or end < 0:
            hint = "An offset below zero is no answer: ask again"
            raise Misuse("an offset is negative", hint=hint, start_offset=start, end_offset=end)
        return super().__new__(cls, start, end)


class Record(NamedTuple):
    """One Kafka record, as it was produced. statelog uses neither keys nor headers.

    `timestamp_ms` is when the broker appended it, in milliseconds since 1970, or -1 if the topic bears the times of who
    sends instead: for ages that people look at. Several machines' clocks stand behind it: nothing is decided by it.
    """

    partition: int
    offset: int
    value: bytes
    timestamp_ms: int = -1


class DeliveryStatus(Enum):
    """What is known of a record that was sent. Nobody says that it is not in the log and never will be: a client sends
    again by itself, and what was refused may be in the log by an earlier try.
    """

    OK = "ok"
    """It is in the log, at `offset`."""
    UNKNOWN = "unknown"
    """It may be in the log now or later."""


class Delivery(NamedTuple):
    """The report on one record. `offset` is -1 unless the status is OK; `reason` is empty if it is OK.

    `latency_s` is how long the client had it, from the send to the answer, its own retries included; 0 if unknown.
    `remedy` is what a person has to do before another try can end better; empty where trying again may do.
    """

    status: DeliveryStatus
    offset: int
    reason: str
    latency_s: float = 0.0
    remedy: str = ""


def report_limit_s(producer: "Producer") -> float:
    """How long the report of one record is waited for: beyond the client's limit, so that none is missed by a hair."""
    return min(producer.delivery_timeout_s, STALL_TIMEOUT_S) + _GRACE_S


def with_remedy(delivery: Delivery, hint: str) -> str:
    """The hint for a record whose outcome is unknown, behind what a person has to do first."""
    return f"{delivery.remedy}. Then: {hint[:1].lower()}{hint[1:]}" if delivery.remedy else hint


class Producer(Protocol):
    """One idempotent producer instance. Owned by one thread; never shared across a fork."""

    def connect(self) -> None:
        """Begin to connect, and wait for nothing; the first send does it otherwise, and waits. Writes no record.

        Raises ConfigError, ClosedError.
        """

    def send(self, topic: str, partition: int, value: bytes, on_delivery: Callable[[Delivery], None]) -> bool:
        """Queue a record. Returns False, with nothing queued, if the queue is full: poll and try again.

        Raises ValueTooLarge if the record exceeds what the client may send, NotFound, BrokerUnavailable if the client
        is dead, ClosedError; then nothing was queued. `on_delivery` must not raise.
        """
        ...

    def poll(self, timeout_s: float) -> int:
        """Run the callbacks that are due, waiting up to `timeout_s` for the first. Returns how many ran."""
        ...

    @property
    def in_flight(self) -> int:
        """Records queued or sent, whose delivery was not reported yet."""
        ...

    @property
    def is_sound(self) -> bool:
        """Whether its client has told of no error by the last poll. One that recovers by itself counts, too: this is
        for who has sent nothing yet, and may as well take a new one.
        """
        ...

    @property
    def delivery_timeout_s(self) -> float:
        """After this many seconds every record has been reported. It is long, for slow links: who waits for one record,
        or for any report at all, gives up earlier, and takes the record's outcome for unknown.
        """
        ...

    def close(self) -> None:
        """Report whatever is in flight as UNKNOWN and release the client, without waiting. Idempotent."""


class Reader(Protocol):
    """Reads one topic. Owned by one thread; keeps its connection between reads."""

    def read(self, ranges: Mapping[int, OffsetRange], *, stall_timeout_s: float) -> Iterator[Record]:
        """Yield every record of `ranges`, by offset within a partition, partitions interleaved freely.

        Empty ranges yield nothing. At most one `read` of a reader is active; abandoning the iterator is fine.
        Raises OffsetGone if a start lies below the log start, BeyondEnd if an end lies above the log end,
        BrokerUnavailable when `stall_timeout_s` pass without any progress; and Unreadable, after the records before
        them, for offsets that the client cannot unpack: another read goes on behind those.
        """
        ...

    def close(self) -> None:
        """Release the client. Idempotent."""


class PartitionFollower(Protocol):
    """Follows partition 0 of one topic from an offset on: its fetch waits at the broker. One thread at a time polls.

    Where the topic is gone it may wait in silence: a question for offsets tells.
    """

    @property
    def position(self) -> int:
        """The next offset: every record below it was returned."""
        ...

    @property
    def is_sound(self) -> bool:
        """Whether its client has told of no error in the last poll, such as of a broker that went away."""
        ...

    def poll(self, timeout_s: float) -> Sequence[Record]:
        """Return the next records, by offset; wait for the first for at most `timeout_s`, and return none if none came.

        Raises OffsetGone if the log starts above its place, BeyondEnd if it ends below, Unreadable, NotFound,
        BrokerUnavailable, ClosedError. Any error ends it: make a new one.
        """
        ...

    def close(self) -> None:
        """Release the client. Idempotent."""


class Kafka(Protocol):
    """One cluster, as seen by one process."""

    def cluster_id(self) -> str:
        """The cluster's own id. Raises BrokerUnavailable."""
        ...

    def describe_topic(self, topic: str) -> TopicDescription | None:
        """The topic as it is now, or None if there is none. Raises BrokerUnavailable."""
        ...

    def identify(self, topics: Sequence[str]) -> tuple[str, list[TopicDescription | None]]:
        """The cluster's own id, and these topics as they are now, asked at once. Raises BrokerUnavailable."""
        ...

    def create_topic(self, spec: TopicSpec) -> None:
        """Create a topic and wait until its leaders are known. Raises AlreadyExists, BrokerUnavailable."""

    def delete_topic(self, topic: str) -> None:
        """Delete a topic; one that is not there counts as deleted. Raises BrokerUnavailable."""

    def offsets(
        self, topic: str, partitions: Sequence[int], *, at_least: Mapping[int, int] | None = None
    ) -> dict[int, OffsetRange]:
        """Log start and log end of each partition, asked of the broker now, uncommitted reads included.

        `at_least` are ends that a commit or a snapshot says were there: an answer below is asked again until the time
        is over, because a leader that was deposed answers with its own; then it is given, and something was lost.
        Raises NotFound if the topic or a partition is not there, BrokerUnavailable.
        """
        ...

    def delete_records(self, topic: str, before: Mapping[int, int]) -> dict[int, int]:
        """Truncate: drop all records below the offsets in `before`. Returns the log starts afterwards.

        An offset at or below the log start changes nothing. Raises Misuse for a negative offset (Kafka would
        read it as "all"), BeyondEnd for one above the log end, BrokerUnavailable.
        """
        ...

    def publish_offset(self, group: str, topic: str, partition: int, offset: int, metadata: str = "") -> None:
        """Commit a group offset, for Kafka's own lag tools, and a text beside it. Raises BrokerUnavailable."""

    def published(self, group: str, topic: str, partition: int) -> str:
        """The text beside the group's offset; empty if there is none. Raises BrokerUnavailable."""
        ...

    def producer(self) -> Producer:
        """A new idempotent producer."""
        ...

    def reader(self, topic: str) -> Reader:
        """A new reader of one topic."""
        ...

    def follower(self, topic: str, offset: int) -> PartitionFollower:
        """A new follower of partition 0 of one topic, from an offset on."""
        ...

    def close(self) -> None:
        """Release all clients that this object holds itself (not its producers and readers). Idempotent."""
