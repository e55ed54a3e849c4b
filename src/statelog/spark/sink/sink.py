"""`df.writeStream.format("statelog")`: every micro-batch is one commit, exactly once, in append mode.

Executors write chunks and return handles; the commit process puts one Commit for (writer, query, batch). Nothing that
Spark repeats, kills or forgets can show: what no commit lists is void, and a commit that is there is not put again.

Invariant: making the writer does no I/O, because Spark makes one for planning and one for the commit of every batch.
"""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from statelog.spark.options.write import write_options
from statelog.spark.reported import reported
from statelog.spark.sink.batch_commit import commit_batch
from statelog.spark.sink.planned_write import PlannedWrite
from statelog.spark.sink.task import TaskResult, write_task

__all__ = ["StreamWriter"]


class StreamWriter(DataSourceStreamArrowWriter):
    """Spark's view of the sink."""

    @reported()
    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        self._planned = PlannedWrite(write_options(options, streaming=True), schema, overwrite=overwrite)

    @reported()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:  # type: ignore[override]  # as Spark's own Arrow class
        """Write a task's rows, on an executor. Raises InvalidChange, KeyGroupMismatch, PersistFailed, Unavailable."""
        return write_task(iterator, *self._planned.plan, self._planned.options)

    @reported()
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Commit the batch, beside the driver. Raises as `commit_batch`."""
        commit_batch(self._planned.options, messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Nothing to undo: chunks that no commit lists are void, and truncation removes them."""
