"""A log under test, on the in-memory twins or on a real broker and a local directory, and a plain reader of its state.

Writer tests run on both. The reader replays the whole ledger into a dict, change by change.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import admin

from statelog.schemas.changes.replay_plan import plan_replay
from statelog.schemas.descriptor import HashRule
from statelog.schemas.keys.key_groups import KeyType
from statelog.schemas.topics.policy import parse_waivers
from statelog.storage.kafka import Kafka
from statelog.storage.kafka.client import ConfluentKafka
from statelog.storage.kafka.config import client_config
from statelog.storage.kafka.memory import MemoryKafka
from statelog.storage.kafka.memory_cluster import MemoryCluster
from statelog.storage.kafka.memory_faults import Faults
from statelog.storage.log.log import Log
from statelog.storage.replay import replay
from statelog.storage.store import Store
from statelog.storage.store.fsspec import open_store
from statelog.storage.store.memory import MemoryDisk, MemoryStore

__all__ = ["UNSAFE", "WAIVED", "WriterRig", "real_rig", "state_of", "twin_rig"]

UNSAFE = ("replication", "min-insync")
WAIVED = parse_waivers(UNSAFE)


@dataclass(slots=True)
class WriterRig:
    """Makes and opens logs of one name; every call of `open` is another process' view."""

    name: str
    kafka: Callable[[], Kafka]
    store: Callable[[], Store]
    cluster: MemoryCluster | None = None
    bootstrap: str = ""

    def set_topic_config(self, topic: str, config: Mapping[str, str]) -> None:
        """An operator changes settings of a topic."""
        if self.cluster is not None:
            self.cluster.set_topic_config(topic, config)
            return
        operations = [
            admin.ConfigEntry(name, value, incremental_operation=admin.AlterConfigOpType.SET)
            for name, value in config.items()
        ]
        resource = admin.ConfigResource(admin.ResourceType.TOPIC, topic, incremental_configs=operations)
        client = admin.AdminClient({"bootstrap.servers": self.bootstrap})
        client.incremental_alter_configs([resource])[resource].result(timeout=20)

    def create(
        self,
        *,
        partitions: int = 4,
        key_groups: int = 16,
        key_type: KeyType = KeyType.BYTES,
        hash_rule: HashRule = HashRule.CRC32,
        value_schema: str | None = None,
    ) -> Log:
        """Make the log, with few partitions, and open it."""
        return Log.create(
            self.name,
            kafka=self.kafka(),
            root=self.store(),
            partitions=partitions,
            key_groups=key_groups,
            key_type=key_type,
            hash_rule=hash_rule,
            value_schema=value_schema,
            replication_factor=1,
            allow_unsafe=UNSAFE,
        )

    def open(self) -> Log:
        """The log as another process sees it."""
        return Log.open(self.name, kafka=self.kafka(), root=self.store(), allow_unsafe=UNSAFE)

    def state(self) -> dict[Any, Any]:
        """The committed state, read by the plainest of readers."""
        with self.open() as log:
            return state_of(log)


def twin_rig(name: str, faults: Faults | None = None) -> WriterRig:
    """A rig on the in-memory twins."""
    cluster, disk = MemoryCluster(faults=faults), MemoryDisk(lambda: 0.0)
    return WriterRig(name, lambda: MemoryKafka(cluster=cluster), lambda: MemoryStore(disk, name), cluster)


def real_rig(name: str, bootstrap: str, root: Path, more: Mapping[str, str] | None = None) -> WriterRig:
    """A rig on a real broker and a local directory, with `more` settings of the client."""
    config = client_config({"bootstrap.servers": bootstrap, **(more or {})})
    return WriterRig(name, lambda: ConfluentKafka(config), lambda: open_store(str(root), name), bootstrap=bootstrap)


def state_of(log: Log) -> dict[Any, Any]:
    """Replay the whole ledger into a dict, one change after the other."""
    ledger = log.ledger()
    commits = ledger.read_end()
    ledger.close()
    plan = plan_replay([valid.commit.read_body() for valid in commits], range(log.descriptor.partitions))
    reader = log.kafka.reader(log.data_topic)
    state: dict[Any, Any] = {}
    for chunk in replay(reader, log.data_topic, plan, log.change_schema, stall_timeout_s=20):
        _apply(chunk.changes, state)
    reader.close()
    return state


def _apply(changes: pa.RecordBatch, state: dict[Any, Any]) -> None:
    for row in changes.to_pylist():
        if row["op"]:
            state.pop(row["key"], None)
        else:
            state[row["key"]] = row["value"]
