"""Making a log, marking it as its ledger's owner, and deleting it.

Invariants:
- A log is made in the order topics, descriptor, mark; its descriptor is deleted last. A create that died can be run
  again: a descriptor whose ledger is empty is no log yet.
- The first record of a ledger names the one descriptor that it belongs to. Of two creates the first mark wins.
- Only the log's own topics are deleted, not those with other ids, or that another descriptor owns.
"""

import json
import os
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace

from statelog.errors import AlreadyExists, BeyondEnd, ConfigError, IdentityChanged, StoreUnavailable, UnsafeTopic
from statelog.history import append_record
from statelog.kafka.errors import MISSING_REQUEST
from statelog.kafka.port import Kafka
from statelog.log.options import LogOptions
from statelog.log.topics import (
    UNGRANTED,
    digest_at,
    identities_of,
    identity_of,
    is_begun,
    make_topic,
    owned_elsewhere,
    owner_of,
)
from statelog.log.where import Ports
from statelog.schemas.descriptor import Descriptor, HashRule, ValueFormat, check_ttl
from statelog.schemas.key_groups import KeyType
from statelog.schemas.ledger.place import LogIdentity
from statelog.schemas.ledger.records import Mark, Restart
from statelog.schemas.names import DESCRIPTOR_PATH, SCHEMAS, data_topic, ledger_topic, parse_enum
from statelog.schemas.topic_policy import (
    MIN_RECORD_BYTES,
    WRITING,
    TopicNeeds,
    TopicRole,
    Truncation,
    check_rights,
    largest_record_bytes,
)
from statelog.schemas.values.schema import check_compatible, parse_value_schema
from statelog.store.files import descriptor_of, descriptor_or_none, put_same, put_truncation, truncation_of
from statelog.store.port import Store

_BY_AGE = (
    'Pass truncation="retention" when you make it (an existing log: `statelog truncate`), so that Kafka deletes records'
    " by their age; docs/kafka.md says what rounds then need"
)
_SWEEPS = 10
"""The most listings while deleting a log. The second one is empty, unless another process writes."""
_MOST_REPLICAS = 10_000  # The client's own limit.


def _described(name: str, said: LogOptions) -> Descriptor:
    """Describe the log that these options make, without identity, nonce and largest record. Raises ConfigError."""
    groups = _whole("key_groups", 128 if said.key_groups is None else said.key_groups, 65536, "65536")
    partitions = 8 if said.partitions is None else said.partitions
    return Descriptor(
        name=name,
        identity=LogIdentity(cluster_id="", data_topic_id="", ledger_topic_id=""),
        partitions=_whole("partitions", partitions, groups, f"key_groups, which is {groups}"),
        key_groups=groups,
        key_type=parse_enum(KeyType, "key_type", said.key_type or KeyType.BYTES),
        hash_rule=parse_enum(HashRule, "hash_rule", said.hash_rule or HashRule.CRC32),
        value_schema_id=0 if said.value_schema is None else 1,
        nonce=b"",
        prefix_bytes=said.prefix_bytes,
        value_type=parse_enum(ValueFormat, "value_type", said.value_type or ValueFormat.BYTES),
        ttl_s=None if said.ttl_s is None else check_ttl(said.ttl_s),
    )


def _whole(name: str, value: object, most: int, most_text: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ConfigError(f"{name} is {value!r} and must be a whole number from 1 to {most_text}")
    return value


def mark_ledger(client: Kafka, topic: str, mark: Mark | Restart) -> None:
    """Append the mark, and check that it lies at its acknowledged offset: every commit relies on that.

    Raises AlreadyExists if another log's came first, UnsafeTopic; OutcomeUnknown, Unavailable: create again.
    """
    with closing(client.producer()) as producer:
        offset = append_record(producer, topic, mark)
    try:
        found = digest_at(client, topic, offset)
    except BeyondEnd:
        found = None
    if found != mark.digest:
        what = (
            "the first record of the ledger is not at its acknowledged offset: the topic acknowledges records before"
            " their offsets are known, or lost this one"
        )
        hint = "Delete both topics, and create the log on a Kafka that acknowledges final offsets (docs/kafka.md)"
        raise UnsafeTopic(what, topic=topic, offset=offset, hint=hint)
    if offset > 0 and owner_of(client, topic) != mark.digest:
        raise owned_elsewhere(topic)


def make_log(
    ports: Ports, name: str, options: LogOptions, replication_factor: int, mark: Callable[..., Mark | Restart] = Mark
) -> Descriptor:
    """Make a log, or finish one whose create died. Return its descriptor. `mark` makes the ledger's first record.

    Raises AlreadyExists, ConfigError, Unsafe, Unavailable.
    """
    client, store, waived = ports
    new, truncation = _described(name, options), Truncation.named(options.truncation, options.retention_days)
    schema = None if options.value_schema is None else parse_value_schema(options.value_schema, 1)
    if schema is not None:
        check_compatible(schema, ())
    _whole("replication_factor", replication_factor, _MOST_REPLICAS, str(_MOST_REPLICAS))
    store.check()
    begun = descriptor_or_none(store)
    if begun is not None and not is_begun(client, begun):
        hint = "Open it (Log.open; every command but init does), or delete it first"
        raise AlreadyExists(f"the log {name} is there already", hint=hint, log=name, url=store.url)
    needs = TopicNeeds(begun.record_bytes_max if begun else MIN_RECORD_BYTES, truncation.retention_ms)
    data = make_topic(client, data_topic(name), TopicRole.DATA, new.partitions, replication_factor, waived, needs)
    ledger = make_topic(client, ledger_topic(name), TopicRole.LEDGER, 1, replication_factor, waived, needs)
    check_rights(ledger, WRITING.ledger)  # Before they are needed.
    if not truncation.is_by_kafka:
        prove_truncation(client, (data.name, ledger.name), needs_right=False)
    descriptor = replace(
        new,
        identity=identity_of(client.cluster_id(), data, ledger),
        nonce=begun.nonce if begun else os.urandom(16),
        record_bytes_max=begun.record_bytes_max if begun else largest_record_bytes(data.config, ledger.config),
    )
    if schema is not None:
        put_same(store, SCHEMAS.path(1), schema.avsc.encode(), json.loads)
    if begun is None:
        if truncation.is_by_kafka:
            put_truncation(store, descriptor, truncation)  # First, so that every log has one.
        put_same(store, DESCRIPTOR_PATH, descriptor.to_bytes())
    elif begun != descriptor or truncation_of(store, descriptor) != truncation:
        hint = "Create it with the same settings, or delete it first"
        raise AlreadyExists(f"a log {name} of other settings was begun here", log=name, hint=hint)
    try:
        mark_ledger(client, ledger.name, mark(digest=descriptor.digest))
    except UnsafeTopic:
        store.delete(DESCRIPTOR_PATH)  # So that no open finds a log, and relies on acknowledgements.
        raise
    return descriptor


def prove_truncation(client: Kafka, topics: Iterable[str], *, needs_right: bool = True) -> None:
    """Check that records of these topics can be deleted, by deleting those below offset 0, of which there are none.

    `check_rights` cannot show it where brokers report no rights, nor whether a Kafka has the request; without it the
    topics would grow. `needs_right`: also raise if only the right is missing. Raises ConfigError, Unavailable.
    """
    for topic in topics:
        try:
            client.delete_records(topic, {0: 0})
        except ConfigError as error:
            if error.facts.get("kafka_error") in MISSING_REQUEST:
                raise error.restated(hint=_BY_AGE) from error
            if needs_right or error.facts.get("kafka_error") != UNGRANTED:
                raise


def delete_log(client: Kafka, store: Store, name: str) -> None:
    """Delete a log: topics, snapshots, descriptor. Raises NotFound, ConfigError, Unavailable."""
    descriptor = descriptor_of(store, name)
    if client.cluster_id() != descriptor.identity.cluster_id:
        raise IdentityChanged("the log lives on another cluster", log=name, found=client.cluster_id())
    data, ledger = data_topic(name), ledger_topic(name)
    there = {topic: found.topic_id for topic in (data, ledger) if (found := client.describe_topic(topic)) is not None}
    own = set[str]()
    for was in identities_of(store, descriptor):
        ids = {data: was.data_topic_id, ledger: was.ledger_topic_id}
        own |= {topic for topic, topic_id in there.items() if topic_id == ids[topic]}
        if len(own) == len(there):
            break
    owner = owner_of(client, ledger) if ledger in own else None
    for topic in there:
        if topic in own and owner in (None, descriptor.digest):
            client.delete_topic(topic)
    _delete_files(store)
    store.delete(DESCRIPTOR_PATH)
    store.tidy()


def _delete_files(store: Store) -> None:
    """Delete all files but the descriptor, also those that a running round adds. Raises StoreUnavailable."""
    found = list[str]()
    for _ in range(_SWEEPS):
        found = [info.path for info in store.list() if info.path != DESCRIPTOR_PATH]
        if not found:
            return
        for path in found:
            store.delete(path)
    raise StoreUnavailable(
        "files of the log are listed again each time that they were deleted",
        store=store.url,
        path=found[0],
        hint="Stop the processes that write there or hold them open, such as a materializer; then delete it again",
    )
