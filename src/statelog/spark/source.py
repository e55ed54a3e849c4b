"""`spark.read.format("statelog")`: a state, changes, or a view of the log itself, as a DataFrame of one position.

Spark asks for the columns once for each `load()`, and plans each scan of the DataFrame by itself, at any later time and
in any worker. The data source object is what they have in common: it is made once for each `load()`, and pickled. So
what is read is planned there and travels with it: a scan cuts the plan into parts, and a task carries out its part.

A row of changes is a change as it was appended; none is folded away.

Invariants:
- Only a `load()` chooses a position; a scan may find it gone, but never reads another.
- A lease is capped by its age (`lease_cap_s` of the materializer), so a program that never leaves `state` does not hold
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
"""The module of the worker that hands over filters."""


# ---- what a `load()` plans


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What was planned at a `load()`, of which log, when (UTC), and for how many seconds each scan holds what it reads.
    `plan` is None for a view, of which the position is all, and in tasks, which have their parts.
    """

    identity: LogIdentity
    at: datetime
    position: int
    lease_s: int = 0
    plan: Plan | None = None

    @classmethod
    def now(cls, plan: Plan, options: ReadOptions) -> "Loaded":
        """A plan that was just made."""
        at = datetime.now(UTC)
        return cls(identity=plan.identity, at=at, position=plan.position, lease_s=options.lease_s, plan=plan)


@reported()
def load(options: Mapping[str, str]) -> tuple[StructType, Loaded]:
    """The columns that a read with these options has, and its plan. Raises ConfigError, NotFound, Unavailable."""
    make = {_STATE: _load_state, _CHANGES: _load_changes}.get(_kind(options), _load_view)
    return planned(log_address(options), lambda: make(options))


@reported()
def reader(options: Mapping[str, str], schema: StructType, loaded: Loaded | None) -> DataSourceReader:
    """The reader of one scan. `loaded` is None where the user gave the columns. Raises ConfigError, as planning."""
    kind = _kind(options)
    if kind == _STATE:
        # In no other worker Spark takes a reader that takes filters, so no setting of ours says which one to make.
        return (_PushingStateReader if _PUSHING_WORKER in sys.modules else _StateReader)(options, schema, loaded)
    if kind == _CHANGES:
        return _ChangeReader(options, schema, loaded)
    loaded = loaded or _load_view(options)[1]
    return ViewReader(view_options(options), schema, kind, loaded.identity, loaded.position)


def _load_state(options: Mapping[str, str]) -> tuple[StructType, Loaded]:
    read = state_options(options)
    log = cached_log(read.where)
    loaded = Loaded.now(_reserved(log, read, read.at), read)
    # Asked for behind the plan: a schema is stored before the first chunk that needs it.
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
        raise ConfigError(f"the option read is {kind!r}", hint=f"It is one of {', '.join(known)}")
    return kind


# ---- the readers, one for each scan


class _Scan(DataSourceReader, Generic[Options]):
    """Spark's view of a plan: copied to every task."""

    _options: Options
    _loaded: Loaded
    _schema: pa.Schema

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one part, on an executor. Raises NotFound, Damaged, Unavailable."""
        if not isinstance(partition, PlanPart):
            return  # Spark's stand-in for an empty list of partitions.
        with reported(), _reading(self._loaded):
            yield from self._rows(cached_log(self._options.where, partition.plan.identity), partition.plan)

    @abstractmethod
    def _rows(self, log: Log, plan: Plan) -> Iterator[pa.RecordBatch]: ...

    def __getstate__(self) -> dict[str, object]:
        """Without the plan: tasks have their parts."""
        return {**self.__dict__, "_loaded": replace(self._loaded, plan=None)}


class _StateReader(_Scan[StateOptions]):
    """A scan of a state. `loaded` is None where the user gave the columns: Spark then makes a source for each scan, and
    nothing is ever asked that the scans of one DataFrame share. Raises ConfigError then, unless the options say which
    state.
    """

    @reported()
    def __init__(self, options: Mapping[str, str], schema: StructType, loaded: Loaded | None) -> None:
        read = self._options = state_options(options)
        if loaded is None and read.at is None:
            hint = "Leave .schema() out, or choose the state: atPosition, atTime, or atWriter and atCheckpoint"
            raise ConfigError("with a user schema each scan of the DataFrame would read a different state", hint=hint)
        log = cached_log(read.where) if loaded is None else _planned_on(read, loaded)[0]
        self._schema = spark_arrow_schema(schema)
        self._value_schema_id = _value_schema(log, read, schema).id
        self._selection = selected(log.descriptor, read.key_groups, read.keys)
        self._loaded = loaded or Loaded.now(_reserved(log, read, read.at), read)

    @reported()
    def partitions(self) -> Sequence[InputPartition]:
        """The parts of the plan, which is held again. Raises NotFound, IdentityChanged, Damaged, Unavailable."""
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
    """A reader that takes filters. Spark refuses one as long as `spark.sql.python.filterPushdown.enabled` is false."""

    @reported()
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's name
        """Read no more than rows that pass may need; Spark is given back all filters, and applies them to the rows."""
        self._selection = narrowed(self._selection, filters, _planned_on(self._options, self._loaded)[0].descriptor)
        return filters


class _ChangeReader(_Scan[ChangeOptions]):
    """A scan of changes. `loaded` is as that of a `_StateReader`: without it the options have to say where the range
    begins and ends, or ConfigError is raised.
    """

    @reported()
    def __init__(self, options: Mapping[str, str], schema: StructType, loaded: Loaded | None) -> None:
        read = self._options = change_options(options)
        if loaded is None and (read.start is None or read.end is None):
            hint = "Leave .schema() out, or say where the range begins and where it ends"
            told = "with a user schema each scan of the DataFrame would read a different range of changes"
            raise ConfigError(told, hint=hint)
        self._loaded = loaded or Loaded.now(_planned_changes(read), read)
        log, plan = _planned_on(read, self._loaded)
        check_columns(schema, _change_columns(log, read, plan), "the changes")
        self._schema = spark_arrow_schema(schema)

    @reported()
    def partitions(self) -> Sequence[InputPartition]:
        """The parts of the plan, which is held again. Raises NotFound, IdentityChanged, Unavailable."""
        log, plan = _held(self._options, self._loaded)
        return change_parts(plan, log.descriptor.partitions, self._options.min_partitions)

    def _rows(self, log: Log, plan: Plan) -> Iterator[pa.RecordBatch]:
        for batch in read_changes(log, plan):
            yield from change_batches(batch, self._schema)


def _state_columns(log: Log, options: StateOptions, value_schema: ValueSchema) -> StructType:
    """All columns of a state in this value schema."""
    with_group = options.include_key_group or "key_group" in (options.columns or ())
    return state_columns(log.descriptor, value_schema, include_key_group=with_group)


def _value_schema(log: Log, options: StateOptions, schema: StructType) -> ValueSchema:
    """The value schema whose state has these columns. Raises ConfigError."""
    names = options.columns

    def columns_of(one: ValueSchema) -> StructType:
        fields = _state_columns(log, options, one).fields
        return StructType([field for field in fields if names is None or field.name in names])

    return newest_with(schema, log.value_schemas.all(), columns_of, "the state")


def _change_columns(log: Log, options: ChangeOptions, plan: Plan) -> StructType:
    assert plan.value_schema_id is not None, "changes are planned in one value schema"
    return change_columns(log.descriptor, log.value_schemas.get(plan.value_schema_id), options.columns)


# ---- a plan and its lease


def _reserved(log: Log, options: ReadOptions, at: At | None) -> Plan:
    """The plan of a state. A lease keeps its position for the tasks, and runs out by itself."""
    terms = lease_terms(options.lease_s, _HOLDER)
    settings = RecoverySettings(holder=_HOLDER, lease_ttl_s=terms.ttl_s, lease=terms.wanted)
    recovery = recover(log, key_groups=options.key_groups, at=at, settings=settings)
    recovery.reserve()
    return recovery.plan


def _planned_changes(options: ChangeOptions) -> Plan:
    refuse_future(options.start, current_environment().wall_clock())
    return plan_changes(cached_log(options.where), options.start, options.end, key_groups=options.key_groups)


def _planned_on(options: ReadOptions, loaded: Loaded) -> tuple[Log, Plan]:
    """The log that was planned on, and the plan. This process may have opened another one under its name before, whose
    key groups and schemas tell nothing of this one. Raises IdentityChanged if it is gone.
    """
    plan = loaded.plan
    assert plan is not None, "parts are made where the plan is"
    return cached_log(options.where, plan.identity), plan


def _held(options: ReadOptions, loaded: Loaded) -> tuple[Log, Plan]:
    """Hold what was planned for another scan; returns what to carry out: the plan, or of a state whose snapshot was
    cleaned up since another one of its position. Raises NotFound if it is gone, IdentityChanged, Damaged, Unavailable.
    """
    log, plan = _planned_on(options, loaded)
    with _reading(loaded):
        try:  # The lease keeps the position for the tasks, and runs out by itself.
            Hold(log.store, lease_terms(loaded.lease_s, _HOLDER)).on(log, plan)
        except OffsetGone:
            if plan.is_of_changes:
                raise
            plan = _reserved(log, options, AtPosition(plan.position))
    return log, plan


@contextmanager
def _reading(loaded: Loaded) -> Generator[None]:
    """Turns what was planned and is gone into a NotFound that names both times and the way out."""
    try:
        yield
    except (NotFound, OffsetGone) as error:
        raise NotFound(
            f"this DataFrame was planned at {loaded.at:%Y-%m-%d %H:%M:%S} UTC, and what it reads is gone by now, at "
            f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC",
            hint=f"load() again: a DataFrame is as of its load(), held {loaded.lease_s} s from there and from each "
            "action on; leaseSeconds, or statelog.spark.state, holds it longer",
            planned_position=loaded.position,
            reason=error.message,
        ) from error


# ---- a state that is held


@contextmanager
def state(
    spark: SparkSession,
    name: str,
    where: Where,
    *,
    options: Mapping[str, object] | None = None,
    lease_s: float = LEASE_S,
) -> Generator[DataFrame]:
    """The state of a log as a DataFrame, which holds it as long as the `with` lasts, however long it rests.

        >>> with state(spark, log.name, where) as df:
        ...     df.count()
        2

    `options` are more options of a read, such as `atPosition`, `keyGroups` or `columns`. A thread of this process
    renews the lease and it is removed at the end, so the process has to reach the store, and the brokers to plan; if
    it dies the lease runs out after `lease_s`. It never outlives the cap on leases of the log's materializer. Raises
    Misuse for a read of anything else, ConfigError, NotFound, Damaged, Unavailable.
    """
    # They may be numbers, say, as where Spark takes options.
    more = {option: option_text(value) for option, value in (options or {}).items()}
    given = {**address_options(name, where), **more}
    if read_of(given) != _STATE:
        raise Misuse("only a state is held like this", hint="Leave the option read out")
    read = state_options(given)
    terms = terms_of(RecoverySettings(holder="spark-state", lease_ttl_s=lease_s))
    with closing(open_log(read.where)) as log, HeldPlan(log, terms, read.at, read.key_groups) as held:
        plan = held.take()
        with held.kept("statelog-spark-state"):
            fixed = {name: value for name, value in given.items() if name.lower() not in (*_AT, "leaseseconds")}
            frame = spark.read.format("statelog").options(**fixed)
            yield frame.options(atPosition=str(plan.position), leaseSeconds="0").load()
