"""A log's two topics: made, checked against the policy, identified, and marked as the log's own.

Never opens a log.

Invariants:
- A topic that is taken over is empty and has the shape that was asked for.
- The first record of a ledger names the one descriptor that it belongs to. Of two creates the first mark wins.
"""

import time
from typing import NamedTuple

from statelog.errors import AlreadyExists, IdentityChanged, NotFound, OffsetGone
from statelog.schemas.descriptor import Descriptor, verify
from statelog.schemas.ledger.identity import LogIdentity
from statelog.schemas.ledger.records import Mark, Restart, decode
from statelog.schemas.names import data_topic, ledger_topic
from statelog.schemas.topics.policy import TopicRole, Waiver, check_topic, topic_config
from statelog.storage.kafka import Kafka, OffsetRange, TopicDescription, TopicSpec
from statelog.storage.ledger_client import STALL_TIMEOUT_S, append_record
from statelog.storage.log.files import descriptor_or_none
from statelog.storage.manifest_chain import ManifestChain
from statelog.storage.store import Store

__all__ = [
    "IdentifiedTopics",
    "check_made",
    "check_owner",
    "identify",
    "identity_of",
    "is_begun",
    "look_for",
    "make_topic",
    "mark_ledger",
    "owned_elsewhere",
    "owner_of",
]

_LOOKS = 3
_LOOK_AGAIN_S = 0.25


class IdentifiedTopics(NamedTuple):
    """A log's topics as they are; `warning` says what differs from the descriptor and does no harm."""

    data: TopicDescription
    ledger: TopicDescription
    warning: str | None


def make_topic(
    client: Kafka, topic: str, role: TopicRole, partitions: int, replication_factor: int, waived: frozenset[Waiver]
) -> TopicDescription:
    """Create the topic, or take over an empty one of a create that died before its descriptor."""
    config = topic_config(role, replication_factor)
    check_topic(topic, role, partitions=partitions, replication_factor=replication_factor, config=config, waived=waived)
    try:
        client.create_topic(
            TopicSpec(name=topic, partitions=partitions, replication_factor=replication_factor, config=config)
        )
    except AlreadyExists:
        _require_empty(client, topic, partitions)
    found = look_for(client, topic)
    if found is None:
        raise NotFound("the topic went away while the log was made", topic=topic)
    check_made(found, role, waived)
    return found


def look_for(client: Kafka, topic: str) -> TopicDescription | None:
    """The topic, or None if it is not there. A broker that was away may not know it yet, so that is asked again."""
    for _ in range(_LOOKS - 1):
        found = client.describe_topic(topic)
        if found is not None:
            return found
        time.sleep(_LOOK_AGAIN_S)
    return client.describe_topic(topic)


def identify(client: Kafka, store: Store, descriptor: Descriptor) -> IdentifiedTopics:
    """A log's topics, compared with its descriptor.

    Raises NotFound if the log was deleted, IdentityChanged if a topic is gone or is not the log's, Unavailable.
    """
    name = descriptor.name
    data, ledger = (_find(client, store, name, topic) for topic in (data_topic(name), ledger_topic(name)))
    warning = verify(descriptor, identity_of(client, data, ledger), data.partitions)
    return IdentifiedTopics(data, ledger, warning)


def _find(client: Kafka, store: Store, name: str, topic: str) -> TopicDescription:
    found = look_for(client, topic)
    if found is None and descriptor_or_none(store) is None:
        raise NotFound(f"there is no log {name} any more: it was deleted", log=name, url=store.url)
    if found is None:
        hint = "Check bootstrap.servers; else go on without it (statelog accept-loss --ledger), or delete the log"
        raise IdentityChanged("the log's topic is gone", topic=topic, log=name, hint=hint)
    return found


def _require_empty(client: Kafka, topic: str, partitions: int) -> None:
    found = client.describe_topic(topic)
    count = found.partitions if found else 0
    used = any(end > 0 for _, end in client.offsets(topic, range(count)).values())
    if used and count == partitions == 1 and owner_of(client, topic) is not None:
        raise owned_elsewhere(topic)
    if used or count != partitions:
        raise AlreadyExists(
            "a topic of this name is there, and it is not an empty one of this shape",
            topic=topic,
            partitions=count,
            hint="Perhaps a log below another root owns it. Choose another name, or delete it if it is not needed",
        )


def check_made(topic: TopicDescription, role: TopicRole, waived: frozenset[Waiver]) -> None:
    """Raise UnsafeTopic if the topic, as it is now, must not be used."""
    check_topic(
        topic.name,
        role,
        partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        config=topic.config,
        waived=waived,
    )


def identity_of(client: Kafka, data: TopicDescription, ledger: TopicDescription) -> LogIdentity:
    """The ids that the cluster shows now. Raises BrokerUnavailable."""
    return LogIdentity(cluster_id=client.cluster_id(), data_topic_id=data.topic_id, ledger_topic_id=ledger.topic_id)


def owner_of(client: Kafka, topic: str) -> bytes | None:
    """The digest of the descriptor that the ledger's first record names.

    None if the ledger is empty, was truncated, or begins with something else. Raises BrokerUnavailable, NotFound.
    """
    start, end = client.offsets(topic, [0])[0]
    if start > 0 or end == 0:
        return None
    reader = client.reader(topic)
    try:
        first = next(reader.read({0: OffsetRange(0, 1)}, stall_timeout_s=STALL_TIMEOUT_S), None)
    except OffsetGone:
        return None  # A round truncated the ledger since the question above.
    finally:
        reader.close()
    record = decode(first.value) if first else None
    return record.digest if isinstance(record, Mark | Restart) else None


def check_owner(client: Kafka, descriptor: Descriptor, manifests: ManifestChain, url: str) -> None:
    """Raise IdentityChanged if the topics are another root's, NotFound if the create died before its mark."""
    owner, name = owner_of(client, ledger_topic(descriptor.name)), descriptor.name
    if owner is not None and owner != descriptor.digest:
        raise IdentityChanged(
            "the topics belong to a log of this name below another root",
            log=name,
            url=url,
            hint="Open it at its own root; what is below this one can be deleted",
        )
    if owner is None and not manifests.numbers() and is_begun(client, descriptor):
        hint = "Create it again, with the same settings"
        raise NotFound(f"the log {name} was begun, and its create died", url=url, hint=hint)


def mark_ledger(client: Kafka, topic: str, digest: bytes) -> None:
    """Append the mark. Raises AlreadyExists if another log's came first; OutcomeUnknown, Unavailable: create again."""
    producer = client.producer()
    try:
        append_record(producer, topic, Mark(digest))
    finally:
        producer.close()
    if owner_of(client, topic) != digest:
        raise owned_elsewhere(topic)


def owned_elsewhere(topic: str) -> AlreadyExists:
    """The error for a ledger that another descriptor owns."""
    return AlreadyExists(
        "the topic belongs to a log of this name below another root",
        topic=topic,
        hint="Open it at its own root, or choose another log name",
    )


def is_begun(client: Kafka, descriptor: Descriptor) -> bool:
    """Whether a create died between the descriptor and the mark: both topics are still there, and empty."""
    name = descriptor.name
    data, ledger = client.describe_topic(data_topic(name)), client.describe_topic(ledger_topic(name))
    if data is None or ledger is None or identity_of(client, data, ledger) != descriptor.identity:
        return False
    return not any(
        end for topic in (data, ledger) for _, end in client.offsets(topic.name, range(topic.partitions)).values()
    )
