"""A log with a known history: writers that commit, die and are fenced, and snapshots made by hand.

The rig records every committed change in plain Python next to the log, so that a test knows the state at any position.
Its rounds are naive on purpose: they read the committed tail, keep the last change per key in a dict and write one run,
or fold all runs into one. The rig works on the twins and on a real broker alike. `Reader` reads a stream of it into
plain Python; `SnapshotTwins` has three snapshots on twins that can be damaged.
"""

import tempfile
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import xxhash

from statelog.kafka.port import Kafka, OffsetRange
from statelog.log import Log
from statelog.producer.writer import Writer
from statelog.recovery.cursor import Cursor
from statelog.recovery.stream import Portion
from statelog.schemas.avro import datum_of
from statelog.schemas.changes.changes import PUT
from statelog.schemas.key_groups import partition_of
from statelog.schemas.ledger.place import Metadata
from statelog.schemas.ledger.state import LedgerState
from statelog.schemas.snapshot.manifest import Anchor, Manifest, next_manifest
from statelog.schemas.snapshot.run_ref import RunRef
from statelog.schemas.snapshot.runs import RunMetadata
from statelog.store.files import ManifestChain
from statelog.store.port import Store
from statelog.store.run_reader import RunReader
from statelog.testing.cluster import MemoryCluster
from statelog.testing.kafka import MemoryKafka
from statelog.testing.store import FaultHook, MemoryDisk, MemoryStore
from tests.support.rigs.kafka import read_all
from tests.support.rigs.log import LogRig, tail_of
from tests.support.samples.folds import Row, apply_all, apply_to_dict, put_all, rows_of
from tests.support.samples.runs import change_table, table_of, write_run

__all__ = ["KEYS", "Committed", "HistoryRig", "HistoryTwins", "Reader", "SnapshotTwins", "history_rig"]

Changes = Sequence[tuple[Any, Any]]


class Committed(NamedTuple):
    """One commit of the history: the position right after it, and its changes in order; a value of None deletes."""

    position: int
    writer: str
    checkpoint_id: int
    changes: Changes


class HistoryRig:
    """A log, and its known history."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.history: list[Committed] = []
        self.manifests: list[Manifest] = []

    # ---- writing

    def commit(self, writer: Writer, checkpoint_id: int, changes: Changes, metadata: Metadata | None = None) -> int:
        """Append and commit; return the position right after the commit."""
        self.append(writer, changes)
        position = writer.commit(metadata, checkpoint_id=checkpoint_id).offset + 1
        self.history.append(Committed(position, writer.name, checkpoint_id, list(changes)))
        return position

    def append(self, writer: Writer, changes: Changes) -> None:
        """Append without a commit."""
        put_all(writer, changes)

    # ---- the known history

    def key_group(self, key: Any) -> int:
        """Return the key group of a key."""
        return self.log.descriptor.key_group_of(key)

    def partition(self, key: Any) -> int:
        """Return the partition of a key."""
        descriptor = self.log.descriptor
        return partition_of(self.key_group(key), descriptor.partitions, descriptor.key_groups)

    def state_at(self, position: int, key_groups: Iterable[int] | None = None) -> dict[Any, Any]:
        """Return the state at a position, change by change."""
        wanted = None if key_groups is None else set(key_groups)
        state: dict[Any, Any] = {}
        for commit in self.history:
            if commit.position <= position:
                changes = [one for one in commit.changes if wanted is None or self.key_group(one[0]) in wanted]
                apply_all(state, changes)
        return state

    def end(self) -> int:
        """Return the ledger's end now."""
        return self.log.kafka.offsets(self.log.ledger_topic, [0])[0].end

    # ---- snapshots

    def snapshot(self, *, merge: bool = False, position: int | None = None) -> Manifest:
        """Put the next manifest: the newest one's runs and a delta run, or one run of everything."""
        newest = self.manifests[-1] if self.manifests else None
        state, tail = tail_of(self.log, newest, position)
        delta: dict[Any, Row] = {}
        for changes in tail:
            delta.update(_by_key(changes))
        start = newest.position if newest else 0
        runs = list(newest.runs) if newest else []
        if merge:
            merged: dict[Any, Row] = {}
            for run in runs:
                merged.update(_by_key(table_of(RunReader(self.log.store.open(run.path), run))))
            merged.update(delta)
            delta, runs, start = {key: row for key, row in merged.items() if row[1] == PUT}, [], 0
        if delta or (not runs and state.committed_positions):
            runs.append(self._write_run(list(delta.values()), 0 if not runs else start, state.position))
        manifest = next_manifest(
            newest,
            nonce=uuid.uuid4().bytes,
            identity=self.log.descriptor.identity,
            state=state,
            anchors=self._anchors(state),
            runs=runs,
            created_s=0.0,
        )
        assert self.log.manifests.put(manifest)
        self.manifests.append(manifest)
        return manifest

    def truncate(self, manifest: Manifest) -> None:
        """Truncate the log to what this manifest needs."""
        if manifest.next_offsets:
            self.log.kafka.delete_records(self.log.data_topic, manifest.next_offsets)
        self.log.kafka.delete_records(self.log.ledger_topic, {0: manifest.position})

    def drop(self, manifest: Manifest) -> None:
        """Delete a manifest and the runs that no other one names."""
        named = {run.path for other in self.manifests if other.number != manifest.number for run in other.runs}
        self.log.store.delete(f"manifests/{manifest.number:020d}.avro")
        self.manifests.remove(manifest)
        for run in manifest.runs:
            if run.path not in named:
                self.log.store.delete(run.path)

    def _write_run(self, rows: list[Row], start: int, end: int) -> RunRef:
        schema_id = self.log.value_schemas.newest().id
        schema = self.log.change_schema(schema_id)
        table = change_table(rows, schema.field("key").type, schema.field("value").type)
        label = RunMetadata(log=self.log.name, first_position=start, end_position=end, value_schema_id=0)
        with tempfile.TemporaryDirectory() as directory:
            file = write_run(self.log.store, Path(directory), [table], label=label, target_rows=8)
        return RunRef(**datum_of(file), start_position=start, end_position=end, level=0, value_schema_id=schema_id)

    def _anchors(self, state: LedgerState) -> list[Anchor]:
        """Return the anchors of the last record below each end that is still retained."""
        log, found = self.log, list[Anchor]()
        places: list[tuple[Any, str, Mapping[int, int]]] = [
            ("data", log.data_topic, state.committed_positions),
            ("ledger", log.ledger_topic, {0: state.position}),
        ]
        for kind, topic, ends in places:
            held = log.kafka.offsets(topic, list(ends))
            last = {p: OffsetRange(end - 1, end) for p, end in ends.items() if held[p].start < end <= held[p].end}
            for record in read_all(log.kafka, topic, last):
                found.append(Anchor(kind, record.partition, record.offset, xxhash.xxh3_64_intdigest(record.value)))
        return found


def _by_key(changes: pa.Table | pa.RecordBatch) -> dict[Any, Row]:
    """Return the last row of every (key group, key)."""
    return {(row[0], row[2]): row for row in rows_of(changes)}


def history_rig(
    *,
    name: str = "rig",
    kafka: Kafka | None = None,
    store: Store | None = None,
    partitions: int = 3,
    key_groups: int = 8,
    **options: Any,
) -> HistoryRig:
    """Return a rig on the twins, with a clock that stands still, unless other ports are given."""
    ports = kafka or MemoryKafka(), store or MemoryStore(MemoryDisk(lambda: 1000.0), name)
    rig = LogRig(name, lambda: ports[0], lambda: ports[1])
    return HistoryRig(rig.create(partitions=partitions, key_groups=key_groups, **options))


@dataclass
class Reader:
    """The changes that were applied, in order, and the state that they make."""

    state: dict[Any, Any] = field(default_factory=dict[Any, Any])
    rows: list[Row] = field(default_factory=list[Row])
    checkpoint: str = ""

    def apply(self, portion: Portion) -> None:
        """Apply a portion, and take a checkpoint after it."""
        self.rows += rows_of(portion.changes)
        apply_to_dict(portion.changes, self.state)
        self.checkpoint = portion.cursor.to_json()

    @property
    def cursor(self) -> Cursor:
        """The checkpoint, read back."""
        return Cursor.from_json(self.checkpoint)


KEYS = [b"key-%d" % i for i in range(60)]


class HistoryTwins:
    """A rig on twins that can be damaged."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.cluster = MemoryCluster()
        self.disk = MemoryDisk(lambda: self.now_s)
        self.rig: HistoryRig = history_rig(kafka=MemoryKafka(cluster=self.cluster), store=MemoryStore(self.disk, "rig"))
        self.log = self.rig.log

    @property
    def expected(self) -> dict[object, object]:
        """The newest state."""
        return self.rig.state_at(self.rig.end())

    def hooked(self, hook: FaultHook) -> None:
        """Let the recovery's store call `hook` with every method and path."""
        self.log.store = MemoryStore(self.disk, "rig", faults=hook)
        self.log.manifests = ManifestChain(self.log.store, self.log.descriptor)


class SnapshotTwins(HistoryTwins):
    """Three snapshots and a tail: each key was written in every stretch."""

    def __init__(self, *, truncate: bool) -> None:
        super().__init__()
        with Writer(self.log, "w") as writer:
            for stretch in range(1, 4):
                self.rig.commit(writer, stretch, [(key, b"%d" % stretch) for key in KEYS])
                self.rig.snapshot()
            self.rig.commit(writer, 4, [(key, b"tail") for key in KEYS[::2]])
        if truncate:
            self.rig.drop(self.rig.manifests[0])
            self.rig.truncate(self.rig.manifests[0])

    def run_of(self, snapshot: int) -> str:
        """Return the newest run of a snapshot, by its place in the list."""
        return self.rig.manifests[snapshot].runs[-1].path
