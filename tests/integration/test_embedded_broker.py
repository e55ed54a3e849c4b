"""The embedded broker, which the development command starts, and the tests where Docker does not answer."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from statelog.testing.broker import EmbeddedBroker, cache_directory, locked
from statelog.testing.node import KAFKA_VERSION, ensure_jars

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def _embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    broker = EmbeddedBroker(tmp_path_factory.mktemp("embedded") / "broker")
    yield broker
    broker.stop()


@pytest.fixture
def embedded(_embedded: EmbeddedBroker) -> EmbeddedBroker:
    """Return one embedded broker for this file, alive at the start of every test."""
    _embedded.start()
    return _embedded


def _produce(bootstrap: str, topic: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    producer.produce(topic, value=value, partition=0)
    assert producer.flush(10) == 0


def _first_value(bootstrap: str, topic: str) -> bytes | None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        message = consumer.poll(20)
        assert message is not None
        assert message.error() is None
        return message.value()
    finally:
        consumer.close()


def test_a_record_outlives_sigkill(embedded: EmbeddedBroker, topic_name: str) -> None:
    """A record acknowledged before a SIGKILL is there after a restart, at the same address."""
    before = embedded.bootstrap
    admin = AdminClient({"bootstrap.servers": before})
    admin.create_topics([NewTopic(topic_name, 1, 1)])[topic_name].result(10)
    _produce(before, topic_name, b"kept")
    embedded.kill()
    assert not embedded.alive
    embedded.restart()
    assert embedded.bootstrap == before
    assert _first_value(before, topic_name) == b"kept"


def test_starting_twice_is_starting_once(embedded: EmbeddedBroker) -> None:
    """A start leaves a running broker alone."""
    before = embedded.process
    embedded.start()
    assert embedded.process == before


def test_stop_leaves_no_process(embedded: EmbeddedBroker) -> None:
    """After stop no process is left, even if the broker was paused; and stop can be called again."""
    embedded.pause()
    assert embedded.alive
    embedded.stop()
    assert not embedded.alive
    embedded.stop()


def test_a_broker_that_ends_leaves_its_classes_to_the_next(tmp_path: Path) -> None:
    """Java maps a broker's classes from the archive next to the jars; a broken archive counts as none."""
    kept = cache_directory()
    with locked(kept / "jars.lock"):
        (tmp_path / f"kafka-{KAFKA_VERSION}").symlink_to(ensure_jars(kept))
    broker = EmbeddedBroker(tmp_path / "broker", jars_directory=tmp_path)
    try:
        broker.start()
        broker.stop(timeout_s=120.0)
        (archive,) = tmp_path.glob("kafka-*.jsa")
        broker.start()
        assert str(archive) in Path(f"/proc/{broker.process.pid}/maps").read_text("utf-8")
        broker.kill()
        archive.rename(tmp_path / "kept")
        archive.write_bytes(b"no archive")
        broker.start()
        assert str(archive) not in Path(f"/proc/{broker.process.pid}/maps").read_text("utf-8")
    finally:
        broker.stop()
