"""The producer on confluent-kafka.

Owns one idempotent librdkafka producer, made by `connect` or the first send, and the reports that it owes. It never
retries, never re-sends and never waits longer than it was told. Invariants:

- Every record that `send` accepted is reported exactly once, from inside `poll` or `close`, and a record whose fate is
  not certain is reported UNKNOWN. A fatal error of the client is that: UNKNOWN for all that is in flight.
- No Python runs inside the client's calls. Its callbacks are C functions that put the answer down: where a signal's
  handler raises in a callback in Python, the client loses what was raised, Ctrl-C included.
"""

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import confluent_kafka

from statelog.environment import Clock
from statelog.errors import BrokerUnavailable, ValueTooLarge
from statelog.kafka.config import MAX_MESSAGE_BYTES, ClientConfig, producer_properties
from statelog.kafka.errors import classify_delivery, client_error
from statelog.kafka.native import ProcessGuard, kafka_error, last_error, make_client, native
from statelog.kafka.port import Delivery, DeliveryStatus
from statelog.kafka.positions import HighWater

_CONNECT_S = 0.05
"""A new client gets this head start to connect. A record queued earlier makes it look for a leader while it asks for
its producer id; it then finds no connected broker and sleeps 0.5 s (measured: 505 ms, with this 55 ms)."""
_TIMEOUT_SCAN_S = 5.0
"""The client looks for overdue records about once a second, so a report may be that late, and later if it is busy."""
_CLOSED = Delivery(DeliveryStatus.UNKNOWN, -1, "the producer was closed before the broker answered")


class _Sent(NamedTuple):
    """A record on its way. The client puts its answer down in `answer`: the error, or None, and the message."""

    topic: str
    partition: int
    answer: dict[confluent_kafka.KafkaError | None, confluent_kafka.Message]
    on_delivery: Callable[[Delivery], None]


class ConfluentProducer:
    """One idempotent producer; implements `kafka.Producer`."""

    def __init__(self, config: ClientConfig, seen: HighWater, clock: Clock = time.monotonic) -> None:
        self._config = config
        self._clock = clock
        self._ready_s = 0.0
        self._seen = seen
        self._guard = ProcessGuard("producer")
        self._native: confluent_kafka.Producer | None = None
        self._pending: dict[int, _Sent] = {}
        self._sent = 0
        self._reported = 0
        self._has_come = False
        self._errors: deque[confluent_kafka.KafkaError] = deque(maxlen=4)
        self._fatal = ""

    @property
    def in_flight(self) -> int:
        """Records queued or sent, whose delivery was not reported yet."""
        return len(self._pending)

    @property
    def is_sound(self) -> bool:
        """Whether the client, if there is one, has told of no error; False once it is closed, or in a fork."""
        return not (self._guard.is_closed or self._guard.is_foreign or self._errors or self._fatal)

    @property
    def delivery_timeout_s(self) -> float:
        """After this many seconds every record has been reported."""
        return int(producer_properties(self._config)["message.timeout.ms"]) / 1000 + _TIMEOUT_SCAN_S

    def connect(self) -> None:
        """Make the client, which connects on threads of its own."""
        self._made()

    def send(self, topic: str, partition: int, value: bytes, on_delivery: Callable[[Delivery], None]) -> bool:
        """Queue a record; False if the queue is full. Raises ValueTooLarge, or our error for the client's refusal."""
        client = self._client()
        self._check_fatal(topic, partition)
        sent = _Sent(topic, partition, {}, on_delivery)
        token = self._sent
        self._sent += 1
        # Registered first: an interrupt right after produce must not leave a record that nobody answers for.
        self._pending[token] = sent
        try:
            native(client.produce, topic, value, partition=partition, on_delivery=sent.answer.__setitem__)
        except BufferError:
            del self._pending[token]
            return False
        except confluent_kafka.KafkaException as refused:
            del self._pending[token]
            raise self._send_error(refused, topic, partition, len(value)) from None
        return True

    def poll(self, timeout_s: float) -> int:
        """Run the callbacks that are due, waiting up to `timeout_s` for the first. Returns how many ran."""
        self._guard.check()
        if self._native is None:
            return 0
        before = self._reported
        self._serve(self._native, 0.0 if self._fatal else timeout_s)
        if self._fatal:
            self._abandon(Delivery(DeliveryStatus.UNKNOWN, -1, self._fatal))
        return self._reported - before

    def close(self) -> None:
        """Report what is in flight as UNKNOWN and release the client, without waiting. Idempotent; never fails."""
        if self._guard.is_closed:
            return
        client = None if self._guard.is_foreign else self._native
        try:
            if client is not None:
                self._serve(client, 0.0)
            self._abandon(_CLOSED)
        finally:
            self._guard.close()
            self._native = None
            self._pending.clear()
            if client is not None:
                _destroy(client)

    def _made(self) -> confluent_kafka.Producer:
        self._guard.check()
        if self._native is None:
            properties = producer_properties(self._config)
            client = make_client(confluent_kafka.Producer, "a producer", properties, self._config, self._errors)
            self._native = client
            self._guard.hold(client)
            self._ready_s = self._clock() + _CONNECT_S
        return self._native

    def _client(self) -> confluent_kafka.Producer:
        """The client, once it has had its head start."""
        client = self._made()
        if self._ready_s > 0:
            self._serve(client, max(0.0, self._ready_s - self._clock()))
            self._ready_s = 0.0
        return client

    def _serve(self, client: confluent_kafka.Producer, timeout_s: float) -> None:
        """Let the client put answers down, and report them."""
        had_come = self._has_come
        self._has_come = True  # Until all is reported: an interrupt may come in between.
        try:
            had_come |= native(client.poll, timeout_s) > 0
        except confluent_kafka.KafkaException as refused:
            self._fatal = "{}: {}".format(*kafka_error(refused, self._config))
            had_come = True
        if self._errors and self._errors[-1].fatal():
            self._fatal = self._last_error
        if had_come:
            self._report()
        self._has_come = False

    def _report(self) -> None:
        """Report the answers that are there. One served event may hold many of them, so all that wait are looked at."""
        for token in [token for token, sent in self._pending.items() if sent.answer]:
            sent = self._pending.pop(token)
            self._reported += 1
            sent.on_delivery(self._delivery(sent))

    def _delivery(self, sent: _Sent) -> Delivery:
        ((error, message),) = sent.answer.items()
        if error is not None:
            text = self._config.redact(error.str())
            found = classify_delivery(sent.topic, error.name(), text, message.offset())
            if not self._errors:
                return found
            # A time-out says nothing of its cause; the client's last error does.
            return found._replace(reason=f"{found.reason} (last client error: {self._last_error})")
        delivery = classify_delivery(sent.topic, None, "", message.offset(), message.latency() or 0.0)
        if delivery.status is DeliveryStatus.OK:
            self._seen.reached(sent.topic, sent.partition, delivery.offset + 1)
        return delivery

    @property
    def _last_error(self) -> str:
        return last_error(self._errors, self._config)

    def _abandon(self, delivery: Delivery) -> None:
        while self._pending:
            token = next(iter(self._pending))
            self._reported += 1
            self._pending.pop(token).on_delivery(delivery)

    def _check_fatal(self, topic: str, partition: int) -> None:
        if self._fatal:
            hint = "Close this producer; a new one, after a new Open, settles what became of its records"
            raise BrokerUnavailable(f"the producer is over: {self._fatal}", hint=hint, topic=topic, partition=partition)

    def _send_error(
        self, refused: confluent_kafka.KafkaException, topic: str, partition: int, size_bytes: int
    ) -> Exception:
        name, text = kafka_error(refused, self._config)
        if name == "MSG_SIZE_TOO_LARGE":
            return ValueTooLarge(
                "a record is larger than Kafka may take", hint="Write smaller values, or smaller chunks",
                topic=topic, partition=partition, size_bytes=size_bytes, limit_bytes=MAX_MESSAGE_BYTES,
            )  # fmt: skip
        if name == "_FATAL":
            self._fatal = f"{name}: {text}"
            self._check_fatal(topic, partition)
        servers = self._config.bootstrap_servers
        return client_error(
            name, text, "sending a record", servers, needs=f"WRITE on topic {topic}", topic=topic, partition=partition
        )


def _destroy(client: confluent_kafka.Producer) -> None:
    """Purge first: closing flushes, and a flush waits for records that nobody waits for any more."""
    for step in (
        lambda: client.purge(in_queue=True, in_flight=True, blocking=False),
        lambda: client.poll(0),
        client.close,
    ):
        # A producer that ended by a fatal error says so once more, whatever is asked of it.
        with suppress(confluent_kafka.KafkaException):
            native(step)
