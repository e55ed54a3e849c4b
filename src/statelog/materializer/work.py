"""The work that a task is: read, fold or merge as a stream, and write runs. Every engine calls this and nothing else.

Which runs to merge is decided in `schemas.snapshot.run_ref`; how rows are merged, in `storage.merge`.

A fold is of the last change of every key that the commits touch, one partition after another: they hold adjacent key
groups, so their sorted changes one after the other are the whole in order.

A scratch directory is where a round writes runs before it uploads them. It is an own directory
(`storage.local.own_directory`): one that a kill left behind is removed by the next round, others when their round ends.
One that cannot be removed never fails a round: its runs are in the store by then.

Invariants:
- A fold is complete only once the last partition's replay has ended: only then is it known that all that was listed is
  there. A caller that stops earlier must publish nothing.
- Every run gets a name that was never used before, so work that is done twice leaves files that nobody names.
- A merged run's values have the newest schema.
- Memory holds about three times `FOLD_BYTES` in a fold (`reading.sorted_tail`), whatever the number and the size of the
  commits and of their values, or a row group for each lane of a merge: nothing grows with the state.
- Writing stops between two tables once `go_on` raises.
"""

import os
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from statelog.environment import DiskHook, Environment, no_faults
from statelog.errors import ConfigError, StatelogError, StoreUnavailable
from statelog.materializer.tasks import FoldTask, Task, TaskOutput, only
from statelog.reading.converter import Converter
from statelog.reading.sorted_tail import SortedTail
from statelog.schemas.changes.replay_plan import ReplayPlan
from statelog.schemas.snapshot.run_ref import RunRef, lanes
from statelog.schemas.snapshot.runs import RunFile, RunMetadata
from statelog.storage.ledger_client import STALL_TIMEOUT_S
from statelog.storage.local.disk import local_disk
from statelog.storage.local.own_directory import OwnDirectory, make_own
from statelog.storage.local.spill import NamelessFile
from statelog.storage.log.log import Log
from statelog.storage.merge import merge_streams
from statelog.storage.replay import CommittedChunk, replay
from statelog.storage.run_reader import RunReader
from statelog.storage.run_writer import RunWriter, WrittenRun, write_cut

__all__ = [
    "FOLD_BYTES",
    "LocalRunRef",
    "OpenRun",
    "RoundWork",
    "delta_tables",
    "fold",
    "not_whole",
    "scratch_directory",
    "write_runs",
]

FOLD_BYTES = 64 << 20
_PREFIX = "statelog-round-"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundWork:
    """What an engine gets for one round. `scratch` is a directory of the round on this machine.

    `go_on` raises once the round is given up.
    """

    log: Log
    scratch: Path
    go_on: Callable[[], None]
    environment: Environment


OpenRun = Callable[[RunRef], RunReader]
"""Opens a run for reading, wherever it is by now."""


def delta_tables(
    log: Log,
    plan: ReplayPlan,
    converter: Converter,
    scratch: Path,
    *,
    drop_deletes: bool,
    fold_bytes: int = FOLD_BYTES,
    disk: DiskHook = no_faults,
) -> Iterator[pa.Table]:
    """Sorted tables with the last change of every key of the plan, values in the converter's schema.

    `drop_deletes` leaves deletes out: only right where no older run exists. Raises Damaged,
    OffsetGone, BrokerUnavailable.
    """
    reader = log.kafka.reader(log.data_topic)
    try:
        for partition in sorted(plan.listed):
            chunks = replay(
                reader, log.data_topic, only(plan, [partition]), log.change_schema, stall_timeout_s=STALL_TIMEOUT_S
            )
            yield from fold(chunks, converter, scratch, drop_deletes=drop_deletes, fold_bytes=fold_bytes, disk=disk)
    finally:
        reader.close()


def fold(
    chunks: Iterable[CommittedChunk],
    converter: Converter,
    scratch: Path,
    *,
    drop_deletes: bool,
    fold_bytes: int,
    disk: DiskHook = no_faults,
) -> Iterator[pa.Table]:
    """One partition's chunks as sorted tables with the last change of every key.

    Raises StorageFull, StoreUnavailable for the scratch directory.
    """
    with SortedTail(fold_bytes=fold_bytes, directories=(scratch,), open_file=partial(NamelessFile, disk=disk)) as tail:
        for chunk in chunks:
            tail.add(chunk.partition, converter.batch(chunk.changes, chunk.value_schema_id), chunk.size_bytes)
        tail.finish()
        yield from merge_streams(tail.streams(), drop_deletes=drop_deletes)


class LocalRunRef(NamedTuple):
    """A run as a manifest will name it, and the local file that it is still."""

    run: RunRef
    written: WrittenRun


def write_runs(task: Task, work: RoundWork, open_run: OpenRun) -> list[LocalRunRef]:
    """Do a task. Returns local runs that tile what the task covers.

    Raises Damaged, NotFound (a run was deleted meanwhile: the manifest is no longer the newest), Unavailable, and what
    `go_on` raises.
    """
    output = task.output
    with closing(_tables(task, work, open_run)) as tables:
        found = write_cut(_going_on(tables, work), lambda: _writer(output, work), output.cuts, output.key_groups)
    return [LocalRunRef(_referred(run.file, key_groups, output), run) for key_groups, run in found]


def not_whole(error: StatelogError) -> StoreUnavailable:
    """The failure of a run that was uploaded and cannot be read back. Nobody names it, so it is no damage."""
    return StoreUnavailable(
        f"a run did not arrive whole: {error.message}",
        hint="No manifest names it: the next round writes it again. If this repeats, check network and disks",
        **error.facts,
    )


def _tables(task: Task, work: RoundWork, open_run: OpenRun) -> Generator[pa.Table]:
    output = task.output
    converter = Converter(work.log, output.value_schema_id)
    if isinstance(task, FoldTask):
        yield from delta_tables(
            work.log,
            task.replay,
            converter,
            work.scratch,
            drop_deletes=output.drop_deletes,
            disk=work.environment.disk,
        )
        return
    with ExitStack() as opened:
        streams = [
            opened.enter_context(closing(_lane(lane, output.key_groups, converter, open_run)))
            for lane in lanes(task.runs)
        ]
        yield from merge_streams(streams, drop_deletes=output.drop_deletes)


def _lane(lane: Iterable[RunRef], key_groups: range, converter: Converter, open_run: OpenRun) -> Generator[pa.Table]:
    """The rows of runs one after the other, each open only while it is read."""
    for run in lane:
        is_whole = key_groups.start <= run.first_key_group and run.end_key_group <= key_groups.stop
        with open_run(run) as reader:
            for table in reader.tables(None if is_whole else key_groups):
                yield converter.table(table, run.value_schema_id)


def _going_on(tables: Iterable[pa.Table], work: RoundWork) -> Iterator[pa.Table]:
    for table in tables:
        work.go_on()
        yield table


def _writer(output: TaskOutput, work: RoundWork) -> RunWriter:
    label = RunMetadata(
        log=work.log.name,
        first_position=output.start_position,
        end_position=output.end_position,
        value_schema_id=output.value_schema_id,
    )
    schema = work.log.change_schema(output.value_schema_id)
    return RunWriter(work.scratch / f"{work.environment.new_id()}.parquet", schema, label, disk=work.environment.disk)


def _referred(file: RunFile, key_groups: range, output: TaskOutput) -> RunRef:
    return RunRef.of(
        file,
        start_position=output.start_position,
        end_position=output.end_position,
        first_key_group=key_groups.start,
        end_key_group=key_groups.stop,
        level=output.level,
        value_schema_id=output.value_schema_id,
    )


@contextmanager
def scratch_directory(parent: Path, environment: Environment) -> Generator[Path]:
    """A new directory below `parent`, removed on leaving; those of dead rounds are removed first.

    Raises ConfigError if `parent` is no directory that can be written to, StorageFull, StoreUnavailable.
    """
    with _make(parent, environment) as directory:
        yield directory.path


def _make(parent: Path, environment: Environment) -> OwnDirectory:
    try:
        with local_disk(parent, "make", environment.disk):
            return make_own(parent, _PREFIX, new_id=environment.new_id)
    except StoreUnavailable as error:
        if os.access(parent, os.W_OK | os.X_OK):
            raise
        hint = "Name an existing, writable directory with room for two copies of the state"
        raise ConfigError("the scratch directory cannot be used", hint=hint, scratch=str(parent)) from error
