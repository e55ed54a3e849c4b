"""The plan of a read: the one ledger position that every scan of a DataFrame reads, and the leases that hold it.

Spark plans each scan of a DataFrame by itself, at any later time and in any worker. The data source object is what
they have in common: it is made once for each `load()`, and pickled. So the plan is made there and travels with it:
a scan cuts it into slices, and a task carries out its slice, without a look at manifests, ledger or leases.

Invariant: only `plan_read` chooses a position; a scan may find it gone, but never reads another.
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from statelog.errors import IdentityChanged, NotFound, OffsetGone
from statelog.reading.hold import Hold
from statelog.reading.plan import At, AtPosition, Plan
from statelog.recovery.recover import recover
from statelog.recovery.settings import RecoverySettings
from statelog.schemas.ledger.place import shown_id
from statelog.spark.clients import cached_log
from statelog.spark.options.read import ReadOptions
from statelog.spark.options.reading import lease_terms

__all__ = ["Loaded", "Planned", "hold_plan", "plan_read", "reading"]

HOLDER = "spark-read"


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """When a DataFrame was planned (UTC), of which position it is, and for how many seconds each scan holds what it
    reads; 0 for not at all.
    """

    at: datetime
    position: int
    lease_s: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What was planned at a `load()`: a state, or changes; None for a view, of which the position is all."""

    planned: Planned
    plan: Plan | None = None

    @classmethod
    def now(cls, plan: Plan, lease_s: int) -> "Loaded":
        """A plan that was just made."""
        return cls(planned=Planned(at=datetime.now(UTC), position=plan.position, lease_s=lease_s), plan=plan)


def plan_read(options: ReadOptions) -> Loaded:
    """Take the position now and hold it with a lease. Raises NotFound, Damaged, Unavailable, ConfigError."""
    return Loaded.now(_plan(options, options.at), options.lease_s)


def hold_plan(options: ReadOptions, planned: Planned, plan: Plan) -> Plan:
    """Hold a plan's position for another scan; returns what to carry out: the plan, or another one of its position if
    its snapshot was cleaned up since. Raises NotFound if the state is gone, IdentityChanged, Damaged, Unavailable.
    """
    identity, terms = plan.identity, lease_terms(options.lease_s, HOLDER)
    log = cached_log(options.where, identity)
    if log.descriptor.identity != identity:
        raise IdentityChanged(
            "this DataFrame was planned on topics that the log had before",
            log=log.name,
            expected=shown_id(identity.ledger_topic_id),
            found=shown_id(log.descriptor.identity.ledger_topic_id),
            hint="load() again",
        )
    with reading(planned):
        try:  # The lease keeps the position for the tasks, and runs out by itself.
            Hold.on(log, plan, terms)
        except OffsetGone:
            return _plan(options, AtPosition(plan.position))
        return plan


@contextmanager
def reading(planned: Planned) -> Generator[None]:
    """Turns what was planned and is gone into a NotFound that names both times and the way out."""
    try:
        yield
    except (NotFound, OffsetGone) as error:
        raise NotFound(
            f"this DataFrame was planned at {planned.at:%Y-%m-%d %H:%M:%S} UTC, and what it reads is gone by now, at "
            f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC",
            hint=f"load() again: a DataFrame is as of its load(), held {planned.lease_s} s from there and from each "
            "action on; leaseSeconds, or statelog.spark.state, holds it longer",
            planned_position=planned.position,
            reason=error.message,
        ) from error


def _plan(options: ReadOptions, at: At | None) -> Plan:
    terms = lease_terms(options.lease_s, HOLDER)
    settings = RecoverySettings(holder=HOLDER, lease_ttl_s=terms.ttl_s, lease=terms.wanted)
    recovery = recover(cached_log(options.where), key_groups=options.key_groups, at=at, settings=settings)
    recovery.reserve()  # The lease keeps the position for the tasks, and runs out by itself.
    return recovery.plan
