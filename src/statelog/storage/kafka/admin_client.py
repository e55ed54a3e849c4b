"""One admin client on confluent-kafka, used until it is replaced.

Owns one librdkafka admin client, which threads may share, the errors that it reports of itself, and what it knows of
leaders. It decides nothing about topics and offsets. What it knows about librdkafka:

- It retries endlessly where it is refused: wrong credentials, wrong certificates. What it says of that ends the wait.
- All answers must be there before it may be dropped, and a future must stay in its mapping until it is done.
- Where it knows no leader of a partition, `list_offsets` and `delete_records` look for one from the calling thread, in
  memory that the client's own thread frees as soon as its picture of the cluster changes: heap corruption, most likely
  in a new client, whose first picture is on its way. So these ask for leaders first, by `describe_topics`, which looks
  in the client's own thread and leaves what it found in that picture.
"""

import concurrent.futures
import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import confluent_kafka
from confluent_kafka import TopicCollection, admin

from statelog.storage.kafka.config import ClientConfig, admin_properties
from statelog.storage.kafka.errors import refusal_of
from statelog.storage.kafka.native import Refused, kafka_error, make_client, native
from statelog.storage.kafka.tls import speaks_tls

__all__ = ["DROPPED", "LOST", "AdminClient", "Answers", "Leaders", "Request"]

Answers = Mapping[Any, "concurrent.futures.Future[Any]"]
Request = Callable[[admin.AdminClient, float], Sequence[Answers]]
"""Sends requests that may take so many seconds; returns the client's mappings to futures."""

DROPPED = frozenset({"_DESTROY_BROKER", "_UNKNOWN_BROKER"})
"""Answers at once, instead of after all the time: the client heard meanwhile that the cluster has other brokers."""
LOST = frozenset({
    "_TIMED_OUT", "_TIMED_OUT_QUEUE", "_DESTROY", "_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE", "_WAIT_COORD",
    "NOT_CONTROLLER", "BROKER_NOT_AVAILABLE", "NETWORK_EXCEPTION", *DROPPED,
})  # fmt: skip
"""Answers that say more of where the client looked than of the cluster."""

_GRACE_S = 1.0
"""The client reports its own time-out, with its reason; we wait this much longer to hear it."""
_LOOK_S = 0.1
_SPEECHLESS_S = 1.0
"""A client that got no answer for so long may speak plainly to a listener that wants TLS."""
_LED_S = 0.25
"""So long the client is taken to know the leaders that it was told of: enough for the questions of one call. Its own
picture of them lasts for minutes, but only until it hears that a leader is gone."""


class Leaders(NamedTuple):
    """The partitions of a topic whose leaders a request goes to."""

    topic: str
    partitions: Collection[int]


class _Led(NamedTuple):
    """Partitions that had a leader when the client was told, and until when that is believed."""

    partitions: frozenset[int]
    until_s: float

    def covers(self, leaders: Leaders) -> bool:
        """Whether all of these had one."""
        return self.partitions.issuperset(leaders.partitions)


class AdminClient:
    """Asks the brokers through one native client. Raises our error for the client's if it cannot be made."""

    def __init__(self, config: ClientConfig, clock: Callable[[], float]) -> None:
        self._config = config
        self._clock = clock
        self._errors: deque[confluent_kafka.KafkaError] = deque(maxlen=8)
        """What the client said of itself since its last answer."""
        self._is_plain = "SSL" not in config.settings.get("security.protocol", "").upper()
        self._unanswered: list[Sequence[Answers]] = []
        self._led: dict[str, _Led] = {}
        self._is_proven = False
        properties = admin_properties(config)
        self.native = make_client(admin.AdminClient, "a client", properties, config, self._errors)

    @property
    def is_proven(self) -> bool:
        """Whether it ever gave an answer."""
        return self._is_proven

    def ask(self, request: Request, limit_s: float, leaders: Leaders | None) -> list[dict[Any, Any]]:
        """The answers of all mappings, within `limit_s` seconds. Raises Refused, as `AdminSession.ask` says."""
        native(self.native.poll, 0)  # Hands the client's log lines on; they would pile up otherwise.
        began = self._clock()
        if leaders is not None and not self._knows(leaders):
            self._learn(leaders, limit_s)
        left_s = limit_s - (self._clock() - began)
        return self._answers(request, max(left_s, 0.001))

    def _knows(self, leaders: Leaders) -> bool:
        if self._errors:  # A connection broke since, and the client may already know that its leader is gone.
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
        self._is_proven = True
        self._errors.clear()
        for answer in (answer for mapping in answers for answer in mapping.values()):
            if isinstance(answer, admin.TopicDescription):
                led = frozenset(place.id for place in answer.partitions if place.leader is not None)
                self._led[answer.name] = _Led(led, self._clock() + _LED_S)
        return answers

    def _await(self, mappings: Sequence[Answers], limit_s: float) -> None:
        """Wait for all: one refusal must not leave others under way, because the client may be dropped next."""
        futures = [future for mapping in mappings for future in mapping.values()]
        began = self._clock()
        while concurrent.futures.wait(futures, _LOOK_S).not_done:
            waited_s = self._clock() - began
            native(self.native.poll, 0)
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
        if refused.name not in LOST or not told:
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
