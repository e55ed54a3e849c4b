"""Severity, consequence and hint of an answer are decided without a cluster."""

from dataclasses import replace
from typing import Any

import pytest

from statelog.errors import (
    AlreadyExists,
    BrokerUnavailable,
    ConfigError,
    OffsetGone,
    OutcomeUnknown,
    StatelogError,
    UnsafeTopic,
)
from statelog.kafka.port import OffsetRange, TopicDescription
from statelog.operate.finding import Finding, Severity, severity_of, worst
from statelog.operate.kafka_needs import KafkaAnswers, Need, Read, Sent, TopicAnswer, findings, times
from statelog.schemas.topic_policy import TopicRole, Waiver, topic_config

NAMES = {TopicRole.DATA: "t", TopicRole.LEDGER: "t.ledger"}
TOPICS = tuple(
    TopicAnswer(
        role,
        TopicDescription(
            name=name,
            topic_id=name,
            partitions=1,
            replication_factor=3,
            config=topic_config(role, replication_factor=3),
        ),
    )
    for role, name in NAMES.items()
)
GOOD = KafkaAnswers(
    waived=frozenset(),
    wanted_replicas=3,
    cluster_id="c",
    errors={},
    topics=TOPICS,
    commits_s=(0.002, 0.001),
    sent=Sent((0.001, 0.001), (5, 6, 7)),
    read=Read(0, 0.0),
    largest_bytes=16 << 20,
    listed=OffsetRange(0, 8),
    published=1,
    truncated=(OffsetRange(8, 8), OffsetRange(9, 9)),
)


def judged(need: Need, error: StatelogError | None = None, **changed: Any) -> Finding:
    """Return the finding of a need in a cluster without other faults."""
    errors = {} if error is None else {need: error}
    return next(one for one in findings(replace(GOOD, errors=errors, **changed)) if one.name == need.value)


def with_replicas(count: int) -> tuple[TopicAnswer, ...]:
    """Return the topics with so many replicas."""
    return tuple(topic._replace(found=replace(topic.found, replication_factor=count)) for topic in TOPICS)


def test_where_all_is_well() -> None:
    """On a healthy cluster, each need has an OK finding without a hint."""
    found = findings(GOOD)
    assert [one.name for one in found] == list(Need)
    assert {(one.severity, one.why, one.hint) for one in found} == {(Severity.OK, "", "")}


def test_the_worst_is_what_counts() -> None:
    """The worst severity counts."""
    found = [Finding(name="x", severity=severity, found="") for severity in Severity]
    assert [worst(found[:count]) for count in range(1, 6)] == list(Severity)
    assert worst([]) is Severity.OK


@pytest.mark.parametrize(
    ("error", "severity"),
    [
        (ConfigError("x"), Severity.REFUSED),
        (UnsafeTopic("x"), Severity.REFUSED),
        (AlreadyExists("x"), Severity.REFUSED),
        (BrokerUnavailable("x"), Severity.UNAVAILABLE),
        (OutcomeUnknown("x", reason="_MSG_TIMED_OUT: x"), Severity.UNAVAILABLE),
        (OutcomeUnknown("x", reason="no delivery report"), Severity.UNAVAILABLE),
        (OutcomeUnknown("x", reason="MSG_SIZE_TOO_LARGE: x"), Severity.REFUSED),
        (OffsetGone("x"), Severity.DAMAGED),
    ],
    ids=str,
)
def test_how_bad_an_error_is(error: StatelogError, severity: Severity) -> None:
    """A clear refusal of the broker is REFUSED, also where the record's outcome is unknown."""
    assert severity_of(error) is severity
    assert judged(Need.LARGEST, error).severity is severity


def test_a_right_that_is_missing() -> None:
    """Without CREATE, topics can be passed. Without DELETE, a log can be made, but not truncated.

    Without DeleteRecords, retention replaces it.
    """
    error = ConfigError("x takes CREATE", kafka_error="TOPIC_AUTHORIZATION_FAILED", hint="Grant it")
    assert "--topics NAME" in judged(Need.TOPICS, error, topics=None).hint
    found = judged(Need.DELETE_RECORDS, error, truncated=None)
    assert (found.severity, found.hint.startswith("Grant DELETE")) == (Severity.NOTE, True)
    lacking = ConfigError("no request", kafka_error="_UNSUPPORTED_FEATURE")
    found = judged(Need.DELETE_RECORDS, lacking, truncated=None)
    assert (found.severity, 'truncation="retention"' in found.hint) == (Severity.NOTE, True)


def test_transactions() -> None:
    """Transactions that fail keep nobody from making a log; missing rights and a lost offset are told apart."""
    ungranted = ConfigError("x takes WRITE", kafka_error="TRANSACTIONAL_ID_AUTHORIZATION_FAILED")
    found = judged(Need.TRANSACTIONS, ungranted, published=None)
    assert (found.severity, found.hint.startswith("Grant READ on the group")) == (Severity.NOTE, True)
    found = judged(Need.TRANSACTIONS, BrokerUnavailable("x"), published=None)
    assert (found.severity, 'outputs="at-least-once"' in found.hint) == (Severity.NOTE, True)
    found = judged(Need.TRANSACTIONS, published=-1)
    assert (found.severity, found.found) == (Severity.NOTE, "a transaction stored 1, and the group has -1")


def test_a_codec_that_is_refused() -> None:
    """A refused codec is distinguished from other reasons for a refused record."""
    error = OutcomeUnknown("x", reason="UNSUPPORTED_COMPRESSION_TYPE: no lz4")
    found = {one.name: one for one in findings(replace(GOOD, errors={Need.IDEMPOTENCE: error}, sent=None, read=None))}
    assert found[Need.CODEC].severity is Severity.REFUSED
    assert "compression.type" in found[Need.CODEC].hint
    assert [found[need].found for need in (Need.OFFSETS, Need.PLACES, Need.CLOCK)] == ["not asked"] * 3


def test_replicas() -> None:
    """For fewer replicas than requested, the hint names the option for a single replica, also where all is waived."""
    found = judged(Need.REPLICAS, topics=with_replicas(1))
    assert (found.severity, found.hint) == (
        Severity.REFUSED,
        "Pass replication_factor=1; Waive it by name: allow_unsafe=replication",
    )
    found = judged(Need.REPLICAS, topics=with_replicas(1), waived=frozenset(Waiver))
    assert (found.severity, found.hint) == (Severity.REFUSED, "Pass replication_factor=1")
    found = judged(Need.REPLICAS, topics=with_replicas(1), waived=frozenset(Waiver), wanted_replicas=1)
    assert (found.severity, found.hint) == (Severity.NOTE, "")


def test_places_and_ends() -> None:
    """Misplaced records, an end below an acknowledgement, and records that stay are each found."""
    assert judged(Need.PLACES, read=Read(2, 0.0)).found == "2 of 3 records are not where their acknowledgements say"
    assert judged(Need.LIST_OFFSETS, listed=OffsetRange(0, 7)).severity is Severity.REFUSED
    assert judged(Need.DELETE_RECORDS, truncated=(OffsetRange(0, 8),)).found == "8 records are still there"


@pytest.mark.parametrize(
    ("skew_s", "severity", "found"),
    [
        (0.4, Severity.OK, "in step with this machine's"),
        (90.0, Severity.NOTE, "90.0 s ahead of this machine's clock, or more"),
        (-7200.0, Severity.NOTE, "2 h 0 min behind this machine's clock, or more"),
        (None, Severity.NOTE, "records bear no times of the brokers"),
    ],
)
def test_clocks(skew_s: float | None, severity: Severity, found: str) -> None:
    """A wrong clock is reported as harmless."""
    told = judged(Need.CLOCK, read=Read(0, skew_s))
    assert (told.severity, told.found) == (severity, found)


def test_times() -> None:
    """Times are given as median and 99th percentile, and left out if there are none."""
    assert times([float(number) for number in range(200)]) == {"p50_s": 100.0, "p99_s": 198.0}
    assert times(()) == {}
