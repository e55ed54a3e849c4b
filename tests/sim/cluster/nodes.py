"""A real Kafka cluster on this machine's Java: three KRaft nodes on loopback, each killed, paused and restarted alone.

It owns the nodes' directories and processes, and shares the released jars with every other broker. Every node is broker
and controller, so a fault hits both. Invariants: addresses and data outlive every death of a node, and nothing listens
beyond 127.0.0.1. Sessions are short, so that a pause of a few seconds deposes a leader.
"""

import os
import signal
import socket
import subprocess
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from statelog.testing import process
from statelog.testing.broker import cache_directory, free_port, locked, wait_until_ready
from statelog.testing.node import COMMON_PROPERTIES, ensure_jars, find_java, java_command, properties_text
from statelog.testing.process import ProcessId, wait_for

__all__ = ["SESSION_S", "Cluster", "Node", "running_cluster"]

SESSION_S = 3.0
"""The seconds of silence after which a broker is deposed."""
_NODES = 3
_HEAP_MB = 256
_CLUSTER_ID = "c3RhdGVsb2ctdHJpby0wMQ"
_START_TIMEOUT_S = 240.0
_ASK_TIMEOUT_S = 2.0
_THRICE = {
    "default.replication.factor": "3",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "share.coordinator.state.topic.replication.factor": "3",
    "broker.session.timeout.ms": str(int(SESSION_S * 1000)),
    "replica.lag.time.max.ms": "4000",
    "controller.quorum.fetch.timeout.ms": "3000",
    "controller.quorum.election.timeout.ms": "1000",
    # Leadership returns to the preferred nodes, which is one more way to change leaders.
    "leader.imbalance.check.interval.seconds": "20",
    "log.segment.bytes": str(17 << 20),
}


class Node:
    """One node: broker and controller. `number` counts from 1 and is its id in the cluster."""

    def __init__(self, number: int, directory: Path, port: int, voters: str, controller_port: int) -> None:
        self.number = number
        self.address = f"127.0.0.1:{port}"
        self.log_path = directory / "broker.log"
        self._directory = directory
        self._process: ProcessId | None = None
        directory.mkdir(parents=True)
        self._settings = directory / "server.properties"
        self._settings.write_text(
            properties_text(
                {
                    **COMMON_PROPERTIES,
                    **_THRICE,
                    "node.id": str(number),
                    "listeners": f"PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{controller_port}",
                    "advertised.listeners": f"PLAINTEXT://{self.address}",
                    "controller.quorum.voters": voters,
                    "log.dirs": str(directory / "data"),
                }
            ),
            encoding="utf-8",
        )

    @property
    def alive(self) -> bool:
        """Whether its process exists; a paused one does."""
        return self._process is not None and process.is_alive(self._process)

    @property
    def is_listening(self) -> bool:
        """Whether it accepts connections, as a node does once it has caught up with the cluster's metadata."""
        host, port = self.address.split(":")
        try:
            socket.create_connection((host, int(port)), _ASK_TIMEOUT_S).close()
        except OSError:
            return False
        return True

    def format(self, java: list[str]) -> "subprocess.Popen[bytes]":
        """Begin to format the data directory."""
        command = [*java, "kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(self._settings)]
        with self.log_path.open("ab") as log:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def start(self, java: list[str]) -> None:
        """Start it; return at once."""
        command = [*java, "kafka.Kafka", str(self._settings)]
        self._process = process.spawn(command, self._directory, self.log_path)

    def kill(self) -> None:
        """Send SIGKILL, paused or not; return when it is dead."""
        if self._process is not None:
            process.kill(self._process)

    def terminate(self, timeout_s: float = 20.0) -> None:
        """Send SIGTERM: it hands its partitions over first. Send SIGKILL after `timeout_s`; return when it is dead."""
        if self._process is not None:
            process.end(self._process, timeout_s)

    def pause(self) -> None:
        """Send SIGSTOP: it stops answering, and its connections stay open."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Send SIGCONT: it goes on, and does not know yet what it missed."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        assert self.alive, process.tail(self.log_path)
        os.kill(self._process.pid, number)


class Cluster:
    """Three nodes below `directory`."""

    def __init__(self, directory: Path) -> None:
        ports = [free_port() for _ in range(2 * _NODES)]
        brokers, controllers = ports[:_NODES], ports[_NODES:]
        voters = ",".join(f"{i}@127.0.0.1:{port}" for i, port in enumerate(controllers, 1))
        self.nodes = tuple(
            Node(i, directory / f"node-{i}", port, voters, controller_port)
            for i, (port, controller_port) in enumerate(zip(brokers, controllers, strict=True), 1)
        )
        self.bootstrap = ",".join(node.address for node in self.nodes)
        self._java = _java_command()
        self._admin = AdminClient(
            {"bootstrap.servers": self.bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 500}
        )

    def start(self) -> None:
        """Format and start all nodes; return when each of them is registered and a record was accepted."""
        for formatting in [node.format(self._java) for node in self.nodes]:
            assert formatting.wait(_START_TIMEOUT_S) == 0
        for node in self.nodes:
            node.start(self._java)
        wait_until_ready(self.bootstrap, _START_TIMEOUT_S, still_alive=lambda: all(node.alive for node in self.nodes))
        assert wait_for(lambda: len(self._brokers()) == _NODES, _START_TIMEOUT_S, pause_s=0.2)

    def restart(self, node: Node) -> None:
        """Start a dead node again; return at once."""
        node.start(self._java)

    def end(self) -> None:
        """Send SIGKILL to all: nobody needs their data any more."""
        for node in self.nodes:
            node.kill()

    def leader(self, topic: str, partition: int = 0) -> Node | None:
        """Return the node that leads a partition now; None if there is none, or if no node answers."""
        found = self._partitions(topic).get(partition)
        return None if found is None or found[0] < 1 else self.nodes[found[0] - 1]

    def is_in_sync(self, topics: Iterable[str]) -> bool:
        """Return whether every node accepts connections, and all replicas of the topics' partitions are in sync."""
        found = [self._partitions(topic) for topic in topics]
        together = all(found) and all(len(isr) == _NODES for partitions in found for _, isr in partitions.values())
        return together and all(node.is_listening for node in self.nodes)

    def _partitions(self, topic: str) -> Mapping[int, tuple[int, list[int]]]:
        """Return the leader and the replicas in sync of every partition, as far as a node answers."""
        try:
            known = self._admin.list_topics(topic, timeout=_ASK_TIMEOUT_S).topics[topic].partitions
        except KafkaException:
            return {}
        return {number: (partition.leader, partition.isrs) for number, partition in known.items()}

    def _brokers(self) -> set[int]:
        try:
            return set(self._admin.list_topics(timeout=_ASK_TIMEOUT_S).brokers)
        except KafkaException:
            return set()


@contextmanager
def running_cluster(directory: Path) -> Generator[Cluster]:
    """Yield a cluster for as long as the context lasts."""
    cluster = Cluster(directory)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.end()


def _java_command() -> list[str]:
    java = find_java()
    kept = cache_directory()
    kept.mkdir(parents=True, exist_ok=True)
    with locked(kept / "jars.lock"):
        jars = ensure_jars(kept)
    return java_command(java, jars, _HEAP_MB)
