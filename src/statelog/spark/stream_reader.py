"""`spark.readStream.format("statelog")`: committed changes as micro-batches.

Spark makes a `StreamReader` in a process of its own for each run of a query, and copies it to the tasks. It asks the
reader where micro-batches end and what their tasks read. At the end it kills the process, often without calling `stop`.

Rows have the columns of the batch read of changes. The rows of a state are puts without a commit: writer, checkpoint
and timestamp are null, the position is that of the state. A reset marker is one row with only the op `reset` and its
position.

Invariant: making a reader raises nothing and opens nothing, because Spark would hide the error.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from statelog.closing import undone_by_errors
from statelog.log import Log
from statelog.reading import Plan
from statelog.recovery.changes import read_changes
from statelog.schemas.changes.due import DUE
from statelog.schemas.descriptor import Descriptor
from statelog.spark.clients import cached_log, checked_log, open_log
from statelog.spark.columns import change_batches, change_columns, newest_with, spark_arrow_schema
from statelog.spark.options import NO_LIMIT, StreamOptions, stream_options
from statelog.spark.parts import PlanPart, change_parts, read_state, state_parts
from statelog.spark.reported import reported
from statelog.spark.stream_offset import FORMAT_VERSION, StreamOffset, is_reset
from statelog.spark.stream_planner import StreamPlanner

RESET = "reset"
"""The op of a reset marker: the state at its position follows, and replaces all rows before."""


def stream_columns(options: Mapping[str, str]) -> StructType:
    """Return the columns of a stream: those of the batch read of changes. Raises ConfigError, NotFound, Unavailable."""
    given = stream_options(options)
    log = checked_log(given.where)
    newest = log.value_schemas.newest()
    return change_columns(log.descriptor, newest, given.columns, include_due=given.include_due)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Spark's view of the stream."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._given = dict(options)
        self._columns = schema
        self._planner: StreamPlanner | None = None
        self._value_schema_id = 0
        self._until: int | None = None

    # ---- in the process of the query's run

    @reported()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Return where a new query begins."""
        return self._run().begin().to_json()

    @reported()
    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        """Return a limit if the options have one. `latestOffset` applies it."""
        limit = self._run().options.limit
        if limit.changes < math.inf:
            return ReadMaxRows(int(limit.changes))
        return ReadMaxBytes(int(limit.size_bytes)) if limit.size_bytes < math.inf else ReadAllAvailable()

    @reported()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """Limit the run to the commits so far."""
        self._until = self._run().log.ledger.end()

    @reported()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Return where the next micro-batch ends. If Spark sets no limit, those of the options do not apply."""
        planner = self._run()
        offset = StreamOffset.from_json(start, planner.log.descriptor.identity)
        allowed = NO_LIMIT if isinstance(limit, ReadAllAvailable) else planner.options.limit
        return planner.end_of(offset, allowed, until=self._until).to_json()

    @reported()
    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Return for the progress report the ledger's end, and how far the query is behind it."""
        return {"version": FORMAT_VERSION, **self._run().report()}

    @reported()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the parts of a micro-batch."""
        planner = self._run()
        descriptor = planner.log.descriptor
        first, last = (StreamOffset.from_json(one, descriptor.identity) for one in (start, end))
        plan = planner.plan(first, last, self._value_schema_id)
        return parts_of(plan, descriptor, planner.options, starts_over=is_reset(first, last))

    def stop(self) -> None:
        """Release everything. Spark rarely calls it."""
        if self._planner is not None:
            self._planner.close()
            self._planner.log.close()
            self._planner = None

    # ---- on executors

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one part. Raises NotFound, Damaged, Unavailable."""
        with reported():
            identity = partition.plan.identity if isinstance(partition, PlanPart) else None
            log = cached_log(stream_options(self._given).where, identity)
            yield from part_rows(log, partition, spark_arrow_schema(self._columns))

    def __getstate__(self) -> dict[str, object]:
        """Omit the planner, which only the query's own process has."""
        return {**self.__dict__, "_planner": None}

    def _run(self) -> StreamPlanner:
        if self._planner is None:
            options = stream_options(self._given)
            log = open_log(options.where)
            with undone_by_errors(log.close):
                columns_of = partial(
                    change_columns, log.descriptor, names=options.columns, include_due=options.include_due
                )
                found = newest_with(self._columns, log.value_schemas.all(), columns_of, "the changes")
                self._value_schema_id = found.id
                self._planner = StreamPlanner(log, options)
        return self._planner


class ResetPart(InputPartition):
    """A reset marker; its value is the position."""


def parts_of(
    plan: Plan, descriptor: Descriptor, options: StreamOptions, *, starts_over: bool
) -> Sequence[PlanPart | ResetPart]:
    """Cut a micro-batch into parts, at most one for each partition, or as many as the options say.

    With `starts_over` there is a reset marker, too.
    """
    if plan.is_of_changes:
        return change_parts(plan, descriptor.partitions, options.min_partitions)
    groups = range(descriptor.key_groups) if options.key_groups is None else options.key_groups
    parts = state_parts(plan, groups, descriptor, options.min_partitions)
    return [*([ResetPart(plan.position)] if starts_over else []), *parts]


def part_rows(log: Log, part: InputPartition, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part, in batches of the wanted columns. Raises NotFound, Damaged, Unavailable."""
    match part:
        case PlanPart(plan=plan) if plan.is_of_changes:
            for batch in read_changes(log, plan, due=DUE.name in wanted.names):
                yield from change_batches(batch, wanted)
        case PlanPart(plan=plan):
            for table in read_state(log, plan):
                for batch in table.to_batches():
                    yield from change_batches(batch, wanted, plan.position)
        case ResetPart(value=position):
            yield pa.RecordBatch.from_pylist([{"op": RESET, "position": position}], wanted)
        case _:
            return  # Spark's placeholder for an empty list of partitions.
