"""`drill`: restore a log's newest state in two ways, without keeping it, time both, and compare them.
`drilling`: drill each log of a daemon periodically, concurrently with its rounds, on a separate thread.

The first way is that of every recovery: the newest snapshot and the tail behind it. The other way is the log alone,
from its first record. If that was truncated, it is the oldest retained snapshot and the longer tail behind it. Both
read to one position, and every byte is verified, as in any recovery.

Invariants:
- A drill writes only leases, as any reader does; none if the settings disable them.
- Two ways are compared only if they have to be equal: a range that a person accepted as lost is missing in one.
- A daemon runs one drill at a time. A failure is reported as an event of its log, and does not affect rounds.
"""

import threading
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace

from statelog.environment import Environment, current_environment, repeated
from statelog.errors import Corrupt, NotFound, OffsetGone
from statelog.log import Log
from statelog.materializer.events import Event, EventKind, error_facts
from statelog.materializer.fleet import as_ours
from statelog.reading import AtPosition, Folding, HeldPlan, Plan, check_plan, plan_of
from statelog.recovery import RecoverySettings, recover
from statelog.recovery.progress import OnProgress, RecoveryStatistics
from statelog.recovery.recover import Recovery
from statelog.recovery.settings import terms_of
from statelog.schemas.changes.digest import StateDigest
from statelog.schemas.snapshot.manifest import Manifest

OpenLog = Callable[[str], AbstractContextManager[Log]]
_SETTINGS = RecoverySettings(holder="statelog drill")


@dataclass(frozen=True, slots=True)
class Way:
    """One way to a state: the statistics and the digest of the result. Manifest 0: the log alone."""

    statistics: RecoveryStatistics
    digest: StateDigest

    @property
    def name(self) -> str:
        """The data that was read, for people."""
        number = self.statistics.manifest
        return f"snapshot {number} and the tail behind it" if number else "the log alone, from its first record"


@dataclass(frozen=True, slots=True)
class Drilled:
    """The way of every recovery, and the other one; None if there is none to compare with, and `why`."""

    restored: Way
    other: Way | None
    why: str = ""

    def check(self) -> None:
        """Raise Corrupt if there are two ways and they lead to different states."""
        if self.other is not None and self.other.digest != self.restored.digest:
            raise Corrupt(
                "two ways to one state lead to different ones",
                position=self.restored.statistics.position,
                restored_from=self.restored.name,
                rows=self.restored.digest.rows,
                compared_with=self.other.name,
                compared_rows=self.other.digest.rows,
                hint="Leave both topics and the store unchanged, stop the materializer, and report it: it is a defect"
                " or failing memory",
            )


def drill(log: Log, settings: RecoverySettings, on_progress: OnProgress | None = None) -> Drilled:
    """Restore the newest state both ways. Raises Damaged, StorageFull, Unavailable."""
    same = replace(settings, value_schema_id=log.value_schemas.newest().id)
    with recover(log, on_progress=on_progress, settings=same) as recovery:
        restored = _taken(recovery)
        plan = recovery.plan
    for other in _other_plans(log, plan):
        base = other.manifest.next_offsets if other.manifest else {}
        if any(lost.end_offset > base.get(lost.partition, 0) for lost in plan.state.accepted):
            return Drilled(restored, None, "a loss was accepted in what only one way reads")
        held = HeldPlan(log, terms_of(same), AtPosition(plan.position), plan=other)
        with Recovery(held, same, on_progress) as recovery:
            try:
                found = _taken(recovery)
            except NotFound:
                break  # Truncated past this position meanwhile.
        if found.statistics.manifest == other.manifest_number:
            return Drilled(restored, found)
    return Drilled(restored, None, "the log reaches back neither to an older snapshot nor to its first record")


def _taken(recovery: Recovery) -> Way:
    digest = recovery.digest()
    return Way(recovery.statistics(), digest)


def _other_plans(log: Log, plan: Plan) -> Iterator[Plan]:
    """Yield plans for the same position; the plan that reads the most of the log comes first."""
    for base in (None, *_older(log, plan.manifest_number)):
        try:
            with log.replay(base) as ledger:
                commits = ledger.read_to(plan.position)
                found = plan_of(log, Folding(base, commits, ledger.folded), None)
            check_plan(log, found)
        except OffsetGone:
            continue  # The log does not reach back to this base.
        if found.manifest_number != plan.manifest_number:
            yield found


def _older(log: Log, number: int) -> Iterator[Manifest]:
    """Return the snapshots before this one, oldest first."""
    found = (log.manifests.find(one) for one in log.manifests.numbers() if one < number)
    return (one for one in found if one is not None and one.identity == log.descriptor.identity)


@contextmanager
def drilling(
    names: Callable[[], Collection[str]], open_log: OpenLog, every_s: float, on_event: Callable[[Event], None]
) -> Generator[None]:
    """Drill the logs of these names one after the other, every `every_s` seconds, while the block runs.

    The drills run on a thread that also calls `on_event`. The end of the block waits for none: a drill only reads.
    """
    environment, over = current_environment(), threading.Event()

    def drill_all() -> None:
        for name in sorted(names()):
            event = None if over.is_set() else _drilled(environment, name, open_log)
            if event is not None and not over.is_set():
                on_event(event)

    with repeated(drill_all, every_s, "statelog-drills", is_awaited=False):
        try:
            yield
        finally:
            over.set()


def _drilled(environment: Environment, name: str, open_log: OpenLog) -> Event:
    kind, error = EventKind.DRILLED, None
    try:
        with environment.step("drill", name), open_log(name) as log:
            found = drill(log, _SETTINGS)
            found.check()
        facts = _facts(found)
    except Exception as raised:  # noqa: BLE001 - a defect of one drill must not end the later ones
        error = as_ours(raised, name)
        kind, facts = EventKind.DRILL_FAILED, error_facts(error)
    return Event(kind=kind, log=name, at_s=environment.clock(), facts=facts, error=error)


def _facts(found: Drilled) -> dict[str, object]:
    restored = found.restored
    return {
        "restored_s": restored.statistics.total_s,
        "rows": restored.digest.rows,
        "position": restored.statistics.position,
        "damaged_snapshots": restored.statistics.damaged_snapshots,
        "compared_with": found.other.name if found.other else f"nothing: {found.why}",
    }
