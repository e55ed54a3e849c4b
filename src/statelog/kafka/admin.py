"""Requests to a cluster: an admin client made at first use, and replaced when it asks the wrong broker.

Decides nothing about topics and offsets. Owns the librdkafka admin client, one at a time, its own errors, its knowledge
of leaders, and the rules for replacing it:

- It keeps asking a broker that it once took for the controller or the leader, dead or alive. If a client that has
  answered before does not within a quarter of the time, a new one replaces it, and gets all of the time.
- It drops requests to a broker that turns out not to be in the cluster. The next client is asked at once, if there is
  time.

Facts about librdkafka:

- It retries endlessly if it is refused (wrong credentials, wrong certificates). Its own report of that ends the wait.
- All answers must be there before it may be dropped, and a future must stay in its mapping until it is done.
- If it knows no leader of a partition, `list_offsets` and `delete_records` search one from the calling thread, in
  metadata that the client's own thread frees when they change. That corrupts the heap, most likely in a new client. So
  leaders are asked for first, by `describe_topics`, which searches in the client's own thread and updates its metadata.
- It reports TLS at a plain listener, but a plain client at a TLS listener only sees closed connections. So a handshake
  is tried, of which only the beginning counts: no certificate is verified, and nothing is sent.
"""

import concurrent.futures
import math
import os
import socket
import ssl
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import confluent_kafka
from confluent_kafka import TopicCollection, admin

from statelog.kafka.config import ClientConfig, admin_properties
from statelog.kafka.errors import refusal_of
from statelog.kafka.native import ProcessGuard, Refused, kafka_error, make_client, native

_FIRST_SHARE = 4
_RETRY_S, _RETRY_MAX_S = 0.02, 0.5
_UNSENT = "waiting for controller"

Answers = Mapping[Any, "concurrent.futures.Future[Any]"]
Request = Callable[[admin.AdminClient, float], Sequence[Answers]]
"""Sends requests that may take so many seconds. Returns the client's mappings to futures."""

DROPPED = frozenset({"_DESTROY_BROKER", "_UNKNOWN_BROKER", "_PARTIAL"})
"""Immediate errors: the client learned that the cluster has other brokers, or asked one that knows none yet."""
LOST = frozenset({
    "_TIMED_OUT", "_TIMED_OUT_QUEUE", "_DESTROY", "_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE", "_WAIT_COORD",
    "NOT_CONTROLLER", "BROKER_NOT_AVAILABLE", "NETWORK_EXCEPTION", *DROPPED,
})  # fmt: skip
"""Errors that depend on the broker that was asked, not on the cluster."""

_CUT, _MOST_CUTS = "_TRANSPORT", 3
"""A connection broke during the request, as a new client's may while brokers restart. It is sent again so often."""
_GRACE_S = 1.0
"""How much longer we wait than the client, so that it reports its own time-out with the reason."""
_LOOK_S = 0.1
_SPEECHLESS_S = 1.0
"""A client without an answer for so long may speak without TLS to a TLS listener."""
_LED_S = 0.25
"""How long the client is trusted to know its leaders: enough for the requests of one call. Its own metadata last for
minutes, but only until it learns that a leader is gone."""


class Leaders(NamedTuple):
    """The partitions of a topic whose leaders get a request."""

    topic: str
    partitions: Collection[int]


class _Led(NamedTuple):
    """Partitions that had a leader at the last answer, and the time until which that is trusted."""

    partitions: frozenset[int]
    until_s: float

    def covers(self, leaders: Leaders) -> bool:
        """Return whether all of these had one."""
        return self.partitions.issuperset(leaders.partitions)


class AdminClient:
    """Asks the brokers through one native client. Raises our error for the client's if it cannot be made."""

    def __init__(self, config: ClientConfig, clock: Callable[[], float]) -> None:
        self._config = config
        self._clock = clock
        self._errors: deque[confluent_kafka.KafkaError] = deque(maxlen=8)
        """The client's own errors since its last answer."""
        self._is_plain = "SSL" not in config.settings.get("security.protocol", "").upper()
        self._unanswered: list[Sequence[Answers]] = []
        self._led: dict[str, _Led] = {}
        self.is_proven = False
        """Whether it has ever got an answer."""
        properties = admin_properties(config)
        self.native = make_client(admin.AdminClient, "a client", properties, config, self._errors)

    def ask(self, request: Request, limit_s: float, leaders: Leaders | None) -> list[dict[Any, Any]]:
        """Return the answers of all mappings, within `limit_s` seconds. Raises Refused."""
        native(self.native.poll, 0)  # Passes on the client's log lines, which would pile up.
        began = self._clock()
        if leaders is not None and not self._knows(leaders):
            self._learn(leaders, limit_s)
        left_s = limit_s - (self._clock() - began)
        return self._answers(request, max(left_s, 0.001))

    def _knows(self, leaders: Leaders) -> bool:
        if self._errors:  # A connection broke, so the client may already know that its leader is gone.
            return False
        led = self._led.get(leaders.topic)
        return led is not None and self._clock() < led.until_s and led.covers(leaders)

    def _learn(self, leaders: Leaders, limit_s: float) -> None:
        topics = TopicCollection([leaders.topic])
        self._answers(lambda client, left_s: [client.describe_topics(topics, request_timeout=left_s)], limit_s)
        led = self._led.get(leaders.topic)
        if led is None or not led.covers(leaders):
            raise Refused("LEADER_NOT_AVAILABLE", "a partition has no leader, or is not there")

    def _answers(self, request: Request, limit_s: float) -> list[dict[Any, Any]]:
        mappings = native(request, self.native, limit_s)
        self._await(mappings, limit_s + _GRACE_S)
        try:
            answers = [{key: self._result(future, limit_s) for key, future in mapping.items()} for mapping in mappings]
        except Refused as refused:
            raise self._explained(refused) from None
        self.is_proven = True
        self._errors.clear()
        for answer in (answer for mapping in answers for answer in mapping.values()):
            if isinstance(answer, admin.TopicDescription):
                led = frozenset(place.id for place in answer.partitions if place.leader is not None)
                self._led[answer.name] = _Led(led, self._clock() + _LED_S)
        return answers

    def _await(self, mappings: Sequence[Answers], limit_s: float) -> None:
        """Wait for all: the client may be dropped after a refusal, and must have no request under way then."""
        futures = [future for mapping in mappings for future in mapping.values()]
        began = self._clock()
        while concurrent.futures.wait(futures, _LOOK_S).not_done:
            waited_s = self._clock() - began
            native(self.native.poll, 0)
            refusal = None if self.is_proven else self._refusal(waited_s)
            if refusal is not None or waited_s >= limit_s:
                self._unanswered.append(mappings)
                if refusal is not None:
                    raise Refused(*refusal)
                return

    def _refusal(self, waited_s: float) -> tuple[str, str] | None:
        """Return why waiting is useless, if it is. Check once whether a plain client speaks to a TLS listener."""
        refusal = refusal_of(self._client_errors(), waited_s)
        if refusal is None and self._is_plain and waited_s >= _SPEECHLESS_S:
            self._is_plain = False  # Checked once.
            server = speaks_tls(self._config.bootstrap_servers, _SPEECHLESS_S)
            if server:
                return "_SSL", f"{server} speaks TLS, and security.protocol says that this client does not"
        return refusal

    def _client_errors(self) -> list[tuple[str, str]]:
        return [(error.name(), self._config.redact(error.str())) for error in list(self._errors)]

    def _explained(self, refused: Refused) -> Refused:
        """Return a time-out with its cause, which is in the client's own errors."""
        errors = self._client_errors()
        if refused.name not in LOST or not errors:
            return refused
        refusal = refusal_of(errors, math.inf, was_in=self.is_proven)
        return Refused(*(refusal or (refused.name, f"{refused.text} (last client error: {errors[-1][1]})")))

    def _result(self, future: "concurrent.futures.Future[Any]", limit_s: float) -> Any:
        """Return the answer. Raises Refused."""
        try:
            return future.result(timeout=0)
        except confluent_kafka.KafkaException as refused:
            # The future keeps its exception, whose traceback would keep the client alive.
            refused.__traceback__ = None
            raise Refused(*kafka_error(refused, self._config)) from None
        except concurrent.futures.TimeoutError:
            raise Refused("_TIMED_OUT", f"no answer within {limit_s:g} s") from None


def speaks_tls(bootstrap_servers: str, timeout_s: float) -> str:
    """Return the first of these servers (host:port, comma-separated) that answers a TLS handshake, or an empty text."""
    for server in bootstrap_servers.split(","):
        host, _, port = server.strip().rpartition("://")[2].rpartition(":")
        if port.isdecimal() and _shakes_hands(host.strip("[]"), int(port), timeout_s):
            return server.strip()
    return ""


def _shakes_hands(host: str, port: int, timeout_s: float) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with socket.create_connection((host, port), timeout_s) as plain, context.wrap_socket(plain):
            return True
    except ssl.SSLError as error:
        # A broker that wants our certificate ends the handshake with an alert, which is TLS, too.
        return "ALERT" in (error.reason or "")
    except (OSError, ValueError):
        return False


_shared: dict[int, tuple[ClientConfig, Callable[[], float], "weakref.ref[AdminClient]"]] = {}
"""The clients of this process that sessions may share, with the settings and the clock of each."""


def _proven(config: ClientConfig, clock: Callable[[], float]) -> AdminClient | None:
    """Return a client of these settings that has got answers, and that no session has dropped."""
    found = [
        there() for others, others_clock, there in list(_shared.values()) if (others, others_clock) == (config, clock)
    ]
    return next((client for client in found if client is not None and client.is_proven), None)


def _share(client: AdminClient, config: ClientConfig, clock: Callable[[], float]) -> None:
    key = id(client)
    _shared[key] = config, clock, weakref.ref(client, lambda _: _shared.pop(key, None))


class AdminSession:
    """Asks the brokers through one admin client at a time. Thread-safe; refuses work in a fork.

    Sessions with the same settings share a client, unless one `shares` none. If one of them drops it, the others do so
    once there is another that has got answers.
    """

    def __init__(
        self,
        config: ClientConfig,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
        *,
        shares: bool = True,
    ) -> None:
        self._config = config
        self._timeout_s = timeout_s
        self._clock = clock
        self._shares = shares
        self._takes_new = False
        self.guard = ProcessGuard("Kafka client")
        """The process that may use it."""
        self._making = threading.Lock()
        _sessions.add(self)
        self._current: AdminClient | None = None

    def ask(
        self, request: Request, limit_s: float | None = None, *, twice: bool = True, leaders: Leaders | None = None
    ) -> list[dict[Any, Any]]:
        """Return the answers of all mappings, within `limit_s` seconds (None: the session's own) once connected.

        `leaders`: those that get the request, if any. `twice`: if false, send it again only if it was surely not sent.

        Raises Refused with the first refusal, once every answer is there. Raises it at once if the brokers refuse the
        credentials of a client that never got an answer.
        """
        limit_s = self._timeout_s if limit_s is None else max(limit_s, 0.001)
        until_s = self._clock() + limit_s
        is_first, cuts = True, 0
        while True:
            client = self._client()
            is_doubted = is_first and client.is_proven
            try:
                return client.ask(request, limit_s / _FIRST_SHARE if is_doubted else limit_s, leaders)
            except Refused as refused:
                cuts += refused.name == _CUT
                is_cut = refused.name == _CUT and cuts <= _MOST_CUTS
                if not is_cut and refused.name not in (LOST if is_doubted else DROPPED):
                    raise
                self.drop(client)
                is_late = not is_doubted and self._clock() >= until_s
                if is_late or (not twice and _UNSENT not in refused.text):
                    raise
            is_first = False

    def unlock(self) -> None:
        """Replace the lock in a forked child, where the thread that may hold it does not exist."""
        self._making = threading.Lock()

    def drop(self, client: AdminClient | None = None) -> None:
        """Give the client up, or this one, unless another thread did: the next question makes a new one. Threads that
        are asking it keep it until they end.
        """
        with self._making:
            if self._current is not None and client in (None, self._current):
                self.guard.drop()  # Else each one would stay, with its threads and connections.
                _shared.pop(id(self._current), None)
                self._current, self._takes_new = None, True

    def close(self) -> None:
        """Release the client. Idempotent."""
        self.guard.close()
        self._current = None

    def _client(self) -> AdminClient:
        self.guard.check()  # Before the lock: a fork may have copied it while another thread had it.
        with self._making:
            if self._current is None or (self._shares and id(self._current) not in _shared):
                found = _proven(self._config, self._clock) if self._shares and not self._takes_new else None
                if found is None and self._current is not None:
                    return self._current
                client = found or AdminClient(self._config, self._clock)
                if found is None and self._shares:
                    _share(client, self._config, self._clock)
                self.guard.drop()
                self.guard.hold([client])  # Each session's own: the client ends with the last of them.
                self._current, self._takes_new = client, False
            return self._current


_sessions: "weakref.WeakSet[AdminSession]" = weakref.WeakSet()


def _unlock_sessions() -> None:
    _shared.clear()
    for session in _sessions:
        session.unlock()


os.register_at_fork(after_in_child=_unlock_sessions)


class Retries:
    """The time of one call of the port, for repeated requests."""

    def __init__(self, limit_s: float, session: AdminSession, clock: Callable[[], float]) -> None:
        self._deadline = clock() + limit_s
        self._half_s = limit_s / 2
        self._least_s = limit_s / 10
        self._pause_s = _RETRY_S
        self._session = session
        self._clock = clock

    @property
    def left_s(self) -> float:
        """The seconds that are left."""
        return self._deadline - self._clock()

    @property
    def is_mostly_over(self) -> bool:
        """Whether less than half of the time is left."""
        return self.left_s < self._half_s

    def again(self, *, drop: bool = True) -> bool:
        """Wait a little, longer each time. Return False once too little time is left for another request.

        `drop`: use a new client, because an old one remembers leaders, and "no such topic", for longer than we wait.
        """
        if self.left_s <= self._pause_s + self._least_s:
            return False  # A request without enough time would hide the last answer.
        if drop:
            self._session.drop()
        time.sleep(self._pause_s)
        self._pause_s = min(self._pause_s * 2, _RETRY_MAX_S)
        return True
