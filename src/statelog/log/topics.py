"""A log's two topics: making, checking and identifying them, and finding their owner. Never opens a log.

Release 0.1 moved a log whose topics were lost to new ones. The descriptor names the first topics and never changes; a
manifest names the topics in force when it was put. Topic ids are never used again, so topics are the log's if the
descriptor or a manifest names them.

Invariants:
- A topic that is taken over is empty and has the requested shape.
- The first record of a ledger names the one descriptor that it belongs to.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from statelog.errors import (
    AlreadyExists,
    ConfigError,
    CorruptManifest,
    IdentityChanged,
    NotFound,
    OffsetGone,
    StatelogError,
)
from statelog.history import records_at
from statelog.kafka.port import Kafka, TopicDescription, TopicSpec
from statelog.schemas.descriptor import Descriptor, lost_topic_hint, verify
from statelog.schemas.ledger.place import LogIdentity
from statelog.schemas.ledger.records import LedgerRecord, Mark, Restart, decode
from statelog.schemas.names import data_topic, is_log_name, ledger_topic
from statelog.schemas.topic_policy import (
    LEAST_NEEDS,
    NO_TOPIC_ID,
    TopicNeeds,
    TopicRole,
    Truncation,
    Waiver,
    check_topic,
    deletions,
    topic_config,
    without_refused,
)
from statelog.store.files import ManifestChain, descriptor_or_none
from statelog.store.port import Store

_LOG = logging.getLogger("statelog.log")
UNGRANTED = "TOPIC_AUTHORIZATION_FAILED"
_REFUSED_SETTINGS = frozenset({"POLICY_VIOLATION", "INVALID_CONFIG"})
_DESCRIBES = 3
_DESCRIBE_AGAIN_S = 0.25


class IdentifiedTopics(NamedTuple):
    """A log's topics as they are. `warning`: a harmless difference from the descriptor, if any."""

    data: TopicDescription
    ledger: TopicDescription
    warning: str | None

    def check_made(
        self, descriptor: Descriptor, truncation: Truncation, waived: frozenset[Waiver], *, saves: bool = False
    ) -> str:
        """Raise UnsafeTopic unless both topics have the settings that such a log needs.

        `saves`: accept settings by which Kafka deletes records that the caller saves. Return those settings as text;
        mostly empty.
        """
        needs = TopicNeeds(descriptor.record_bytes_max, truncation.retention_ms)
        spared: list[str] = []
        for role, topic in ((TopicRole.DATA, self.data), (TopicRole.LEDGER, self.ledger)):
            found = [one for one in deletions(topic, needs) if saves and one[1] not in waived]
            check_topic(topic, role, waived, needs, found)
            spared += [f"{topic.name}: {text}" for text, _ in found]
        return "; ".join(spared)


def make_topic(
    client: Kafka,
    topic: str,
    role: TopicRole,
    partitions: int,
    replication_factor: int,
    waived: frozenset[Waiver],
    needs: TopicNeeds = LEAST_NEEDS,
) -> TopicDescription:
    """Create the topic, or take over an empty one: a died create left it, or an operator made it for a client without
    the right to create topics.
    """
    config = {**topic_config(role, replication_factor), "retention.ms": str(needs.retention_ms)}
    spec = TopicSpec(name=topic, partitions=partitions, replication_factor=replication_factor, config=config)
    check_topic(spec, role, waived, needs)
    try:
        create_topic(client, spec, waived)
    except AlreadyExists:
        _require_empty(client, topic, partitions)
    except ConfigError as refusal:
        if refusal.facts.get("kafka_error") != UNGRANTED or not _is_seen(client, topic):
            raise
        _require_empty(client, topic, partitions)
    found = look_for(client, topic)
    if found is None:
        raise NotFound("the topic was deleted while the log was made", topic=topic)
    check_topic(found, role, waived, needs)
    return found


def create_topic(client: Kafka, spec: TopicSpec, waived: frozenset[Waiver] = frozenset()) -> TopicSpec:
    """Create the topic, without dispensable settings that the service refuses. The caller checks the result as any
    topic. Return the settings that were used. Raises AlreadyExists, ConfigError, BrokerUnavailable.
    """
    while True:
        try:
            client.create_topic(spec)
        except ConfigError as refusal:
            fewer = without_refused(spec.config, refusal.message, waived)
            if refusal.facts.get("kafka_error") not in _REFUSED_SETTINGS or fewer == spec.config:
                raise
            left_out = ", ".join(key for key, value in sorted(spec.config.items()) if fewer.get(key) != value)
            _LOG.warning("%s is made without %s: %s", spec.name, left_out, refusal.message)
            spec = replace(spec, config=fewer)
        else:
            return spec


def _is_seen(client: Kafka, topic: str) -> bool:
    with suppress(ConfigError):  # Without the right to describe it, either.
        return client.describe_topic(topic) is not None
    return False


def look_for(client: Kafka, topic: str) -> TopicDescription | None:
    """Describe the topic. Return None if it is missing, after several tries: a broker that was down may not know it."""
    for _ in range(_DESCRIBES - 1):
        if found := client.describe_topic(topic):
            return found
        time.sleep(_DESCRIBE_AGAIN_S)
    return client.describe_topic(topic)


def identify(client: Kafka, store: Store, descriptor: Descriptor) -> IdentifiedTopics:
    """Describe a log's topics, and compare them with its descriptor.

    Raises NotFound if the log was deleted, IdentityChanged if a topic is missing or is not the log's, Unavailable.
    """
    name = descriptor.name
    names = (data_topic(name), ledger_topic(name))
    cluster_id, found = client.identify(names)
    data, ledger = (one or _find(client, store, name, topic) for topic, one in zip(names, found, strict=True))
    return IdentifiedTopics(data, ledger, verify(descriptor, identity_of(cluster_id, data, ledger), data.partitions))


def _find(client: Kafka, store: Store, name: str, topic: str) -> TopicDescription:
    found = look_for(client, topic)
    if found is None and descriptor_or_none(store) is None:
        raise NotFound(f"there is no log {name} any more: it was deleted", log=name, url=store.url)
    if found is None:
        raise IdentityChanged("the log's topic is gone", topic=topic, log=name, hint=lost_topic_hint(name))
    return found


def _require_empty(client: Kafka, topic: str, partitions: int) -> None:
    found = client.describe_topic(topic)
    count = found.partitions if found else 0
    used = _is_used(client, topic, count)
    if used and _is_owned(client, ledger_topic(topic) if is_log_name(topic) else topic):
        raise owned_elsewhere(topic)
    if used or count != partitions:
        raise AlreadyExists(
            "a topic of this name is there, and it is not an empty one of this shape", topic=topic, partitions=count,
            hint="Choose another name for this log, or delete the topic if nobody needs it: it may be another program's"
            " input, or belong to a log below another root",
        )  # fmt: skip


def _is_used(client: Kafka, topic: str, partitions: int) -> bool:
    return any(end > 0 for _, end in client.offsets(topic, range(partitions)).values())


def _is_owned(client: Kafka, ledger: str) -> bool:
    found = client.describe_topic(ledger)
    is_one = found is not None and found.partitions == 1 and _is_used(client, ledger, 1)
    return is_one and owner_of(client, ledger) is not None


def identity_of(cluster_id: str, data: TopicDescription, ledger: TopicDescription) -> LogIdentity:
    """Return the identity of a log with these topics on this cluster."""
    return LogIdentity(cluster_id=cluster_id, data_topic_id=data.topic_id, ledger_topic_id=ledger.topic_id)


def identity_shown(client: Kafka, name: str) -> LogIdentity | None:
    """Return the identity of this name's log by the cluster's topics now; None if one is missing.

    Raises BrokerUnavailable.
    """
    cluster_id, (data, ledger) = client.identify((data_topic(name), ledger_topic(name)))
    return None if data is None or ledger is None else identity_of(cluster_id, data, ledger)


def owner_of(client: Kafka, topic: str) -> bytes | None:
    """Return the digest of the descriptor that the ledger's first record names.

    Return None if the ledger is empty, truncated, or begins with another record. Raises BrokerUnavailable, NotFound.
    """
    start, end = client.offsets(topic, [0])[0]
    if start > 0 or end == 0:
        return None
    try:
        return digest_at(client, topic, 0)
    except OffsetGone:
        return None  # A round truncated the ledger meanwhile.


def record_at(client: Kafka, topic: str, offset: int) -> LedgerRecord | None:
    """Return the ledger's record at `offset`; None if there is none, or it is foreign.

    Raises OffsetGone, BeyondEnd, CorruptLedger, UnknownFormat, BrokerUnavailable.
    """
    found = records_at(client, topic, {0: offset}).get(0)
    return decode(found.value) if found else None


def digest_at(client: Kafka, topic: str, offset: int) -> bytes | None:
    """Return the digest of the descriptor that the record names, if it names one."""
    record = record_at(client, topic, offset)
    return record.digest if isinstance(record, Mark | Restart) else None


def check_owner(client: Kafka, descriptor: Descriptor, manifests: ManifestChain, url: str) -> None:
    """Raise IdentityChanged if the topics are another root's, NotFound if the create died before its mark.

    A snapshot of these very topics replaces the mark: its round had read that, and topic ids are never used again.
    Without topic ids the mark is the identity until it is truncated; from then on, anchors are.
    """
    if descriptor.identity.ledger_topic_id != NO_TOPIC_ID and _is_rolled_up(descriptor, manifests):
        return
    owner, name = owner_of(client, ledger_topic(descriptor.name)), descriptor.name
    if owner is not None and owner != descriptor.digest:
        what = "the topics belong to a log of this name below another root"
        hint = "Open it at its own root; what is below this one can be deleted"
        raise IdentityChanged(what, log=name, url=url, hint=hint)
    if owner is None and not manifests.numbers() and is_begun(client, descriptor):
        hint = "Create it again, with the same settings"
        raise NotFound(f"the log {name} was begun, and its create died", url=url, hint=hint)


def _is_rolled_up(descriptor: Descriptor, manifests: ManifestChain) -> bool:
    try:
        newest = manifests.newest_of_any()
    except StatelogError:
        return False  # Raised where the manifest is needed.
    return newest is not None and newest.identity == descriptor.identity and descriptor.made_with is None


def owned_elsewhere(topic: str) -> AlreadyExists:
    """Return the error for a ledger that another descriptor owns."""
    hint = "Open it at its own root, or choose another log name"
    return AlreadyExists("the topic belongs to a log of this name below another root", topic=topic, hint=hint)


def is_begun(client: Kafka, descriptor: Descriptor) -> bool:
    """Return whether a create died between descriptor and mark: both topics still exist, and are empty."""
    name = descriptor.name
    if identity_shown(client, name) != descriptor.identity:
        return False
    topics = ((data_topic(name), descriptor.partitions), (ledger_topic(name), 1))
    return not any(_is_used(client, topic, count) for topic, count in topics)


def topics_in_force(client: Kafka, store: Store, made: Descriptor) -> Descriptor:
    """Return the descriptor with the cluster's topics if a manifest names them; else `made`.

    Raises StoreUnavailable, UnknownFormat, BrokerUnavailable.
    """
    found = identity_shown(client, made.name)
    if found is None or found == made.identity or found.cluster_id != made.identity.cluster_id:
        return made
    return made.at(found) if found in identities_of(store, made) else made


def identities_of(store: Store, made: Descriptor) -> Iterator[LogIdentity]:
    """Yield the log's present and former identities: the descriptor's, and the manifests', the newest first.

    Raises StoreUnavailable, UnknownFormat.
    """
    yield made.identity
    chain = ManifestChain(store, made)
    for number in reversed(chain.numbers()):
        with suppress(NotFound, CorruptManifest):  # Deleted meanwhile, or damaged: all newer ones name them, too.
            yield chain.read(number).identity
