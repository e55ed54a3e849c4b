"""A plan, the lease under it and the opener of its runs: made, checked, used, and made again if the log moved on.

Owns the retries of a recovery. Never reads a run or a chunk; what is read with the plan is the caller's.

Invariants:
- The plan is used only after its lease was written and the checks passed with the lease in place. Who may not write to
  the store, or does not want to, reads without one: the same checks, and truncation that does not wait.
- The lease names every wanted partition, also those without a tail: whoever follows needs what is committed there next.
- Truncation under our hands costs a new plan, a bounded number of times. A damaged snapshot costs a warning and a
  longer replay, if the log reaches back; else it is the error. A damaged local copy costs a new plan, and no attempt.
- Whatever ends a use with an error removes the lease and lets the opener go.
- Belongs to one thread at a time; whoever hands it over does not touch it before it is handed back.
"""

from collections.abc import Callable
from typing import TypeVar

from statelog.errors import Misuse, OffsetGone
from statelog.recovery.host import Host
from statelog.recovery.planning.plan import RecoveryPlan, partitions_of
from statelog.recovery.planning.planner import Planner
from statelog.recovery.planning.preflight import check_plan
from statelog.recovery.settings import RecoverySettings
from statelog.recovery.trouble import SnapshotFailed
from statelog.storage.leases import LeaseHolder
from statelog.storage.local.own_process import OwnProcess
from statelog.storage.log.log import Log

__all__ = ["HeldPlan"]

T = TypeVar("T")


class HeldPlan:
    """The plan of one recovery.

    `plans` counts how often it was made, `plan_s` the seconds since it was last taken; `had_lease` tells whether the
    last one stood under a lease.
    """

    def __init__(
        self,
        log: Log,
        planner: Planner,
        settings: RecoverySettings,
        host: Host,
        key_groups: frozenset[int] | None = None,
    ) -> None:
        """`key_groups` are those whose partitions are held, None for all: what is resumed wants more than it reads."""
        self._log = log
        self._planner = planner
        self._settings = settings
        self._host = host
        self._clock = host.clock
        self._partitions = partitions_of(key_groups, log.descriptor)
        self._plan: RecoveryPlan | None = None
        self._lease: LeaseHolder | None = None
        self.opener = settings.cache.opener(log)
        self._plan_s = 0.0
        self._owner = OwnProcess("the recovery")
        self.plans = 0
        self.had_lease = False

    @property
    def plan(self) -> RecoveryPlan:
        """The plan that is, or was, carried out. Raises Misuse if there is none."""
        if self._plan is None:
            raise Misuse("this recovery failed and has no plan", hint="Call recover again")
        return self._plan

    @property
    def is_planned(self) -> bool:
        """Whether there is a plan."""
        return self._plan is not None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was damaged and gone around."""
        return tuple(self._planner.warnings)

    def take_plan_s(self) -> float:
        """The seconds that planning took since this was asked last."""
        plan_s, self._plan_s = self._plan_s, 0.0
        return plan_s

    def use(self, use: Callable[[RecoveryPlan], T]) -> T:
        """What `use` makes of the plan. It is called again with another plan if the log moved on, or a snapshot failed.

        Raises what `use` and planning raise, and ClosedError in a fork.
        """
        self._owner.check()
        try:
            return self._try(use)
        except BaseException:
            self.release()
            raise

    def _try(self, use: Callable[[RecoveryPlan], T]) -> T:
        trouble: Exception | None = None
        attempts = self._settings.attempts
        while attempts:
            attempts -= 1
            try:
                return use(self._ready())
            except OffsetGone as error:
                trouble = error
            except SnapshotFailed as failed:
                trouble = failed.error
                self._drop_snapshot(failed)
                if failed.is_copy:
                    attempts += 1  # No run fails twice because of its copies, so this ends.
            self._remove_lease()  # The opener is kept: what it has at hand serves the next plan, too.
            self._plan = None
        assert trouble is not None, "settings allow at least one attempt"
        raise trouble

    def pin(self) -> None:
        """From now on every plan is for the position of this one: something of that state was handed out."""
        self._planner.pin()

    def renew(self) -> None:
        """Write the lease again if it is time to."""
        if self._lease is not None:
            self._lease.renew()

    def release(self) -> None:
        """Remove the lease and let the opener go. Idempotent; the next use takes both anew. Void in a fork."""
        if self._owner.is_foreign:
            return  # Lease and cache are the parent's.
        try:
            self._remove_lease()
        finally:
            self.opener.close()

    def _remove_lease(self) -> None:
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    def _ready(self) -> RecoveryPlan:
        started_s = self._clock()
        if self._plan is None:
            self._plan = self._planner.plan()
            self.plans += 1
        if self._lease is None:
            self._lease = self._claim(self._plan)
            self._lease.__enter__()
            self.had_lease = self._lease.is_held
            self._say_without()
            check_plan(self._log, self._plan)
        self.opener.hold()
        self._plan_s += self._clock() - started_s
        return self._plan

    def _claim(self, plan: RecoveryPlan) -> LeaseHolder:
        return LeaseHolder.claim(
            self._log.store,
            holder=self._settings.holder,
            manifest_number=plan.manifest_number,
            position=plan.base_position,
            next_offsets=plan.held_offsets(self._partitions),
            ttl_s=self._settings.lease_ttl_s,
            seams=self._host,
            wanted=self._settings.lease,
        )

    def _say_without(self) -> None:
        text = f"{self._log.name}: recovered without a lease, which the store does not let this reader write"
        if self._settings.lease and not self.had_lease and text not in self._planner.warnings:
            self._planner.warnings.append(text)

    def _drop_snapshot(self, failed: SnapshotFailed) -> None:
        """After a bad copy, or a cleanup that took the manifest too, plan again. Else the snapshot is damaged."""
        number = self.plan.manifest_number
        if not failed.is_copy and number in self._log.manifests.numbers():
            self._planner.pass_over(number, failed.error)
