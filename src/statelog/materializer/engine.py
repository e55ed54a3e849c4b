"""`Engine`: carries out the tasks of a round; and the work of one task, which is the same for every engine.

`materializer.sorted_tables` makes the tables of a task.

Invariants:
- A run is in the store or a finished local file, never both. So runs that are merged in the round that wrote them are
  never uploaded.
- Every run gets a new name, so a task that is repeated leaves files that no manifest names.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

import pyarrow as pa

from statelog.errors import CorruptRun, NotFound, StatelogError, StoreUnavailable
from statelog.materializer.side_by_side import side_by_side
from statelog.materializer.sorted_tables import delta_tables, merged_runs
from statelog.materializer.tasks import Task, TaskOutput
from statelog.materializer.work import RoundWork
from statelog.reading import Converter
from statelog.schemas.avro import datum_of
from statelog.schemas.ledger.place import LastRecord
from statelog.schemas.snapshot.run_ref import RunRef
from statelog.schemas.snapshot.runs import RunFile, RunMetadata
from statelog.store.run_reader import read_back_written
from statelog.store.run_writer import RunWriter, WrittenRun, upload_run, write_cut

_TASK_BYTES = 32 << 20

P = TypeVar("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The runs that some tasks wrote, or that were read back.

    seconds  the sum of the times that reading back took, or of a write its replays
    rows     the rows that the replays produced
    last     the last record that was read, by partition
    """

    runs: tuple[RunRef, ...]
    seconds: float
    rows: int = 0
    last: Mapping[int, LastRecord] = field(default_factory=dict[int, LastRecord])


class Engine(Protocol):
    """Writes runs in one round. Never decides what is in a manifest, and never deletes from the store."""

    def tasks_for(self, size_bytes: int) -> int:
        """Return into how many tasks a fold or a merge of so many bytes is cut at most, one or more."""
        ...

    def write(self, tasks: Sequence[Task]) -> Written:
        """Do the tasks. Raises Damaged, NotFound, Unavailable, and the errors of `go_on`."""
        ...

    def forget(self, runs: Sequence[RunRef]) -> None:
        """Drop runs that were merged into others, if they are not in the store yet."""
        ...

    def publish(self, runs: Sequence[RunRef]) -> Written:
        """Upload the runs that this engine wrote, and read back every byte of each, unless that was done.

        Returns them, and the seconds that reading back took. Raises CorruptRun or NotFound if one did not arrive whole,
        StoreUnavailable, StorageFull, and the errors of `go_on`.
        """
        ...

    def uploaded(self) -> Iterable[str]:
        """Return the paths of files uploaded for this round other than the returned runs. Raises StoreUnavailable."""
        ...


EngineMaker = Callable[[RoundWork], Engine]
"""Makes the engine of one round."""


class LocalEngine:
    """The engine of one round, on threads: pyarrow, disk and network release the interpreter lock."""

    def __init__(self, work: RoundWork) -> None:
        self._work = work
        self._log = work.log
        self._clock = work.environment.clock
        self._local: dict[str, WrittenRun] = {}

    def tasks_for(self, size_bytes: int) -> int:
        """Return at most one for each thread, fewer if their files would be small."""
        return tasks_for(size_bytes, self._work.threads)

    def write(self, tasks: Sequence[Task]) -> Written:
        """Do the tasks; their runs are local files. A missing or damaged local file raises StoreUnavailable."""
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
        """Write sorted tables from elsewhere like a task's; their runs are local files."""
        started_s = self._clock()
        runs = self._kept(write_tables(tables, output, self._work))
        return Written(runs=runs, seconds=self._clock() - started_s, rows=sum(run.rows for run in runs))

    def forget(self, runs: Sequence[RunRef]) -> None:
        """Remove the local files among the runs."""
        for run in runs:
            written = self._local.pop(run.path, None)
            if written is not None:
                written.local.unlink(missing_ok=True)

    def publish(self, runs: Sequence[RunRef]) -> Written:
        """Upload the local files among the runs, then read them back."""
        mine = tuple(run for run in runs if run.path in self._local)

        def timed(run: RunRef, _: object) -> float:
            started_s = self._clock()
            read_back_written(self._log.store, run)
            return self._clock() - started_s

        self._in_threads(lambda run, _: upload_run(self._log.store, self._local.pop(run.path)), mine)
        return Written(runs=mine, seconds=sum(self._in_threads(timed, mine)))

    def uploaded(self) -> Iterable[str]:
        """Return nothing: only `publish` uploads runs."""
        return ()

    def _kept(self, found: "Sequence[LocalRunRef]") -> tuple[RunRef, ...]:
        self._local.update({one.run.path: one.written for one in found})
        return tuple(one.run for one in found)

    def _in_threads(self, do: Callable[[P, Callable[[], None]], T], parts: Sequence[P]) -> list[T]:
        jobs = [partial(do, part) for part in parts]
        return side_by_side(jobs, self._work.threads, self._work.go_on, self._work.environment.start)


def tasks_for(size_bytes: int, threads: int) -> int:
    """Return into how many tasks so many bytes are cut at most, for so many threads."""
    return max(1, min(threads, size_bytes // _TASK_BYTES))


class LocalRunRef(NamedTuple):
    """A run as a manifest will name it, and its local file."""

    run: RunRef
    written: WrittenRun


@dataclass(slots=True)
class Replayed:
    """The rows that a task's replay produced so far, its seconds, and the last record that it read by partition."""

    rows: int = 0
    seconds: float = 0.0
    last: dict[int, LastRecord] = field(default_factory=dict[int, LastRecord])

    def counted(self, tables: Iterator[pa.Table], clock: Callable[[], float]) -> Iterator[pa.Table]:
        """Yield the tables, and count their rows and the seconds spent waiting for them."""
        while True:
            started_s = clock()
            table = next(tables, None)
            self.seconds += clock() - started_s
            if table is None:
                return
            self.rows += table.num_rows
            yield table


def written_of(runs: Sequence[RunRef], replays: Sequence[Replayed]) -> Written:
    """Return the runs and the sums of the tasks' replays."""
    return Written(
        runs=tuple(runs),
        seconds=sum(one.seconds for one in replays),
        rows=sum(one.rows for one in replays),
        last={partition: last for one in replays for partition, last in one.last.items()},
    )


def write_runs(
    task: Task, work: RoundWork, local: Mapping[str, WrittenRun] | None = None
) -> tuple[list[LocalRunRef], Replayed]:
    """Do a task. Return local runs that tile the task's output, and its replay. `local`: see `merged_runs`.

    Raises Damaged, NotFound (a run was deleted meanwhile: the manifest is no longer the newest), Unavailable, and the
    errors of `go_on`.
    """
    log, output, runs, replayed = work.log, task.output, task.runs, Replayed()
    converter = Converter(log, output.value_schema_id)
    with ExitStack() as stack:
        tails: list[Iterator[pa.Table]] = []
        if task.replay is not None:
            # With runs below, deletes may hide older changes: only the merge may drop them.
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
    """Write sorted tables as local runs that tile the output.

    Raises Corrupt for a key in a wrong key group, CorruptRun, StorageFull, StoreUnavailable.
    """
    found = write_cut(_going_on(tables, work), lambda: _writer(output, work), output.cuts, output.key_groups)
    return [LocalRunRef(_referred(run.file, key_groups, output), run) for key_groups, run in found]


def not_whole(error: StatelogError) -> StoreUnavailable:
    """Return the error for a new run that cannot be read back. It is no damage, as no manifest names the run."""
    return StoreUnavailable(
        f"a run did not arrive whole: {error.message}",
        hint="Check network and disks if this repeats. No manifest names the run: the next round writes it again",
        **error.facts,
    )


def _going_on(tables: Iterable[pa.Table], work: RoundWork) -> Iterator[pa.Table]:
    for table in tables:
        work.go_on()
        yield work.log.descriptor.check_key_groups(table)


def _writer(output: TaskOutput, work: RoundWork) -> RunWriter:
    label = RunMetadata(
        log=work.log.name,
        first_position=output.start_position,
        end_position=output.end_position,
        value_schema_id=output.value_schema_id,
    )
    schema = work.log.change_schema(output.value_schema_id)
    local = work.scratch / f"{work.prefix}{work.environment.new_id()}.parquet"
    return RunWriter(local, schema, label, disk=work.environment.disk)


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
