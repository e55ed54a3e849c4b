"""The in-memory twin of the Kafka port, for tests and for simulations of whole systems.

`MemoryKafka` is one process' view of a shared `MemoryCluster`; `join` gives another process its own view. It is thread-
safe and deterministic: records are appended and reported when their producer polls, and no call ever waits. The same
contract suite holds it to what the real client does. It owns no state of the cluster.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence

from statelog.schemas.errors import BeyondEnd, ClosedError, Misuse, ValueTooLarge
from statelog.storage.kafka import Delivery, DeliveryStatus, OffsetRange, Record, TopicDescription, TopicSpec
from statelog.storage.kafka_cluster import MemoryCluster, Sending
from statelog.storage.kafka_config import MAX_MESSAGE_BYTES
from statelog.storage.kafka_errors import check_range
from statelog.storage.kafka_faults import Faults

__all__ = ["MemoryKafka", "MemoryProducer", "MemoryReader"]

_CLOSED = Delivery(DeliveryStatus.UNKNOWN, -1, "the producer was closed before the broker answered")
Idle = Callable[[float], None]


def _do_not_wait(timeout_s: float) -> None:
    """Let no time pass: the caller's clock is its own business."""


class MemoryKafka:
    """One process' view of an in-memory cluster; implements `kafka.Kafka`.

    `idle` is called with the time-out of a poll that found nothing: a simulation advances its clock there, a test with
    threads sleeps. `queue_limit` bounds the records that one producer may have in flight.
    """

    def __init__(
        self,
        *,
        faults: Faults | None = None,
        cluster: MemoryCluster | None = None,
        idle: Idle = _do_not_wait,
        queue_limit: int = 100_000,
        delivery_timeout_s: float = 35.0,
    ) -> None:
        self.cluster = cluster if cluster is not None else MemoryCluster(faults=faults)
        self._idle = idle
        self._queue_limit = queue_limit
        self._delivery_timeout_s = delivery_timeout_s
        self._is_closed = False

    def join(self, *, idle: Idle | None = None) -> "MemoryKafka":
        """Another process' view of the same cluster."""
        return MemoryKafka(
            cluster=self.cluster,
            idle=self._idle if idle is None else idle,
            queue_limit=self._queue_limit,
            delivery_timeout_s=self._delivery_timeout_s,
        )

    def cluster_id(self) -> str:
        """The cluster's own id. Raises BrokerUnavailable while it is down."""
        return self._open().cluster_id

    def describe_topic(self, topic: str) -> TopicDescription | None:
        """The topic as it is now, or None if there is none."""
        with self.cluster.lock:
            return self._open().describe(topic)

    def create_topic(self, spec: TopicSpec) -> None:
        """Create a topic. Raises AlreadyExists."""
        with self.cluster.lock:
            self._open().create(spec)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic; one that is not there counts as deleted."""
        with self.cluster.lock:
            self._open().delete(topic)

    def offsets(self, topic: str, partitions: Sequence[int]) -> dict[int, OffsetRange]:
        """Log start and log end of each partition. Raises NotFound."""
        with self.cluster.lock:
            return {p: self._open().available(topic, p) for p in partitions}

    def delete_records(self, topic: str, before: Mapping[int, int]) -> dict[int, int]:
        """Truncate below the offsets in `before`; returns the log starts. Raises Misuse, BeyondEnd, NotFound."""
        if any(offset < 0 for offset in before.values()):
            raise Misuse("an offset is negative", hint="Kafka would read it as 'everything'", topic=topic)
        with self.cluster.lock:
            cluster = self._open()
            for partition, offset in before.items():
                end = cluster.log(topic, partition).end
                if offset > end:
                    raise BeyondEnd(
                        f"{topic}[{partition}] ends below the offset to truncate to",
                        topic=topic, partition=partition, offset=offset, log_end=end,
                    )  # fmt: skip
            for partition, offset in before.items():
                cluster.truncate(topic, partition, offset)
            return {p: cluster.log(topic, p).start for p in before}

    def publish_offset(self, group: str, topic: str, partition: int, offset: int) -> None:
        """Note a group offset in the cluster's `published`. Raises NotFound."""
        with self.cluster.lock:
            self._open().log(topic, partition)
            self.cluster.published[group, topic, partition] = offset

    def producer(self) -> "MemoryProducer":
        """A new idempotent producer."""
        self._check_open()
        return MemoryProducer(self.cluster, self._idle, self._queue_limit, self._delivery_timeout_s)

    def reader(self, topic: str) -> "MemoryReader":
        """A new reader of one topic."""
        self._check_open()
        return MemoryReader(self.cluster, topic)

    def close(self) -> None:
        """Refuse further use through this view; the cluster and its other views live on. Idempotent."""
        self._is_closed = True

    def _open(self) -> MemoryCluster:
        self._check_open()
        self.cluster.check_up()
        return self.cluster

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the Kafka client is closed", hint="Make a new one")


class MemoryProducer:
    """One producer of an in-memory cluster; implements `kafka.Producer`."""

    def __init__(self, cluster: MemoryCluster, idle: Idle, queue_limit: int, delivery_timeout_s: float) -> None:
        self._cluster = cluster
        self._idle = idle
        self._queue_limit = queue_limit
        self._delivery_timeout_s = delivery_timeout_s
        with cluster.lock:
            self._number = cluster.next_producer()
        self._queued: deque[Sending] = deque()
        self._on_the_way: list[Sending] = []
        self._is_closed = False

    @property
    def in_flight(self) -> int:
        """Records queued or sent, whose delivery was not reported yet."""
        return len(self._queued) + len(self._on_the_way)

    @property
    def delivery_timeout_s(self) -> float:
        """What the caller is told; in memory only `expire` makes a delayed record time out."""
        return self._delivery_timeout_s

    def send(self, topic: str, partition: int, value: bytes, on_delivery: Callable[[Delivery], None]) -> bool:
        """Queue a record; False if the queue is full. Raises ValueTooLarge."""
        self._check_open()
        if len(value) >= MAX_MESSAGE_BYTES:
            raise ValueTooLarge(
                "a record is larger than Kafka may take",
                hint="Write smaller values, or smaller chunks",
                topic=topic, partition=partition, size_bytes=len(value), limit_bytes=MAX_MESSAGE_BYTES,
            )  # fmt: skip
        if self.in_flight >= self._queue_limit:
            return False
        with self._cluster.lock:
            self._queued.append(self._cluster.begin(self._number, topic, partition, value, on_delivery))
        return True

    def poll(self, timeout_s: float) -> int:
        """Append what is queued, then run the callbacks that are due. Returns how many ran."""
        self._check_open()
        ran = self._turn()
        if ran == 0 and timeout_s > 0 and self.in_flight:
            self._idle(timeout_s)
            ran = self._turn()
        return ran

    def close(self) -> None:
        """Report what is in flight as UNKNOWN. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        with self._cluster.lock:
            for sending in self._queued:
                self._cluster.abandon(sending)
            leftovers = [*self._on_the_way, *self._queued]
            self._on_the_way.clear()
            self._queued.clear()
        for sending in leftovers:
            # The outcome of a record that was released meanwhile is known, of all others nothing is.
            _report(sending, sending.outcome or _CLOSED)

    def _turn(self) -> int:
        with self._cluster.lock:
            while self._queued and not self._cluster.is_down:
                sending = self._queued.popleft()
                self._cluster.advance(sending)
                self._on_the_way.append(sending)
            due = [sending for sending in self._on_the_way if sending.outcome is not None]
            self._on_the_way = [sending for sending in self._on_the_way if sending.outcome is None]
        # Outside the lock: a callback may call back into the cluster, or wait for a thread that does.
        for sending in due:
            assert sending.outcome is not None
            _report(sending, sending.outcome)
        return len(due)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the producer is closed", hint="Make a new one")


def _report(sending: Sending, delivery: Delivery) -> None:
    report, sending.report = sending.report, None
    if report is not None:
        report(delivery)


class MemoryReader:
    """Reads one topic of an in-memory cluster; implements `kafka.Reader`."""

    def __init__(self, cluster: MemoryCluster, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._turn = 0
        self._is_closed = False

    def read(self, ranges: Mapping[int, OffsetRange], *, stall_timeout_s: float) -> Iterator[Record]:
        """Yield every record of `ranges`, one per partition in turn. Raises as the port says; it never waits."""
        del stall_timeout_s  # Nothing stalls in memory: the record is there, or it is an error.
        if self._is_closed:
            raise ClosedError("the reader is closed", hint="Make a new one")
        if any(wanted.start < 0 for wanted in ranges.values()):
            raise Misuse("an offset is negative", hint="Kafka reads negative offsets as names of places")
        self._turn += 1
        left = {partition: wanted for partition, wanted in ranges.items() if wanted.start < wanted.end}
        return self._read(self._turn, left)

    def close(self) -> None:
        """Refuse further use. Idempotent."""
        self._turn += 1
        self._is_closed = True

    def _read(self, turn: int, left: dict[int, OffsetRange]) -> Iterator[Record]:
        self._check_all(left)
        while left:
            for partition in sorted(left):
                record = self._step(partition, left)
                if record is not None:
                    yield record
                    self._check_turn(turn)

    def _check_all(self, left: Mapping[int, OffsetRange]) -> None:
        with self._cluster.lock:
            for partition, wanted in left.items():
                self._cluster.check_up()
                check_range(self._topic, partition, wanted, self._cluster.available(self._topic, partition))

    def _step(self, partition: int, left: dict[int, OffsetRange]) -> Record | None:
        """The next record of a partition, or None at its end; asked anew each time, since the log may change."""
        wanted = left[partition]
        with self._cluster.lock:
            self._check_all({partition: wanted})
            found = self._cluster.log(self._topic, partition).first_from(wanted.start)
        if found is None or found[0] >= wanted.end:
            del left[partition]
            return None
        left[partition] = OffsetRange(found[0] + 1, wanted.end)
        if found[0] + 1 >= wanted.end:
            del left[partition]
        return Record(partition, *found)

    def _check_turn(self, turn: int) -> None:
        if turn != self._turn:
            raise ClosedError("this read was ended by a later one", hint="One read of a reader at a time")
