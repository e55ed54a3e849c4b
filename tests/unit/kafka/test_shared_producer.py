"""Producers of one process share a client, and none of its trouble, with a broker that never answers or a real one."""

import gc
import socket
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import closing, suppress

import confluent_kafka
import pytest

from statelog.errors import ClosedError
from statelog.kafka import producer as producers
from statelog.kafka.client import ConfluentKafka
from statelog.kafka.config import client_config
from statelog.kafka.port import Delivery, DeliveryStatus, TopicSpec
from statelog.kafka.producer import ConfluentProducer
from statelog.kafka.shared_producer import CLIENTS
from tests.support.faults.signals import at_line, handled
from tests.support.processes.starts import in_fork
from tests.support.services.broker import Broker


def native_of(producer: ConfluentProducer) -> confluent_kafka.Producer | None:
    """Return the client that a producer has leased."""
    client = vars(producer)["_client"]
    return None if client is None else client.native


def connected(kafka: ConfluentKafka) -> ConfluentProducer:
    """Return a producer with a client."""
    producer = kafka.producer()
    producer.connect()
    return producer


@pytest.fixture
def settings() -> Iterator[dict[str, str]]:
    """Return the settings of a broker that accepts connections and never answers, so that no error is reported."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield {"bootstrap.servers": f"127.0.0.1:{server.getsockname()[1]}"}


@pytest.fixture
def kafka(settings: dict[str, str]) -> Iterator[ConfluentKafka]:
    """Return a port for that broker."""
    kafka = ConfluentKafka(client_config(settings))
    yield kafka
    kafka.close()
    assert not [one for one in CLIENTS.made if one.config.bootstrap_servers == settings["bootstrap.servers"]]


def test_producers_of_the_same_settings_share_a_client(kafka: ConfluentKafka, settings: dict[str, str]) -> None:
    """Producers with equal settings share a client, also across ports. Closing a port closes unused clients."""
    with closing(ConfluentKafka(client_config({**settings, "linger.ms": "1"}))) as other:
        first, other_settings = connected(kafka), connected(other)
        second = connected(ConfluentKafka(client_config(settings)))
        assert native_of(first) is native_of(second) is not native_of(other_settings)
        for one in (first, second, other_settings):
            one.close()


def test_a_client_waits_for_the_next_for_a_minute(kafka: ConfluentKafka) -> None:
    """A client is offered to the next producer for a minute. Later its connections may be dead, and it ends."""
    with closing(connected(kafka)) as first:
        native = native_of(first)
    with closing(connected(kafka)) as second:
        assert native_of(second) is native
        vars(second)["_client"].used_s -= 61
        with closing(connected(kafka)) as third:
            assert native_of(third) is not native
    assert [one.native for one in CLIENTS.made if one.native is native] == []


def test_a_client_goes_with_its_last_lease_where_the_port_is_closed(settings: dict[str, str]) -> None:
    """After its port is closed, a client ends with its last lease."""
    kafka = ConfluentKafka(client_config(settings))
    first, second = connected(kafka), connected(kafka)
    native = native_of(first)
    kafka.close()
    first.close()
    assert [one.native for one in CLIENTS.made if one.native is native] == [native]
    second.close()
    assert [one.native for one in CLIENTS.made if one.native is native] == []


def test_records_of_unknown_fate_are_nobody_elses(kafka: ConfluentKafka) -> None:
    """A producer that is closed with records in flight retires its client.

    Other leases keep it, and get no reports of these records.
    """
    first, second, reports, others = connected(kafka), connected(kafka), list[Delivery](), list[Delivery]()
    first.send("t", 0, b"x", reports.append)
    second.send("t", 0, b"x", others.append)
    assert second.poll(0) == 0
    assert second.is_sound
    first.close()
    assert [report.status for report in reports] == [DeliveryStatus.UNKNOWN]
    assert (others, second.in_flight, second.is_sound) == ([], 1, False)
    third = connected(kafka)
    assert third.is_sound
    assert native_of(third) is not native_of(second)
    assert second.send("t", 0, b"y", others.append)
    for one in (second, third):
        one.close()
    assert [report.status for report in others] == [DeliveryStatus.UNKNOWN] * 2


def test_a_client_that_told_of_an_error_is_for_no_other() -> None:
    """A client that reported an error is not leased again. The next producer gets a new one."""
    kafka = ConfluentKafka(client_config({"bootstrap.servers": "localhost:1"}))
    with closing(kafka.producer()) as first, closing(kafka.producer()) as second:
        first.connect()
        until_s = time.monotonic() + 60
        while first.is_sound and time.monotonic() < until_s:
            first.poll(0.1)
        second.connect()
        assert native_of(second) is not native_of(first)
    kafka.close()


def test_a_client_is_for_no_other_topic_of_the_same_name(kafka: ConfluentKafka, settings: dict[str, str]) -> None:
    """A client is not leased for a re-created topic of the same name, whose old leaders it remembers."""
    with closing(connected(kafka)) as first, closing(connected(kafka)) as unused:
        first.send("t", 0, b"x", lambda _: None)
        CLIENTS.retire(client_config(settings), "other")
        assert unused.is_sound
        CLIENTS.retire(client_config(settings), "t")
        assert not unused.is_sound


def test_a_forgotten_producer_leaves_its_client_to_nobody(kafka: ConfluentKafka) -> None:
    """A forgotten producer retires its client, since its records may still arrive, and warns like an unclosed file."""
    with closing(connected(kafka)) as other:
        forgotten = connected(kafka)
        assert native_of(other) is native_of(forgotten)
        forgotten.send("t", 0, b"x", lambda _: None)
        gc.collect()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            del forgotten
            gc.collect()
        assert [warning.category for warning in told] == [ResourceWarning]
        assert not other.is_sound


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_has_clients_of_its_own(kafka: ConfluentKafka, settings: dict[str, str]) -> None:
    """A fork has its own clients, whatever thread held the lock. The parent's are never leased."""
    held = [connected(kafka)]
    native = native_of(held[0])

    def check() -> None:
        with pytest.raises(ClosedError, match="another process"):
            held[0].poll(0)
        own = ConfluentKafka(client_config(settings)).producer()
        own.connect()
        assert native_of(own) is not native
        own.close()
        held.clear()
        gc.collect()

    with CLIENTS.lock:
        assert in_fork(check) == 0
    held[0].close()


# ---- with a broker


@pytest.fixture
def real(broker: Broker, topic_name: str) -> Iterator[ConfluentKafka]:
    """Return a port, and a topic of four partitions."""
    kafka = ConfluentKafka(client_config({"bootstrap.servers": broker.bootstrap, "client.id": topic_name}))
    kafka.create_topic(TopicSpec(name=topic_name, partitions=4, replication_factor=1))
    yield kafka
    kafka.delete_topic(topic_name)
    kafka.close()


@pytest.mark.broker
def test_many_threads_hear_each_of_its_own(real: ConfluentKafka, topic_name: str) -> None:
    """Each thread gets the reports of its own records as soon as they arrive, whichever thread polls the client."""
    took: list[float] = []

    def write() -> None:
        with closing(real.producer()) as producer:
            for _ in range(200):
                reports = list[Delivery]()
                producer.send(topic_name, len(took) % 4, b"x", reports.append)
                began_s = time.monotonic()
                while not reports:
                    producer.poll(10.0)
                took.append(time.monotonic() - began_s)
                assert [report.status for report in reports] == [DeliveryStatus.OK]

    threads = [threading.Thread(target=write) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(took) == 1200
    assert max(took) < 8.0
    assert len([one for one in CLIENTS.made if topic_name in one.topics]) == 1


class _Interrupted(BaseException):
    pass


@pytest.mark.broker
def test_a_signal_at_any_line_loses_no_report_and_holds_nobody_up(real: ConfluentKafka, topic_name: str) -> None:
    """A signal at any line loses no report and does not block other threads. Each accepted record is reported once."""
    others, is_over = list[Delivery](), threading.Event()

    def write() -> None:
        with closing(real.producer()) as producer:
            while not is_over.is_set():
                producer.send(topic_name, 1, b"x", others.append)
                while producer.in_flight:
                    producer.poll(0.2)

    def interrupt() -> None:
        raise _Interrupted

    thread = threading.Thread(target=write)
    thread.start()
    with closing(real.producer()) as producer, handled(interrupt):
        came, line = True, 0
        while came:
            reports, heard = list[Delivery](), len(others)

            def work(reports: list[Delivery] = reports) -> None:
                producer.send(topic_name, 0, b"x", reports.append)
                while producer.in_flight:
                    producer.poll(0.2)

            before = vars(producer)["_sent"]
            with suppress(_Interrupted):
                came = at_line(line, work)
            accepted = vars(producer)["_sent"] - before
            while producer.in_flight or len(others) == heard:
                producer.poll(0.05)
            assert len(reports) <= accepted
            assert [report.status for report in reports] in ([DeliveryStatus.OK], [])
            line += 1
    is_over.set()
    thread.join(60)
    assert line > 40
    assert {report.status for report in others} == {DeliveryStatus.OK}


@pytest.mark.broker
def test_a_bulk_load_gets_a_client_of_its_own(
    real: ConfluentKafka, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bulk load gets its own client as soon as none of its records is in flight, and shares it with nobody."""
    monkeypatch.setattr(producers, "_BULK_BYTES", 1000)

    def write(producer: ConfluentProducer, size: int) -> None:
        reports = list[Delivery]()
        producer.send(topic_name, 0, bytes(size), reports.append)
        while producer.in_flight:
            producer.poll(0.2)
        assert [report.status for report in reports] == [DeliveryStatus.OK]

    with closing(real.producer()) as small, closing(real.producer()) as bulk, closing(real.producer()) as late:
        for producer, size in ((small, 10), (bulk, 10), (bulk, 2000)):
            write(producer, size)
        assert native_of(small) is native_of(bulk)
        write(bulk, 2000)
        assert native_of(small) is not native_of(bulk)
        write(late, 10)
        assert native_of(late) is native_of(small)
