"""What a log lost of its data topic, as far as offsets tell, whose commits a range to give up takes along, and who gave
up what before. Reads; the acceptance itself is `storage.log.loss`.
"""

from collections.abc import Collection, Sequence

from statelog.formatting import show_time
from statelog.operate.report import Listing
from statelog.schemas.ledger.records import AcceptLoss, LossRange, given_up
from statelog.schemas.ledger.state import LedgerState
from statelog.storage.log.files import AcceptedLoss
from statelog.storage.log.log import Log


def shown_range(lost: LossRange) -> str:
    """As `--range` takes it."""
    return f"{lost.partition}:{lost.start_offset}-{lost.end_offset}"


def missing(log: Log) -> tuple[LossRange, ...]:
    """The committed offsets behind the newest snapshot that lie below a partition's start, or above its end.

    What is there, and damaged or another's, is not among them: the error of a reader names it. Raises Damaged,
    Unavailable.
    """
    newest = log.manifests.newest()
    with log.ledger.client(newest) as ledger:
        ledger.fold_to(ledger.end_position())
        state = ledger.folded.state
    covered = newest.next_offsets if newest else {}
    there = log.data_offsets(at_least=state.committed_positions)
    found: list[LossRange] = []
    for partition, end in sorted(state.committed_positions.items()):
        start, log_end = covered.get(partition, 0), there[partition].end
        found += [
            LossRange(partition, start, min(there[partition].start, end)),
            LossRange(partition, max(start, log_end), end),
        ]
    return tuple(one for one in found if one[1] < one[2] and not given_up(state.accepted, *one))


def taken_along(log: Log, ranges: Collection[LossRange]) -> Listing:
    """The commits behind the newest snapshot that list something in these ranges, and how many changes that is.

    A range without a row is in the snapshot: nothing is lost with it. Raises Damaged, Unavailable.
    """
    with log.ledger.client(log.manifests.newest()) as ledger:
        commits = ledger.read_end()
    rows: list[tuple[object, ...]] = []
    for lost in sorted(ranges):
        for commit in commits:
            changes = sum(
                entry.changes
                for entry in commit.entries({lost.partition})
                if entry.first_offset < lost.end_offset and lost.start_offset < entry.end_offset
            )
            if changes:
                rows.append((shown_range(lost), commit.writer, commit.checkpoint_id, commit.position, changes))
    return Listing("commits_taken_along", ("range", "writer", "checkpoint", "position", "changes"), rows)


def losses_listing(found: Sequence[AcceptedLoss], state: LedgerState) -> Listing:
    """Who gave up what, when and why. One that does not `count` was said, and never reached the ledger; or it counted
    in a ledger that was lost itself.
    """
    rows = [(show_time(one.accepted_s), *_cells_of(one, state)) for one in found]
    return Listing("losses", ("accepted", "operator", "reason", "given_up", "counts"), rows)


def _cells_of(one: AcceptedLoss, state: LedgerState) -> tuple[str | None, str, str | None, bool | None]:
    record = one.record
    if record is None:
        return None, f"UNREADABLE: {one.problem}", None, None
    if isinstance(record, AcceptLoss):
        given = ", ".join(map(shown_range, record.ranges))
        return record.operator, record.reason, given, all(given_up(state.accepted, *lost) for lost in record.ranges)
    given = f"the ledger below position {record.position}" if record.position > 1 else "what the ledger lost"
    return record.operator, record.reason, given, state.restarted >= max(0, record.position - 1)
