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
from statelog.recovery.planning.at import At, AtPosition
from statelog.recovery.planning.preflight import check_held
from statelog.recovery.planning.recovery_plan import RecoveryPlan
from statelog.recovery.recover import recover
from statelog.recovery.settings import RecoverySettings
from statelog.schemas.ledger.identity import LogIdentity, shown_id
from statelog.spark.clients import cached_log
from statelog.spark.options.read import ReadOptions
from statelog.spark.options.reading import lease_terms
from statelog.storage.held_lease import LeaseHolder

__all__ = ["Planned", "ReadPlan", "hold_plan", "plan_read", "reading"]

HOLDER = "spark-read"


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """When a DataFrame was planned (UTC), and how long, in seconds, each scan holds what it reads; 0 for not."""

    at: datetime
    lease_s: int

    @classmethod
    def now(cls, lease_s: int) -> "Planned":
        """That of a DataFrame that is planned now."""
        return cls(at=datetime.now(UTC), lease_s=lease_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    """The state to read, of which log, and when it was chosen."""

    planned: Planned
    identity: LogIdentity
    recovery: RecoveryPlan

    @property
    def position(self) -> int:
        """The ledger position of the state."""
        return self.recovery.position


def plan_read(options: ReadOptions) -> ReadPlan:
    """Take the position now and hold it with a lease. Raises NotFound, Damaged, Unavailable, ConfigError."""
    planned = Planned.now(options.lease_s)
    recovery = _plan(options, options.at)
    return ReadPlan(planned=planned, identity=cached_log(options.where).descriptor.identity, recovery=recovery)


def hold_plan(options: ReadOptions, plan: ReadPlan) -> RecoveryPlan:
    """Hold a plan's position for another scan; returns what to carry out: the plan, or another one of its position if
    its snapshot was cleaned up since. Raises NotFound if the state is gone, IdentityChanged, Damaged, Unavailable.
    """
    log, terms = cached_log(options.where, plan.identity), lease_terms(options.lease_s)
    if log.descriptor.identity != plan.identity:
        raise IdentityChanged(
            "this DataFrame was planned on topics that the log had before",
            log=log.name,
            expected=shown_id(plan.identity.ledger_topic_id),
            found=shown_id(log.descriptor.identity.ledger_topic_id),
            hint="load() again",
        )
    with reading(plan.planned, plan.position):
        lease = LeaseHolder.claim(
            log.store,
            holder=HOLDER,
            manifest_number=plan.recovery.manifest_number,
            position=plan.recovery.base_position,
            next_offsets=plan.recovery.held_offsets(plan.recovery.partitions),
            ttl_s=terms.ttl_s,
            wanted=terms.wanted,
        ).__enter__()  # It keeps the position for the tasks, and runs out by itself.
        try:
            check_held(log, plan.recovery)
        except OffsetGone:
            lease.release()
            return _plan(options, AtPosition(plan.position))
        return plan.recovery


@contextmanager
def reading(planned: Planned, position: int) -> Generator[None]:
    """Turns what was planned and is gone into a NotFound that names both times and the way out."""
    try:
        yield
    except (NotFound, OffsetGone) as error:
        raise NotFound(
            f"this DataFrame was planned at {planned.at:%Y-%m-%d %H:%M:%S} UTC, and what it reads is gone by now, at "
            f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC",
            hint=f"load() again: a DataFrame is as of its load(), held {planned.lease_s} s from there and from each "
            "action on; leaseSeconds, or statelog.spark.state, holds it longer",
            planned_position=position,
            reason=error.message,
        ) from error


def _plan(options: ReadOptions, at: At | None) -> RecoveryPlan:
    terms = lease_terms(options.lease_s)
    settings = RecoverySettings(holder=HOLDER, lease_ttl_s=terms.ttl_s, lease=terms.wanted)
    recovery = recover(cached_log(options.where), key_groups=options.key_groups, at=at, settings=settings)
    recovery.reserve()  # The lease keeps the position for the tasks, and runs out by itself.
    return recovery.plan
