"""The costs of many tables of one process: threads of Kafka's clients, and connections to the broker."""

import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

import statelog
from statelog.kafka import reader
from statelog.kafka.client import ConfluentKafka
from statelog.kafka.config import client_config
from statelog.kafka.port import TopicSpec
from statelog.log import Log, LogOptions, Where
from tests.support.processes.parts import output
from tests.support.services.broker import Broker

_SETTLE_S = 60.0
_ESTABLISHED = "01"
"""A connection's state in Linux's tables."""


def _costs() -> tuple[int, int]:
    """Return threads of Kafka's clients, by the names that librdkafka gives them, and connections."""
    names = [task.joinpath("comm").read_text() for task in Path("/proc/self/task").iterdir()]
    mine = {str(one.readlink()) for one in Path("/proc/self/fd").iterdir() if os.path.lexists(one)}
    rows = [row.split() for table in ("tcp", "tcp6") for row in Path("/proc/self/net", table).read_text().splitlines()]
    there = [row for row in rows if row[3] == _ESTABLISHED and f"socket:[{row[9]}]" in mine]
    return sum(name.startswith("rdk:") for name in names), len(there)


def _settled(threads: int, connections: int, work: Callable[[], object] = lambda: None) -> tuple[int, int]:
    """Return the costs once they are within these bounds, or the present ones after a time-out."""
    until_s = time.monotonic() + _SETTLE_S
    while True:
        work()
        found = _costs()
        if (found[0] <= threads and found[1] <= connections) or time.monotonic() > until_s:
            return found
        time.sleep(0.5)


def many_tables(bootstrap: str, root: str, name: str, count: str) -> None:
    """Open tables of existing logs, each with a commit."""
    pytest.MonkeyPatch().setattr(reader, "_FRESH_S", 2.0)  # It is a minute.
    where, number = Where.local(root, bootstrap), int(count)
    for one in range(number):
        Log.create(f"{name}-{one}", where, LogOptions(partitions=1)).close()
    with ExitStack() as stack:
        tables = [stack.enter_context(statelog.table(f"{name}-{one}", where)) for one in range(number)]
        for table in tables:
            table[b"k"] = b"v"
            table.commit()
        print(json.dumps(_settled(4 * number + 7, 2 * number + 3)))  # noqa: T201 - what the test reads


def large_worker(bootstrap: str, root: str, name: str, topic: str, count: str) -> None:
    """Run a worker that has a message in each partition, and has committed."""
    pytest.MonkeyPatch().setattr(reader, "_FRESH_S", 2.0)
    kafka, number, found = ConfluentKafka(client_config({"bootstrap.servers": bootstrap})), int(count), list[int]()
    producer = kafka.producer()
    for partition in range(number):
        producer.send(topic, partition, b"x", lambda _: None)
    while producer.in_flight:
        producer.poll(0.2)
    producer.close()
    kafka.close()
    with statelog.worker(name, Where.local(root, bootstrap), topic=topic, create=True) as worker:

        def measure() -> None:
            found.extend(_settled(20, 8))
            worker.stop()

        for read, (_, table) in enumerate(worker, 1):
            table[b"k"] = b"v"
            worker.commit_every(0.2)
            if read == number:
                threading.Thread(target=measure).start()
    print(json.dumps(found))  # noqa: T201 - what the test reads


@pytest.mark.broker
def test_tables_share_a_producer_and_an_admin_client(broker: Broker, log_name: str, tmp_path: Path) -> None:
    """Each table has a consumer of its ledger and no other client: four threads, and two connections."""
    threads, connections = json.loads(output(many_tables, broker.bootstrap, tmp_path, log_name, 20))
    for one in range(20):
        Log.delete(f"{log_name}-{one}", Where.local(tmp_path, broker.bootstrap))
    assert threads <= 87
    assert connections <= 43


@pytest.mark.broker
def test_a_worker_has_as_many_clients_whatever_its_partitions(
    broker: Broker, log_name: str, topic_name: str, tmp_path: Path
) -> None:
    """A worker has one group member, one ledger follower, one producer and one admin client for any partitions."""
    kafka = ConfluentKafka(client_config({"bootstrap.servers": broker.bootstrap}))
    kafka.create_topic(TopicSpec(name=topic_name, partitions=64, replication_factor=1))
    threads, connections = json.loads(output(large_worker, broker.bootstrap, tmp_path, log_name, topic_name, 64))
    Log.delete(log_name, Where.local(tmp_path, broker.bootstrap))
    kafka.delete_topic(topic_name)
    kafka.close()
    assert threads <= 20
    assert connections <= 8
