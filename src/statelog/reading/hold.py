"""Holds, which keep truncation and clean-up from data that a reader needs. `Hold`: one lease, and a check under it.
`HeldPlan`: plans a state, holds it, and plans it again if the log was truncated.

`schemas.snapshot.claims` decides what a lease says and when it has expired. A subscription (`reading.claims`) belongs
to a reader's name and not to a process, and holds while no process runs. It moves by numbered files, of which others
may write the next; a lease is one file of one process, which overwrites it.

Invariants:
- The lease is written first, and only then the plan is checked: what the check finds stays as long as the lease does.
  A failed check leaves no lease.
- A reader that cannot, or does not want to, write to the store takes no lease, and truncation does not wait for it. It
  makes the same check. A store that refuses our writes, or is full, costs the lease and a log line.
- A lease is convenience, never safety. So a failed renewal is tolerated while the lease is valid, and a lease that
  cannot be removed expires. Each gives a log line.
- A lease is capped by its age, so that a stuck reader cannot hold a log indefinitely.
- A plan that was only made holds nothing, and writes nothing to the store: facts cost no lease.
- Once a part of a state was shown or handed out, no other position is ever planned.
- If the log is truncated under a plan, it is made again, a bounded number of times.
- A damaged snapshot costs a log line and a longer replay if the log reaches back; else it is the error. A damaged local
  copy costs a new plan that does not count as an attempt.
"""

import logging
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Any, NamedTuple, Self, TypeVar

from statelog.closing import Closing, OwnProcess, undone_by_errors
from statelog.environment import Environment, current_environment, repeated
from statelog.errors import Misuse, OffsetGone, StatelogError, StorageFull, StoreRefused, Unavailable
from statelog.log import Log
from statelog.reading import planner
from statelog.reading.plan import At, AtPosition, Plan, wanted_key_groups
from statelog.reading.planner import ATTEMPTS, NOT_HELD_HINT, SnapshotFailed, check_held, check_plan
from statelog.reading.retained_history import Snapshots
from statelog.schemas.ledger.place import Place
from statelog.schemas.ledger.state import LedgerState
from statelog.schemas.names import lease_path
from statelog.schemas.snapshot.claims import AS_ITS_FILE_S, Lease
from statelog.store.port import Store

T = TypeVar("T")

_LOG = logging.getLogger("statelog.log")
_CHECKS_PER_TTL = 6
_RENEWALS_PER_TTL = 3
_AGE_S = 3600.0
"""The age at which a lease that moves is replaced: far below any sensible cap."""
_PASSED_HINT = "The log was truncated since this state was planned and shown: recover again, into an empty target"


class Needs(NamedTuple):
    """The needs of a reader: the ledger from a position on, partitions from offsets on, a manifest (0: none)."""

    position: int
    next_offsets: Mapping[int, int]
    manifest_number: int = 0

    @classmethod
    def behind(cls, state: LedgerState, partitions: Iterable[int]) -> "Needs":
        """Return the needs of a reader that goes on from a state of the ledger, in these partitions."""
        committed = state.committed_positions
        return cls(state.position, {partition: committed.get(partition, 0) for partition in partitions})


class Terms(NamedTuple):
    """The holder, how long a lease lasts after its last renewal, and whether to take one at all."""

    holder: str
    ttl_s: float
    wanted: bool = True


class Hold(Closing):
    """Holds needed data until it is closed. Belongs to one thread, which calls `renew` as it makes progress."""

    def __init__(self, store: Store, terms: Terms, *, environment: Environment | None = None) -> None:
        self._store = store
        self._terms = terms
        self.needs = Needs(0, {})
        """What is held, according to the lease from its next renewal on."""
        self.environment = environment or current_environment()
        self._lease: Lease | None = None
        self._written_s = self._claimed_s = 0.0
        self._is_stale = False
        self._owner = OwnProcess("the recovery")

    def claim(self, needs: Needs, check: Callable[[], object] = lambda: None) -> Self:
        """Hold this instead of the earlier needs, and then `check` that all of it is there. If that raises, nothing is
        held. Raises StoreUnavailable, ConfigError, after which the earlier needs are held.
        """
        before, self.needs = self.needs, needs
        with undone_by_errors(setattr, self, "needs", before):
            self._renew_claim()
        with undone_by_errors(self._release):
            check()
        return self

    def on(
        self,
        log: Log,
        plan: Plan,
        *,
        check: Callable[[Log, Plan], object] = check_held,
        partitions: Iterable[int] | None = None,
    ) -> Self:
        """Hold what a plan needs, then `check` that it is there. Raises OffsetGone if it is not: plan again."""
        return self.claim(needed(plan, partitions), lambda: check(log, plan))

    @property
    def is_foreign(self) -> bool:
        """Whether this is a forked child of the process that made it."""
        return self._owner.is_foreign

    @property
    def is_held(self) -> bool:
        """Whether there is a lease on the store."""
        return self._lease is not None

    def renew(self) -> bool:
        """Write the lease again if a third of its time has passed, and return whether. Raises StoreUnavailable,
        StoreRefused or StorageFull only if it has expired since its last write.
        """
        age_s, ttl_s = self.environment.clock() - self._written_s, self._terms.ttl_s
        if self._lease is None or age_s < ttl_s / _RENEWALS_PER_TTL:
            return False
        try:
            self._write(replace(self._lease, created_s=self._made_s(self._lease), **self._facts()))
        except (Unavailable, StoreRefused) as error:
            if age_s >= ttl_s:
                raise
            if not self._is_stale:
                text = "lease %s could not be renewed and runs out in %g s: %s"
                _LOG.warning(text, self._lease.id, ttl_s - age_s, error)
            self._is_stale = True
            return False
        return True

    @contextmanager
    def renewing(self, name: str) -> Generator[None]:
        """Renew the lease on a thread of this name until the block ends. A lost lease only gives a log line."""

        def renew() -> None:
            try:
                self.renew()
            except StatelogError as error:
                _LOG.warning("%s: the data that is read is not held any more: %s", name, error)

        with repeated(renew, self._terms.ttl_s / _CHECKS_PER_TTL, name):
            yield

    def move(self, position: int, next_offsets: Mapping[int, int]) -> None:
        """Move the needs up, from the next renewal on. A moving lease is replaced by a new one from time to time."""
        self.needs = self.needs._replace(position=position, next_offsets=next_offsets)
        if self.environment.clock() - self._claimed_s >= _AGE_S:
            with suppress(Unavailable):  # The older lease is still valid; its next renewal raises if it has to.
                self._renew_claim()

    def close(self) -> None:
        """Remove the lease. Idempotent; never raises. Does nothing in a forked child: the lease is its parent's."""
        if not self.is_foreign:
            self._release()

    def _release(self) -> None:
        older, self._lease = self._lease, None
        self._remove(older)

    def _renew_claim(self) -> None:
        """Write a new lease, and remove the earlier one. If the store takes none, log that, and retain the earlier."""
        if not self._terms.wanted:
            return
        older = self._lease
        try:
            self._write(
                Lease(
                    id=self.environment.new_id(),
                    holder=self._terms.holder,
                    manifest_number=self.needs.manifest_number,
                    ttl_s=self._terms.ttl_s,
                    created_s=AS_ITS_FILE_S,
                    **self._facts(),
                )
            )
        except (StoreRefused, StorageFull) as error:
            _LOG.warning("no lease could be written, so truncation does not wait for this reader: %s", error)
        if older is None or self._lease is not older:
            self._claimed_s = self.environment.clock()
            self._remove(older)

    def _made_s(self, lease: Lease) -> float:
        """Return when the lease was made by the store's clock, which the first renewal asks for; until then its file's
        time says it. A request's duration may make it too early.
        """
        if lease.created_s < AS_ITS_FILE_S:
            return lease.created_s
        now_s = self._store.now_s()
        return now_s - (self.environment.clock() - self._written_s)

    def _facts(self) -> dict[str, Any]:
        return {"position": self.needs.position, "next_offsets": dict(self.needs.next_offsets)}

    def _write(self, lease: Lease) -> None:
        started_s = self.environment.clock()
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


class _Stage(Enum):
    """How far a `HeldPlan` is."""

    UNPLANNED = "there is no plan, or the last one is not valid any more"
    PLANNED = "the plan was just made, and the records that it begins with were compared"
    HELD = "the plan was checked under its lease, if one can be written"
    RELEASED = "the lease was released: the records that the plan begins with are compared again before it is held"


class _Request(NamedTuple):
    """The arguments of `HeldPlan`. `hint`: what to do if the log does not have the state."""

    at: At | None
    key_groups: frozenset[int] | None
    seen: Collection[Place]
    partitions: Collection[int] | None
    is_alone: bool
    hint: str = NOT_HELD_HINT


class HeldPlan(Hold):
    """The plan of a state, held while it is carried out. `plans`: how often it was made. `had_lease`: whether the last
    one was under a lease. `snapshots`: with the damaged ones that were passed over.
    """

    def __init__(
        self,
        log: Log,
        terms: Terms,
        at: At | None = None,
        key_groups: Iterable[int] | None = None,
        *,
        seen: Collection[Place] = (),
        partitions: Collection[int] | None = None,
        is_alone: bool = False,
        attempts: int = ATTEMPTS,
        plan: Plan | None = None,
        environment: Environment | None = None,
    ) -> None:
        """Prepare to plan a state.

        `at`: None for the newest state.
        `seen`: the places that the caller remembers; the state is not older.
        `partitions`: those to hold, None for those of the key groups. A resumed reader holds more than it reads.
        `is_alone`: a snapshot and nothing after it, without Kafka.
        `attempts`: how often to plan before giving up.
        `plan`: the first plan, if it was just made.
        """
        super().__init__(log.store, terms, environment=environment)
        self.log = log
        self.snapshots = Snapshots(log)
        self._request = _Request(at, wanted_key_groups(key_groups, log.descriptor), seen, partitions, is_alone)
        self._attempts = attempts
        self._plan = plan
        self._stage = _Stage.UNPLANNED if plan is None else _Stage.PLANNED
        self._target: int | None = None
        """The position of the last plan."""
        self._max_age_s = log.recheck_s
        self._plan_s = 0.0
        self._failures = 0
        self.plans = int(plan is not None)
        self.had_lease = False

    @property
    def plan(self) -> Plan:
        """The plan that is, or was, carried out. Raises Misuse if there is none."""
        if self._plan is None:
            raise Misuse("this recovery failed and has no plan", hint="Call recover again")
        return self._plan

    def take_plan_s(self) -> float:
        """Return the seconds that planning took since the last call."""
        plan_s, self._plan_s = self._plan_s, 0.0
        return plan_s

    def prepare(self) -> None:
        """Make a plan, unless there is one, without holding it. Raises NotFound, Damaged, Unavailable."""
        self._owner.check()
        with self._timed():
            while self._plan is None:
                try:
                    self._make()
                except OffsetGone as error:
                    self.replan(error)
        self._failures = 0

    def take(self) -> Plan:
        """Return the plan, checked under its lease, or a new one if the log was truncated since it was made.

        Raises NotFound, Damaged, Unavailable, after which nothing is held; ClosedError in a forked child.
        """
        self._owner.check()
        with self._timed(), undone_by_errors(self.close):
            while (plan := self._held()) is None:
                continue
        return plan

    def carry_out(self, attempt: Callable[[Plan], T]) -> T:
        """Call `attempt` with the plan, and with a new plan if it fails because data of the last one was deleted.

        Leaves the hold to the caller to close. Raises the errors of `take`, and the other errors of `attempt`.
        """
        while True:
            plan = self.take()
            try:
                return attempt(plan)
            except (OffsetGone, SnapshotFailed) as trouble:
                self.replan(trouble)

    def reserve(self) -> Callable[[], None]:
        """Leave a lease behind that is never renewed. It lasts until its time to live, or a call of the result."""
        self.take()
        lease, self._lease = self._lease, None
        self.close()
        return partial(self._remove, lease)

    def replan(self, trouble: OffsetGone | SnapshotFailed) -> None:
        """Drop the plan, which cannot be carried out, so that the next one is another. Raises `trouble` after the last
        attempt. A damaged copy does not count: no run fails twice because of its copies.
        """
        is_copy = isinstance(trouble, SnapshotFailed) and trouble.is_copy
        if isinstance(trouble, SnapshotFailed) and not is_copy:
            number = self.plan.manifest_number
            if number in self.log.manifests.numbers():  # Else a cleanup has deleted the manifest, too.
                self.snapshots.pass_over(number, trouble.error)
        self._release()
        self._plan, self._stage = None, _Stage.UNPLANNED
        self._failures += not is_copy
        if self._failures >= self._attempts:
            raise trouble.error if isinstance(trouble, SnapshotFailed) else trouble

    def pin(self) -> None:
        """Make every later plan for the position of this one, because a part of that state was shown or handed out."""
        self._target = self.plan.position
        self._request = self._request._replace(at=AtPosition(self._target), hint=_PASSED_HINT)

    def close(self) -> None:
        """Release the lease, as every hold does. The plan may be taken again."""
        if not self.is_foreign:
            self._failures = 0
            if self._plan is not None:
                self._stage = _Stage.RELEASED
            self._release()

    def _make(self) -> Plan:
        (at, key_groups, seen, _, is_alone, hint), snapshots = self._request, self.snapshots
        max_age_s, self._max_age_s = self._max_age_s, 0.0
        if is_alone:
            position = at.position if isinstance(at, AtPosition) else None
            self._plan = planner.plan_snapshot(self.log, position, key_groups, snapshots)
        else:
            self._plan = planner.plan_state(
                self.log,
                at,
                key_groups,
                seen=seen,
                snapshots=snapshots,
                target=self._target,
                max_age_s=max_age_s,
                hint=hint,
            )
        self._target, self._stage = self._plan.position, _Stage.PLANNED
        self.plans += 1
        return self._plan

    def _held(self) -> Plan | None:
        """Hold and check the plan, and return it; None if the log was truncated meanwhile, so that it is made again."""
        try:
            plan = self._plan or self._make()
            if not self.is_held:
                check = check_plan if self._stage is _Stage.RELEASED else check_held
                self.on(self.log, plan, check=check, partitions=self._request.partitions)
                self._stage, self.had_lease = _Stage.HELD, self.is_held
                text = f"{self.log.name}: recovered without a lease, because the store refused to write one"
                if self._terms.wanted and not self.had_lease and text not in self.snapshots.warnings:
                    self.snapshots.warnings.append(text)
        except OffsetGone as error:
            self.replan(error)
            return None
        return plan

    @contextmanager
    def _timed(self) -> Generator[None]:
        started_s = self.environment.clock()
        yield
        self._plan_s += self.environment.clock() - started_s


def needed(plan: Plan, partitions: Iterable[int] | None = None) -> Needs:
    """Return what has to stay while a plan is read.

    A plan of changes needs the ledger records that carry some. A plan of a state also needs all commits after it, in
    `partitions`, or those of the plan: partitions without a tail from their committed position on, or from 0.
    """
    if plan.is_of_changes:
        return Needs(plan.position if plan.first_carried is None else plan.first_carried, plan.next_offsets)
    committed, read = plan.state.committed_positions, plan.next_offsets
    wanted = plan.partitions if partitions is None else partitions
    held = {partition: read.get(partition, committed.get(partition, 0)) for partition in wanted}
    return Needs(plan.base_position, held, plan.manifest_number)
