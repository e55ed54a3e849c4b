"""The output producer of the in-memory Kafka: transactions that appear as a whole, with a group's offset.

The records of a transaction appear at its commit, with the marker behind them that takes an offset in each partition.
So every reader of the twin sees what one with `read_committed` sees on a real cluster. Without transactions they appear
when the commit waits for them, before the offset is stored.
"""

from collections.abc import Callable
from typing import Protocol

from statelog.errors import BrokerUnavailable, ClosedError, Fenced, Misuse, NotFound, OutcomeUnknown, ValueTooLarge
from statelog.kafka.config import MAX_MESSAGE_BYTES
from statelog.kafka.port import GroupOffset
from statelog.schemas.outputs.output import Output
from statelog.testing.cluster import RECORD_OVERHEAD_BYTES, MemoryCluster
from statelog.testing.faults import AnswerKind

_SEED, _M, _R, _MASK = 0x9747B28C, 0x5BD1E995, 24, 0xFFFFFFFF


class _ClusterView(Protocol):
    """One process' view of the cluster: `MemoryKafka`."""

    cluster: MemoryCluster

    def published(self, group: str, topic: str, partition: int) -> GroupOffset:
        """Return the offset of a group."""
        ...


class MemoryOutputProducer:
    """One output producer; implements `kafka.OutputProducer`. Made by `MemoryKafka.output_producer`.

    Its calls, for faults: init_transactions, published, flush, send_offsets, commit_transaction, abort_transaction.
    """

    def __init__(self, kafka: _ClusterView, name: str, topic: str, *, is_transactional: bool) -> None:
        self._kafka = kafka
        self._cluster = kafka.cluster
        self._name = name
        self._topic = topic
        self._is_transactional = is_transactional
        self._number = 0
        self._is_started = False
        self._records: list[Output] | None = None
        self._is_closed = False

    def start(self) -> GroupOffset:
        """Fence every earlier producer of this name, and return the stored offset."""
        self._check_open()
        if self._is_transactional:
            self._ask("init_transactions", self._fence_earlier)
        self._is_started = True
        return self._kafka.published(self._name, self._topic, 0)

    def begin(self) -> None:
        """Begin a transaction."""
        self._check_started()
        self._records = []

    def send(self, record: Output) -> None:
        """Add a record to the transaction. Raises ValueTooLarge."""
        self._check_started()
        if self._records is None:
            raise Misuse("no transaction has begun", hint="Call begin first")
        if _size(record) >= MAX_MESSAGE_BYTES:
            raise ValueTooLarge("a record is larger than Kafka may take", topic=record.topic, size_bytes=_size(record))
        self._records.append(record)

    def commit(self, offset: int, text: str = "") -> None:
        """Let the records appear, and store the offset with them."""
        self._check_started()
        records = self._records or []
        self._ask("flush", lambda: self._deliver(records))
        if not self._is_transactional:
            self._ask("send_offsets", lambda: self._store(offset, text))
            self._records = None
            return
        self._ask("send_offsets", lambda: None)
        self._records = None
        try:
            self._ask("commit_transaction", lambda: self._commit(records, offset, text))
        except BrokerUnavailable as error:
            hint = "Start another producer of this name: the stored offset shows it"
            what = f"a transaction was committed or not: {error.message}"
            raise OutcomeUnknown(what, hint=hint, transactional_id=self._name) from None

    def abort(self) -> None:
        """Abort the transaction, if one has begun."""
        self._check_started()
        if self._records is not None:
            self._records = None
            if self._is_transactional:
                self._ask("abort_transaction", lambda: None)

    def close(self) -> None:
        """Drop the transaction, and refuse further use. Idempotent."""
        self._records, self._is_closed = None, True

    # ---- on the cluster, under its lock

    def _fence_earlier(self) -> None:
        self._number = self._cluster.output_producers[self._name] = self._cluster.next_producer()

    def _deliver(self, records: list[Output]) -> None:
        """Check that each topic takes its records. Without a transaction they appear, up to the first refusal."""
        for record in records:
            described = self._cluster.describe(record.topic)
            if described is None or (record.partition or 0) >= described.partitions:
                what = f"no such topic or partition while sending a record to topic {record.topic}"
                raise NotFound(what, topic=record.topic, partition=record.partition)
            if _size(record) + RECORD_OVERHEAD_BYTES > int(described.config["max.message.bytes"]):
                raise ValueTooLarge("a topic refuses a record: it is larger than max.message.bytes", topic=record.topic)
            if not self._is_transactional:
                self._append(record)

    def _commit(self, records: list[Output], offset: int, text: str) -> None:
        touched = {(record.topic, self._append(record)) for record in records}
        for topic, partition in touched:
            self._cluster.insert_gap(topic, partition, 1)
        self._store(offset, text)

    def _store(self, offset: int, text: str) -> None:
        self._cluster.published[self._name, self._topic, 0] = offset, text

    def _append(self, record: Output) -> int:
        described = self._cluster.describe(record.topic)
        if described is None:
            raise NotFound("the topic was deleted in a transaction", topic=record.topic)
        partition = record.partition
        if partition is None:
            partition = 0 if record.key is None else partition_of_key(record.key, described.partitions)
        self._cluster.append_output(record, partition)
        return partition

    def _ask(self, method: str, effect: Callable[[], None]) -> None:
        """Make one call. Its effect remains even if the answer is lost; an unavailable one has none."""
        cluster = self._cluster
        with cluster.lock:
            cluster.check_up()
            answer = cluster.answer(method, self._topic)
            if method != "init_transactions":
                self._check_fence()
            effect()
            if answer.kind is AnswerKind.LOST:
                cluster.lose(answer)

    def _check_fence(self) -> None:
        if self._is_transactional and self._cluster.output_producers.get(self._name) != self._number:
            raise Fenced("a later output producer has started", transactional_id=self._name)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the output producer is closed", hint="Make a new one")

    def _check_started(self) -> None:
        self._check_open()
        if not self._is_started:
            raise Misuse("the output producer has not been started", hint="Call start first")


def _size(record: Output) -> int:
    return len(record.value or b"") + len(record.key or b"")


def partition_of_key(key: bytes, partitions: int) -> int:
    """Return the partition where Kafka's clients put a key: by its murmur2 hash."""
    return (_murmur2(key) & 0x7FFFFFFF) % partitions


def _murmur2(data: bytes) -> int:
    hashed, whole = _SEED ^ len(data), len(data) & ~3
    for at in range(0, whole, 4):
        part = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        part = (part ^ (part >> _R)) * _M & _MASK
        hashed = (hashed * _M & _MASK) ^ part
    if len(data) > whole:
        hashed = (hashed ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    hashed = (hashed ^ (hashed >> 13)) * _M & _MASK
    return hashed ^ (hashed >> 15)
