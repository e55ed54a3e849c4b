"""Calls into native Kafka clients, and the exceptions that come out of them.

Every call that can wait goes through `native`. Where a signal's handler raises while the client is in C, the client
returns a result *and* leaves the exception set, or returns nothing and the exception is the cause of a `SystemError`:
what comes out here is the handler's own exception, Ctrl-C above all. Pure but for the call itself.

What a client says of itself goes to the logger `statelog.kafka`, in Python and from inside of calls: an exception there
comes out of the call. Its errors go to its maker.
"""

import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar

import confluent_kafka
from confluent_kafka import admin

from statelog.storage.kafka.config import ClientConfig
from statelog.storage.kafka.errors import client_error

__all__ = ["Refused", "kafka_error", "make_client", "native"]

# Else Python itself would write what the client says, such as a broker that went away, to the program's stderr.
logging.getLogger("statelog.kafka").addHandler(logging.NullHandler())

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C", admin.AdminClient, confluent_kafka.Consumer, confluent_kafka.Producer)

_LOG = logging.getLogger("statelog.kafka")


class Refused(Exception):
    """What the broker or the client answered instead of a result: librdkafka's error name, and a text without secrets.

    It never leaves `storage`: who executes a call of the port turns it into an error of our tree.
    """

    def __init__(self, name: str, text: str) -> None:
        super().__init__(name)
        self.name = name
        self.text = text


def native(call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call into the client. An exception of a signal's handler comes out as itself, whatever the client made of it."""
    try:
        return call(*args, **kwargs)
    except SystemError as error:
        hidden = error.__cause__ or error.__context__
        if hidden is None:
            raise
        raise hidden from None


def make_client(
    kind: Callable[..., C],
    what: str,
    properties: Mapping[str, str],
    config: ClientConfig,
    errors: deque[confluent_kafka.KafkaError],
) -> C:
    """A client of this kind, which adds what goes wrong with it to `errors`. Raises our error if it cannot be made."""
    try:
        # A callback in C: what a signal's handler raises in one in Python is lost by the client.
        return native(kind, properties, logger=_LOG, error_cb=errors.append)
    except confluent_kafka.KafkaException as refused:
        name, text = kafka_error(refused, config)
        raise client_error(name, text, f"making {what}", config.bootstrap_servers) from None


def kafka_error(exception: confluent_kafka.KafkaException, config: ClientConfig) -> tuple[str, str]:
    """Name and text, without secrets, of the error inside the client's exception."""
    inner = exception.args[0] if exception.args else exception
    if isinstance(inner, confluent_kafka.KafkaError):
        return inner.name(), config.redact(inner.str())
    return "_UNKNOWN", config.redact(str(inner))
