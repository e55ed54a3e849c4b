"""Parts of a plan: what each task reads. Cut where it is planned; tasks neither list, fold nor lease.

Invariants:
- The parts have everything of the plan once. Rows of a state come by (key group, key), changes in commit order.
- A task reads what its part names, as a stream, in bounded memory. Only if part of a snapshot cannot be read does it
  plan again, at the same position, and go on after the last row that it gave: the rest is the same whatever snapshot it
  is read from.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from statelog.errors import OffsetGone
from statelog.reading.hold import Terms
from statelog.reading.plan import AtPosition, Plan, part_of
from statelog.reading.planner import SnapshotFailed
from statelog.recovery.changes import LEAST_BYTES, split_changes
from statelog.recovery.plan_reader import PlanReader
from statelog.recovery.recover import recover
from statelog.recovery.settings import RecoverySettings
from statelog.schemas.descriptor import Descriptor
from statelog.schemas.key_groups import share
from statelog.storage.log.log import Log

_LEAST_STATE_BYTES = 16 << 20
"""What a task of its own is worth: a few times what Spark itself spends on a task in Python, 30 to 60 ms."""


class PlanPart(InputPartition):
    """One task's part of a state, or of changes."""

    def __init__(self, plan: Plan) -> None:
        super().__init__((plan.start_position, plan.position))
        self.plan = plan


def lease_terms(lease_s: int, holder: str) -> Terms:
    """The lease of `leaseSeconds`, of which 0 means no lease: a time to live is never 0."""
    return Terms(holder, max(1, lease_s), wanted=lease_s > 0)


def change_parts(plan: Plan, partitions: int, minimum: int | None) -> list[PlanPart]:
    """Changes cut for tasks: at most as many as the log has partitions, fewer for few changes; or `minimum`, where key
    groups stay whole as long as it does not exceed the partitions.
    """
    count = minimum or partitions
    least_bytes = LEAST_BYTES if minimum is None else 1
    parts = split_changes(plan, count, least_bytes=least_bytes, whole_key_groups=count <= partitions)
    return [PlanPart(part) for part in parts]


def state_parts(plan: Plan, key_groups: Sequence[int], descriptor: Descriptor, minimum: int | None) -> list[PlanPart]:
    """A state cut for tasks: at most as many as the log has partitions, fewer for a small one; or `minimum`."""
    if not key_groups:
        return []
    whole = part_of(plan, frozenset(key_groups), descriptor)
    count = minimum or min(descriptor.partitions, whole.size_bytes // _LEAST_STATE_BYTES)
    return [PlanPart(part_of(whole, frozenset(part), descriptor)) for part in slices(key_groups, count)]


def slices(key_groups: Sequence[int], count: int) -> list[tuple[int, ...]]:
    """The key groups cut into `count` contiguous parts, or one for each group if there are fewer.

    With as many parts as the log has partitions, and all key groups, every part is one partition.
    """
    parts = max(1, min(count, len(key_groups)))
    shares = [share(len(key_groups), worker=part, workers=parts) for part in range(parts)]
    return [tuple(key_groups[one.start : one.stop]) for one in shares]


def read_state(log: Log, plan: Plan) -> Iterator[pa.Table]:
    """The rows of a part of a state by (key group, key), in tables of key_group, op, key, value. Raises Damaged,
    Unavailable.
    """
    # Nothing to renew: the planner holds what is read.
    settings = RecoverySettings(holder="spark-task", threads=1, value_schema_id=plan.value_schema_id)
    given = 0
    with closing(PlanReader(log, plan, settings).sorted_tables()) as tables:
        try:
            for table in tables:
                given += table.num_rows
                yield table
        except (SnapshotFailed, OffsetGone):
            pass
        else:
            return
    yield from _rest(log, plan, settings, given)


def _rest(log: Log, plan: Plan, settings: RecoverySettings, given: int) -> Iterator[pa.Table]:
    """What is left of the part behind `given` rows, from whatever snapshot can be read."""
    with recover(log, key_groups=plan.key_groups, at=AtPosition(plan.position), settings=settings).stream() as stream:
        for changes, _ in stream:
            skipped = min(given, changes.num_rows)
            given -= skipped
            if skipped < changes.num_rows:
                yield changes.slice(skipped)
