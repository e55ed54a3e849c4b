"""The Kafka brokers of the tests: the one that a run gets, and one that a fault test may kill.

A shared broker is, in this order: the one that `STATELOG_TEST_BROKER=host:port` names, a container of
`apache/kafka:4.3.1` where Docker answers, the embedded broker (Kafka's own jars on this machine's Java). `choices`
names each choice and its reason, for the run's summary. The choice is never silent, and never touches a topic.
"""

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import docker
import pytest
from docker.errors import DockerException
from testcontainers.core.container import DockerContainer
from testcontainers.core.exceptions import ContainerConnectException, ContainerStartException

from statelog.testing.broker import EmbeddedBroker, free_port, wait_until_ready
from statelog.testing.node import node_properties

__all__ = [
    "BROKER_VARIABLE",
    "KAFKA_IMAGE",
    "SHARED_BROKER",
    "Broker",
    "KafkaContainer",
    "OwnBroker",
    "choices",
    "container_environment",
    "docker_reason",
    "open_own_broker",
    "open_shared_broker",
    "told_broker",
]

BROKER_VARIABLE = "STATELOG_TEST_BROKER"
SHARED_BROKER = "statelog_shared_broker"
"""The name under which the first process of a run passes its shared broker to the others: bootstrap and kind."""
KAFKA_IMAGE = "apache/kafka:4.3.1"
_HEAP_MB = 512
_START_TIMEOUT_S = 240.0

choices: list[str] = []
"""One line for every broker that this run chose, in order, and for every story played on a cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """The broker that most tests share: `bootstrap` is host:port, `kind` one of named, testcontainers, embedded."""

    bootstrap: str
    kind: str


class OwnBroker(Protocol):
    """A broker that belongs to one test at a time, which may do anything to it. Address and data outlive its deaths."""

    @property
    def bootstrap(self) -> str:
        """host:port, the same for the broker's whole lifetime."""
        ...

    @property
    def kind(self) -> str:
        """testcontainers or embedded."""
        ...

    @property
    def alive(self) -> bool:
        """Whether its process exists; a paused one does."""
        ...

    def kill(self) -> None:
        """Send SIGKILL; return when the broker is dead."""
        ...

    def restart(self) -> None:
        """Start it again on the same data and address, killing it first if needed; return when it takes records."""
        ...

    def pause(self) -> None:
        """Stop its answers, with its connections open."""
        ...

    def resume(self) -> None:
        """End a pause."""
        ...


class KafkaContainer(DockerContainer):
    """`apache/kafka:4.3.1` as one KRaft node, on one fixed port of this machine so that it survives a restart.

    Where the engine runs on this machine, the node shares its network: Docker copies nothing between the two.
    """

    kind = "testcontainers"

    def __init__(self) -> None:
        super().__init__(KAFKA_IMAGE)
        self._port = free_port()
        self._host = self.get_docker_client().host()
        local = self._host in {"localhost", "127.0.0.1"}
        self._advertised_host = "127.0.0.1" if local else self._host
        beside = local and _is_beside(self.get_docker_client().client.info())
        properties = (
            node_properties("127.0.0.1", self._port, free_port(), self.bootstrap)
            if beside
            else node_properties("0.0.0.0", self._port, 9093, self.bootstrap)
        )
        for name, value in container_environment(properties, _HEAP_MB).items():
            self.with_env(name, value)
        self.with_env("KAFKA_JVM_PERFORMANCE_OPTS", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")  # As an embedded one.
        if beside:
            self.with_kwargs(network_mode="host")
            return
        # A pair instead of a port number names the address to bind to; the annotation leaves it out.
        ports = cast("dict[str, object]", self.ports)
        ports[f"{self._port}/tcp"] = ("127.0.0.1", self._port) if local else self._port

    @property
    def bootstrap(self) -> str:
        """host:port, the same for the container's whole lifetime."""
        return f"{self._advertised_host}:{self._port}"

    @property
    def alive(self) -> bool:
        """Whether the container runs or is paused."""
        container = self.get_wrapped_container()
        container.reload()
        return container.status in {"running", "paused"}

    def start(self) -> "KafkaContainer":
        """Start the container; return when it takes records."""
        super().start()
        self._wait()
        return self

    def kill(self) -> None:
        """Send SIGKILL; return when it is dead."""
        if self.alive:
            container = self.get_wrapped_container()
            if container.status == "paused":
                container.unpause()
            container.kill(signal="SIGKILL")
            container.wait()

    def restart(self) -> None:
        """Start it again on the same data and port; return when it takes records."""
        self.kill()
        self.get_wrapped_container().start()
        self._wait()

    def pause(self) -> None:
        """Freeze the process; its connections stay open."""
        self.get_wrapped_container().pause()

    def resume(self) -> None:
        """End a pause."""
        self.get_wrapped_container().unpause()

    def _wait(self) -> None:
        wait_until_ready(self.bootstrap, _START_TIMEOUT_S, still_alive=lambda: self.alive)


def open_shared_broker(stack: ExitStack, directory: Path) -> Broker:
    """Return the broker of this run; `stack` ends it. `directory` holds an embedded one's data."""
    named = os.environ.get(BROKER_VARIABLE, "")
    if named:
        wait_until_ready(named, 60.0)
        choices.append(f"shared broker: {named}, named by {BROKER_VARIABLE}")
        return Broker(bootstrap=named, kind="named")
    own = _open(stack, directory, "shared broker")
    return Broker(bootstrap=own.bootstrap, kind=own.kind)


def told_broker(config: pytest.Config) -> Broker | None:
    """Return the shared broker that the first process of this run has started, if there are several."""
    told: tuple[str, str] | None = getattr(config, "workerinput", {}).get(SHARED_BROKER)
    return Broker(bootstrap=told[0], kind=told[1]) if told else None


def open_own_broker(stack: ExitStack, directory: Path) -> OwnBroker:
    """Return a broker to be killed; `stack` ends it. Never the one that the environment names."""
    return _open(stack, directory, "broker of the fault tests")


def docker_reason() -> str:
    """Return why Docker cannot be used here, or an empty string if it answers."""
    try:
        client = docker.from_env(timeout=5)
        try:
            client.ping()
        finally:
            client.close()
    except DockerException as error:
        return f"Docker does not answer: {_first_line(error)}"
    return ""


def _open(stack: ExitStack, directory: Path, purpose: str) -> OwnBroker:
    reason = docker_reason()
    if not reason:
        try:
            container = stack.enter_context(KafkaContainer())
        except (DockerException, ContainerStartException, ContainerConnectException) as error:
            reason = f"Docker answers, but {KAFKA_IMAGE} does not start: {_first_line(error)}"
        else:
            choices.append(f"{purpose}: testcontainers, {KAFKA_IMAGE} at {container.bootstrap}")
            return container
    embedded = EmbeddedBroker(directory)
    stack.callback(embedded.stop)
    embedded.start()
    choices.append(f"{purpose}: embedded Kafka {embedded.version} at {embedded.bootstrap} ({reason})")
    return embedded


def _is_beside(engine: Mapping[str, Any]) -> bool:
    """Return whether the engine is on this machine itself, in no machine or network of its own."""
    here = os.uname()
    rootless = any("rootless" in option for option in engine["SecurityOptions"] or ())
    return not rootless and (engine["Name"], engine["KernelVersion"]) == (here.nodename, here.release)


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


def container_environment(properties: Mapping[str, str], heap_mb: int) -> dict[str, str]:
    """Return the settings as the environment variables that the `apache/kafka` image reads; the heap in MiB."""
    named = {f"KAFKA_{name.replace('.', '_').upper()}": value for name, value in properties.items()}
    return {**named, "KAFKA_HEAP_OPTS": f"-Xmx{heap_mb}m"}
