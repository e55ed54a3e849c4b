"""Native Kafka clients: calls into them, their exceptions, and the process that owns them.

Every call that can wait goes through `native`. A signal handler may raise while the client is in C. The client then
returns a result *and* leaves the exception set, or it raises a `SystemError` with that exception as the cause. `native`
raises the handler's own exception, Ctrl-C above all.

A client's log lines go to the logger `statelog.kafka`, in Python and inside calls: the call raises an exception of
that. Its errors go to its maker.

A librdkafka handle relies on threads, which a fork does not copy: in the child a call hangs, and even dropping the
handle crashes. Invariants of `ProcessGuard`:
- A client refuses work outside the process that made it, and a handle that a fork copied is never destroyed there.
- If its owner is dropped without a close, a handle is destroyed, with a ResourceWarning. Its threads and connections
  would stay.
"""

import ctypes
import logging
import os
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import wait
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

import confluent_kafka
from confluent_kafka import admin

from statelog.closing import OwnProcess
from statelog.environment import GRACE_S, begin, start_thread
from statelog.errors import ClosedError, ConfigError
from statelog.kafka.config import ClientConfig
from statelog.kafka.errors import REFUSED_OFFSET, client_error
from statelog.kafka.token import TokenSource

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C", admin.AdminClient, confluent_kafka.Consumer, confluent_kafka.Producer)

_LOG = logging.getLogger("statelog.kafka")
# Else Python itself would write the client's warnings, for example of a lost broker, to the program's stderr.
_LOG.addHandler(logging.NullHandler())
_REFUSED_S, _REFUSED_POLL_S = 0.1, 0.02
"""The time in which a broker refuses an offset that it does not have."""


class Refused(Exception):
    """An error of the broker or the client: librdkafka's name of it, and a text without secrets.

    It never leaves `kafka`: the implementation of the port turns it into a StatelogError.
    """

    def __init__(self, name: str, text: str) -> None:
        super().__init__(name)
        self.name = name
        self.text = text


def native(call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call into the client. Raises a signal handler's own exception, whatever the client made of it."""
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
    """Make a client of this kind, which adds its errors to `errors`. Raises our error if it cannot be made, or if a
    token, or a secret in a file, is missing.
    """
    given = config.opened(properties)
    tokens = {} if config.token is None else {"oauth_cb": TokenSource(config.token, errors, config.redact)}
    try:
        # A callback in C, because the client loses what a signal handler raises in a Python one. The token callback
        # runs in a thread of the client, where no signal is handled.
        return native(kind, given, logger=_LOG, error_cb=errors.append, **tokens)
    except confluent_kafka.KafkaException as refused:
        name, text = kafka_error(refused, config)
        raise client_error(name, text, f"making {what}", config.bootstrap_servers) from None
    except (ImportError, ValueError) as refused:  # The client checks by itself for the packages of AWS's tokens.
        raise ConfigError(f"the Kafka client refuses its settings: {config.redact(str(refused))}") from None


def close_consumer(client: confluent_kafka.Consumer, *, was_astray: bool = False) -> None:
    """Close the consumer, and ignore its errors. librdkafka 2.16 never returns from a close during which a fetch is
    refused: it waits for a lock that it holds itself. So a consumer that `was_astray` is polled for the refusal first.
    One that has not ended within `GRACE_S` is left, with its thread and a log line.
    """
    closing = begin(start_thread, lambda: _end(client, time.monotonic() + was_astray * _REFUSED_S))
    if wait([closing], GRACE_S).not_done:
        _LOG.warning("a consumer did not end within %g s; its threads and connections stay with the process", GRACE_S)


def close_producer(client: confluent_kafka.Producer) -> None:
    """Close the producer, and ignore its errors. Purge first, because closing would wait for records that no caller
    waits for.
    """
    for step in (
        lambda: client.purge(in_queue=True, in_flight=True, blocking=False),
        lambda: client.poll(0),
        client.close,
    ):
        # A producer with a fatal error raises it in every call, and warns in a close that has a transaction to abort.
        with suppress(confluent_kafka.KafkaException, RuntimeWarning):
            native(step)


def _end(client: confluent_kafka.Consumer, until_s: float) -> None:
    with suppress(confluent_kafka.KafkaException):
        while time.monotonic() < until_s:
            message = native(client.poll, _REFUSED_POLL_S)
            error = message.error() if message is not None else None
            if error is not None and error.name() in REFUSED_OFFSET:
                break
    native(client.close)


def kafka_error(exception: confluent_kafka.KafkaException, config: ClientConfig) -> tuple[str, str]:
    """Return name and text, without secrets, of the error inside the client's exception."""
    inner = exception.args[0] if exception.args else exception
    if isinstance(inner, confluent_kafka.KafkaError):
        return inner.name(), config.redact(inner.str())
    return "_UNKNOWN", config.redact(str(inner))


def last_error(errors: Iterable[confluent_kafka.KafkaError], config: ClientConfig) -> str:
    """Return the client's last error, without secrets; empty if there is none. Skip its report that a token function
    raised: the reason comes before that.
    """
    found = list(errors)
    named = [error for error in found if "callback raised" not in error.str()] or found
    return f"{named[-1].name()}: {config.redact(named[-1].str())}" if named else ""


# ---- one process, one client


_UNCLOSED = "unclosed {} of statelog: close the Writer, Coordinator, Log or Kafka port that it belongs to"
_handles: dict[int, object] = {}


class _Origin:
    """The source of a warning, for tracemalloc: with the handle itself as the source, it would stay alive."""

    __slots__ = ()


class ProcessGuard:
    """Holds one native handle for its owner. `name`: the owner, in messages."""

    __slots__ = ("__weakref__", "_finalizer", "_handle", "_name", "_owner", "is_closed")

    def __init__(self, name: str) -> None:
        self._name = name
        self._owner = OwnProcess(f"the {name}")
        self._handle: object | None = None
        self.is_closed = False
        self._finalizer: weakref.finalize[[int, int, str, _Origin], ProcessGuard] | None = None

    @property
    def is_foreign(self) -> bool:
        """Whether this process is a fork of the one that owns the handle, if there is a handle."""
        return self._handle is not None and self._owner.is_foreign

    def check(self) -> None:
        """Raise ClosedError after close, and in a fork of the process that made the handle."""
        if self.is_closed:
            hint = "Make a new one. A log closes its own: read and write inside its `with` block"
            raise ClosedError(f"the {self._name} is closed", hint=hint)
        if self._handle is not None:
            self._owner.check()

    def hold(self, handle: Any) -> None:
        """Own a handle that was just made in this process. Raises ClosedError if another thread closed meanwhile."""
        self._owner = OwnProcess(f"the {self._name}")
        self._handle = handle
        _handles[id(handle)] = handle
        self._finalizer = weakref.finalize(self, _drop_forgotten, id(handle), self._owner.pid, self._name, _Origin())
        self._finalizer.atexit = False
        if self.is_closed:
            self.drop()
            self.check()

    def drop(self) -> None:
        """Release the handle, so that it can be destroyed. Do nothing in a fork, where it must stay."""
        if self._handle is not None and not self.is_foreign:
            _handles.pop(id(self._handle), None)
            self._handle = None
            if self._finalizer is not None:
                self._finalizer.detach()

    def close(self) -> None:
        """Drop the handle and refuse all further use."""
        self.is_closed = True  # First, so that a later `hold` drops its handle.
        self.drop()


def _drop_forgotten(handle: int, pid: int, name: str, origin: _Origin) -> None:
    """Warn of an owner that was dropped without a close, as Python does of files, and log it."""
    if pid == os.getpid() and _handles.pop(handle, None) is not None:
        _LOG.warning("a %s was dropped without being closed; its connections end now", name)
        warnings.warn(_UNCLOSED.format(name), ResourceWarning, stacklevel=1, source=origin)


def _immortalise() -> None:
    """Take one reference too many in a forked child, so that no handle is ever destroyed there."""
    for handle in _handles.values():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))
    _handles.clear()


os.register_at_fork(after_in_child=_immortalise)
