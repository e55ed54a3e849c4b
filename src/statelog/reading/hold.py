"""`Hold`: what keeps truncation and clean-up from what a reader needs: one lease, written, then looked at again.

Every reader holds its position this way: a recovery (`HeldPlan` adds the plan, and planning anew), a follower, a read
of changes, a Spark scan, a table that stands on a snapshot. What a lease says and when it has expired is decided in
`schemas.snapshot.claims`. A subscription (`storage.claims`) is apart for a reason: it belongs to a reader's name and
not to a process, holds while nobody runs, and moves by numbered files of which others may write the next; a lease is
one file of one process, written over. A stream of Spark has the one or the other.

Invariants:
- The lease is written first, and only then is the plan checked: what the check finds stays as long as the lease does.
  A failed check leaves no lease.
- A reader that cannot, or does not want to, write to the store takes no lease. It makes the same check, and truncation
  does not wait for it. A store that refuses writes to us, or is full, costs the lease and a log line.
- A lease is convenience, never safety. So a failed renewal is tolerated as long as the lease still stands, and a lease
  that cannot be removed is left to expire. Each of them is a log line.
- A lease is capped by its age, so that a stuck reader cannot hold a log indefinitely. A reader that moves on gets a
  new one.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Self, TypeVar

from statelog.closing import Closing
from statelog.environment import Environment, current_environment
from statelog.errors import NotFound, OffsetGone, StorageFull, StoreRefused, Unavailable
from statelog.reading.plan import Plan
from statelog.reading.planner import check_held
from statelog.schemas.ledger.state import LedgerState
from statelog.schemas.names import lease_path
from statelog.schemas.snapshot.claims import Lease
from statelog.storage.log.log import Log
from statelog.storage.store import Store

T = TypeVar("T")

_LOG = logging.getLogger("statelog.storage")
_RENEWALS_PER_TTL = 3
ATTEMPTS = 5
"""How often a reader plans again if truncation outruns it, unless the settings say otherwise."""
_AGE_S = 3600.0
"""The age at which a lease that moves on is replaced: far below any sensible cap."""


class Needs(NamedTuple):
    """What a reader needs to stay: the ledger from a position on, partitions from offsets on, a manifest (0: none)."""

    position: int
    next_offsets: Mapping[int, int]
    manifest_number: int = 0

    @classmethod
    def behind(cls, state: LedgerState, partitions: Iterable[int]) -> "Needs":
        """All that is committed behind a state of the ledger in these partitions."""
        committed = state.committed_positions
        return cls(state.position, {partition: committed.get(partition, 0) for partition in partitions})


class Terms(NamedTuple):
    """The holder, how long a lease lasts after its last sign of life, and whether to take one at all."""

    holder: str
    ttl_s: float
    wanted: bool = True


class Hold(Closing):
    """Holds what is needed until it is closed. Belongs to one thread, which calls `renew` as it makes progress."""

    def __init__(
        self,
        store: Store,
        terms: Terms,
        needs: Needs,
        look: Callable[[], object] = lambda: None,
        *,
        environment: Environment | None = None,
    ) -> None:
        """`look` checks that all of it is there, and its errors pass through. Raises StoreUnavailable, ConfigError."""
        self._store = store
        self._terms = terms
        self._needs = needs
        self._environment = environment or current_environment()
        self._lease: Lease | None = None
        self._written_s = 0.0
        self._is_stale = False
        self._claim()
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
        return self._lease is not None

    def renew(self) -> bool:
        """Write the lease again if a third of its time has passed; tells whether it did.

        Raises StoreUnavailable, StoreRefused or StorageFull only when the lease has run out since it could last be
        written.
        """
        age_s, ttl_s = self._environment.clock() - self._written_s, self._terms.ttl_s
        if self._lease is None or age_s < ttl_s / _RENEWALS_PER_TTL:
            return False
        try:
            self._write(replace(self._lease, **self._facts()))
        except (Unavailable, StoreRefused) as error:
            if age_s >= ttl_s:
                raise
            if not self._is_stale:
                text = "lease %s could not be renewed and runs out in %g s: %s"
                _LOG.warning(text, self._lease.id, ttl_s - age_s, error)
            self._is_stale = True
            return False
        return True

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
            is_taken = self._claim()
        except Unavailable:
            return  # The older lease stands, and whether it can be renewed decides; the next move tries again.
        if older is None or is_taken:  # Else as above: the store takes no new one.
            self._claimed_s = now_s
            self._remove(older)

    def close(self) -> None:
        """Remove the lease. Idempotent; never raises, because a lease runs out by itself."""
        older, self._lease = self._lease, None
        self._remove(older)

    def _claim(self) -> bool:
        """Write a new lease, made now by the store's clock; False, and a log line, if the store takes none."""
        if not self._terms.wanted:
            return False
        try:
            self._write(
                Lease(
                    id=self._environment.new_id(),
                    holder=self._terms.holder,
                    manifest_number=self._needs.manifest_number,
                    ttl_s=self._terms.ttl_s,
                    created_s=self._store.now_s(),
                    **self._facts(),
                )
            )
        except (StoreRefused, StorageFull) as error:
            _LOG.warning("no lease could be written, so truncation does not wait for this reader: %s", error)
            return False
        return True

    def _facts(self) -> dict[str, Any]:
        return {"position": self._needs.position, "next_offsets": dict(self._needs.next_offsets)}

    def _write(self, lease: Lease) -> None:
        started_s = self._environment.clock()
        self._store.put(lease_path(lease.id), lease.to_bytes())
        self._lease, self._written_s, self._is_stale = lease, started_s, False

    def _remove(self, lease: Lease | None) -> None:
        try:
            if lease is not None:
                self._store.delete(lease_path(lease.id))
        except (Unavailable, StoreRefused) as error:
            _LOG.warning(
                "lease %s could not be removed and runs out in %g s: %s", lease and lease.id, self._terms.ttl_s, error
            )


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
