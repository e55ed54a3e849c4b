"""The parts of a micro-batch: what each task reads, and its rows. Tasks neither list, fold nor lease.

Rows have the columns of the batch read of changes. The rows of a state are puts without a commit: writer, checkpoint
and timestamp are null, the position is that of the state. A reset marker is one row with the op `reset`, nothing but
its position beside it.
"""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from statelog.reading.plan import Plan
from statelog.recovery.changes import read_changes
from statelog.schemas.descriptor import Descriptor
from statelog.spark.columns import change_batches
from statelog.spark.source.changes import ChangeSlice, change_slices
from statelog.spark.source.state import state_parts
from statelog.spark.source.state_task import read_slice
from statelog.storage.log.log import Log

__all__ = ["RESET", "ResetPart", "StatePart", "part_rows", "parts_of"]

RESET = "reset"
"""The op of a reset marker: what was read before does not count, the state at its position follows."""
_BATCH_ROWS = 65_536


class StatePart(InputPartition):
    """One task's part of a state."""

    def __init__(self, plan: Plan, value_schema_id: int) -> None:
        super().__init__((plan.position, plan.key_groups))
        self.plan = plan
        self.value_schema_id = value_schema_id


class ResetPart(InputPartition):
    """A reset marker."""

    def __init__(self, position: int) -> None:
        super().__init__(position)
        self.position = position


def parts_of(
    plan: Plan,
    descriptor: Descriptor,
    *,
    begins_anew: bool,
    minimum: int | None,
    key_groups: Iterable[int] | None,
    value_schema_id: int,
) -> Sequence[InputPartition]:
    """The parts of a micro-batch: at most as many as the log has partitions, or `minimum`. One that `begins_anew` has a
    reset marker, too.
    """
    if plan.is_of_changes:
        return change_slices(plan, descriptor.partitions, minimum)
    groups = sorted(range(descriptor.key_groups) if key_groups is None else key_groups)
    parts = [StatePart(part, value_schema_id) for part in state_parts(plan, groups, descriptor, minimum)]
    return [*([ResetPart(plan.position)] if begins_anew else []), *parts]


def part_rows(log: Log, part: InputPartition, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a part, in batches of the wanted columns. Raises NotFound, Damaged, Unavailable."""
    match part:
        case ChangeSlice():
            for batch in read_changes(log, part.plan):
                yield from change_batches(batch, wanted)
        case StatePart():
            for table in read_slice(log, part.plan, part.value_schema_id):
                yield from _state_rows(table, part.plan.position, wanted)
        case ResetPart():
            yield _row({"op": RESET, "position": part.position}, wanted)
        case _:
            return  # Spark's stand-in for an empty list of partitions.


def _state_rows(table: pa.Table, position: int, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
    for batch in table.to_batches(max_chunksize=_BATCH_ROWS):
        rows = batch.num_rows
        constants = {"op": "put", "position": position}
        arrays: list[pa.Array] = []
        for field in wanted:
            if field.name in ("key", "value", "key_group"):
                arrays.append(batch.column(field.name).cast(field.type))
            else:
                arrays.append(pa.repeat(pa.scalar(constants.get(field.name), field.type), rows))
        yield pa.RecordBatch.from_arrays(arrays, schema=wanted)


def _row(values: dict[str, object], wanted: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([values.get(field.name)], field.type) for field in wanted], schema=wanted
    )
