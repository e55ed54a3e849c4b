"""The settings of a one-node Kafka for development and tests.

Pure functions over values: no file is read or written here. The same settings serve the development broker, the
embedded broker of the tests and the tests' container, so that all three behave alike. Invariant: one node that is
broker and controller, nothing is replicated, and topics exist only if they were created.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["COMMON_PROPERTIES", "Listeners", "container_environment", "node_properties", "properties_text"]

COMMON_PROPERTIES: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "inter.broker.listener.name": "PLAINTEXT",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "auto.create.topics.enable": "false",
    # One node: whatever Kafka would replicate three times exists once.
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    # A segment holds the largest chunk that a topic allows (16 MiB), yet is small enough for truncation to free disk.
    "log.segment.bytes": str(32 << 20),
    "log.index.size.max.bytes": str(256 << 10),
    "log.segment.delete.delay.ms": "1000",
    "log.retention.check.interval.ms": "5000",
    # The default of 128 MiB would be a quarter of the heap, for compacted topics that hardly exist here.
    "log.cleaner.dedupe.buffer.size": str(8 << 20),
    "num.network.threads": "2",
    "num.io.threads": "4",
    # A node that was killed is admitted again only after its old session ended.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Listeners:
    """Where a node listens: `bind_host` is an address of its machine, `advertised` what clients use, host:port."""

    bind_host: str
    port: int
    controller_port: int
    advertised: str


def node_properties(listeners: Listeners, data_directory: Path | None = None) -> dict[str, str]:
    """The complete settings of a node. Without `data_directory` the node keeps the default of its image."""
    placed = {
        "listeners": f"PLAINTEXT://{listeners.bind_host}:{listeners.port},"
        f"CONTROLLER://127.0.0.1:{listeners.controller_port}",
        "advertised.listeners": f"PLAINTEXT://{listeners.advertised}",
        "controller.quorum.voters": f"1@127.0.0.1:{listeners.controller_port}",
    }
    stored = {} if data_directory is None else {"log.dirs": str(data_directory)}
    return {**COMMON_PROPERTIES, **placed, **stored}


def properties_text(properties: Mapping[str, str]) -> str:
    """The settings in the form of a Java properties file."""
    return "".join(f"{name}={_escaped(value)}\n" for name, value in properties.items())


def container_environment(properties: Mapping[str, str], heap_mb: int) -> dict[str, str]:
    """The settings as the environment variables that the `apache/kafka` image reads; the heap in MiB."""
    named = {f"KAFKA_{name.replace('.', '_').upper()}": value for name, value in properties.items()}
    return {**named, "KAFKA_HEAP_OPTS": f"-Xmx{heap_mb}m"}


def _escaped(value: str) -> str:
    """A backslash in a path would be an escape sequence to Java."""
    return value.replace("\\", "\\\\")
