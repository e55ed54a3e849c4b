"""`df.write.format("statelog").mode("append")`: one commit for one DataFrame.

Exactly once with `checkpointId` (the caller numbers its batches) or `batchId` (what `upsert` gives for a micro-batch);
with neither, a job that is run again appends again, as with any sink.
"""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from statelog.spark.options.write import write_options
from statelog.spark.reported import reported
from statelog.spark.sink.batch_commit import commit_batch, commit_write
from statelog.spark.sink.epochs import give_up
from statelog.spark.sink.planned_write import PlannedWrite
from statelog.spark.sink.task import TaskResult, write_task

__all__ = ["BatchWriter"]


class BatchWriter(DataSourceArrowWriter):
    """Spark's view of the sink. One instance is planned, copied to the tasks, and to the commit process."""

    @reported()
    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        self._planned = PlannedWrite(write_options(options, streaming=False), schema, overwrite=overwrite)

    @reported()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:  # type: ignore[override]  # as Spark's own Arrow class
        """Write a task's rows, on an executor. Raises InvalidChange, KeyGroupMismatch, PersistFailed, Unavailable."""
        return write_task(iterator, *self._planned.plan, self._planned.options)

    @reported()
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit the rows of all tasks, beside the driver. Raises as `commit_batch`."""
        options = self._planned.options
        if options.batch_id is not None:
            commit_batch(options, messages, options.batch_id)
        elif not commit_write(options, messages):
            self._give_up()

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:  # noqa: ARG002  # Spark's signature
        """Let others write. Nothing is to be undone: chunks that no commit lists are void."""
        if self._planned.options.batch_id is None:
            self._give_up()

    def _give_up(self) -> None:
        """End the epoch of a plain write that commits nothing: its Open says that it is under way."""
        if self._planned.grant is not None:
            give_up(self._planned.options, self._planned.grant)
