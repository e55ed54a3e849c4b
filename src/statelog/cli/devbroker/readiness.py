"""Whether a broker is ready, checked in the only way that counts: by producing a record.

An open port says little: a node that is starting accepts connections long before it takes a record. Owns the probe
topic and nothing else. Invariant: returns only after a broker acknowledged a record, or raises BrokerUnavailable.
"""

import time
from collections.abc import Callable

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from statelog.errors import BrokerUnavailable

__all__ = ["PROBE_TOPIC", "create_topic", "produce_probe", "wait_until_ready"]

PROBE_TOPIC = "__statelog_ready"
_ATTEMPT_S = 2.0


def wait_until_ready(
    bootstrap: str,
    timeout_s: float,
    *,
    still_alive: Callable[[], bool] = lambda: True,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Wait until a record was produced to `bootstrap` (host:port).

    `still_alive` says whether the broker's process exists: without it there is nothing to wait for.
    Raises BrokerUnavailable after `timeout_s` seconds, or as soon as the process is gone.
    """
    deadline = clock() + timeout_s
    reason = produce_probe(bootstrap, _ATTEMPT_S)
    while reason:
        if not still_alive():
            raise BrokerUnavailable("the broker ended before it was ready", bootstrap=bootstrap, last_reason=reason)
        if clock() >= deadline:
            raise BrokerUnavailable(
                "the broker did not accept a record in time",
                bootstrap=bootstrap,
                timeout_s=timeout_s,
                last_reason=reason,
            )
        reason = produce_probe(bootstrap, _ATTEMPT_S)


def produce_probe(bootstrap: str, timeout_s: float) -> str:
    """Produce one record within `timeout_s` seconds. Returns why it failed, or an empty string."""
    reason = create_topic(bootstrap, PROBE_TOPIC, timeout_s)
    return reason or _produce(bootstrap, timeout_s)


def _client_settings(bootstrap: str) -> dict[str, str | int | float | bool]:
    """Quick to reconnect, because the broker may come up at any moment; silent, because failures are expected."""
    return {
        "bootstrap.servers": bootstrap,
        "socket.connection.setup.timeout.ms": 1000,
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 200,
        "log_level": 0,
    }


def create_topic(bootstrap: str, name: str, timeout_s: float) -> str:
    """Create a topic of one partition unless it exists. Returns why it failed, or an empty string."""
    topic = NewTopic(name, num_partitions=1, replication_factor=1)
    # The client is kept in a name: its futures are never done once it is collected.
    admin = AdminClient(_client_settings(bootstrap))
    created = admin.create_topics([topic], operation_timeout=timeout_s, request_timeout=timeout_s)
    try:
        created[name].result(timeout=timeout_s + 1)
    except KafkaException as error:
        cause: KafkaError = error.args[0]
        return "" if cause.name() == "TOPIC_ALREADY_EXISTS" else cause.str()
    except TimeoutError:
        return "the broker does not answer"
    return ""


def _produce(bootstrap: str, timeout_s: float) -> str:
    outcome: list[str] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        outcome.append("" if error is None else error.str())

    # Idempotent, as writers are: the first of them after a broker's start has to retry, which its client logs.
    settings = {**_client_settings(bootstrap), "enable.idempotence": True, "message.timeout.ms": int(timeout_s * 1000)}
    producer = Producer(settings)
    producer.produce(PROBE_TOPIC, value=b"ready?", partition=0, on_delivery=delivered)
    producer.flush(timeout_s + 1)
    return outcome[0] if outcome else "no delivery report"
