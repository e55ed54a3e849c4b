"""`plan_state` and `plan_changes`: what to read of a log for a state, or for the changes between two; and the checks.

The ledger is folded from the newest snapshot below a state, or the nearest fold below the changes, up to the target. It
is read on to its end, and compared with the places that were observed. Anchors are only compared when a state is
planned, because all reads are verified record by record. Never reads a run or a chunk.

Invariants:
- A plan is never older than what this process has observed through this log, nor than what the caller knows of.
- A target is taken once. It moves only if the newest state is wanted and the log no longer has the earlier target.
- If the log does not reach back to the snapshot before one that failed, the caller gets the failed one's error.
- A plan may begin at a snapshot that this process read a moment ago. If it was deleted since, the check under the lease
  finds that, and planning starts over.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple, TypeVar

from statelog.environment import current_environment
from statelog.errors import BeyondEnd, CorruptManifest, CorruptRun, Misuse, NotFound, OffsetGone
from statelog.history import check_reaches
from statelog.kafka.port import OffsetRange
from statelog.log import Log
from statelog.log.log import check_log
from statelog.reading.aging import warn_of_age
from statelog.reading.plan import At, Folding, Plan, check_at, make_change_plan, make_plan, wanted_key_groups
from statelog.reading.retained_history import RetainedHistory, Snapshots
from statelog.schemas.ledger.fold import Folded, LedgerBase, ValidCommit
from statelog.schemas.ledger.place import Place
from statelog.schemas.ledger.records import is_forfeited, not_forfeited
from statelog.schemas.snapshot.manifest import Manifest
from statelog.schemas.topic_policy import READING

ATTEMPTS = 5
"""How often a reader plans if truncation outruns it, by default."""
NOT_HELD_HINT = "Choose a position from the oldest to the newest, or a checkpoint committed in between"

T = TypeVar("T")


def plan_state(
    log: Log,
    end: At | None,
    key_groups: frozenset[int] | None,
    *,
    seen: Collection[Place],
    snapshots: Snapshots,
    target: int | None,
    max_age_s: float,
    hint: str,
) -> Plan:
    """Plan the state `end`, None for the newest: a snapshot, and the tail after it.

    `seen`: the places that the caller remembers; the state is not older.
    `snapshots`: with the damaged ones; their list may be as old as `max_age_s`.
    `target`: the position of an earlier plan.

    Raises NotFound, with `hint`, if the log does not have the state, and OffsetGone if truncation was faster: plan
    again. Raises the error of a failed snapshot that cannot be passed over, Damaged, Unavailable.
    """
    log.verify(READING)
    with log.checking_cluster():
        history = RetainedHistory(log, key_groups, seen=seen, snapshots=snapshots, max_age_s=max_age_s)
        position = _target(history, end, target)
        if position is None:
            raise history.no_state(end, hint)
        base = history.snapshot_at(position)
        try:
            folding = fold_to(log, base, position, history.ledger.end, history.asked_s)
            found = plan_of(log, folding, key_groups)
            there = _check_made(log, history, found)
            log.evidence.check_data_anchors(base, found.partitions, found.state.accepted, there)
        except OffsetGone as error:
            if history.snapshots.failure:
                raise history.snapshots.failure from error
            if end is not None and history.newest and not base:
                raise history.no_state(end, hint) from error
            raise
        return found


def fold_to(log: Log, base: Manifest | None, position: int, end: int, since_s: float) -> Folding:
    """Fold the ledger from a snapshot up to a position: from this process's history for the newest state, else by a
    replay. `end`: where the ledger ended at `since_s`, a time of its history. Raises Damaged, Unavailable.
    """
    if position == end:
        log.history.read_to(end, since_s)
        view, commits = log.history.since(base.position if base else 0)
        if commits is not None:
            return Folding(base, commits, Folded(view.state, view.place))
    with log.replay(base) as replay:
        return Folding(base, replay.read_to(position), replay.folded)


def _target(history: RetainedHistory, end: At | None, before: int | None) -> int | None:
    """Return the position of the state `end`, or of the earlier plan while the log has that; None if there is none."""
    is_passed = end is None and history.newest is not None and history.newest.position > (before or 0)
    if before is not None and not is_passed:
        return before
    return history.ledger.end if end is None else history.find(end)


def plan_of(log: Log, folding: Folding, key_groups: frozenset[int] | None) -> Plan:
    """Plan the state at the end of a fold, whose ledger and anchors the caller has checked, as an Open does."""
    warn_if_aged(log, folding)
    contents = (valid.contents for valid in folding.commits)  # Decoded one by one: there may be many.
    return make_plan(log.descriptor, folding.base, folding.folded, contents, key_groups)


def warn_if_aged(log: Log, folding: Folding) -> None:
    """Warn if the oldest commit of a fold may soon be deleted by its age."""
    if folding.commits and log.retention_s is not None:
        warn_of_age(log, folding.commits[0].timestamp_ms, current_environment().wall_clock())


def plan_snapshot(log: Log, position: int | None, key_groups: frozenset[int] | None, snapshots: Snapshots) -> Plan:
    """Plan the newest readable snapshot, or the one at a position, and nothing after it: without Kafka. Raises
    NotFound, the error of a failed snapshot, IdentityChanged, StoreUnavailable.
    """
    found = list(snapshots.listed())
    chosen = next((one for one in found if position in (None, one.position)), None)
    if chosen is None:
        raise snapshots.failure or NotFound(
            f"the log {log.name} has no such snapshot",
            log=log.name,
            url=log.store.url,
            positions=", ".join(str(one.position) for one in found) or None,
        )
    return replace(make_plan(log.descriptor, chosen, chosen, (), key_groups), is_alone=True)


def plan_changes(
    log: Log,
    start: At | None = None,
    end: At | None = None,
    *,
    key_groups: Iterable[int] | None = None,
    value_schema_id: int | None = None,
    base: LedgerBase | None = None,
    seen: Collection[Place] = (),
) -> Plan:
    """Plan the changes of all commits after the state `start` and up to the state `end`.

        plan = plan_changes(log, AtPosition(0), AtCheckpoint("web", 7))
        for changes in read_changes(log, plan):
            print(changes.num_rows)

    `start`, `end`: None for the oldest and the newest position. The newest is not older than what this `log` observed.
    `key_groups`: None for all; `value_schema_id`: the schema that values are read in, None for the newest.
    `base`: a fold that the caller has retained (`Replay.folded`), for a start below every retained snapshot.
    `seen`: the places that the caller remembers; the newest position is not older.

    Nothing holds the planned data. Raises NotFound, with what the log has, if it does not have the range. Raises Misuse
    if the range ends before it begins, ConfigError, KeyGroupMismatch, Damaged, Unavailable.
    """
    check_log(log)
    check_at("start", start)
    check_at("end", end)
    wanted = wanted_key_groups(key_groups, log.descriptor)

    def attempt() -> Plan:
        log.verify(READING)
        with log.checking_cluster():
            history = RetainedHistory(log, wanted, base, seen=seen)
            last = history.ledger.end if end is None else history.resolve(end)
            first = min(history.oldest_position, last) if start is None else history.resolve(start)
            return _plan_between(log, history, first, last, wanted, value_schema_id)

    # The log may be truncated past its oldest position after that was looked up.
    return retry_planning(attempt) if start is None else attempt()


def _plan_between(
    log: Log,
    history: RetainedHistory,
    first: int,
    last: int,
    key_groups: frozenset[int] | None,
    value_schema_id: int | None,
) -> Plan:
    if first > last:
        raise Misuse(
            "the range of changes ends before it begins",
            start_position=first,
            end_position=last,
            hint="Give an end after the start, or none for the newest",
        )
    try:
        commits, folded = _commits_between(log, history, first, last)
        found = make_change_plan(
            log.descriptor,
            commits,
            folded,
            start_position=first,
            # Looked up after the last commit: a schema is stored before the first chunk that needs it.
            value_schema_id=log.value_schemas.newest().id if value_schema_id is None else value_schema_id,
            key_groups=key_groups,
            accepted=log.history.ask(lambda fold: fold.accepted),
        )
        _check_made(log, history, found)
    except OffsetGone as error:
        if history.misses_changes:
            if history.snapshots.failure:
                raise history.snapshots.failure from error
            raise
        raise history.not_held(f"changes from position {first} on") from error
    return found


def folded_at(log: Log) -> Folding | None:
    """Return this process's fold of the ledger since its first snapshot; None if it lacks commits of it."""
    view = log.history.view()
    commits = log.history.commits(view.base.position if view.base else 0, view.place.position)
    return None if commits is None else Folding(view.base, commits, Folded(view.state, view.place))


def commits_behind(log: Log, folded: LedgerBase) -> tuple[list[ValidCommit], Folded]:
    """Return the valid commits after a fold, as far as this process has read, and the fold that they make. Raises
    Damaged, Unavailable.
    """
    view, commits = log.history.since(folded.place.position)
    if commits is None:
        with log.replay(folded) as replay:
            commits = replay.read_to(view.place.position)
            if replay.fold.restarted != view.state.restarted:
                raise OffsetGone(
                    "a loss was accepted, and no record shows whether the earlier fold has lost commits",
                    log=log.name,
                    offset=view.state.restarted,
                    position=folded.place.position,
                    hint="Start from the newest snapshot",
                )
    return commits, Folded(view.state, view.place)


def _commits_between(
    log: Log, history: RetainedHistory, first: int, last: int
) -> tuple[Sequence[ValidCommit], LedgerBase]:
    """Return the commits after one position and up to another, and the ledger folded to the latter."""
    base = history.base_for(first)  # Raises for a truncated start, even if this process still knows its commits.
    log.history.read_to(history.ledger.end, history.asked_s)
    if last == history.ledger.end:
        view, commits = log.history.since(first)
        if commits is not None:
            log.history.expect([Place(first)])
            return commits, Folded(view.state, view.place)
    with log.replay(base, first) as replay:
        return replay.read_to(last), replay.folded


def retry_planning(attempt: Callable[[], T]) -> T:
    """Call `attempt`, again while truncation outruns its plan, and return its result. Raises the last call's error."""
    for _ in range(ATTEMPTS - 1):
        try:
            return attempt()
        except (NotFound, OffsetGone):
            continue  # The log was truncated meanwhile.
    return attempt()


# ---- the checks of a plan


class SnapshotFailed(Exception):
    """A run of the snapshot cannot be read. `error`: for callers, if the snapshot cannot be replaced. `is_copy`: only a
    local copy failed, and not the snapshot.
    """

    def __init__(self, error: CorruptRun | NotFound, *, is_copy: bool = False) -> None:
        super().__init__(str(error))
        self.error = error
        self.is_copy = is_copy


class LogOffsets(NamedTuple):
    """Log start and log end, half-open, of the data partitions and of the ledger."""

    data: Mapping[int, OffsetRange]
    ledger: OffsetRange


def _check_made(log: Log, history: RetainedHistory, made: Plan) -> dict[int, OffsetRange]:
    """Compare ledger and log with the observed places and the plan. Return `data_offsets`. Raises OffsetGone,
    BeyondEnd, AnchorMismatch, Unavailable.
    """
    there = data_offsets(log, made)
    log.evidence.check_ledger(places=history.seen, there=there, end=history.ledger.end, since_s=history.asked_s)
    check_reach(made, LogOffsets(there, history.ledger), log.name)
    return there


def data_offsets(log: Log, plan: Plan) -> dict[int, OffsetRange]:
    """Return the present offsets of all partitions. Ends below those that the plan knows are asked for again."""
    return log.data_offsets(at_least=not_forfeited(plan.state.accepted, plan.state.committed_positions))


def check_held(log: Log, plan: Plan) -> LogOffsets | None:
    """Check that log and store still have the data that the plan reads. Return the offsets, None for a snapshot alone.

    Raises OffsetGone, after which planning again may help, BeyondEnd, BrokerUnavailable, StoreUnavailable.
    """
    if plan.manifest is not None:
        check_manifest(log, plan.manifest)
    if plan.is_alone:
        return None
    ledger = log.kafka.offsets(log.ledger_topic, [0], at_least={0: plan.position})[0]
    found = LogOffsets(data_offsets(log, plan), ledger)
    check_reach(plan, found, log.name)
    return found


def check_plan(log: Log, plan: Plan) -> None:
    """Check as `check_held`, and compare the snapshot's anchors. Raises AnchorMismatch, too."""
    found = check_held(log, plan)
    if found is not None:
        anchors = plan.manifest.anchors if plan.manifest else ()
        log.evidence.check_anchors([one for one in anchors if one.topic == "ledger"], there={0: found.ledger})
        log.evidence.check_data_anchors(plan.manifest, plan.partitions, plan.state.accepted, found.data)


def check_manifest(log: Log, manifest: Manifest) -> None:
    """Raise OffsetGone if a snapshot was cleaned up, or is damaged: the next plan raises the right error."""
    found = None
    with suppress(CorruptManifest):
        found = log.manifests.find(manifest.number)
    if found is None or found.nonce != manifest.nonce:
        raise OffsetGone(
            "the snapshot was superseded and cleaned up while the recovery was planned",
            log=log.name,
            manifest=manifest.number,
            hint="Recover again",
        )


def check_reach(plan: Plan, offsets: LogOffsets, log: str) -> None:
    """Compare a plan with the log's present offsets.

    Raises BeyondEnd if the ledger ends below the position, or, without an accepted loss, a partition below its
    committed one. Raises OffsetGone if a partition starts above an offset to read, or the ledger above a needed
    position. Planning again may then help.
    """
    check_reaches(log, offsets.ledger.end, plan.position)
    needed = plan.first_carried
    if needed is None and not plan.is_of_changes:
        needed = plan.position
    if needed is not None and needed < offsets.ledger.start:
        raise OffsetGone(
            "the ledger starts above the position that the plan needs",
            log=log,
            position=needed,
            log_start=offsets.ledger.start,
            hint="Recover again: the log was truncated past this state",
        )
    for partition in plan.partitions:
        committed, end_offset = plan.state.committed_positions.get(partition, 0), offsets.data[partition].end
        if committed > end_offset and not is_forfeited(plan.state.accepted, partition, end_offset, committed):
            raise BeyondEnd(
                "a partition ends below an offset that was committed",
                log=log,
                partition=partition,
                end_offset=end_offset,
                committed_position=committed,
                hint="Restore the topic, or accept the loss: acknowledged records are missing",
            )
    for partition, first_offset in plan.next_offsets.items():
        log_start = offsets.data[partition].start
        if log_start > first_offset:
            raise OffsetGone(
                "the log starts above an offset that has to be replayed",
                log=log,
                partition=partition,
                needed_offset=first_offset,
                log_start=log_start,
                manifest=plan.manifest_number,
                position=plan.position,
                hint="Restore the topic or a newer manifest: more was truncated than the snapshots cover",
            )
