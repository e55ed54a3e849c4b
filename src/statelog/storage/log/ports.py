"""The two ports of a log: given by the caller, or made from settings, which must not give away a secret.

Who made a port closes it: what a caller brought is left alone.
"""

from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from statelog.schemas.names import check_log_name
from statelog.schemas.topics.policy import Waiver, parse_waivers
from statelog.storage.kafka import Kafka
from statelog.storage.kafka.client import ConfluentKafka
from statelog.storage.kafka.config import check_kafka, check_password_in_clear, client_config
from statelog.storage.store import Store
from statelog.storage.store.fsspec import open_store

__all__ = ["KafkaSource", "Ports", "StoreSource", "opened_ports"]

KafkaSource = Kafka | Mapping[str, str]
"""A port, or librdkafka's settings for one."""
StoreSource = Store | str
"""A port, or the root URL of one."""


class Ports(NamedTuple):
    """A log's two ports, and the checks that its caller waives."""

    kafka: Kafka
    store: Store
    waived: frozenset[Waiver]


@contextmanager
def opened_ports(
    name: str,
    kafka: KafkaSource,
    root: StoreSource,
    storage_options: Mapping[str, object] | None,
    allow_unsafe: Collection[str],
    *,
    keeps: bool = True,
) -> Generator[Ports]:
    """The ports of a log, made of settings where the caller brings none.

    A client that was made here is closed if the block raises, or if no log `keeps` it. Raises ConfigError, InvalidName.
    """
    waived = parse_waivers(allow_unsafe)
    check_log_name(name)
    check_kafka(kafka)
    client = _client(kafka, waived) if isinstance(kafka, Mapping) else kafka
    is_kept = client is kafka
    try:
        store = open_store(root, name, storage_options or {}) if isinstance(root, str) else root
        yield Ports(client, store, waived)
        is_kept = is_kept or keeps
    finally:
        if not is_kept:
            client.close()


def _client(settings: Mapping[str, str], waived: frozenset[Waiver]) -> ConfluentKafka:
    config = client_config(settings)
    if Waiver.CLEARTEXT not in waived:
        check_password_in_clear(config)
    return ConfluentKafka(config)
