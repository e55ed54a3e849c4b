"""The output producer on confluent-kafka: records for any topics, in transactions that also store a group's offset.

Owns one librdkafka producer, from `start` to `close`. It repeats nothing by itself, and decides nothing: after an error
the caller closes it and starts another, which learns from the stored offset what was committed.

Invariants:
- The offset is read after earlier producers of the name were fenced, by a request that waits for their transactions.
- Nothing is committed unless every record of the transaction was delivered.
- No Python runs inside the client's calls: a C function stores the answers. The first answer of each error is enough.
- A call that waits for the coordinator has a thread of its own, and is left if it does not return: librdkafka 2.16 has
  been seen to forget its time-out. The caller closes the producer then, and starts another.
"""

import logging
import time
import warnings
from collections import deque
from collections.abc import Callable
from concurrent.futures import wait
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar

import confluent_kafka
from confluent_kafka import TopicPartition

from statelog.environment import GRACE_S, begin, start_thread
from statelog.errors import BrokerUnavailable, Fenced, Misuse, OutcomeUnknown, StatelogError, ValueTooLarge
from statelog.kafka.config import ClientConfig, output_properties
from statelog.kafka.errors import classify_delivery, client_error
from statelog.kafka.native import ProcessGuard, close_producer, kafka_error, last_error, make_client, native
from statelog.kafka.port import GroupOffset
from statelog.schemas.outputs.output import Output

T = TypeVar("T")

_LOG = logging.getLogger("statelog.kafka")
# The client says by it that a fenced transaction could not be aborted.
warnings.filterwarnings("ignore", "Producer abort_transaction failed during close", RuntimeWarning)
_FENCES = frozenset({"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "INVALID_PRODUCER_ID_MAPPING"})
"""Errors of a producer whose transactional id has a later one, or whose transaction the brokers timed out."""
_TOO_LARGE = frozenset({"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE"})
_FULL_S = 0.1
_ABORT_S = 1.0
"""How long a close waits for the end of its transaction: the next producer of the name ends it, too."""


class GroupOffsets(Protocol):
    """The requests to groups that an output producer makes."""

    def stored(self, group: str, topic: str, partition: int) -> tuple[GroupOffset, Any]:
        """Return a group's offset, and the client's name of the group."""
        ...

    def publish_offset(self, group: str, topic: str, partition: int, offset: int, metadata: str = "") -> None:
        """Store a group's offset."""


class ConfluentOutputProducer:
    """One output producer; implements `kafka.OutputProducer`."""

    def __init__(
        self,
        config: ClientConfig,
        name: str,
        topic: str,
        groups: GroupOffsets,
        *,
        is_transactional: bool,
        timeout_s: float,
    ) -> None:
        self._config = config
        self._name = name
        self._topic = topic
        self._groups = groups
        self._is_transactional = is_transactional
        self._timeout_s = timeout_s
        self._guard = ProcessGuard("output producer")
        self._errors: deque[confluent_kafka.KafkaError] = deque(maxlen=4)
        self._client: confluent_kafka.Producer | None = None
        self._group: Any = None
        self._answers: dict[confluent_kafka.KafkaError | None, confluent_kafka.Message] = {}
        self._is_begun = False

    def start(self) -> GroupOffset:
        """Make the client, fence earlier producers of the name, and return the stored offset."""
        self._guard.check()
        if self._client is None:
            properties = output_properties(self._config, self._name if self._is_transactional else "")
            kind = confluent_kafka.Producer
            self._client = make_client(kind, "an output producer", properties, self._config, self._errors)
            self._guard.hold(self._client)
        if self._is_transactional:
            self._ask("starting transactions", self._bounded, self._client.init_transactions)
        offset, self._group = self._groups.stored(self._name, self._topic, 0)
        return offset

    def begin(self) -> None:
        """Begin a transaction."""
        client = self._started()
        if self._is_transactional:
            self._ask("beginning a transaction", client.begin_transaction)
        self._answers.clear()
        self._is_begun = True

    def send(self, record: Output) -> None:
        """Queue a record; wait for at most the request time-out while the queue is full."""
        client, until_s = self._client, 0.0
        if client is None or not self._is_begun:  # Else it was checked when the transaction began.
            self._started()
            raise Misuse("no transaction has begun", hint="Call begin first")
        while True:
            try:
                native(
                    client.produce,
                    record.topic,
                    record.value,
                    record.key,
                    -1 if record.partition is None else record.partition,
                    on_delivery=self._answers.__setitem__,
                    headers=list(record.headers) or None,
                )
            except BufferError:
                until_s = until_s or time.monotonic() + self._timeout_s
                if time.monotonic() >= until_s:
                    raise self._unanswered("the queue of records stays full") from None
                self._ask("sending records", client.poll, _FULL_S)
            except confluent_kafka.KafkaException as refused:
                name, text = kafka_error(refused, self._config)
                raise self._refusal(name, text, record.topic) from None
            else:
                return

    def commit(self, offset: int, text: str = "") -> None:
        """Wait for the records, store the offset, and commit."""
        client = self._started()
        left = self._ask("sending records", client.flush, self._timeout_s)
        for error, message in self._answers.items():
            if error is not None:
                raise self._refusal(error.name(), self._config.redact(error.str()), message.topic() or "")
        if left:
            raise self._unanswered(f"{left} records were not delivered within {self._timeout_s:g} s")
        if not self._is_transactional:
            self._groups.publish_offset(self._name, self._topic, 0, offset, text)
            self._is_begun = False
        else:
            place = TopicPartition(self._topic, 0, offset, text)
            self._ask("storing an offset", self._bounded, client.send_offsets_to_transaction, [place], self._group)
            self._commit(client)

    def abort(self) -> None:
        """Abort the transaction, or drop its records that are not on their way yet."""
        if self._is_begun:
            client, self._is_begun = self._started(), False
            if self._is_transactional:
                self._ask("aborting a transaction", self._bounded, client.abort_transaction)
            else:
                self._ask("dropping records", partial(client.purge, in_queue=True, in_flight=False, blocking=False))

    def close(self) -> None:
        """Abort, and release the client. Idempotent; never fails."""
        if self._guard.is_closed:
            return
        client = None if self._guard.is_foreign else self._client
        try:
            if client is not None and self._is_begun and self._is_transactional:
                with suppress(confluent_kafka.KafkaException):
                    native(client.abort_transaction, _ABORT_S)
        finally:
            self._guard.close()
            self._client = None
            if client is not None:
                _end(client)

    def _commit(self, client: confluent_kafka.Producer) -> None:
        doing, self._is_begun = "committing a transaction", False  # Nothing may abort it from here on.
        hint = "Start another producer of this name: the stored offset shows it"
        try:
            self._bounded(client.commit_transaction)
        except BrokerUnavailable as stuck:
            raise OutcomeUnknown(stuck.message, hint=hint, transactional_id=self._name) from None
        except confluent_kafka.KafkaException as refused:
            error = self._error(refused, doing)
            inner = refused.args[0]
            if isinstance(error, Fenced) or inner.txn_requires_abort():
                raise error from None
            what = f"a transaction was committed or not: {error.message}"
            raise OutcomeUnknown(what, hint=hint, transactional_id=self._name) from None

    def _started(self) -> confluent_kafka.Producer:
        self._guard.check()
        if self._client is None:
            raise Misuse("the output producer has not been started", hint="Call start first")
        return self._client

    def _bounded(self, call: Callable[..., T], *args: Any) -> T:
        """Call into the client with its time-out last. Raises BrokerUnavailable if it does not return by then."""
        calling = begin(start_thread, lambda: native(call, *args, self._timeout_s))
        if wait([calling], self._timeout_s + GRACE_S).not_done:
            raise self._unanswered("the Kafka client does not return from a call")
        return calling.result()

    def _ask(self, doing: str, call: Callable[..., T], *args: Any) -> T:
        try:
            return native(call, *args)
        except confluent_kafka.KafkaException as refused:
            raise self._error(refused, doing) from None

    def _error(self, refused: confluent_kafka.KafkaException, doing: str) -> StatelogError:
        name, text = kafka_error(refused, self._config)
        return self._fence(name) or client_error(
            name,
            text,
            doing,
            self._config.bootstrap_servers,
            needs=f"WRITE on transactional id {self._name}, and READ on group {self._name}",
            transactional_id=self._name,
        )

    def _refusal(self, name: str, text: str, topic: str) -> StatelogError:
        """Return the error for a record that a topic does not take."""
        fence = self._fence(name)
        if fence is not None:
            return fence
        if name in _TOO_LARGE:
            found = classify_delivery(topic, name, text, None)
            return ValueTooLarge(f"a topic refuses a record: {found.reason}", hint=found.remedy, topic=topic)
        servers, needs = self._config.bootstrap_servers, f"WRITE on topic {topic}"
        return client_error(name, text, f"sending a record to topic {topic}", servers, needs=needs, topic=topic)

    def _fence(self, name: str) -> Fenced | None:
        if name not in _FENCES and not any(error.name() in _FENCES for error in list(self._errors)):
            return None
        what = "a later output producer has started, or the brokers ended the transaction"
        return Fenced(what, hint="Start another, if it should win", transactional_id=self._name, kafka_error=name)

    def _unanswered(self, what: str) -> BrokerUnavailable:
        last = last_error(self._errors, self._config)
        more = f" (last client error: {last})" if last else ""
        return BrokerUnavailable(f"{what}{more}", bootstrap_servers=self._config.bootstrap_servers)


def _end(client: confluent_kafka.Producer) -> None:
    """Close a client. Its own close waits for a transaction without a limit, so one that has not ended within `GRACE_S`
    is left, with its threads and a log line.
    """
    closing = begin(start_thread, lambda: close_producer(client))
    if wait([closing], GRACE_S).not_done:
        _LOG.warning("an output producer did not end within %g s; its threads and connections stay", GRACE_S)
