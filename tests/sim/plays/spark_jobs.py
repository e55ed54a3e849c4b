"""Jobs of a simulated Spark that write to a log: queries with a checkpoint, and plain writes; on `spark_machine`.

A query plans its batches as Spark does: the end of a batch is in its checkpoint before any of it is written, and the
note of its commit follows the sink's commit. A batch has tasks, a task attempts: some fail, some are doubled, some go
on when nobody waits for them, and some lose their message. This module owns what a job has to know; not who starts it
when.
"""

import math
import pickle
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice
from typing import Any, cast

import pyarrow as pa
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from statelog.errors import Fenced, PersistFailed, StatelogError, Unavailable
from statelog.schemas.key_groups import partition_of
from statelog.schemas.ledger.handle import Handle
from statelog.spark.reported import error_of
from statelog.spark.sink import BatchWriter, StreamWriter, TaskResult
from statelog.testing import Crash
from tests.sim.plays.spark_machine import Machine, Session
from tests.support.rigs.log import keys_in
from tests.support.samples.folds import apply_all

__all__ = ["Attempt", "Job", "Range", "Run", "Source", "State"]

State = dict[bytes, bytes]
_WHERE = {"log": "visits", "root": "memory://twin", "kafka.bootstrap.servers": "memory:1"}
_ATTEMPTS = 4
_FIELDS = [StructField("key", BinaryType()), StructField("op", StringType()), StructField("value", BinaryType())]


@dataclass(frozen=True)
class Range:
    """Changes of a source, `start` to below `end`."""

    start: int
    end: int

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.end - self.start


@cache
def _keys(partition: int) -> tuple[bytes, ...]:
    return tuple(islice(keys_in(partition, 4, 8), 4))


@dataclass(frozen=True)
class Source:
    """The source of one job: an endless, repeatable list of changes over few keys of its own partitions."""

    name: str
    partitions: tuple[int, ...]

    def change(self, position: int) -> tuple[bytes, bytes | None]:
        """Return the change at a position; every seventh deletes."""
        rng = random.Random(f"{self.name}/{position}")
        key = rng.choice(_keys(rng.choice(self.partitions)))
        return key, None if rng.random() < 0.15 else b"%s-%d" % (self.name.encode(), position)

    def apply(self, one: Range, state: State) -> None:
        """Apply these changes."""
        apply_all(state, map(self.change, range(one.start, one.end)))


@dataclass(eq=False)
class Job:
    """A query, with its checkpoint, or a job that makes plain writes, numbered alike; and its acknowledgements.

    `kind` is stream, upsert or plain. `rows` says how its keys come. Unique: one row a key, in any task. Checked: one
    row a key, in the task of its key group. Sequence: all rows, with a column to put them in order by.
    """

    name: str
    source: Source
    kind: str
    rows: str
    numbers_writes: bool = True
    ranges: list[Range] = field(default_factory=list[Range])
    done: set[int] = field(default_factory=set[int])
    told: set[int] = field(default_factory=set[int])
    empty: set[int] = field(default_factory=set[int])
    """Batches that the ledger does not show: plain writes without a number or a row."""
    written: "dict[tuple[bytes, int], tuple[Job, int]]" = field(default_factory=dict[Any, Any])
    """The batch of a change set and the checkpoint, by its nonce and number."""

    def fork(self, batches: int, *, is_noted: bool) -> "Job":
        """Return the query on a copy of its old checkpoint of so many batches; the last may lack its commit note."""
        done = {one for one in self.done if one < batches - (not is_noted)}
        copy = replace(self, ranges=self.ranges[:batches], done=done)
        copy.told, copy.empty = set(), set()
        return copy

    @property
    def query_id(self) -> str:
        """The id that Spark gives its tasks; '' for a plain job."""
        return "" if self.kind == "plain" else f"query-{self.name}"

    def is_empty(self, batch: int) -> bool:
        """Return whether the checkpoint has the batch, without a row."""
        return batch < len(self.ranges) and self.ranges[batch].start == self.ranges[batch].end

    def options(self, batch: int, run_id: str, more: Mapping[str, str]) -> dict[str, str]:
        """Return the options for the write of this batch."""
        given = {**_WHERE, "writerId": self.name, "partitions": ",".join(map(str, self.source.partitions))}
        if self.kind == "stream":
            given["checkpointLocation"] = f"s3://bucket/{self.name}"
        elif self.kind == "upsert":
            given |= {"batchId": str(batch), "queryId": self.query_id, "runId": run_id}
        elif self.numbers_writes:
            given["checkpointId"] = str(batch + 1)
        if self.rows == "sequence":
            given["sequenceBy"] = "seq"
        elif self.rows == "unique":
            given["uniqueKeys"] = "true"
        return {**given, **more}

    @property
    def schema(self) -> StructType:
        """The columns of its rows."""
        return StructType([*_FIELDS, StructField("seq", LongType())] if self.rows == "sequence" else _FIELDS)


class Attempt:
    """One attempt of a task: it may be called once, at any time and for any waiter."""

    def __init__(self, run: "Run", task: int) -> None:
        self.run, self.task, self.batch = run, task, run.batch
        self.rows, self.pickled, self.messages = run.tasks[task], run.pickled, run.messages

    def go(self) -> None:
        """Write the rows; the result counts if it arrives, and is the first of its task."""
        machine, job = self.run.machine, self.run.job
        writer: StreamWriter | BatchWriter = pickle.loads(self.pickled)
        try:
            result: TaskResult = machine.on_executor(
                self.run.session, job.query_id, self.run.name, lambda: writer.write(self._batches())
            )
        except Crash:
            self._failed(PersistFailed("a worker died"))
        except (PersistFailed, Unavailable) as error:
            self._failed(error)
        else:
            handle = Handle.from_bytes(result.handle)
            job.written |= {(handle.nonce, entry.sqn): (job, self.batch) for entry in handle.entries}
            if machine.rng.random() < 0.9 and self.messages[self.task] is None:
                self.messages[self.task] = pickle.loads(pickle.dumps(result))

    def _failed(self, error: StatelogError) -> None:
        if self.run.messages is self.messages:
            self.run.failures.append(error)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        machine = self.run.machine
        for start in range(0, self.rows.num_rows, 3):
            machine.stand_still(0.05)
            yield self.rows.slice(start, 3)
        machine.stand_still(0.05)


class Run:
    """One run of a query in a session, or one plain write: a step at a time until it `is_over`, perhaps by an error."""

    def __init__(self, machine: Machine, job: Job, session: Session, name: str, more: Mapping[str, str]) -> None:
        self.machine, self.job, self.session, self.name, self.more = machine, job, session, name, more
        self.launch: Callable[[Attempt], None] = lambda attempt: attempt.go()
        self.is_over = self.is_busy = self.has_died = False
        self.error: StatelogError | None = None
        self.witness = 0
        """The ledger position that was read when its last batch was planned."""
        self.planned_s, self.last_s = 0.0, 0.0
        """When it began to plan its last batch, and ended its last step; infinity within one."""
        self.begun = machine.end
        """The ledger's end before it."""
        self._was_lost = False
        last = len(job.ranges) - 1
        self.batch = last if last >= 0 and last not in job.done else last + 1
        self.pickled = b""
        self.tasks: list[pa.RecordBatch] = []
        self.messages: list[TaskResult | None] = []
        self.failures: list[StatelogError] = []
        self._next = self._plan

    @property
    def may_go(self) -> bool:
        """Whether it has a step left."""
        return not (self.is_over or self.is_busy or self.session.is_dead)

    def step(self) -> None:
        """Do the driver's next step."""
        self.is_busy, self.last_s = True, math.inf
        try:
            self._next()
        except Crash:
            self.is_over = self.has_died = True
        finally:
            self.is_busy, self.last_s = False, self.machine.now()

    def _writer(self) -> StreamWriter | BatchWriter:
        make = StreamWriter if self.job.kind == "stream" else BatchWriter
        return make(self.job.options(self.batch, self.name, self.more), self.job.schema, overwrite=False)

    def _plan(self) -> None:
        """Record the batch in the checkpoint, and ask for the right to write it."""
        job, rng = self.job, self.machine.rng
        if self.batch == len(job.ranges):
            start = job.ranges[-1].end if job.ranges else 0
            job.ranges.append(Range(start, start + rng.choice((0, 1, 5, 20))))
        self.planned_s = self.machine.now()
        try:
            self.pickled = self.machine.beside(self.session, lambda: pickle.dumps(self._writer()), plans=True)
        except (StatelogError, pickle.PicklingError) as error:
            self.is_over, self.error = True, error_of(error)
            assert self.error is not None
            return
        self.witness = pickle.loads(self.pickled).task.grant.witness.position
        self._was_lost = self.machine.lost_from is not None
        self.tasks = self._split(job.ranges[self.batch], rng)
        self.messages = [None] * len(self.tasks)
        self.failures = []
        self._next = self._work

    def _work(self) -> None:
        """Launch attempts of unfinished tasks, or some more concurrently."""
        missing = [task for task, message in enumerate(self.messages) if message is None]
        if not missing:
            self._next = self._commit
        elif len(self.failures) >= _ATTEMPTS:
            self._abort(self.failures[-1])
        else:
            self.launch(Attempt(self, self.machine.rng.choice(missing)))

    def _commit(self) -> None:
        messages, lost_from = list(self.messages), self.machine.lost_from
        is_shown, opened = self.machine.shows_loss(), {*self.machine.openers}
        try:
            self.machine.beside(self.session, lambda: self._committed(messages), run=self.name, looks=bool(messages))
        except StatelogError as error:
            self._check_told(error)
            self._abort(error)
            return
        own = {nonce for nonce, run in self.machine.openers.items() if run == self.name}
        assert not (is_shown and own - opened), f"{self.job.name} opened behind a loss that chunks show"
        is_sure = lost_from is None or self.machine.is_seen_again
        if messages and lost_from is not None and is_sure and not self._was_lost:
            assert self.witness <= lost_from, (
                f"{self.job.name}: {self.batch} was committed behind a loss that its planner knew"
            )
        is_in_ledger = messages and (
            self.job.kind != "plain" or self.job.numbers_writes or any(rows.num_rows for rows in self.tasks)
        )
        if lost_from == self.machine.lost_from and is_sure:  # Else its acknowledged batches may be lost.
            (self.job.told if is_in_ledger else self.job.empty).add(self.batch)
        self._next = self._note

    def _committed(self, messages: list[TaskResult | None]) -> None:
        if self.job.kind == "stream":
            cast("StreamWriter", self._writer()).commit(messages, self.batch)
        else:
            cast("BatchWriter", pickle.loads(self.pickled)).commit(messages)

    def _check_told(self, error: StatelogError) -> None:
        """Check that a query learns of a takeover only if another one opened since it began."""
        machine, opens = self.machine, self.machine.opens().items()
        if isinstance(error, Fenced) and self.job.kind != "plain" and machine.lost_from is None:
            others = [one for at, one in opens if at >= self.begun and machine.openers.get(one.nonce) != self.name]
            assert others, f"{self.job.name} raised for a takeover of its own"

    def _abort(self, error: StatelogError) -> None:
        """Raise the error behind the abort to every waiter of the job."""
        self.error = error
        messages = list(self.messages)

        def abort() -> None:
            if self.job.kind == "stream":
                cast("StreamWriter", self._writer()).abort(messages, self.batch)
            else:
                cast("BatchWriter", pickle.loads(self.pickled)).abort(messages)

        self.machine.beside(self.session, abort, looks=False)
        self.is_over = True

    def _note(self) -> None:
        """Write Spark's own commit log; and the next batch, unless another run exists."""
        job = self.job
        is_alone = self.batch not in job.done
        job.done.add(self.batch)
        self.batch += 1
        if job.kind == "plain" or not is_alone or self.batch < len(job.ranges):
            self.is_over = True
        self._next = self._plan

    def _split(self, one: Range, rng: random.Random) -> list[pa.RecordBatch]:
        """Return the rows of some tasks, in a random order."""
        job = self.job
        changes = [(position, *job.source.change(position)) for position in range(one.start, one.end)]
        if job.rows != "sequence":
            changes = list({key: (position, key, value) for position, key, value in changes}.values())
        count = rng.randint(1, 3)  # Spark has a task for every write.
        parts: list[list[tuple[int, bytes, bytes | None]]] = [[] for _ in range(count)]
        for change in changes:
            group = self.machine.descriptor.key_group_of(change[1])
            assert partition_of(group, 4, 8) in job.source.partitions
            parts[rng.randrange(count) if job.rows == "unique" else group % count].append(change)
        return [self._rows(part, rng) for part in parts]

    def _rows(self, part: list[tuple[int, bytes, bytes | None]], rng: random.Random) -> pa.RecordBatch:
        rng.shuffle(part)
        columns: dict[str, Any] = {
            "key": pa.array([key for _, key, _ in part], pa.binary()),
            "op": pa.array(["delete" if value is None else "put" for _, _, value in part], pa.string()),
            "value": pa.array([value for _, _, value in part], pa.binary()),
        }
        if self.job.rows == "sequence":
            columns["seq"] = pa.array([position for position, _, _ in part], pa.int64())
        return pa.RecordBatch.from_pydict(columns)
