"""The twin of a service and the same service played before a real broker: a program observes the same on both.

The tests compare its state, or the error's class, words and hint; the settings left out of the topics; and their
reports.
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from statelog.errors import StatelogError
from statelog.kafka.port import Kafka, TopicSpec
from statelog.log import Where
from statelog.schemas.topic_policy import NO_TOPIC_ID, TopicRole, topic_config
from statelog.testing.kafka import MemoryKafka
from statelog.testing.store import MemoryDisk, MemoryStore
from tests.support.providers.cluster import ProviderCluster
from tests.support.providers.provider import SERVICES, Provider
from tests.support.providers.proxy import ProviderProxy
from tests.support.rigs.kafka import broker_world
from tests.support.rigs.log import UNSAFE, live
from tests.support.services.broker import Broker
from tests.support.told import lines

pytestmark = pytest.mark.broker
_MADE = (
    Provider(name="terse", refuses=frozenset({"message.timestamp.type"}), is_terse=True),
    Provider(name="retention of its own", refuses=frozenset({"retention.ms"})),
    Provider(name="without ids", has_topic_ids=False),
    Provider(name="early", places_late=True),
)
_OF_SERVICES = ("topic-ids", "unknown-settings")


class _Met(NamedTuple):
    """A program's observations, without all that names the program or the cluster."""

    error: str
    words: str
    hint: str
    state: dict[object, object]
    left_out: Sequence[str]


def _meet(name: str, where: Callable[[], Where], tmp_path: Path, heard: Sequence[str]) -> _Met:
    """Make a log, write, roll it up, write again, and read it in another process; each process has its own place."""
    error: StatelogError | None = None
    state: dict[object, object] = {}
    try:
        state = live(name, where, tmp_path, writes=2)
    except StatelogError as met:
        error = met
    by_client = str(error.facts.get("kafka_error", "")) if error else ""
    return _Met(
        error=type(error).__name__ if error else "",
        words=(by_client or error.message) if error else "",  # The client has its own words, and a twin has none.
        hint=error.hint if error else "",
        state=state,
        left_out=sorted(line.partition(":")[0].replace(name, "x") for line in heard if "is made without" in line),
    )


def _cases() -> list[tuple[Provider, tuple[str, ...]]]:
    """Return each service with nothing waived, and with its waivable checks, if any."""
    providers = (*SERVICES, *_MADE)
    return [
        (provider, waived)
        for provider in providers
        for waived in ((), _OF_SERVICES)
        if not waived or provider.untold or not provider.has_topic_ids
    ]


@pytest.mark.parametrize(("provider", "waived"), _cases(), ids=lambda one: str(getattr(one, "name", one)))
def test_a_program_meets_the_same(
    provider: Provider, waived: tuple[str, ...], broker: Broker, impatient: None, tmp_path: Path
) -> None:
    """A program observes the same on the twin, and through the proxy on a real broker."""
    allowed, name = (*UNSAFE, *waived), f"met-{uuid.uuid4().hex[:8]}"
    cluster, disk = ProviderCluster(provider), MemoryDisk(lambda: 1000.0)

    def twin() -> Where:
        kafka, store = MemoryKafka(cluster=cluster), MemoryStore(disk, name)
        return Where(kafka, store, allow_unsafe=allowed, replication_factor=1)

    with lines() as heard:
        on_twin = _meet(name, twin, tmp_path, heard)
    with ProviderProxy(broker.bootstrap, provider) as proxy:
        kafka = {"bootstrap.servers": proxy.bootstrap, "socket.timeout.ms": "2000"}
        real = Where(kafka, str(tmp_path / "root"), allow_unsafe=allowed, replication_factor=1)
        with lines() as heard:
            through_proxy = _meet(name, lambda: real, tmp_path, heard)
    assert through_proxy == on_twin


@pytest.mark.parametrize("provider", [*SERVICES, *_MADE], ids=lambda one: str(one.name))
def test_a_topic_is_told_the_same(provider: Provider, broker: Broker) -> None:
    """A topic reports the same settings, and whether it has an id."""
    with ProviderProxy(broker.bootstrap, provider) as proxy, closing(broker_world(proxy.bootstrap).kafka) as real:
        through_proxy = _told(real, provider)
    assert through_proxy == _told(MemoryKafka(cluster=ProviderCluster(provider)), provider)


def _told(kafka: Kafka, provider: Provider) -> tuple[Mapping[str, str | None], bool]:
    """Return the description of a topic that names all that it may."""
    wanted = topic_config(TopicRole.DATA, 1)
    config = {key: value for key, value in wanted.items() if not provider.refusal({key: value})}
    name = f"told-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(TopicSpec(name=name, partitions=1, replication_factor=1, config=config))
    found = kafka.describe_topic(name)
    assert found is not None
    keys = config.keys() | provider.sets.keys() | provider.untold
    told = {key: found.config.get(key) for key in keys}
    kafka.delete_topic(name)
    return told, found.topic_id == NO_TOPIC_ID
