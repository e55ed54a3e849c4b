"""`recover`: the state of a log, from a snapshot and the committed tail behind it.

    state = recover(log).to_dict()
    table = recover(log, key_groups=range(16), at=AtCheckpoint("job-1", 42)).to_arrow()
    recover(log).stream().apply(lambda portion: target.write(portion.changes))

Here the state is chosen and planned: list the manifests, take the target once, fold the ledger to it, check that the
log still holds it (docs/protocol-recover.md, steps 1 to 6). Nothing is written. `targets.fill` goes on from there.

Invariant: the newest state that is planned is never older than what this process knows to be committed.
"""

from collections.abc import Iterable

from statelog.environment import Environment
from statelog.errors import Misuse, NotFound
from statelog.reading.at import At, AtPosition
from statelog.reading.planner import Planner
from statelog.recovery.held_plan import HeldPlan
from statelog.recovery.planned_recovery import Recovery
from statelog.recovery.settings import RecoverySettings
from statelog.recovery.streaming.cursor import Cursor
from statelog.recovery.targets.monitor import OnProgress
from statelog.schemas.ledger.place import Place
from statelog.storage.log.log import Log

__all__ = ["recover"]

_GONE_HINT = "The reader was away for too long: recover the newest state into an empty target"


def recover(
    log: Log,
    *,
    key_groups: Iterable[int] | None = None,
    at: At | None = None,
    at_least: int | Place = 0,
    barrier: bool = False,
    resume: Cursor | None = None,
    progress: OnProgress | None = None,
    settings: RecoverySettings | None = None,
    environment: Environment | None = None,
) -> Recovery:
    """Plan a recovery; what it needs is held, and read, when a target is asked for.

        state = recover(log).to_dict()
        some = recover(log, key_groups=range(16), at=AtPosition(log.position)).to_arrow()

    `key_groups` None means all; `at` None means the newest. `resume` goes on with an interrupted stream where its
    reader had got to: in the same state, with the same key groups, so it excludes the other two. `progress` is called
    in this thread. A lease lies on the store while a target is filled, and at no other time.

    The newest state is never older than what was opened at, acknowledged or recovered through this `log` object, nor
    than `at_least`: the `place` of a writer in another process, say, whose record has to be there, too; or a position
    alone. `barrier` includes everything that anybody was told before the call; it appends a void record, so it needs
    the right to write the ledger.

    Raises NotFound if the log does not hold the state asked for, KeyGroupMismatch, Damaged, Unavailable.
    """
    if barrier and at_least:
        raise Misuse("a barrier includes every position", hint="Leave at_least out")
    wanted = None if key_groups is None else frozenset(key_groups)
    if resume is not None:
        if wanted is not None or at is not None:
            raise Misuse("to resume says which state and key groups", hint="Leave key_groups and at out")
        resume.check(log.descriptor.identity)
        at, wanted = AtPosition(resume.position), resume.remaining(log.descriptor.key_groups)
    named = Place.named(log.barrier() if barrier else at_least)
    planner = Planner(log, at, wanted, seen=[named, *([resume.place] if resume else [])])
    lease_groups = planner.key_groups if resume is None else resume.key_groups
    held = HeldPlan(log, planner, settings or RecoverySettings(), environment or Environment(), lease_groups)
    try:
        held.prepare()
    except NotFound as error:
        if resume is None:
            raise
        raise error.restated(hint=_GONE_HINT) from error
    return Recovery(held, progress, resume)
