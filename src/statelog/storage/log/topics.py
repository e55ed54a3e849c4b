"""A log's two topics and its descriptor: made, checked against the policy, identified, marked as its own, deleted.

Never opens a log.

Which topics are a log's may change: the descriptor names the first ones and never changes, and a manifest of the chain
names those in force when it was put. Ids never come back: so whatever the cluster shows is the log's if it is the
descriptor's, or a manifest's.

Invariants:
- A log is made in the order topics, descriptor, mark, and the descriptor is deleted last when it goes. A create that
  died on the way can be run again: a descriptor whose ledger is empty is no log yet.
- A topic that is taken over is empty and has the shape that was asked for.
- The first record of a ledger names the one descriptor that it belongs to. Of two creates the first mark wins.
- What is deleted is the log's own: topics of other ids, or that another descriptor owns, are left alone.
"""

import logging
import os
import time
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import replace
from typing import NamedTuple

from statelog.errors import (
    AlreadyExists,
    BeyondEnd,
    ConfigError,
    CorruptManifest,
    IdentityChanged,
    NotFound,
    OffsetGone,
    StatelogError,
    UnsafeTopic,
)
from statelog.schemas.descriptor import Descriptor, verify
from statelog.schemas.ledger.place import LogIdentity
from statelog.schemas.ledger.records import LedgerRecord, Mark, Restart, decode
from statelog.schemas.names import DESCRIPTOR_PATH, data_topic, ledger_topic
from statelog.schemas.topic_policy import (
    LEAST_NEEDS,
    MIN_RECORD_BYTES,
    NO_TOPIC_ID,
    WRITING,
    TopicNeeds,
    TopicRole,
    Waiver,
    check_rights,
    check_topic,
    largest_record_bytes,
    topic_config,
    without_refused,
)
from statelog.storage.kafka import Kafka, TopicDescription, TopicSpec
from statelog.storage.kafka.errors import MISSING_REQUEST
from statelog.storage.ledger_tape import append_record
from statelog.storage.log.files import (
    ManifestChain,
    descriptor_of,
    descriptor_or_none,
    put_descriptor,
    put_first_schema,
    put_truncation,
    truncation_of,
)
from statelog.storage.log.ledger import records_at
from statelog.storage.log.where import NewLog
from statelog.storage.store import Store

_LOG = logging.getLogger("statelog.storage")
_UNGRANTED = "TOPIC_AUTHORIZATION_FAILED"
_REFUSED_SETTINGS = frozenset({"POLICY_VIOLATION", "INVALID_CONFIG"})
_BY_AGE = (
    'Pass truncation="retention" when it is made (an existing log: `statelog truncate`), and Kafka deletes records by'
    " their age; docs/kafka.md says what that asks of rounds"
)
_LOOKS = 3
_LOOK_AGAIN_S = 0.25


class IdentifiedTopics(NamedTuple):
    """A log's topics as they are; `warning` says what differs from the descriptor and does no harm."""

    data: TopicDescription
    ledger: TopicDescription
    warning: str | None


def make_topic(
    client: Kafka,
    topic: str,
    role: TopicRole,
    partitions: int,
    replication_factor: int,
    waived: frozenset[Waiver],
    needs: TopicNeeds = LEAST_NEEDS,
) -> TopicDescription:
    """Create the topic, or take over an empty one: of a create that died before its descriptor, or made by somebody
    else for a client that may not create any.
    """
    config = {**topic_config(role, replication_factor), "retention.ms": str(needs.retention_ms)}
    spec = TopicSpec(name=topic, partitions=partitions, replication_factor=replication_factor, config=config)
    check_topic(spec, role, waived, needs)
    try:
        create_topic(client, spec, waived)
    except AlreadyExists:
        _require_empty(client, topic, partitions)
    except ConfigError as refusal:
        if refusal.facts.get("kafka_error") != _UNGRANTED or not _is_seen(client, topic):
            raise
        _require_empty(client, topic, partitions)
    found = look_for(client, topic)
    if found is None:
        raise NotFound("the topic went away while the log was made", topic=topic)
    check_topic(found, role, waived, needs)
    return found


def create_topic(client: Kafka, spec: TopicSpec, waived: frozenset[Waiver] = frozenset()) -> TopicSpec:
    """Create the topic, with fewer settings where the service refuses some that it can do without: what it then has is
    judged as any topic's is. Returns what it was made by. Raises AlreadyExists, ConfigError, BrokerUnavailable.
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
    with suppress(ConfigError):  # Without the right to look, either.
        return client.describe_topic(topic) is not None
    return False


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
    names = (data_topic(name), ledger_topic(name))
    cluster_id, found = client.identify(names)
    data, ledger = (one or _find(client, store, name, topic) for topic, one in zip(names, found, strict=True))
    return IdentifiedTopics(data, ledger, verify(descriptor, identity_of(cluster_id, data, ledger), data.partitions))


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


def identity_of(cluster_id: str, data: TopicDescription, ledger: TopicDescription) -> LogIdentity:
    """The identity of a log with these topics on this cluster."""
    return LogIdentity(cluster_id=cluster_id, data_topic_id=data.topic_id, ledger_topic_id=ledger.topic_id)


def identity_shown(client: Kafka, name: str) -> LogIdentity | None:
    """The identity of the log of this name, as the cluster shows it now; None if a topic is not there.

    Raises BrokerUnavailable.
    """
    cluster_id, (data, ledger) = client.identify((data_topic(name), ledger_topic(name)))
    return None if data is None or ledger is None else identity_of(cluster_id, data, ledger)


def owner_of(client: Kafka, topic: str) -> bytes | None:
    """The digest of the descriptor that the ledger's first record names.

    None if the ledger is empty, was truncated, or begins with something else. Raises BrokerUnavailable, NotFound.
    """
    start, end = client.offsets(topic, [0])[0]
    if start > 0 or end == 0:
        return None
    try:
        return _digest_at(client, topic, 0)
    except OffsetGone:
        return None  # A round truncated the ledger since the question above.


def record_at(client: Kafka, topic: str, offset: int) -> LedgerRecord | None:
    """The ledger's record at `offset`; None if there is none, or it is not ours.

    Raises OffsetGone, BeyondEnd, CorruptLedger, UnknownFormat, BrokerUnavailable.
    """
    found = records_at(client, topic, {0: offset}).get(0)
    return decode(found.value) if found else None


def _digest_at(client: Kafka, topic: str, offset: int) -> bytes | None:
    """The digest of the descriptor that the record names, if it names one."""
    record = record_at(client, topic, offset)
    return record.digest if isinstance(record, Mark | Restart) else None


def check_owner(client: Kafka, descriptor: Descriptor, manifests: ManifestChain, url: str) -> None:
    """Raise IdentityChanged if the topics are another root's, NotFound if the create died before its mark.

    The mark need not be read where a snapshot of these very topics stands: whoever put that had found it, and topic ids
    never come back. Where there are none, the mark is the identity as long as it is there, and anchors are afterwards.
    """
    if descriptor.identity.ledger_topic_id != NO_TOPIC_ID and _is_rolled_up(descriptor, manifests):
        return
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


def _is_rolled_up(descriptor: Descriptor, manifests: ManifestChain) -> bool:
    try:
        newest = manifests.newest_of_any()
    except StatelogError:
        return False  # What is wrong with it is told where it is needed.
    return newest is not None and newest.manifest.identity == descriptor.identity and descriptor.made_with is None


def mark_ledger(client: Kafka, topic: str, mark: Mark | Restart) -> None:
    """Append the mark, and see that it lies where its acknowledgement says: every commit rests on that.

    Raises AlreadyExists if another log's came first, UnsafeTopic; OutcomeUnknown, Unavailable: create again.
    """
    with closing(client.producer()) as producer:
        offset = append_record(producer, topic, mark)
    try:
        found = _digest_at(client, topic, offset)
    except BeyondEnd:
        found = None
    if found != mark.digest:
        raise UnsafeTopic(
            "the first record of the ledger is not where its acknowledgement says: the topic acknowledges records"
            " before their place in the log is known, or lost it",
            topic=topic,
            offset=offset,
            hint="Delete both topics, and create the log where what is acknowledged has its place (docs/kafka.md)",
        )
    if offset > 0 and owner_of(client, topic) != mark.digest:
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
    if identity_shown(client, name) != descriptor.identity:
        return False
    topics = ((data_topic(name), descriptor.partitions), (ledger_topic(name), 1))
    return not any(end for topic, count in topics for _, end in client.offsets(topic, range(count)).values())


def topics_in_force(client: Kafka, store: Store, made: Descriptor) -> Descriptor:
    """The descriptor with the topics that the cluster shows, if a manifest names them; else `made` as it is.

    Raises StoreUnavailable, UnknownFormat, BrokerUnavailable.
    """
    found = identity_shown(client, made.name)
    if found is None or found == made.identity or found.cluster_id != made.identity.cluster_id:
        return made
    chain = ManifestChain(store, made)
    for number in reversed(chain.numbers()):
        try:
            if chain.read(number).manifest.identity == found:
                return made.at(found)
        except (NotFound, CorruptManifest):
            continue  # Cleaned up since, or damaged: every manifest since then names them, too.
    return made


# ---- the life of a log


def make_log(
    client: Kafka,
    store: Store,
    name: str,
    new: NewLog,
    *,
    replication_factor: int,
    waived: frozenset[Waiver],
    mark: Callable[..., Mark | Restart] = Mark,
) -> Descriptor:
    """Make a log, or finish one whose create died; returns its descriptor. `mark` makes the ledger's first record of
    the descriptor's digest.

    Raises AlreadyExists, ConfigError, Unsafe, Unavailable.
    """
    store.check()
    begun = descriptor_or_none(store)
    if begun is not None and not is_begun(client, begun):
        raise AlreadyExists(
            f"the log {name} is there already",
            hint="Open it (Log.open; every command but init does), or delete it first",
            log=name,
            url=store.url,
        )
    needs = TopicNeeds(begun.record_bytes_max if begun else MIN_RECORD_BYTES, new.truncation.retention_ms)
    data = make_topic(client, data_topic(name), TopicRole.DATA, new.partitions, replication_factor, waived, needs)
    ledger = make_topic(client, ledger_topic(name), TopicRole.LEDGER, 1, replication_factor, waived, needs)
    check_rights({ledger.name: WRITING.ledger}, {ledger.name: ledger.operations})  # Before anything needs them.
    if not new.truncation.is_by_kafka:
        prove_truncation(client, (data.name, ledger.name), needs_right=False)
    descriptor = Descriptor(
        name=name,
        identity=identity_of(client.cluster_id(), data, ledger),
        partitions=new.partitions,
        key_groups=new.key_groups,
        hash_rule=new.hash_rule,
        key_type=new.key_type,
        value_schema_id=1 if new.value_schema else 0,
        nonce=begun.nonce if begun else os.urandom(16),
        prefix_bytes=new.prefix_bytes,
        record_bytes_max=begun.record_bytes_max if begun else largest_record_bytes(data.config, ledger.config),
    )
    if new.value_schema is not None:
        put_first_schema(store, new.value_schema.avsc)
    if begun is None:
        if new.truncation.is_by_kafka:
            put_truncation(store, descriptor, new.truncation)  # First: a log that is there has it.
        put_descriptor(store, descriptor)
    elif begun != descriptor or truncation_of(store, descriptor) != new.truncation:
        hint = "Create it with the same settings, or delete it first"
        raise AlreadyExists(f"a log {name} of other settings was begun here", log=name, hint=hint)
    try:
        mark_ledger(client, ledger.name, mark(digest=descriptor.digest))
    except UnsafeTopic:
        store.delete(DESCRIPTOR_PATH)  # Else the next open would find a log, and believe what is acknowledged.
        raise
    return descriptor


def prove_truncation(client: Kafka, topics: Iterable[str], *, needs_right: bool = True) -> None:
    """See that records of these topics can be deleted, by deleting those below offset 0, of which there are none.

    `check_rights` finds nothing where brokers do not say, and nothing else shows that a Kafka lacks the request: rounds
    would put manifests, and Kafka would grow. Who only makes a log need not have the right. Raises ConfigError,
    Unavailable.
    """
    for topic in topics:
        try:
            client.delete_records(topic, {0: 0})
        except ConfigError as error:
            if error.facts.get("kafka_error") in MISSING_REQUEST:
                raise error.restated(hint=_BY_AGE) from error
            if needs_right or error.facts.get("kafka_error") != _UNGRANTED:
                raise


def delete_log(client: Kafka, store: Store, name: str) -> None:
    """Delete a log: topics, snapshots, descriptor. Raises NotFound, ConfigError, Unavailable."""
    descriptor = topics_in_force(client, store, descriptor_of(store, name))
    ids = {
        data_topic(name): descriptor.identity.data_topic_id,
        ledger_topic(name): descriptor.identity.ledger_topic_id,
    }
    if client.cluster_id() != descriptor.identity.cluster_id:
        raise IdentityChanged("the log lives on another cluster", log=name, found=client.cluster_id())
    found = {topic: client.describe_topic(topic) for topic in ids}
    own = {topic: one for topic, one in found.items() if one is not None and one.topic_id == ids[topic]}
    owner = owner_of(client, ledger_topic(name)) if ledger_topic(name) in own else None
    for topic in own if owner in (None, descriptor.digest) else ():
        client.delete_topic(topic)
    for info in list(store.list()):
        if info.path != DESCRIPTOR_PATH:
            store.delete(info.path)
    store.delete(DESCRIPTOR_PATH)
    store.tidy()
