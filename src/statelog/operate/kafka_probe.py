"""Probe a cluster for everything that a log needs, on two topics made for it. Executes; `kafka_needs` judges.

The probe first creates a log on the topics, as `statelog init` does, because that needs empty ones. Then it writes
records outside of any log. Invariants:

- Topics that hold anything are never written to.
- A probe that fails is recorded, and the next one runs; only a cluster without an id ends all of them.
- Only topics that were made here are removed.
"""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import TypeVar

from statelog.environment import current_environment
from statelog.errors import AlreadyExists, BeyondEnd, ConfigError, NotFound, StatelogError, UnsafeTopic
from statelog.kafka.port import STALL_TIMEOUT_S, Kafka, OffsetRange, Record, TopicSpec
from statelog.log import Log, LogOptions, Where
from statelog.log.producers import append_all
from statelog.log.topics import create_topic, look_for
from statelog.operate.kafka_needs import KafkaAnswers, Need, Read, Sent, TopicAnswer
from statelog.producer import Writer, WriterSettings
from statelog.schemas.names import data_topic, ledger_topic
from statelog.schemas.outputs.output import Output
from statelog.schemas.outputs.stored import outputs_group
from statelog.schemas.topic_policy import MIN_RECORD_BYTES, TopicRole, Waiver, largest_record_bytes, topic_config
from statelog.store.port import Store

A = TypeVar("A")
T = TypeVar("T")
_NAMES = {TopicRole.DATA: data_topic, TopicRole.LEDGER: ledger_topic}
_FRAMING_BYTES = 1 << 10
"""Kafka's framing counts towards the size of a record."""
_ASK_FOR_LESS = frozenset({"INVALID_REPLICATION_FACTOR", "POLICY_VIOLATION", "INVALID_CONFIG"})
_VALUE = b"statelog doctor %06d" + b"." * 80


@dataclass(slots=True, kw_only=True)
class ThrowAwayTopics:
    """Data and ledger topic of one name, made as by `statelog init` and removed; neither if they `are_somebodys`."""

    kafka: Kafka
    name: str
    are_somebodys: bool
    replication_factor: int
    waived: frozenset[Waiver] = frozenset()
    _made: list[str] = field(default_factory=list[str])
    _refused: set[str] = field(default_factory=set[str])

    def make(self) -> tuple[TopicAnswer, ...]:
        """Make or find both topics, empty. Raises AlreadyExists if one is not, NotFound, ConfigError, Unavailable."""
        answers = tuple(self._find(role) if self.are_somebodys else self._make(role) for role in TopicRole)
        for _, found, _ in answers:
            if any(end for _, end in self.kafka.offsets(found.name, range(found.partitions)).values()):
                hint = "Have it created again: its records may be in use"
                raise AlreadyExists("the topic is not empty", topic=found.name, hint=hint)
        return answers

    def remove(self) -> dict[str, StatelogError]:
        """Remove the topics that were made here. Returns the error of each topic that remains."""
        left: dict[str, StatelogError] = {}
        for topic in self._made:
            try:
                self.kafka.delete_topic(topic)
            except StatelogError as error:
                if topic not in self._refused:
                    left[topic] = error
        return left

    def _make(self, role: TopicRole) -> TopicAnswer:
        """Make a topic with as many replicas as possible; if need be, without waivable settings, judged separately."""
        name = _NAMES[role](self.name)
        self._made.append(name)  # First: a request without an answer may have made it.
        tries = list(product((self.replication_factor, 1), (self.waived, frozenset(Waiver))))
        for number, (replicas, waived) in enumerate(tries, 1):
            asked = topic_config(role, replicas)
            try:
                spec = TopicSpec(name=name, partitions=1, replication_factor=replicas, config=asked)
                made = create_topic(self.kafka, spec, waived)
            except ConfigError as error:
                if number == len(tries) or error.facts.get("kafka_error") not in _ASK_FOR_LESS:
                    self._refused.add(name)
                    raise
            else:
                return self._find(role, frozenset(key for key in asked if made.config.get(key) != asked[key]))
        raise AssertionError("the last try returns or raises")

    def _find(self, role: TopicRole, refused: frozenset[str] = frozenset()) -> TopicAnswer:
        name = _NAMES[role](self.name)
        found = look_for(self.kafka, name)
        if found is None:
            raise NotFound("there is no such topic", topic=name, hint="Have it created, or check its name")
        return TopicAnswer(role, found, refused)


def ask_kafka(topics: ThrowAwayTopics, store: Store, *, most: int = 300, limit_s: float = 20.0) -> KafkaAnswers:
    """Run all probes. Raises Unavailable or ConfigError if the cluster does not tell its id.

    `store`: the directory of the log that is made.
    `most`: the number of records, and of commits.
    `limit_s`: the time limit for each of the two, in seconds.
    """
    asking = _Asking(topics, most, limit_s)
    cluster_id = topics.kafka.cluster_id()
    made = asking.ask(Need.TOPICS, ThrowAwayTopics.make, topics)
    commits_s = asking.ask(Need.LOG, partial(asking.commit, store), made)
    sent = asking.ask(Need.IDEMPOTENCE, asking.send, made)
    return KafkaAnswers(
        waived=topics.waived,
        wanted_replicas=topics.replication_factor,
        cluster_id=cluster_id,
        topics=made,
        commits_s=commits_s,
        sent=sent,
        read=asking.ask(Need.PLACES, asking.read, sent),
        largest_bytes=asking.ask(Need.LARGEST, asking.send_largest, made if sent else None),
        listed=asking.ask(Need.LIST_OFFSETS, asking.list_offsets, made),
        published=asking.ask(Need.TRANSACTIONS, asking.publish, made if sent else None),
        truncated=asking.ask(Need.DELETE_RECORDS, asking.truncate, made),
        errors=asking.errors,
    )


class _Asking:
    """The probes, and the errors that they ended with."""

    def __init__(self, topics: ThrowAwayTopics, most: int, limit_s: float) -> None:
        self.errors: dict[Need, StatelogError] = {}
        self._kafka = topics.kafka
        self._name, self._ledger = topics.name, ledger_topic(topics.name)
        self._most, self._limit_s = most, limit_s
        self._environment = current_environment()
        self._last_sent_s = self._last_answered_s = 0.0

    def ask(self, need: Need, question: Callable[[A], T], given: A | None) -> T | None:
        """Return the answer; None if the probe fails, or if its subject `given` is None."""
        if given is None:
            return None
        try:
            return question(given)
        except StatelogError as error:
            self.errors[need] = error
            return None

    def commit(self, store: Store, made: Sequence[TopicAnswer]) -> tuple[float, ...]:
        """Return the latencies of commits of one change, on a log that waives every check: each has its own finding."""
        found = made[0].found
        where = Where(self._kafka, store, allow_unsafe=tuple(Waiver), replication_factor=found.replication_factor)
        # DeleteRecords has a probe of its own.
        options = LogOptions(partitions=found.partitions, key_groups=max(found.partitions, 128), truncation="retention")
        log = Log.create(self._name, where, options)  # Not closed: that would close the caller's port.
        with Writer(log, "doctor", settings=WriterSettings(inline_bytes=0)) as writer:  # Commits use both topics.

            def commit(number: int) -> None:
                writer.put(b"key", b"%d" % number)
                writer.commit({"number": number})

            return self._timed(commit)

    def send(self, _: Sequence[TopicAnswer]) -> Sent:
        """Send records one by one to the ledger's topic."""
        offsets: list[int] = []
        with closing(self._kafka.producer()) as producer:

            def send(number: int) -> None:
                self._last_sent_s = self._environment.wall_clock()
                offsets.extend(append_all(producer, self._ledger, 0, _VALUE % number, 1))
                self._last_answered_s = self._environment.wall_clock()

            return Sent(self._timed(send), tuple(offsets))

    def read(self, sent: Sent) -> Read:
        found = self._read(self._ledger, OffsetRange(min(sent.offsets), max(sent.offsets) + 1))
        values = [found[offset].value if offset in found else None for offset in sent.offsets]
        misplaced = sum(value != _VALUE % number for number, value in enumerate(values))
        last = found.get(sent.offsets[-1])
        if last is None or last.timestamp_ms < 0:
            return Read(misplaced, None)
        stamped_s = last.timestamp_ms / 1000
        return Read(misplaced, stamped_s - min(max(stamped_s, self._last_sent_s), self._last_answered_s))

    def send_largest(self, made: Sequence[TopicAnswer]) -> int:
        """Send and read a record of the largest size, of incompressible bytes. Returns its size."""
        size_bytes = max(largest_record_bytes(*(found.config for _, found, _ in made)), MIN_RECORD_BYTES)
        value = hashlib.shake_128(self._environment.nonce()).digest(size_bytes - _FRAMING_BYTES)
        with closing(self._kafka.producer()) as producer:
            (offset,) = append_all(producer, self._name, 0, value, 1)
        record = self._read(self._name, OffsetRange(offset, offset + 1)).get(offset)
        if record is None or record.value != value:
            problem = "the largest record is not what was sent, or not where its acknowledgement says"
            raise UnsafeTopic(problem, topic=self._name, offset=offset)
        return size_bytes

    def list_offsets(self, _: Sequence[TopicAnswer]) -> OffsetRange:
        return self._kafka.offsets(self._ledger, [0])[0]

    def publish(self, _: Sequence[TopicAnswer]) -> int:
        """Send a record in a transaction that stores a group's offset, as a table does. Return the offset then."""
        group = outputs_group(self._name, "doctor")
        with closing(self._kafka.output_producer(group, self._ledger)) as producer:
            producer.start()
            producer.begin()
            producer.send(Output(self._name, _VALUE % 0))
            producer.commit(1)
        return self._kafka.published(group, self._ledger, 0).offset

    def truncate(self, made: Sequence[TopicAnswer]) -> tuple[OffsetRange, ...]:
        for _, found, _ in made:
            ends = self._kafka.offsets(found.name, range(found.partitions))
            self._kafka.delete_records(found.name, {partition: end for partition, (_, end) in ends.items()})
        left = [self._kafka.offsets(found.name, range(found.partitions)) for _, found, _ in made]
        return tuple(offsets for topic in left for offsets in topic.values())

    def _read(self, topic: str, offsets: OffsetRange) -> dict[int, Record]:
        """Read the records by offset; fewer if the topic ends earlier."""
        with closing(self._kafka.reader(topic)) as reader, suppress(BeyondEnd):
            return {one.offset: one for one in reader.read({0: offsets}, stall_timeout_s=STALL_TIMEOUT_S)}
        return {}

    def _timed(self, act: Callable[[int], None]) -> tuple[float, ...]:
        """Return the time of each call but the first, which connects."""
        clock, took_s = self._environment.clock, list[float]()
        until_s = clock() + self._limit_s
        while len(took_s) <= self._most and (clock() < until_s or len(took_s) < 2):
            began_s = clock()
            act(len(took_s))
            took_s.append(clock() - began_s)
        return tuple(took_s[1:])
