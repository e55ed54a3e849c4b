"""The needs that a log has of Kafka, and the verdict on a cluster's answer to each. Pure.

`docs/kafka.md` lists the needs by the same names. The topic policy judges a topic's settings, as for every log; this
module only assigns its objections to needs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from statelog.errors import Fact, StatelogError
from statelog.formatting import show_bytes, show_duration
from statelog.kafka.errors import MISSING_REQUEST
from statelog.kafka.port import OffsetRange, TopicDescription
from statelog.operate.finding import Explained, Finding, Severity, Verdict, severity_of
from statelog.schemas.topic_policy import EARLY, TopicRole, Waiver, objections

_ODD_CLOCK_S = 1.0
_SERVICE = "Ask the service: docs/kafka.md lists what a log needs"


class Need(Explained):
    """A need, by its name in `docs/kafka.md`; `why` names the consequence if it is missing."""

    TOPICS = "the right to create topics", "Without it, somebody else has to create two empty topics for a log"
    CLUSTER_ID = "the cluster's id", "It is part of the log's identity: nothing works without it"
    DESCRIBE = "DescribeConfigs", "A setting that the cluster does not tell cannot be judged"
    TOPIC_IDS = "topic ids", "They are the log's identity: without them, only records show that a topic was re-created"
    KEPT = (
        "retention.ms=-1, retention.bytes=-1, cleanup.policy=delete",
        "Only the materializer may delete: Kafka would delete or rewrite committed records",
    )
    REPLICAS = "three replicas, two of them in sync", "A broker or disk that dies may lose commits"
    SPARE = "settings that are only good to have", "Topics are made without them"
    IDEMPOTENCE = "idempotent production", "Writers need it: it keeps records in order and without duplicates"
    CODEC = "LZ4", "Records are compressed with it"
    OFFSETS = "the offset in every answer to a produce", "Without it, the outcome of a commit is unknown"
    PLACES = "acknowledgement of a record that has its place in the log", "A commit would list records that are missing"
    LARGEST = "records of 1 MiB; up to 16 MiB are used", "Large changes and commits are refused"
    LIST_OFFSETS = "ListOffsets, earliest and latest", "It tells how far a log reaches: nothing works without it"
    DELETE_RECORDS = (
        "DeleteRecords",
        "The materializer truncates with it: without it, Kafka deletes records by age, or grows forever",
    )
    TRANSACTIONS = (
        "transactions and consumer groups",
        "Messages that tables send may come twice without them; nothing else needs them",
    )
    CLOCK = (
        "times by the brokers' clocks",
        "The ages of commits, and alarms by age, are wrong by this difference; no decision depends on them",
    )
    LOG = "all of it together", "A log cannot be made here"


_SORTED: Mapping[Waiver | None, Need] = {
    Waiver.UNKNOWN_SETTINGS: Need.DESCRIBE,
    Waiver.TOPIC_IDS: Need.TOPIC_IDS,
    Waiver.REPLICATION: Need.REPLICAS,
    Waiver.MIN_INSYNC: Need.REPLICAS,
    Waiver.UNCLEAN_ELECTION: Need.REPLICAS,
}
"""The need that an objection belongs to, by its waiver; all others belong to `KEPT`."""
_SHOWN: Mapping[Need, Sequence[str]] = {
    Need.KEPT: ("cleanup.policy", "retention.ms", "retention.bytes", "max.message.bytes"),
    Need.REPLICAS: ("min.insync.replicas", "unclean.leader.election.enable"),
}
_UNGRANTED = frozenset({
    "TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
})  # fmt: skip
_REPEATED = 'Let tables that send messages have TableSettings(outputs="at-least-once")'
_NO_CODEC, _NO_OFFSET = "UNSUPPORTED_COMPRESSION_TYPE", "acknowledged without an offset"


class TopicAnswer(NamedTuple):
    """A topic's description, and the requested settings that the cluster did not apply."""

    role: TopicRole
    found: TopicDescription
    refused: frozenset[str] = frozenset()


class Sent(NamedTuple):
    """Records sent one by one: the latency and the acknowledged offset of each."""

    latencies_s: tuple[float, ...]
    offsets: tuple[int, ...]


class Read(NamedTuple):
    """The result of reading the acknowledged offsets: how many records were not there (`misplaced`), and the least
    difference of the brokers' clock from ours (`skew_s`; None if the records bear no times).
    """

    misplaced: int
    skew_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaAnswers:
    """All answers of a cluster. None: the probe failed, or was skipped because of a failure in `errors`.

    `wanted_replicas`: the requested number; the topics may have fewer.
    `listed`: the ledger's offsets after all records were sent.
    `published`: the group's offset after a transaction that stored 1.
    `truncated`: the offsets of all partitions after they were truncated to their ends.
    """

    waived: frozenset[Waiver]
    wanted_replicas: int
    cluster_id: str
    errors: Mapping[Need, StatelogError]
    topics: tuple[TopicAnswer, ...] | None = None
    commits_s: tuple[float, ...] | None = None
    sent: Sent | None = None
    read: Read | None = None
    largest_bytes: int | None = None
    listed: OffsetRange | None = None
    published: int | None = None
    truncated: tuple[OffsetRange, ...] | None = None


def findings(answers: KafkaAnswers) -> tuple[Finding, ...]:
    """Return a finding for each need."""
    return tuple(_finding(need, answers) for need in Need)


def _finding(need: Need, answers: KafkaAnswers) -> Finding:
    error = answers.errors.get(need)
    return Finding.of(need, _of_error(need, error) if error else _JUDGES[need](answers))


def _of_error(need: Need, error: StatelogError) -> Verdict:
    severity, hint, reason = severity_of(error), error.hint, str(error.facts.get("reason", ""))
    is_ungranted = error.facts.get("kafka_error") in _UNGRANTED
    if need is Need.TOPICS and is_ungranted:
        hint = "Grant it, or have two empty topics created, NAME and NAME.ledger, and pass --topics NAME"
    if need is Need.DELETE_RECORDS and is_ungranted:
        severity, hint = Severity.NOTE, "Grant DELETE on both topics to whoever runs the materializer"
    if need is Need.DELETE_RECORDS and error.facts.get("kafka_error") in MISSING_REQUEST:
        severity, hint = Severity.NOTE, 'Make logs with truncation="retention": Kafka then deletes records by age'
    if need is Need.TRANSACTIONS:
        severity = Severity.NOTE  # A service without them may answer nothing to the point, and a log needs none.
        hint = "Grant READ on the group, WRITE on the transactional id: docs/security.md" if is_ungranted else _REPEATED
    if reason.startswith(_NO_CODEC):
        hint = "Set the client's compression.type to none"
    return Verdict(severity, ": ".join(filter(None, (error.message, reason))), hint, error.facts)


# ---- judges: each returns the verdict on an answer; None without an answer


def _of_topics(answers: KafkaAnswers) -> Verdict | None:
    names = [topic.found.name for topic in answers.topics or ()]
    return Verdict(Severity.OK, " and ".join(names)) if names else None


def _by_policy(need: Need) -> Callable[[KafkaAnswers], Verdict | None]:
    def judge(answers: KafkaAnswers) -> Verdict | None:
        if answers.topics is None:
            return None
        against = dict(_objections(need, answers.topics))
        if not against:
            return Verdict(Severity.OK, _as_found(need, answers.topics))
        names = sorted(waiver for waiver in against.values() if waiver and waiver not in answers.waived)
        has_fewer = answers.topics[0].found.replication_factor < answers.wanted_replicas
        hints = [
            "Change these settings, or ask the service to; a log needs them" * (None in against.values()),
            "Pass replication_factor=1" * (need is Need.REPLICAS and has_fewer),
            f"Waive it by name: allow_unsafe={','.join(names)}" if names else "",
        ]
        hint = "; ".join(filter(None, hints))
        found = "; ".join(against)
        return Verdict(Severity.REFUSED, found, hint) if hint else Verdict(Severity.NOTE, f"{found} (waived)")

    return judge


def _objections(need: Need, topics: Sequence[TopicAnswer]) -> Iterator[tuple[str, Waiver | None]]:
    for role, found, _ in topics:
        for text, waiver in objections(found, role):
            is_early = text.startswith(tuple(EARLY))
            if (Need.PLACES if is_early else _SORTED.get(waiver, Need.KEPT)) is need:
                yield text, waiver


def _as_found(need: Need, topics: Sequence[TopicAnswer]) -> str:
    found = topics[0].found
    if need is Need.TOPIC_IDS:
        return ", ".join(topic.found.topic_id for topic in topics)
    if need is Need.DESCRIBE:
        return "every setting that is judged was given"
    settings = [f"{name}={found.config.get(name, 'not told')}" for name in _SHOWN[need]]
    return ", ".join([f"{found.replication_factor} replicas", *settings] if need is Need.REPLICAS else settings)


def _of_spare(answers: KafkaAnswers) -> Verdict | None:
    if answers.topics is None:
        return None
    refused = sorted({
        f"{name} is {topic.found.config.get(name, 'not told')}" for topic in answers.topics for name in topic.refused
    })  # fmt: skip
    if refused:
        return Verdict(Severity.NOTE, f"not taken: {', '.join(refused)}")
    return Verdict(Severity.OK, "all taken")


def _timed(what: str, latencies_s: Sequence[float] | None) -> Verdict | None:
    return Verdict(Severity.OK, f"{len(latencies_s)} {what}", facts=times(latencies_s)) if latencies_s else None


def _by_reason(need: Need, reason: str, found: str) -> Callable[[KafkaAnswers], Verdict | None]:
    """Return a judge that reports the probe's error if it has this reason."""

    def judge(answers: KafkaAnswers) -> Verdict | None:
        error = answers.errors.get(Need.IDEMPOTENCE)
        if error and str(error.facts.get("reason", "")).startswith(reason):
            return _of_error(need, error)
        return Verdict(Severity.OK, found) if answers.sent else None

    return judge


def _of_places(answers: KafkaAnswers) -> Verdict | None:
    against = [text for text, _ in _objections(Need.PLACES, answers.topics or ())]
    count, misplaced = len(answers.sent.offsets if answers.sent else ()), answers.read.misplaced if answers.read else 0
    if misplaced:
        against.append(f"{misplaced} of {count} records are not where their acknowledgements say")
    if against:
        hint = "Use topics, or a service, that acknowledge a record once its place is known"
        return Verdict(Severity.REFUSED, "; ".join(dict.fromkeys(against)), hint, {"misplaced": misplaced})
    return Verdict(Severity.OK, f"{count} records are where their acknowledgements say") if answers.read else None


def _of_largest(answers: KafkaAnswers) -> Verdict | None:
    size = answers.largest_bytes
    if size is None:
        return None
    return Verdict(Severity.OK, f"one of {show_bytes(size)} acknowledged and read", facts={"largest_bytes": size})


def _of_list_offsets(answers: KafkaAnswers) -> Verdict | None:
    if answers.sent is None or answers.listed is None:
        return None
    start, end = answers.listed
    acknowledged_end = max(answers.sent.offsets) + 1
    facts: dict[str, Fact] = {"start_offset": start, "end_offset": end, "acknowledged_end_offset": acknowledged_end}
    if end < acknowledged_end:
        return Verdict(Severity.REFUSED, f"the end is {end}, below acknowledged records", _SERVICE, facts)
    return Verdict(Severity.OK, f"from {start} to {end}", facts=facts)


def _of_delete_records(answers: KafkaAnswers) -> Verdict | None:
    if answers.truncated is None:
        return None
    left = sum(offsets.end - offsets.start for offsets in answers.truncated)
    if left:
        return Verdict(Severity.REFUSED, f"{left} records are still there", _SERVICE, {"left": left})
    return Verdict(Severity.OK, "both topics are truncated to their ends")


def _of_transactions(answers: KafkaAnswers) -> Verdict | None:
    if answers.published is None:
        return None
    if answers.published != 1:
        return Verdict(Severity.NOTE, f"a transaction stored 1, and the group has {answers.published}", _REPEATED)
    return Verdict(Severity.OK, "a transaction sent a record, and stored a group's offset")


def _of_clock(answers: KafkaAnswers) -> Verdict | None:
    if answers.read is None or answers.read.misplaced:
        return None
    skew_s = answers.read.skew_s
    if skew_s is None:
        hint = "Set message.timestamp.type to LogAppendTime, for ages by the brokers' clocks"
        return Verdict(Severity.NOTE, "records bear no times of the brokers", hint)
    if abs(skew_s) < _ODD_CLOCK_S:
        return Verdict(Severity.OK, "in step with this machine's", facts={"skew_s": skew_s})
    side = "ahead of" if skew_s > 0 else "behind"
    found = f"{show_duration(abs(skew_s))} {side} this machine's clock, or more"
    return Verdict(Severity.NOTE, found, "Set this machine's clock, or the brokers'", {"skew_s": skew_s})


def times(latencies_s: Sequence[float]) -> dict[str, Fact]:
    """Return median and 99th percentile as facts; empty without latencies."""
    ordered = sorted(latencies_s)
    if not ordered:
        return {}
    return {"p50_s": ordered[len(ordered) // 2], "p99_s": ordered[len(ordered) * 99 // 100]}


_JUDGES: Mapping[Need, Callable[[KafkaAnswers], Verdict | None]] = {
    Need.TOPICS: _of_topics,
    Need.CLUSTER_ID: lambda answers: Verdict(Severity.OK, answers.cluster_id),
    **{need: _by_policy(need) for need in (Need.DESCRIBE, Need.TOPIC_IDS, Need.KEPT, Need.REPLICAS)},
    Need.SPARE: _of_spare,
    Need.IDEMPOTENCE: lambda answers: _timed("records acknowledged", answers.sent and answers.sent.latencies_s),
    Need.CODEC: _by_reason(Need.CODEC, _NO_CODEC, "compressed records acknowledged"),
    Need.OFFSETS: _by_reason(Need.OFFSETS, _NO_OFFSET, "each has one"),
    Need.PLACES: _of_places,
    Need.LARGEST: _of_largest,
    Need.LIST_OFFSETS: _of_list_offsets,
    Need.DELETE_RECORDS: _of_delete_records,
    Need.TRANSACTIONS: _of_transactions,
    Need.CLOCK: _of_clock,
    Need.LOG: lambda answers: _timed("commits on a log that was made", answers.commits_s),
}
