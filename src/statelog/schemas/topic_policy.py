"""Topic policy: the settings of new topics, those of existing ones that are refused, who deletes records, and the
rights that roles need.

Two kinds of findings. A *wrong* setting deletes or rewrites what was committed (retention, compaction, a second
ledger partition): never usable. An *unsafe* one can lose acknowledged records when a broker dies: usable only if
the operator waives it by its name. What a broker does not tell is unknown, and never taken for its default.

`docs/security.md` has the same rights, and those that Kafka asks for besides: DESCRIBE_CONFIGS on both topics, and
DESCRIBE on the readers' group. Names are Kafka's own. Pure.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, cast

from statelog.errors import ConfigError, CorruptDescriptor, UnsafeTopic
from statelog.schemas.avro import FileCodec
from statelog.schemas.names import parse_enum

MIN_RECORD_BYTES, MAX_RECORD_BYTES = 1 << 20, 16 << 20
"""What a log's largest record is at least and at most, Kafka's framing included."""
_OVERHEAD_BYTES = 64 * 1024  # Kafka counts its batch framing into max.message.bytes
_SIZE = "max.message.bytes"
_AGE = "retention.ms"
_NEEDED = frozenset({"cleanup.policy", _AGE, "retention.bytes", _SIZE})
"""Without these, Kafka would delete, rewrite or refuse what is committed. All else is only good to have."""
_SMALLER = {str(MAX_RECORD_BYTES + _OVERHEAD_BYTES): str(8 << 20)}
"""What to ask for where a size is refused: what several services allow at most; then their own default."""
_JUDGED = _NEEDED | {"min.insync.replicas", "unclean.leader.election.enable"}
EARLY = {"warpstream.topic.type": "lightning"}
"""Settings with which a service acknowledges a record before its place in the log is known. Commits list places."""
NO_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""Sixteen zero bytes: what a broker answers that gives its topics no ids."""


class TopicNeeds(NamedTuple):
    """What a log needs of its topics: its largest record, and how long records stay; -1: for ever."""

    record_bytes_max: int = MIN_RECORD_BYTES
    retention_ms: int = -1


LEAST_NEEDS = TopicNeeds()


class TopicRole(StrEnum):
    """Which of a log's two topics."""

    DATA = "data"
    LEDGER = "ledger"


class Waiver(StrEnum):
    """The checks that an operator may waive, each by its name."""

    REPLICATION = "replication"
    """Fewer than three replicas: a lost disk loses acknowledged commits."""
    MIN_INSYNC = "min-insync"
    """`min.insync.replicas` below two: an acknowledgement may mean one copy only."""
    UNCLEAN_ELECTION = "unclean-election"
    """A replica that lacks acknowledged records may become leader."""
    UNKNOWN_SETTINGS = "unknown-settings"
    """The broker does not tell a setting that safety rests on: nobody knows whether it is a safe one."""
    FINITE_RETENTION = "finite-retention"
    """Kafka deletes records by their age: a log whose rounds stop for so long loses what is committed."""
    TOPIC_IDS = "topic-ids"
    """The broker gives topics no ids: one that was deleted and made again is known by its records only."""
    CLEARTEXT = "cleartext"
    """The password goes over the network as it is: SASL's PLAIN without TLS, to a broker on another machine."""


Objection = tuple[str, Waiver | None]
"""What is wrong, and which waiver lets it pass, if one does."""


def parse_waivers(names: Collection[str]) -> frozenset[Waiver]:
    """The waivers of these names. Raises ConfigError for a name that there is not."""
    if isinstance(names, str) or not isinstance(cast("object", names), Iterable):
        raise ConfigError(f"allow_unsafe is {names!r}", hint=f"Give a list of names, out of {', '.join(Waiver)}")
    return frozenset(parse_enum(Waiver, "allow_unsafe", name) for name in names)


def topic_config(role: TopicRole, replication_factor: int) -> dict[str, str]:
    """The settings that a new topic gets, where the service takes them all, and records stay for ever."""
    segment_mib = 128 if role is TopicRole.DATA else 32
    return {
        "cleanup.policy": "delete",
        _AGE: "-1",
        "retention.bytes": "-1",
        _SIZE: str(MAX_RECORD_BYTES + _OVERHEAD_BYTES),
        "min.insync.replicas": "2" if replication_factor >= 3 else "1",
        "unclean.leader.election.enable": "false",
        "message.timestamp.type": "LogAppendTime",
        "segment.bytes": str(segment_mib * 1024 * 1024),
    }


def without_refused(config: Mapping[str, str], refusal: str, waived: Collection[Waiver] = ()) -> dict[str, str]:
    """What to try after a service refused `config` with these words: smaller records, and without those settings that
    are only good to have, as far as it names them; where it names none, without any of them, and then smaller records.
    Equal to `config` if nothing is left to try.
    """
    kept = _NEEDED - {_AGE} if Waiver.FINITE_RETENTION in waived else _NEEDED
    spare = config.keys() - kept
    named = {key for key in config if key in refusal}
    smaller = {**config, _SIZE: _SMALLER.get(config.get(_SIZE, ""), "")}
    if _SIZE in named or not (named or spare):
        return {key: value for key, value in smaller.items() if value and key not in named & spare}
    return {key: value for key, value in config.items() if key not in (named & spare or spare)}


def largest_record_bytes(*configs: Mapping[str, str]) -> int:
    """The largest record of a new log on topics of these settings, in whole MiB: they may come to allow more, and must
    never come to allow less. What a broker does not tell counts for the least.
    """
    allowed = min(int(config.get(_SIZE, MIN_RECORD_BYTES)) for config in configs)
    return min(allowed >> 20 << 20, MAX_RECORD_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSpec:
    """A topic to create: it has no id yet. `config` are Kafka's own topic settings."""

    name: str
    partitions: int
    replication_factor: int
    config: Mapping[str, str] = field(default_factory=dict[str, str])
    topic_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription(TopicSpec):
    """A topic as the cluster describes it. `config` holds every effective setting, defaults included.

    `operations` are those that this client may do with it, by Kafka's names; None if the cluster does not tell.
    `in_sync` is how many replicas of each partition are in sync; a partition without a leader has 0.
    """

    operations: frozenset[str] | None = None
    in_sync: tuple[int, ...] = ()


def check_topic(
    topic: TopicSpec,
    role: TopicRole,
    waived: Collection[Waiver],
    needs: TopicNeeds = LEAST_NEEDS,
    spared: Collection[Objection] = (),
) -> None:
    """Raise UnsafeTopic, naming every finding at once but the `spared` ones, if the topic must not be used."""
    found = [one for one in objections(topic, role, needs) if one not in spared]
    refused = [(text, waiver) for text, waiver in found if waiver is None or waiver not in waived]
    if not refused:
        return
    waivable = sorted(waiver.value for _, waiver in refused if waiver)
    hint = "Correct the topic's settings with Kafka's own tools"
    if waivable:
        hint += f"; on a test cluster, waive by name: allow_unsafe={','.join(waivable)}"
    raise UnsafeTopic("; ".join(text for text, _ in refused), topic=topic.name, role=role.value, hint=hint)


def objections(topic: TopicSpec, role: TopicRole, needs: TopicNeeds = LEAST_NEEDS) -> Iterator[Objection]:
    """All that speaks against using the topic, whatever is waived."""
    config = topic.config
    if role is TopicRole.LEDGER and topic.partitions != 1:
        yield f"the ledger has {topic.partitions} partitions and must have one", None
    policy = config.get("cleanup.policy", "delete")
    if policy != "delete":
        yield f"cleanup.policy is {policy!r} and must be 'delete'", None
    yield from deletions(topic, needs)
    for key, early in EARLY.items():
        if config.get(key, "").lower() == early:
            yield f"{key} is {early}: records are acknowledged before their place in the log is known", None
    size = int(config.get(_SIZE, needs.record_bytes_max))
    if size < needs.record_bytes_max:
        yield f"{_SIZE} is {size} and must be at least {needs.record_bytes_max}, this log's largest record", None
    yield from _unsafe(topic)


def deletions(topic: TopicSpec, needs: TopicNeeds = LEAST_NEEDS) -> Iterator[Objection]:
    """Yield those of the objections by which Kafka deletes what is committed, sooner or later.

    Writers refuse such a topic. A round goes on: its snapshot saves what is still there.
    """
    for key, waiver, least in ((_AGE, Waiver.FINITE_RETENTION, needs.retention_ms), ("retention.bytes", None, -1)):
        found = int(topic.config.get(key, "-1"))
        if found != -1 and least == -1:
            yield f"{key} is {found} and must be -1: Kafka would delete committed changes", waiver
        elif -1 < found < least:
            yield f"{key} is {found} and must be at least {least}, what this log was told, or -1", waiver


def _unsafe(topic: TopicSpec) -> Iterator[Objection]:
    config = topic.config
    if topic.replication_factor < 3:
        yield f"the topic's replication factor is {topic.replication_factor}, below 3", Waiver.REPLICATION
    if int(config.get("min.insync.replicas", "2")) < 2:
        yield "min.insync.replicas is below 2", Waiver.MIN_INSYNC
    if config.get("unclean.leader.election.enable", "false") != "false":
        yield "unclean.leader.election.enable is on", Waiver.UNCLEAN_ELECTION
    untold = sorted(_JUDGED - config.keys())
    if untold:
        yield f"this broker does not tell {', '.join(untold)}", Waiver.UNKNOWN_SETTINGS
    if topic.topic_id == NO_TOPIC_ID:
        yield "this broker gives topics no ids", Waiver.TOPIC_IDS


def retention_s(*configs: Mapping[str, str]) -> float | None:
    """After how long Kafka deletes records of topics of these settings; None if it keeps them for ever."""
    ages_ms = [int(config[_AGE]) for config in configs if config.get(_AGE, "-1") != "-1"]
    return min(ages_ms) / 1000 if ages_ms else None


# ---- rights


class Rights(NamedTuple):
    """Operations on the data topic and on the ledger topic. A client that `saves` goes on in spite of `deletions`."""

    data: frozenset[str]
    ledger: frozenset[str]
    saves: bool = False

    def check(self, data: TopicDescription, ledger: TopicDescription) -> None:
        """Raise ConfigError for rights that this client lacks."""
        check_rights(data, self.data)
        check_rights(ledger, self.ledger)


NO_RIGHTS = Rights(frozenset(), frozenset())
READING = Rights(frozenset({"READ"}), frozenset({"READ"}))
LEDGER_WRITING = Rights(READING.data, frozenset({"READ", "WRITE"}))
"""For a reader that appends to the ledger alone: a barrier, the acceptance of a loss."""
WRITING = Rights(frozenset({"READ", "WRITE"}), frozenset({"READ", "WRITE"}))
ROUND = READING._replace(saves=True)
"""For a round, which need not delete records."""
ROLLING_UP = Rights(frozenset({"READ", "DELETE"}), frozenset({"READ", "DELETE"}), saves=True)


def check_rights(topic: TopicDescription, needed: frozenset[str]) -> None:
    """Raise ConfigError for rights that this client lacks. Where the cluster does not tell, the operation itself will,
    later.
    """
    missing = sorted(needed - topic.operations) if topic.operations is not None else []
    if missing:
        message = f"Kafka does not allow this client {' and '.join(missing)} on topic {topic.name}"
        hint = "Grant its principal what docs/security.md lists for the role"
        raise ConfigError(message, hint=hint, topic=topic.name, missing=", ".join(missing))


# ---- who deletes the records that no snapshot needs any more


_DAY_MS = 86_400_000
_MOST_DAYS = 36_500
_USUAL_DAYS = 7
_FILE = FileCodec("truncation", version=1, error=CorruptDescriptor)


class TruncationMode(StrEnum):
    """Who deletes records."""

    DELETE_RECORDS = "delete-records"
    """The materializer, once no kept snapshot and no reader needs them."""
    RETENTION = "retention"
    """Kafka, by their age, needed or not: rounds have to be faster."""


class Truncation(NamedTuple):
    """Who deletes, and after how many days, if that is Kafka.

    It may change in the life of a log, so it is no part of the descriptor, whose hash the ledger has. Each time it is
    said, that is one more file, `truncation/<number>.avro`, written once: the newest one of this very log counts, and
    without one the materializer truncates.
    """

    mode: TruncationMode = TruncationMode.DELETE_RECORDS
    retention_days: int | None = None

    @classmethod
    def named(cls, mode: str | None, retention_days: int | None = None) -> "Truncation":
        """What a caller says; None says nothing. Raises ConfigError."""
        parsed = parse_enum(TruncationMode, "truncation", mode or TruncationMode.DELETE_RECORDS)
        if parsed is TruncationMode.DELETE_RECORDS:
            if retention_days is not None:
                hint = 'Say both: truncation="retention", retention_days=7, say'
                raise ConfigError("retention_days says when Kafka deletes, and the materializer does", hint=hint)
            return cls()
        days = _USUAL_DAYS if retention_days is None else retention_days
        if type(days) is not int or not 1 <= days <= _MOST_DAYS:
            raise ConfigError(f"retention_days is {days!r} and must be a whole number from 1 to {_MOST_DAYS}")
        return cls(parsed, days)

    @property
    def is_by_kafka(self) -> bool:
        """Whether rounds truncate nothing."""
        return self.mode is TruncationMode.RETENTION

    @property
    def retention_ms(self) -> int:
        """What a new topic gets as `retention.ms`, and every one has to have at least; -1: for ever."""
        return -1 if self.retention_days is None else self.retention_days * _DAY_MS

    def __str__(self) -> str:
        return self.mode.value if self.retention_days is None else f"{self.mode.value}, {self.retention_days} days"

    def to_bytes(self, digest: bytes) -> bytes:
        """The file, for the log whose descriptor has this digest."""
        return _FILE.encode({"digest": digest, "mode": self.mode.value, "retention_days": self.retention_days or 0})

    @classmethod
    def from_bytes(cls, data: bytes, path: str) -> "tuple[bytes, Truncation]":
        """The digest and what the file says; `path` is for messages. Raises CorruptDescriptor, UnknownFormat."""
        return _FILE.decode(
            data, path, lambda one: (one["digest"], cls.named(one["mode"], one["retention_days"] or None))
        )
