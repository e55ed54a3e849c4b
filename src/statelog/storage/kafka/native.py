"""Calls of the native Kafka client, and what comes out of them.

Every call that can wait goes through `native`. Where a signal's handler raises while the client is in C, the client
returns a result *and* leaves the exception set, or returns nothing and the exception is the cause of a `SystemError`:
what comes out here is the handler's own exception, Ctrl-C above all. Pure but for the call itself.
"""

import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import confluent_kafka

from statelog.storage.kafka.config import ClientConfig

__all__ = ["Refused", "kafka_error", "native"]

# Else Python itself would write what the client says, such as a broker that went away, to the program's stderr.
logging.getLogger("statelog").addHandler(logging.NullHandler())

P = ParamSpec("P")
T = TypeVar("T")


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


def kafka_error(exception: confluent_kafka.KafkaException, config: ClientConfig) -> tuple[str, str]:
    """Name and text, without secrets, of the error inside the client's exception."""
    inner = exception.args[0] if exception.args else exception
    if isinstance(inner, confluent_kafka.KafkaError):
        return inner.name(), config.redact(inner.str())
    return "_UNKNOWN", config.redact(str(inner))
