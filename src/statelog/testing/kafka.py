"""The in-memory twin of the Kafka port, for tests and for simulations of whole systems.

`MemoryKafka` is one process' view of a shared `MemoryCluster`; `join` makes the view of another process. It is
thread-safe and deterministic: records are appended and reported when their producer polls. No call waits, except for a
follower's poll without `idle`. One contract suite runs on it and on the real client. It owns no state of the cluster.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from statelog.errors import BeyondEnd, BrokerUnavailable, ClosedError, Misuse, ValueTooLarge
from statelog.kafka.config import MAX_MESSAGE_BYTES
from statelog.kafka.errors import check_range, unreadable
from statelog.kafka.port import Delivery, DeliveryStatus, GroupOffset, OffsetRange, Record, TopicDescription, TopicSpec
from statelog.kafka.positions import HighWater, Listed, ask_offsets, known_id
from statelog.testing.cluster import MemoryCluster, PartitionLog, Sending
from statelog.testing.faults import TRUE, Answer, AnswerKind
from statelog.testing.outputs import MemoryOutputProducer

_CLOSED = Delivery(DeliveryStatus.UNKNOWN, -1, "the producer was closed before the broker answered")
_FATAL = Delivery(DeliveryStatus.UNKNOWN, -1, "_FATAL: the producer is over")
_TRIES = 5
"""The number of tries for offsets; the real client has a request time-out instead."""


class MemoryKafka:
    """One process' view of an in-memory cluster; implements `kafka.Kafka`.

    `idle`: called with the time-out of a poll that found nothing. A simulation advances its clock there, a test with
    threads sleeps. Without it no time passes, but a follower waits for another thread's record.
    `queue_limit`: the most records that one producer may have in flight.
    """

    def __init__(
        self,
        *,
        cluster: MemoryCluster | None = None,
        idle: Callable[[float], None] | None = None,
        queue_limit: int = 100_000,
        delivery_timeout_s: float = 305.0,
    ) -> None:
        self.cluster = MemoryCluster() if cluster is None else cluster
        self.seen = HighWater()
        self.idle = idle
        self.queue_limit = queue_limit
        self.delivery_timeout_s = delivery_timeout_s
        self._is_closed = False

    def join(self) -> "MemoryKafka":
        """Return another process' view of the same cluster."""
        return MemoryKafka(
            cluster=self.cluster,
            idle=self.idle,
            queue_limit=self.queue_limit,
            delivery_timeout_s=self.delivery_timeout_s,
        )

    def cluster_id(self) -> str:
        """Return the cluster's id. Raises BrokerUnavailable while it is down."""
        with self._asked("cluster_id") as (cluster, _):
            return cluster.cluster_id

    def describe_topic(self, topic: str) -> TopicDescription | None:
        """Return the topic's current description, or None if it does not exist."""
        with self._asked("describe_topic", topic) as (cluster, answer):
            is_old = answer.kind is AnswerKind.OLD
            described = cluster.describe_before(topic, answer.count) if is_old else cluster.describe(topic)
            self.seen.identify(topic, described.topic_id if described else None)
            return described

    def identify(self, topics: Sequence[str]) -> tuple[str, list[TopicDescription | None]]:
        """Return the cluster's id, and the current descriptions of these topics."""
        described = [self.describe_topic(topic) for topic in topics]
        return self.cluster_id(), described

    def create_topic(self, spec: TopicSpec) -> None:
        """Create a topic. Raises AlreadyExists."""
        with self._asked("create_topic", spec.name) as (cluster, _):
            cluster.create(spec)
            self.seen.forget(spec.name)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic; a missing one counts as deleted."""
        with self._asked("delete_topic", topic) as (cluster, _):
            cluster.delete(topic)
            self.seen.forget(topic)

    def offsets(
        self, topic: str, partitions: Sequence[int], *, at_least: Mapping[int, int] | None = None
    ) -> dict[int, OffsetRange]:
        """Return log start and log end of each partition; ask again while they are missing or old. Raises NotFound."""
        tries = iter(range(1, _TRIES))
        return ask_offsets(
            topic,
            self.seen,
            ask=lambda: self._list_offsets(topic, partitions),
            topic_id=lambda: known_id(self.describe_topic, topic),
            again=lambda: next(tries, None) is not None,
            at_least=at_least,
        )

    def delete_records(self, topic: str, before: Mapping[int, int]) -> dict[int, int]:
        """Truncate below the offsets in `before`; returns the log starts. Raises Misuse, BeyondEnd, NotFound."""
        if any(offset < 0 for offset in before.values()):
            raise Misuse("an offset is negative", hint="Give offsets: Kafka reads it as 'everything'", topic=topic)
        with self._asked("delete_records", topic, before) as (cluster, _):
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

    def publish_offset(self, group: str, topic: str, partition: int, offset: int, metadata: str = "") -> None:
        """Store a group offset in the cluster's `published`. Raises NotFound."""
        with self._asked("publish_offset", topic, [partition]) as (cluster, _):
            cluster.log(topic, partition)
            cluster.published[group, topic, partition] = offset, metadata

    def published(self, group: str, topic: str, partition: int) -> GroupOffset:
        """Return a group's offset and its text."""
        with self._asked("published", topic, [partition]) as (cluster, _):
            found = cluster.published.get((group, topic, partition))
            return GroupOffset() if found is None else GroupOffset(*found)

    def producer(self) -> "MemoryProducer":
        """Return a new idempotent producer."""
        self._check_open()
        return MemoryProducer(self)

    def output_producer(self, name: str, topic: str, *, is_transactional: bool = True) -> MemoryOutputProducer:
        """Return a new output producer."""
        self._check_open()
        return MemoryOutputProducer(self, name, topic, is_transactional=is_transactional)

    def reader(self, topic: str) -> "MemoryReader":
        """Return a new reader of one topic."""
        self._check_open()
        return MemoryReader(self, topic)

    def follower(self, topic: str, offset: int) -> "MemoryFollower":
        """Return a new follower of partition 0 of one topic, from an offset on."""
        self._check_open()
        return MemoryFollower(self, topic, offset)

    def pass_time(self, timeout_s: float) -> None:
        """Let this time pass through `idle`, if it is given."""
        if self.idle is not None:
            self.idle(timeout_s)

    def close(self) -> None:
        """Refuse further use through this view; the cluster and its other views live on. Idempotent."""
        self._is_closed = True

    @contextmanager
    def _asked(
        self, method: str, topic: str = "", partitions: Iterable[int] = ()
    ) -> Generator[tuple[MemoryCluster, Answer]]:
        """Make one call: yield the locked cluster and its answer. The effect remains even if the answer is lost."""
        self._check_open()
        with self.cluster.lock:
            self.cluster.check_up()
            answer = self.cluster.answer(method, topic, partitions)
            yield self.cluster, answer
            self.cluster.lose(answer)

    def _list_offsets(self, topic: str, partitions: Sequence[int]) -> dict[int, Listed]:
        with self._asked("offsets", topic, partitions) as (cluster, answer):
            logs = {p: cluster.log(topic, p) for p in partitions}
            if answer.kind is AnswerKind.OLD:
                return {p: _listed_before(log, answer.count) for p, log in logs.items()}
            listed = {p: Listed(log.start, log.end, log.leader_epoch) for p, log in logs.items()}
            if answer.kind is AnswerKind.HALF:
                listed[partitions[-1]] = Listed(-1001, -1001)
            return listed

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the Kafka client is closed", hint="Make a new one")


def _listed_before(log: PartitionLog, changes: int) -> Listed:
    """Return the answer of an older leader, from `changes` appends ago."""
    past = log.ends[-changes:] if changes > 0 else []
    end = past[0] if past else log.end
    return Listed(min(log.start, end), end, log.leader_epoch - 1)


class MemoryProducer:
    """One producer of an in-memory cluster; implements `kafka.Producer`. Made by `MemoryKafka.producer`."""

    def __init__(self, kafka: MemoryKafka) -> None:
        self._kafka = kafka
        self._cluster = kafka.cluster
        self.delivery_timeout_s = kafka.delivery_timeout_s
        """The time-out for the caller; in memory, only `expire` makes a delayed record time out."""
        with self._cluster.lock:
            self._number = self._cluster.next_producer()
        self._queued: deque[Sending] = deque()
        self._on_the_way: list[Sending] = []
        self._is_closed = False
        self._is_over = False

    def connect(self) -> None:
        """Check that the producer is open; memory needs no connection."""
        self._check_open()

    @property
    def in_flight(self) -> int:
        """The number of records that are queued or sent, and not reported yet."""
        return len(self._queued) + len(self._on_the_way)

    @property
    def is_sound(self) -> bool:
        """True if it is open, no record has ended it, and the cluster is up."""
        return not (self._is_closed or self._is_over or self._cluster.is_down)

    def send(self, topic: str, partition: int, value: bytes, on_delivery: Callable[[Delivery], None]) -> bool:
        """Queue a record; False if the queue is full. Raises ValueTooLarge, BrokerUnavailable after a fatal error."""
        self._check_open()
        if self._is_over:
            hint = "Close this producer, and resolve the fate of its records by a new one, after a new Open"
            raise BrokerUnavailable("the producer is over", hint=hint, topic=topic, partition=partition)
        if len(value) >= MAX_MESSAGE_BYTES:
            raise ValueTooLarge(
                "a record is larger than Kafka may take",
                hint="Write smaller values, or smaller chunks",
                topic=topic, partition=partition, size_bytes=len(value), limit_bytes=MAX_MESSAGE_BYTES,
            )  # fmt: skip
        if self.in_flight >= self._kafka.queue_limit:
            return False
        with self._cluster.lock:
            self._cluster.answer("send", topic, [partition])
            self._queued.append(self._cluster.begin(self._number, topic, partition, value, on_delivery))
        return True

    def poll(self, timeout_s: float) -> int:
        """Append what is queued, then run the callbacks that are due. Returns how many ran."""
        self._check_open()
        ran = self._poll_once()
        if ran == 0 and timeout_s > 0 and self.in_flight:
            self._kafka.pass_time(timeout_s)
            ran = self._poll_once()
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
            # Only the outcome of a record that was released meanwhile is known.
            _report(sending, sending.outcome or _CLOSED)

    def _poll_once(self) -> int:
        due: list[Sending] = []
        with self._cluster.lock, suppress(BrokerUnavailable):  # No record moves after an error.
            answer = self._cluster.answer("poll") if self.in_flight else TRUE
            if not self._cluster.is_down:
                self._advance()
            if answer.kind is not AnswerKind.LOST:
                due = self._take_due()
        # Outside the lock: a callback may call back into the cluster, or wait for a thread that does.
        for sending in due:
            assert sending.outcome is not None
            _report(sending, sending.outcome)
        return len(due)

    def _advance(self) -> None:
        """Move all queued records, or up to the record that ends this producer."""
        while self._queued and not self._is_over:
            sending = self._queued.popleft()
            self._cluster.advance(sending)
            self._on_the_way.append(sending)
            self._is_over = sending.ends_producer
        if self._is_over:
            for sending in (*self._on_the_way, *self._queued):
                sending.outcome = sending.outcome or _FATAL
            self._on_the_way.extend(self._queued)
            self._queued.clear()

    def _take_due(self) -> list[Sending]:
        due = [sending for sending in self._on_the_way if sending.outcome is not None]
        self._on_the_way = [sending for sending in self._on_the_way if sending.outcome is None]
        for sending in due:
            if sending.outcome is not None and sending.outcome.status is DeliveryStatus.OK:
                self._kafka.seen.reached(sending.attempt.topic, sending.attempt.partition, sending.outcome.offset + 1)
        return due

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the producer is closed", hint="Make a new one")


def _report(sending: Sending, delivery: Delivery) -> None:
    report, sending.report = sending.report, None
    if report is not None:
        report(delivery)


class MemoryFollower:
    """Follows partition 0 of a topic of an in-memory cluster; implements `kafka.PartitionFollower`."""

    def __init__(self, kafka: MemoryKafka, topic: str, offset: int) -> None:
        self._kafka = kafka
        self._topic = topic
        self.position = offset
        self.is_sound = True
        """True if the partition had the same leader as in the previous poll: a client reports a lost leader."""
        self._leader: tuple[PartitionLog, int] | None = None
        self._is_closed = False

    def poll(self, timeout_s: float) -> Sequence[Record]:
        """Return the records from `position` on; let time pass once if there are none. Raises Damaged, Unavailable."""
        self.is_sound = True
        try:
            found = self._read()
            if not found and timeout_s > 0:
                if self._kafka.idle is None:
                    self._kafka.cluster.await_record(self._topic, self.position, timeout_s)
                else:
                    self._kafka.idle(timeout_s)
                found = self._read()
        except BaseException:
            self.close()
            raise
        return found

    def close(self) -> None:
        """Refuse further use. Idempotent."""
        self._is_closed = True

    def _read(self) -> list[Record]:
        if self._is_closed:
            raise ClosedError("the follower is closed", hint="Make a new one")
        cluster = self._kafka.cluster
        with cluster.lock:
            cluster.check_up()
            cluster.lose(cluster.answer("follow", self._topic, [0]))
            log = cluster.log(self._topic, 0)
            before, self._leader = self._leader, (log, log.leader_epoch)
            self.is_sound &= before in (None, self._leader)
            if not log.start <= self.position <= log.end:
                check_range(self._topic, 0, OffsetRange(self.position, self.position), OffsetRange(log.start, log.end))
            found, end = log.records[log.index_from(self.position) :], log.end
            spoilt = [batch for batch in log.spoilt if batch.end > self.position]
        if spoilt:
            lost = OffsetRange(max(self.position, spoilt[0].start), spoilt[0].end)
            found = [one for one in found if one.offset < lost.start]
            if not found:
                raise unreadable(self._topic, 0, lost, "it is spoilt")
        if found or not spoilt:
            self.position = found[-1].offset + 1 if spoilt else end
        return found


class MemoryReader:
    """Reads one topic of an in-memory cluster; implements `kafka.Reader`. Made by `MemoryKafka.reader`."""

    def __init__(self, kafka: MemoryKafka, topic: str) -> None:
        self._kafka = kafka
        self._cluster = kafka.cluster
        self._topic = topic
        self._generation = 0
        self._is_closed = False

    def read(self, ranges: Mapping[int, OffsetRange], *, stall_timeout_s: float) -> Iterator[Record]:
        """Yield every record of `ranges`, one per partition in turn. Raises Damaged, BrokerUnavailable, NotFound."""
        if self._is_closed:
            raise ClosedError("the reader is closed", hint="Make a new one")
        self._generation += 1
        left = {partition: wanted for partition, wanted in ranges.items() if wanted.start < wanted.end}
        return self._read(self._generation, left, stall_timeout_s)

    def close(self) -> None:
        """Refuse further use. Idempotent."""
        self._generation += 1
        self._is_closed = True

    def _read(self, generation: int, left: dict[int, OffsetRange], stall_timeout_s: float) -> Iterator[Record]:
        if not left:
            return
        with self._cluster.lock:
            self._cluster.check_up()
            answer = self._cluster.answer("read", self._topic, left)
            self._cluster.lose(answer)
            for partition, wanted in left.items():
                self._check(partition, wanted)
        count = 0
        while left:
            for partition in sorted(left):
                if answer.kind is not AnswerKind.TRUE and count == answer.count:
                    self._end(answer.kind, partition, left[partition], stall_timeout_s)
                record = self._step(partition, left)
                if record is not None:
                    count += 1
                    yield record
                    if generation != self._generation:
                        raise ClosedError("a later read has ended this one", hint="Make one read of a reader at a time")

    def _end(self, kind: AnswerKind, partition: int, wanted: OffsetRange, stall_timeout_s: float) -> None:
        """Raise the error of a reader that loses its log, leader or connection during a read."""
        if kind is AnswerKind.GONE:
            check_range(self._topic, partition, wanted, OffsetRange(wanted.start + 1, wanted.end))
        if kind is AnswerKind.SHORT:
            check_range(self._topic, partition, wanted, OffsetRange(0, wanted.end - 1))
        if kind is AnswerKind.STALLED:
            self._kafka.pass_time(stall_timeout_s)
        problem = "the read was interrupted"
        raise BrokerUnavailable(problem, topic=self._topic, partition=partition, next_offset=wanted.start)

    def _check(self, partition: int, wanted: OffsetRange) -> None:
        self._cluster.check_up()
        log = self._cluster.log(self._topic, partition)
        check_range(self._topic, partition, wanted, OffsetRange(log.start, log.end))

    def _step(self, partition: int, left: dict[int, OffsetRange]) -> Record | None:
        """Return the next record of a partition, or None at its end. The log may change between two calls."""
        wanted = left[partition]
        with self._cluster.lock:
            self._check(partition, wanted)
            log = self._cluster.log(self._topic, partition)
            found = log.first_from(wanted.start)
        if found is None or found.offset >= wanted.end:
            del left[partition]
            return None
        for batch in log.spoilt:
            if batch.start <= found.offset < batch.end:
                lost = OffsetRange(max(batch.start, wanted.start), min(batch.end, wanted.end))
                raise unreadable(self._topic, partition, lost, "it is spoilt")
        left[partition] = OffsetRange(found.offset + 1, wanted.end)
        if left[partition].start == wanted.end:
            del left[partition]
        self._kafka.seen.reached(self._topic, partition, found.offset + 1)
        return found
