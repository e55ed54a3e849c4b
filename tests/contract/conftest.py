"""What several contract suites share: a log's two places, and the Kafka port alone, twins and real ones in turn."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from statelog.storage.kafka import Kafka
from statelog.storage.log.log import Log
from tests.support.rigs.kafka import World, broker_world, memory_world, spec_of
from tests.support.rigs.log import LogRig, real_rig, twin_rig
from tests.support.services.broker import Broker


@pytest.fixture(params=["twin", pytest.param("real", marks=pytest.mark.broker)])
def rig(request: pytest.FixtureRequest, log_name: str, tmp_path: Path) -> LogRig:
    """A log's two places, in memory or real."""
    if request.param == "twin":
        return twin_rig(log_name)
    broker = cast("Broker", request.getfixturevalue("broker"))
    return real_rig(log_name, broker.bootstrap, tmp_path / "root")


@pytest.fixture
def log(rig: LogRig) -> Iterator[Log]:
    """A new log of opaque values under bytes keys."""
    with rig.create() as created:
        yield created


@pytest.fixture(scope="module", params=["memory", pytest.param("confluent", marks=pytest.mark.broker)])
def kafka_world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Each implementation in turn; the real one on the session's broker."""
    made = memory_world() if request.param == "memory" else broker_world(request.getfixturevalue("broker").bootstrap)
    yield made
    made.kafka.close()


@pytest.fixture
def kafka(kafka_world: World) -> Kafka:
    """The port under test."""
    return kafka_world.kafka


@pytest.fixture
def topic(kafka: Kafka) -> Iterator[str]:
    """A new topic of three partitions, gone after the test."""
    name = f"contract-{uuid.uuid4().hex[:12]}"
    kafka.create_topic(spec_of(name))
    yield name
    kafka.delete_topic(name)
