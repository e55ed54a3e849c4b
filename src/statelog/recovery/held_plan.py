"""`HeldPlan`: a plan, its lease and its run opener: made, checked, claimed, and made again if the log moved on.

Owns the retries of a recovery. Never reads a run or a chunk; what is read with the plan is the caller's.

Invariants:
- A plan that was only made holds nothing, and nothing lies on the store for it: facts cost no lease.
- A claimed plan has its lease on the store, and has passed its checks since. A reader that
  may not write to the store, or does not want to, goes without: the same checks, and truncation that does not wait.
- Once something of its state was shown or handed out, no other position is ever planned.
- The lease names every wanted partition, also those without a tail: a follower needs what is committed there next.
- If the log is truncated mid-read, the plan is made again (bounded retries). A damaged snapshot costs a log line and a
  longer replay, if the log reaches back; else it is the error. A damaged local copy costs a new plan, and no attempt.
- A claim that fails removes the lease and lets the opener go; the caller releases one that succeeded.
- Belongs to one thread at a time.
"""

from collections.abc import Callable
from typing import TypeVar

from statelog.environment import Environment
from statelog.errors import Misuse, OffsetGone
from statelog.reading.hold import Hold
from statelog.reading.plan import Plan, partitions_of
from statelog.reading.planner import Planner, SnapshotFailed, check_held, check_plan
from statelog.recovery.plan_reader import Beat, Phase, PlanReader
from statelog.recovery.run_opener import RunOpener
from statelog.recovery.settings import RecoverySettings, terms_of
from statelog.storage.local.own_directory import OwnProcess
from statelog.storage.log.log import Log

T = TypeVar("T")


class HeldPlan:
    """The plan of one recovery.

    `plans` counts how often it was made, `plan_s` the seconds since it was last taken; `had_lease` tells whether the
    last one stood under a lease. `snapshots` knows which were damaged and gone around.
    """

    def __init__(
        self,
        log: Log,
        planner: Planner,
        settings: RecoverySettings,
        environment: Environment,
        key_groups: frozenset[int] | None = None,
        *,
        plan: Plan | None = None,
    ) -> None:
        """`key_groups` are those whose partitions are held, None for all: what is resumed wants more than it reads.
        `plan` is the first one, if it was just made.
        """
        self.log = log
        self._planner = planner
        self.snapshots = planner.snapshots
        self.settings = settings
        self.environment = environment
        self._clock = environment.clock
        self._partitions = partitions_of(key_groups, log.descriptor)
        self._plan = plan
        self._lease: Hold | None = None
        self.opener = RunOpener(log, settings.cache)
        self._plan_s = 0.0
        self._failures = 0
        self._is_checked = plan is not None
        self._owner = OwnProcess("the recovery")
        self.plans = int(plan is not None)
        self.had_lease = False

    @property
    def plan(self) -> Plan:
        """The plan that is, or was, carried out. Raises Misuse if there is none."""
        if self._plan is None:
            raise Misuse("this recovery failed and has no plan", hint="Call recover again")
        return self._plan

    def take_plan_s(self) -> float:
        """The seconds that planning took since this was asked last."""
        plan_s, self._plan_s = self._plan_s, 0.0
        return plan_s

    def prepare(self) -> None:
        """Have a plan that is right now, and that nothing holds yet. Raises NotFound, Damaged, Unavailable."""
        self._owner.check()
        started_s = self._clock()
        while self._plan is None:
            try:
                self._make()
            except OffsetGone as error:
                self.replan(error)
        self._failures = 0
        self._plan_s += self._clock() - started_s

    def claim(self) -> Plan:
        """The plan, under its lease and checked; another one if the log moved on since it was made.

        Raises NotFound, Damaged, Unavailable; ClosedError in a fork.
        """
        self._owner.check()
        started_s = self._clock()
        try:
            while (plan := self._hold()) is None:
                continue
            self.opener.hold()
        except BaseException:
            self.release()
            raise
        self._plan_s += self._clock() - started_s
        return plan

    def carry_out(self, attempt: Callable[[Plan], T]) -> T:
        """What `attempt` makes of the plan, which is claimed, and made again while it turns out not to hold.

        Raises what it raises, and as `claim`. The caller releases the plan.
        """
        while True:
            plan = self.claim()
            try:
                return attempt(plan)
            except (OffsetGone, SnapshotFailed) as trouble:
                self.replan(trouble)

    def reader(self, plan: Plan, beat: Beat) -> PlanReader:
        """One pass over the plan, as it was claimed. Between two steps it renews the lease, and calls `beat`."""

        def renew(phase: Phase) -> None:
            self.renew()
            beat(phase)

        return PlanReader(self.log, plan, self.settings, renew, opener=self.opener, environment=self.environment)

    def reserve(self) -> Callable[[], None]:
        """Leave a lease behind that is never renewed: it holds the plan's position for its time to live, or until what
        this returns is called.
        """
        self.claim()
        lease, self._lease = self._lease, None
        self.release()
        return _nothing if lease is None else lease.close

    def replan(self, trouble: OffsetGone | SnapshotFailed) -> None:
        """The plan cannot be carried out any more: the next claim makes another. Raises the trouble after the last try.

        A damaged copy costs no try: no run fails twice because of its copies, so this ends.
        """
        is_copy = isinstance(trouble, SnapshotFailed) and trouble.is_copy
        if isinstance(trouble, SnapshotFailed) and not is_copy:
            number = self.plan.manifest_number
            if number in self.log.manifests.numbers():  # Else a cleanup took the manifest, too.
                self.snapshots.pass_over(number, trouble.error)
        self._remove_lease()  # The opener is kept: its copies serve the next plan, too.
        self._plan = None
        self._failures += not is_copy
        if self._failures >= self.settings.attempts:
            raise trouble.error if isinstance(trouble, SnapshotFailed) else trouble

    def pin(self) -> None:
        """From now on every plan is for the position of this one: something of that state was shown or handed out."""
        self._planner.pin(self.plan.position)

    def renew(self) -> None:
        """Write the lease again if it is time to."""
        if self._lease is not None:
            self._lease.renew()

    def release(self) -> None:
        """Remove the lease and let the opener go. Idempotent; the next claim takes both anew. Void in a fork."""
        if self._owner.is_foreign:
            return  # Lease and cache are the parent's.
        self._failures = 0
        self._is_checked = False  # The next claim may be much later.
        try:
            self._remove_lease()
        finally:
            self.opener.close()

    def _remove_lease(self) -> None:
        if self._lease is not None:
            self._lease.close()
            self._lease = None

    def _make(self) -> Plan:
        self._plan, self._is_checked = self._planner.plan(), True
        self.plans += 1
        return self._plan

    def _hold(self) -> Plan | None:
        """The plan, held and checked; None if the log moved on, and planning it again may help."""
        try:
            plan = self._plan or self._make()
            if self._lease is None:
                check, terms = check_held if self._is_checked else check_plan, terms_of(self.settings)
                self._lease = Hold.on(
                    self.log, plan, terms, check=check, partitions=self._partitions, environment=self.environment
                )
                self._is_checked = True
                self.had_lease = self._lease.is_held
                self._say_without()
        except OffsetGone as error:
            self.replan(error)
            return None
        return plan

    def _say_without(self) -> None:
        text = f"{self.log.name}: recovered without a lease, which the store does not let this reader write"
        warnings = self.snapshots.warnings
        if self.settings.lease and not self.had_lease and text not in warnings:
            warnings.append(text)


def _nothing() -> None:
    """Lets go of no lease."""
