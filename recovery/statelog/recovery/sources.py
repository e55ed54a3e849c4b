"""The two things that a recovery reads, as changes in the target's value schema: runs, and the tail of the log.

Never folds and never decides. Both count what they read, each in a counter of its own, for one thread to look at.

Invariants:
- Only changes of wanted key groups come out, with their value in the one schema that was asked for.
- A run that is missing or damaged is SnapshotFailed, so that it is told from everything else that can be missing.
- The tail is whole when its iterator ends; whoever publishes something before that publishes nothing.
"""

import warnings
from collections.abc import Collection, Generator, Iterator
from pathlib import Path

import pyarrow as pa

from statelog.recovery.fold import select_key_groups
from statelog.recovery.plan import RecoveryPlan, RunPart
from statelog.recovery.planner import RecoveryWarning
from statelog.recovery.settings import RecoverySettings
from statelog.schemas.changes import change_schema
from statelog.schemas.errors import Corrupt, CorruptRun, NotFound, StoreUnavailable, UnknownFormat
from statelog.schemas.values import ValueSchema, convert
from statelog.storage.kafka import Reader
from statelog.storage.local_copy import LocalCopyReader
from statelog.storage.log import Log
from statelog.storage.replay import replay
from statelog.storage.run_reader import RunReader, RunSource

__all__ = ["Converter", "Counter", "SnapshotFailed", "TailChanges", "run_tables", "tail_changes"]

TailChanges = tuple[int, pa.RecordBatch]
"""A partition, and the next changes of it."""


class SnapshotFailed(Exception):
    """A run of the snapshot cannot be read; `error` is what callers get if there is no way around it.

    `is_copy` says that it was a local copy: to read the run once more may succeed, and the snapshot is not to blame.
    """

    def __init__(self, error: CorruptRun | NotFound) -> None:
        super().__init__(str(error))
        self.error = error
        self.is_copy = False


class Counter:
    """What one thread has read so far, and whether from local copies of change sets. Others may look at any time."""

    __slots__ = ("changes", "is_local", "size_bytes")

    def __init__(self) -> None:
        self.changes = 0
        self.size_bytes = 0
        self.is_local = False

    def add(self, changes: int, size_bytes: int) -> None:
        """Count what was read."""
        self.changes += changes
        self.size_bytes += size_bytes


class Converter:
    """Changes of any value schema of the log as changes of one."""

    def __init__(self, log: Log, settings: RecoverySettings) -> None:
        self._log = log
        wanted = settings.value_schema_id
        self.target: ValueSchema = log.value_schemas.newest() if wanted is None else log.value_schemas.get(wanted)
        self.schema = change_schema(log.descriptor.key_type, self.target.arrow_type)

    def batch(self, changes: pa.RecordBatch, value_schema_id: int) -> pa.RecordBatch:
        """A chunk's changes. Raises IncompatibleSchema if an older schema than theirs was asked for."""
        if value_schema_id == self.target.id:
            return changes
        writer = self._log.value_schemas.get(value_schema_id)
        value = convert(changes.column("value"), writer, self.target)
        return pa.RecordBatch.from_arrays([*changes.columns[:3], value], schema=self.schema)

    def table(self, changes: pa.Table, value_schema_id: int) -> pa.Table:
        """A run's changes. Raises as `batch`."""
        if value_schema_id == self.target.id:
            return changes
        batches = [self.batch(batch, value_schema_id) for batch in changes.to_batches()]
        return pa.Table.from_batches(batches, self.schema)


def run_tables(
    log: Log, source: RunSource, plan: RecoveryPlan, part: RunPart, converter: Converter, counter: Counter
) -> Iterator[pa.Table]:
    """The wanted changes of one run, sorted, a table for each row group. Raises SnapshotFailed, StoreUnavailable."""
    run, rows, size_bytes = part.run, 0, 0
    try:
        with RunReader(source, run.file) as reader:
            for table in reader.tables(_wanted(plan)):
                share = part.size_bytes * table.num_rows // max(1, part.rows)
                counter.add(table.num_rows, share)
                rows, size_bytes = rows + table.num_rows, size_bytes + share
                yield converter.table(table, run.value_schema_id)
        counter.add(part.rows - rows, part.size_bytes - size_bytes)
    except CorruptRun as error:
        raise SnapshotFailed(error) from error
    except NotFound as error:
        raise SnapshotFailed(_missing(log, plan, part)) from error


def _wanted(plan: RecoveryPlan) -> Collection[int] | None:
    """The wanted key groups; adjacent ones as a range, which a run is cut to without a copy."""
    if not plan.key_groups:
        return plan.key_groups
    first, last = min(plan.key_groups), max(plan.key_groups)
    adjacent = last - first + 1 == len(plan.key_groups)
    return range(first, last + 1) if adjacent else sorted(plan.key_groups)


def _missing(log: Log, plan: RecoveryPlan, part: RunPart) -> NotFound:
    return NotFound(
        "a run that the snapshot names is gone",
        log=log.name,
        manifest=plan.manifest_number,
        path=part.run.path,
        url=log.store.url,
        hint="Restore the file from a copy of the store, or recover from an older snapshot while the log reaches back",
    )


def tail_changes(
    log: Log, plan: RecoveryPlan, converter: Converter, counter: Counter, settings: RecoverySettings
) -> Generator[TailChanges]:
    """The wanted changes of the tail, in offset order within a partition. Errors as for `storage.replay.replay`."""
    reader = _tail_reader(log, plan, settings.local_copies)
    counter.is_local = isinstance(reader, LocalCopyReader)
    timeout_s = settings.stall_timeout_s
    try:
        for chunk in replay(reader, log.data_topic, plan.replay, log.change_schema, stall_timeout_s=timeout_s):
            counter.add(chunk.changes.num_rows, chunk.size_bytes)
            changes = chunk.changes if plan.key_groups is None else select_key_groups(chunk.changes, plan.key_groups)
            yield chunk.partition, converter.batch(changes, chunk.value_schema_id)
    finally:
        reader.close()


def _tail_reader(log: Log, plan: RecoveryPlan, local_copies: Path | None) -> Reader:
    """The local copies if they hold all of the tail, verified; else Kafka."""
    if local_copies is not None and plan.replay.listed:
        try:
            return LocalCopyReader(local_copies, log.name, plan.replay, lambda: log.kafka.reader(log.data_topic))
        except (NotFound, Corrupt, UnknownFormat, StoreUnavailable) as error:
            text = f"the tail is read from Kafka, because the local copies do not hold all of it: {error}"
            warnings.warn(text, RecoveryWarning, stacklevel=2)
    return log.kafka.reader(log.data_topic)
