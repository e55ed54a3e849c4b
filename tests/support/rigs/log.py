"""A log under test, and a plain reader of its state.

`LogRig` makes and opens a log on any ports, `TwinRig` on the in-memory twins, `real_rig` on a real broker and a local
directory. Every `open` is another process's view. A `TwinLog` is a log on twins that knows its expected state.

The reader is as simple as can be: all runs of a manifest, then the committed tail, applied to a dict one change after
the other. It uses neither the recovery room nor any part of the materializer.
"""

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, fields, replace
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import admin

from statelog.environment import Environment
from statelog.kafka.client import ConfluentKafka
from statelog.kafka.config import client_config
from statelog.kafka.port import Kafka
from statelog.log import Log, LogOptions, Where
from statelog.materializer.outcome import CompletedRound
from statelog.materializer.round import run_round
from statelog.materializer.settings import MaterializerSettings, MaterializerTuning
from statelog.producer.writer import Writer
from statelog.reading.replay import replay
from statelog.recovery import recover
from statelog.schemas.changes.replay_plan import plan_replay
from statelog.schemas.descriptor import HashRule
from statelog.schemas.key_groups import KeyType, key_group_of, partition_of
from statelog.schemas.ledger.state import LedgerState
from statelog.schemas.snapshot.manifest import Manifest
from statelog.schemas.snapshot.retention import RetentionPolicy
from statelog.schemas.topic_policy import parse_waivers
from statelog.store.fsspec import open_store
from statelog.store.port import Store
from statelog.store.run_reader import RunReader
from statelog.testing.cluster import MemoryCluster
from statelog.testing.faults import Faults
from statelog.testing.kafka import MemoryKafka
from statelog.testing.store import FaultHook, MemoryDisk, MemoryStore
from tests.support.samples.folds import apply_all, apply_to_dict, put_all
from tests.support.samples.runs import table_of

__all__ = [
    "UNSAFE",
    "WAIVED",
    "LogRig",
    "State",
    "TwinLog",
    "TwinRig",
    "apply_tail",
    "impatient",
    "key_in",
    "keys_in",
    "live",
    "ports_closed",
    "real_rig",
    "rolled_up",
    "settings_for",
    "state_of",
    "state_of_snapshot",
    "tail_of",
    "twin_rig",
    "where_at",
]

UNSAFE = ("replication", "min-insync")
"""The checks that a log on one broker has to waive."""
WAIVED = parse_waivers(UNSAFE)
State = dict[Any, Any]

_STALL_TIMEOUT_S = 60.0


def where_at(kafka: Kafka | Mapping[str, str] | str, root: Store | Path | str, **more: Any) -> Where:
    """Return a place on one broker: `kafka` is a port, settings, or host:port; `root` a store, a path or a URL."""
    settings = {"bootstrap.servers": kafka} if isinstance(kafka, str) else kafka
    root = str(root) if isinstance(root, Path) else root
    return Where(settings, root, allow_unsafe=UNSAFE, replication_factor=1, **more)


@dataclass(frozen=True, slots=True)
class LogRig:
    """A maker and opener of logs of one name on the ports that `kafka` and `store` make."""

    name: str
    kafka: Callable[[], Kafka]
    store: Callable[[], Store]
    bootstrap: str = ""
    replicas: int = 1

    def where(self) -> Where:
        """Return the place at which another process sees the log."""
        return Where(self.kafka(), self.store(), allow_unsafe=UNSAFE, replication_factor=self.replicas)

    def create(
        self,
        *,
        partitions: int = 4,
        key_groups: int = 16,
        key_type: KeyType | str = KeyType.BYTES,
        hash_rule: HashRule | str = HashRule.CRC32,
        prefix_bytes: int | None = None,
        value_schema: str | None = None,
        **more: Any,
    ) -> Log:
        """Make the log, with few partitions and `more` options, and open it."""
        return Log.create(
            self.name,
            self.where(),
            LogOptions(
                partitions=partitions,
                key_groups=key_groups,
                key_type=key_type,
                hash_rule=hash_rule,
                prefix_bytes=prefix_bytes,
                value_schema=value_schema,
                **more,
            ),
        )

    def open(self) -> Log:
        """Return the log as another process sees it."""
        return Log.open(self.name, self.where())

    def state(self) -> State:
        """Return the committed state, read by the plainest of readers."""
        with self.open() as log:
            return state_of(log)

    def set_topic_config(self, topic: str, config: Mapping[str, str]) -> None:
        """Change settings of a topic, as an operator."""
        operations = [
            admin.ConfigEntry(name, value, incremental_operation=admin.AlterConfigOpType.SET)
            for name, value in config.items()
        ]
        resource = admin.ConfigResource(admin.ResourceType.TOPIC, topic, incremental_configs=operations)
        client = admin.AdminClient({"bootstrap.servers": self.bootstrap})
        client.incremental_alter_configs([resource])[resource].result(timeout=60)
        end_s = time.monotonic() + 60.0
        while not self._has(client, topic, config):  # The broker answers before it applies them.
            assert time.monotonic() < end_s
            time.sleep(0.01)

    @staticmethod
    def _has(client: admin.AdminClient, topic: str, config: Mapping[str, str]) -> bool:
        resource = admin.ConfigResource(admin.ResourceType.TOPIC, topic)
        shown = client.describe_configs([resource])[resource].result(timeout=60)
        return all(shown[name].value == value for name, value in config.items())


@dataclass(frozen=True, slots=True)
class TwinRig(LogRig):
    """A rig on the in-memory twins, and the cluster and the disk below it."""

    cluster: MemoryCluster = field(kw_only=True)
    disk: MemoryDisk = field(kw_only=True)

    def set_topic_config(self, topic: str, config: Mapping[str, str]) -> None:
        """Change settings of a topic, as an operator."""
        self.cluster.set_topic_config(topic, config)


def twin_rig(
    name: str,
    faults: Faults | None = None,
    *,
    cluster: MemoryCluster | None = None,
    disk: MemoryDisk | None = None,
    replicas: int = 1,
) -> TwinRig:
    """Return a rig on the twins: with `faults`, or on a cluster and a disk of the test's own."""
    cluster, disk = cluster or MemoryCluster(faults=faults), disk or MemoryDisk(lambda: 0.0)
    kafka, store = lambda: MemoryKafka(cluster=cluster), lambda: MemoryStore(disk, name)
    return TwinRig(name, kafka, store, replicas=replicas, cluster=cluster, disk=disk)


def real_rig(
    name: str,
    bootstrap: str,
    root: Path | str,
    more: Mapping[str, str] | None = None,
    storage_options: Mapping[str, object] | None = None,
) -> LogRig:
    """Return a rig on a real broker and a store, a local directory unless it is a URL, with `more` client settings."""
    config = client_config({"bootstrap.servers": bootstrap, **(more or {})})
    return LogRig(name, lambda: ConfluentKafka(config), lambda: open_store(str(root), name, storage_options), bootstrap)


@contextmanager
def ports_closed(rig: LogRig) -> Generator[LogRig]:
    """Yield the rig, and close every Kafka port that it made, also the ports that a refusal gave back to the test."""
    made: list[Kafka] = []

    def kafka() -> Kafka:
        made.append(rig.kafka())
        return made[-1]

    yield replace(rig, kafka=kafka)
    for port in made:
        port.close()


@dataclass(slots=True)
class TwinLog:
    """One log on twins, whose clock stands still unless it is moved, and the model of its committed state.

    `stamps`: records have timestamps.
    """

    name: str = "log"
    partitions: int = 3
    now_s: float = 1_000.0
    stamps: bool = True
    replicas: int = 1
    model: State = field(default_factory=dict[Any, Any])
    cluster: MemoryCluster = field(init=False)
    disk: MemoryDisk = field(init=False)

    def __post_init__(self) -> None:
        self.cluster = MemoryCluster(clock=self.clock if self.stamps else None)
        self.disk = MemoryDisk(self.clock)
        self._rig().create(partitions=self.partitions, key_groups=8).close()

    def clock(self) -> float:
        """Return the seconds since 1970."""
        return self.now_s

    @property
    def environment(self) -> Environment:
        """The environment of a round, with this clock's time."""
        return Environment(wall_clock=self.clock)

    def where(self) -> Where:
        """Return the place at which another process sees the log."""
        return self._rig().where()

    def open(self, faults: FaultHook | None = None) -> Log:
        """Return the log as another process sees it."""
        rig = self._rig()
        if faults is not None:
            rig = replace(rig, store=lambda: MemoryStore(self.disk, self.name, faults=faults))
        return rig.open()

    def write(self, changes: dict[bytes, bytes | None], writer: str = "writer") -> None:
        """Commit changes (None deletes) as the writer's next checkpoint, and apply them to the model."""
        with self.open() as log, Writer(log, writer) as out:
            put_all(out, changes.items())
            out.commit()
        self.apply(changes)

    def apply(self, changes: dict[bytes, bytes | None]) -> None:
        """Apply changes to the model."""
        apply_all(self.model, changes.items())

    def run_paths(self) -> set[str]:
        """Return the run files that lie on the disk."""
        prefix = f"{self.name}/"
        return {info.path.removeprefix(prefix) for info in self.disk.files(f"{prefix}runs/")}

    def _rig(self) -> TwinRig:
        return twin_rig(self.name, cluster=self.cluster, disk=self.disk, replicas=self.replicas)


def impatient(rig: LogRig | TwinLog) -> Log:
    """Return the log, opened by a client that believes Kafka's first answer."""
    log = rig.open()
    log.patience_s = 0.0
    return log


def live(name: str, where: Callable[[], Where], scratch: Path, writes: int) -> State:
    """Make a log, and write, with a round between two writes; return the state that another process reads of it."""
    Log.create(name, where(), LogOptions(partitions=2)).close()
    with Log.open(name, where()) as log:
        for number in range(writes):
            if number:
                assert isinstance(run_round(log, settings_for(scratch)), CompletedRound)
            with Writer(log, "w") as writer:
                writer.put(b"k%d" % number, b"v")
                writer.commit({"offset": number})
    with Log.open(name, where()) as log, recover(log) as recovery:
        return recovery.to_dict()


def settings_for(scratch: Path, *, keep: int = 2, **changed: Any) -> MaterializerSettings:
    """Return the settings of a small materializer: it retains two manifests, with no minimum age."""
    defaults: dict[str, Any] = {"scratch": scratch, "retention": RetentionPolicy(keep=keep, min_age_s=0.0)}
    tuned: dict[str, Any] = {"failures_tolerated_s": 0.0}
    tuned |= {one.name: changed.pop(one.name) for one in fields(MaterializerTuning) if one.name in changed}
    return MaterializerSettings(**defaults | changed, _tuning=MaterializerTuning(**tuned))


def rolled_up(scratch: Path) -> TwinLog:
    """Return a log on twins with one snapshot and a tail that changes and deletes some of it."""
    made = TwinLog()
    made.write({f"k{i}".encode(): b"1" for i in range(9)})
    made.environment.run(run_round, made.open(), settings_for(scratch))
    made.write({b"k0": None, b"k1": b"2"})
    return made


def state_of(log: Log, choose: Callable[[list[int]], int] = max) -> State:
    """Return the log's present state, recovered from its newest manifest (or the one that `choose` picks) and tail."""
    numbers = log.manifests.numbers()
    manifest = log.manifests.read(choose(numbers)) if numbers else None
    return apply_tail(log, manifest, state_of_snapshot(log, manifest))


def state_of_snapshot(log: Log, manifest: Manifest | None) -> State:
    """Return the state that a manifest's runs hold."""
    state: State = {}
    for run in manifest.runs if manifest else ():
        with RunReader(log.store.open(run.path), run) as reader:
            apply_to_dict(table_of(reader), state)
    return state


def apply_tail(log: Log, manifest: Manifest | None, state: State, end_position: int | None = None) -> State:
    """Apply the commits between a manifest and a ledger position (None: its end now)."""
    for changes in tail_of(log, manifest, end_position)[1]:
        apply_to_dict(changes, state)
    return state


def tail_of(
    log: Log, manifest: Manifest | None, end_position: int | None = None
) -> tuple[LedgerState, list[pa.RecordBatch]]:
    """Return the ledger's state at a position (None: its end now), and the changes committed since a manifest."""
    with closing(log.replay(manifest)) as ledger, closing(log.kafka.reader(log.data_topic)) as reader:
        commits = ledger.read_to(log.ledger.end() if end_position is None else end_position)
        contents = [found.contents for found in commits]
        plan = plan_replay(contents, range(log.descriptor.partitions), ledger.fold.accepted)
        chunks = replay(log, reader, plan, stall_timeout_s=_STALL_TIMEOUT_S)
        return ledger.fold.freeze(), [chunk.changes for chunk in chunks]


def keys_in(partition: int, partitions: int, key_groups: int) -> Iterator[bytes]:
    """Yield keys of this partition of such a log, as many as the caller takes."""
    keys = ((b"key-%d" % i, key_group_of(b"key-%d" % i, KeyType.BYTES, key_groups)) for i in count())
    return (key for key, group in keys if partition_of(group, partitions, key_groups) == partition)


def key_in(log: Log, partition: int) -> bytes:
    """Return a key of this partition."""
    return next(keys_in(partition, log.descriptor.partitions, log.descriptor.key_groups))
