"""The two sources of a recovery, as changes in the target's value schema: runs, and the tail of the log.

Never folds and never decides. Both count what they read, each in a counter of its own, for one thread to look at.

Invariants:
- Only changes of wanted key groups come out, with their value in the one schema that was asked for.
- A run that is missing or damaged is SnapshotFailed, which tells it apart from anything else that can be missing.
- The tail is whole only when its iterator ends: publish nothing before.
"""

import logging
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import closing
from functools import partial
from itertools import chain
from pathlib import Path

import pyarrow as pa

from statelog.errors import Corrupt, CorruptRun, NotFound, StoreUnavailable, UnknownFormat
from statelog.reading.converter import Converter
from statelog.reading.plan import Plan, RunPart
from statelog.reading.planner import SnapshotFailed
from statelog.recovery.reading.newest import select_key_groups
from statelog.recovery.reading.prefetch import Piece
from statelog.recovery.reading.retry import Pause, RetryingReader, RetryWindow
from statelog.recovery.reading.run_handles import RunHandles
from statelog.recovery.settings import RecoverySettings
from statelog.schemas.changes.replay_plan import ReplayPlan
from statelog.storage.kafka import Reader
from statelog.storage.local.copy import LocalCopyReader
from statelog.storage.log.log import Log
from statelog.storage.replay import CommittedChunk, replay

__all__ = [
    "ReadCount",
    "TailChanges",
    "committed_chunks",
    "run_pieces",
    "run_tables",
    "tail_changes",
]

_LOG = logging.getLogger("statelog.recovery")
_PIECE_BYTES = 1 << 20

TailChanges = tuple[int, pa.RecordBatch]
"""A partition, and the next changes of it."""


class ReadCount:
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


def run_pieces(plan: Plan, part: RunPart, handles: RunHandles) -> list[Piece[list[pa.Table]]]:
    """What is read of one run: the wanted changes, sorted, a table for each row group; small row groups together.

    Each piece that is read at the same time as another needs an open file of its own, so it has to be worth one.
    """
    wanted, index = _wanted(plan), part.run.index.row_groups
    pieces: list[Piece[list[pa.Table]]] = []
    numbers: list[int] = []
    size_bytes = 0
    for number in part.row_groups:
        numbers.append(number)
        size_bytes += index[number].size_bytes
        if size_bytes >= _PIECE_BYTES or number == part.row_groups[-1]:
            pieces.append(Piece(size_bytes, partial(handles.row_groups, numbers, wanted)))
            numbers, size_bytes = [], 0
    return pieces


def run_tables(
    log: Log,
    plan: Plan,
    part: RunPart,
    pieces: Iterable[list[pa.Table]],
    converter: Converter,
    counter: ReadCount,
) -> Iterator[pa.Table]:
    """The results of a run's pieces in the target's value schema, counted. Raises SnapshotFailed, StoreUnavailable."""
    spans = [part.run.index.row_groups[number] for number in part.row_groups]
    try:
        for span, table in zip(spans, chain.from_iterable(pieces), strict=True):
            counter.add(span.rows, span.size_bytes)
            if table.num_rows:
                yield converter.table(table, part.run.value_schema_id)
    except CorruptRun as error:
        raise SnapshotFailed(error) from error
    except NotFound as error:
        raise SnapshotFailed(_missing(log, plan, part)) from error


def _wanted(plan: Plan) -> Collection[int] | None:
    """The wanted key groups; adjacent ones as a range, which a run is cut to without a copy."""
    if not plan.key_groups:
        return plan.key_groups
    first, last = min(plan.key_groups), max(plan.key_groups)
    adjacent = last - first + 1 == len(plan.key_groups)
    return range(first, last + 1) if adjacent else sorted(plan.key_groups)


def _missing(log: Log, plan: Plan, part: RunPart) -> NotFound:
    return NotFound(
        "a run that the snapshot names is gone",
        log=log.name,
        manifest=plan.manifest_number,
        path=part.run.path,
        url=log.store.url,
        hint="Restore the file from a copy of the store, or recover from an older snapshot while the log reaches back",
    )


def tail_changes(
    log: Log,
    plan: Plan,
    converter: Converter,
    counter: ReadCount,
    settings: RecoverySettings,
    *,
    pause: Pause,
    clock: Callable[[], float],
) -> Generator[TailChanges]:
    """The wanted changes of the tail, in offset order within a partition. Errors as for `storage.replay.replay`."""
    chunks = committed_chunks(log, plan.replay, plan.key_groups, converter, counter, settings, pause=pause, clock=clock)
    with closing(chunks):
        for chunk in chunks:
            yield chunk.partition, chunk.changes


def committed_chunks(
    log: Log,
    plan: ReplayPlan,
    key_groups: Collection[int] | None,
    converter: Converter,
    counter: ReadCount,
    settings: RecoverySettings,
    *,
    pause: Pause,
    clock: Callable[[], float],
) -> Generator[CommittedChunk]:
    """The chunks that a plan lists, with their wanted changes in the target's value schema, in offset order within a
    partition. Errors as for `storage.replay.replay`.

    A broker that is away for less than `stall_timeout_s` is waited for, and so is a store that has to be asked for a
    value schema while the lease stands.
    """
    timeout_s, schemas = settings.stall_timeout_s, RetryWindow(settings.lease_ttl_s, clock)
    known: dict[int, pa.Schema] = {}

    def from_kafka() -> Reader:
        return RetryingReader(log.kafka.reader(log.data_topic), RetryWindow(timeout_s, clock), pause)

    def schema(schema_id: int) -> pa.Schema:
        if schema_id not in known:
            known[schema_id] = schemas.call(lambda: log.change_schema(schema_id), pause)
        return known[schema_id]

    reader = _tail_reader(log, plan, settings.local_copies, from_kafka)
    counter.is_local = isinstance(reader, LocalCopyReader)
    try:
        for chunk in replay(reader, log.data_topic, plan, schema, stall_timeout_s=timeout_s):
            counter.add(chunk.changes.num_rows, chunk.size_bytes)
            changes = chunk.changes if key_groups is None else select_key_groups(chunk.changes, key_groups)
            yield chunk._replace(changes=converter.batch(changes, chunk.value_schema_id))
    finally:
        reader.close()


def _tail_reader(log: Log, plan: ReplayPlan, local_copies: Path | None, from_kafka: Callable[[], Reader]) -> Reader:
    """The local copies if they hold all of the tail, verified; else Kafka."""
    if local_copies is not None and plan.listed:
        try:
            return LocalCopyReader(local_copies, log.name, plan, from_kafka)
        except (NotFound, Corrupt, UnknownFormat, StoreUnavailable) as error:
            _LOG.warning("the tail is read from Kafka, because the local copies do not hold all of it: %s", error)
    return from_kafka()
