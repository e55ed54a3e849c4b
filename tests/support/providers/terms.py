"""A service's terms on the wire: the changes of a `Provider` to the requests of clients and the answers of a broker.

Kafka answers the requests of a connection in their order. So a refused request still goes to the broker, as a request
that does nothing, and its answer becomes the refusal: the order is the broker's. No byte is changed where the terms say
nothing. Pure, but for the addresses of brokers, which come in as a function.

Requests and answers are kio's values, of all requests in all versions; a body lacks the fields that its version lacks.
Raises kio's errors for malformed bytes.
"""

import struct
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from io import BytesIO
from typing import Any, NamedTuple

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader, entity_writer

from tests.support.providers.provider import Provider

API_KEYS = {"".join(part.title() for part in name.split("_")): key for key, name in api_key_map.items()}
"""Kafka's own names of requests, such as DeleteRecords."""
NEWEST = {key: max(schema_name_map[name]) for key, name in api_key_map.items()}
"""The newest version of each request that can be read here."""
_HEAD = struct.Struct(">ihhi")
_PRODUCE, _CREATE_TOPICS = API_KEYS["Produce"], API_KEYS["CreateTopics"]
_TO_LEADERS = {
    _PRODUCE: (("topic_data", "partition_data", "index"), ("responses", "partition_responses", "index")),
    API_KEYS["ListOffsets"]: (("topics", "partitions", "partition_index"),) * 2,
}
"""Requests that only a leader answers: where they and their answers name topics, partitions, and their numbers."""
_NOWHERE = 1 << 30
"""No topic has partitions of this number and above."""
_NO_ADDRESSES = {_PRODUCE: 9, API_KEYS["Fetch"]: 15}
"""The newest versions whose answers name no leader's address."""
_NO_IDS = {
    API_KEYS["Fetch"]: 12,
    API_KEYS["Metadata"]: 9,
    API_KEYS["OffsetCommit"]: 9,
    API_KEYS["OffsetFetch"]: 9,
    _CREATE_TOPICS: 6,
    API_KEYS["DeleteTopics"]: 5,
}
"""The newest versions without topic ids."""
_LAST_WITHOUT_IDS = API_KEYS["DescribeProducers"]
"""Kafka added the requests above this one after the ids."""
_TOPIC, _OF_THE_TOPIC = 2, 1
"""In answers to DescribeConfigs: the kind of resource, and a value that the topic itself has."""
_EXISTS = ErrorCode.topic_already_exists

Address = Callable[[str, int], tuple[str, int]]
"""The address where clients find the broker at this host and port."""
Place = tuple[str, int]
"""A topic and a partition."""


class Head(NamedTuple):
    """The beginning of every request."""

    api_key: int
    version: int
    correlation_id: int


def head_of(frame: bytes) -> Head:
    """Return the head of a request."""
    return Head(*_HEAD.unpack_from(frame)[1:])


def correlation_of(frame: bytes) -> int:
    """Return the correlation id of an answer."""
    return int.from_bytes(frame[4:8], "big")


def read_request(frame: bytes) -> Any:
    """Return the body of a request."""
    head = head_of(frame)
    return _read(load_request_schema(head.api_key, head.version), frame)[1]


def with_body(frame: bytes, body: Any) -> bytes:
    """Return the request with another body."""
    return _written(_read(body.__class__, frame)[0], body)


def read_answer(head: Head, frame: bytes) -> Any:
    """Return the body of the answer to a request."""
    return _read(load_response_schema(head.api_key, head.version), frame)[1]


def written_answer(head: Head, body: Any) -> bytes:
    """Return the answer with this body."""
    return _written(body.__header_schema__(correlation_id=head.correlation_id), body)


def _read(kind: Any, frame: bytes) -> tuple[Any, Any]:
    header, size = entity_reader(kind.__header_schema__)(frame, 4)
    body, _ = entity_reader(kind)(frame, 4 + size)
    return header, body


def _written(header: Any, body: Any) -> bytes:
    buffer = BytesIO()
    for part in (header, body):
        entity_writer(part.__class__)(buffer, part)
    return struct.pack(">i", buffer.tell()) + buffer.getvalue()


class Deal(NamedTuple):
    """The request that the broker gets, and the change to the body of its answer."""

    frame: bytes
    finish: Callable[[Any], Any] | None = None


class ServiceTerms:
    """The terms of one service. One refused setting refuses all topics of its request."""

    def __init__(self, provider: Provider, address: Address) -> None:
        self._provider = provider
        self._address = address
        self._lacks = {API_KEYS[name] for name in provider.lacks}
        self._changes: dict[int, Callable[[Any], Any]] = {
            API_KEYS["ApiVersions"]: self._api_versions,
            API_KEYS["Metadata"]: self._brokers,
            API_KEYS["FindCoordinator"]: self._coordinators,
            API_KEYS["DescribeCluster"]: self._brokers,
            API_KEYS["DescribeConfigs"]: self._configs,
        }
        if provider.places_late or provider.throttle_s:
            self._changes[_PRODUCE] = self._produced

    def request(self, frame: bytes, moved: Callable[[Place], bool] | None) -> Deal:
        """Return the deal for a request. `moved` reports, once, whether a partition has just got another leader."""
        api_key = head_of(frame).api_key
        if api_key == _CREATE_TOPICS:
            return self._create(frame)
        if api_key in _TO_LEADERS and moved is not None:
            return _to_leaders(frame, moved)
        return Deal(frame)

    def answer(self, head: Head, frame: bytes, finish: Callable[[Any], Any] | None) -> bytes:
        """Return the answer that the client gets for the broker's answer."""
        change = self._changes.get(head.api_key)
        if change is None and finish is None:
            return frame
        body = read_answer(head, frame)
        for step in (finish, change):
            body = body if step is None else step(body)
        return written_answer(head, body)

    def _create(self, frame: bytes) -> Deal:
        body = read_request(frame)
        named: list[dict[str, str]] = [{one.name: one.value or "" for one in topic.configs} for topic in body.topics]
        refusals = [refusal for config in named if (refusal := self._provider.refusal(config))]
        if not refusals:
            return Deal(frame)

        def finish(answer: Any) -> Any:
            wrong: dict[str, Any] = {"error_code": ErrorCode.policy_violation, "error_message": refusals[0]}
            topics = (one if one.error_code == _EXISTS else replace(one, **wrong) for one in answer.topics)
            return replace(answer, topics=tuple(topics))

        return Deal(with_body(frame, replace(body, validate_only=True)), finish)

    def _api_versions(self, body: Any) -> Any:
        kept: list[Any] = []
        for one in body.api_keys:
            most = min(one.max_version, NEWEST.get(one.api_key, -1), _NO_ADDRESSES.get(one.api_key, one.max_version))
            if not self._provider.has_topic_ids:
                most = min(most, _NO_IDS.get(one.api_key, most)) if one.api_key <= _LAST_WITHOUT_IDS else -1
            if one.api_key not in self._lacks and most >= one.min_version:
                kept.append(replace(one, max_version=most))
        return replace(body, api_keys=tuple(kept))

    def _brokers(self, body: Any) -> Any:
        return replace(body, brokers=tuple(self._placed(one) for one in body.brokers))

    def _coordinators(self, body: Any) -> Any:
        if not hasattr(body, "coordinators"):
            return self._placed(body)
        return replace(body, coordinators=tuple(self._placed(one) for one in body.coordinators))

    def _placed(self, one: Any) -> Any:
        if not one.host:  # There is no coordinator yet.
            return one
        host, port = self._address(one.host, one.port)
        return replace(one, host=host, port=port)

    def _configs(self, body: Any) -> Any:
        return replace(body, results=tuple(self._told(one) for one in body.results))

    def _told(self, one: Any) -> Any:
        if one.resource_type != _TOPIC or not one.configs:
            return one
        entries = {entry.name: entry for entry in one.configs}
        told = self._provider.told({name: entry.value for name, entry in entries.items()})
        shape = replace(one.configs[0], config_source=_OF_THE_TOPIC, is_sensitive=False, synonyms=())
        configs = (replace(entries.get(name, shape), name=name, value=value) for name, value in told.items())
        return replace(one, configs=tuple(configs))

    def _produced(self, body: Any) -> Any:
        throttled = replace(body, throttle_time=timedelta(seconds=self._provider.throttle_s))
        if not self._provider.places_late:
            return throttled
        return replace(throttled, responses=tuple(_placed_late(one) for one in body.responses))


def _placed_late(topic: Any) -> Any:
    """Return the topic with the offsets that its records would have if another client had written between."""
    parts = (
        one if one.error_code else replace(one, base_offset=one.base_offset + 1) for one in topic.partition_responses
    )
    return replace(topic, partition_responses=tuple(parts))


def _to_leaders(frame: bytes, moved: Callable[[Place], bool]) -> Deal:
    """Redirect requests for moved partitions to partitions that do not exist, and answer them so."""
    head, body = head_of(frame), read_request(frame)
    asked, answered = _TO_LEADERS[head.api_key]
    away: set[Place] = set()

    def send_away(topic: str, one: Any, number: str) -> Any:
        if not moved((topic, getattr(one, number))):
            return one
        away.add((topic, getattr(one, number)))
        return replace(one, **{number: getattr(one, number) + _NOWHERE})

    def refuse(_: str, one: Any, number: str) -> Any:
        if getattr(one, number) < _NOWHERE:
            return one
        return replace(one, **{number: getattr(one, number) - _NOWHERE, "error_code": ErrorCode.not_leader_or_follower})

    changed = _each(body, asked, send_away)
    if not away:
        return Deal(frame)

    def finish(answer: Any) -> Any:
        return _each(answer, answered, refuse)

    return Deal(with_body(frame, changed), finish)


def _each(body: Any, names: tuple[str, str, str], change: Callable[[str, Any, str], Any]) -> Any:
    topics, parts, number = names
    changed = (
        replace(topic, **{parts: tuple(change(topic.name, one, number) for one in getattr(topic, parts))})
        for topic in getattr(body, topics)
    )
    return replace(body, **{topics: tuple(changed)})
