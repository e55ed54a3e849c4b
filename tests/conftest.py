"""Fixtures that tests of every kind share, and the lines that name a run's services.

broker      the Kafka broker of this run: `bootstrap` (host:port) and `kind`
proxies     services with other terms and other networks, played before that broker
hdfs        a real name node and data node
secure_node  a broker that speaks TLS and grants nothing by itself, from tests/support/services/secure_broker.py
own_broker  a separate one that a fault test may kill, pause and restart
cluster     three nodes of a real cluster, each of which a fault test may kill, pause and restart
faulty_broker  another one, behind a TCP proxy with a network's faults (tests/support/services/faulty_broker.py)
log_name    a name that no other test uses, for a log (its topics are `name` and `name.ledger`)
topic_name  the same, for a bare topic
spark       a local Spark session, from tests/support/spark/session.py
lives       processes that a test lets die, from tests/support/processes/parts.py
at_once     a broker's first answer is believed, where a log would ask again for ten seconds
impatient   nobody waits for a simulated broker to catch up
busy_ledger  the ledger carries so much that no commit carries its changes
"""

import gc
import os
import re
import signal
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from statelog.history import source
from statelog.history.following import LedgerRate
from statelog.log import Log, topics
from statelog.tables.state import state
from statelog.testing.broker import wait_until_ready
from tests.sim.cluster.nodes import Cluster, running_cluster
from tests.support.services import broker as brokers
from tests.support.services.emulators import EmulatedStore, Unobtainable, open_azure, open_gcs
from tests.support.services.faulty_broker import FaultyBroker, open_faulty_broker
from tests.support.services.hdfs import Hdfs, open_hdfs
from tests.support.services.proxied import Proxies, open_proxies

__all__: list[str] = []

pytest_plugins = [
    "tests.support.spark.session",
    "tests.support.sharing",
    "tests.support.ending",
    "tests.support.processes.parts",
    "tests.support.rigs.shell",
    "tests.support.services.secure_broker",
    "tests.support.told",
]


def pytest_configure() -> None:
    """Restore Ctrl-C: a shell ignores it in its `&` jobs, Python leaves that so, and no test that sends one
    would end.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Freeze the collected tests, so that the garbage collector need not go through them again, hundreds of times."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_report_header() -> list[str]:
    """Say before the first test which kind of broker this run will use."""
    named = os.environ.get(brokers.BROKER_VARIABLE, "")
    if named:
        return [f"kafka: {named}, named by {brokers.BROKER_VARIABLE}"]
    reason = brokers.docker_reason()
    return [f"kafka: embedded broker ({reason})" if reason else f"kafka: testcontainers, {brokers.KAFKA_IMAGE}"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say at the end which brokers were really used."""
    if brokers.choices:
        terminalreporter.section("kafka")
        for line in brokers.choices:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[brokers.Broker]:
    """Yield the Kafka broker that this run's tests share. Tests create topics under names of their own."""
    with ExitStack() as stack:
        yield brokers.told_broker(request.config) or brokers.open_shared_broker(
            stack, tmp_path_factory.mktemp("broker")
        )


@pytest.fixture(scope="session")
def proxies(broker: brokers.Broker) -> Iterator[Proxies]:
    """Yield proxies before the broker of this run, each of which plays a service."""
    with open_proxies(broker.bootstrap) as opened:
        yield opened


@pytest.fixture(scope="session")
def _own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[brokers.OwnBroker]:
    with ExitStack() as stack:
        yield brokers.open_own_broker(stack, tmp_path_factory.mktemp("own-broker"))


@pytest.fixture
def own_broker(_own_broker: brokers.OwnBroker) -> brokers.OwnBroker:
    """Return a broker apart from the shared one, which takes records at the start of every test that asks for it."""
    if not _own_broker.alive:
        _own_broker.restart()
    else:  # A broker that was paused recovers in its own time.
        wait_until_ready(_own_broker.bootstrap, 120.0, still_alive=lambda: _own_broker.alive)
    return _own_broker


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Yield three nodes, all alive; a test leaves them so."""
    with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    """Yield an HDFS of this process. Tests choose roots of their own."""
    with ExitStack() as stack:
        yield open_hdfs(stack, tmp_path_factory.mktemp("hdfs"))


@pytest.fixture(scope="session")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedStore]:
    """Yield an Azure Blob Storage of this process, by its emulator."""
    yield from _emulated(open_azure, tmp_path_factory.mktemp("azure"))


@pytest.fixture(scope="session")
def gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedStore]:
    """Yield a Google Cloud Storage of this process, by an emulator."""
    yield from _emulated(open_gcs, tmp_path_factory.mktemp("gcs"))


def _emulated(start: Callable[[ExitStack, Path], EmulatedStore], directory: Path) -> Iterator[EmulatedStore]:
    with ExitStack() as stack:
        try:
            opened = start(stack, directory)
        except Unobtainable as error:
            pytest.skip(f"{directory.name} is not tested in this run: {error}")
        yield opened


@pytest.fixture(scope="session")
def _faulty_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyBroker]:
    with open_faulty_broker(tmp_path_factory.mktemp("faulty-broker")) as opened:
        yield opened


@pytest.fixture
def faulty_broker(_faulty_broker: FaultyBroker) -> Iterator[FaultyBroker]:
    """Yield a broker behind a proxy; both let everything through before and after every test."""
    _faulty_broker.recover()
    yield _faulty_broker
    _faulty_broker.recover()


@pytest.fixture
def log_name(request: pytest.FixtureRequest) -> str:
    """Return a log name that no other test and no other run uses."""
    return _unique(request)


@pytest.fixture
def topic_name(request: pytest.FixtureRequest) -> str:
    """Return a topic name that no other test and no other run uses."""
    return _unique(request)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Believe Kafka's first answer, also one that goes back behind a known position."""
    monkeypatch.setattr(Log, "patience_s", 0.0)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeat queries and checks at once, and not for long."""
    monkeypatch.setattr(Log, "patience_s", 1.0)
    monkeypatch.setattr(source, "_ASK_AGAIN_S", 0.0)
    monkeypatch.setattr(topics, "_DESCRIBE_AGAIN_S", 0.0)
    monkeypatch.setattr(state, "_PAUSE_S", 0.0)


def _unique(request: pytest.FixtureRequest) -> str:
    """Return the test's own name, for an observer of the broker, and a random part."""
    readable = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name).strip("-")[:60]
    return f"{readable}-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def busy_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill the ledger, so that even the smallest commit has its changes in the data topic."""
    monkeypatch.setattr(LedgerRate, "is_low", False)
