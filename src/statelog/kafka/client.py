"""The Kafka port on confluent-kafka: topics, offsets, truncation; makes producers and readers.

It executes and translates, and decides nothing: every error of the client becomes one of ours, with brokers, topic and
partition as facts. It waits for answers for at most `request_timeout_s`, by default that of the settings. Within that
time it only repeats requests after a transient answer: a leader election, no offset, or an end below an observed one
(`positions`).
"""

import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from copy import copy
from functools import partial
from typing import Any

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
    admin,
)

from statelog.environment import begin, start_thread
from statelog.errors import AlreadyExists, BeyondEnd, BrokerUnavailable, Fact, Misuse, NotFound
from statelog.kafka.admin import AdminSession, Answers, Leaders, Retries
from statelog.kafka.config import ClientConfig, consumer_properties
from statelog.kafka.errors import client_error
from statelog.kafka.follower import ConfluentFollower
from statelog.kafka.native import Refused, kafka_error, make_client, native
from statelog.kafka.outputs import ConfluentOutputProducer
from statelog.kafka.port import GroupOffset, OffsetRange, TopicDescription, TopicSpec
from statelog.kafka.positions import HighWater, Listed, ask_offsets, known_id
from statelog.kafka.producer import ConfluentProducer
from statelog.kafka.reader import ConfluentReader, IdleConsumers
from statelog.kafka.shared_producer import CLIENTS

_ABSENT = frozenset({"UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_ID"})
_MOVING = _ABSENT | {
    "NOT_LEADER_FOR_PARTITION", "LEADER_NOT_AVAILABLE", "UNKNOWN_LEADER_EPOCH", "FENCED_LEADER_EPOCH",
    "OFFSET_NOT_AVAILABLE", "REPLICA_NOT_AVAILABLE", "_NOENT",
}  # fmt: skip
"""Errors of a partition whose leader moves, whose topic is new, or that does not exist."""
_SOME_TOPIC = "__consumer_offsets"
_TIMED_OUT = -185
_INCLUDED = "READ, WRITE and DELETE include it"
_LONGER_S = 600.0
"""How much longer a request to a group may take than we wait: the client is closed by then."""
_LOOK_S = 0.5
"""How long one request to a group's coordinator may take, before the consumer's own error is read."""
_LOADING = frozenset({
    "COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR", "_TIMED_OUT",
    "UNSTABLE_OFFSET_COMMIT",
})  # fmt: skip
"""Transient errors of a group."""
_REFUSED = frozenset({"GROUP_AUTHORIZATION_FAILED", "TOPIC_AUTHORIZATION_FAILED"})
_SEEN: dict[str, HighWater] = {}
"""The ends of logs that this process has observed, by the clusters' brokers."""


def _resource(topic: str) -> admin.ConfigResource:
    return admin.ConfigResource(admin.ResourceType.TOPIC, topic)


def _ask_topics(client: admin.AdminClient, topics: Sequence[str], limit_s: float) -> list[Answers]:
    wanted = TopicCollection(list(topics))
    return [
        client.describe_topics(wanted, request_timeout=limit_s, include_authorized_operations=True),
        client.describe_configs([_resource(topic) for topic in topics], request_timeout=limit_s),
    ]


def _ask_cluster(client: admin.AdminClient, limit_s: float) -> Answers:
    """Ask for the cluster's metadata, with a topic that need not exist, and is not created.

    `describe_cluster` asks for brokers alone. If the broker that answers has just started, and knows none yet,
    librdkafka ends the process (2.16: `rd_kafka_admin_response_parse: Assertion 'rko_result' failed`).
    """

    def ask() -> admin.ClusterMetadata:
        began_s = time.monotonic()
        try:
            return client.list_topics(_SOME_TOPIC, timeout=limit_s)
        except KafkaException as refused:
            # The client's error if it reached no broker in all of the time, or nearly all by another clock.
            if refused.args[0].name() == "_TRANSPORT" and time.monotonic() - began_s >= limit_s * 0.9:
                raise KafkaException(KafkaError(_TIMED_OUT, "no broker was reached")) from None
            raise

    return {"": begin(start_thread, ask)}


class ConfluentKafka:
    """One cluster, as seen by one process; implements `kafka.Kafka`.

    Objects with the same brokers share the observed ends of topics, unless they get their own `seen`. If it
    `keeps_consumers`, its readers share them between two reads, and `close` releases them.
    """

    def __init__(
        self,
        config: ClientConfig,
        *,
        request_timeout_s: float | None = None,
        keeps_consumers: bool = False,
        seen: HighWater | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._timeout_s = config.request_timeout_s if request_timeout_s is None else request_timeout_s
        self._seen = _SEEN.setdefault(config.bootstrap_servers, HighWater()) if seen is None else seen
        self._clock = clock
        self._admin = AdminSession(config, self._timeout_s, clock)
        self._made: dict[str, float] = {}
        self._idle = IdleConsumers(clock) if keeps_consumers else None
        self.is_lent = False
        """Whether its lender closes it."""

    def __repr__(self) -> str:
        return f"ConfluentKafka({self._config!r})"

    def cluster_id(self) -> str:
        """Return the cluster's own id. Raises BrokerUnavailable."""
        try:
            (answers,) = self._admin.ask(lambda client, limit_s: [_ask_cluster(client, limit_s)])
        except Refused as refused:
            raise self._error(refused, "asking for the cluster id") from None
        return self._cluster_id(answers)

    def _cluster_id(self, answers: Mapping[str, admin.ClusterMetadata]) -> str:
        cluster_id = answers[""].cluster_id
        if not cluster_id:
            raise BrokerUnavailable("the cluster has no id yet", bootstrap_servers=self._config.bootstrap_servers)
        return cluster_id

    def describe_topic(self, topic: str) -> TopicDescription | None:
        """Describe the topic as it is now; None if there is none. Raises BrokerUnavailable.

        Asks again for a topic that was just created here: a broker may not know it yet.
        """
        retries = self._retries()
        while True:
            described = self._describe(topic)
            is_new = self._clock() < self._made.get(topic, -math.inf)
            if described is not None or not is_new or not retries.again():
                return described

    def identify(self, topics: Sequence[str]) -> tuple[str, list[TopicDescription | None]]:
        """Return the cluster's own id, and these topics as they are now, in one request. Raises BrokerUnavailable."""
        try:
            *described, cluster = self._admin.ask(
                lambda client, limit_s: [*_ask_topics(client, topics, limit_s), _ask_cluster(client, limit_s)]
            )
        except Refused as refused:
            if refused.name not in _ABSENT | _REFUSED:
                raise self._error(refused, "describing a topic", topic=topics[0]) from None
            # Ask for each topic alone, to find the one that fails.
            found = [self.describe_topic(topic) for topic in topics]
            return self.cluster_id(), found
        return self._cluster_id(cluster), [self._description(topic, *described) for topic in topics]

    def _describe(self, topic: str) -> TopicDescription | None:
        try:
            described = self._admin.ask(lambda client, limit_s: _ask_topics(client, [topic], limit_s))
        except Refused as refused:
            if refused.name in _ABSENT:
                return None
            needs = f"DESCRIBE_CONFIGS, and DESCRIBE ({_INCLUDED}), on topic {topic}"
            raise self._error(refused, "describing a topic", needs, topic=topic) from None
        return self._description(topic, *described)

    def _description(
        self,
        topic: str,
        topics: Mapping[str, admin.TopicDescription],
        configs: Mapping[admin.ConfigResource, Mapping[str, admin.ConfigEntry]],
    ) -> TopicDescription:
        described, entries = topics[topic], configs[_resource(topic)]
        allowed = described.authorized_operations
        if self._seen.identify(topic, str(described.topic_id)):
            CLIENTS.retire(self._config, topic)
        return TopicDescription(
            name=topic,
            topic_id=str(described.topic_id),
            partitions=len(described.partitions),
            replication_factor=min((len(p.replicas) for p in described.partitions), default=0),
            config={name: entry.value for name, entry in entries.items() if entry.value is not None},
            operations=None if allowed is None else frozenset(operation.name for operation in allowed),
            in_sync=tuple(len(p.isr) if p.leader is not None else 0 for p in described.partitions),
        )

    def create_topic(self, spec: TopicSpec) -> None:
        """Create a topic, and wait until its leaders answer. Raises AlreadyExists, ConfigError, BrokerUnavailable."""
        new = admin.NewTopic(spec.name, spec.partitions, spec.replication_factor, config=dict(spec.config))
        try:
            self._admin.ask(
                lambda client, left_s: [client.create_topics([new], request_timeout=left_s, operation_timeout=left_s)],
                twice=False,  # A second request would fail because the first one made the topic.
            )
        except Refused as refused:
            if refused.name == "TOPIC_ALREADY_EXISTS":
                hint = "Open it, or choose another name"
                raise AlreadyExists(f"topic {spec.name} exists already", hint=hint, topic=spec.name) from None
            needs = f"CREATE on topic {spec.name}, or on the cluster"
            raise self._error(refused, "creating a topic", needs, topic=spec.name) from None
        self._forget(spec.name)
        self._made[spec.name] = self._clock() + self._timeout_s
        self.describe_topic(spec.name)  # Names a missing right at once; a request to the leaders would time out.
        self.offsets(spec.name, range(spec.partitions))

    def delete_topic(self, topic: str) -> None:
        """Delete a topic, and wait until it is gone. Raises BrokerUnavailable."""
        self._made.pop(topic, None)
        try:
            self._admin.ask(
                lambda client, left_s: [client.delete_topics([topic], request_timeout=left_s, operation_timeout=left_s)]
            )
        except Refused as refused:
            if refused.name not in _ABSENT:
                raise self._error(refused, "deleting a topic", f"DELETE on topic {topic}", topic=topic) from None
        self._forget(topic)
        retries = self._retries()
        while self.describe_topic(topic) is not None:
            if not retries.again():
                raise self._unavailable("the topic is still there after its deletion", topic=topic)
        self._seen.forget(topic)

    def _forget(self, topic: str) -> None:
        self._seen.forget(topic)
        CLIENTS.retire(self._config, topic)

    def offsets(
        self, topic: str, partitions: Sequence[int], *, at_least: Mapping[int, int] | None = None
    ) -> dict[int, OffsetRange]:
        """Ask for log start and log end of each partition now. Raises NotFound, BrokerUnavailable."""
        retries = self._retries()
        return ask_offsets(
            topic,
            self._seen,
            ask=lambda: self._ask_leaders(topic, partitions, retries),
            topic_id=lambda: known_id(self.describe_topic, topic),
            again=retries.again,
            enough=lambda: retries.is_mostly_over,
            at_least=at_least,
        )

    def delete_records(self, topic: str, before: Mapping[int, int]) -> dict[int, int]:
        """Truncate below the offsets in `before`. Return the log starts. Raises Misuse, BeyondEnd, NotFound."""
        if any(offset < 0 for offset in before.values()):
            raise Misuse("an offset is negative", hint="Kafka would read it as 'everything'", topic=topic)
        retries, starts = self._retries(), dict[int, int]()
        while before:
            try:
                return {**starts, **self._delete_records(topic, before)}
            except Refused as refused:
                below = self._below_start(topic, before) if refused.name == "OFFSET_OUT_OF_RANGE" else {}
                if below:
                    starts |= below
                    before = {p: offset for p, offset in before.items() if p not in below}
                    continue
                self._await_leaders(refused, "deleting records", f"DELETE on topic {topic}", topic, before, retries)
        return starts

    def _delete_records(self, topic: str, before: Mapping[int, int]) -> dict[int, int]:
        asked = {p: TopicPartition(topic, p, offset) for p, offset in before.items()}
        (answers,) = self._admin.ask(
            lambda client, limit_s: [
                client.delete_records(list(asked.values()), request_timeout=limit_s, operation_timeout=limit_s)
            ],
            leaders=Leaders(topic, asked.keys()),
        )
        return {p: answers[key].low_watermark for p, key in asked.items()}

    def publish_offset(self, group: str, topic: str, partition: int, offset: int, metadata: str = "") -> None:
        """Commit a group offset, for Kafka's own lag tools, with a text. Raises BrokerUnavailable."""
        request = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, partition, offset, metadata)])

        def commit(client: admin.AdminClient, limit_s: float) -> list[Answers]:
            return [client.alter_consumer_group_offsets([request], request_timeout=limit_s + _LONGER_S)]

        self._admin.guard.check()
        # A client of its own, closed before librdkafka gives up: if it then still finds a coordinator, it frees the
        # request a second time.
        with closing(AdminSession(self._config, self._timeout_s, self._clock, shares=False)) as session:
            doing = "publishing a group offset"
            self._ask_group(
                lambda: session.ask(commit)[0][group].topic_partitions or [], doing, group, topic, partition
            )

    def published(self, group: str, topic: str, partition: int) -> GroupOffset:
        """Return the group's offset and text, when no transaction is about to change it. Raises BrokerUnavailable."""
        return self.stored(group, topic, partition)[0]

    def stored(self, group: str, topic: str, partition: int) -> tuple[GroupOffset, Any]:
        """Return the same, and the client's name of the group, for a transaction. Raises BrokerUnavailable."""
        self._admin.guard.check()
        # A consumer that joins no group: after a coordinator moved, librdkafka's admin client kills the process.
        # With this isolation the coordinator answers once no transaction is about to change the offset.
        properties = {**consumer_properties(self._config), "group.id": group, "isolation.level": "read_committed"}
        consumer = make_client(Consumer, "a consumer", properties, self._config, deque(maxlen=4))
        try:
            ask = partial(self._committed, consumer, TopicPartition(topic, partition))
            (place,) = self._ask_group(ask, "asking for a group offset", group, topic, partition)
            return GroupOffset(max(place.offset, -1), place.metadata or ""), native(consumer.consumer_group_metadata)
        finally:
            native(consumer.close)

    def _committed(self, consumer: Consumer, place: TopicPartition) -> list[TopicPartition]:
        """Ask the group's coordinator for a partition's offset, once. Raises Refused."""
        try:
            return native(consumer.committed, [place], _LOOK_S)
        except KafkaException as error:
            event = native(consumer.poll, 0)  # Without the right to find the coordinator, no answer ever comes.
            refused = event.error() if event is not None else None
            is_refused = refused is not None and refused.name() in _REFUSED
            raise Refused(*kafka_error(KafkaException(refused) if is_refused else error, self._config)) from None

    def _ask_group(
        self, ask: Callable[[], list[TopicPartition]], doing: str, group: str, topic: str, partition: int
    ) -> list[TopicPartition]:
        """Return the coordinator's answer for a partition. Ask again while a new coordinator loads its groups."""
        retries = self._retries()
        while True:
            try:
                places = ask()
                errors = [place.error for place in places if place.error is not None]
                if not errors:
                    return places
                refused = Refused(errors[0].name(), self._config.redact(errors[0].str()))
            except Refused as error:
                refused = error
            if refused.name not in _LOADING or not retries.again(drop=False):
                needs = f"READ on group {group}, and on topic {topic}"
                raise self._error(refused, doing, needs, group=group, topic=topic, partition=partition)

    def producer(self) -> ConfluentProducer:
        """Make an idempotent producer. It shares a client, and so a producer id, with others of the process."""
        self._admin.guard.check()
        return ConfluentProducer(self._config, self._seen, lambda: not self._admin.guard.is_closed)

    def output_producer(self, name: str, topic: str, *, is_transactional: bool = True) -> ConfluentOutputProducer:
        """Make an output producer. It has a client of its own, from its start on."""
        self._admin.guard.check()
        return ConfluentOutputProducer(
            self._config, name, topic, self, is_transactional=is_transactional, timeout_s=self._timeout_s
        )

    def reader(self, topic: str) -> ConfluentReader:
        """Make a reader of one topic."""
        self._admin.guard.check()
        return ConfluentReader(self._config, topic, self, self._clock, self._seen, self._idle)

    def follower(self, topic: str, offset: int) -> ConfluentFollower:
        """Make a follower of partition 0 of one topic."""
        self._admin.guard.check()
        return ConfluentFollower(self._config, topic, offset, self)

    def lend(self) -> "ConfluentKafka":
        """Return a copy for borrowers, whose `close` does nothing. Each has producers of its own."""
        lent = copy(self)
        lent.is_lent = True
        return lent

    def close(self) -> None:
        """Release the admin client, and the clients that borrowers shared. Idempotent."""
        if self.is_lent:
            return
        self._admin.close()
        CLIENTS.close(self._config)
        if self._idle is not None:
            self._idle.close()

    def _ask_leaders(self, topic: str, partitions: Sequence[int], retries: Retries) -> dict[int, Listed]:
        """Return the leaders' answer. Wait for their election if necessary."""
        while True:
            try:
                return self._list_offsets(topic, partitions, retries.left_s)
            except Refused as refused:
                needs = f"DESCRIBE ({_INCLUDED}) on topic {topic}"
                self._await_leaders(refused, "asking for offsets", needs, topic, partitions, retries)

    def _list_offsets(self, topic: str, partitions: Sequence[int], limit_s: float) -> dict[int, Listed]:
        """Ask once. After a broken connection the client returns a negative offset, and no error."""
        keys = {p: TopicPartition(topic, p) for p in partitions}
        if not keys:
            return {}
        specs = (admin.OffsetSpec.earliest(), admin.OffsetSpec.latest())
        starts, ends = self._admin.ask(
            lambda client, left_s: [
                client.list_offsets(dict.fromkeys(keys.values(), spec), request_timeout=left_s) for spec in specs
            ],
            limit_s,
            leaders=Leaders(topic, keys.keys()),
        )
        return {p: Listed(starts[key].offset, ends[key].offset, ends[key].leader_epoch) for p, key in keys.items()}

    def _await_leaders(
        self, refused: Refused, doing: str, needs: str, topic: str, partitions: Iterable[int], retries: Retries
    ) -> None:
        """Wait after a transient refusal of the leaders. Raises our error for any other."""
        if refused.name not in _MOVING:
            raise self._error(refused, doing, needs, topic=topic) from None
        self._check_partitions(topic, sorted(partitions))
        if not retries.again():
            raise self._unavailable("a partition has no leader", topic=topic) from None

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

    def _below_start(self, topic: str, before: Mapping[int, int]) -> dict[int, int]:
        """Return the log starts of partitions that hold nothing below these offsets: Apache's brokers do nothing there,
        others refuse. Raises BeyondEnd if an offset lies above an end.
        """
        below: dict[int, int] = {}
        for partition, available in self.offsets(topic, sorted(before)).items():
            if before[partition] > available.end:
                raise BeyondEnd(
                    f"{topic}[{partition}] ends below the offset to truncate to",
                    topic=topic, partition=partition, offset=before[partition], log_end=available.end,
                )  # fmt: skip
            if before[partition] <= available.start:
                below[partition] = available.start
        return below

    def _error(self, refused: Refused, doing: str, needs: str = "", **facts: Fact) -> Exception:
        return client_error(refused.name, refused.text, doing, self._config.bootstrap_servers, needs=needs, **facts)

    def _unavailable(self, what: str, **facts: Fact) -> BrokerUnavailable:
        return BrokerUnavailable(what, hint="", bootstrap_servers=self._config.bootstrap_servers, **facts)

    def _retries(self) -> Retries:
        return Retries(self._timeout_s, self._admin, self._clock)


def _unlock_seen() -> None:
    for seen in _SEEN.values():
        seen.unlock()


os.register_at_fork(after_in_child=_unlock_seen)
