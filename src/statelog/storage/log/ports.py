"""The two ports of a log: given by the caller, or made from settings, which must not give away a secret.

Who made a port closes it: what a caller brought is left alone.
"""

from collections.abc import Generator, Mapping
from contextlib import contextmanager

from statelog.schemas.topics.policy import Waiver
from statelog.storage.kafka import Kafka
from statelog.storage.kafka.client import ConfluentKafka
from statelog.storage.kafka.config import check_password_in_clear, client_config
from statelog.storage.store import Store
from statelog.storage.store.fsspec import open_store

__all__ = ["KafkaSource", "StoreSource", "closing_port", "open_ports"]

KafkaSource = Kafka | Mapping[str, str]
"""A port, or librdkafka's settings for one."""
StoreSource = Store | str
"""A port, or the root URL of one."""


def open_ports(
    name: str,
    kafka: KafkaSource,
    root: StoreSource,
    storage_options: Mapping[str, object] | None,
    waived: frozenset[Waiver],
) -> tuple[Kafka, Store]:
    """The ports of a log, made of settings where the caller brings none. Raises ConfigError."""
    client = kafka if not isinstance(kafka, Mapping) else _client(kafka, waived)
    store = open_store(root, name, storage_options or {}) if isinstance(root, str) else root
    return client, store


@contextmanager
def closing_port(client: Kafka, kafka: KafkaSource, *, on_success: bool) -> Generator[None]:
    """Close a client that was made here from settings, if no log will hold it. The caller's own is left alone."""
    made_here = isinstance(kafka, Mapping)
    try:
        yield
    except BaseException:
        if made_here:
            client.close()
        raise
    if made_here and on_success:
        client.close()


def _client(settings: Mapping[str, str], waived: frozenset[Waiver]) -> ConfluentKafka:
    config = client_config(settings)
    if Waiver.CLEARTEXT not in waived:
        check_password_in_clear(config)
    return ConfluentKafka(config)
