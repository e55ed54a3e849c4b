"""The admin client on confluent-kafka: made at first use, asked, thrown away when it looks in the wrong place.

Owns one librdkafka admin client, which threads may share, and the errors that it reports of itself. It decides nothing
about topics and offsets. What it knows about the client:

- It goes on asking a broker that it once took for the controller or the leader, dead or alive. So a client that gave
  answers before and then gives none in a quarter of the time is replaced by a new one, which gets all of the time.
- It asks again for ever where it is refused: wrong credentials, wrong certificates. What it says of that ends the wait.
- All answers must be there before it may be dropped, and a future must stay in its mapping until it is done.
"""

import concurrent.futures
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import confluent_kafka
from confluent_kafka import admin

from statelog.storage.kafka_config import ClientConfig, admin_properties
from statelog.storage.kafka_errors import client_error, refusal_of
from statelog.storage.kafka_native import Refused, kafka_error, native
from statelog.storage.kafka_process import ProcessGuard
from statelog.storage.kafka_tls import speaks_tls

__all__ = ["AdminSession", "Answers", "Request"]

Answers = Mapping[Any, "concurrent.futures.Future[Any]"]
Request = Callable[[admin.AdminClient, float], Sequence[Answers]]
"""Sends requests that may take so many seconds; returns the client's mappings to futures."""

_LOG = logging.getLogger("statelog.kafka")
_GRACE_S = 1.0
"""The client reports its own time-out, with its reason; we wait this much longer to hear it."""
_LOOK_S = 0.1
_FIRST_SHARE = 4
_LOST = frozenset({
    "_TIMED_OUT", "_TIMED_OUT_QUEUE", "_DESTROY", "_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE", "_WAIT_COORD",
    "NOT_CONTROLLER", "BROKER_NOT_AVAILABLE", "NETWORK_EXCEPTION",
})  # fmt: skip
"""Answers that say more of where the client looked than of the cluster."""
_UNSENT = "waiting for controller"
_SPEECHLESS_S = 1.0
"""A client that got no answer for so long may speak plainly to a listener that wants TLS."""


class AdminSession:
    """Asks the brokers through one admin client at a time. Thread-safe; refuses work in a fork."""

    def __init__(self, config: ClientConfig, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._timeout_s = timeout_s
        self._clock = clock
        self._guard = ProcessGuard("Kafka client")
        self._making = threading.Lock()
        self._native: admin.AdminClient | None = None
        self._is_proven = False
        self._errors: deque[confluent_kafka.KafkaError] = deque(maxlen=8)
        """What the client said of itself since its last answer."""
        self._is_plain = "SSL" not in config.settings.get("security.protocol", "").upper()
        self._unanswered: list[Sequence[Answers]] = []

    @property
    def guard(self) -> ProcessGuard:
        """Who may use it."""
        return self._guard

    def ask(self, request: Request, limit_s: float | None = None, *, twice: bool = True) -> list[dict[Any, Any]]:
        """The answers of all mappings, within `limit_s` seconds (None: the session's own) once a client is connected.

        `twice` False asks again only what was surely not sent. Raises Refused with the first refusal, once every answer
        is there; and as soon as the brokers refuse a client that never got an answer for what it is.
        """
        limit_s = self._timeout_s if limit_s is None else max(limit_s, 0.001)
        client = self._client()
        if self._is_proven:
            try:
                return self._once(client, request, limit_s / _FIRST_SHARE)
            except Refused as refused:
                if refused.name not in _LOST:
                    raise
                self.drop(client)
                if not twice and _UNSENT not in refused.text:
                    raise
            client = self._client()
        return self._once(client, request, limit_s)

    def drop(self, client: admin.AdminClient | None = None) -> None:
        """Give the client up: the next question makes a new one. Only if it is still `client`, where that is named."""
        with self._making:
            if self._native is not None and client in (None, self._native):
                self._guard.drop()  # Else each one would stay behind, with its threads and its connections.
                self._native = None
                self._is_proven = False
                self._unanswered.clear()

    def close(self) -> None:
        """Release the client. Idempotent."""
        self._guard.close()
        self._native = None

    def _client(self) -> admin.AdminClient:
        self._guard.check()  # Before the lock: a fork may have copied it while another thread had it.
        with self._making:
            if self._native is None:
                self._errors.clear()
                self._native = self._make()
            client = self._native
        native(client.poll, 0)  # Hands the client's log lines on; they would pile up otherwise.
        return client

    def _make(self) -> admin.AdminClient:
        try:
            # A callback in C: what a signal's handler raises in one in Python is lost by the client.
            client = native(
                admin.AdminClient, admin_properties(self._config), logger=_LOG, error_cb=self._errors.append
            )
        except confluent_kafka.KafkaException as refused:
            name, text = kafka_error(refused, self._config)
            raise client_error(name, text, "making a client", self._config.bootstrap_servers) from None
        self._guard.hold(client)
        return client

    def _once(self, client: admin.AdminClient, request: Request, limit_s: float) -> list[dict[Any, Any]]:
        mappings = native(request, client, limit_s)
        self._await(client, mappings, limit_s + _GRACE_S)
        try:
            answers = [{key: self._result(future, limit_s) for key, future in mapping.items()} for mapping in mappings]
        except Refused as refused:
            raise self._explained(refused) from None
        self._is_proven = True
        self._errors.clear()
        return answers

    def _await(self, client: admin.AdminClient, mappings: Sequence[Answers], limit_s: float) -> None:
        """Wait for all: one refusal must not leave others under way, because the client may be dropped next."""
        futures = [future for mapping in mappings for future in mapping.values()]
        began = self._clock()
        while concurrent.futures.wait(futures, _LOOK_S).not_done:
            waited_s = self._clock() - began
            native(client.poll, 0)
            refusal = None if self._is_proven else self._refusal(waited_s)
            if refusal is not None or waited_s >= limit_s:
                self._unanswered.append(mappings)
            if refusal is not None:
                raise Refused(*refusal)
            if waited_s >= limit_s:
                return

    def _refusal(self, waited_s: float) -> tuple[str, str] | None:
        """Why no waiting helps, if so. Looks once whether it speaks plainly to a listener that wants TLS."""
        refusal = refusal_of(self._told(), waited_s)
        if refusal is None and self._is_plain and waited_s >= _SPEECHLESS_S:
            self._is_plain = False  # Asked once; a listener does not change its mind.
            server = speaks_tls(self._config.bootstrap_servers, _SPEECHLESS_S)
            if server:
                return "_SSL", f"{server} speaks TLS, and security.protocol says that this client does not"
        return refusal

    def _told(self) -> list[tuple[str, str]]:
        return [(error.name(), self._config.redact(error.str())) for error in list(self._errors)]

    def _explained(self, refused: Refused) -> Refused:
        """A time-out says nothing of its cause; what the client said of itself meanwhile does."""
        told = self._told()
        if refused.name not in _LOST or not told:
            return refused
        refusal = refusal_of(told, math.inf)
        return (
            Refused(*refusal)
            if refusal
            else Refused(refused.name, f"{refused.text} (last client error: {told[-1][1]})")
        )

    def _result(self, future: "concurrent.futures.Future[Any]", limit_s: float) -> Any:
        """The answer, or Refused."""
        try:
            return future.result(timeout=0)
        except confluent_kafka.KafkaException as refused:
            # The future keeps its exception, and through the frames of its traceback it would keep the client alive.
            refused.__traceback__ = None
            raise Refused(*kafka_error(refused, self._config)) from None
        except concurrent.futures.TimeoutError:
            raise Refused("_TIMED_OUT", f"no answer within {limit_s:g} s") from None
