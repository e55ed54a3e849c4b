"""The write side, in append mode: `StreamWriter` for `df.writeStream`, `BatchWriter` for `df.write`, and `upsert` for
`foreachBatch`.

The planning process reads the ledger (`epochs`), and executors write chunks and return handles. The commit process puts
one Commit for (writer, query, batch), unless the ledger has the batch already. Work that Spark repeats, kills or
forgets has no effect: chunks that no commit lists are void. A batch is exactly once with `checkpointId`, the caller's
number for it, or `batchId`, which `upsert` sets.

`upsert` is for update mode, which Spark offers to no Python sink, and which stateful aggregations need. It is a batch
write that carries the batch id; tasks know the query id themselves. It holds no client in the driver's process.

Invariants:
- Making a writer does no I/O. Spark pickles only the writer for planning: pickling reads the ledger, and nothing else.
- A task uses neither ledger nor DFS: it needs the brokers, and the plan in the pickled writer.
- Only the commit process writes to the ledger. Before it decides, it has read the ledger at least as far as the
  planner. It decides again once its Open is valid: then the ledger is final until its own commit.
- After an error the committer is dropped: the next commit starts from the ledger.
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
from statelog.errors import (
    CommitRefused,
    ConfigError,
    Fenced,
    InvalidChange,
    Misuse,
    OverlappingTasks,
    StatelogError,
    ValueTooLarge,
)
from statelog.log import Log, Where
from statelog.producer.committer import Committer, check_handle
from statelog.producer.coordinator import TaskWriter
from statelog.producer.epoch import Grant, TaskGrant
from statelog.schemas.changes.digest import StateDigest
from statelog.schemas.key_groups import ranges_text
from statelog.schemas.ledger.handle import MANY_PIECES, Checkpoint, Handle, refuse_overlaps
from statelog.schemas.ledger.state import LastCommit
from statelog.schemas.names import whole_numbers
from statelog.spark.clients import ProcessCache, cached_log, task_producer
from statelog.spark.data_source import activate
from statelog.spark.epochs import committer_of, plan_batch
from statelog.spark.option_texts import address_options
from statelog.spark.options import WriteOptions, write_options
from statelog.spark.ownership import (
    BatchDecision,
    are_in_order,
    check_replay,
    committed_handles,
    decide_batch,
    decide_write,
    digest_metadata,
    planned_earlier,
)
from statelog.spark.reported import reported, unpicklable
from statelog.spark.rows import TASK_SETTINGS, RowMapping, row_mapping, write_rows

_LOG = logging.getLogger("statelog.spark")
QUERY_PROPERTY = "sql.streaming.queryId"  # Spark sets it for every job of a streaming query, but does not document it.
RUN_PROPERTY = "spark.jobGroup.id"  # The job group is the run of a query, unless the function set its own.
_CASE_PROPERTY = "spark.sql.caseSensitive"  # Like all settings of a session, a property of its jobs.
_UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PROCESS = str(uuid.uuid4())
_REPORT = "Nothing was committed: run the batch again, and report this"
_MEANWHILE = (
    "Start the query, or run the write, again. Another writer committed to these partitions while the tasks wrote; it"
    " is fenced now"
)
_FEWER = (
    "Write statelog.spark.repartition_by_key_group(df, log): each task then has key groups of its own, in few"
    f" partitions. Else keep tasks times partitions below {MANY_PIECES:,} a commit"
)

_Key = tuple[Log, str, tuple[int, ...], str, str | None]
_committers: ProcessCache[_Key, Committer] = ProcessCache()
"""By the opened log, which the other cache may close earlier, and by writer, partitions, query and run."""


# ---- called by Spark


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult(WriterCommitMessage):
    """The result of a task, for the commit process.

    plan      the grant that the task wrote under
    handle    `Handle.to_bytes`
    query_id  '' outside of a streaming query
    run_id    None if Spark does not name the run
    digest    that of the task's rows, None if the write is not numbered
    """

    plan: Grant
    handle: bytes
    query_id: str
    run_id: str | None = None
    digest: StateDigest | None = None


def _named_query(found: str | None, given: str | None) -> str:
    """Return the query id from Spark, or else from the user. Raises ConfigError if they differ."""
    if found and given and found != given:
        hint = "Omit queryId: Spark gives its tasks the id of their query"
        raise ConfigError("the option queryId contradicts Spark's own query id", given=given, found=found, hint=hint)
    return found or given or ""


class _Sink:
    """The common part of both writers. The first pickling plans, so every copy has the plan."""

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
        """Send a task's rows as one change set, on an executor.

        A task that fails, is repeated or ends too late leaves chunks that no commit lists. Raises InvalidChange,
        KeyGroupMismatch, PersistFailed, Unavailable.
        """
        task, rows, context = self.task, self._rows, TaskContext.get()
        assert task is not None, "pickling has planned"
        assert rows is not None, "pickling has planned"
        if context is None:
            raise ConfigError("this must run inside a Spark task", hint="Use df.write or df.writeStream")
        query_id = _named_query(context.getLocalProperty(QUERY_PROPERTY), self.options.query_id)
        run_id = self.options.run_id or (_run_of(context) if self._is_stream else None)
        slot = context.taskAttemptId()  # Unique in the Spark context that plans the batch.
        with (
            task_producer(self.options.where) as producer,
            TaskWriter(
                producer, task, slot=slot, settings=TASK_SETTINGS, is_digested=self.options.is_numbered
            ) as writer,
        ):
            is_case_sensitive = context.getLocalProperty(_CASE_PROPERTY) == "true"
            write_rows(iterator, rows, writer.append_batch, is_case_sensitive=is_case_sensitive)
            handle = writer.finish().to_bytes()
        return TaskResult(plan=task.grant, handle=handle, query_id=query_id, run_id=run_id, digest=writer.digest)

    def __getstate__(self) -> dict[str, object]:
        """Plan the batch before pickling, and check its columns, before any task runs."""
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
        """Commit the batch, in a Python worker of the driver. Raises the errors of `commit_batch`."""
        commit_batch(self.options, messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Do nothing: chunks that no commit lists are void."""


class BatchWriter(_Sink, DataSourceArrowWriter):  # type: ignore[misc]  # as above
    """Spark's view of the batch sink. One instance is planned, and copied to the tasks and the commit process."""

    _is_stream = False

    @reported()
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit the rows of all tasks, in a Python worker of the driver. Raises the errors of `commit_batch`."""
        if self.options.batch_id is not None:
            commit_batch(self.options, messages, self.options.batch_id)
        else:
            commit_write(self.options, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Do nothing: chunks that no commit lists are void."""


# ---- the commit, in a Python worker of the driver


def commit_batch(options: WriteOptions, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> bool:
    """Commit micro-batch `batch_id`. Return False if it was a replay.

    Raises CheckpointMismatch, OverlappingTasks, Misuse, Fenced, CommitRefused, OutcomeUnknown, Damaged, Unavailable,
    ConfigError.
    """
    results = _results(messages)
    if not results:  # Spark runs a task even for no partition. Without a commit, the next batch would follow a gap.
        raise Misuse("Spark ran no task for this batch", batch=batch_id, hint=_REPORT)
    query_id, run_id = _query_id(results), results[0].run_id
    options = replace(options, run_id=run_id)
    return _commit(options, results, lambda last: decide_batch(last, options, query_id, batch_id))


def commit_write(options: WriteOptions, messages: Sequence[WriterCommitMessage | None]) -> bool:
    """Commit a plain batch write. Return False if it was a replay. Raises the errors of `commit_batch`."""
    results = _results(messages)
    if results and results[0].query_id and options.checkpoint_id is None:
        _LOG.warning("%s: a plain write in foreachBatch is repeated with its batch: use upsert", options.where.log)
    return _commit(options, results, lambda last: decide_write(last, options))


def _commit(
    options: WriteOptions, results: Sequence[TaskResult], decide: Callable[[LastCommit | None], BatchDecision]
) -> bool:
    if not results:
        return True  # No task ran, so there are no changes to commit or to replay.
    plan = results[0].plan
    log = cached_log(options.where, plan.descriptor.identity)
    handles = [Handle.from_bytes(result.handle) for result in results]
    digest = digest_metadata([result.digest for result in results], plan.value_schema)

    def is_there(last: LastCommit | None) -> bool:
        """Return whether the ledger has the batch. Raise an error if the batch cannot follow the last commit."""
        decision = decide(last)
        if last is not None and decision.is_replay:
            check_replay(last, options, digest, handles, lambda: committed_handles(log, last))
            _LOG.info("%s: writer %s has checkpoint %d already", log.name, options.writer, decision.checkpoint_id)
            return True
        if not options.unique_keys:
            refuse_overlaps(handles)
        return False

    key = (log, options.writer, plan.partitions, results[0].query_id, options.run_id)
    with undone_by_errors(_committers.drop, key), _with_remedy(options, handles):
        committer = _followed(key, plan)
        if committer is None:
            committer = committer_of(log, options, plan, results[0].query_id, is_there)
            if committer is None:
                return False
            _committers.put(key, committer)
        elif committer.base != plan.base and not are_in_order(committer.last, options, results[0].query_id):
            raise planned_earlier(options)
        is_new = not is_there(committer.last)  # Checked again: the commit that an Open resolved may be this batch.
        if is_new:
            decision = decide(committer.last)
            adopted = [_adopted(handle, committer.base, decision.checkpoint_id) for handle in handles]
            for handle in adopted:
                check_handle(committer.grant, handle, decision.checkpoint_id)  # Also quiet ones, which are not listed.
            listed = [handle for handle in adopted if not handle.is_quiet]
            committer.begin(listed, decision.checkpoint_id, {**decision.metadata, **digest}, final=False)
            committer.finish()
    return is_new


def _followed(key: _Key, plan: Grant) -> Committer | None:
    """Return the run's committer in this process, after it has read the ledger up to the plan.

    Returns None if there is none, or its epoch was fenced.
    """
    found = _committers.get(key)
    if found is not None:
        try:
            found.catch_up(plan.witness)  # Others, or this run in another process, wrote since its last commit.
        except Fenced:
            _committers.drop(key)
            return None
    return found


@contextmanager
def _with_remedy(options: WriteOptions, handles: Sequence[Handle]) -> Generator[None]:
    """Add Spark's remedy to errors for too many pieces, shared key groups, and competing writers."""
    pieces = sum(len(handle.entries) for handle in handles)
    if pieces >= MANY_PIECES:
        text = "%s: this commit has %d pieces, of %d tasks, and each reader and round takes memory for each. %s"
        _LOG.warning(text, options.where.log, pieces, len(handles), _FEWER)
    try:
        yield
    except OverlappingTasks as error:
        unique = "" if options.sequence_by else "; or set uniqueKeys=true if no key comes twice in a batch"
        raise error.restated(hint=f"{_FEWER}{unique}") from error
    except CommitRefused as error:
        raise error.restated(hint=_MEANWHILE) from error
    except ValueTooLarge as error:
        raise error.restated(hint=_FEWER, tasks=len(handles), pieces=pieces) from error


def _adopted(handle: Handle, base: Checkpoint, checkpoint_id: int) -> Handle:
    """Return a task's handle as part of this checkpoint after `base`: tasks know neither, and chunks have neither.

    Batch ids decide which batch may follow.
    """
    steps = tuple(replace(step, checkpoint_id=checkpoint_id) for step in handle.steps)
    return replace(handle, base=base, steps=steps)


def _results(messages: Sequence[WriterCommitMessage | None]) -> list[TaskResult]:
    """Return the tasks' results. Raises Misuse if one is missing, is no TaskResult, or belongs to another batch."""
    results = [message for message in messages if isinstance(message, TaskResult)]
    batches = {(one.plan.nonce, one.query_id, one.run_id) for one in results}
    if len(results) != len(messages) or len(batches) > 1:
        raise Misuse(
            "the tasks of this batch did not all return a handle of it",
            tasks=len(messages),
            results=len(results),
            batches=len(batches),
            hint=_REPORT,
        )
    return results


def _run_of(context: TaskContext) -> str | None:
    """Return the run of the query that a task belongs to, None if Spark does not name it."""
    run_id = context.getLocalProperty(RUN_PROPERTY)
    return run_id if _UUID.fullmatch(run_id or "") else None


def _query_id(results: Sequence[TaskResult]) -> str:
    if results and not results[0].query_id:
        hint = "Name it yourself, for good: option queryId, or query_id of upsert"
        raise ConfigError("Spark does not tell the tasks which query they belong to", hint=hint)
    return results[0].query_id if results else ""


# ---- for `foreachBatch`


@dataclass(frozen=True, slots=True, repr=False)
class Upsert:
    """The function that `upsert` makes. It can be pickled, for Spark Connect."""

    options: tuple[tuple[str, str], ...]
    made_in: tuple[tuple[str, str], ...] = ()
    """The query that it was made in, and its run, for threads that Spark gives none."""

    @reported()
    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write and commit the micro-batch. An empty one is a commit, too, for progress.

        Raises Misuse for a second call in a micro-batch, and ConfigError without a query id, before anything is opened.
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

    Each call is one commit, so a function of your own calls it once in each micro-batch. Raises ConfigError,
    InvalidName; other errors are raised with a batch.

    unique_keys           declares that no key comes twice in a batch, as after an aggregation by key
    sequence_by           else names the column whose greatest value in a task decides for a key
    partitions            those of this job, by number or as a share (`"0/3"` is the first of three)
    allow_gaps            lets a function of your own skip batches
    allow_changed_replay  for a query whose batches differ when Spark repeats them: the first one stays
    query_id              the query, if Spark does not name it (Spark Connect)

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
    """Return the calling query and its run, if Spark names them in the driver.

    Spark Connect does not name them, but a process there serves one run.
    """
    try:
        context = session.sparkContext
        query, run = context.getLocalProperty(QUERY_PROPERTY), context.getLocalProperty(RUN_PROPERTY)
    except PySparkException:
        query, run = None, _PROCESS
    named = {"queryId": query, "runId": run if _UUID.fullmatch(run or "") else None}
    return {name: text for name, text in named.items() if text}


def _ranges(partitions: Sequence[int]) -> str:
    """Return partitions as an option. Raises ConfigError for a value that is no partition number."""
    return ranges_text(whole_numbers("partitions", partitions, example='partitions=[0, 1], or "0/3"'))


def _flag(name: str, value: object) -> str:
    """Return a flag as an option. Text is refused, because "false" would be true in Python."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {value!r}", hint="Give True or False")
    return "true" if value else "false"
