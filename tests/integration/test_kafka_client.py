"""Faults of the real Kafka client alone: interrupts, silence, and missing brokers."""

import gc
import random
import signal
import socket
import time
import uuid
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from statelog.errors import BrokerUnavailable, ClosedError
from statelog.kafka.client import ConfluentKafka
from statelog.kafka.config import client_config
from statelog.kafka.native import make_client
from statelog.kafka.port import Delivery, DeliveryStatus, OffsetRange, TopicSpec
from statelog.log.producers import append_all
from tests.support.processes.starts import in_fork
from tests.support.services.broker import Broker


class _Interrupted(BaseException):
    """A stand-in for Ctrl-C, so that a failing test is not taken for an interrupted one."""


@pytest.fixture
def silent_server() -> Iterator[str]:
    """Yield an address that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@contextmanager
def _interrupts(every_s: float) -> Generator[None, None, None]:
    """Yield a signal handler that raises again and again, as an impatient user would."""

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise _Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, every_s, every_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.broker
# An interrupt may come inside a callback of the collector, which belongs to another library and reports it there.
@pytest.mark.filterwarnings("ignore:Exception ignored in.*gc_callback:pytest.PytestUnraisableExceptionWarning")
def test_interrupts_lose_no_record(broker: Broker, topic_name: str) -> None:
    """A reader that is interrupted anywhere and resumed at its position yields every record."""
    kafka = ConfluentKafka(client_config({"bootstrap.servers": broker.bootstrap}))
    kafka.create_topic(TopicSpec(name=topic_name, partitions=1, replication_factor=1))
    count = 60_000
    producer = kafka.producer()
    reports: list[Delivery] = []
    for number in range(count):
        while not producer.send(topic_name, 0, str(number).encode(), reports.append):
            producer.poll(0.1)
    while producer.in_flight:
        producer.poll(0.1)
    producer.close()
    values: list[bytes] = []
    interrupted = 0
    reader = kafka.reader(topic_name)
    while len(values) < count and interrupted < 500:
        try:
            with _interrupts(0.04):
                for record in reader.read({0: OffsetRange(len(values), count)}, stall_timeout_s=60):
                    assert record.offset == len(values)
                    values.append(record.value)
        except _Interrupted:
            interrupted += 1
    reader.close()
    kafka.delete_topic(topic_name)
    kafka.close()
    assert interrupted > 0
    assert values == [str(number).encode() for number in range(count)]


@pytest.mark.broker
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_may_drop_clients_that_are_connected(broker: Broker, topic_name: str) -> None:
    """A forked child learns that the clients are not its own, drops them and ends well, and the parent goes on."""
    kafka = ConfluentKafka(client_config({"bootstrap.servers": broker.bootstrap}))
    kafka.create_topic(TopicSpec(name=topic_name, partitions=1, replication_factor=1))
    producers, readers, reports = [kafka.producer()], [kafka.reader(topic_name)], list[Delivery]()
    producers[0].send(topic_name, 0, b"x", reports.append)
    while not reports:
        producers[0].poll(0.1)
    wanted = {0: OffsetRange(0, 1)}
    assert len(list(readers[0].read(wanted, stall_timeout_s=60))) == 1

    def check() -> None:
        with pytest.raises(ClosedError, match="another process"):
            readers[0].read(wanted, stall_timeout_s=1)
        with pytest.raises(ClosedError, match="another process"):
            producers[0].poll(0)
        producers.clear()
        readers.clear()
        gc.collect()

    assert in_fork(check) == 0
    assert len(list(readers[0].read(wanted, stall_timeout_s=60))) == 1
    readers[0].close()
    producers[0].close()
    kafka.delete_topic(topic_name)
    kafka.close()


def test_a_silent_broker_is_unavailable_in_time(silent_server: str) -> None:
    """A call to a silent broker ends shortly after its own time-out, not the settings' one, and names the brokers."""
    silent = {"bootstrap.servers": silent_server}
    kafka = ConfluentKafka(client_config({**silent, "socket.timeout.ms": "280000"}), request_timeout_s=0.5)
    began = time.monotonic()
    with pytest.raises(BrokerUnavailable) as raised:
        kafka.cluster_id()
    assert time.monotonic() - began < 120
    assert raised.value.facts["bootstrap_servers"] == silent_server
    with pytest.raises(BrokerUnavailable):
        list(kafka.reader("t").read({0: OffsetRange(0, 1)}, stall_timeout_s=0.5))
    kafka.close()


def test_close_does_not_wait_for_a_silent_broker(silent_server: str) -> None:
    """Records in flight to a silent broker are UNKNOWN at once at a close."""
    kafka = ConfluentKafka(client_config({"bootstrap.servers": silent_server}))
    producer = kafka.producer()
    reports: list[Delivery] = []
    for _ in range(10):
        producer.send("t", 0, b"x", reports.append)
    producer.poll(0.1)
    began = time.monotonic()
    producer.close()
    assert time.monotonic() - began < 120, "it waited for the delivery time-out"
    assert [report.status for report in reports] == [DeliveryStatus.UNKNOWN] * 10


def test_a_record_that_times_out_is_unknown(silent_server: str) -> None:
    """The client's time-out is reported within the delivery time-out, with its reason."""
    settings = {"bootstrap.servers": silent_server, "message.timeout.ms": "1000"}
    producer = ConfluentKafka(client_config(settings)).producer()
    reports: list[Delivery] = []
    producer.send(f"t-{uuid.uuid4().hex}", 0, b"x", reports.append)
    deadline = time.monotonic() + producer.delivery_timeout_s
    while not reports and time.monotonic() < deadline:
        producer.poll(0.1)
    producer.close()
    assert [report.status for report in reports] == [DeliveryStatus.UNKNOWN]
    assert "_MSG_TIMED_OUT" in reports[0].reason


@pytest.mark.broker
@pytest.mark.parametrize("keeps_consumers", [True, False])
def test_single_records_amid_others_are_fetched_alone(
    broker: Broker, topic_name: str, monkeypatch: pytest.MonkeyPatch, keeps_consumers: bool
) -> None:
    """Where consumers are cached, a reader of one record of each partition, as of anchors, makes one that fetches
    little.

    It gets records larger than that, too. A reader of several records, or of the last one, makes another consumer,
    which any later reader may take.
    """
    kafka = ConfluentKafka(client_config({"bootstrap.servers": broker.bootstrap}), keeps_consumers=keeps_consumers)
    kafka.create_topic(TopicSpec(name=topic_name, partitions=4, replication_factor=1))
    values = [random.Random(number).randbytes(200_000) for number in range(5)]
    with closing(kafka.producer()) as producer:
        for partition in range(4):
            for value in values:
                assert producer.send(topic_name, partition, value, lambda _: None)
        while producer.in_flight:
            producer.poll(0.1)
    sizes = list[str]()

    def noting(kind: Any, what: str, properties: Mapping[str, str], *others: Any) -> Any:
        sizes.append(properties["fetch.message.max.bytes"])
        return make_client(kind, what, properties, *others)

    monkeypatch.setattr("statelog.kafka.reader.make_client", noting)

    def read(start: int, end: int) -> None:
        ranges = {partition: OffsetRange(start, end) for partition in range(4)}
        with closing(kafka.reader(topic_name)) as reader:
            found = list(reader.read(ranges, stall_timeout_s=30.0))
        assert [one.value for one in sorted(found)] == 4 * values[start:end]

    for start, end in ((1, 2), (1, 3), (4, 5), (0, 1), (0, 5)):
        read(start, end)
    kafka.close()
    little, much = str(64 << 10), str(2 << 20)
    assert sizes == ([little, much] if keeps_consumers else [much] * 5)


@pytest.mark.broker
def test_a_consumer_that_waits_reads_single_records_too(broker: Broker, topic_name: str) -> None:
    """A waiting consumer reads single records too: another connection would cost more than its futile fetches."""
    kafka = ConfluentKafka(client_config({"bootstrap.servers": broker.bootstrap}), keeps_consumers=True)
    kafka.create_topic(TopicSpec(name=topic_name, partitions=2, replication_factor=1))
    with closing(kafka.producer()) as producer:
        for partition in range(2):
            append_all(producer, topic_name, partition, b"x", 3)
    reader = kafka.reader(topic_name)

    def read(start: int, end: int) -> int:
        found = reader.read(dict.fromkeys(range(2), OffsetRange(start, end)), stall_timeout_s=30.0)
        assert len(list(found)) == 2 * (end - start)
        return len([*Path("/proc/self/task").iterdir()])

    before = read(0, 3)
    assert [read(*wanted) for wanted in ((1, 2), (0, 3), (0, 1))] == [before] * 3
    kafka.close()
