"""Which topics are a log's now: those it was made with, or others that a person accepted instead.

The descriptor names the first ones and never changes. A manifest of the chain names those in force when it was put, and
ids never come back: so whatever the cluster shows is the log's if it is the descriptor's, or a manifest's.
"""

from statelog.errors import CorruptManifest, NotFound
from statelog.schemas.descriptor import Descriptor
from statelog.schemas.names import data_topic, ledger_topic
from statelog.storage.kafka import Kafka
from statelog.storage.log.topics import identity_of
from statelog.storage.manifest_chain import ManifestChain
from statelog.storage.store import Store

__all__ = ["topics_in_force"]


def topics_in_force(client: Kafka, store: Store, made: Descriptor) -> Descriptor:
    """The descriptor with the topics that the cluster shows, if a manifest names them; else `made` as it is.

    Raises StoreUnavailable, UnknownFormat, BrokerUnavailable.
    """
    data, ledger = client.describe_topic(data_topic(made.name)), client.describe_topic(ledger_topic(made.name))
    if data is None or ledger is None:
        return made
    found = identity_of(client, data, ledger)
    if found == made.identity or found.cluster_id != made.identity.cluster_id:
        return made
    chain = ManifestChain(store, made)
    for number in reversed(chain.numbers()):
        try:
            if chain.read(number).manifest.identity == found:
                return made.at(found)
        except (NotFound, CorruptManifest):
            continue  # Cleaned up since, or damaged: every manifest since then names them, too.
    return made
