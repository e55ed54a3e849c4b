"""`Hold`: what keeps truncation and clean-up from what a reader needs: one lease, written, then looked at again.

Every reader holds its position this way: a recovery, a follower, a read of changes, a Spark scan, a table that stands
on a snapshot. `storage.held_lease` says what a lease on the store is worth.

Invariants:
- The lease is written first, and only then is the plan checked: what the check finds stays as long as the lease does.
  A failed check leaves no lease.
- A reader that cannot, or does not want to, write to the store takes no lease. It makes the same check, and truncation
  does not wait for it.
- A lease is capped by its age, so that a stuck reader cannot hold a log indefinitely. A reader that moves on gets a
  new one.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Self, TypeVar

from statelog.closing import Closing
from statelog.environment import Environment, current_environment
from statelog.errors import NotFound, OffsetGone, Unavailable
from statelog.reading.plan import Plan
from statelog.reading.planner import check_held
from statelog.storage.held_lease import LeaseHolder
from statelog.storage.log.log import Log
from statelog.storage.store import Store

__all__ = ["ATTEMPTS", "Hold", "Needs", "Terms", "needed", "planned_anew"]

T = TypeVar("T")

ATTEMPTS = 5
"""How often a reader plans again if truncation outruns it, unless the settings say otherwise."""
_AGE_S = 3600.0
"""The age at which a lease that moves on is replaced: far below any sensible cap."""


class Needs(NamedTuple):
    """What a reader needs to stay: the ledger from a position on, partitions from offsets on, a manifest (0: none)."""

    position: int
    next_offsets: Mapping[int, int]
    manifest_number: int = 0


class Terms(NamedTuple):
    """The holder, how long a lease lasts after its last sign of life, and whether to take one at all."""

    holder: str
    ttl_s: float
    wanted: bool = True


class Hold(Closing):
    """Holds what is needed until it is closed. Belongs to one thread."""

    def __init__(
        self,
        store: Store,
        terms: Terms,
        needs: Needs,
        look: Callable[[], object] = lambda: None,
        *,
        environment: Environment | None = None,
    ) -> None:
        """`look` checks that all of it is there, and its errors pass through. Raises StoreUnavailable."""
        self._store = store
        self._terms = terms
        self._needs = needs
        self._environment = environment or current_environment()
        self._lease = self._claim()
        self._claimed_s = self._environment.clock()
        try:
            look()
        except BaseException:
            self.close()
            raise

    @classmethod
    def on(
        cls,
        log: Log,
        plan: Plan,
        terms: Terms,
        *,
        check: Callable[[Log, Plan], object] = check_held,
        partitions: Iterable[int] | None = None,
        environment: Environment | None = None,
    ) -> Self:
        """Hold what a plan reads, then `check` that it is there. Raises OffsetGone if it is not: plan again.

        `partitions` are those to hold, None for those of the plan.
        """
        return cls(log.store, terms, needed(plan, partitions), lambda: check(log, plan), environment=environment)

    @property
    def is_held(self) -> bool:
        """Whether the lease lies on the store."""
        return self._lease.is_held

    def renew(self) -> None:
        """Write the lease again if it is time to. Raises StoreUnavailable once it has run out."""
        self._lease.renew(position=self._needs.position, next_offsets=self._needs.next_offsets)

    def needs(self, position: int, next_offsets: Mapping[int, int]) -> None:
        """Nothing below is needed any more; the next renewal says so."""
        self._needs = self._needs._replace(position=position, next_offsets=next_offsets)

    def move(self, position: int, next_offsets: Mapping[int, int]) -> None:
        """As `needs`. A reader that moves on is not stuck, and may have a new lease."""
        self.needs(position, next_offsets)
        now_s = self._environment.clock()
        if now_s - self._claimed_s < _AGE_S:
            return
        older = self._lease
        try:
            newer = self._claim()
        except Unavailable:
            return  # The older lease stands, and whether it can be renewed decides; the next move tries again.
        if older.is_held and not newer.is_held:
            return  # As above: the store takes no new one.
        self._lease, self._claimed_s = newer, now_s
        older.release()

    def close(self) -> None:
        """Remove the lease. Idempotent; never raises, because a lease runs out by itself."""
        self._lease.release()

    def _claim(self) -> LeaseHolder:
        return LeaseHolder.claim(
            self._store,
            holder=self._terms.holder,
            manifest_number=self._needs.manifest_number,
            position=self._needs.position,
            next_offsets=self._needs.next_offsets,
            ttl_s=self._terms.ttl_s,
            environment=self._environment,
            wanted=self._terms.wanted,
        ).__enter__()


def needed(plan: Plan, partitions: Iterable[int] | None = None) -> Needs:
    """What has to stay while a plan is read. Changes need no ledger; a state also needs all commits behind it.

    `partitions` are those to hold, None for those of the plan. One without a tail is held from its committed position
    on, or from 0 if nothing was committed there.
    """
    if plan.is_of_changes:
        return Needs(plan.position, plan.next_offsets)
    committed, read = plan.state.committed_positions, plan.next_offsets
    wanted = plan.partitions if partitions is None else partitions
    held = {partition: read.get(partition, committed.get(partition, 0)) for partition in wanted}
    return Needs(plan.base_position, held, plan.manifest_number)


def planned_anew(attempt: Callable[[], T]) -> T:
    """The result of `attempt`, called again while truncation outruns its plan. Raises what the last call raises."""
    for _ in range(ATTEMPTS - 1):
        try:
            return attempt()
        except (NotFound, OffsetGone):
            continue  # Truncation outran us.
    return attempt()
