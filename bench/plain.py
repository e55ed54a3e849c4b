"""The baseline: a good plain confluent-kafka program, with one record per change."""

import contextlib
import uuid
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.workload import Pairs

__all__ = ["CONSUMER", "PARTITIONS", "PRODUCER", "PlainTopic", "plain_topic"]

PARTITIONS = 8
_CONNECT_S = 0.05
_RECORD_BYTES_MAX = 16 << 20
"""The largest size of a chunk."""
_ANY = -1
"""No fixed partition: the client chooses one by the key."""
_QUIET = {"log_level": 3}
"""Suppresses log lines of a loading coordinator or a closing client, which would land among the figures."""
PRODUCER: dict[str, str | int | bool] = {
    "enable.idempotence": True,
    "acks": "all",
    "compression.type": "lz4",
    "message.max.bytes": _RECORD_BYTES_MAX,
    "batch.num.messages": 100_000,
    "queue.buffering.max.messages": 2_000_000,
    "queue.buffering.max.kbytes": 512 << 10,
    "enable.metrics.push": False,
    **_QUIET,
}
"""The settings of every producer of the baseline."""
CONSUMER: dict[str, str | int | bool] = {
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    "check.crcs": True,
    "fetch.message.max.bytes": 4 << 20,
    "fetch.max.bytes": 64 << 20,
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 1 << 20,
    # By default a partition with enough fetched records rests for a second, in which a fast loop runs dry.
    "fetch.queue.backoff.ms": 2,
    **_QUIET,
}
"""The settings of every consumer of the baseline."""
_AT_ONCE: dict[str, str | int | bool] = {"linger.ms": 5}
"""Lets records gather in batches until a flush, which does not wait for it."""
_PRODUCED, _CONSUMED = 1000, 500
"""Records of a call. Larger calls exceed the processor's caches, and take a fifth more of its time."""


class PlainTopic:
    """A topic that is filled and read in the plain way, with settings that measured well."""

    def __init__(self, bootstrap: str, name: str, partitions: int) -> None:
        self.name = name
        self._partitions = partitions
        self._bootstrap = bootstrap

    def connected(self) -> Producer:
        """Return a connected producer for `produce`: a new one waits half a second for its id."""
        producer = self._producer({"linger.ms": 10, "batch.size": 1 << 20, "delivery.report.only.error": True})
        producer.poll(_CONNECT_S)
        return producer

    def produce(self, pairs: Pairs, producer: Producer | None = None) -> None:
        """Send one record per change, acks=all, idempotent, compressed, in batches of calls, and wait once."""
        errors: list[object] = []

        def failed(error: object, _message: object) -> None:
            if error is not None:
                errors.append(error)

        if producer is None:  # A producer has a length, and is false while it is empty.
            producer = self.connected()
        for start in range(0, len(pairs), _PRODUCED):
            messages: list[dict[str, Any]] = [
                {"key": key, "value": value} for key, value in pairs[start : start + _PRODUCED]
            ]
            while messages:
                producer.produce_batch(self.name, messages, on_delivery=failed)
                messages = [one for one in messages if one.pop("_error", None)]  # Messages that did not fit.
                producer.poll(0.02 if messages else 0)
        while producer.flush(1):
            pass
        assert not errors

    def connected_as_writers(self) -> Producer:
        """Return a connected producer for `send`, without linger, as in a writer."""
        producer = self._producer({"linger.ms": 0})
        producer.poll(_CONNECT_S)
        return producer

    def send(self, values: Iterable[tuple[int, bytes]], producer: Producer | None = None) -> None:
        """Send only records of these partitions and values."""
        if producer is None:  # As above.
            producer = self.connected_as_writers()
        for partition, value in values:
            while True:
                try:
                    producer.produce(self.name, value, partition=partition)
                    break
                except BufferError:
                    producer.poll(0.1)
        while producer.flush(1):
            pass

    def consumer(self) -> Consumer:
        """Return a consumer that reads all of the topic from its beginning."""
        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": uuid.uuid4().hex, **CONSUMER})
        consumer.assign([TopicPartition(self.name, p, 0) for p in range(self._partitions)])
        return consumer

    def replay(self, expected: int) -> dict[bytes, bytes]:
        """Read all records into a dict."""
        consumer = self.consumer()
        state: dict[bytes, bytes] = {}
        seen = 0
        while seen < expected:
            for message in consumer.consume(_CONSUMED, 0.1):
                key, value = message.key(), message.value()
                if key:
                    if value is None:
                        state.pop(key, None)
                    else:
                        state[key] = value
                    seen += 1
        consumer.close()
        return state

    def flush(self) -> Callable[[Pairs], None]:
        """Return a function that produces and flushes some changes, neither atomic nor fenced."""
        producer = self._producer(_AT_ONCE)

        def flush(changes: Pairs) -> None:
            for key, value in changes:
                producer.produce(self.name, value, key)
            producer.flush()

        return flush

    def transaction(self, partitions: Sequence[int] | None = None) -> Callable[[Pairs], None]:
        """Return a function that produces and commits some changes in one Kafka transaction.

        `partitions`: used in turn; None: the client chooses by the key.
        """
        of = partitions or [_ANY]
        producer = self._producer({**_AT_ONCE, "transactional.id": uuid.uuid4().hex})
        producer.init_transactions(30)

        def transaction(changes: Pairs) -> None:
            producer.begin_transaction()
            for number, (key, value) in enumerate(changes):
                producer.produce(self.name, value, key, of[number % len(of)])
            producer.commit_transaction(30)

        return transaction

    def _producer(self, extra: dict[str, str | int | bool]) -> Producer:
        return Producer({"bootstrap.servers": self._bootstrap, **PRODUCER, **extra})


@contextlib.contextmanager
def plain_topic(bootstrap: str, *, partitions: int = PARTITIONS) -> Generator[PlainTopic]:
    """Yield a new topic, and delete it at the end."""
    admin = AdminClient({"bootstrap.servers": bootstrap, **_QUIET})
    name = f"bench-plain-{uuid.uuid4().hex[:12]}"
    large = {"max.message.bytes": str(_RECORD_BYTES_MAX + (1 << 20))}
    admin.create_topics([NewTopic(name, partitions, 1, config=large)])[name].result(30)
    _await_leaders(bootstrap, name, partitions)
    try:
        yield PlainTopic(bootstrap, name, partitions)
    finally:
        admin.delete_topics([name])[name].result(30)


def _await_leaders(bootstrap: str, name: str, partitions: int) -> None:
    """Wait until every partition takes a record, before any clock runs."""
    probe = Producer({"bootstrap.servers": bootstrap, **_QUIET})
    for partition in range(partitions):
        probe.produce(name, b"", b"", partition=partition)
    assert probe.flush(30) == 0
