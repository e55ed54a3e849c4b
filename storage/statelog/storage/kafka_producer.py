"""The producer on confluent-kafka.

Owns one idempotent librdkafka producer, made at the first send, and the reports that it owes. It never retries, never
re-sends and never waits longer than it was told. Invariant: every record that `send` accepted is reported exactly
once, from inside `poll` or `close`, and a record whose fate is not certain is reported UNKNOWN.
"""

import logging
from collections.abc import Callable
from functools import partial

import confluent_kafka

from statelog.schemas.errors import BrokerUnavailable, ValueTooLarge
from statelog.storage.kafka import Delivery, DeliveryStatus
from statelog.storage.kafka_config import MAX_MESSAGE_BYTES, ClientConfig, producer_properties
from statelog.storage.kafka_errors import classify_delivery, client_error
from statelog.storage.kafka_process import ProcessGuard

__all__ = ["ConfluentProducer", "kafka_error"]

_LOG = logging.getLogger("statelog.kafka")
_CONNECT_S = 0.05
"""A new client gets this head start to connect. A record queued earlier makes it look for a leader while it asks for
its producer id; it then finds no connected broker and sleeps 0.5 s (measured: 505 ms, with this 55 ms)."""
_CLOSED = Delivery(DeliveryStatus.UNKNOWN, -1, "the producer was closed before the broker answered")


def kafka_error(exception: confluent_kafka.KafkaException, config: ClientConfig) -> tuple[str, str]:
    """Name and text, without secrets, of the error inside the client's exception."""
    inner = exception.args[0] if exception.args else exception
    if isinstance(inner, confluent_kafka.KafkaError):
        return inner.name(), config.redact(inner.str())
    return "_UNKNOWN", config.redact(str(inner))


class ConfluentProducer:
    """One idempotent producer; implements `kafka.Producer`."""

    def __init__(self, config: ClientConfig) -> None:
        self._config = config
        self._guard = ProcessGuard("producer")
        self._native: confluent_kafka.Producer | None = None
        self._pending: dict[int, Callable[[Delivery], None]] = {}
        self._sent = 0
        self._reported = 0
        self._last_error = ""

    @property
    def in_flight(self) -> int:
        """Records queued or sent, whose delivery was not reported yet."""
        return len(self._pending)

    @property
    def delivery_timeout_s(self) -> float:
        """After this many seconds every record has been reported."""
        return self._config.delivery_timeout_s

    def send(self, topic: str, partition: int, value: bytes, on_delivery: Callable[[Delivery], None]) -> bool:
        """Queue a record; False if the queue is full. Raises ValueTooLarge, or our error for the client's refusal."""
        native = self._client()
        token = self._sent
        self._sent += 1
        # Registered first: an interrupt right after produce must not leave a record that nobody answers for.
        self._pending[token] = on_delivery
        try:
            native.produce(topic, value, partition=partition, on_delivery=partial(self._report, token))
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
        self._native.poll(timeout_s)
        return self._reported - before

    def close(self) -> None:
        """Report what is in flight as UNKNOWN and release the client, without waiting. Idempotent."""
        if self._guard.is_closed:
            return
        native = None if self._guard.is_foreign else self._native
        try:
            if native is not None:
                native.poll(0)
            self._abandon()
        finally:
            self._guard.close()
            self._native = None
            self._pending.clear()
            if native is not None:
                _destroy(native)

    def _client(self) -> confluent_kafka.Producer:
        self._guard.check()
        if self._native is None:
            properties = producer_properties(self._config)
            try:
                self._native = confluent_kafka.Producer(properties, logger=_LOG, error_cb=self._remember)
            except confluent_kafka.KafkaException as refused:
                name, text = kafka_error(refused, self._config)
                raise client_error(name, text, "making a producer", self._config.bootstrap_servers) from None
            self._guard.hold(self._native)
            self._native.poll(_CONNECT_S)
        return self._native

    def _report(self, token: int, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        on_delivery = self._pending.pop(token, None)
        if on_delivery is None:
            return  # Reported as UNKNOWN by close already.
        self._reported += 1
        if error is None:
            on_delivery(classify_delivery(None, "", message.offset(), message.latency() or 0.0))
        else:
            text = self._config.redact(error.str())
            on_delivery(self._explained(classify_delivery(error.name(), text, message.offset())))

    def _explained(self, delivery: Delivery) -> Delivery:
        """A time-out says nothing of its cause; the client's last error does."""
        if not self._last_error:
            return delivery
        return delivery._replace(reason=f"{delivery.reason} (last client error: {self._last_error})")

    def _abandon(self) -> None:
        while self._pending:
            token = next(iter(self._pending))
            self._reported += 1
            self._pending.pop(token)(_CLOSED)

    def _remember(self, error: confluent_kafka.KafkaError) -> None:
        self._last_error = f"{error.name()}: {self._config.redact(error.str())}"

    def _send_error(
        self, refused: confluent_kafka.KafkaException, topic: str, partition: int, size_bytes: int
    ) -> Exception:
        name, text = kafka_error(refused, self._config)
        if name == "MSG_SIZE_TOO_LARGE":
            return ValueTooLarge(
                "a record is larger than Kafka may take",
                hint="Write smaller values, or smaller chunks",
                topic=topic,
                partition=partition,
                size_bytes=size_bytes,
                limit_bytes=MAX_MESSAGE_BYTES,
            )
        if name == "_FATAL":
            hint = "Close this producer; a new one, after a new Open, settles what became of its records"
            return BrokerUnavailable(f"the producer is over: {text}", hint=hint, topic=topic, partition=partition)
        servers = self._config.bootstrap_servers
        return client_error(name, text, "sending a record", servers, topic=topic, partition=partition)


def _destroy(native: confluent_kafka.Producer) -> None:
    """Purge first: closing flushes, and a flush waits for records that nobody waits for any more."""
    native.purge(in_queue=True, in_flight=True, blocking=False)
    native.poll(0)
    native.close()
