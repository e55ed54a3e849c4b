"""`spark.read.format("statelog")`: the state of a log as a DataFrame, at one position for all its scans and tasks.

The position is the read plan's, made when the DataFrame was loaded; each task recovers a slice of the key groups at
that position, through the same code as every other recovery.
"""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from statelog.errors import ConfigError
from statelog.recovery.planning.at import AtPosition
from statelog.recovery.recover import recover
from statelog.recovery.settings import RecoverySettings
from statelog.schemas.values.schema import ValueSchema
from statelog.spark.clients import cached_log
from statelog.spark.columns import chosen, same_columns, spark_arrow_schema, state_batches, state_columns
from statelog.spark.options.read import ReadOptions, read_options
from statelog.spark.reported import reported
from statelog.spark.source.read_plan import ReadPlan, hold_plan, plan_read, reading

__all__ = ["StateReader", "StateSlice", "plan_state", "slices"]


@reported()
def plan_state(options: Mapping[str, str]) -> tuple[StructType, ReadPlan]:
    """The columns that a read with these options has, and its plan. Raises ConfigError, NotFound, Unavailable."""
    read = read_options(options)
    return _columns(read), plan_read(read)


class StateSlice(InputPartition):
    """One task's part: contiguous key groups at a ledger position."""

    def __init__(self, position: int, key_groups: tuple[int, ...]) -> None:
        super().__init__((position, key_groups))
        self.position = position
        self.key_groups = key_groups


class StateReader(DataSourceReader):
    """Spark's view of the source: one for each scan, copied to every task.

    `plan` is None where the user gave the columns: Spark then makes a source for each scan, and nothing is ever
    asked that the scans of one DataFrame share. Raises ConfigError then, unless the options say which state.
    """

    @reported()
    def __init__(self, options: Mapping[str, str], schema: StructType, plan: ReadPlan | None) -> None:
        self._options = read_options(options)
        if plan is None and self._options.at is None:
            raise ConfigError(
                "with a user schema each scan of the DataFrame would read a different state",
                hint="Leave .schema() out, or choose the state: atPosition, or atWriter and atCheckpoint",
            )
        self._plan = plan or plan_read(self._options)
        self._schema = spark_arrow_schema(schema)
        self._value_schema_id = _value_schema_of(self._options, schema).id

    @reported()
    def partitions(self) -> Sequence[InputPartition]:
        """The slices, all at the position of the plan, which is held again. Raises as `hold_plan`."""
        options = self._options
        hold_plan(options, self._plan)
        log = cached_log(options.where)
        count = options.min_partitions or log.descriptor.partitions
        wanted = range(log.descriptor.key_groups) if options.key_groups is None else options.key_groups
        return [StateSlice(self._plan.position, part) for part in slices(wanted, count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The state of one slice, on an executor. Raises NotFound, Damaged, Unavailable."""
        if not isinstance(partition, StateSlice):
            return  # Spark's stand-in for an empty list of partitions.
        with reported():
            yield from self._batches(partition)

    def _batches(self, part: StateSlice) -> Iterator[pa.RecordBatch]:
        log = cached_log(self._options.where)
        settings = RecoverySettings(holder="spark-task", threads=1, value_schema_id=self._value_schema_id)
        at = AtPosition(part.position)
        with reading(self._plan), recover(log, key_groups=part.key_groups, at=at, settings=settings) as recovery:
            table = recovery.to_arrow()
        yield from state_batches(table, self._schema)


def slices(key_groups: Sequence[int], count: int) -> list[tuple[int, ...]]:
    """The key groups cut into `count` contiguous parts, or one for each group if there are fewer.

    With as many parts as the log has partitions, and all key groups, every part is one partition.
    """
    groups = len(key_groups)
    parts = max(1, min(count, groups))
    starts = [-(-part * groups // parts) for part in range(parts + 1)]
    return [tuple(key_groups[starts[part] : starts[part + 1]]) for part in range(parts)]


def _value_schema_of(options: ReadOptions, schema: StructType) -> ValueSchema:
    """The newest value schema whose state has these columns: a DataFrame may be older than the last evolution."""
    known = cached_log(options.where).value_schemas.all()
    for one in reversed(known):
        columns = _all_columns(options, one)
        has_them = set(options.columns or ()) <= set(columns.fieldNames())
        if has_them and same_columns(chosen(columns, options.columns), schema):
            return one
    raise ConfigError(
        "the given schema differs from the state's",
        given=schema.simpleString(),
        expected=_columns(options).simpleString(),
        hint="Leave .schema() out; select, rename and cast after the read, or use the option columns",
    )


def _columns(options: ReadOptions) -> StructType:
    return chosen(_all_columns(options, cached_log(options.where).value_schemas.newest()), options.columns)


def _all_columns(options: ReadOptions, value_schema: ValueSchema) -> StructType:
    with_group = options.include_key_group or "key_group" in (options.columns or ())
    return state_columns(cached_log(options.where).descriptor, value_schema, include_key_group=with_group)
