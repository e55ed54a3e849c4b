"""How a target is filled, step by step.

    1  claim   the plan gets its lease and is checked with that in place   held_plan.py
    2  read    runs and tail at the same time, every byte verified         reading/plan_reader.py
    3  fold    the newest change of each key                               reading/newest.py
    4  load    the target takes it, slice by slice or in order             targets/
    5  leave   the lease is removed, whatever happened

Before, when `recover` was called: the target position, the fold of the ledger, the plan (`reading.planner`). A
stream takes the same steps in a thread of its own (streaming/read_ahead.py).

Invariants:
- Nothing is handed out before everything that was listed was read and verified. There is no partial state.
- If the log is truncated under the plan, or its snapshot turns out to be damaged, all is done again with another plan,
  a bounded number of times.
"""

from typing import TypeVar

from statelog.errors import OffsetGone
from statelog.reading.plan import Plan
from statelog.reading.preflight import SnapshotFailed
from statelog.recovery.held_plan import HeldPlan
from statelog.recovery.reading.plan_reader import PlanReader
from statelog.recovery.reading.progress import Phase
from statelog.recovery.targets.monitor import Monitor
from statelog.recovery.targets.target import Target

__all__ = ["fill"]

T = TypeVar("T")


def fill(target: Target[T], held: HeldPlan, monitor: Monitor) -> T:
    """Fill a target with the state of a plan. Raises what planning, reading and the target raise."""
    monitor.start()
    try:
        target.check()
        while True:
            reader = _begin(held.claim(), held, monitor)
            try:
                filled = target.fill(reader)
            except (OffsetGone, SnapshotFailed) as trouble:
                held.replan(trouble)
            else:
                monitor.done(reader, filled.rows)
                return filled.result
    finally:
        held.release()


def _begin(plan: Plan, held: HeldPlan, monitor: Monitor) -> PlanReader:
    """One pass over the plan. Between two steps it renews the lease and reports its progress."""

    def beat(phase: Phase) -> None:
        held.renew()
        monitor.report(reader, phase, reader.loaded)

    monitor.follow(plan)
    reader = PlanReader(held.log, plan, held.settings, beat, opener=held.opener, environment=held.environment)
    return reader
