"""The cluster behind the in-memory Kafka: topics, logs, records in flight, and the accidents of a real cluster.

All simulated processes of a test share one `MemoryCluster`, each through a `MemoryKafka` of its own. It owns all state
and the one lock over it. Records move only when a producer polls or a test moves them, so a run is a pure function of
the calls made. Invariant: offsets of a partition only grow, except by `lose_tail` and `recreate_topic`.
"""

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

from statelog.errors import AlreadyExists, BrokerUnavailable, NotFound
from statelog.kafka.errors import classify_delivery
from statelog.kafka.port import Delivery, DeliveryStatus, OffsetRange, Record, TopicDescription, TopicSpec
from statelog.schemas.outputs.output import Output
from statelog.testing.faults import (
    TRUE,
    Answer,
    AnswerKind,
    Call,
    Fate,
    Faults,
    QuestionHook,
    ScriptedFaults,
    SendAttempt,
)

RECORD_OVERHEAD_BYTES = 70
_DEFAULT_TOPIC_CONFIG = {
    "cleanup.policy": "delete",
    "retention.ms": "604800000",
    "retention.bytes": "-1",
    "max.message.bytes": "1048588",
    "min.insync.replicas": "1",
    "unclean.leader.election.enable": "false",
    "message.timestamp.type": "CreateTime",
    "segment.bytes": "1073741824",
}
_UNKNOWN = DeliveryStatus.UNKNOWN
_APPENDED_BUT = {
    Fate.APPEND_UNANSWERED: "_MSG_TIMED_OUT: the answer was lost",
    Fate.FATAL_APPENDED: "_FATAL: the client gave up",
    Fate.ACK_WITHOUT_OFFSET: "acknowledged without an offset",
}
"""The reports that senders get instead of the offset."""
_ALWAYS = frozenset({AnswerKind.TRUE, AnswerKind.LOST})
_ANSWERS = {
    "offsets": _ALWAYS | {AnswerKind.OLD, AnswerKind.HALF},
    "describe_topic": _ALWAYS | {AnswerKind.OLD},
    "send": frozenset({AnswerKind.TRUE}),
    "read": _ALWAYS | {AnswerKind.BROKEN, AnswerKind.STALLED, AnswerKind.GONE, AnswerKind.SHORT},
}
"""The answers besides UNAVAILABLE that each call can have."""


@dataclass(slots=True)
class PartitionLog:
    """One partition. Records below `start` are retained, because a crash of a real broker can bring them back."""

    partition: int
    start: int = 0
    end: int = 0
    records: list[Record] = field(default_factory=list[Record])
    leader_epoch: int = 1
    ends: list[int] = field(default_factory=list[int])
    """Its earlier ends, oldest first, which a deposed leader may still report."""
    spoilt: list[OffsetRange] = field(default_factory=list[OffsetRange])
    """Batches that no client can unpack."""
    lagging: int = 0
    """The number of replicas that are not in sync."""

    def append(self, value: bytes, timestamp_ms: int = -1) -> int:
        """Append a record, and return its offset."""
        offset = self.end
        self.ends.append(offset)
        self.records.append(Record(self.partition, offset, value, timestamp_ms))
        self.end += 1
        return offset

    def index_from(self, offset: int) -> int:
        """Return the index of the first record at or above `offset`."""
        return bisect_left(self.records, offset, key=attrgetter("offset"))

    def first_from(self, offset: int) -> Record | None:
        """Return the first record at or above `offset`, or None."""
        at = self.index_from(offset)
        return self.records[at] if at < len(self.records) else None

    def cut_from(self, offset: int) -> None:
        """Drop everything at and above `offset`, as a new leader does that lacks it."""
        self.leader_epoch += 1
        del self.records[self.index_from(offset) :]
        del self.ends[bisect_left(self.ends, offset) :]
        self.end = min(self.end, offset)
        self.start = min(self.start, self.end)
        self.spoilt = [batch for batch in self.spoilt if batch.end <= offset]


@dataclass(slots=True)
class _Topic:
    spec: TopicSpec
    topic_id: str
    logs: list[PartitionLog]


@dataclass(slots=True)
class Sending:
    """A record in flight. `report` is called at most once, from its producer's poll or close; then it is None."""

    attempt: SendAttempt
    fate: Fate
    report: Callable[[Delivery], None] | None
    outcome: Delivery | None = None

    @property
    def ends_producer(self) -> bool:
        """True if sending it ends its producer."""
        return self.fate in (Fate.FATAL, Fate.FATAL_APPENDED)

    @property
    def lane(self) -> tuple[int, str, int]:
        """Its producer, topic and partition: records of one lane keep their order."""
        return self.attempt.producer, self.attempt.topic, self.attempt.partition


class MemoryCluster:
    """All topics and records of one simulated cluster, and the accidents that a test can cause."""

    def __init__(
        self,
        *,
        cluster_id: str = "memory-cluster",
        faults: Faults | None = None,
        clock: Callable[[], float] | None = None,
        questions: QuestionHook | None = None,
    ) -> None:
        """Make a cluster. `clock`, in seconds since 1970, stamps the records of topics with LogAppendTime."""
        self.cluster_id = cluster_id
        self.questions = questions
        self._clock = clock
        self.faults: Faults = faults if faults is not None else ScriptedFaults()
        self.lock = threading.RLock()
        self._arrived = threading.Condition(self.lock)
        self.published: dict[tuple[str, str, int], tuple[int, str]] = {}
        """Group offsets: (group, topic, partition) to the offset and its metadata text."""
        self.extras: dict[tuple[str, int, int], tuple[bytes | None, Sequence[tuple[str, bytes | None]]]] = {}
        """Key and headers of an input's records, by topic, partition and offset; no reader of the port sees them."""
        self.tombstones: set[tuple[str, int, int]] = set()
        """The places of records without a value."""
        self.output_producers: dict[str, int] = {}
        """The newest output producer of each name, by its number."""
        self._topics: dict[str, _Topic] = {}
        self._held: list[Sending] = []
        self._lost_lanes: set[tuple[int, str, int]] = set()
        self.is_down = False
        """True while the cluster answers nobody."""
        self._made_topics = self._made_producers = self._calls = 0
        self.sends = 0
        """The number of records sent by all producers."""
        self._past: dict[str, list[TopicDescription | None]] = {}

    # ---- for the port

    def answer(self, method: str, topic: str = "", partitions: Iterable[int] = ()) -> Answer:
        """Return the answer to a call. Raises BrokerUnavailable if it fails before any effect.

        An answer that this call cannot have fails in the same way.
        """
        if self.questions is None:
            return TRUE
        call = Call(number=self._calls, method=method, topic=topic, partitions=tuple(partitions))
        self._calls += 1
        answer = self.questions(call)
        if answer.kind in _ANSWERS.get(method, _ALWAYS):
            return answer
        raise BrokerUnavailable("the call was not answered", bootstrap_servers="memory", call=call.number)

    def lose(self, answer: Answer) -> None:
        """Raise BrokerUnavailable if the answer is LOST; the call has taken effect."""
        if answer.kind is AnswerKind.LOST:
            raise BrokerUnavailable("the answer was lost", bootstrap_servers="memory")

    def describe_before(self, topic: str, changes: int) -> TopicDescription | None:
        """Return the topic as it was `changes` changes ago; None if it did not exist then."""
        states = [*self._past.get(topic, [None]), self.describe(topic)]
        return states[max(0, len(states) - 1 - changes)]

    def check_up(self) -> None:
        """Raise BrokerUnavailable while the cluster is down."""
        if self.is_down:
            raise BrokerUnavailable("the in-memory cluster is down", bootstrap_servers="memory")

    def create(self, spec: TopicSpec) -> None:
        """Make a topic with an id of its own. Raises AlreadyExists, ConfigError."""
        if spec.name in self._topics:
            raise AlreadyExists(f"topic {spec.name} exists already", topic=spec.name)
        self._remember(spec.name)
        self._made_topics += 1
        logs = [PartitionLog(partition) for partition in range(spec.partitions)]
        self._topics[spec.name] = _Topic(spec, f"topic-{self._made_topics}", logs)

    def delete(self, topic: str) -> None:
        """Delete a topic if it exists."""
        self._remember(topic)
        self._topics.pop(topic, None)

    def describe(self, topic: str) -> TopicDescription | None:
        """Return a broker's description of the topic, or None."""
        found = self._topics.get(topic)
        if found is None:
            return None
        return TopicDescription(
            name=topic,
            topic_id=found.topic_id,
            partitions=len(found.logs),
            replication_factor=found.spec.replication_factor,
            config={**_DEFAULT_TOPIC_CONFIG, **found.spec.config},
            in_sync=tuple(max(0, found.spec.replication_factor - log.lagging) for log in found.logs),
        )

    def log(self, topic: str, partition: int) -> PartitionLog:
        """Return one partition's log. Raises NotFound."""
        found = self._find(topic, partition)
        if found is None:
            raise NotFound("no such topic or partition", hint="Create the log first", topic=topic, partition=partition)
        return found

    def await_record(self, topic: str, position: int, timeout_s: float) -> None:
        """Wait until another thread appends to the first partition at or above a position, or until the time-out."""
        with self._arrived:
            if self.log(topic, 0).end <= position:
                self._arrived.wait(timeout_s)

    def append_output(self, record: Output, partition: int) -> None:
        """Append a record with key and headers to the partition. Raises NotFound."""
        time_ms = int(self._clock() * 1000) if self._clock else -1
        offset = self.log(record.topic, partition).append(record.value or b"", time_ms)
        self.extras[record.topic, partition, offset] = record.key, record.headers
        if record.value is None:
            self.tombstones.add((record.topic, partition, offset))
        self._arrived.notify_all()

    def next_producer(self) -> int:
        """Return a new producer id."""
        self._made_producers += 1
        return self._made_producers

    def begin(
        self, producer: int, topic: str, partition: int, value: bytes, report: Callable[[Delivery], None]
    ) -> Sending:
        """Count a sent record, and decide its fate."""
        attempt = SendAttempt(number=self.sends, producer=producer, topic=topic, partition=partition, value=value)
        self.sends += 1
        return Sending(attempt, self.faults.fate(attempt), report)

    def advance(self, sending: Sending) -> None:
        """Move a record as far as its fate and the records before it allow. Sets its outcome once it is known."""
        if sending.fate is Fate.LOSE:
            self._lost_lanes.add(sending.lane)
        if sending.lane in self._lost_lanes:
            sending.outcome = Delivery(_UNKNOWN, -1, "lost, or behind a record that was lost")
        elif sending.fate is Fate.SKIP:
            sending.outcome = Delivery(_UNKNOWN, -1, "_MSG_TIMED_OUT: timed out in the queue")
        elif sending.fate is Fate.FATAL:
            sending.outcome = Delivery(_UNKNOWN, -1, "_FATAL: the client gave up")
        elif sending.fate is Fate.DELAY or any(before.lane == sending.lane for before in self._held):
            self._held.append(sending)
        else:
            self._append(sending)

    def abandon(self, sending: Sending) -> None:
        """Handle a record of a producer that closes without a poll: an unsent one is lost, others take their course."""
        if sending.fate in {Fate.DELAY, Fate.APPEND_UNANSWERED, Fate.ACK_WITHOUT_OFFSET, Fate.FATAL_APPENDED}:
            self.advance(sending)

    # ---- for tests

    @property
    def held(self) -> int:
        """The number of records in flight."""
        return len(self._held)

    def release(self, count: int | None = None) -> int:
        """Let delayed records arrive, oldest first, and return their number. Records behind a lost one vanish."""
        with self.lock:
            arriving, self._held = self._held[:count], self._held[count:] if count is not None else []
            for sending in arriving:
                self._append(sending)
            return len(arriving)

    def expire(self) -> int:
        """Time out delayed records: UNKNOWN at the next poll, though `release` may still append them."""
        with self.lock:
            waiting = [sending for sending in self._held if sending.outcome is None]
            for sending in waiting:
                sending.outcome = Delivery(_UNKNOWN, -1, "_MSG_TIMED_OUT: no answer in time")
            return len(waiting)

    def set_down(self, *, is_down: bool) -> None:
        """Stop or start answering. While it is down nothing is appended and every call raises BrokerUnavailable."""
        with self.lock:
            self.is_down = is_down

    def records(self, topic: str, partition: int) -> list[Record]:
        """Return all records that a reader could read now, as a test's oracle."""
        with self.lock:
            log = self.log(topic, partition)
            return log.records[log.index_from(log.start) :]

    def outputs(self, topic: str, partition: int) -> list[Output]:
        """Return the records of a partition with keys and headers, as a reader with `read_committed` sees them."""
        with self.lock:
            found: list[Output] = []
            for record in self.records(topic, partition):
                place = topic, partition, record.offset
                key, headers = self.extras.get(place, (None, ()))
                value = None if place in self.tombstones else record.value
                found.append(Output(topic, value, key, tuple(headers), partition))
            return found

    def insert_gap(self, topic: str, partition: int, count: int) -> None:
        """Use up `count` offsets without a record, as transaction markers do."""
        with self.lock:
            self.log(topic, partition).end += count

    def truncate(self, topic: str, partition: int, start: int) -> None:
        """Move the log start to `start`, as the retention of somebody else."""
        with self.lock:
            log = self.log(topic, partition)
            log.start = max(log.start, min(start, log.end))

    def rewind_log_start(self, topic: str, partition: int, start: int) -> None:
        """Bring back records below the log start, as after a broker's crash that forgot the last truncation."""
        with self.lock:
            log = self.log(topic, partition)
            log.start = min(log.start, start)

    def lose_tail(self, topic: str, partition: int, end: int) -> None:
        """Cut the log at `end`, as an unclean election does."""
        with self.lock:
            self.log(topic, partition).cut_from(end)

    def overwrite(self, topic: str, partition: int, offset: int, value: bytes) -> None:
        """Replace a record's value. Raises NotFound if there is no record at this offset."""
        with self.lock:
            log = self.log(topic, partition)
            found = log.first_from(offset)
            if found is None or found.offset != offset:
                raise NotFound("no record at this offset", topic=topic, partition=partition, offset=offset)
            log.records[log.index_from(offset)] = found._replace(value=value)

    def spoil(self, topic: str, partition: int, start: int, end: int) -> None:
        """Make these offsets one batch that no client unpacks: too large, garbage, or with a wrong checksum."""
        with self.lock:
            self.log(topic, partition).spoilt.append(OffsetRange(start, end))

    def recreate_topic(self, topic: str, config: Mapping[str, str] | None = None) -> None:
        """Delete a topic and recreate it, empty, with another topic id. Raises NotFound."""
        with self.lock:
            spec = self._about_to_change(topic).spec
            del self._topics[topic]
            self.create(replace(spec, config={**spec.config, **(config or {})}))

    def set_topic_config(self, topic: str, config: Mapping[str, str]) -> None:
        """Change settings of a topic, as an operator does."""
        with self.lock:
            found = self._about_to_change(topic)
            found.spec = replace(found.spec, config={**found.spec.config, **config})

    def add_partitions(self, topic: str, count: int) -> None:
        """Add partitions to a topic, as an operator does."""
        with self.lock:
            logs = self._about_to_change(topic).logs
            logs.extend(PartitionLog(len(logs)) for _ in range(count))

    # ---- inside

    def _about_to_change(self, topic: str) -> _Topic:
        """Return an existing topic, after recording its description. Raises NotFound."""
        self.log(topic, 0)
        self._remember(topic)
        return self._topics[topic]

    def _remember(self, topic: str) -> None:
        self._past.setdefault(topic, []).append(self.describe(topic))

    def _find(self, topic: str, partition: int) -> PartitionLog | None:
        found = self._topics.get(topic)
        if found is None or not 0 <= partition < len(found.logs):
            return None
        return found.logs[partition]

    def _append(self, sending: Sending) -> None:
        if sending.lane in self._lost_lanes:
            return
        attempt = sending.attempt
        log = self._find(attempt.topic, attempt.partition)
        if log is None:
            outcome = Delivery(_UNKNOWN, -1, "_UNKNOWN_PARTITION: no such topic or partition")
        elif len(attempt.value) + RECORD_OVERHEAD_BYTES > int(self._setting(attempt.topic, "max.message.bytes")):
            outcome = classify_delivery(attempt.topic, "MSG_SIZE_TOO_LARGE", "Broker: Message size too large", None)
        else:
            is_stamped = self._setting(attempt.topic, "message.timestamp.type") == "LogAppendTime"
            offset = log.append(attempt.value, int(self._clock() * 1000) if self._clock and is_stamped else -1)
            lost = _APPENDED_BUT.get(sending.fate)
            outcome = Delivery(DeliveryStatus.OK, offset, "") if lost is None else Delivery(_UNKNOWN, -1, lost)
            self._arrived.notify_all()
        if sending.outcome is None:
            sending.outcome = outcome

    def _setting(self, topic: str, name: str) -> str:
        return {**_DEFAULT_TOPIC_CONFIG, **self._topics[topic].spec.config}[name]
