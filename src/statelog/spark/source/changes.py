"""Committed changes as a DataFrame: those of the commits between two states, planned once, when it is loaded.

Columns: `key`, `op` (put, delete), `value` (null in a delete), `key_group`, and of the commit `writer`, `checkpoint`,
`position` (the one right behind it) and `timestamp`. A row is a change as it was appended; none is folded away.
"""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from statelog.errors import ConfigError
from statelog.reading.changes import LEAST_BYTES, plan_changes, split_changes
from statelog.reading.hold import Hold
from statelog.reading.plan import Plan
from statelog.recovery.changes import read_changes
from statelog.spark.clients import cached_log
from statelog.spark.columns import change_batches, change_columns, check_columns, chosen, spark_arrow_schema
from statelog.spark.options.read import ChangeOptions, change_options
from statelog.spark.options.reading import lease_terms
from statelog.spark.reported import reported
from statelog.spark.source.read_plan import HOLDER, Loaded, Planned, reading

__all__ = ["ChangeReader", "ChangeSlice", "change_slices", "plan_change_read"]


class ChangeSlice(InputPartition):
    """One task's part: a part of the plan."""

    def __init__(self, plan: Plan) -> None:
        super().__init__((plan.start_position, plan.position))
        self.plan = plan


def plan_change_read(options: Mapping[str, str]) -> tuple[StructType, Loaded]:
    """The columns of a read of changes, and its plan. Raises ConfigError, NotFound, Damaged, Unavailable."""
    read = change_options(options)
    plan = _plan(read)
    loaded = Loaded.now(plan, read.lease_s)
    _hold(read, loaded.planned, plan)
    return _columns(read, plan), loaded


class ChangeReader(DataSourceReader):
    """Spark's view of the changes: one for each scan, copied to every task.

    `loaded` is None where the user gave the columns; see `StateReader`. Raises ConfigError then, unless the options say
    where the range begins and ends.
    """

    @reported()
    def __init__(self, options: Mapping[str, str], schema: StructType, loaded: Loaded | None) -> None:
        self._options = change_options(options)
        if loaded is None:
            if self._options.start is None or self._options.end is None:
                raise ConfigError(
                    "with a user schema each scan of the DataFrame would read a different range of changes",
                    hint="Leave .schema() out, or say where the range begins and where it ends",
                )
            loaded = Loaded.now(_plan(self._options), self._options.lease_s)
        assert loaded.plan is not None, "changes were planned"
        expected = _columns(self._options, loaded.plan)
        check_columns(schema, expected, "the changes")
        self._schema = spark_arrow_schema(schema)
        self._plan: Plan | None = loaded.plan
        self._planned = loaded.planned

    @reported()
    def partitions(self) -> Sequence[InputPartition]:
        """The parts of the plan, which is held again. Raises NotFound if the log was truncated past it."""
        assert self._plan is not None, "partitions are made where the plan is"
        _hold(self._options, self._planned, self._plan)
        partitions = cached_log(self._options.where).descriptor.partitions
        return change_slices(self._plan, partitions, self._options.min_partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The changes of one part, on an executor. Raises NotFound, Damaged, Unavailable."""
        if not isinstance(partition, ChangeSlice):
            return  # Spark's stand-in for an empty list of partitions.
        with reported(), reading(self._planned):
            for batch in read_changes(cached_log(self._options.where, partition.plan.identity), partition.plan):
                yield from change_batches(batch, self._schema)

    def __getstate__(self) -> dict[str, object]:
        """Without the plan: tasks have their parts."""
        return {**self.__dict__, "_plan": None}


def change_slices(plan: Plan, partitions: int, minimum: int | None) -> list[ChangeSlice]:
    """A plan cut for tasks: at most as many as the log has partitions, fewer for a small one; or `minimum`, where key
    groups stay whole as long as it does not exceed the partitions.
    """
    count = minimum or partitions
    least_bytes = LEAST_BYTES if minimum is None else 1
    parts = split_changes(plan, count, least_bytes=least_bytes, whole_key_groups=count <= partitions)
    return [ChangeSlice(part) for part in parts]


def _plan(options: ChangeOptions) -> Plan:
    return plan_changes(cached_log(options.where), options.start, options.end, key_groups=options.key_groups)


def _hold(options: ChangeOptions, planned: Planned, plan: Plan) -> None:
    """Hold what a plan reads for the tasks of a scan; the lease runs out by itself."""
    log = cached_log(options.where)
    with reading(planned):
        Hold.on(log, plan, lease_terms(options.lease_s, HOLDER))


def _columns(options: ChangeOptions, plan: Plan) -> StructType:
    log = cached_log(options.where)
    assert plan.value_schema_id is not None, "changes are planned in one value schema"
    return chosen(change_columns(log.descriptor, log.value_schemas.get(plan.value_schema_id)), options.columns)
