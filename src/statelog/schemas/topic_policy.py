"""Topic policy: the settings of new topics, the refused settings of existing ones, truncation, and rights. Pure.

There are two kinds of findings. A *wrong* setting deletes or rewrites committed records (retention, compaction, a
second ledger partition), and is never usable. An *unsafe* setting can lose acknowledged records when a broker dies, and
is usable only if the operator waives it by name. A setting that the broker does not report is unknown; its default is
not assumed.

`docs/security.md` lists the same rights, and further ones that Kafka requires: DESCRIBE_CONFIGS on both topics, and
DESCRIBE on the readers' group. Names are Kafka's own.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, cast

from statelog.errors import ConfigError, CorruptDescriptor, UnsafeTopic
from statelog.schemas.avro import FileCodec
from statelog.schemas.names import parse_enum

MIN_RECORD_BYTES, MAX_RECORD_BYTES = 1 << 20, 16 << 20
"""The range of a log's largest record, Kafka's framing included."""
_OVERHEAD_BYTES = 64 * 1024  # Kafka includes its batch framing in max.message.bytes.
_SIZE = "max.message.bytes"
_AGE = "retention.ms"
_NEEDED = frozenset({"cleanup.policy", _AGE, "retention.bytes", _SIZE})
"""Without these settings, Kafka would delete, rewrite or refuse committed records. All others are optional."""
_SMALLER = {str(MAX_RECORD_BYTES + _OVERHEAD_BYTES): str(8 << 20)}
"""The size to try after a refused one: the most that several services allow. After it, the service's default."""
_JUDGED = _NEEDED | {"min.insync.replicas", "unclean.leader.election.enable"}
EARLY = {"warpstream.topic.type": "lightning"}
"""Settings with which a service acknowledges a record before its offset is known. Commits list offsets."""
NO_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""Sixteen zero bytes: the topic id of a broker without topic ids."""


class TopicNeeds(NamedTuple):
    """A log's demands on its topics: the largest record, and the retention of records (-1: for ever)."""

    record_bytes_max: int = MIN_RECORD_BYTES
    retention_ms: int = -1


LEAST_NEEDS = TopicNeeds()


class TopicRole(StrEnum):
    """One of a log's two topics."""

    DATA = "data"
    LEDGER = "ledger"


class Waiver(StrEnum):
    """A check that an operator may waive by name."""

    REPLICATION = "replication"
    """Fewer than three replicas: a lost disk loses acknowledged commits."""
    MIN_INSYNC = "min-insync"
    """`min.insync.replicas` below two: an acknowledgement may mean one copy only."""
    UNCLEAN_ELECTION = "unclean-election"
    """A replica that lacks acknowledged records may become leader."""
    UNKNOWN_SETTINGS = "unknown-settings"
    """The broker does not report a setting that safety depends on."""
    FINITE_RETENTION = "finite-retention"
    """Kafka deletes records by age: a log whose rounds stop for so long loses committed records."""
    TOPIC_IDS = "topic-ids"
    """The broker gives topics no ids: only the records show that a topic was recreated."""
    CLEARTEXT = "cleartext"
    """The password is sent in clear text: SASL PLAIN without TLS, to a broker on another machine."""


Objection = tuple[str, Waiver | None]
"""The problem, and the waiver that permits it, if any."""


def parse_waivers(names: Collection[str]) -> frozenset[Waiver]:
    """Return the waivers of these names. Raises ConfigError for an unknown name."""
    if isinstance(names, str) or not isinstance(cast("object", names), Iterable):
        raise ConfigError(f"allow_unsafe is {names!r}", hint=f"Give a list of names, out of {', '.join(Waiver)}")
    return frozenset(parse_enum(Waiver, "allow_unsafe", name) for name in names)


def topic_config(role: TopicRole, replication_factor: int) -> dict[str, str]:
    """Return the settings of a new topic, if the service accepts all of them and records stay for ever."""
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
    """Return the settings to try after a service refused `config` with the message `refusal`.

    They lack the optional settings that the message names, and have a smaller record size if it names the size. If it
    names no setting, all optional ones go, then the size shrinks. Equal to `config` if nothing is left to try.
    """
    needed = _NEEDED - {_AGE} if Waiver.FINITE_RETENTION in waived else _NEEDED
    spare = config.keys() - needed
    named = {key for key in config if key in refusal}
    smaller = {**config, _SIZE: _SMALLER.get(config.get(_SIZE, ""), "")}
    if _SIZE in named or not (named or spare):
        return {key: value for key, value in smaller.items() if value and key not in named & spare}
    return {key: value for key, value in config.items() if key not in (named & spare or spare)}


def largest_record_bytes(*configs: Mapping[str, str]) -> int:
    """Return the largest record of a new log on topics of these settings, in whole MiB.

    The topics may allow more later, never less. A size that the broker does not report counts as the minimum.
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

    `operations`: Kafka's names of the operations that this client may do; None if the cluster does not report them.
    `in_sync`: the number of in-sync replicas of each partition; 0 without a leader.
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
    """Raise UnsafeTopic, with all findings but the `spared` ones, if the topic must not be used."""
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
    """Yield all objections against the topic, waived or not."""
    config = topic.config
    if role is TopicRole.LEDGER and topic.partitions != 1:
        yield f"the ledger has {topic.partitions} partitions and must have one", None
    policy = config.get("cleanup.policy", "delete")
    if policy != "delete":
        yield f"cleanup.policy is {policy!r} and must be 'delete'", None
    yield from deletions(topic, needs)
    for key, early in EARLY.items():
        if config.get(key, "").lower() == early:
            yield f"{key} is {early}: records are acknowledged before their offset is known", None
    size = int(config.get(_SIZE, needs.record_bytes_max))
    if size < needs.record_bytes_max:
        yield f"{_SIZE} is {size} and must be at least {needs.record_bytes_max}, this log's largest record", None
    yield from _unsafe(topic)


def deletions(topic: TopicSpec, needs: TopicNeeds = LEAST_NEEDS) -> Iterator[Objection]:
    """Yield the objections against settings by which Kafka deletes committed records.

    Writers refuse such a topic. A round goes on: its snapshot saves the records that are left.
    """
    for key, waiver, least in ((_AGE, Waiver.FINITE_RETENTION, needs.retention_ms), ("retention.bytes", None, -1)):
        found = int(topic.config.get(key, "-1"))
        if found != -1 and least == -1:
            yield f"{key} is {found} and must be -1: Kafka would delete committed changes", waiver
        elif -1 < found < least:
            yield f"{key} is {found} and must be at least {least}, this log's retention, or -1", waiver


def _unsafe(topic: TopicSpec) -> Iterator[Objection]:
    config = topic.config
    if topic.replication_factor < 3:
        yield f"the topic's replication factor is {topic.replication_factor}, below 3", Waiver.REPLICATION
    if int(config.get("min.insync.replicas", "2")) < 2:
        yield "min.insync.replicas is below 2", Waiver.MIN_INSYNC
    if config.get("unclean.leader.election.enable", "false") != "false":
        yield "unclean.leader.election.enable is on", Waiver.UNCLEAN_ELECTION
    missing = sorted(_JUDGED - config.keys())
    if missing:
        yield f"this broker does not report {', '.join(missing)}", Waiver.UNKNOWN_SETTINGS
    if topic.topic_id == NO_TOPIC_ID:
        yield "this broker gives topics no ids", Waiver.TOPIC_IDS


def retention_s(*configs: Mapping[str, str]) -> float | None:
    """Return after how many seconds Kafka deletes records of topics of these settings; None if never."""
    ages_ms = [int(config[_AGE]) for config in configs if config.get(_AGE, "-1") != "-1"]
    return min(ages_ms) / 1000 if ages_ms else None


# ---- rights


class Rights(NamedTuple):
    """Operations on the data topic and on the ledger topic. A client that `saves` ignores `deletions`."""

    data: frozenset[str]
    ledger: frozenset[str]
    saves: bool = False

    def check(self, data: TopicDescription, ledger: TopicDescription) -> None:
        """Raise ConfigError if this client lacks rights."""
        check_rights(data, self.data)
        check_rights(ledger, self.ledger)


NO_RIGHTS = Rights(frozenset(), frozenset())
READING = Rights(frozenset({"READ"}), frozenset({"READ"}))
LEDGER_WRITING = Rights(READING.data, frozenset({"READ", "WRITE"}))
"""For a reader that appends only to the ledger: a barrier, an accepted loss."""
WRITING = Rights(frozenset({"READ", "WRITE"}), frozenset({"READ", "WRITE"}))
ROUND = READING._replace(saves=True)
"""For a round that deletes no records."""
ROLLING_UP = Rights(frozenset({"READ", "DELETE"}), frozenset({"READ", "DELETE"}), saves=True)


def check_rights(topic: TopicDescription, needed: frozenset[str]) -> None:
    """Raise ConfigError if this client lacks rights. If the cluster does not report them, the operation fails later."""
    missing = sorted(needed - topic.operations) if topic.operations is not None else []
    if missing:
        message = f"Kafka does not allow this client {' and '.join(missing)} on topic {topic.name}"
        hint = "Grant its principal what docs/security.md lists for the role"
        raise ConfigError(message, hint=hint, topic=topic.name, missing=", ".join(missing))


# ---- truncation: deleting the records that no snapshot needs any more


_DAY_MS = 86_400_000
_MOST_DAYS = 36_500
_USUAL_DAYS = 7
_FILE = FileCodec("truncation", version=1, error=CorruptDescriptor)


class TruncationMode(StrEnum):
    """The side that deletes records."""

    DELETE_RECORDS = "delete-records"
    """The materializer, once no retained snapshot and no reader needs them."""
    RETENTION = "retention"
    """Kafka, by their age, needed or not: rounds have to be faster."""


class Truncation(NamedTuple):
    """The side that deletes records, and after how many days if that is Kafka.

    It may change while a log lives, so it is no part of the descriptor, whose hash the ledger has. Each change is one
    more file, `truncation/<number>.avro`, written once. The newest file of this very log counts; without one the
    materializer truncates.
    """

    mode: TruncationMode = TruncationMode.DELETE_RECORDS
    retention_days: int | None = None

    @classmethod
    def named(cls, mode: str | None, retention_days: int | None = None) -> "Truncation":
        """Parse a caller's choice; None is the default. Raises ConfigError."""
        parsed = parse_enum(TruncationMode, "truncation", mode or TruncationMode.DELETE_RECORDS)
        if parsed is TruncationMode.DELETE_RECORDS:
            if retention_days is not None:
                hint = 'Give both, such as truncation="retention", retention_days=7'
                raise ConfigError("retention_days is for Kafka's retention, but the materializer deletes", hint=hint)
            return cls()
        days = _USUAL_DAYS if retention_days is None else retention_days
        if type(days) is not int or not 1 <= days <= _MOST_DAYS:
            raise ConfigError(f"retention_days is {days!r} and must be a whole number from 1 to {_MOST_DAYS}")
        return cls(parsed, days)

    @property
    def is_by_kafka(self) -> bool:
        """Whether Kafka deletes records, so that rounds truncate nothing."""
        return self.mode is TruncationMode.RETENTION

    @property
    def retention_ms(self) -> int:
        """The `retention.ms` of new topics, and the least of any topic; -1: for ever."""
        return -1 if self.retention_days is None else self.retention_days * _DAY_MS

    def __str__(self) -> str:
        return self.mode.value if self.retention_days is None else f"{self.mode.value}, {self.retention_days} days"

    def to_bytes(self, digest: bytes) -> bytes:
        """Return the content of the file, for the log whose descriptor has this digest."""
        return _FILE.encode({"digest": digest, "mode": self.mode.value, "retention_days": self.retention_days or 0})

    @classmethod
    def from_bytes(cls, data: bytes, path: str) -> "tuple[bytes, Truncation]":
        """Decode a file's digest and choice; `path` is for messages. Raises CorruptDescriptor, UnknownFormat."""
        return _FILE.decode(
            data, path, lambda one: (one["digest"], cls.named(one["mode"], one["retention_days"] or None))
        )
