"""The refusals of opening and reading, by typed errors that name the facts and the remedy. On a real broker."""

import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from statelog.errors import (
    AlreadyExists,
    BrokerUnavailable,
    ConfigError,
    CorruptDescriptor,
    IdentityChanged,
    InvalidName,
    NotFound,
    OffsetGone,
    StatelogError,
    UnknownFormat,
    UnsafeTopic,
)
from statelog.kafka.port import TopicSpec
from statelog.log import Log, LogOptions, Where
from statelog.producer.writer import Writer
from statelog.schemas.ledger.place import shown_id
from statelog.schemas.names import DESCRIPTOR_PATH
from statelog.store.fsspec import open_store
from tests.support.rigs.log import UNSAFE, LogRig, ports_closed, real_rig, twin_rig
from tests.support.services.broker import Broker
from tests.support.waiting import wait_for

POINT = '{"type": "record", "name": "Point", "fields": [{"name": "x", "type": "long"}]}'


@pytest.fixture
def rig(broker: Broker, log_name: str, tmp_path: Path) -> Iterator[LogRig]:
    """Yield a log's two places: a real broker and a local directory."""
    with ports_closed(real_rig(log_name, broker.bootstrap, tmp_path)) as made:
        yield made


def set_topic(broker: Broker, topic: str, name: str, value: str) -> None:
    """Change one setting of a topic, as an operator would, and wait until brokers report it."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(20)
    asked = ConfigResource(ResourceType.TOPIC, topic)
    wait_for(lambda: admin.describe_configs([asked])[asked].result(20)[name].value == value, tick_s=0.1)


def shown(error: StatelogError, *words: str) -> None:
    """Check that the text of an error names these words and a remedy."""
    assert error.hint
    for word in words:
        assert word in str(error)


@pytest.mark.broker
@pytest.mark.parametrize(
    ("setting", "value", "word"),
    [
        ("retention.ms", "604800000", "retention.ms"),
        ("retention.bytes", "1000000000", "retention.bytes"),
        ("cleanup.policy", "compact", "cleanup.policy"),
        ("cleanup.policy", "compact,delete", "cleanup.policy"),
        ("max.message.bytes", "1000000", "max.message.bytes"),
        ("unclean.leader.election.enable", "true", "unclean"),
    ],
)
def test_a_topic_that_would_lose_changes_is_refused(
    broker: Broker, rig: LogRig, setting: str, value: str, word: str
) -> None:
    """A setting that an operator changed under a log stops every open, and putting it back repairs that."""
    with rig.create() as log:
        before = log.kafka.describe_topic(rig.name)
    assert before is not None
    set_topic(broker, rig.name, setting, value)
    with pytest.raises(UnsafeTopic) as caught:
        rig.open()
    shown(caught.value, word, rig.name)
    set_topic(broker, rig.name, setting, before.config[setting])

    rig.open().close()


@pytest.mark.broker
def test_what_is_unsafe_must_be_waived_by_name(rig: LogRig) -> None:
    """One replica is refused without a waiver; the error names the waivers, and a wrong name is refused, too."""
    with pytest.raises(UnsafeTopic) as caught:
        Log.create(rig.name, Where(rig.kafka(), rig.store(), replication_factor=1))
    shown(caught.value, "allow_unsafe=min-insync,replication")
    with pytest.raises(ConfigError):
        Log.create(rig.name, Where(rig.kafka(), rig.store(), allow_unsafe=["everything"], replication_factor=1))
    assert rig.kafka().describe_topic(rig.name) is None


@pytest.mark.broker
def test_a_recreated_topic_is_noticed(rig: LogRig) -> None:
    """A topic that was deleted and re-created under the same name is not the log's, whatever it holds."""
    with rig.create() as log:
        spec = log.kafka.describe_topic(rig.name)
        assert spec is not None
        log.kafka.delete_topic(rig.name)
        again = TopicSpec(name=rig.name, partitions=spec.partitions, replication_factor=1, config=dict(spec.config))
        log.kafka.create_topic(again)
    with pytest.raises(IdentityChanged) as caught:
        rig.open()

    shown(caught.value, shown_id(spec.topic_id))


@pytest.mark.broker
def test_a_topic_that_is_gone_is_noticed(rig: LogRig) -> None:
    """A deleted topic is a loss, not an empty log."""
    with rig.create() as log:
        log.kafka.delete_topic(f"{rig.name}.ledger")
    with pytest.raises(IdentityChanged) as caught:
        rig.open()

    shown(caught.value, f"{rig.name}.ledger")


@pytest.mark.broker
def test_a_truncated_ledger_without_a_manifest_stops_every_reader(rig: LogRig) -> None:
    """A truncated ledger without a manifest stops every reader: without a base it would void valid commits."""
    with rig.create() as log:
        with Writer(log, "w") as writer:
            writer.put(b"k", b"v")
            writer.commit(checkpoint_id=1)
        log.kafka.delete_records(log.ledger_topic, {0: 1})
    with rig.open() as log:
        with pytest.raises(OffsetGone) as caught:
            log.describe()
        shown(caught.value, log.ledger_topic)
        with pytest.raises(OffsetGone):
            Writer(log, "w")


@pytest.mark.broker
def test_no_broker_is_a_typed_error_in_bounded_time(
    tmp_path: Path, log_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a listener a call is soon BrokerUnavailable with the address and a hint; no file is written."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setattr("statelog.kafka.config._REQUEST_TIMEOUT_S", 900.0)  # A waiting caller learns that.
    started_s = time.monotonic()
    with pytest.raises(BrokerUnavailable) as caught:
        kafka = {"bootstrap.servers": address, "socket.timeout.ms": "1000"}
        Log.create(log_name, Where(kafka, str(tmp_path), allow_unsafe=UNSAFE))
    shown(caught.value, address, "bootstrap.servers")

    assert time.monotonic() - started_s < 120, "the settings' time-out was exceeded"
    assert not (tmp_path / log_name / DESCRIPTOR_PATH).exists()


@pytest.mark.broker
def test_a_foreign_topic_is_not_taken_over(rig: LogRig) -> None:
    """A topic of the log's name with records is somebody's; create refuses and leaves it alone."""
    kafka = rig.kafka()
    kafka.create_topic(TopicSpec(name=rig.name, partitions=4, replication_factor=1))
    producer = kafka.producer()
    found: list[object] = []
    producer.send(rig.name, 0, b"somebody's", found.append)
    while not found:
        producer.poll(0.1)
    producer.close()
    with pytest.raises(AlreadyExists):
        rig.create()

    assert kafka.offsets(rig.name, [0])[0].end == 1


@pytest.mark.broker
def test_topics_without_their_descriptor_are_not_taken_over(rig: LogRig) -> None:
    """A marked ledger belongs to a log, wherever its descriptor is; a dead create's leftover has no mark."""
    rig.create().close()
    rig.store().delete(DESCRIPTOR_PATH)
    with pytest.raises(NotFound):
        rig.open()
    with pytest.raises(AlreadyExists, match="another root"):
        rig.create()


@pytest.mark.parametrize("name", ["", ".", "a/b", "a..b", "-a", "a\n", "x" * 129, "ä", "a.ledger", None, 5, b"a"])
def test_names_that_could_be_paths_are_refused(name: Any) -> None:
    """A log's name becomes topics and a directory, so it is checked before any other step.

    It is no ledger's name: the data topic of `a.ledger` would be the ledger of `a`.
    """
    rig = twin_rig("fine")
    with pytest.raises(InvalidName):
        Log.create(name, rig.where())


@pytest.mark.parametrize(
    "nonsense",
    [
        {"key_type": "strin"},
        {"hash_rule": "md5"},
        {"partitions": 0},
        {"partitions": 129},
        {"partitions": "3"},
        {"partitions": 2.5},
        {"partitions": True},
        {"key_groups": 65_537},
        {"replication_factor": 0},
        {"replication_factor": 100_000},
        {"value_schema": ""},
        {"value_schema": '"string"'},
        {"allow_unsafe": ["everything"]},
    ],
    ids=str,
)
def test_a_log_that_nobody_could_make_leaves_nothing_behind(nonsense: dict[str, Any]) -> None:
    """Settings are checked before the first topic is made, and the error names the setting or its allowed values."""
    rig = twin_rig("fine")
    here = {name: nonsense.pop(name) for name in ("replication_factor", "allow_unsafe") if name in nonsense}
    with pytest.raises(ConfigError) as caught:
        Log.create("fine", replace(rig.where(), **here), LogOptions(**nonsense))
    kafka = rig.kafka()
    assert kafka.describe_topic("fine") is None
    assert kafka.describe_topic("fine.ledger") is None
    assert list(rig.store().list()) == []
    name = next(iter([*here, *nonsense]))
    assert name in str(caught.value) or caught.value.hint


def test_a_damaged_descriptor_stops_the_open(tmp_path: Path) -> None:
    """One flipped byte in the descriptor is CorruptDescriptor with its path."""
    rig = LogRig("log", twin_rig("log").kafka, lambda: open_store(str(tmp_path), "log"))
    rig.create().close()
    path = tmp_path / "log" / DESCRIPTOR_PATH
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptDescriptor) as caught:
        rig.open()

    assert DESCRIPTOR_PATH in str(caught.value)


def test_an_unknown_value_schema_stops_the_reader(tmp_path: Path) -> None:
    """A chunk whose value schema the log does not have stops the reader, which does not guess."""
    rig = LogRig("log", twin_rig("log").kafka, lambda: open_store(str(tmp_path), "log"))
    with rig.create(value_schema=POINT) as log, Writer(log, "w") as writer:
        writer.put(b"k", {"x": 1})
        writer.commit(checkpoint_id=1)
    (tmp_path / "log" / "schemas" / "1.avsc").unlink()
    with pytest.raises(UnknownFormat) as caught:
        rig.state()

    shown(caught.value, "schemas/1.avsc")
