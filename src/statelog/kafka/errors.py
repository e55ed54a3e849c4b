"""Interprets answers of the Kafka client: delivery reports and errors, by librdkafka's error names. Skips records that
the client cannot unpack, if none of them counts.

Owns the two classifications on which safety relies, and the mapping from the client's errors to ours.

Anybody with the right to write to a data topic can leave a batch there that unpacks to more than the client accepts, or
not at all. It stops only readers that need its records: the reader decides what counts.

Invariants:
- A delivery is OK only if it is certain; no error of the client means that the record is certainly not in the log.
- A record that counts is never skipped: its error is raised. Only a batch's own offsets are skipped. Every other record
  of the ranges comes, once.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import cast

from statelog.errors import (
    BeyondEnd,
    BrokerUnavailable,
    ConfigError,
    Corrupt,
    DataLoss,
    Fact,
    NotFound,
    OffsetGone,
    StatelogError,
    Unreadable,
)
from statelog.kafka.port import Delivery, DeliveryStatus, OffsetRange, Reader, Record
from statelog.secrets import mask_text

ABSENT = frozenset({"UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_ID", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"})
"""Errors of a missing topic or partition."""
_MEANS = {
    "MSG_SIZE_TOO_LARGE": "the record is larger than max.message.bytes of topic {topic}",
    "RECORD_LIST_TOO_LARGE": "the records are larger than segment.bytes of topic {topic}",
    "TOPIC_AUTHORIZATION_FAILED": "this client lacks the right to WRITE on topic {topic}",
    **dict.fromkeys(ABSENT, "topic {topic} does not exist any more, or has fewer partitions"),
}
"""What the refusal of a record means, for people, if the broker's text does not say."""
_GRANT = "Grant its principal what docs/security.md lists for the role"
_REMEDIES = {
    "MSG_SIZE_TOO_LARGE": "Raise max.message.bytes of topic {topic} again: a log is made for what it allowed then"
    " (record_bytes_max in `statelog describe`)",
    "RECORD_LIST_TOO_LARGE": "Raise segment.bytes of topic {topic}",
    "TOPIC_AUTHORIZATION_FAILED": _GRANT,
}
"""What a person has to do before another try can succeed."""
_CREDENTIALS = frozenset({
    "_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "UNSUPPORTED_SASL_MECHANISM", "ILLEGAL_SASL_STATE",
})  # fmt: skip
_UNGRANTED = frozenset({
    "TOPIC_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
})  # fmt: skip
_REFUSED = _CREDENTIALS | _UNGRANTED | {"_SSL", "SECURITY_DISABLED"}
_WRONG_SETTING = frozenset({
    "_INVALID_ARG", "INVALID_CONFIG", "INVALID_PARTITIONS", "INVALID_REPLICATION_FACTOR", "POLICY_VIOLATION",
    "INVALID_TOPIC_EXCEPTION", "TOPIC_EXCEPTION",
})  # fmt: skip
MISSING_REQUEST = frozenset({"_UNSUPPORTED_FEATURE", "UNSUPPORTED_VERSION"})
"""Errors of the client or the broker for a request that this Kafka does not have."""
_TOO_FEW_BROKERS = 'Pass replication_factor=1 and allow_unsafe=["replication", "min-insync"] on a single broker'
REFUSED_OFFSET = frozenset({"_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"})
"""Errors of an offset that the broker does not have."""
UNPACKING = frozenset({"_BAD_MSG", "_BAD_COMPRESSION", "INVALID_MSG"})
"""Permanent errors of one batch: its checksum is wrong, or it cannot be unpacked."""
_CERTIFICATE = re.compile(r"certificate|unknown ca|verify failed", re.IGNORECASE)
_MISMATCH = re.compile(r"connecting to an? \w+ (broker )?listener\?|incorrect security\.protocol", re.IGNORECASE)
_NO_TOKEN = re.compile(r"acquire SASL OAUTHBEARER token|the token function")
_ISSUER_AWAY = re.compile(r"acquire SASL OAUTHBEARER token: .*(connect|resolve|timed out|timeout)", re.IGNORECASE)
_MISMATCH_S = 2.0
"""A starting broker, or a proxy in front of it, closes connections like a listener of the other protocol."""

ENDING = _REFUSED | UNPACKING
"""Errors after which waiting is useless: a reader stops at once, before its stall timeout."""


def classify_delivery(
    topic: str, error_name: str | None, error_text: str, offset: int | None, latency_s: float = 0.0
) -> Delivery:
    """Classify a record's delivery report.

    `error_name`: librdkafka's name without its prefix, None for a success; `offset` may be missing or negative.
    """
    if error_name is None and offset is not None and offset >= 0:
        return Delivery(DeliveryStatus.OK, offset, "", latency_s)
    if error_name is None:
        # A broker that knows the sequence number already answers without an offset. The record is most likely in the
        # log, but a commit cannot list it without its offset.
        return Delivery(DeliveryStatus.UNKNOWN, -1, "acknowledged without an offset")
    # Any other error can follow an earlier try whose answer was lost, because the client retries by itself. Its timeout
    # (_MSG_TIMED_OUT), its purges (_PURGE_INFLIGHT, and _PURGE_QUEUE: a record waits in the queue for its retry), a
    # denied retry and a fatal state do not show whether that try was appended. Nor does a refusal: rights and the size
    # limit may have changed since, and a broker checks them first.
    means = f" ({_MEANS[error_name].format(topic=topic)})" if error_name in _MEANS else ""
    remedy = _REMEDIES.get(error_name, "").format(topic=topic)
    return Delivery(DeliveryStatus.UNKNOWN, -1, f"{error_name}: {mask_text(error_text)}{means}", remedy=remedy)


def client_error(
    error_name: str, error_text: str, doing: str, servers: str, *, needs: str = "", **facts: Fact
) -> StatelogError:
    """Translate the client's error into ours.

    `doing`: the attempt; `servers`: the brokers, without credentials; `needs`: the necessary right, in Kafka's words.
    """
    text = mask_text(error_text)
    where: dict[str, Fact] = {"bootstrap_servers": servers, "kafka_error": error_name, **facts}
    if error_name in _UNGRANTED:
        what = f"{doing} takes {needs or 'a right'}, which Kafka does not grant this client"
        return ConfigError(what, hint=_GRANT, **where)
    if error_name in _REFUSED:
        hint = "Check the sasl.* and ssl.* settings, and the port (docs/security.md)"
        return ConfigError(f"Kafka refuses this client while {doing}: {text}", hint=hint, **where)
    if error_name in _WRONG_SETTING:
        hint = _TOO_FEW_BROKERS if error_name == "INVALID_REPLICATION_FACTOR" else "Correct the named setting"
        return ConfigError(f"Kafka refuses a setting while {doing}: {text}", hint=hint, **where)
    if error_name in MISSING_REQUEST:
        hint = "Use a Kafka that has it: docs/kafka.md lists a log's needs, and the services that meet them"
        return ConfigError(f"this Kafka has no request for {doing}: {text}", hint=hint, **where)
    if error_name in ABSENT | {"_NOENT"}:
        return NotFound(f"no such topic or partition while {doing}: {text}", hint="Create the log first", **where)
    if error_name in UNPACKING:
        hint = "Read another replica, or restore the broker's disk; the record is not skipped"
        return Corrupt(f"a record's checksum is wrong while {doing}: {text}", hint=hint, **where)
    return BrokerUnavailable(f"Kafka does not answer while {doing}: {text}", hint="", **where)


def unreadable(topic: str, partition: int, offsets: OffsetRange, reason: str) -> Unreadable:
    """Make the error for offsets whose records the client cannot unpack."""
    start, end = offsets
    what = f"records cannot be unpacked: {reason}"
    hint = "Make another replica the leader, which may have them whole, or restore the broker's disk"
    return Unreadable(what, hint=hint, topic=topic, partition=partition, start_offset=start, end_offset=end)


def refusal_of(errors: Sequence[tuple[str, str]], waited_s: float, *, was_in: bool = False) -> tuple[str, str] | None:
    """Return name and text of the error that makes waiting useless, if any.

    errors    the client's own errors, oldest first
    waited_s  how long it has been asking
    was_in    whether it was logged in before: then it waits for the issuer of a new token
    """
    if was_in and any(_NO_TOKEN.search(text) for _, text in errors):
        return None
    for name, text in errors:
        is_refused = name in _CREDENTIALS and not _ISSUER_AWAY.search(text)
        if is_refused or (name == "_SSL" and _CERTIFICATE.search(text)):
            return name, text
    mismatch = [text for _, text in errors if _MISMATCH.search(text)]
    return ("_SSL", mismatch[-1]) if mismatch and waited_s >= _MISMATCH_S else None


def check_range(topic: str, partition: int, wanted: OffsetRange, available: OffsetRange) -> None:
    """Raise OffsetGone or BeyondEnd if the log of a partition does not hold all of `wanted`."""
    if wanted.start < available.start:
        error: type[DataLoss] = OffsetGone
        what = "the log starts above an offset that is needed"
    elif wanted.end > available.end:
        error, what = BeyondEnd, "the log ends below an offset that is needed"
    else:
        return
    raise error(
        f"{what}: {topic}[{partition}] holds [{available.start}, {available.end})", topic=topic, partition=partition,
        start_offset=wanted.start, end_offset=wanted.end, log_start=available.start, log_end=available.end,
    )  # fmt: skip


# ---- what cannot be unpacked


Counts = Callable[[int, OffsetRange], bool]
"""Returns whether any record at these offsets of a partition counts."""
_ANSWER_S = 10.0
_PLACE = ("partition", "start_offset", "end_offset")


def read_past(
    reader: Reader, ranges: Mapping[int, OffsetRange], *, stall_timeout_s: float, counts: Counts
) -> Iterator[Record]:
    """Yield every record of `ranges` except those that cannot be unpacked and do not count.

    Raises Unreadable for those that count; OffsetGone, BeyondEnd, BrokerUnavailable.
    """
    starts = {partition: wanted.start for partition, wanted in ranges.items()}
    late: set[tuple[int, int]] = set()
    while True:
        left = {p: OffsetRange(starts[p], wanted.end) for p, wanted in ranges.items() if starts[p] < wanted.end}
        try:
            for record in reader.read(left, stall_timeout_s=stall_timeout_s):
                starts[record.partition] = record.offset + 1
                yield record
        except Unreadable as error:
            partition, start, end = (cast("int", error.facts[name]) for name in _PLACE)
            if counts(partition, OffsetRange(start, end)):
                accept = f"statelog accept-loss {error.facts['topic']} --range {partition}:{start}-{end}"
                raise error.restated(hint=f"{error.hint}; to accept a permanent loss, run {accept}") from error
            starts[partition] = end
        except BrokerUnavailable as error:
            partition, offset = _silent(reader, ranges, error)
            if (partition, offset) in late or counts(partition, OffsetRange(offset, offset + 1)):
                raise
            if _answers(reader, partition, offset, min(_ANSWER_S, stall_timeout_s)):
                late.add((partition, offset))
            else:
                starts[partition] = offset + 1
        else:
            return


def _silent(reader: Reader, ranges: Mapping[int, OffsetRange], error: BrokerUnavailable) -> tuple[int, int]:
    """Return the offset that gets no answer although its neighbour does. Raise the error again if neither does.

    The client silently drops a batch that unpacks to less than its records say, and fetches it again. A batch that
    comes once it is read alone was late.
    """
    partition, offset = error.facts.get("partition"), error.facts.get("next_offset")
    if not isinstance(partition, int) or not isinstance(offset, int):
        raise error
    neighbour = offset + 1 if offset + 1 < ranges[partition].end else max(0, offset - 1)
    try:
        is_there = _answers(reader, partition, neighbour, _ANSWER_S)
    except DataLoss:
        is_there = False
    if not is_there:
        raise error from None
    return partition, offset


def _answers(reader: Reader, partition: int, offset: int, timeout_s: float) -> bool:
    """Return whether the broker answers for this offset in time, if only with records that cannot be unpacked."""
    try:
        next(reader.read({partition: OffsetRange(offset, offset + 1)}, stall_timeout_s=timeout_s), None)
    except Unreadable:
        return True
    except BrokerUnavailable:
        return False
    return True
