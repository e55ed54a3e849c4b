"""The producer on confluent-kafka.

Leases an idempotent librdkafka producer, from `connect` or the first send on, and owns the reports on its own records.
It never retries, never re-sends and never waits longer than the caller asked for. Invariants:

- Every record that `send` accepted is reported exactly once, from inside `poll` or `close`, and as UNKNOWN unless its
  outcome is certain. After a fatal error of the client, all records in flight are UNKNOWN.
- No Python runs inside the client's calls. Its callbacks are C functions that store the answer, because the client
  loses what a signal handler raises in a Python callback, Ctrl-C included.
- A client with a record of unknown outcome gets no new lease. It continues for its present ones.
- A fatal error of the client ends only the leases with records in flight. The others take another client.
"""

import math
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import NamedTuple

import confluent_kafka

from statelog.errors import BrokerUnavailable, ValueTooLarge
from statelog.kafka.config import MAX_MESSAGE_BYTES, ClientConfig, producer_properties
from statelog.kafka.errors import classify_delivery, client_error
from statelog.kafka.native import ProcessGuard, kafka_error, native
from statelog.kafka.port import Delivery, DeliveryStatus
from statelog.kafka.positions import HighWater
from statelog.kafka.shared_producer import CLIENTS, SharedProducer

_TIMEOUT_SCAN_S = 5.0
"""The client scans for overdue records about once a second, so a report may be that late, or later if it is busy."""
_BULK_BYTES = 4 << 20
"""With more in flight a producer gets a client of its own. During a bulk load a commit takes 10 to 33 ms on the same
client, and 1.5 to 3 ms on another one."""
_CLOSED = Delivery(DeliveryStatus.UNKNOWN, -1, "the producer was closed before the broker answered")


class _Sent(NamedTuple):
    """A record on its way. The client stores its answer in `answer`: the error, or None, and the message."""

    topic: str
    partition: int
    size_bytes: int
    answer: dict[confluent_kafka.KafkaError | None, confluent_kafka.Message]
    on_delivery: Callable[[Delivery], None]


class _LeaseMark:
    """The handle that the guard holds, to warn of a lease that is dropped without a close."""


class ConfluentProducer:
    """One lease of an idempotent producer; implements `kafka.Producer`. It leaves a client that is still good for
    another producer to the port, if that `keeps` it.
    """

    def __init__(self, config: ClientConfig, seen: HighWater, keeps: Callable[[], bool]) -> None:
        self._config = config
        self._keeps = keeps
        self._seen = seen
        self._guard = ProcessGuard("producer")
        self._client: SharedProducer | None = None
        self._pending: dict[int, _Sent] = {}
        self._sent = 0
        self._reported = 0
        self._in_flight_bytes = 0
        self.is_bulk = False
        """Whether it has had so many bytes in flight that others would wait for it."""
        self._is_in_doubt = False
        """Whether the outcome of one of its records is unknown."""
        self.woken = SimpleQueue[None]()
        self.until_s = -math.inf

    def __del__(self) -> None:
        """Retire the client if this lease was dropped without a close, with records in flight."""
        if self._pending and self._client is not None:
            self._client.is_retired = True

    @property
    def in_flight(self) -> int:
        """How many queued or sent records have no report yet."""
        return len(self._pending)

    @property
    def is_answered(self) -> bool:
        """Whether the client has stored an answer that was not reported yet."""
        return any(sent.answer for sent in list(self._pending.values()))

    @property
    def is_sound(self) -> bool:
        """Whether its client, if there is one, is as good as a new one; False once it is closed, or in a fork."""
        is_sound = self._client is None or not (self._client.errors or self._client.is_retired)
        return is_sound and not (self._guard.is_closed or self._guard.is_foreign)

    @property
    def delivery_timeout_s(self) -> float:
        """After this many seconds every record has a report."""
        return int(producer_properties(self._config)["message.timeout.ms"]) / 1000 + _TIMEOUT_SCAN_S

    def connect(self) -> None:
        """Lease a client. A new one connects on threads of its own."""
        self._made()

    def send(self, topic: str, partition: int, value: bytes, on_delivery: Callable[[Delivery], None]) -> bool:
        """Queue a record. Return False if the queue is full. Raises ValueTooLarge, or our error for the client's."""
        client = self._connected()
        self._check_fatal(client, topic, partition)
        client.topics.add(topic)
        sent = _Sent(topic, partition, len(value), {}, on_delivery)
        token = self._sent
        self._sent += 1
        # Registered first, so that an interrupt right after produce leaves no record without a report.
        self._pending[token] = sent
        try:
            native(client.native.produce, topic, value, partition=partition, on_delivery=sent.answer.__setitem__)
        except BufferError:
            del self._pending[token]
            self.is_bulk |= not self._pending  # Others' records fill the queue: it needs a client of its own.
            return False
        except confluent_kafka.KafkaException as refused:
            del self._pending[token]
            name, text = kafka_error(refused, self._config)
            if name == "_FATAL" and self._may_change:
                client.end(f"{name}: {text}")
                return self.send(topic, partition, value, on_delivery)
            raise self._send_error(refused, client, topic, partition, len(value)) from None
        self._in_flight_bytes += len(value)
        self.is_bulk |= self._in_flight_bytes > _BULK_BYTES
        return True

    def poll(self, timeout_s: float) -> int:
        """Run the callbacks that are due, waiting up to `timeout_s` for the first. Return how many ran."""
        self._guard.check()
        client = self._client
        if client is None:
            return 0
        before = self._reported
        self._serve(client, 0.0 if client.fatal else timeout_s)
        if client.fatal:
            self._abandon(client, Delivery(DeliveryStatus.UNKNOWN, -1, client.fatal))
        return self._reported - before

    def close(self) -> None:
        """Report all records in flight as UNKNOWN, and end the lease, without waiting. Idempotent; never fails."""
        if self._guard.is_closed:
            return
        client = None if self._guard.is_foreign else self._client
        try:
            if client is not None:
                self._serve(client, 0.0)
                self._abandon(client, _CLOSED)
        finally:
            if client is not None and self._pending:
                client.is_retired = True
            self._guard.close()
            self._client = None
            self._pending.clear()
            if client is not None:
                CLIENTS.leave(client, self, keeps=self._keeps())

    def _made(self) -> SharedProducer:
        self._guard.check()
        if self._client is None:
            self._client = CLIENTS.lease(self._config, self)
            self._guard.hold(_LeaseMark())
        return self._client

    def _connected(self) -> SharedProducer:
        """Return the client after its head start; instead of one that ended, or is shared in a bulk load, another."""
        client = self._made()
        is_crowded = self.is_bulk and len(client.users) > 1
        if (is_crowded or client.fatal) and self._may_change:
            self._client = CLIENTS.lease(self._config, self, alone=is_crowded)
            CLIENTS.leave(client, self, keeps=self._keeps())
            client = self._client
        left_s = client.ready_s - time.monotonic()
        if left_s > 0:
            self._serve(client, left_s)
        return client

    @property
    def _may_change(self) -> bool:
        """Return whether all of its records have a certain outcome, so that the next one may go through another."""
        return not (self._pending or self._is_in_doubt)

    def _serve(self, client: SharedProducer, timeout_s: float) -> None:
        """Let the client store answers, and report them."""
        if not self._report(client):  # An interrupt, or another lease's turn, may have left some.
            client.serve(self, timeout_s)
            self._report(client)

    def _report(self, client: SharedProducer) -> bool:
        """Report all stored answers: one event of the client may have many of them."""
        answered = [token for token, sent in self._pending.items() if sent.answer]
        for token in answered:
            sent = self._pending[token]
            delivery = self._delivery(client, sent)
            self._in_flight_bytes -= sent.size_bytes
            self._reported += 1
            self._pending.pop(token).on_delivery(delivery)  # One line: an interrupt between the two would lose it.
        return bool(answered)

    def _delivery(self, client: SharedProducer, sent: _Sent) -> Delivery:
        ((error, message),) = sent.answer.items()
        if error is not None:
            client.is_retired = self._is_in_doubt = True
            text = self._config.redact(error.str())
            found = classify_delivery(sent.topic, error.name(), text, message.offset())
            if not client.errors:
                return found
            # A time-out does not name its cause; the client's last error does.
            return found._replace(reason=f"{found.reason} (last client error: {client.last_error})")
        delivery = classify_delivery(sent.topic, None, "", message.offset(), message.latency() or 0.0)
        if delivery.status is DeliveryStatus.OK:
            self._seen.reached(sent.topic, sent.partition, delivery.offset + 1)
        else:
            client.is_retired = self._is_in_doubt = True
        return delivery

    def _abandon(self, client: SharedProducer, delivery: Delivery) -> None:
        while self._pending:
            client.is_retired = self._is_in_doubt = True
            token = next(iter(self._pending))
            self._reported += 1
            self._pending.pop(token).on_delivery(delivery)

    def _check_fatal(self, client: SharedProducer, topic: str, partition: int) -> None:
        if client.fatal:
            hint = "Close this producer; a new one, after a new Open, resolves the outcome of its records"
            what = f"the producer is over: {client.fatal}"
            raise BrokerUnavailable(what, hint=hint, topic=topic, partition=partition)

    def _send_error(
        self, refused: confluent_kafka.KafkaException, client: SharedProducer, topic: str, partition: int, size: int
    ) -> Exception:
        name, text = kafka_error(refused, self._config)
        if name == "MSG_SIZE_TOO_LARGE":
            return ValueTooLarge(
                "a record is larger than Kafka may take", hint="Write smaller values, or smaller chunks",
                topic=topic, partition=partition, size_bytes=size, limit_bytes=MAX_MESSAGE_BYTES,
            )  # fmt: skip
        if name == "_FATAL":
            client.end(f"{name}: {text}")
            self._check_fatal(client, topic, partition)
        servers = self._config.bootstrap_servers
        return client_error(
            name, text, "sending a record", servers, needs=f"WRITE on topic {topic}", topic=topic, partition=partition
        )
