"""What the streaming and the batch writer share: options, columns, and the pickled task grant.

Spark makes a writer in the planning process and pickles it, twice, for the tasks; for a stream it makes another one in
the commit process, which is never pickled. So pickling is the one thing that only planning does, and the grant is
asked for there: making a writer does no I/O.
"""

import re

import pyspark
from pyspark.sql.types import StructType

from statelog.errors import ConfigError, InvalidChange, Misuse, StatelogError
from statelog.producer.commits.grant import TaskGrant
from statelog.spark.columns import check_written
from statelog.spark.options.write import WriteOptions
from statelog.spark.reported import unpicklable
from statelog.spark.sink.epochs import plan_batch

__all__ = ["PlannedWrite", "require_spark"]

_FLOOR = (4, 2)


def require_spark(version: str = pyspark.__version__) -> None:
    """Raise ConfigError for a Spark whose Python data sources lack what statelog needs."""
    found = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if found < _FLOOR:
        raise ConfigError(
            f"statelog needs pyspark {_FLOOR[0]}.{_FLOOR[1]} or newer, not {version}",
            hint="It is the first with Arrow stream writers and admission control",
        )


class PlannedWrite:
    """A write before and after planning. `task` has a value from the first pickling on, and so in every copy."""

    def __init__(self, options: WriteOptions, columns: StructType, *, overwrite: bool) -> None:
        require_spark()
        if overwrite:
            raise Misuse(
                "statelog takes changes: complete mode and overwrite are not supported",
                hint="Use append mode; for aggregations, update mode with foreachBatch(statelog.spark.upsert(...))",
            )
        names = columns.fieldNames()
        if "key" not in names:
            raise InvalidChange(
                "the DataFrame has no column key", columns=", ".join(names), hint="Rename the key column to key"
            )
        self.options = options
        self._names = tuple(names)
        self._task: TaskGrant | None = None

    @property
    def task(self) -> TaskGrant:
        """The right to write this batch."""
        if self._task is None:
            self._task = plan_batch(self.options)
            check_written(self._names, self._task.grant.descriptor, self._task.grant.value_schema)
        return self._task

    def __getstate__(self) -> tuple[WriteOptions, tuple[str, ...], TaskGrant]:
        try:
            return self.options, self._names, self.task
        except StatelogError as error:
            raise unpicklable(error) from None

    def __setstate__(self, state: tuple[WriteOptions, tuple[str, ...], TaskGrant]) -> None:
        self.options, self._names, self._task = state
