"""The Kafka doctor's findings on the twin of each service, and the page that lists them."""

import re
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from statelog.errors import BrokerUnavailable
from statelog.kafka.port import Kafka, TopicSpec
from statelog.operate.finding import Finding, Severity, worst
from statelog.operate.kafka_needs import KafkaAnswers, Need, findings
from statelog.operate.kafka_probe import ThrowAwayTopics, ask_kafka
from statelog.schemas.topic_policy import Waiver, parse_waivers
from statelog.testing.cluster import MemoryCluster
from statelog.testing.faults import UNAVAILABLE, Fate, ScriptedFaults, ScriptedQuestions
from statelog.testing.kafka import MemoryKafka
from statelog.testing.store import MemoryDisk, MemoryStore
from tests.support.documents import DOCS
from tests.support.providers import provider as providers
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
from tests.support.told import lines

PROFILES = tuple(one for one in vars(providers).values() if isinstance(one, Provider))
PAGE = DOCS / "kafka.md"
FEW = 5


class Examined(NamedTuple):
    """The outcome of an examination: the findings by need, and the remaining topics."""

    found: Mapping[str, Finding]
    left: list[str]

    @property
    def worst(self) -> Severity:
        """The worst severity."""
        return worst(self.found.values())

    def severities(self) -> dict[str, str]:
        """Return the severities that are not OK."""
        return {name: one.severity.value for name, one in self.found.items() if one.severity is not Severity.OK}


def examine(cluster: MemoryCluster, *waived: str, named: str = "", replicas: int = 3) -> Examined:
    """Ask a twin every question, with few repetitions."""
    with lines():
        answers, left = _asked(MemoryKafka(cluster=cluster), parse_waivers(waived), named, replicas)
    return Examined({one.name: one for one in findings(answers)}, left)


def _asked(kafka: Kafka, waived: frozenset[Waiver], named: str, replicas: int) -> tuple[KafkaAnswers, list[str]]:
    topics = ThrowAwayTopics(
        kafka=kafka,
        name=named or "thrown-away",
        are_somebodys=bool(named),
        replication_factor=replicas,
        waived=waived,
    )
    try:
        answers = ask_kafka(topics, MemoryStore(MemoryDisk(time.time), "d"), most=FEW)
    finally:
        assert topics.remove() == {}
    return answers, [name for name in ("thrown-away", "thrown-away.ledger") if kafka.describe_topic(name)]


def on(provider: Provider) -> MemoryCluster:
    """Return a cluster of this service."""
    return ProviderCluster(provider, clock=time.time)


@pytest.mark.parametrize(
    ("provider", "bad"),
    [
        (APACHE, {}),
        (CONFLUENT_CLOUD, {Need.SPARE: "note"}),
        (CONFLUENT_CLOUD_STANDARD, {Need.SPARE: "note"}),
        (MSK_EXPRESS, {Need.SPARE: "note", Need.DELETE_RECORDS: "note"}),
        (REDPANDA, {Need.DESCRIBE: "refused", Need.TOPIC_IDS: "refused"}),
        (WARPSTREAM, {Need.DELETE_RECORDS: "note"}),
        (
            WARPSTREAM_LIGHTNING,
            {
                **dict.fromkeys((Need.PLACES, Need.LARGEST, Need.LIST_OFFSETS), "refused"),
                Need.DELETE_RECORDS: "note",
                Need.LOG: "refused",
                Need.CLOCK: "note",
            },
        ),
    ],
    ids=lambda one: one.name if isinstance(one, Provider) else "",
)
def test_each_service(provider: Provider, bad: dict[str, str]) -> None:
    """The doctor finds what each service lacks, the rest is OK, and no topic remains."""
    found = examine(on(provider))
    assert found.severities() == bad
    assert found.left == []
    assert all(one.why for one in found.found.values() if one.severity is not Severity.OK)


def test_what_is_waived_is_a_note() -> None:
    """A waived need is a note with its waiver. Without the waiver, the hint says how to pass it."""
    assert examine(on(REDPANDA)).found[Need.TOPIC_IDS].hint == "Waive it by name: allow_unsafe=topic-ids"
    found = examine(on(REDPANDA), "topic-ids", "unknown-settings")
    assert found.worst is Severity.NOTE
    assert found.found[Need.TOPIC_IDS].found == "this broker gives topics no ids (waived)"


def test_figures() -> None:
    """Times of produces and commits are facts. The first one, which connects, does not count."""
    found = examine(on(APACHE)).found
    for need in (Need.IDEMPOTENCE, Need.LOG):
        assert found[need].facts.keys() == {"p50_s", "p99_s"}
    assert found[Need.LIST_OFFSETS].facts["acknowledged_end_offset"] == found[Need.LIST_OFFSETS].facts["end_offset"]


def test_a_setting_that_is_needed_and_refused() -> None:
    """If a required setting is refused, no topic can be made and nothing else is asked."""
    found = examine(on(Provider(name="x", refuses=frozenset({"retention.bytes"}))))
    assert found.found[Need.TOPICS].severity is Severity.REFUSED
    assert "retention.bytes" in found.found[Need.TOPICS].found
    assert {one.found for name, one in found.found.items() if name not in (Need.TOPICS, Need.CLUSTER_ID)} == {
        "not asked"
    }


def test_a_service_that_deletes() -> None:
    """Deletion by size has no waiver, since it does not say when. Deletion by age has one, which the hint names."""
    found = examine(on(Provider(name="x", sets={"retention.bytes": "604800000"})), *Waiver)
    assert found.found[Need.KEPT].severity is Severity.REFUSED
    assert "allow_unsafe" not in found.found[Need.KEPT].hint
    by_age = on(Provider(name="x", refuses=frozenset({"retention.ms"})))
    assert "allow_unsafe=finite-retention" in examine(by_age).found[Need.KEPT].hint
    assert examine(by_age, *Waiver).found[Need.KEPT].severity is Severity.NOTE


def test_a_service_that_names_no_setting() -> None:
    """A service that does not name the refused setting still gets the others, and retains records for ever."""
    found = examine(on(Provider(name="x", refuses=frozenset({"segment.bytes"}), is_terse=True)), "min-insync")
    assert found.found[Need.KEPT].severity is Severity.OK
    assert found.found[Need.SPARE].severity is Severity.NOTE


class _SmallRecords(MemoryCluster):
    """A cluster that refuses records of more than 8 MiB without announcing it."""

    def _setting(self, topic: str, name: str) -> str:
        return str(8 << 20) if name == "max.message.bytes" else super()._setting(topic, name)


def test_records_that_are_too_large_for_a_service() -> None:
    """The largest record is really sent, whatever the settings say."""
    found = examine(_SmallRecords()).found[Need.LARGEST]
    assert (found.severity, "MSG_SIZE_TOO_LARGE" in found.found) == (Severity.REFUSED, True)


def test_a_service_without_transactions() -> None:
    """A service without transactions is fine for a log, and a note names the setting of tables that send messages."""
    found = examine(on(Provider(name="x", lacks=frozenset({"EndTxn"})))).found
    assert {name for name, one in found.items() if one.severity is not Severity.OK} == {Need.TRANSACTIONS}
    assert found[Need.TRANSACTIONS].severity is Severity.NOTE
    assert 'outputs="at-least-once"' in found[Need.TRANSACTIONS].hint


def test_an_acknowledgement_without_an_offset() -> None:
    """An acknowledgement without an offset is an unknown outcome, since commits could not list the record.

    `sends` has the number of the doctor's first.
    """
    fates = dict.fromkeys(range(14, 16), Fate.ACK_WITHOUT_OFFSET)
    found = examine(MemoryCluster(faults=ScriptedFaults(fates=fates))).found
    assert found[Need.LOG].severity is Severity.OK
    assert found[Need.OFFSETS].severity is found[Need.IDEMPOTENCE].severity is Severity.UNAVAILABLE
    assert "acknowledged without an offset" in found[Need.OFFSETS].found


@contextmanager
def _named(cluster: MemoryCluster) -> Generator[None]:
    specs = [
        TopicSpec(name=name, partitions=count, replication_factor=3, config=CONFIG)
        for name, count in (("mine", 4), ("mine.ledger", 1))
    ]
    for spec in specs:
        cluster.create(spec)
    yield
    assert all(cluster.describe(spec.name) for spec in specs)


CONFIG = {
    "retention.ms": "-1",
    "max.message.bytes": str((16 << 20) + (64 << 10)),
    "min.insync.replicas": "2",
    "message.timestamp.type": "LogAppendTime",
}


def test_topics_of_somebody_else() -> None:
    """Given topics of any number of partitions are used and remain. Nothing is written to topics that hold records."""
    cluster = on(APACHE)
    with _named(cluster):
        assert examine(cluster, named="mine").severities() == {}
        sends = cluster.sends
        found = examine(cluster, named="mine").found[Need.TOPICS]
        assert (found.severity, found.found) == (Severity.REFUSED, "the topic is not empty")
        assert cluster.sends == sends
    assert examine(cluster, named="nobodys").found[Need.TOPICS].found == "there is no such topic"


@pytest.mark.parametrize("call", range(0, 86, 4))
def test_an_answer_that_fails_leaves_no_topics(call: int) -> None:
    """A failing answer at any point is reported, and no topics remain."""

    cluster = MemoryCluster(questions=ScriptedQuestions(answers={call: UNAVAILABLE}), clock=time.time)
    with lines():
        topics = ThrowAwayTopics(
            kafka=MemoryKafka(cluster=cluster), name="t", are_somebodys=False, replication_factor=3
        )
        try:
            answers = ask_kafka(topics, MemoryStore(MemoryDisk(time.time), "d"), most=FEW)
        except BrokerUnavailable:
            assert call == 0
        else:
            bad = {one.name: one for one in findings(answers) if one.severity is not Severity.OK}
            assert worst(bad.values()) is not Severity.NOTE or bad.keys() == {Need.TRANSACTIONS}
        assert topics.remove() == {}
    assert [cluster.describe(name) for name in ("t", "t.ledger")] == [None, None]


# ---- the page


def _table(page: Path, heading: str) -> list[list[str]]:
    _, _, section = page.read_text("utf-8").partition(f"\n## {heading}\n")
    rows = re.findall(r"^\|(.*)\|$", section.partition("\n## ")[0], re.MULTILINE)
    return [[cell.strip() for cell in row.split("|")] for row in rows[2:]]


def test_the_page_has_a_row_for_each_need() -> None:
    """The page has a row for each of the doctor's needs, in its order."""
    assert [row[0].replace("`", "") for row in _table(PAGE, "What a log needs")] == [need.value for need in Need]


def test_the_page_has_every_waiver() -> None:
    """The page names every waiver."""
    assert {row[0].strip("`") for row in _table(PAGE, "What may be waived")} == {waiver.value for waiver in Waiver}


@pytest.mark.parametrize("provider", PROFILES, ids=lambda one: str(one.name))
def test_the_page_says_of_a_service_what_the_doctor_says(provider: Provider) -> None:
    """The page agrees with the doctor on whether a log works at a service, with which waivers and omitted settings."""
    name, services = provider.name.replace(",", "", 1), _table(PAGE, "Services")
    rows = [row for row in services if row[0] == name] or [row for row in services if row[0].startswith(name)]
    assert len(rows) == 1, "a profile has one row, whose name is, or begins with, the profile's"
    ((_, verdict, how),) = rows
    waived = {waiver.value for waiver in Waiver if f'"{waiver.value}"' in how}
    found = examine(on(provider), *waived)
    assert (found.worst in (Severity.OK, Severity.NOTE)) == (verdict != "no")
    if verdict == "no":
        assert examine(on(provider), *Waiver).worst is Severity.REFUSED
        return
    for name in waived:
        assert examine(on(provider), *(waived - {name})).worst is Severity.REFUSED
    spare = found.found[Need.SPARE]
    assert set(re.findall(r"`([a-z.]+)`", how)) == set(re.findall(r"([a-z.]+) is", spare.found))
