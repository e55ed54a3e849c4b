"""A Spark task that writes: sends its rows as one change set and returns the handle. Runs on executors.

Touches neither ledger nor DFS: it needs the brokers and the task grant that travels in the pickled writer. A task
that fails, is retried, speculated or comes too late leaves chunks that no commit lists.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from statelog.errors import ConfigError
from statelog.producer.commits.grant import Grant, TaskGrant
from statelog.producer.task_writer import TaskWriter
from statelog.schemas.ledger.handle import Checkpoint
from statelog.spark.clients import task_producer
from statelog.spark.options.write import WriteOptions
from statelog.spark.rows.row_plan import RowPlan, write_rows

__all__ = ["QUERY_PROPERTY", "TaskResult", "write_task"]

QUERY_PROPERTY = "sql.streaming.queryId"  # Spark sets it for every job of a streaming query; it documents no name.
_CASE_PROPERTY = "spark.sql.caseSensitive"  # As all settings of a session, a property of its jobs.


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult(WriterCommitMessage):
    """What a task tells the commit process.

    `handle` is `Handle.to_bytes`; `grant` and `base` are what it was written under; `query_id` is '' outside of a
    streaming query.
    """

    grant: Grant
    base: Checkpoint
    handle: bytes
    query_id: str


def write_task(batches: Iterable[pa.RecordBatch], task: TaskGrant, rows: RowPlan, options: WriteOptions) -> TaskResult:
    """Write this task's rows. Raises InvalidChange, KeyGroupMismatch, PersistFailed, BrokerUnavailable."""
    context = TaskContext.get()
    if context is None:
        raise ConfigError("this must run inside a Spark task", hint="Use df.write or df.writeStream")
    query_id = _query_id(context.getLocalProperty(QUERY_PROPERTY), options.query_id)
    slot = context.taskAttemptId()  # Unique in the Spark context that the grant's epoch belongs to, over all batches.
    with task_producer(options.where.where) as producer, TaskWriter(producer, task, slot=slot) as writer:
        is_case_sensitive = context.getLocalProperty(_CASE_PROPERTY) == "true"
        write_rows(batches, rows, writer, is_case_sensitive=is_case_sensitive)
        handle = writer.finish()
    return TaskResult(grant=task.grant, base=task.base, handle=handle.to_bytes(), query_id=query_id)


def _query_id(found: str | None, given: str | None) -> str:
    """The query as Spark names it, or, only where it does not, the user. Raises ConfigError if they differ."""
    if found and given and found != given:
        raise ConfigError(
            "the option queryId contradicts Spark's own query id",
            given=given,
            found=found,
            hint="Leave queryId out: Spark tells its tasks which query they belong to",
        )
    return found or given or ""
