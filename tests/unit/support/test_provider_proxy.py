"""The proxy that plays services: its effects on connections, and its terms in requests and answers."""

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import timedelta
from io import BytesIO
from typing import Any

import pytest
from kio.index import load_payload_module
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer
from kio.static.constants import EntityType

from tests.support.providers.provider import CONFLUENT_CLOUD, Provider
from tests.support.providers.proxy import ProviderProxy, read_frame
from tests.support.providers.terms import API_KEYS, Head, ServiceTerms, read_answer, read_request, written_answer

_HEARTBEAT, _PRODUCE = API_KEYS["Heartbeat"], API_KEYS["Produce"]
_AT_ONCE = timedelta(0)


class _Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def echo() -> Iterator[str]:
    """Return host:port of a broker that answers every request with only its correlation id."""
    server = socket.create_server(("127.0.0.1", 0))

    def answer(client: socket.socket) -> None:
        with client, suppress(OSError):
            while (frame := read_frame(client)) is not None:
                client.sendall(struct.pack(">i", 4) + frame[8:12])

    def accept() -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield f"127.0.0.1:{server.getsockname()[1]}"
    server.shutdown(socket.SHUT_RDWR)
    server.close()


def _connected(proxy: ProviderProxy) -> socket.socket:
    host, _, port = proxy.bootstrap.partition(":")
    return socket.create_connection((host, int(port)), timeout=60)


def _asked(client: socket.socket, number: int, api_key: int = _HEARTBEAT) -> bool:
    """Ask a question. Return False if the connection ends instead of an answer."""
    try:
        client.sendall(struct.pack(">ihhi", 8, api_key, 4, number))
        frame = read_frame(client)
    except ConnectionError:
        return False
    assert frame is None or int.from_bytes(frame[4:8], "big") == number
    return frame is not None


def test_each_answer_takes_longer_and_none_waits_for_the_other(echo: str) -> None:
    """Each of several concurrent answers is delayed by the same time, and none waits for another."""
    with ProviderProxy(echo, Provider(name="slow", latency_s=0.3)) as proxy, closing(_connected(proxy)) as client:
        began_s = time.monotonic()
        for number in range(50):
            client.sendall(struct.pack(">ihhi", 8, _HEARTBEAT, 4, number))
        sent_s = time.monotonic()
        assert [int.from_bytes((read_frame(client) or b"")[4:8], "big") for _ in range(50)] == list(range(50))
        assert time.monotonic() - began_s >= 0.3
        assert time.monotonic() - sent_s < 50 * 0.3


def test_a_connection_that_nobody_asks_anything_on_is_cut(echo: str) -> None:
    """An idle connection is cut without a request, and a new one works."""
    with ProviderProxy(echo, Provider(name="balancer", idle_s=0.2)) as proxy:
        with closing(_connected(proxy)) as client:
            assert _asked(client, 1)
            assert client.recv(1) == b""
        with closing(_connected(proxy)) as client:
            assert _asked(client, 2)


def test_no_connection_outlives_the_proxy(echo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection outlives the proxy, even if it was still connecting to the broker."""
    connect, is_closed, is_asked = socket.create_connection, threading.Event(), threading.Event()

    def late(*args: Any, **options: Any) -> socket.socket:
        is_asked.set()
        assert is_closed.wait(30)
        return connect(*args, **options)

    with ProviderProxy(echo, Provider(name="plain")) as proxy:
        client = _connected(proxy)
        with monkeypatch.context() as patch:
            patch.setattr("tests.support.providers.proxy.socket.create_connection", late)
            another = connect(client.getpeername(), timeout=10)
            assert is_asked.wait(30)
        proxy.close()
        is_closed.set()
        for one in (client, another):
            with closing(one):
                assert not _asked(one, 1)


@pytest.mark.parametrize("field", ["session_s", "rolls_s"])
def test_a_connection_that_is_over_ends_at_its_next_request(echo: str, field: str) -> None:
    """A connection whose session ended, or whose broker restarted, ends at its next request. A new one works."""
    clock = _Clock()
    named: dict[str, Any] = {"name": "strict", field: 10.0}
    with ProviderProxy(echo, Provider(**named), clock=clock) as proxy:
        with closing(_connected(proxy)) as client:
            assert _asked(client, 1)
            clock.now_s += 11
            assert not _asked(client, 2)
        with closing(_connected(proxy)) as client:
            assert _asked(client, 3)


# ---- the terms


def _types(request: str, version: int) -> tuple[Any, Any]:
    """Return kio's types of a request and of its answer."""
    kinds = (EntityType.request, EntityType.response)
    asked, answered = (load_payload_module(API_KEYS[request], version, kind) for kind in kinds)  # type: ignore[arg-type] # a Literal of two
    return asked, answered


def _written(body: Any) -> bytes:
    """Return a request with this body."""
    buffer = BytesIO()
    header = body.__header_schema__(
        request_api_key=body.__api_key__, request_api_version=body.__version__, correlation_id=7, client_id="me"
    )
    for part in (header, body):
        entity_writer(part.__class__)(buffer, part)
    return struct.pack(">i", buffer.tell()) + buffer.getvalue()


def _terms(provider: Provider) -> ServiceTerms:
    return ServiceTerms(provider, lambda host, port: (host, port))


def test_a_quota_is_told() -> None:
    """The answer to a produce reports the quota's delay."""
    _, answered = _types("Produce", 9)
    head, answer = Head(_PRODUCE, 9, 7), answered.ProduceResponse(throttle_time=_AT_ONCE, responses=())
    told = _terms(Provider(name="quota", throttle_s=0.25)).answer(head, written_answer(head, answer), None)
    assert read_answer(head, told).throttle_time == timedelta(seconds=0.25)


def test_a_partition_that_moved_is_told_so_once() -> None:
    """A moved partition is reported once. For others, the broker's answer is unchanged."""
    asked, answered = _types("ListOffsets", 7)
    terms = _terms(Provider(name="rolling", rolls_s=1.0))
    parts = tuple(asked.ListOffsetsPartition(partition_index=p, timestamp=-1) for p in range(2))
    topics = (asked.ListOffsetsTopic(name="t", partitions=parts),)
    frame = _written(asked.ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=topics))
    assert terms.request(frame, lambda _: False).frame == frame
    deal = terms.request(frame, lambda place: place == ("t", 1))
    sent = [part.partition_index for topic in read_request(deal.frame).topics for part in topic.partitions]
    parts = tuple(
        answered.ListOffsetsPartitionResponse(partition_index=p, error_code=error, offset=7)
        for p, error in zip(sent, (ErrorCode.none, ErrorCode.unknown_topic_or_partition), strict=True)
    )
    topics = (answered.ListOffsetsTopicResponse(name="t", partitions=parts),)
    head = Head(API_KEYS["ListOffsets"], 7, 7)
    answer = written_answer(head, answered.ListOffsetsResponse(throttle_time=_AT_ONCE, topics=topics))
    told = read_answer(head, terms.answer(head, answer, deal.finish)).topics[0].partitions
    assert [(part.partition_index, part.error_code, part.offset) for part in told] == [
        (0, ErrorCode.none, 7),
        (1, ErrorCode.not_leader_or_follower, 7),
    ]


@pytest.mark.parametrize("error", [ErrorCode.none, ErrorCode.topic_already_exists], ids=lambda one: str(one.name))
def test_a_topic_with_a_setting_that_is_refused_is_not_made(error: ErrorCode) -> None:
    """A topic with a refused setting is only validated by the broker.

    An existing topic is reported first, as by the twin.
    """
    asked, answered = _types("CreateTopics", 7)
    terms = _terms(CONFLUENT_CLOUD)
    config = asked.CreatableTopicConfig(name="unclean.leader.election.enable", value="false")
    topic = asked.CreatableTopic(name="t", num_partitions=1, replication_factor=1, assignments=(), configs=(config,))
    frame = _written(asked.CreateTopicsRequest(topics=(topic,), timeout=_AT_ONCE))
    deal = terms.request(frame, None)
    assert read_request(deal.frame).validate_only
    result = answered.CreatableTopicResult(name="t", topic_id=None, error_code=error, error_message=None, configs=())
    head = Head(API_KEYS["CreateTopics"], 7, 7)
    answer = written_answer(head, answered.CreateTopicsResponse(throttle_time=_AT_ONCE, topics=(result,)))
    (told,) = read_answer(head, terms.answer(head, answer, deal.finish)).topics
    assert told.error_code == (error or ErrorCode.policy_violation)
    assert error or "unclean.leader.election.enable" in told.error_message
