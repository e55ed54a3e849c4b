"""Creates and deletes a log: topics, descriptor and mark. Never opens one.

Invariants:
- A log is made in the order topics, descriptor, mark, and the descriptor is deleted last when it goes. A create that
  died on the way can be run again: a descriptor whose ledger is empty is no log yet.
- What is deleted is the log's own: topics of other ids, or that another descriptor owns, are left alone.
"""

import os

from statelog.errors import AlreadyExists, IdentityChanged, NotFound
from statelog.schemas.descriptor import Descriptor
from statelog.schemas.names import DESCRIPTOR_PATH, data_topic, ledger_topic
from statelog.schemas.topics.policy import TopicRole, Waiver
from statelog.schemas.topics.rights import WRITING, check_rights
from statelog.storage.kafka import Kafka
from statelog.storage.log.files import descriptor_or_none, put_descriptor, put_first_schema
from statelog.storage.log.options import NewLog
from statelog.storage.log.topics import identity_of, is_begun, make_topic, mark_ledger, owner_of
from statelog.storage.log.topics_in_force import topics_in_force
from statelog.storage.store import Store

__all__ = ["delete_log", "make_log"]


def make_log(
    client: Kafka,
    store: Store,
    name: str,
    new: NewLog,
    *,
    replication_factor: int,
    waived: frozenset[Waiver],
) -> Descriptor:
    """Make a log, or finish one whose create died; returns its descriptor. Raises as `Log.create`."""
    store.check()
    begun = descriptor_or_none(store)
    if begun is not None and not is_begun(client, begun):
        raise AlreadyExists(
            f"the log {name} is there already",
            hint="Open it (Log.open; every command but init does), or delete it first",
            log=name,
            url=store.url,
        )
    data = make_topic(client, data_topic(name), TopicRole.DATA, new.partitions, replication_factor, waived)
    ledger = make_topic(client, ledger_topic(name), TopicRole.LEDGER, 1, replication_factor, waived)
    check_rights({ledger.name: WRITING.ledger}, {ledger.name: ledger.operations})  # Before anything needs them.
    descriptor = Descriptor(
        name=name,
        identity=identity_of(client, data, ledger),
        partitions=new.partitions,
        key_groups=new.key_groups,
        hash_rule=new.hash_rule,
        key_type=new.key_type,
        value_schema_id=1 if new.value_schema else 0,
        nonce=begun.nonce if begun else os.urandom(16),
        prefix_bytes=new.prefix_bytes,
    )
    if new.value_schema is not None:
        put_first_schema(store, new.value_schema.avsc)
    if begun is None:
        put_descriptor(store, descriptor)
    elif begun != descriptor:
        hint = "Create it with the same settings, or delete it first"
        raise AlreadyExists(f"a log {name} of other settings was begun here", log=name, hint=hint)
    mark_ledger(client, ledger.name, descriptor.digest)
    return descriptor


def delete_log(client: Kafka, store: Store, name: str) -> None:
    """Delete a log: topics, snapshots, descriptor. Raises as `Log.delete`."""
    descriptor = descriptor_or_none(store)
    if descriptor is None:
        raise NotFound(f"there is no log {name}", url=store.url)
    descriptor = topics_in_force(client, store, descriptor)
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
