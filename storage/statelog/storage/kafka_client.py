"""The Kafka port on confluent-kafka: topics, offsets, truncation, and the makers of producers and readers.

Owns one librdkafka admin client, made at first use, which threads may share. It executes and translates, it decides
nothing: every error of the client becomes one of ours with the brokers, the topic and the partition as facts. Answers
are awaited for at most `request_timeout_s`, by default what the settings say; only what passes by itself (a leader that
is being elected) is asked again within that time.
"""

import concurrent.futures
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import confluent_kafka
from confluent_kafka import ConsumerGroupTopicPartitions, TopicCollection, TopicPartition, admin

from statelog.schemas.errors import AlreadyExists, BeyondEnd, BrokerUnavailable, Fact, Misuse, NotFound
from statelog.storage.kafka import OffsetRange, TopicDescription, TopicSpec
from statelog.storage.kafka_config import ClientConfig, admin_properties
from statelog.storage.kafka_errors import client_error
from statelog.storage.kafka_process import ProcessGuard
from statelog.storage.kafka_producer import ConfluentProducer, kafka_error
from statelog.storage.kafka_reader import ConfluentReader

__all__ = ["ConfluentKafka"]

_LOG = logging.getLogger("statelog.kafka")
_RETRY_S = 0.02
_GRACE_S = 1.0
"""The client reports its own time-out, with its reason; we wait this much longer to hear it."""
_MOVING = frozenset({
    "NOT_LEADER_FOR_PARTITION", "LEADER_NOT_AVAILABLE", "UNKNOWN_LEADER_EPOCH", "FENCED_LEADER_EPOCH",
    "OFFSET_NOT_AVAILABLE", "REPLICA_NOT_AVAILABLE", "UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_ID", "_NOENT",
})  # fmt: skip
"""Answers about a partition that a moving leader or a topic just made can give, as well as a missing one."""
_LOADING = frozenset({"COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"})
"""Answers about a group that pass by themselves."""

K = TypeVar("K")
T = TypeVar("T")


class _Refused(Exception):
    """What the broker or the client answered instead of a result."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(name)
        self.name = name
        self.text = text


class ConfluentKafka:
    """One cluster, as seen by one process; implements `kafka.Kafka`."""

    def __init__(
        self,
        config: ClientConfig,
        *,
        request_timeout_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._config = config
        self._timeout_s = config.request_timeout_s if request_timeout_s is None else request_timeout_s
        self._clock = clock
        self._sleep = sleep
        self._guard = ProcessGuard("Kafka client")
        self._making = threading.Lock()
        self._native: admin.AdminClient | None = None

    def __repr__(self) -> str:
        return f"ConfluentKafka({self._config!r})"

    def cluster_id(self) -> str:
        """The cluster's own id. Raises BrokerUnavailable."""
        what = "asking for the cluster id"
        answer = self._ask(what, lambda client: client.describe_cluster(request_timeout=self._timeout_s))
        if not answer.cluster_id:
            raise BrokerUnavailable("the cluster has no id yet", bootstrap_servers=self._config.bootstrap_servers)
        return answer.cluster_id

    def describe_topic(self, topic: str) -> TopicDescription | None:
        """The topic as it is now, or None if there is none. Raises BrokerUnavailable."""
        client = self._client()
        resource = admin.ConfigResource(admin.ResourceType.TOPIC, topic)
        topics = client.describe_topics(TopicCollection([topic]), request_timeout=self._timeout_s)
        configs = client.describe_configs([resource], request_timeout=self._timeout_s)
        self._await(topics, configs)
        try:
            described, entries = self._result(topics[topic]), self._result(configs[resource])
        except _Refused as refused:
            if refused.name in {"UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_ID"}:
                return None
            raise self._error(refused, "describing a topic", topic=topic) from None
        return TopicDescription(
            name=topic,
            topic_id=str(described.topic_id),
            partitions=len(described.partitions),
            replication_factor=min((len(p.replicas) for p in described.partitions), default=0),
            config={name: entry.value for name, entry in entries.items() if entry.value is not None},
        )

    def create_topic(self, spec: TopicSpec) -> None:
        """Create a topic and wait until its leaders answer. Raises AlreadyExists, ConfigError, BrokerUnavailable."""
        new = admin.NewTopic(spec.name, spec.partitions, spec.replication_factor, config=dict(spec.config))
        made = self._client().create_topics([new], request_timeout=self._timeout_s, operation_timeout=self._timeout_s)
        try:
            self._result(made[spec.name])
        except _Refused as refused:
            if refused.name == "TOPIC_ALREADY_EXISTS":
                hint = "Open it, or choose another name"
                raise AlreadyExists(f"topic {spec.name} exists already", hint=hint, topic=spec.name) from None
            raise self._error(refused, "creating a topic", topic=spec.name) from None
        self._await_leaders(spec.name, range(spec.partitions))

    def delete_topic(self, topic: str) -> None:
        """Delete a topic and wait until it is gone. Raises BrokerUnavailable."""
        client = self._client()
        gone = client.delete_topics([topic], request_timeout=self._timeout_s, operation_timeout=self._timeout_s)
        try:
            self._result(gone[topic])
        except _Refused as refused:
            if refused.name != "UNKNOWN_TOPIC_OR_PART":
                raise self._error(refused, "deleting a topic", topic=topic) from None
        deadline = self._clock() + self._timeout_s
        while self.describe_topic(topic) is not None:
            self._wait_again(deadline, "the topic is still there after its deletion", topic=topic)

    def offsets(self, topic: str, partitions: Sequence[int]) -> dict[int, OffsetRange]:
        """Log start and log end of each partition, asked of the broker now. Raises NotFound, BrokerUnavailable."""
        deadline = self._clock() + self._timeout_s
        while True:
            try:
                return self._list_offsets(topic, partitions)
            except _Refused as refused:
                if refused.name not in _MOVING:
                    raise self._error(refused, "asking for offsets", topic=topic) from None
                self._check_partitions(topic, partitions)
                self._wait_again(deadline, "a partition has no leader", topic=topic)

    def delete_records(self, topic: str, before: Mapping[int, int]) -> dict[int, int]:
        """Truncate below the offsets in `before`; returns the log starts. Raises Misuse, BeyondEnd, NotFound."""
        if any(offset < 0 for offset in before.values()):
            raise Misuse("an offset is negative", hint="Kafka would read it as 'everything'", topic=topic)
        if not before:
            return {}
        asked = {p: TopicPartition(topic, p, offset) for p, offset in before.items()}
        answers = self._client().delete_records(
            list(asked.values()), request_timeout=self._timeout_s, operation_timeout=self._timeout_s
        )
        try:
            return {p: self._result(answers[key]).low_watermark for p, key in asked.items()}
        except _Refused as refused:
            if refused.name == "OFFSET_OUT_OF_RANGE":
                self._check_ends(topic, before)
            if refused.name in _MOVING:
                self._check_partitions(topic, sorted(before))
            raise self._error(refused, "deleting records", topic=topic) from None

    def publish_offset(self, group: str, topic: str, partition: int, offset: int) -> None:
        """Commit a group offset, for Kafka's own lag tools. Raises BrokerUnavailable."""
        place = TopicPartition(topic, partition, offset)
        facts: dict[str, Fact] = {"group": group, "topic": topic, "partition": partition}
        deadline = self._clock() + self._timeout_s
        while (refused := self._publish(ConsumerGroupTopicPartitions(group, [place]))) is not None:
            # A broker that has just started loads its groups first.
            if refused.name not in _LOADING or self._clock() >= deadline:
                raise self._error(refused, "publishing a group offset", **facts)
            self._sleep(_RETRY_S)

    def producer(self) -> ConfluentProducer:
        """A new idempotent producer, with a producer id of its own."""
        self._guard.check()
        return ConfluentProducer(self._config)

    def reader(self, topic: str) -> ConfluentReader:
        """A new reader of one topic."""
        self._guard.check()
        return ConfluentReader(self._config, topic, self.offsets, self._clock)

    def close(self) -> None:
        """Release the admin client. Idempotent."""
        self._guard.close()
        self._native = None

    def _client(self) -> admin.AdminClient:
        self._guard.check()  # Before the lock: a fork may have copied it while another thread had it.
        with self._making:
            if self._native is None:
                self._native = self._make_client()
            native = self._native
        native.poll(0)  # Hands the client's log lines on; they would pile up otherwise.
        return native

    def _make_client(self) -> admin.AdminClient:
        try:
            native = admin.AdminClient(admin_properties(self._config), logger=_LOG)
        except confluent_kafka.KafkaException as refused:
            name, text = kafka_error(refused, self._config)
            raise client_error(name, text, "making a client", self._config.bootstrap_servers) from None
        self._guard.hold(native)
        return native

    def _publish(self, request: ConsumerGroupTopicPartitions) -> _Refused | None:
        """Why it was not published, if so: the group as a whole was refused, or one of its partitions."""
        answers = self._client().alter_consumer_group_offsets([request], request_timeout=self._timeout_s)
        try:
            places = self._result(answers[request.group_id]).topic_partitions or []
        except _Refused as refused:
            return refused
        errors = [place.error for place in places if place.error is not None]
        return _Refused(errors[0].name(), self._config.redact(errors[0].str())) if errors else None

    def _ask(self, doing: str, call: Callable[[admin.AdminClient], "concurrent.futures.Future[T]"]) -> T:
        try:
            return self._result(call(self._client()))
        except _Refused as refused:
            raise self._error(refused, doing) from None

    def _results(self, answers: "Mapping[K, concurrent.futures.Future[T]]") -> dict[K, T]:
        """All answers, or _Refused once all are there: none may be under way when the client is dropped."""
        self._await(answers)
        return {key: self._result(future) for key, future in answers.items()}

    def _await(self, *answers: "Mapping[Any, concurrent.futures.Future[Any]]") -> None:
        """Wait for all: one refusal must not leave others under way, because the client may be dropped next."""
        concurrent.futures.wait(
            [future for mapping in answers for future in mapping.values()], self._timeout_s + _GRACE_S
        )

    def _result(self, future: "concurrent.futures.Future[T]") -> T:
        """The answer, or _Refused. The future must stay in the mapping that the client returned until it is done."""
        try:
            return future.result(timeout=self._timeout_s + _GRACE_S)
        except confluent_kafka.KafkaException as refused:
            # The future keeps its exception, and through the frames of its traceback it would keep the client alive.
            refused.__traceback__ = None
            raise _Refused(*kafka_error(refused, self._config)) from None
        except concurrent.futures.TimeoutError:
            raise _Refused("_TIMED_OUT", f"no answer within {self._timeout_s:g} s") from None

    def _error(self, refused: _Refused, doing: str, **facts: Fact) -> Exception:
        return client_error(refused.name, refused.text, doing, self._config.bootstrap_servers, **facts)

    def _list_offsets(self, topic: str, partitions: Sequence[int]) -> dict[int, OffsetRange]:
        client = self._client()
        keys = {p: TopicPartition(topic, p) for p in partitions}
        if not keys:
            return {}
        # One after the other: a second question in the time of the first one's look for leaders has crashed librdkafka.
        starts, ends = (
            self._results(client.list_offsets(dict.fromkeys(keys.values(), spec), request_timeout=self._timeout_s))
            for spec in (admin.OffsetSpec.earliest(), admin.OffsetSpec.latest())
        )
        return {p: OffsetRange(starts[key].offset, ends[key].offset) for p, key in keys.items()}

    def _await_leaders(self, topic: str, partitions: Sequence[int]) -> None:
        deadline = self._clock() + self._timeout_s
        while True:
            try:
                self._list_offsets(topic, partitions)
            except _Refused as refused:
                if refused.name not in _MOVING:
                    raise self._error(refused, "waiting for a new topic's leaders", topic=topic) from None
                self._wait_again(deadline, "a new topic's leaders do not answer", topic=topic)
            else:
                return

    def _check_partitions(self, topic: str, partitions: Sequence[int]) -> None:
        described = self.describe_topic(topic)
        if described is None:
            raise NotFound(f"topic {topic} does not exist", hint="Create the log first", topic=topic)
        absent = [p for p in partitions if not 0 <= p < described.partitions]
        if absent:
            raise NotFound(
                f"topic {topic} has no partition {absent[0]}", topic=topic, partition=absent[0],
                partitions=described.partitions,
            )  # fmt: skip

    def _check_ends(self, topic: str, before: Mapping[int, int]) -> None:
        for partition, available in self.offsets(topic, sorted(before)).items():
            if before[partition] > available.end:
                raise BeyondEnd(
                    f"{topic}[{partition}] ends below the offset to truncate to",
                    topic=topic, partition=partition, offset=before[partition], log_end=available.end,
                )  # fmt: skip

    def _wait_again(self, deadline: float, what: str, **facts: Fact) -> None:
        if self._clock() >= deadline:
            raise BrokerUnavailable(what, hint="", bootstrap_servers=self._config.bootstrap_servers, **facts)
        # The client remembers "no such topic" for longer than we wait; only a new one asks the broker again.
        with self._making:
            self._guard.drop()  # Else each try would leave a client, its threads and its connections behind.
            self._native = None
        self._sleep(_RETRY_S)
