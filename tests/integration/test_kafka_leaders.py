"""Requests to leaders come from clients that know them: a client that has to look them up corrupts its memory.

`moved_coordinator` is a process that asks a group's coordinator, which denies being one: librdkafka's admin client
would crash it. Its brokers are librdkafka's own mock cluster, made by C calls: Python has none.
"""

import ctypes
import gc
import sys
import weakref
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition, admin

from statelog.errors import NotFound
from statelog.kafka.client import ConfluentKafka
from statelog.kafka.config import client_config
from statelog.kafka.port import OffsetRange, TopicSpec
from statelog.kafka.positions import HighWater
from tests.support.processes.parts import output
from tests.support.services.broker import Broker

_PRODUCER, _OFFSET_FETCH, _NOT_COORDINATOR = 0, 9, 16
_ANSWERS = 2


def moved_coordinator() -> None:
    """Write the text next to a group's offset, which the coordinator returns at the third request."""
    with _mock_cluster() as (library, cluster, bootstrap), closing(_kafka(bootstrap)) as kafka:
        kafka.publish_offset("group", "topic", 0, 5, "text")
        errors = (ctypes.c_int * _ANSWERS)(*[_NOT_COORDINATOR] * _ANSWERS)
        library.rd_kafka_mock_push_request_errors_array(
            cluster, ctypes.c_int16(_OFFSET_FETCH), ctypes.c_size_t(_ANSWERS), errors
        )
        sys.stdout.write(kafka.published("group", "topic", 0).text)


@contextmanager
def _mock_cluster() -> Generator[tuple[ctypes.CDLL, ctypes.c_void_p, str]]:
    library = ctypes.CDLL(str(_library()))
    for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_mock_cluster_new"):
        getattr(library, name).restype = ctypes.c_void_p
    library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    error = ctypes.create_string_buffer(512)
    conf = ctypes.c_void_p(library.rd_kafka_conf_new())
    client = ctypes.c_void_p(library.rd_kafka_new(_PRODUCER, conf, error, ctypes.c_size_t(len(error))))
    assert client, error.value
    cluster = ctypes.c_void_p(library.rd_kafka_mock_cluster_new(client, 1))
    library.rd_kafka_mock_topic_create(cluster, b"topic", 1, 1)
    try:
        yield library, cluster, library.rd_kafka_mock_cluster_bootstraps(cluster).decode()
    finally:
        library.rd_kafka_mock_cluster_destroy(cluster)
        library.rd_kafka_destroy(client)


def _library() -> Path:
    """Return the librdkafka that the client brings along, which is loaded by now."""
    (found,) = (Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs").glob("librdkafka*.so*")
    return found


T = TypeVar("T")
_PARTITIONS = 4


@dataclass(eq=False, slots=True)
class _Told:
    """The leaders that one client learned, and the partitions that it had to look up itself."""

    answers: list[Future[admin.TopicDescription]] = field(default_factory=list[Future[admin.TopicDescription]])
    questions: int = 0
    sought: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])

    def seek(self, places: Iterable[TopicPartition]) -> None:
        """Record a request to the leaders of these."""
        topics = [answer.result() for answer in self.answers if answer.done() and answer.exception() is None]
        led = {(topic.name, one.id) for topic in topics for one in topic.partitions if one.leader is not None}
        named = [(place.topic, place.partition) for place in places]
        self.sought += [place for place in named if place not in led]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> dict[int, _Told]:
    """Return by identity every admin client that is used from now on; none of them closes before the test ends."""
    clients: list[admin.AdminClient] = []
    told: defaultdict[int, _Told] = defaultdict(_Told)

    def watch(name: str, note: Callable[[_Told, Any, Any], None]) -> None:
        original = getattr(admin.AdminClient, name)

        def watched(client: admin.AdminClient, asked: Any, **options: Any) -> Any:
            clients.append(client)
            if name != "describe_topics":
                note(told[id(client)], asked, None)
            answers = original(client, asked, **options)
            if name == "describe_topics":
                note(told[id(client)], asked, answers)
            return answers

        monkeypatch.setattr(admin.AdminClient, name, watched)

    def described(one: _Told, _: Any, answers: dict[str, Future[admin.TopicDescription]]) -> None:
        one.questions += 1
        one.answers += answers.values()

    watch("describe_topics", described)
    watch("list_offsets", lambda one, asked, _: one.seek(asked))
    watch("delete_records", lambda one, asked, _: one.seek(asked))
    return told


def _kafka(bootstrap: str) -> ConfluentKafka:
    return ConfluentKafka(client_config({"bootstrap.servers": bootstrap}), request_timeout_s=30.0, seen=HighWater())


def _in_threads(call: Callable[[], T], count: int) -> list[T]:
    with ThreadPoolExecutor(count) as pool:
        return [future.result() for future in [pool.submit(call) for _ in range(count)]]


@pytest.mark.broker
def test_a_client_never_looks_for_leaders_itself(broker: Broker, topic_name: str, told: dict[int, _Told]) -> None:
    """A client never looks for leaders itself: a new one, a shared one, or one without such a topic or partition."""
    everywhere = range(_PARTITIONS)
    with closing(_kafka(broker.bootstrap)) as kafka:
        kafka.create_topic(TopicSpec(name=topic_name, partitions=_PARTITIONS, replication_factor=1))
    for _ in range(20):
        with closing(_kafka(broker.bootstrap)) as kafka:
            answers = _in_threads(partial(kafka.offsets, topic_name, everywhere), 3)
            assert answers == [dict.fromkeys(everywhere, OffsetRange(0, 0))] * 3
    with closing(_kafka(broker.bootstrap)) as kafka:
        assert kafka.delete_records(topic_name, dict.fromkeys(everywhere, 0)) == dict.fromkeys(everywhere, 0)
        with pytest.raises(NotFound):
            kafka.offsets(topic_name, [_PARTITIONS])
        with pytest.raises(NotFound):
            kafka.offsets(f"{topic_name}.not", [0])
        kafka.delete_topic(topic_name)
    assert len(told) > 20
    assert [one.sought for one in told.values() if one.sought] == []


@pytest.mark.broker
def test_a_client_that_just_described_a_topic_is_not_asked_again(
    broker: Broker, topic_name: str, told: dict[int, _Told]
) -> None:
    """The leaders of a just described topic cost no query, as at every open; later they do."""
    with closing(_kafka(broker.bootstrap)) as kafka:
        kafka.create_topic(TopicSpec(name=topic_name, partitions=_PARTITIONS, replication_factor=1))
    told.clear()
    now_s = 0.0
    config = client_config({"bootstrap.servers": broker.bootstrap})
    with closing(ConfluentKafka(config, seen=HighWater(), clock=lambda: now_s)) as kafka:
        assert kafka.describe_topic(topic_name) is not None
        for _ in range(3):
            kafka.offsets(topic_name, range(_PARTITIONS))
        assert [one.questions for one in told.values()] == [1]
        now_s = 1.0  # The leader may have moved since, and the client knows it.
        kafka.offsets(topic_name, range(_PARTITIONS))
        assert [one.questions for one in told.values()] == [2]
        kafka.delete_topic(topic_name)


@pytest.mark.broker
def test_a_client_that_looked_for_a_coordinator_is_not_kept(
    broker: Broker, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that gave up on a coordinator is not cached: it frees its request twice when it finds it later.

    So each publication has a client of its own.
    """
    published: list[weakref.ref[admin.AdminClient]] = []
    original = admin.AdminClient.alter_consumer_group_offsets

    def watched(client: admin.AdminClient, requests: Any, **options: Any) -> Any:
        published.append(weakref.ref(client))
        return original(client, requests, **options)

    monkeypatch.setattr(admin.AdminClient, "alter_consumer_group_offsets", watched)
    with closing(_kafka(broker.bootstrap)) as kafka:
        kafka.create_topic(TopicSpec(name=topic_name, partitions=1, replication_factor=1))
        for _ in range(2):
            kafka.publish_offset(f"{topic_name}.group", topic_name, 0, 0)
        gc.collect()
        assert published
        assert [one() for one in published] == [None] * len(published)
        kafka.delete_topic(topic_name)


def test_a_coordinator_that_has_moved_is_asked_again() -> None:
    """A moved coordinator is asked again, in a process of its own: librdkafka's admin client would crash it."""
    assert output(moved_coordinator) == "text"
