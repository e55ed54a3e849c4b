"""`Engine`: what carries out the tasks of a round; and the work of a task, which is the same for every engine.

A fold is of the last change of every key that the commits touch, some partitions after others: they hold adjacent key
groups, so their sorted changes one after the other are the whole in order. Partitions with little are read and sorted
together, because each read of the client and each sort has its own cost. How rows are merged: `storage.merge`.

A scratch directory is where a round writes runs before it uploads them: one that a kill left behind is removed by the
next round, others when their round ends. One that cannot be removed never fails a round: its runs are in the store.

Invariants:
- A run lies in the store already or as a finished local file, never in both. So runs that are merged in the round that
  wrote them are never uploaded.
- A fold is complete only once the last partition's replay has ended: only then is it known that all that was listed is
  there. A caller that stops earlier must publish nothing.
- Every run gets a name that was never used before, so work that is done twice leaves files that no manifest names.
- Memory holds about three times `fold_bytes` in a fold (`reading.sorted_tail`), whatever the number and the size of the
  commits and of their values, or a few megabytes of row groups for each lane of a merge, with what is read ahead:
  nothing grows with the state. Folds that go on at the same time share it.
"""

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol, TypeVar

import pyarrow as pa

from statelog.environment import DiskHook, Environment, Start, no_faults
from statelog.errors import ConfigError, CorruptRun, NotFound, StatelogError, StoreUnavailable
from statelog.materializer.side_by_side import side_by_side
from statelog.materializer.tasks import Task, TaskOutput, only
from statelog.reading import CommittedChunk, Converter, SortedTail, replay
from statelog.schemas.avro import datum_of
from statelog.schemas.changes.replay_plan import ReplayPlan
from statelog.schemas.ledger.place import LastRecord
from statelog.schemas.snapshot.run_ref import RunRef, lanes
from statelog.schemas.snapshot.runs import RunFile, RunMetadata, row_groups_for
from statelog.storage.kafka import STALL_TIMEOUT_S
from statelog.storage.local.disk import local_disk
from statelog.storage.local.own_directory import make_own
from statelog.storage.local.spill import NamelessFile
from statelog.storage.log.log import Log
from statelog.storage.merge import Lane, LanePart, merge_streams
from statelog.storage.run_reader import PIECE_BYTES, open_local, read_back
from statelog.storage.run_writer import RunWriter, WrittenRun, upload_run, write_cut
from statelog.storage.store import Store

FOLD_BYTES = 64 << 20
_TASK_BYTES = 32 << 20
_TOGETHER_BYTES = 16 << 20
_PREFIX = "statelog-round-"

P = TypeVar("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The runs that some tasks wrote, or that were read back, and how long that took, one after the other: of a write
    only what was replayed for it counts, `rows` are those that the replays came to, and `last` the last record that was
    read of each partition.
    """

    runs: tuple[RunRef, ...]
    seconds: float
    rows: int = 0
    last: Mapping[int, LastRecord] = field(default_factory=dict[int, LastRecord])


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundWork:
    """What an engine gets for one round. `scratch` is a directory of the round on this machine. `go_on` raises once the
    round is given up. So many `threads` may be at work here, and a fold sorts `fold_bytes` of changes at once.
    """

    log: Log
    scratch: Path
    go_on: Callable[[], None]
    environment: Environment
    threads: int = 1
    fold_bytes: int = FOLD_BYTES


class Engine(Protocol):
    """Writes runs in one round. Never decides what is in a manifest, and never deletes what lies in the store."""

    def tasks_for(self, size_bytes: int) -> int:
        """Into how many tasks a fold or a merge of so many bytes is cut at most, one or more."""
        ...

    def write(self, tasks: Sequence[Task]) -> Written:
        """Do the tasks. Raises Damaged, NotFound, Unavailable, and what `go_on` raises."""
        ...

    def forget(self, runs: Sequence[RunRef]) -> None:
        """Runs that were merged into others. Those that no store has yet need not be kept."""
        ...

    def publish(self, runs: Sequence[RunRef]) -> Written:
        """Upload those of the runs that this engine wrote, and read each back, every byte, unless that was done.

        Returns them, and the seconds that reading back took. Raises CorruptRun or NotFound if one did not arrive whole,
        StoreUnavailable, StorageFull, and what `go_on` raises.
        """
        ...


EngineMaker = Callable[[RoundWork], Engine]
"""Makes the engine of one round."""


class LocalEngine:
    """The engine of one round, on threads: pyarrow, disk and network leave the interpreter to others."""

    def __init__(self, work: RoundWork) -> None:
        self._work = work
        self._log = work.log
        self._clock = work.environment.clock
        self._local: dict[str, WrittenRun] = {}

    def tasks_for(self, size_bytes: int) -> int:
        """One for each thread, if it is worth files of its own."""
        return tasks_for(size_bytes, self._work.threads)

    def write(self, tasks: Sequence[Task]) -> Written:
        """Do the tasks; their runs are local files. One of those that was lost or harmed since is no damage."""
        fold_bytes = max(1, self._work.fold_bytes // min(self._work.threads, max(1, len(tasks))))

        def do(task: Task, go_on: Callable[[], None]) -> tuple[list[LocalRunRef], Replayed]:
            return write_runs(task, replace(self._work, go_on=go_on, fold_bytes=fold_bytes), self._local)

        try:
            done = self._in_threads(do, tasks)
        except (CorruptRun, NotFound) as error:
            if error.facts.get("path") in self._local:
                raise not_whole(error) from error
            raise
        runs = self._kept([one for found, _ in done for one in found])
        return written_of(runs, [replayed for _, replayed in done])

    def write_tables(self, tables: Iterable[pa.Table], output: TaskOutput) -> Written:
        """Write sorted tables that come from elsewhere, as a task's; their runs are local files."""
        started_s = self._clock()
        runs = self._kept(write_tables(tables, output, self._work))
        return Written(runs=runs, seconds=self._clock() - started_s, rows=sum(run.rows for run in runs))

    def forget(self, runs: Sequence[RunRef]) -> None:
        """Remove those that are local files."""
        for run in runs:
            written = self._local.pop(run.path, None)
            if written is not None:
                written.local.unlink(missing_ok=True)

    def publish(self, runs: Sequence[RunRef]) -> Written:
        """Upload the local files among the runs, then read them back."""
        mine = tuple(run for run in runs if run.path in self._local)

        def timed(run: RunRef, _: object) -> float:
            started_s = self._clock()
            read_back(self._log.store, run)
            return self._clock() - started_s

        self._in_threads(lambda run, _: upload_run(self._log.store, self._local.pop(run.path)), mine)
        return Written(runs=mine, seconds=sum(self._in_threads(timed, mine)))

    def _kept(self, found: "Sequence[LocalRunRef]") -> tuple[RunRef, ...]:
        self._local.update({one.run.path: one.written for one in found})
        return tuple(one.run for one in found)

    def _in_threads(self, do: Callable[[P, Callable[[], None]], T], parts: Sequence[P]) -> list[T]:
        jobs = [partial(do, part) for part in parts]
        return side_by_side(jobs, self._work.threads, self._work.go_on, self._work.environment.start)


def tasks_for(size_bytes: int, threads: int) -> int:
    """Into how many tasks so many bytes are cut at most, for so many threads."""
    return max(1, min(threads, size_bytes // _TASK_BYTES))


class LocalRunRef(NamedTuple):
    """A run as a manifest will name it, and the local file that it is still."""

    run: RunRef
    written: WrittenRun


@dataclass(slots=True)
class Replayed:
    """The rows that a task's replay came to so far, the seconds that it took, and the last records that it read."""

    rows: int = 0
    seconds: float = 0.0
    last: dict[int, LastRecord] = field(default_factory=dict[int, LastRecord])

    def counted(self, tables: Iterator[pa.Table], clock: Callable[[], float]) -> Iterator[pa.Table]:
        """The tables, and the time until each of them is there."""
        while True:
            started_s = clock()
            table = next(tables, None)
            self.seconds += clock() - started_s
            if table is None:
                return
            self.rows += table.num_rows
            yield table


def written_of(runs: Sequence[RunRef], replays: Sequence[Replayed]) -> Written:
    """What tasks wrote, of which these are the replays."""
    return Written(
        runs=tuple(runs),
        seconds=sum(one.seconds for one in replays),
        rows=sum(one.rows for one in replays),
        last={partition: last for one in replays for partition, last in one.last.items()},
    )


def write_runs(
    task: Task, work: RoundWork, local: Mapping[str, WrittenRun] | None = None
) -> tuple[list[LocalRunRef], Replayed]:
    """Do a task. Returns local runs that tile what the task covers, and what was replayed for them; `local` as
    `merged_runs` takes it.

    Raises Damaged, NotFound (a run was deleted meanwhile: the manifest is no longer the newest), Unavailable, and what
    `go_on` raises.
    """
    log, output, runs, replayed = work.log, task.output, task.runs, Replayed()
    converter = Converter(log, output.value_schema_id)
    with ExitStack() as stack:
        tails: list[Iterator[pa.Table]] = []
        if task.replay is not None:
            # Among runs its deletes may hide something: they go in the merge, if at all.
            drop_deletes = output.drop_deletes and not runs
            found = delta_tables(log, task.replay, converter, work, drop_deletes=drop_deletes, last=replayed.last)
            tails = [replayed.counted(stack.enter_context(closing(found)), work.environment.clock)]
        merged = merged_runs(
            log.store,
            runs,
            output.key_groups,
            converter,
            work.environment.start,
            tails,
            drop_deletes=output.drop_deletes,
            local=local,
        )
        with closing(merged) as tables:
            return write_tables(tables, output, work), replayed


def write_tables(tables: Iterable[pa.Table], output: TaskOutput, work: RoundWork) -> list[LocalRunRef]:
    """Write sorted tables as local runs that tile the output. Raises CorruptRun, StorageFull, StoreUnavailable."""
    found = write_cut(_going_on(tables, work), lambda: _writer(output, work), output.cuts, output.key_groups)
    return [LocalRunRef(_referred(run.file, key_groups, output), run) for key_groups, run in found]


def delta_tables(
    log: Log,
    plan: ReplayPlan,
    converter: Converter,
    work: RoundWork,
    *,
    drop_deletes: bool,
    last: dict[int, LastRecord] | None = None,
) -> Generator[pa.Table]:
    """Sorted tables with the last change of every key of the plan, values in the converter's schema. The log may be
    another one than the work's. `drop_deletes` leaves deletes out: only right where no older run exists. Raises
    Damaged, OffsetGone, BrokerUnavailable.
    """
    reader = log.kafka.reader(log.data_topic)
    try:
        for partitions in _together(plan, min(_TOGETHER_BYTES, work.fold_bytes)):
            chunks = replay(
                reader,
                log.data_topic,
                only(plan, partitions),
                log.change_schema,
                stall_timeout_s=STALL_TIMEOUT_S,
                last=last,
            )
            yield from fold(
                chunks,
                converter,
                work.scratch,
                drop_deletes=drop_deletes,
                fold_bytes=work.fold_bytes,
                disk=work.environment.disk,
            )
    finally:
        reader.close()


def _together(plan: ReplayPlan, most_bytes: int) -> Iterator[list[int]]:
    """The partitions that a plan lists, in order, neighbours together as long as they have no more than that."""
    group, left_bytes = list[int](), most_bytes
    for partition in sorted(plan.listed):
        size_bytes = sum(entry.size_bytes for entry in plan.listed[partition])
        if group and size_bytes > left_bytes:
            yield group
            group, left_bytes = [], most_bytes
        group.append(partition)
        left_bytes -= size_bytes
    if group:
        yield group


def fold(
    chunks: Iterable[CommittedChunk],
    converter: Converter,
    scratch: Path,
    *,
    drop_deletes: bool,
    fold_bytes: int,
    disk: DiskHook = no_faults,
) -> Iterator[pa.Table]:
    """The chunks of some partitions as sorted tables, the last change of every key. Raises StorageFull,
    StoreUnavailable.
    """
    with SortedTail(fold_bytes=fold_bytes, directories=(scratch,), open_file=partial(NamelessFile, disk=disk)) as tail:
        for chunk in map(converter.chunk, chunks):
            tail.add(0, chunk.changes, chunk.size_bytes)  # One pile: what is sorted at once, whatever the partitions.
        tail.finish()
        yield from merge_streams(tail.streams(), drop_deletes=drop_deletes)


def not_whole(error: StatelogError) -> StoreUnavailable:
    """The failure of a run that was written, or uploaded, and cannot be read back: no damage, as nobody names it."""
    return StoreUnavailable(
        f"a run did not arrive whole: {error.message}",
        hint="No manifest names it: the next round writes it again. If this repeats, check network and disks",
        **error.facts,
    )


def merged_runs(
    store: Store,
    runs: Iterable[RunRef],
    key_groups: range,
    converter: Converter,
    start: Start,
    newer: Sequence[Iterable[pa.Table]] = (),
    *,
    drop_deletes: bool,
    local: Mapping[str, WrittenRun] | None = None,
) -> Generator[pa.Table]:
    """Sorted tables with the newest change of every key, of runs in manifest order and `newer` sorted streams behind
    them. What is `local`, by path, is read there: it may never be read back, so more of it is compared. Raises Damaged,
    NotFound, Unavailable, and what the streams raise.
    """
    local = local or {}

    def opening(run: RunFile) -> AbstractContextManager[BinaryIO]:
        written = local.get(run.path)
        return open_local(written.local, run.path) if written else store.open(run.path)

    with ExitStack() as opened:
        streams: list[Iterable[pa.Table]] = []
        for mine in lanes(runs):
            parts = [_part(run, key_groups, checks_pages=run.path in local) for run in mine]
            lane = Lane(
                parts,
                opening,
                None if store.url.startswith("file:") else start,
                lambda found: found.result(),
                most=1,
                most_bytes=PIECE_BYTES,
                most_row_groups=2,
            )
            opened.callback(_release, lane)
            streams.append(_converted(mine, lane, converter))
        yield from merge_streams([*streams, *newer], drop_deletes=drop_deletes)


def _part(run: RunRef, key_groups: range, *, checks_pages: bool) -> LanePart:
    is_whole = key_groups.start <= run.first_key_group and run.end_key_group <= key_groups.stop
    return LanePart(run, row_groups_for(run.index, key_groups), None if is_whole else key_groups, checks_pages)


def _release(lane: Lane) -> None:
    wait(lane.close())


def _converted(runs: Sequence[RunRef], lane: Lane, converter: Converter) -> Iterator[pa.Table]:
    for run, tables in zip(runs, lane, strict=True):
        yield from (converter.table(table, run.value_schema_id) for table in tables if table.num_rows)


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
    return RunRef(
        **datum_of(file),
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
    try:
        with local_disk(parent, "make", environment.disk):
            own = make_own(parent, _PREFIX, new_id=environment.new_id)
    except StoreUnavailable as error:
        if os.access(parent, os.W_OK | os.X_OK):
            raise
        hint = "Name an existing, writable directory with room for two copies of the state"
        raise ConfigError("the scratch directory cannot be used", hint=hint, scratch=str(parent)) from error
    with own as directory:
        yield directory.path
