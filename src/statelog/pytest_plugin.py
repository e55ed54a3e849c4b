"""The pytest plugin: fixtures for tests of programs that use statelog. pytest loads it by its entry point.

statelog_twin    an in-memory Kafka and store, new for each test, which runs in its environment
statelog_broker  a real Kafka of this session, on the local Java: `bootstrap` is host:port

The plugin loads nothing of statelog before a test requests a fixture.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from statelog.testing import EmbeddedBroker, Twin


@pytest.fixture
def statelog_twin() -> "Iterator[Twin]":
    """A Kafka cluster and a store in memory, with a stopped clock. The test runs in this environment."""
    from statelog.testing import Twin

    twin = Twin()
    with twin.environment():
        yield twin


@pytest.fixture(scope="session")
def statelog_broker(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[EmbeddedBroker]":
    """A real Kafka on loopback. Needs Java 17 and the extra `statelog[dev]`; the first start fetches 44 MB."""
    from statelog.testing import EmbeddedBroker

    broker = EmbeddedBroker(tmp_path_factory.mktemp("statelog-broker"))
    broker.start()
    yield broker
    broker.stop()
