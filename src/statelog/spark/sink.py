"""What Spark calls for a write: `StreamWriter` for `df.writeStream`, `BatchWriter` for `df.write`, in append mode; and
`upsert`, for `foreachBatch`.

The planning process asks for the right to write (`epochs`), executors write chunks and return handles, and the commit
process puts one Commit for (writer, query, batch), unless the ledger has the batch already. Nothing that Spark repeats,
kills or forgets can show: what no commit lists is void. A batch is exactly once with `checkpointId` (the caller numbers
its batches) or `batchId` (what `upsert` gives for a micro-batch).

`upsert` is for update mode, which Spark gives to no Python sink, and which stateful aggregations need. It is a batch
write that carries the batch id; tasks know the query id themselves. It keeps no client in the driver's process.

Invariants:
- Making a writer does no I/O. Spark pickles the one for planning and no other: the right to write is asked for there.
- A task touches neither ledger nor DFS: it needs the brokers, and the grant that travels in the pickled writer.
- The commit process acts under the grant that comes with the tasks' messages, and opens nothing, except to settle a
  commit whose outcome is unknown. A commit continues what its tasks were planned with: if the cached
  coordinator is elsewhere, others wrote in between, and the ledger is read on before anything is decided.
- After an error the coordinator is dropped: the next commit starts from the ledger.
"""

import logging
import re
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from statelog.closing import undone_by_errors
from statelog.environment import current_environment
from statelog.errors import ConfigError, InvalidChange, Misuse, OverlappingTasks, StatelogError, ValueTooLarge
from statelog.producer.coordinator import Coordinator, TaskWriter
from statelog.producer.epoch import Grant, TaskGrant
from statelog.schemas.changes.digest import StateDigest
from statelog.schemas.key_groups import ranges_text
from statelog.schemas.ledger.handle import MANY_PIECES, Checkpoint, Handle
from statelog.schemas.ledger.state import LastCommit
from statelog.schemas.names import whole_numbers
from statelog.spark.clients import ProcessCache, cached_log, task_producer
from statelog.spark.data_source import activate
from statelog.spark.epochs import give_up, plan_batch
from statelog.spark.option_texts import address_options
from statelog.spark.options import WriteOptions, write_options
from statelog.spark.ownership import (
    BatchDecision,
    check_replay,
    committed_handles,
    decide_batch,
    decide_write,
    told_of,
)
from statelog.spark.query_run import sibling_nonce
from statelog.spark.reported import reported, unpicklable
from statelog.spark.rows import TASK_SETTINGS, RowMapping, row_mapping, write_rows
from statelog.storage import Where
from statelog.storage.log.log import Log

_LOG = logging.getLogger("statelog.spark")
QUERY_PROPERTY = "sql.streaming.queryId"  # Spark sets it for every job of a streaming query; it documents no name.
_RUN_PROPERTY = "spark.jobGroup.id"  # The run of a query is its job group, unless the function made one of its own.
_CASE_PROPERTY = "spark.sql.caseSensitive"  # As all settings of a session, a property of its jobs.
_UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PROCESS = str(uuid.uuid4())
_REPORT = "Nothing was committed: run the batch again, and report this"
_FEWER = (
    "Write statelog.spark.repartition_by_key_group(df, log): each task then has key groups of its own, in few"
    f" partitions. Else keep tasks times partitions below {MANY_PIECES:,} a commit"
)

_coordinators: ProcessCache[tuple[Log, bytes], Coordinator] = ProcessCache()
"""By the opened log, which may rest for less time than what was made of it: one that was closed is found no more."""


# ---- what Spark calls


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult(WriterCommitMessage):
    """What a task tells the commit process: `handle` (`Handle.to_bytes`), and the grant and base that it was written
    under; `query_id` is '' outside of a streaming query, `digest` that of its rows, None if nothing may repeat them.
    """

    grant: Grant
    base: Checkpoint
    handle: bytes
    query_id: str
    digest: StateDigest | None = None


def _named_query(found: str | None, given: str | None) -> str:
    """The query as Spark names it, or, only where it does not, the user. Raises ConfigError if they differ."""
    if found and given and found != given:
        hint = "Leave queryId out: Spark tells its tasks which query they belong to"
        raise ConfigError("the option queryId contradicts Spark's own query id", given=given, found=found, hint=hint)
    return found or given or ""


class _Sink:
    """What both writers are. One has its plan from the first pickling on, and so in every copy."""

    _is_stream: bool

    @reported()
    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        self.options = write_options(options, streaming=self._is_stream)
        if overwrite:
            hint = "Use append mode; for aggregations, update mode with foreachBatch(statelog.spark.upsert(...))"
            raise Misuse("statelog takes changes: complete mode and overwrite are not supported", hint=hint)
        names = schema.fieldNames()
        if "key" not in map(str.lower, names):
            raise InvalidChange(
                "the DataFrame has no column key", columns=", ".join(names), hint="Rename the key column to key"
            )
        self.task: TaskGrant | None = None
        self._columns = schema
        self._rows: RowMapping | None = None

    @reported()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        """Send a task's rows as one change set, on an executor; one that fails, is repeated or comes too late leaves
        chunks that no commit lists. Raises InvalidChange, KeyGroupMismatch, PersistFailed, Unavailable.
        """
        task, rows, context = self.task, self._rows, TaskContext.get()
        assert task is not None, "tasks have what was pickled"
        assert rows is not None, "tasks have what was pickled"
        if context is None:
            raise ConfigError("this must run inside a Spark task", hint="Use df.write or df.writeStream")
        query_id = _named_query(context.getLocalProperty(QUERY_PROPERTY), self.options.query_id)
        slot = context.taskAttemptId()  # Unique in the Spark context that the epoch belongs to, over all batches.
        is_numbered = self.options.serves_query or self.options.checkpoint_id is not None
        with (
            task_producer(self.options.where) as producer,
            TaskWriter(producer, task, slot=slot, settings=TASK_SETTINGS, is_digested=is_numbered) as writer,
        ):
            is_case_sensitive = context.getLocalProperty(_CASE_PROPERTY) == "true"
            write_rows(iterator, rows, writer.append_batch, is_case_sensitive=is_case_sensitive)
            handle = writer.finish().to_bytes()
        return TaskResult(grant=task.grant, base=task.base, handle=handle, query_id=query_id, digest=writer.digest)

    def __getstate__(self) -> dict[str, object]:
        """With the plan. Columns are checked before anything is opened, and anyone fenced."""
        if self.task is None:
            mapping = partial(row_mapping, self._columns, self.options)
            try:
                task = plan_batch(self.options, check=mapping)
                self._rows = mapping(task.grant.descriptor, task.grant.value_schema)
                self.task = task
            except StatelogError as error:
                raise unpicklable(error) from None
        return self.__dict__


class StreamWriter(_Sink, DataSourceStreamArrowWriter):  # type: ignore[misc]  # Spark's own Arrow class overrides alike
    """Spark's view of the streaming sink."""

    _is_stream = True

    @reported()
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Commit the batch, beside the driver, as `commit_batch`."""
        commit_batch(self.options, messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803  # Spark's signature
        """Let others write, as long as the query has committed nothing. Nothing is to be undone."""
        for message in messages:
            if isinstance(message, TaskResult):
                give_up(self.options, message.grant)
                return


class BatchWriter(_Sink, DataSourceArrowWriter):  # type: ignore[misc]  # as above
    """Spark's view of the batch sink. One instance is planned, copied to the tasks, and to the commit process."""

    _is_stream = False

    @reported()
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit the rows of all tasks, beside the driver. Raises as `commit_batch`."""
        if self.options.batch_id is not None:
            commit_batch(self.options, messages, self.options.batch_id)
        elif not messages or not commit_write(self.options, messages):
            self._give_up()

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:  # noqa: ARG002  # Spark's signature
        """Let others write; if it is a query's, as long as that has committed nothing. Nothing is to be undone."""
        self._give_up()

    def _give_up(self) -> None:
        """End the epoch of a write that commits nothing: its Open says that it is under way."""
        if self.task is not None:
            give_up(self.options, self.task.grant)


# ---- the commit, beside the driver


def commit_batch(options: WriteOptions, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> bool:
    """Commit micro-batch `batch_id`; return False if it was a replay. Raise CheckpointMismatch, OverlappingTasks,
    Misuse, Fenced, CommitRefused, OutcomeUnknown, Damaged, Unavailable, ConfigError.
    """
    results = _results(messages)
    if not results:  # Spark has a task for every write, also of no partition: else the next batch came behind a gap.
        raise Misuse("Spark ran no task for this batch", batch=batch_id, hint=_REPORT)
    query_id = _query_id(results)
    return _commit(options, results, lambda last: decide_batch(last, options, query_id, batch_id))


def commit_write(options: WriteOptions, messages: Sequence[WriterCommitMessage | None]) -> bool:
    """Commit a plain batch write; return False if it was a replay. Raise as `commit_batch`."""
    results = _results(messages)
    if results and results[0].query_id and options.checkpoint_id is None:
        _LOG.warning("%s: a plain write in foreachBatch is repeated with its batch: use upsert", options.where.log)
    return _commit(options, results, lambda last: decide_write(last, options))


def _commit(
    options: WriteOptions, results: Sequence[TaskResult], decide: Callable[[LastCommit | None], BatchDecision]
) -> bool:
    if not results:
        return True  # No task ran, so there are no changes, and a replay of nothing is nothing again.
    grant = results[0].grant
    log = cached_log(options.where, grant.descriptor.identity)
    key = (log, grant.nonce)
    with undone_by_errors(_coordinators.drop, key):
        coordinator = _coordinator(log, results[0])
        last = coordinator.last_commit
        decision = decide(last)
        handles = [_stamped(result, decision.checkpoint_id) for result in results]
        told = told_of([result.digest for result in results], grant.value_schema)
        if last is not None and decision.is_replay:
            check_replay(last, options, told, handles, lambda: committed_handles(log, last))
            _LOG.info("%s: writer %s has checkpoint %d already", log.name, options.writer, decision.checkpoint_id)
            return False
        metadata = {**decision.metadata, **told}
        with _with_remedy(options, handles):
            committed = coordinator.commit(
                handles, metadata, checkpoint_id=decision.checkpoint_id, unique_keys=options.unique_keys
            )
        if committed.offset < coordinator.grant.epoch and not options.serves_query:
            give_up(options, coordinator.grant)  # The Open that settled it says that another write is under way.
            _coordinators.drop(key)
    return True


@contextmanager
def _with_remedy(options: WriteOptions, handles: Sequence[Handle]) -> Generator[None]:
    """Name Spark's remedy for a commit of too many pieces, and for tasks that share a key group."""
    pieces = sum(len(handle.entries) for handle in handles)
    if pieces >= MANY_PIECES:
        text = "%s: this commit has %d pieces, of %d tasks, and each reader and round takes memory for each. %s"
        _LOG.warning(text, options.where.log, pieces, len(handles), _FEWER)
    try:
        yield
    except OverlappingTasks as error:
        unique = "" if options.sequence_by else "; or set uniqueKeys=true if no key comes twice in a batch"
        raise error.restated(hint=f"{_FEWER}{unique}") from error
    except ValueTooLarge as error:
        raise error.restated(hint=_FEWER, tasks=len(handles), pieces=pieces) from error


def _coordinator(log: Log, result: TaskResult) -> Coordinator:
    """The coordinator for the grant and base of these tasks."""
    grant = result.grant
    found = _coordinators.get((log, grant.nonce))
    if found is None:
        siblings = replace(current_environment(), nonce=partial(sibling_nonce, grant.nonce))
        return _coordinators.put((log, grant.nonce), siblings.run(Coordinator, log, grant.writer, grant=grant))
    if found.place != grant.witness or found.position < log.position:
        found.refresh(grant.witness)  # Others wrote between its last commit and the plan, or it has, elsewhere.
    return found


def _stamped(result: TaskResult, checkpoint_id: int) -> Handle:
    """The task's handle as part of this checkpoint: tasks do not know the id, chunks do not carry it."""
    handle = Handle.from_bytes(result.handle)
    return replace(handle, steps=tuple(replace(step, checkpoint_id=checkpoint_id) for step in handle.steps))


def _results(messages: Sequence[WriterCommitMessage | None]) -> list[TaskResult]:
    """The tasks' results. Raises Misuse if one is missing, no result of ours, or of another batch: the commit would not
    be the batch.
    """
    results = [message for message in messages if isinstance(message, TaskResult)]
    batches = {(one.grant.nonce, one.base, one.query_id) for one in results}
    if len(results) != len(messages) or len(batches) > 1:
        raise Misuse(
            "the tasks of this batch did not all return a handle of it",
            tasks=len(messages),
            results=len(results),
            batches=len(batches),
            hint=_REPORT,
        )
    return results


def _query_id(results: Sequence[TaskResult]) -> str:
    if results and not results[0].query_id:
        hint = "Name it yourself, for good: option queryId, or query_id of upsert"
        raise ConfigError("Spark does not tell the tasks which query they belong to", hint=hint)
    return results[0].query_id if results else ""


# ---- for `foreachBatch`


@dataclass(frozen=True, slots=True, repr=False)
class Upsert:
    """The function that `upsert` makes. Pickles, for Spark Connect."""

    options: tuple[tuple[str, str], ...]
    made_in: tuple[tuple[str, str], ...] = ()
    """The query that it was made in, and its run, for threads that Spark tells of none."""

    @reported()
    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write and commit the micro-batch. An empty one is a commit, too: progress. A second call in it is Misuse.
        Raise ConfigError where nobody names the query, before anything is opened.
        """
        session = batch.sparkSession
        given = {**dict(self.made_in), **_caller(session), **dict(self.options), "batchId": str(batch_id)}
        if "queryId" not in given:
            hint = "Name it yourself, for good: query_id of upsert. On a classic session, make the upsert within the"
            hint += " function of foreachBatch, before it starts a thread"
            raise ConfigError("Spark does not tell which query this thread belongs to", hint=hint)
        activate(session)
        batch.write.format("statelog").mode("append").options(**given).save()

    def __repr__(self) -> str:
        return f"Upsert({write_options(dict(self.options), streaming=False)!r})"


def upsert(
    name: str,
    where: Where,
    *,
    writer: str,
    unique_keys: bool = False,
    sequence_by: str | None = None,
    null_deletes: bool = False,
    partitions: Sequence[int] | str | None = None,
    take_over: bool = False,
    take_over_from: str | None = None,
    allow_gaps: bool = False,
    allow_changed_replay: bool = False,
    query_id: str | None = None,
) -> Upsert:
    """Make the function for `foreachBatch`. The DataFrame has the columns of a write: `key`, optional `op`, the value.
    It is one commit for each micro-batch, so a function of your own calls it once in each: `allow_gaps` lets it leave
    batches out.

    `unique_keys` declares that no key comes twice in a batch, as after an aggregation by key; else `sequence_by` names
    the column whose greatest value in a task decides for a key. `partitions` are this job's, by number or as a share
    (`"0/3"` is the first of three); the rest of the log is left to other jobs. `allow_changed_replay` is for a query
    whose batches differ when Spark repeats them: the first one stands. `query_id` names the query where Spark does not
    (Spark Connect). Raises ConfigError, InvalidName; the rest when a batch comes.

        >>> write = upsert("visits", Where.local("/tmp/statelog"), writer="job-1")
        >>> query = counts.writeStream.outputMode("update").foreachBatch(write)  # .start()
    """
    named = {
        "sequenceBy": sequence_by,
        "partitions": partitions if partitions is None or isinstance(partitions, str) else _ranges(partitions),
        "takeOverFrom": take_over_from,
        "queryId": query_id,
    }
    options = {
        **address_options(name, where),
        "writerId": writer,
        "uniqueKeys": _flag("unique_keys", unique_keys),
        "nullDeletes": _flag("null_deletes", null_deletes),
        "takeOver": _flag("take_over", take_over),
        "allowGaps": _flag("allow_gaps", allow_gaps),
        "allowChangedReplay": _flag("allow_changed_replay", allow_changed_replay),
        **{option: text for option, text in named.items() if text is not None},
    }
    write_options(options, streaming=False)
    session = SparkSession.getActiveSession()
    return Upsert(tuple(options.items()), tuple(_caller(session).items()) if session is not None else ())


def _caller(session: SparkSession) -> dict[str, str]:
    """Return the query that calls us and its run, where Spark names them in the driver. With Spark Connect it does not,
    and a process serves one run.
    """
    try:
        context = session.sparkContext
        query, run = context.getLocalProperty(QUERY_PROPERTY), context.getLocalProperty(_RUN_PROPERTY)
    except PySparkException:
        query, run = None, _PROCESS
    named = {"queryId": query, "runId": run if _UUID.fullmatch(run or "") else None}
    return {name: text for name, text in named.items() if text}


def _ranges(partitions: Sequence[int]) -> str:
    """As an option. Raises ConfigError for what is no number of a partition."""
    return ranges_text(whole_numbers("partitions", partitions, example='partitions=[0, 1], or "0/3"'))


def _flag(name: str, value: object) -> str:
    """As an option. Text is refused, because "false" would be true in Python."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {value!r}", hint="Give True or False")
    return "true" if value else "false"
