"""Shared fixtures of the contract suites: a log's two places, and the Kafka port alone, twins and real ones in turn."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from statelog.kafka.port import Kafka
from statelog.log import Log
from statelog.log.measured import MeasuredKafka
from statelog.observing import Request, TimedStep
from statelog.store.run_writer import RunWriter
from statelog.tables import Loading
from tests.support.providers.provider import Provider
from tests.support.rigs.kafka import World, broker_world, memory_world, spec_of
from tests.support.rigs.log import LogRig, ports_closed, real_rig, twin_rig
from tests.support.rigs.table import TableRig
from tests.support.services.broker import Broker
from tests.support.services.proxied import BUSY, NETWORKS, Proxies


class _Noting:
    """An observer that records the requests that it gets."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def request(self, request: Request) -> None:
        self.requests.append(request)

    def began(self, step: TimedStep) -> Callable[[TimedStep], None]:
        raise AssertionError(step)

    def progress(self, of: object, log: str, fraction: float, left_s: float | None) -> None:
        raise AssertionError(of, log, fraction, left_s)

    def made(self, thing: object, log: str, name: str) -> None:
        raise AssertionError(thing, log, name)


def _marks(place: str, backend: str, loading: Loading) -> list[pytest.MarkDecorator]:
    """Return the marks of a combination: few are worth a minute of each run; on a broker one backend is enough."""
    often = (place, backend, loading) in {
        ("twin", "dict", Loading.FIRST),
        ("twin", "rocksdb", Loading.FIRST),
        ("real", "rocksdb", Loading.FIRST),
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

_NETWORKS = [pytest.param(network, id=network.name, marks=pytest.mark.broker) for network in NETWORKS]
_OVER_NETWORKS = frozenset({("test_writer_contract", BUSY.name), ("test_kafka_contract", BUSY.name)})
"""The modules that run over another network in every run; a soak runs all modules over all networks."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Select the tests over other networks: only a part is worth its time in every run."""
    for item in items:
        params: dict[str, object] = (
            item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        )
        for place in (params.get(fixture) for fixture in ("rig", "kafka_world")):
            if isinstance(place, Provider) and (item.path.stem, place.name) not in _OVER_NETWORKS:
                item.add_marker(pytest.mark.soak)


@pytest.fixture(params=["twin", pytest.param("real", marks=pytest.mark.broker), *_NETWORKS])
def rig(request: pytest.FixtureRequest, log_name: str, tmp_path: Path) -> Iterator[LogRig]:
    """Yield a log's two places, in memory or real, local or remote."""
    if request.param == "twin":
        yield twin_rig(log_name)
        return
    with ports_closed(real_rig(log_name, _bootstrap(request), tmp_path / "root")) as real:
        yield real


def _bootstrap(request: pytest.FixtureRequest) -> str:
    """Return host:port of the run's broker, or of the proxy before it that plays the test's network."""
    if isinstance(request.param, Provider):
        return cast("Proxies", request.getfixturevalue("proxies")).bootstrap(request.param)
    return cast("Broker", request.getfixturevalue("broker")).bootstrap


@pytest.fixture(params=_PLACES)
def tables(
    request: pytest.FixtureRequest, log_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[TableRig]:
    """Yield each backend in turn, on twins and on a broker.

    Some variants find a snapshot of tiny row groups, and load it in the background or never.
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
    """Yield a new log of opaque values under bytes keys."""
    with rig.create() as created:
        yield created


@pytest.fixture(
    scope="module",
    params=[
        "memory",
        "measured",
        *(pytest.param(one, marks=pytest.mark.broker) for one in ("confluent", "measured confluent")),
        *_NETWORKS,
    ],
)
def kafka_world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Yield each implementation in turn; the real one on the session's broker, local or remote."""
    made = memory_world() if request.param in ("memory", "measured") else broker_world(_bootstrap(request))
    told = _Noting()
    if "measured" in str(request.param):
        made = replace(made, kafka=MeasuredKafka(made.kafka, "log", [told]))
    yield made
    made.kafka.close()
    if "measured" in str(request.param):
        assert {one.operation for one in told.requests} <= {*dir(Kafka), "send", "send_outputs", "read", "follow"}
        assert {(one.log, one.port) for one in told.requests} == {("log", "kafka")}


@pytest.fixture
def kafka(kafka_world: World) -> Kafka:
    """Return the port under test."""
    return kafka_world.kafka


@pytest.fixture
def topic(kafka: Kafka) -> Iterator[str]:
    """Yield a new topic of three partitions, which is deleted after the test."""
    name = f"contract-{uuid.uuid4().hex[:12]}"
    kafka.create_topic(spec_of(name))
    yield name
    kafka.delete_topic(name)
