"""Answers of the Kafka client are classified: only a clear success is OK, and all others are UNKNOWN with a reason."""

import pytest

from statelog.errors import BeyondEnd, BrokerUnavailable, ConfigError, Corrupt, NotFound, OffsetGone
from statelog.kafka.errors import check_range, classify_delivery, client_error
from statelog.kafka.port import DeliveryStatus, OffsetRange, with_remedy


@pytest.mark.parametrize(
    ("name", "offset", "status"),
    [
        (None, 0, DeliveryStatus.OK),
        (None, 7, DeliveryStatus.OK),
        (None, -1, DeliveryStatus.UNKNOWN),
        (None, -1001, DeliveryStatus.UNKNOWN),
        (None, None, DeliveryStatus.UNKNOWN),
        ("MSG_SIZE_TOO_LARGE", None, DeliveryStatus.UNKNOWN),
        ("RECORD_LIST_TOO_LARGE", 3, DeliveryStatus.UNKNOWN),
        ("INVALID_RECORD", None, DeliveryStatus.UNKNOWN),
        ("_MSG_TIMED_OUT", None, DeliveryStatus.UNKNOWN),
        ("_TIMED_OUT", None, DeliveryStatus.UNKNOWN),
        ("REQUEST_TIMED_OUT", None, DeliveryStatus.UNKNOWN),
        ("NOT_ENOUGH_REPLICAS_AFTER_APPEND", None, DeliveryStatus.UNKNOWN),
        ("_TRANSPORT", None, DeliveryStatus.UNKNOWN),
        ("_PURGE_INFLIGHT", None, DeliveryStatus.UNKNOWN),
        ("_PURGE_QUEUE", None, DeliveryStatus.UNKNOWN),
        ("_FATAL", None, DeliveryStatus.UNKNOWN),
        ("OUT_OF_ORDER_SEQUENCE_NUMBER", None, DeliveryStatus.UNKNOWN),
        ("TOPIC_AUTHORIZATION_FAILED", None, DeliveryStatus.UNKNOWN),
        ("AN_ERROR_OF_TOMORROW", None, DeliveryStatus.UNKNOWN),
    ],
)
def test_a_delivery_is_what_is_certain_and_else_unknown(
    name: str | None, offset: int | None, status: DeliveryStatus
) -> None:
    """A success without an offset and every error that may follow a lost answer are UNKNOWN."""
    delivery = classify_delivery("t", name, "text", offset)
    assert delivery.status is status
    assert (delivery.offset >= 0) == (status is DeliveryStatus.OK)
    assert (delivery.reason == "") == (status is DeliveryStatus.OK)


@pytest.mark.parametrize(
    ("name", "means"),
    [
        ("MSG_SIZE_TOO_LARGE", " (the record is larger than max.message.bytes of topic t)"),
        ("RECORD_LIST_TOO_LARGE", " (the records are larger than segment.bytes of topic t)"),
        ("TOPIC_AUTHORIZATION_FAILED", " (this client lacks the right to WRITE on topic t)"),
        ("_MSG_TIMED_OUT", ""),
    ],
)
def test_a_refused_record_says_what_is_to_be_changed(name: str, means: str) -> None:
    """A refused record names the topic's setting or the missing right, which the broker's text does not.

    The hint begins with the necessary change, since opening again alone would be refused again.
    """
    delivery = classify_delivery("t", name, "no", None)
    assert delivery.reason == f"{name}: no{means}"
    assert bool(delivery.remedy) == bool(means)
    hint = with_remedy(delivery, "Open it again")
    assert hint == (f"{delivery.remedy}. Then: open it again" if means else "Open it again")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("_TRANSPORT", BrokerUnavailable),
        ("_TIMED_OUT", BrokerUnavailable),
        ("_ALL_BROKERS_DOWN", BrokerUnavailable),
        ("AN_ERROR_OF_TOMORROW", BrokerUnavailable),
        ("_AUTHENTICATION", ConfigError),
        ("TOPIC_AUTHORIZATION_FAILED", ConfigError),
        ("INVALID_REPLICATION_FACTOR", ConfigError),
        ("UNKNOWN_TOPIC_OR_PART", NotFound),
        ("_BAD_MSG", Corrupt),
    ],
)
def test_an_error_says_whose_turn_it_is(name: str, kind: type[Exception]) -> None:
    """Configuration, absence, damage and outage are distinct errors, with brokers and position as facts, and a hint."""
    error = client_error(name, "text", "testing", "host:9092", topic="t", partition=3)
    assert type(error) is kind
    assert error.hint
    assert error.facts == {"bootstrap_servers": "host:9092", "kafka_error": name, "topic": "t", "partition": 3}


def test_more_replicas_than_brokers() -> None:
    """The hint for more replicas than brokers names our setting, and the value that one broker takes."""
    error = client_error("INVALID_REPLICATION_FACTOR", "cannot be reached", "creating the topic t", "host:9092")
    assert error.hint.startswith('Pass replication_factor=1 and allow_unsafe=["replication", "min-insync"]')
    assert client_error("INVALID_CONFIG", "x.y", "creating the topic t", "host:9092").hint != error.hint


def test_ranges_are_checked_at_both_ends() -> None:
    """A range that starts below the log is truncated, and one that ends above it is beyond. All others are present."""
    held = OffsetRange(5, 9)
    for wanted in (held, OffsetRange(6, 7), OffsetRange(9, 9)):
        check_range("t", 0, wanted, held)
    with pytest.raises(OffsetGone):
        check_range("t", 0, OffsetRange(4, 9), held)
    with pytest.raises(BeyondEnd):
        check_range("t", 0, OffsetRange(5, 10), held)
