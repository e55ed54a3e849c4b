"""The plan of a read: the one ledger position that every scan of a DataFrame reads, and the lease that holds it.

Spark plans each scan of a DataFrame by itself, at any later time and in any worker. The data source object is what
they have in common: it is made once for each `load()`, and pickled. So the plan is made there and travels with it.

Invariant: only `plan_read` chooses a position; a scan may find it gone, but never reads another.
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from statelog.errors import NotFound, OffsetGone
from statelog.recovery.planning.at import At, AtPosition
from statelog.recovery.recover import recover
from statelog.recovery.settings import RecoverySettings
from statelog.spark.clients import cached_log
from statelog.spark.options.read import ReadOptions

__all__ = ["PLAN_LEASE_S", "ReadPlan", "hold_plan", "plan_read", "reading"]

PLAN_LEASE_S = 300.0
"""How long a planned position is held for tasks that have not started. Spark does not say when the last one has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    """The state to read, and when it was chosen (UTC)."""

    position: int
    planned_at: datetime


def plan_read(options: ReadOptions) -> ReadPlan:
    """Take the position now and hold it with a lease. Raises NotFound, Damaged, Unavailable, ConfigError."""
    return ReadPlan(position=_leased_position(options, options.at), planned_at=datetime.now(UTC))


def hold_plan(options: ReadOptions, plan: ReadPlan) -> None:
    """Hold a plan's position for another scan. Raises NotFound if it is gone, Damaged, Unavailable."""
    with reading(plan):
        _leased_position(options, AtPosition(plan.position))


@contextmanager
def reading(plan: ReadPlan) -> Generator[None]:
    """Turns a planned state that is gone into a NotFound that names the time of planning and the way out."""
    try:
        yield
    except (NotFound, OffsetGone) as error:
        raise NotFound(
            f"this DataFrame was planned at {plan.planned_at:%Y-%m-%d %H:%M:%S} UTC, and its state is gone by now",
            hint=f"load() again: a DataFrame is the state at its load(), held {PLAN_LEASE_S:.0f} s from each action on",
            planned_position=plan.position,
            reason=error.message,
        ) from error


def _leased_position(options: ReadOptions, at: At | None) -> int:
    settings = RecoverySettings(holder="spark-read", lease_ttl_s=PLAN_LEASE_S)
    recovery = recover(cached_log(options.where), key_groups=options.key_groups, at=at, settings=settings)
    recovery.reserve()  # The lease keeps the position for the tasks, and runs out by itself.
    return recovery.position
