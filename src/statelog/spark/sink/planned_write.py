"""What the streaming and the batch writer share: options, columns, and the pickled plan for the tasks.

Spark makes a writer in the planning process and pickles it, twice, for the tasks; for a stream it makes another one in
the commit process, which is never pickled. So pickling is the one thing that only planning does, and the grant is
asked for there: making a writer does no I/O.
"""

from typing import NamedTuple

from pyspark.sql.types import StructType

from statelog.errors import InvalidChange, Misuse, StatelogError
from statelog.producer.commits.grant import Grant, TaskGrant
from statelog.schemas.descriptor import Descriptor
from statelog.schemas.values.schema import ValueSchema
from statelog.spark.options.write import WriteOptions
from statelog.spark.reported import unpicklable
from statelog.spark.rows.names import has_key
from statelog.spark.rows.row_plan import RowPlan, plan_rows
from statelog.spark.sink.epochs import plan_batch

__all__ = ["PlannedWrite", "WritePlan"]


class WritePlan(NamedTuple):
    """What a task needs: the right to write this batch, and how rows become changes."""

    task: TaskGrant
    rows: RowPlan


class PlannedWrite:
    """A write before and after planning. `plan` has a value from the first pickling on, and so in every copy."""

    def __init__(self, options: WriteOptions, columns: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise Misuse(
                "statelog takes changes: complete mode and overwrite are not supported",
                hint="Use append mode; for aggregations, update mode with foreachBatch(statelog.spark.upsert(...))",
            )
        names = columns.fieldNames()
        if not has_key(names):
            raise InvalidChange(
                "the DataFrame has no column key", columns=", ".join(names), hint="Rename the key column to key"
            )
        self.options = options
        self._columns = columns
        self._plan: WritePlan | None = None

    @property
    def plan(self) -> WritePlan:
        """The plan of this batch. Columns are checked before anything is opened, and anyone fenced."""
        if self._plan is None:
            task = plan_batch(self.options, check=self._rows)
            self._plan = WritePlan(task, self._rows(task.grant.descriptor, task.grant.value_schema))
        return self._plan

    @property
    def grant(self) -> Grant | None:
        """The right to write that was taken; None before the plan."""
        return self._plan.task.grant if self._plan is not None else None

    def _rows(self, descriptor: Descriptor, value_schema: ValueSchema) -> RowPlan:
        return plan_rows(self._columns, self.options, descriptor, value_schema)

    def __getstate__(self) -> tuple[WriteOptions, StructType, WritePlan]:
        try:
            return self.options, self._columns, self.plan
        except StatelogError as error:
            raise unpicklable(error) from None

    def __setstate__(self, state: tuple[WriteOptions, StructType, WritePlan]) -> None:
        self.options, self._columns, self._plan = state
