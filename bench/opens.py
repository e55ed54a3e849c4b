"""The cost of opening a log, and a writer on it: CPU milliseconds of this process, and milliseconds on the clock.

Each has two floors. The first is the least of any program with Kafka: a client connects, asks for the topics, and ends;
for a writer, another client reads a record, and another one sends one. The second asks the store and bare clients for
everything that an opening has to verify, and ignores the answers. That is the descriptor, the list of snapshots, the
identity and settings of the topics, the ends of ledger and data, and the mark. Once the Open is in the ledger, it asks
for the identity again. Each log is opened with clients of its own, as by a program that starts. The modules are loaded,
and everything was open once before.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import closing
from functools import partial
from typing import Any

from confluent_kafka import Consumer, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType

import statelog
from bench.cost import in_turns
from bench.figures import Figure, Took, medians, timed
from bench.logs import bench_log, bench_where
from bench.plain import PlainTopic, plain_topic
from bench.setting import Setting
from statelog.kafka.config import admin_properties, client_config, consumer_properties, producer_properties
from statelog.log import Log
from statelog.producer import Writer
from statelog.schemas.descriptor import Descriptor
from statelog.schemas.names import DESCRIPTOR_PATH, MANIFESTS

__all__ = ["opens"]

_TIMES = 10
_LOG, _WRITER = "open a log", "open a log and a writer"
_FLOORS = {
    _LOG: ("floor: a client asks for the topics", "floor: bare clients ask the same"),
    _WRITER: ("floor: clients ask, read one record, send one", "floor: bare clients ask, read and send the same"),
}


def opens(setting: Setting) -> list[Figure]:
    """Measure the medians of ten openings a round, and of the floors."""
    with bench_log(setting.bootstrap, setting.root) as log, plain_topic(setting.bootstrap, partitions=1) as topic:
        takes = {name: partial(timed, way) for name, way in _ways(setting, log, topic).items()}
        took = in_turns(takes, warm=1, turns=_TIMES * setting.rounds)
    return [
        medians(
            f"{name}{label}",
            unit,
            [1e3 * each(one) for one in took[name]],
            floor,
            [1e3 * each(one) for one in took[floor]],
        )
        for name, floors in _FLOORS.items()
        for floor in floors
        for label, unit, each in (("", "ms", float), (", by CPU", "CPU ms", _cpu_s))
    ]


def _ways(setting: Setting, log: Log, topic: PlainTopic) -> dict[str, Callable[[], object]]:
    where = bench_where(setting.bootstrap, setting.root)
    bare = _Bare(setting.bootstrap, log, topic)

    def open_log() -> None:
        statelog.open(log.name, where).close()

    def open_writer() -> None:
        with statelog.open(log.name, where) as opened:
            Writer(opened, "bench").close()

    def ask() -> None:
        AdminClient({"bootstrap.servers": setting.bootstrap}).list_topics(timeout=10)

    def ask_read_send() -> None:
        ask()
        _read_and_send(topic)

    (least, bare_log), (least_writer, bare_writer) = _FLOORS[_LOG], _FLOORS[_WRITER]
    return {
        _LOG: open_log, least: ask, bare_log: bare.open_log,
        _WRITER: open_writer, least_writer: ask_read_send, bare_writer: bare.open_writer,
    }  # fmt: skip


def _read_and_send(topic: PlainTopic) -> None:
    """Read the record that proved that the topic takes records, and send another one."""
    consumer = topic.consumer()
    assert consumer.consume(1, 10)
    consumer.close()
    topic.send([(0, b"")])


class _Bare:
    """The requests of an opening, by clients with statelog's settings. Its records go to a plain topic."""

    def __init__(self, bootstrap: str, log: Log, topic: PlainTopic) -> None:
        self._config = client_config({"bootstrap.servers": bootstrap})
        self._topics = [log.data_topic, log.ledger_topic]
        self._partitions = log.descriptor.partitions
        self._store = log.store
        self._sent_to = topic.name

    def open_log(self) -> None:
        self._at_the_mark(AdminClient(admin_properties(self._config))).close()

    def open_writer(self) -> None:
        client = AdminClient(admin_properties(self._config))
        with closing(self._at_the_mark(client)):
            producer = Producer(producer_properties(self._config))
            for topic, partitions in ((self._topics[1], 1), (self._topics[0], self._partitions)):
                _ends(client, topic, partitions)
            producer.produce(self._sent_to, b"", partition=0)
            assert not producer.flush(10)
            self._identify(client)

    def _identify(self, client: AdminClient) -> None:
        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in self._topics]
        _answered(
            client.describe_topics(TopicCollection(self._topics), include_authorized_operations=True),
            client.describe_configs(resources),
            {"": client.describe_cluster()},
        )

    def _at_the_mark(self, client: AdminClient) -> Consumer:
        """Return a consumer that has read the mark, after all other requests."""
        Descriptor.from_bytes(self._store.read(DESCRIPTOR_PATH), DESCRIPTOR_PATH)
        assert not list(self._store.list(MANIFESTS.folder))
        self._identify(client)
        _ends(client, self._topics[1], 1)
        consumer = Consumer(consumer_properties(self._config))
        consumer.assign([TopicPartition(self._topics[1], 0, 0)])
        assert consumer.consume(1, 10)
        return consumer


def _ends(client: AdminClient, topic: str, partitions: int) -> None:
    asked = [TopicPartition(topic, partition) for partition in range(partitions)]
    specs = (OffsetSpec.earliest(), OffsetSpec.latest())
    _answered(*[client.list_offsets(dict.fromkeys(asked, spec)) for spec in specs])


def _answered(*answers: Mapping[Any, Future[Any]]) -> None:
    futures: Sequence[Future[Any]] = [one for answer in answers for one in answer.values()]
    wait(futures)
    for one in futures:
        one.result()


def _cpu_s(took: Took) -> float:
    return took.cpu_s
