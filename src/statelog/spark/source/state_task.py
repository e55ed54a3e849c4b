"""A Spark task that reads: carries out its slice of a plan, as a stream, in bounded memory. Runs on executors.

Invariants:
- It reads what the plan names: no manifest is listed, no ledger folded, no lease written.
- Only if something of the plan cannot be read does it plan anew, at the same position, and goes on behind the last row
  that it gave: rows come by (key group, key), so the rest is the same whatever snapshot it is read from.
"""

from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa

from statelog.errors import OffsetGone
from statelog.reading.plan import AtPosition, Plan
from statelog.reading.planner import SnapshotFailed
from statelog.recovery.plan_reader import Phase, PlanReader
from statelog.recovery.recover import recover
from statelog.recovery.settings import RecoverySettings
from statelog.storage.log.log import Log

__all__ = ["read_slice"]


def read_slice(log: Log, plan: Plan, value_schema_id: int) -> Iterator[pa.Table]:
    """The rows of a slice by (key group, key), in tables of key_group, op, key, value. Raises Damaged, Unavailable."""
    settings = RecoverySettings(holder="spark-task", threads=1, value_schema_id=value_schema_id)
    given = 0
    with closing(PlanReader(log, plan, settings, _beat).sorted_tables()) as tables:
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
    """What is left of the slice behind `given` rows, from whatever snapshot can be read."""
    with recover(log, key_groups=plan.key_groups, at=AtPosition(plan.position), settings=settings).stream() as stream:
        for changes, _ in stream:
            skipped = min(given, changes.num_rows)
            given -= skipped
            if skipped < changes.num_rows:
                yield changes.slice(skipped)


def _beat(_: Phase) -> None:
    """Nothing to renew: whoever planned holds what is read."""
