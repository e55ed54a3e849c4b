"""A log with a history that is known: writers that commit, die and are fenced, and snapshots made by hand.

The rig keeps every committed change in plain Python beside the log, so that a test can say what the state at any
position is. Its rounds are naive on purpose: they read the committed tail, keep the last change per key in a dict and
write one run, or fold all runs into one. Works on the twins and on a real broker alike.
`Reader` reads a stream of it into plain Python; `SnapshotTwins` has three snapshots on twins that can be damaged.
"""

import tempfile
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import xxhash

from statelog.producer.writer import Writer
from statelog.reading.replay import replay
from statelog.recovery.cursor import Cursor
from statelog.recovery.stream import Portion
from statelog.schemas.avro import datum_of
from statelog.schemas.changes.changes import DELETE, PUT
from statelog.schemas.changes.replay_plan import plan_replay
from statelog.schemas.key_groups import partition_of
from statelog.schemas.ledger.place import Metadata
from statelog.schemas.ledger.state import LedgerState
from statelog.schemas.snapshot.manifest import Anchor, Manifest, next_manifest
from statelog.schemas.snapshot.run_ref import RunRef
from statelog.schemas.snapshot.runs import RunMetadata
from statelog.storage.kafka import Kafka, OffsetRange
from statelog.storage.log.files import ManifestChain
from statelog.storage.log.log import Log
from statelog.storage.run_reader import RunReader
from statelog.storage.run_writer import RunWriter, upload_run
from statelog.storage.store import Store
from statelog.testing.cluster import MemoryCluster
from statelog.testing.kafka import MemoryKafka
from statelog.testing.store import Fault, MemoryDisk, MemoryStore
from tests.support.rigs.log import LogRig
from tests.support.samples.runs import Change, change_table

__all__ = ["KEYS", "Committed", "HistoryRig", "Reader", "SnapshotTwins", "history_rig", "rows_of"]

Changes = Sequence[tuple[Any, Any]]


class Committed(NamedTuple):
    """One commit of the history: the position right after it, and its changes in order; a value of None deletes."""

    position: int
    writer: str
    checkpoint_id: int
    changes: Changes


class HistoryRig:
    """A log, and what is known about it."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.history: list[Committed] = []
        self.manifests: list[Manifest] = []

    # ---- writing

    def commit(self, writer: Writer, checkpoint_id: int, changes: Changes, metadata: Metadata | None = None) -> int:
        """Append and commit; returns the position right after the commit."""
        self.append(writer, changes)
        position = writer.commit(metadata, checkpoint_id=checkpoint_id).offset + 1
        self.history.append(Committed(position, writer.name, checkpoint_id, list(changes)))
        return position

    def append(self, writer: Writer, changes: Changes) -> None:
        """Append without a commit."""
        for key, value in changes:
            if value is None:
                writer.delete(key)
            else:
                writer.put(key, value)

    # ---- what is known

    def key_group(self, key: Any) -> int:
        """The key group of a key."""
        return self.log.descriptor.key_group_of(key)

    def partition(self, key: Any) -> int:
        """The partition of a key."""
        descriptor = self.log.descriptor
        return partition_of(self.key_group(key), descriptor.partitions, descriptor.key_groups)

    def state_at(self, position: int, key_groups: Iterable[int] | None = None) -> dict[Any, Any]:
        """The state at a position, change by change."""
        wanted = None if key_groups is None else set(key_groups)
        state: dict[Any, Any] = {}
        for commit in self.history:
            for key, value in commit.changes if commit.position <= position else ():
                if wanted is not None and self.key_group(key) not in wanted:
                    continue
                state.pop(key, None)
                if value is not None:
                    state[key] = value
        return state

    def end(self) -> int:
        """The ledger's end now."""
        return self.log.kafka.offsets(self.log.ledger_topic, [0])[0].end

    # ---- snapshots

    def snapshot(self, *, merge: bool = False, position: int | None = None) -> Manifest:
        """Put the next manifest: the newest one's runs and a delta run, or one run of everything."""
        newest = self.manifests[-1] if self.manifests else None
        delta, state = self._delta(newest, self.end() if position is None else position)
        start = newest.position if newest else 0
        runs = list(newest.runs) if newest else []
        if merge:
            merged: dict[Any, Change] = {}
            for run in runs:
                merged.update(_rows(RunReader(self.log.store.open(run.path), run).table()))
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

    def _delta(self, newest: Manifest | None, end: int) -> tuple[dict[Any, Change], LedgerState]:
        ledger = self.log.ledger.client(newest)
        commits = ledger.read_to(end)
        state = ledger.fold.freeze()
        ledger.close()
        bodies = [valid.commit.read_body() for valid in commits]
        plan = plan_replay(bodies, range(self.log.descriptor.partitions), state.accepted)
        reader = self.log.kafka.reader(self.log.data_topic)
        rows: dict[Any, Change] = {}
        for chunk in replay(reader, self.log.data_topic, plan, self.log.change_schema, stall_timeout_s=60.0):
            rows.update(_rows(pa.Table.from_batches([chunk.changes])))
        reader.close()
        return rows, state

    def _write_run(self, rows: list[Change], start: int, end: int) -> RunRef:
        schema = self.log.change_schema(self.log.value_schemas.newest().id)
        table = change_table(rows, schema.field("key").type, schema.field("value").type)
        label = RunMetadata(log=self.log.name, first_position=start, end_position=end, value_schema_id=0)
        with (
            tempfile.TemporaryDirectory() as directory,
            RunWriter(Path(directory) / uuid.uuid4().hex, table.schema, label, target_rows=8) as writer,
        ):
            writer.append(table)
            file = upload_run(self.log.store, writer.finish())
        schema_id = self.log.value_schemas.newest().id
        return RunRef(**datum_of(file), start_position=start, end_position=end, level=0, value_schema_id=schema_id)

    def _anchors(self, state: LedgerState) -> list[Anchor]:
        data = {p: end - 1 for p, end in state.committed_positions.items()}
        held = self.log.data_offsets()
        at = {p: offset for p, offset in data.items() if held[p].start <= offset < held[p].end}
        anchors = self._hash_all(self.log.data_topic, "data", at)
        start, end = self.log.kafka.offsets(self.log.ledger_topic, [0])[0]
        if start < state.position <= end:
            anchors += self._hash_all(self.log.ledger_topic, "ledger", {0: state.position - 1})
        return anchors

    def _hash_all(self, topic: str, kind: Any, at: Mapping[int, int]) -> list[Anchor]:
        reader = self.log.kafka.reader(topic)
        wanted = {partition: OffsetRange(offset, offset + 1) for partition, offset in at.items()}
        found = [
            Anchor(kind, record.partition, record.offset, xxhash.xxh3_64_intdigest(record.value))
            for record in reader.read(wanted, stall_timeout_s=60.0)
        ]
        reader.close()
        return found


def _rows(table: pa.Table) -> dict[Any, Change]:
    """Rows by (key group, key), later ones last."""
    columns = [table.column(i).to_pylist() for i in range(4)]
    found: dict[Any, Change] = {}
    for group, op, key, value in zip(*columns, strict=True):
        assert op in (PUT, DELETE)
        found.pop((group, key), None)
        found[group, key] = (group, op, key, value)
    return found


def history_rig(
    *,
    name: str = "rig",
    kafka: Kafka | None = None,
    store: Store | None = None,
    partitions: int = 3,
    key_groups: int = 8,
    **options: Any,
) -> HistoryRig:
    """A rig on the twins, with a clock that stands still, unless other ports are given."""
    ports = kafka or MemoryKafka(), store or MemoryStore(MemoryDisk(lambda: 1000.0), name)
    rig = LogRig(name, lambda: ports[0], lambda: ports[1])
    return HistoryRig(rig.create(partitions=partitions, key_groups=key_groups, **options))


Row = tuple[int, int, Any, Any]


def rows_of(portion: Portion) -> list[Row]:
    """Its changes as (key group, op, key, value)."""
    columns = [column.to_pylist() for column in portion.changes.columns]
    return list(zip(*columns, strict=True))


@dataclass
class Reader:
    """What was applied, in order, and what it makes."""

    state: dict[Any, Any] = field(default_factory=dict[Any, Any])
    rows: list[Row] = field(default_factory=list[Row])
    checkpoint: str = ""

    def apply(self, portion: Portion) -> None:
        """Apply a portion, and take a checkpoint behind it."""
        self.rows += rows_of(portion)
        for _, op, key, value in rows_of(portion):
            self.state.pop(key, None)
            if op != DELETE:
                self.state[key] = value
        self.checkpoint = portion.cursor.to_json()

    @property
    def cursor(self) -> Cursor:
        """The checkpoint, read back."""
        return Cursor.from_json(self.checkpoint)


KEYS = [b"key-%d" % i for i in range(60)]


class SnapshotTwins:
    """A rig on twins that can be damaged, with three snapshots and a tail: each key was written in every stretch."""

    def __init__(self, *, truncate: bool) -> None:
        self.now_s = 1000.0
        self.cluster = MemoryCluster()
        self.disk = MemoryDisk(lambda: self.now_s)
        self.rig: HistoryRig = history_rig(kafka=MemoryKafka(cluster=self.cluster), store=MemoryStore(self.disk, "rig"))
        self.log = self.rig.log
        with Writer(self.log, "w") as writer:
            for stretch in range(1, 4):
                self.rig.commit(writer, stretch, [(key, b"%d" % stretch) for key in KEYS])
                self.rig.snapshot()
            self.rig.commit(writer, 4, [(key, b"tail") for key in KEYS[::2]])
        if truncate:
            self.rig.drop(self.rig.manifests[0])
            self.rig.truncate(self.rig.manifests[0])

    @property
    def expected(self) -> dict[object, object]:
        """The newest state."""
        return self.rig.state_at(self.rig.end())

    def run_of(self, snapshot: int) -> str:
        """The newest run of a snapshot, by its place in the list."""
        return self.rig.manifests[snapshot].runs[-1].path

    def hooked(self, hook: Callable[[str, str], None]) -> None:
        """Let the recovery's store call `hook` with every method and path."""

        def ask(method: str, path: str) -> Fault | None:
            hook(method, path)
            return None

        self.log.store = MemoryStore(self.disk, "rig", faults=ask)
        self.log.manifests = ManifestChain(self.log.store, self.log.descriptor)
