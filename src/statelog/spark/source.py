"""`spark.read.format("statelog")`: a state, changes, or a view of the log itself, as a DataFrame of one position.

Spark asks for the columns once for each `load()`, and plans each scan of the DataFrame separately, at any later time
and in any worker. They share the data source object, which is made once for each `load()`, and pickled. So it contains
the plan: a scan cuts the plan into parts, and a task reads its part.

A row of changes is a change as it was appended; no change is folded away.

Invariants:
- Only a `load()` chooses a position. A scan whose position was truncated fails, and never reads another one.
- A lease is capped by its age (a day, by the materializer), so a program that never leaves `state` does not hold
  a log indefinitely.
"""

import sys
from abc import abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from statelog.environment import current_environment
from statelog.errors import ConfigError, Misuse, NotFound, OffsetGone
from statelog.log import Log, Where
from statelog.reading import At, AtPosition, HeldPlan, Hold, Plan, plan_changes
from statelog.recovery.changes import read_changes
from statelog.recovery.recover import recover
from statelog.recovery.settings import RecoverySettings, terms_of
from statelog.schemas.changes.due import DUE
from statelog.schemas.ledger.place import LogIdentity
from statelog.schemas.values.schema import ValueSchema, state_batches
from statelog.spark.clients import cached_log, checked_log, open_log, planned
from statelog.spark.columns import (
    change_batches,
    change_columns,
    check_columns,
    chosen,
    newest_with,
    spark_arrow_schema,
    state_columns,
)
from statelog.spark.option_texts import address_options, log_address
from statelog.spark.options import (
    LEASE_S,
    ChangeOptions,
    ReadOptions,
    StateOptions,
    change_options,
    read_of,
    refuse_future,
    state_options,
    view_options,
)
from statelog.spark.parts import PlanPart, change_parts, lease_terms, narrowed, read_state, selected, state_parts
from statelog.spark.reported import reported
from statelog.spark.views import VIEWS, ViewReader, view_columns
from statelog.store.url import option_text

Options = TypeVar("Options", bound=ReadOptions)

_HOLDER = "spark-read"
_STATE, _CHANGES = "state", "changes"
_AT = ("atposition", "atwriter", "atcheckpoint", "attime")
_PUSHING_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"
"""The module of the worker that passes filters."""


# ---- the plan of a `load()`


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The plan of a `load()`.

    at       when it was made (UTC)
    lease_s  for how many seconds each scan holds the plan
    plan     None for a view, which only needs the position, and in tasks, which have their parts
    """

    identity: LogIdentity
    at: datetime
    position: int
    lease_s: int = 0
    plan: Plan | None = None

    @classmethod
    def now(cls, plan: Plan, options: ReadOptions) -> "Loaded":
        """Wrap a plan that was made just now."""
        at = datetime.now(UTC)
        return cls(identity=plan.identity, at=at, position=plan.position, lease_s=options.lease_s, plan=plan)


@reported()
def load(options: Mapping[str, str]) -> tuple[StructType, Loaded]:
    """Return the columns of a read with these options, and its plan. Raises ConfigError, NotFound, Unavailable."""
    make = {_STATE: _load_state, _CHANGES: _load_changes}.get(_kind(options), _load_view)
    return planned(log_address(options), lambda: make(options))


@reported()
def reader(options: Mapping[str, str], schema: StructType, loaded: Loaded | None) -> DataSourceReader:
    """Return the reader of one scan. `loaded` is None if the user gave the columns. Raises ConfigError."""
    kind = _kind(options)
    if kind == _STATE:
        # Only in that worker does Spark accept a reader with filters, so the choice needs no setting.
        return (_PushingStateReader if _PUSHING_WORKER in sys.modules else _StateReader)(options, schema, loaded)
    if kind == _CHANGES:
        return _ChangeReader(options, schema, loaded)
    loaded = loaded or _load_view(options)[1]
    return ViewReader(view_options(options), schema, kind, loaded.identity, loaded.position)


def _load_state(options: Mapping[str, str]) -> tuple[StructType, Loaded]:
    read = state_options(options)
    log = cached_log(read.where)
    loaded = Loaded.now(_reserved(log, read, read.at), read)
    # Read after planning: a schema is stored before the first chunk that needs it.
    return chosen(_state_columns(log, read, log.value_schemas.newest()), read.columns), loaded


def _load_changes(options: Mapping[str, str]) -> tuple[StructType, Loaded]:
    read = change_options(options)
    loaded = Loaded.now(_planned_changes(read), read)
    log, plan = _held(read, loaded)
    return _change_columns(log, read, plan), loaded


def _load_view(options: Mapping[str, str]) -> tuple[StructType, Loaded]:
    log = checked_log(view_options(options))
    position = log.ledger.end(at_least=log.position)
    identity = log.descriptor.identity
    return view_columns(read_of(options)), Loaded(identity=identity, at=datetime.now(UTC), position=position)


def _kind(options: Mapping[str, str]) -> str:
    kind, known = read_of(options), (_STATE, _CHANGES, *VIEWS)
    if kind not in known:
        raise ConfigError(f"the option read is {kind!r}", hint=f"Give one of {', '.join(known)}")
    return kind


# ---- the readers, one for each scan


class _Scan(DataSourceReader, Generic[Options]):
    """Spark's view of a plan: copied to every task."""

    _options: Options
    _loaded: Loaded
    _schema: pa.Schema

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one part, on an executor. Raises NotFound, Damaged, Unavailable."""
        if not isinstance(partition, PlanPart):
            return  # Spark's placeholder for an empty list of partitions.
        with reported(), _reading(self._loaded):
            yield from self._rows(cached_log(self._options.where, partition.plan.identity), partition.plan)

    @abstractmethod
    def _rows(self, log: Log, plan: Plan) -> Iterator[pa.RecordBatch]: ...

    def __getstate__(self) -> dict[str, object]:
        """Omit the plan: tasks have their parts."""
        return {**self.__dict__, "_loaded": replace(self._loaded, plan=None)}


class _StateReader(_Scan[StateOptions]):
    """A scan of a state.

    `loaded` is None if the user gave the columns. Then Spark makes a source for each scan, and the scans of one
    DataFrame share no plan. So ConfigError is raised, unless the options name the state.
    """

    @reported()
    def __init__(self, options: Mapping[str, str], schema: StructType, loaded: Loaded | None) -> None:
        read = self._options = state_options(options)
        if loaded is None and read.at is None:
            hint = "Omit .schema(), or choose the state: atPosition, atTime, or atWriter and atCheckpoint"
            raise ConfigError("with a user schema each scan of the DataFrame would read a different state", hint=hint)
        log = cached_log(read.where) if loaded is None else _planned_on(read, loaded)[0]
        self._schema = spark_arrow_schema(schema)
        self._value_schema_id = _value_schema(log, read, schema).id
        self._selection = selected(log.descriptor, read.key_groups, read.keys)
        self._loaded = loaded or Loaded.now(_reserved(log, read, read.at), read)

    @reported()
    def partitions(self) -> Sequence[InputPartition]:
        """Hold the plan again, and return its parts. Raises NotFound, IdentityChanged, Damaged, Unavailable."""
        log, plan = _held(self._options, self._loaded)
        plan = replace(plan, value_schema_id=self._value_schema_id)
        return state_parts(plan, self._selection.key_groups, log.descriptor, self._options.min_partitions)

    def _rows(self, log: Log, plan: Plan) -> Iterator[pa.RecordBatch]:
        tables: Iterator[pa.Table] = read_state(log, plan)
        if self._selection.keys is not None:
            keys = pa.array(self._selection.keys, log.descriptor.key_type.arrow_type)
            tables = (table.filter(pc.is_in(table.column("key"), value_set=keys)) for table in tables)
        for table in tables:
            yield from state_batches(table, self._schema)


class _PushingStateReader(_StateReader):
    """A reader with filters. Spark refuses it unless `spark.sql.python.filterPushdown.enabled` is true."""

    @reported()
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's name
        """Narrow the read by the filters. Return all of them, so that Spark applies them to the rows."""
        self._selection = narrowed(self._selection, filters, _planned_on(self._options, self._loaded)[0].descriptor)
        return filters


class _ChangeReader(_Scan[ChangeOptions]):
    """A scan of changes. Without `loaded`, as in `_StateReader`, the options must name both ends of the range."""

    @reported()
    def __init__(self, options: Mapping[str, str], schema: StructType, loaded: Loaded | None) -> None:
        read = self._options = change_options(options)
        if loaded is None and (read.start is None or read.end is None):
            hint = "Omit .schema(), or name where the range begins and where it ends"
            what = "with a user schema each scan of the DataFrame would read a different range of changes"
            raise ConfigError(what, hint=hint)
        self._loaded = loaded or Loaded.now(_planned_changes(read), read)
        log, plan = _planned_on(read, self._loaded)
        check_columns(schema, _change_columns(log, read, plan), "the changes")
        self._schema = spark_arrow_schema(schema)

    @reported()
    def partitions(self) -> Sequence[InputPartition]:
        """Hold the plan again, and return its parts. Raises NotFound, IdentityChanged, Unavailable."""
        log, plan = _held(self._options, self._loaded)
        return change_parts(plan, log.descriptor.partitions, self._options.min_partitions)

    def _rows(self, log: Log, plan: Plan) -> Iterator[pa.RecordBatch]:
        for batch in read_changes(log, plan, due=DUE.name in self._schema.names):
            yield from change_batches(batch, self._schema)


def _state_columns(log: Log, options: StateOptions, value_schema: ValueSchema) -> StructType:
    """Return all columns of a state in this value schema."""
    with_group = options.include_key_group or "key_group" in (options.columns or ())
    return state_columns(log.descriptor, value_schema, include_key_group=with_group, include_due=options.include_due)


def _value_schema(log: Log, options: StateOptions, schema: StructType) -> ValueSchema:
    """Return the value schema whose state has these columns. Raises ConfigError."""
    names = options.columns

    def columns_of(one: ValueSchema) -> StructType:
        fields = _state_columns(log, options, one).fields
        return StructType([field for field in fields if names is None or field.name in names])

    return newest_with(schema, log.value_schemas.all(), columns_of, "the state")


def _change_columns(log: Log, options: ChangeOptions, plan: Plan) -> StructType:
    assert plan.value_schema_id is not None, "changes are planned in one value schema"
    schema = log.value_schemas.get(plan.value_schema_id)
    return change_columns(log.descriptor, schema, options.columns, include_due=options.include_due)


# ---- a plan and its lease


def _reserved(log: Log, options: ReadOptions, at: At | None) -> Plan:
    """Return the plan of a state. A lease, which expires by itself, holds its position for the tasks."""
    terms = lease_terms(options.lease_s, _HOLDER)
    settings = RecoverySettings(holder=_HOLDER, lease_ttl_s=terms.ttl_s, lease=terms.wanted)
    recovery = recover(log, key_groups=options.key_groups, at=at, settings=settings)
    recovery.reserve()
    return recovery.plan


def _planned_changes(options: ChangeOptions) -> Plan:
    refuse_future(options.start, current_environment().wall_clock())
    return plan_changes(cached_log(options.where), options.start, options.end, key_groups=options.key_groups)


def _planned_on(options: ReadOptions, loaded: Loaded) -> tuple[Log, Plan]:
    """Return the planned log, and the plan. This process may have opened an earlier log of the same name.

    Raises IdentityChanged if the planned log no longer exists.
    """
    plan = loaded.plan
    assert plan is not None, "parts are made where the plan is"
    return cached_log(options.where, plan.identity), plan


def _held(options: ReadOptions, loaded: Loaded) -> tuple[Log, Plan]:
    """Hold the plan for another scan, and return it; of a state whose snapshot was deleted, a new plan at its position.

    Raises NotFound if the position was truncated, IdentityChanged, Damaged, Unavailable.
    """
    log, plan = _planned_on(options, loaded)
    with _reading(loaded):
        try:  # The lease, which expires by itself, holds the position for the tasks.
            Hold(log.store, lease_terms(loaded.lease_s, _HOLDER)).on(log, plan)
        except OffsetGone:
            if plan.is_of_changes:
                raise
            plan = _reserved(log, options, AtPosition(plan.position))
    return log, plan


@contextmanager
def _reading(loaded: Loaded) -> Generator[None]:
    """Turn errors about deleted data into a NotFound that names both times and the way out."""
    try:
        yield
    except (NotFound, OffsetGone) as error:
        raise NotFound(
            f"this DataFrame was planned at {loaded.at:%Y-%m-%d %H:%M:%S} UTC, and its data was deleted by now, at "
            f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC",
            hint=f"load() again. A DataFrame is as of its load(), held for {loaded.lease_s} s from then and from each "
            "action. To hold it longer, set leaseSeconds, or use statelog.spark.state",
            planned_position=loaded.position,
            reason=error.message,
        ) from error


# ---- a state with a lease


@contextmanager
def state(
    spark: SparkSession,
    name: str,
    where: Where,
    *,
    options: Mapping[str, object] | None = None,
    lease_s: float = LEASE_S,
) -> Generator[DataFrame]:
    """Return the state of a log as a DataFrame, held by a lease for as long as the `with` lasts.

        >>> with state(spark, log.name, where) as df:
        ...     df.count()
        2

    `options` are further options of a read, such as `atPosition`, `keyGroups` or `columns`. A thread of this process
    renews the lease, and the end removes it. So the process needs the store, and for planning the brokers. If it dies,
    the lease expires after `lease_s`. No lease outlives the cap of the log's materializer. Raises Misuse for a read of
    anything else, ConfigError, NotFound, Damaged, Unavailable.
    """
    # Like Spark's own options, they may be numbers.
    more = {option: option_text(value) for option, value in (options or {}).items()}
    given = {**address_options(name, where), **more}
    if read_of(given) != _STATE:
        raise Misuse("only a state is held like this", hint="Omit the option read")
    read = state_options(given)
    terms = terms_of(RecoverySettings(holder="spark-state", lease_ttl_s=lease_s))
    with closing(open_log(read.where)) as log, HeldPlan(log, terms, read.at, read.key_groups) as held:
        plan = held.take()
        with held.renewing("statelog-spark-state"):
            fixed = {name: value for name, value in given.items() if name.lower() not in (*_AT, "leaseseconds")}
            frame = spark.read.format("statelog").options(**fixed)
            yield frame.options(atPosition=str(plan.position), leaseSeconds="0").load()
