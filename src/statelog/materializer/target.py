"""The target of a round: the ledger position up to which it rolls up, and the commits below it.

The checks that the log still has the records that the round needs are here, too.

A manifest's state must be the fold exactly at its position. If the budget ends before the ledger, the ledger is folded
again, from the newest manifest up to the last commit within the budget.

Invariants:
- The ends of ledger and partitions are read once. The target is at most the ledger's end, and at least the first
  commit's next offset.
- The state is the fold of every ledger record below the target, and of none at or above it.
- Before anything is read, the ledger and every data partition are checked: log start <= what replay needs <= log end,
  and every anchor that still exists is the same record. A replay that begins right after an anchor compares it.
- Offsets whose loss a person accepted count as present. A log start that is too high is OffsetGone, and the round
  re-reads the newest manifest before it reports that.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from statelog.errors import BeyondEnd, OffsetGone
from statelog.kafka.port import OffsetRange
from statelog.log import Log
from statelog.materializer.settings import MaterializerSettings, tuning_of
from statelog.schemas.ledger.fold import ValidCommit
from statelog.schemas.ledger.inline import CommitContents
from statelog.schemas.ledger.place import LastRecord
from statelog.schemas.ledger.records import LossRange, is_forfeited, not_forfeited
from statelog.schemas.ledger.state import LedgerState
from statelog.schemas.snapshot.manifest import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTarget:
    """The folded ledger at the round's position, and the valid commits since the manifest before it.

    behind  whether commits are left below the ledger's end
    there   log start and log end of the data partitions, read after the ledger was folded to its end
    before  the anchors right below the first offset read, by partition. The replay compares these, because a separate
            read would fetch everything that follows, too
    """

    state: LedgerState
    commits: tuple[CommitContents, ...]
    behind: bool
    there: Mapping[int, OffsetRange]
    before: Mapping[int, LastRecord] = field(default_factory=dict[int, LastRecord])

    @property
    def position(self) -> int:
        """The position of the round's manifest."""
        return self.state.position


def choose_target(log: Log, newest: Manifest | None, settings: MaterializerSettings, end_position: int) -> RoundTarget:
    """Fold the ledger from the newest manifest up to its end, or to the last commit within the budget.

    Raises OffsetGone, BeyondEnd, AnchorMismatch, CorruptLedger, UnknownFormat, BrokerUnavailable.
    """
    needed = newest.next_offsets if newest else {}
    history = log.history
    since_s = history.now_s()
    history.read_to(end_position, since_s)
    view, commits = history.since(newest.position if newest else 0)
    if commits is None:
        with log.replay(newest) as replay:
            taken, left_at = _within_budget(replay.commits(view.place.position), settings)
    else:
        taken, left_at = _within_budget(commits, settings)
    state = view.state
    if left_at is not None:
        with log.replay(newest, left_at) as replay:
            state = replay.folded.state
    there = log.data_offsets(at_least=not_forfeited(state.accepted, needed))
    log.evidence.check_ledger(places=[newest.place] if newest else [], there=there, end=end_position, since_s=since_s)
    target = RoundTarget(state=state, commits=tuple(taken), behind=left_at is not None, there=there)
    return replace(target, before=_read_before(newest, target))


def _within_budget(
    commits: Iterable[ValidCommit], settings: MaterializerSettings
) -> tuple[list[CommitContents], int | None]:
    """Return the commits within the budget, and the offset of the first commit beyond it, if there is one."""
    taken: list[CommitContents] = []
    left_bytes, last_offset = settings.budget_bytes, -1
    for found in commits:
        # The record itself counts, too: metadata is held for all commits of a round, and may be 16 MiB each.
        contents = found.contents
        size_bytes = len(found.commit.body) + contents.size_bytes
        is_other = found.offset != last_offset  # The commits of one record are taken together.
        if taken and is_other and (size_bytes > left_bytes or len(taken) >= tuning_of(settings).budget_commits):
            return taken, found.offset
        left_bytes -= size_bytes
        last_offset = found.offset
        taken.append(contents)
    return taken, None


def check_ledger(log: Log, newest: Manifest | None) -> int:
    """Check the ledger before it is folded, and return its end.

    Raises OffsetGone, BeyondEnd, AnchorMismatch, BrokerUnavailable.
    """
    needed = newest.position if newest else 0
    there = log.kafka.offsets(log.ledger_topic, [0], at_least={0: needed})[0]
    _check(log.ledger_topic, 0, needed, there, ())
    if newest:
        log.evidence.check_anchors([anchor for anchor in newest.anchors if anchor.topic == "ledger"], there={0: there})
    return there.end


def _read_before(newest: Manifest | None, target: RoundTarget) -> dict[int, LastRecord]:
    if newest is None or target.state.accepted:
        return {}
    first = _first_listed(target)
    return {
        anchor.partition: LastRecord(anchor.offset, anchor.hash)
        for anchor in newest.anchors
        if anchor.topic == "data"
        and first.get(anchor.partition) == anchor.offset + 1
        and target.there[anchor.partition].start <= anchor.offset
    }


def check_data(log: Log, newest: Manifest | None, target: RoundTarget) -> None:
    """Check the data partitions before they are read, except for losses accepted up to `target`.

    Raises the errors of `check_ledger`.
    """
    needed, accepted = newest.next_offsets if newest else {}, target.state.accepted
    first = _first_listed(target) if log.retention_s is not None else None
    for partition, held in target.there.items():
        end = needed.get(partition, 0)
        # Where Kafka deletes by age, it also deletes chunks that no commit lists, which nothing needs.
        is_unlisted = first is not None and first.get(partition, held.start) >= held.start > end
        _check(log.data_topic, partition, held.start if is_unlisted else end, held, accepted)
    others = [partition for partition in range(log.descriptor.partitions) if partition not in target.before]
    log.evidence.check_data_anchors(newest, others, accepted, target.there)


def _first_listed(target: RoundTarget) -> dict[int, int]:
    """Return the lowest offset that a commit of the target lists, by partition."""
    first: dict[int, int] = {}
    for entry in (entry for contents in target.commits for handle in contents.handles for entry in handle.entries):
        first[entry.partition] = min(entry.first_offset, first.get(entry.partition, entry.first_offset))
    return first


def _check(topic: str, partition: int, needed: int, there: OffsetRange, accepted: tuple[LossRange, ...]) -> None:
    if there.start > needed and not is_forfeited(accepted, partition, needed, there.start):
        raise OffsetGone(
            "the log starts above what the newest snapshot needs",
            topic=topic,
            partition=partition,
            needed_offset=needed,
            log_start=there.start,
            hint="Something else truncated the topic: check its settings, then restore it or accept the loss",
        )
    if there.end < needed and not is_forfeited(accepted, partition, there.end, needed):
        raise BeyondEnd(
            "the log ends below what the newest snapshot committed",
            topic=topic,
            partition=partition,
            committed_offset=needed,
            log_end=there.end,
            hint="Acknowledged records are gone: restore the topic; the snapshots still hold their changes",
        )
