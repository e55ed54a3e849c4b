"""A log on the in-memory twins, and a plain reader of its state: what every materializer test compares with.

The reader is as simple as can be: all runs of a manifest, then the committed tail, applied to a dict one after the
other. It uses neither the recovery room nor anything of the materializer.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from statelog.materializer.settings import MaterializerSettings
from statelog.producer.writer import Writer
from statelog.schemas.changes.changes import apply_to_dict
from statelog.schemas.changes.replay_plan import plan_replay
from statelog.schemas.snapshot.manifest import Manifest
from statelog.schemas.snapshot.retention import RetentionPolicy
from statelog.seams import Seams
from statelog.storage.kafka.memory import MemoryKafka
from statelog.storage.kafka.memory_cluster import MemoryCluster
from statelog.storage.log.log import Log
from statelog.storage.replay import replay
from statelog.storage.runs.read import RunReader
from statelog.storage.store.memory import FaultHook, MemoryDisk, MemoryStore

__all__ = ["UNSAFE", "TwinLog", "apply_tail", "settings_for", "state_of", "state_of_snapshot"]

UNSAFE = ("replication", "min-insync")
State = dict[object, object]


def _no_faults(_method: str, _path: str) -> None:
    return None


@dataclass(slots=True)
class TwinLog:
    """One log on twins, whose clock stands still unless it is moved, and the model of its committed state.

    `stamps`: records have timestamps.
    """

    name: str = "log"
    partitions: int = 3
    now_s: float = 1_000.0
    stamps: bool = True
    model: State = field(default_factory=dict[object, object])
    cluster: MemoryCluster = field(init=False)
    disk: MemoryDisk = field(init=False)

    def __post_init__(self) -> None:
        self.cluster = MemoryCluster(clock=self.clock if self.stamps else None)
        self.disk = MemoryDisk(self.clock)
        Log.create(
            self.name,
            kafka=MemoryKafka(cluster=self.cluster),
            root=MemoryStore(self.disk, self.name),
            partitions=self.partitions,
            key_groups=8,
            replication_factor=1,
            allow_unsafe=UNSAFE,
        ).close()

    def clock(self) -> float:
        """Seconds since 1970."""
        return self.now_s

    @property
    def seams(self) -> Seams:
        """Those of a round that tells this clock's time."""
        return Seams(wall_clock=self.clock)

    def open(self, faults: FaultHook = _no_faults) -> Log:
        """The log as another process sees it."""
        store = MemoryStore(self.disk, self.name, faults=faults)
        return Log.open(self.name, kafka=MemoryKafka(cluster=self.cluster), root=store, allow_unsafe=UNSAFE)

    def write(self, changes: dict[bytes, bytes | None], writer: str = "writer") -> None:
        """Commit changes (None deletes) as the writer's next checkpoint, and apply them to the model."""
        with self.open() as log, Writer(log, writer) as out:
            last = out.last_commit
            for key, value in changes.items():
                out.delete(key) if value is None else out.put(key, value)
            out.commit((last.checkpoint.id if last else 0) + 1)
        self.apply(changes)

    def apply(self, changes: dict[bytes, bytes | None]) -> None:
        """Apply changes to the model."""
        for key, value in changes.items():
            if value is None:
                self.model.pop(key, None)
            else:
                self.model[key] = value

    def run_paths(self) -> set[str]:
        """The run files that lie on the disk."""
        prefix = f"{self.name}/"
        return {info.path.removeprefix(prefix) for info in self.disk.files(f"{prefix}runs/")}


def settings_for(scratch: Path, *, keep: int = 2, **changed: Any) -> MaterializerSettings:
    """Settings of a small materializer: keeps two manifests, no minimum age."""
    defaults: dict[str, Any] = {"scratch": scratch, "retention": RetentionPolicy(keep=keep, min_age_s=0.0)}
    defaults["failures_tolerated_s"] = 0.0
    return MaterializerSettings(**defaults | changed)


def state_of_snapshot(log: Log, manifest: Manifest | None) -> State:
    """The state that a manifest's runs hold."""
    state: State = {}
    for run in manifest.runs if manifest else ():
        with RunReader(log.store, run.file) as reader:
            apply_to_dict(reader.table(), state)
    return state


def apply_tail(log: Log, manifest: Manifest | None, state: State, end_position: int | None = None) -> State:
    """Apply what was committed between a manifest and a ledger position (None: its end now)."""
    ledger = log.ledger(manifest)
    reader = log.kafka.reader(log.data_topic)
    try:
        commits = ledger.read_to(ledger.end_position() if end_position is None else end_position)
        bodies = [found.commit.read_body() for found in commits]
        plan = plan_replay(bodies, range(log.descriptor.partitions), ledger.fold.accepted)
        for chunk in replay(reader, log.data_topic, plan, log.change_schema, stall_timeout_s=30.0):
            apply_to_dict(pa.Table.from_batches([chunk.changes]), state)
    finally:
        ledger.close()
        reader.close()
    return state


def state_of(log: Log, choose: Callable[[list[int]], int] = max) -> State:
    """The state of the log now, recovered from its newest manifest (or another that `choose` picks)."""
    numbers = log.manifests.numbers()
    manifest = log.manifests.read(choose(numbers)).manifest if numbers else None
    return apply_tail(log, manifest, state_of_snapshot(log, manifest))
