"""Services that differ from Apache Kafka: where a log is made on their terms, and where and why it is refused.

On the twin of each, by its documentation; and a refusal of a real broker.
"""

import uuid
from contextlib import closing, nullcontext
from pathlib import Path

import pytest

from statelog.errors import AlreadyExists, ConfigError, Damaged, NotFound, UnsafeTopic
from statelog.log import Log, LogOptions, Where, topics
from statelog.recovery import recover
from statelog.schemas.topic_policy import TopicRole, Waiver, topic_config
from statelog.testing.faults import TRUE, Answer, Call
from statelog.testing.kafka import MemoryKafka
from statelog.testing.store import MemoryDisk, MemoryStore
from tests.support.providers.cluster import ProviderCluster
from tests.support.providers.provider import (
    APACHE,
    CONFLUENT_CLOUD,
    CONFLUENT_CLOUD_STANDARD,
    MSK_EXPRESS,
    REDPANDA,
    WARPSTREAM,
    WARPSTREAM_LIGHTNING,
    Provider,
)
from tests.support.rigs.kafka import broker_world
from tests.support.rigs.log import live
from tests.support.services.broker import Broker
from tests.support.told import lines, told

NO_IDS = ("topic-ids", "unknown-settings")


class Twin:
    """A service with one place for logs."""

    def __init__(self, provider: Provider) -> None:
        self.cluster = ProviderCluster(provider)
        self._disk = MemoryDisk(lambda: 1000.0)

    def where(self, *waived: str) -> Where:
        """Return the place, as a new process sees it."""
        return Where(MemoryKafka(cluster=self.cluster), MemoryStore(self._disk, "x"), allow_unsafe=waived)

    def live(self, tmp_path: Path, *waived: str) -> dict[object, object]:
        """Make a log, write, roll up, write again; return the state that is read of it."""
        return live("x", lambda: self.where(*waived), tmp_path, writes=3)


@pytest.mark.parametrize(
    ("provider", "waived"), [(APACHE, ()), (CONFLUENT_CLOUD, ()), (REDPANDA, NO_IDS)], ids=lambda one: str(one)[:30]
)
def test_a_log_on_the_terms_of_a_service(provider: Provider, waived: tuple[str, ...], tmp_path: Path) -> None:
    """Settings that a service refuses are left out, its own settings are judged, and the log works."""
    with told("is made without") if provider is CONFLUENT_CLOUD else nullcontext():
        assert Twin(provider).live(tmp_path, *waived) == {b"k%d" % number: b"v" for number in range(3)}


def test_what_is_left_out_is_told(tmp_path: Path) -> None:
    """One line for each topic names the settings that were left out, with the service's own words."""
    twin = Twin(CONFLUENT_CLOUD)
    with told("cannot be set") as texts:
        twin.live(tmp_path)
    assert [text.partition(":")[0] for text in texts] == [
        "x is made without unclean.leader.election.enable",
        "x.ledger is made without segment.bytes, unclean.leader.election.enable",
    ]
    described = twin.cluster.describe("x.ledger")
    assert described is not None
    assert described.config["segment.bytes"] == "1073741824"
    assert described.config["retention.ms"] == "-1"


def test_a_service_that_names_no_setting(tmp_path: Path) -> None:
    """A service that names no setting gets none that is optional, and all needed ones; its own settings are judged."""

    terse = Provider(name="terse", refuses=frozenset({"message.timestamp.type"}), is_terse=True)
    twin = Twin(terse)
    with told("refused by policy"), pytest.raises(UnsafeTopic, match=r"min\.insync\.replicas is below 2"):
        twin.live(tmp_path)
    with told("refused by policy"):
        assert twin.live(tmp_path, "min-insync")
    described = twin.cluster.describe("x")
    assert described is not None
    assert described.config["message.timestamp.type"] == "CreateTime"


@pytest.mark.parametrize(
    ("terms", "made_with"),
    [
        (CONFLUENT_CLOUD_STANDARD, 8 << 20),
        (Provider(name="terse", most={"max.message.bytes": 8 << 20}, is_terse=True), 8 << 20),
        (Provider(name="fixed", refuses=frozenset({"max.message.bytes"})), 1 << 20),
        (Provider(name="fixed and terse", refuses=frozenset({"max.message.bytes"}), is_terse=True), 1 << 20),
        (Provider(name="odd", least={"max.message.bytes": 17 << 20}, sets={"max.message.bytes": "3000000"}), 2 << 20),
        (Provider(name="silent", untold=frozenset({"max.message.bytes"})), 1 << 20),
    ],
    ids=lambda one: getattr(one, "name", ""),
)
def test_a_service_with_smaller_records(terms: Provider, made_with: int, tmp_path: Path) -> None:
    """A service with smaller records gets a log with the largest records that it allows, in whole MiB."""
    twin = Twin(terms)
    with lines():
        assert twin.live(tmp_path, "min-insync", "unknown-settings")
    with Log.open("x", twin.where("min-insync", "unknown-settings")) as log:
        assert log.descriptor.record_bytes_max == made_with


def test_a_service_that_refuses_what_is_needed(tmp_path: Path) -> None:
    """A service that refuses a needed setting gets no log without it: Kafka would delete committed records."""
    twin = Twin(Provider(name="x", refuses=frozenset({"retention.ms"})))
    with told("is made without"), pytest.raises(ConfigError, match=r"retention\.ms"):
        twin.live(tmp_path)
    assert twin.cluster.describe("x") is None


@pytest.mark.parametrize("provider", [MSK_EXPRESS, WARPSTREAM], ids=lambda one: str(one.name))
def test_a_service_without_the_request_to_truncate(provider: Provider, tmp_path: Path) -> None:
    """A service without the request to truncate is named with the request when a log is made, before any write."""
    with lines(), pytest.raises(ConfigError, match="DeleteRecords") as caught:
        Twin(provider).live(tmp_path)
    assert "docs/kafka.md" in caught.value.hint


def test_a_service_that_does_not_tell(tmp_path: Path) -> None:
    """An unreported setting is unknown, and no topic has an identity: each is waived by its own name, or refused."""
    with pytest.raises(UnsafeTopic) as caught:
        Twin(REDPANDA).live(tmp_path)
    assert "does not report min.insync.replicas, unclean.leader.election.enable" in caught.value.message
    assert "gives topics no ids" in caught.value.message
    assert "topic-ids,unknown-settings" in caught.value.hint
    assert "min-insync" not in caught.value.hint


def test_a_topic_that_is_known_to_acknowledge_early(tmp_path: Path) -> None:
    """A topic known to acknowledge early is refused by its setting's name before any write, whatever is waived."""
    twin = Twin(WARPSTREAM_LIGHTNING)
    with pytest.raises(UnsafeTopic, match=r"warpstream\.topic\.type is lightning") as caught:
        twin.live(tmp_path, *Waiver)
    assert "allow_unsafe" not in caught.value.hint
    assert twin.cluster.records("x", 0) == []


def test_a_log_whose_topic_acknowledges_early_from_now_on(tmp_path: Path) -> None:
    """Every open checks whether the topic acknowledges early: an operator may change the setting in use."""
    twin = Twin(APACHE)
    twin.live(tmp_path)
    twin.cluster.set_topic_config("x.ledger", {"warpstream.topic.type": "Lightning"})
    with pytest.raises(UnsafeTopic, match="before their offset is known"), Log.open("x", twin.where()):
        pass


@pytest.mark.parametrize("came_between", [False, True], ids=["not yet there", "displaced"])
def test_a_service_that_acknowledges_early_and_does_not_tell(*, came_between: bool, impatient: None) -> None:
    """The mark is read back at its acknowledged offset, so a service that hides early acknowledgement gets no log."""
    twin = Twin(Provider(name="early", places_late=True))
    place = twin.where()

    def meanwhile(call: Call) -> Answer:
        if came_between and call.method == "offsets" and call.topic == "x.ledger" and twin.cluster.held:
            twin.cluster.log("x.ledger", 0).append(b"of somebody else")
            twin.cluster.release()
        return TRUE

    twin.cluster.questions = meanwhile
    with pytest.raises(UnsafeTopic, match="not at its acknowledged offset") as caught:
        Log.create("x", place, LogOptions(partitions=2))
    assert caught.value.facts["offset"] == 0
    twin.cluster.release()
    with pytest.raises(NotFound):
        Log.open("x", twin.where())
    with pytest.raises(AlreadyExists):
        Log.create("x", twin.where(), LogOptions(partitions=2))


@pytest.mark.usefixtures("at_once", "busy_ledger")
@pytest.mark.parametrize("remade", [("x", "x.ledger"), ("x.ledger",), ("x",)], ids=str)
def test_topics_made_again_where_topics_have_no_ids(remade: tuple[str, ...], tmp_path: Path) -> None:
    """Topics that were made again, without ids to reveal it, are detected by their missing acknowledged records."""
    twin = Twin(REDPANDA)
    twin.live(tmp_path, *NO_IDS)
    for topic in remade:
        twin.cluster.recreate_topic(topic)
    with pytest.raises(Damaged), Log.open("x", twin.where(*NO_IDS)) as log, recover(log) as recovery:
        recovery.to_dict()


def test_another_logs_topics_where_topics_have_no_ids(tmp_path: Path) -> None:
    """The mark in the ledger reveals another log's topics where topics have no ids, behind a snapshot, too."""
    twin, other = Twin(REDPANDA), Twin(REDPANDA)
    twin.live(tmp_path, *NO_IDS)
    other.live(tmp_path, *NO_IDS)
    other_where = Where(MemoryKafka(cluster=other.cluster), twin.where().root, allow_unsafe=NO_IDS)
    with pytest.raises(Damaged), Log.open("x", other_where) as log, recover(log) as recovery:
        recovery.to_dict()


@pytest.mark.broker
def test_a_setting_that_a_broker_refuses(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real broker names the setting that it refuses, and the topic is made without that one."""
    name = f"refused-{uuid.uuid4().hex[:8]}"

    def with_tiny_segments(role: TopicRole, replication_factor: int) -> dict[str, str]:
        return {**topic_config(role, replication_factor), "segment.bytes": "1"}

    monkeypatch.setattr(topics, "topic_config", with_tiny_segments)
    with closing(broker_world(broker.bootstrap).kafka) as kafka, told("made without segment.bytes"):
        topic = topics.make_topic(kafka, name, TopicRole.DATA, 1, 1, frozenset(Waiver))
        assert int(topic.config["segment.bytes"]) > 1
        assert topic.config["message.timestamp.type"] == "LogAppendTime"
        kafka.delete_topic(name)
