"""The baseline: what a good plain confluent-kafka program does, one record per change."""

import contextlib
import time
import uuid
from collections.abc import Callable, Generator, Iterable, Sequence

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.workload import Pairs

__all__ = ["PlainTopic", "plain_topic"]

PARTITIONS = 8
_CONNECT_S = 0.05
_RECORD_BYTES_MAX = 16 << 20
"""As large as a chunk may be."""
_ANY = -1
"""No partition in particular: the client takes one by the key."""
_QUIET = {"log_level": 3}
"""A coordinator that loads, or a client that closes, says so on stderr otherwise, among the figures."""


class PlainTopic:
    """A topic, filled and read the plain way, with settings that measured well."""

    def __init__(self, bootstrap: str, name: str, partitions: int) -> None:
        self.name = name
        self._partitions = partitions
        self._bootstrap = bootstrap

    def connected(self) -> Producer:
        """One for `produce`, with the head start that it needs: who produces at once waits half a second for its id."""
        producer = self._producer({"linger.ms": 10, "batch.size": 1 << 20, "delivery.report.only.error": True})
        producer.poll(_CONNECT_S)
        return producer

    def produce(self, pairs: Pairs, producer: Producer | None = None) -> None:
        """One record per change, acks=all, idempotent; an error callback only, which is the fastest way."""
        errors: list[object] = []

        def failed(error: object, _message: object) -> None:
            if error is not None:
                errors.append(error)

        if producer is None:  # Which has a length, and is false while it is empty.
            producer = self.connected()
        for key, value in pairs:
            while True:
                try:
                    producer.produce(self.name, value, key, on_delivery=failed)
                    break
                except BufferError:
                    producer.poll(0.1)
        while producer.flush(1):
            pass
        assert not errors

    def connected_as_writers(self) -> Producer:
        """One for `send`, which compresses as a writer has it, with the same head start."""
        producer = self._producer({"linger.ms": 0, "compression.type": "lz4"})
        producer.poll(_CONNECT_S)
        return producer

    def send(self, values: Iterable[tuple[int, bytes]], producer: Producer | None = None) -> None:
        """Records of these partitions and values, and no more than that."""
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
        """One that reads all of the topic from its beginning."""
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": uuid.uuid4().hex,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "check.crcs": True,
                "fetch.message.max.bytes": 32 << 20,
                "fetch.max.bytes": 64 << 20,
                "queued.min.messages": 1_000_000,
                **_QUIET,
            }
        )
        consumer.assign([TopicPartition(self.name, p, 0) for p in range(self._partitions)])
        return consumer

    def replay(self, expected: int) -> dict[bytes, bytes]:
        """All records into a dict. With the client's own settings, or in larger batches, half as fast or less."""
        consumer = self.consumer()
        state: dict[bytes, bytes] = {}
        seen = 0
        while seen < expected:
            for message in consumer.consume(1000, 0.1):
                key, value = message.key(), message.value()
                if key:
                    if value is None:
                        state.pop(key, None)
                    else:
                        state[key] = value
                    seen += 1
        consumer.close()
        return state

    def flush_latencies(self, sets: list[Pairs]) -> list[float]:
        """Seconds to produce and flush each set: neither atomic nor fenced."""
        producer = self._producer({"linger.ms": 0})
        return [self._timed(producer, pairs) for pairs in sets]

    def transaction_latencies(
        self,
        sets: list[Pairs],
        partitions: Sequence[int] | None = None,
        ready: Callable[[], object] = lambda: None,
    ) -> list[float]:
        """Seconds to produce each set in a Kafka transaction and commit it; in some partitions, in turns, or wherever
        the client puts a key. Waits before the first until it is `ready`.
        """
        of = partitions or [_ANY]
        producer = self._producer({"linger.ms": 0, "transactional.id": uuid.uuid4().hex})
        producer.init_transactions(30)
        ready()
        found: list[float] = []
        for pairs in sets:
            started_s = time.perf_counter()
            producer.begin_transaction()
            for number, (key, value) in enumerate(pairs):
                producer.produce(self.name, value, key, of[number % len(of)])
            producer.commit_transaction(30)
            found.append(time.perf_counter() - started_s)
        return found

    def _timed(self, producer: Producer, pairs: Pairs) -> float:
        started_s = time.perf_counter()
        for key, value in pairs:
            producer.produce(self.name, value, key)
        producer.flush()
        return time.perf_counter() - started_s

    def _producer(self, extra: dict[str, str | int | bool]) -> Producer:
        return Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "message.max.bytes": _RECORD_BYTES_MAX,
                "batch.num.messages": 100_000,
                "queue.buffering.max.messages": 2_000_000,
                "queue.buffering.max.kbytes": 512 << 10,
                "enable.metrics.push": False,
                **_QUIET,
                **extra,
            }
        )


@contextlib.contextmanager
def plain_topic(bootstrap: str, *, partitions: int = PARTITIONS) -> Generator[PlainTopic]:
    """A new topic, deleted at the end."""
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
    """Wait until every partition takes a record, so that no clock runs meanwhile."""
    probe = Producer({"bootstrap.servers": bootstrap, **_QUIET})
    for partition in range(partitions):
        probe.produce(name, b"", b"", partition=partition)
    assert probe.flush(30) == 0
