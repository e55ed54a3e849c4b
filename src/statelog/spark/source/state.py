"""The state of a log as a DataFrame, at one position for all its scans and tasks.

The position is the read plan's, made when the DataFrame was loaded; each task carries out the plan of some key groups.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from statelog.errors import ConfigError
from statelog.reading.plan import Plan, part_of
from statelog.schemas.descriptor import Descriptor
from statelog.schemas.values.schema import ValueSchema, state_batches
from statelog.spark.clients import cached_log
from statelog.spark.columns import chosen, newest_with, spark_arrow_schema, state_columns
from statelog.spark.options.read import ReadOptions, read_options
from statelog.spark.reported import reported
from statelog.spark.source.read_plan import Loaded, hold_plan, plan_read, reading
from statelog.spark.source.state_task import read_slice
from statelog.spark.source.wanted import narrowed, wanted

__all__ = ["PushingStateReader", "StateReader", "StateSlice", "plan_state", "slices", "state_parts"]

_LEAST_BYTES = 16 << 20
"""What a task of its own is worth: a few times what Spark itself spends on a task in Python, 30 to 60 ms."""


def plan_state(options: Mapping[str, str]) -> tuple[StructType, Loaded]:
    """The columns that a read with these options has, and its plan. Raises ConfigError, NotFound, Unavailable."""
    read = read_options(options)
    return _columns(read), plan_read(read)


class StateSlice(InputPartition):
    """One task's part: the plan for contiguous key groups."""

    def __init__(self, plan: Plan) -> None:
        super().__init__((plan.position, plan.key_groups))
        self.plan = plan


class StateReader(DataSourceReader):
    """Spark's view of the source: one for each scan, copied to every task.

    `loaded` is None where the user gave the columns: Spark then makes a source for each scan, and nothing is ever
    asked that the scans of one DataFrame share. Raises ConfigError then, unless the options say which state.
    """

    @reported()
    def __init__(self, options: Mapping[str, str], schema: StructType, loaded: Loaded | None) -> None:
        self._options = read_options(options)
        if loaded is None and self._options.at is None:
            raise ConfigError(
                "with a user schema each scan of the DataFrame would read a different state",
                hint="Leave .schema() out, or choose the state: atPosition, or atWriter and atCheckpoint",
            )
        self._schema = spark_arrow_schema(schema)
        self._value_schema_id = _value_schema_of(self._options, schema).id
        descriptor = cached_log(self._options.where).descriptor
        self._wanted = wanted(descriptor, self._options.key_groups, self._options.keys)
        loaded = loaded or plan_read(self._options)
        assert loaded.plan is not None, "a state was planned"
        self._plan: Plan | None = loaded.plan
        self._planned, self._identity = loaded.planned, loaded.plan.identity

    @reported()
    def partitions(self) -> Sequence[InputPartition]:
        """The slices, all at the position of the plan, which is held again. Raises as `hold_plan`."""
        assert self._plan is not None, "partitions are made where the plan is"
        plan = hold_plan(self._options, self._planned, self._plan)
        descriptor = cached_log(self._options.where).descriptor
        parts = state_parts(plan, self._wanted.key_groups, descriptor, self._options.min_partitions)
        return [StateSlice(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The state of one slice, on an executor. Raises NotFound, Damaged, Unavailable."""
        if not isinstance(partition, StateSlice):
            return  # Spark's stand-in for an empty list of partitions.
        with reported(), reading(self._planned):
            log = cached_log(self._options.where, self._identity)
            for table in read_slice(log, partition.plan, self._value_schema_id):
                yield from state_batches(self._of_keys(table), self._schema)

    def narrow(self, filters: Iterable[Filter]) -> None:
        """Read no more than rows that pass the filters may need."""
        self._wanted = narrowed(self._wanted, filters, cached_log(self._options.where).descriptor)

    def _of_keys(self, table: pa.Table) -> pa.Table:
        if self._wanted.keys is None:
            return table
        keys = pa.array(self._wanted.keys, table.schema.field("key").type)
        return table.filter(pc.is_in(table.column("key"), value_set=keys))

    def __getstate__(self) -> dict[str, object]:
        """Without the plan: tasks have their slices."""
        return {**self.__dict__, "_plan": None}


class PushingStateReader(StateReader):
    """A reader that takes filters. Spark refuses one as long as `spark.sql.python.filterPushdown.enabled` is false."""

    @reported()
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's name
        """Narrow the read; Spark is given back all filters, and applies them to the rows."""
        self.narrow(filters)
        return filters


def state_parts(plan: Plan, key_groups: Sequence[int], descriptor: Descriptor, minimum: int | None) -> list[Plan]:
    """A plan cut for tasks: at most as many as the log has partitions, fewer for a small state; or `minimum`."""
    if not key_groups:
        return []
    whole = part_of(plan, frozenset(key_groups), descriptor)
    count = minimum or min(descriptor.partitions, whole.size_bytes // _LEAST_BYTES)
    return [part_of(whole, frozenset(part), descriptor) for part in slices(key_groups, count)]


def slices(key_groups: Sequence[int], count: int) -> list[tuple[int, ...]]:
    """The key groups cut into `count` contiguous parts, or one for each group if there are fewer.

    With as many parts as the log has partitions, and all key groups, every part is one partition.
    """
    groups = len(key_groups)
    parts = max(1, min(count, groups))
    starts = [-(-part * groups // parts) for part in range(parts + 1)]
    return [tuple(key_groups[starts[part] : starts[part + 1]]) for part in range(parts)]


def _value_schema_of(options: ReadOptions, schema: StructType) -> ValueSchema:
    """The value schema whose state has these columns. Raises ConfigError."""

    def columns_of(one: ValueSchema) -> StructType:
        columns = _all_columns(options, one)
        known = set(columns.fieldNames())
        return chosen(columns, None if options.columns is None else [name for name in options.columns if name in known])

    return newest_with(schema, cached_log(options.where).value_schemas.all(), columns_of, "the state")


def _columns(options: ReadOptions) -> StructType:
    return chosen(_all_columns(options, cached_log(options.where).value_schemas.newest()), options.columns)


def _all_columns(options: ReadOptions, value_schema: ValueSchema) -> StructType:
    with_group = options.include_key_group or "key_group" in (options.columns or ())
    return state_columns(cached_log(options.where).descriptor, value_schema, include_key_group=with_group)
