"""What several contract suites share: a log's two places, and the Kafka port alone, twins and real ones in turn."""

import uuid
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import pytest

from statelog.storage.kafka import Kafka
from statelog.storage.log.log import Log
from statelog.storage.run_writer import RunWriter
from statelog.tables import Loading
from tests.support.rigs.kafka import World, broker_world, memory_world, spec_of
from tests.support.rigs.log import LogRig, ports_closed, real_rig, twin_rig
from tests.support.rigs.table import TableRig
from tests.support.services.broker import Broker


def _marks(place: str, backend: str, loading: Loading) -> list[pytest.MarkDecorator]:
    """Not every combination with a snapshot is worth a minute of every run."""
    often = loading is Loading.FIRST or (place, backend, loading) in {
        ("twin", "dict", Loading.ON_DEMAND),
        ("twin", "rocksdb", Loading.BEHIND),
    }
    return [pytest.mark.broker] * (place == "real") + [pytest.mark.soak] * (not often)


_PLACES = [
    pytest.param(
        (place, backend, loading),
        id="-".join((backend, place) if loading is Loading.FIRST else (backend, place, loading)),
        marks=_marks(place, backend, loading),
    )
    for loading in Loading
    for place in ("twin", "real")
    for backend in ("dict", "rocksdb")
]


@pytest.fixture(params=["twin", pytest.param("real", marks=pytest.mark.broker)])
def rig(request: pytest.FixtureRequest, log_name: str, tmp_path: Path) -> Iterator[LogRig]:
    """A log's two places, in memory or real."""
    if request.param == "twin":
        yield twin_rig(log_name)
        return
    broker = cast("Broker", request.getfixturevalue("broker"))
    with ports_closed(real_rig(log_name, broker.bootstrap, tmp_path / "root")) as real:
        yield real


@pytest.fixture(params=_PLACES)
def tables(
    request: pytest.FixtureRequest, log_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[TableRig]:
    """Each backend in turn, on twins and on a broker; also where lives find a snapshot of tiny row groups, and load it
    behind the table's back or never.
    """
    place, backend, loading = cast("tuple[str, str, Loading]", request.param)
    made: LogRig = twin_rig(log_name)
    if place == "real":
        made = real_rig(log_name, cast("Broker", request.getfixturevalue("broker")).bootstrap, tmp_path / "root")
    local = tmp_path / "local" if backend == "rocksdb" else None
    with nullcontext(made) if place == "twin" else ports_closed(made) as rig:
        if loading is Loading.FIRST:
            yield TableRig(rig, local)
            return
        monkeypatch.setitem(cast("dict[str, Any]", RunWriter.__init__.__kwdefaults__), "target_rows", 2)
        yield TableRig(rig, local, loading, tmp_path)


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
