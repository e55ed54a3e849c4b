"""Statistics of a materializer: one frozen value, replaced as a whole. Pure."""

from dataclasses import dataclass, field, replace

from statelog.materializer.outcome import Cleanup, CompletedRound, LostRound, RoundOutcome, SkippedRound
from statelog.materializer.schedule import Rates, RestoreEstimate, estimate
from statelog.materializer.tail import Tail


@dataclass(frozen=True, slots=True, kw_only=True)
class MaterializerStatistics:
    """Counts since the start.

    started           `completed` + `skipped` + `lost` + `failed`, but for the round in flight and for `late`
    late              rounds that were counted as failed when they were given up, and ended well after all
    hanging           rounds that were given up and have not ended yet
    unpublished       rounds completed without publishing their group offset
    number, position  those of the newest manifest that this process knows of
    last_duration_s   of the last round that ended well, None before the first
    cleanup           the last one
    deletions         those of the last round that completed or was skipped
    tail              the tail at the last check, None before the first
    age_s             the age of the oldest committed change that is in no snapshot; without one, the time since the
                      last check. It grows from `since_s`, on the daemon's clock
    restore           the estimate for a restore, by `rates`
    error             the error of the last round, empty once one has ended well
    late_s            by how many seconds the daemon's loop is late, 0 if all is well
    silent_s          the seconds since the last step of the round in flight, 0 without one
    """

    started: int = 0
    completed: int = 0
    skipped: int = 0
    lost: int = 0
    failed: int = 0
    late: int = 0
    hanging: int = 0
    unpublished: int = 0
    failures_in_a_row: int = 0
    commits: int = 0
    changes: int = 0
    rows: int = 0
    size_bytes: int = 0
    number: int = 0
    position: int = 0
    last_duration_s: float | None = None
    cleanup: Cleanup | None = None
    deletions: str = ""
    tail: Tail | None = None
    rates: Rates = field(default_factory=Rates)
    since_s: float = 0.0
    age_s: float = 0.0
    error: str = ""
    late_s: float = 0.0
    silent_s: float = 0.0

    @property
    def restore(self) -> RestoreEstimate | None:
        """The estimate for a restore, None before the first check of the tail."""
        if self.tail is None:
            return None
        return estimate(
            self.rates,
            snapshot_bytes=self.tail.snapshot_bytes,
            tail_bytes=self.tail.size_bytes,
            tail_changes=self.tail.changes,
            tail_chunks=self.tail.chunks,
        )


def with_tail(counts: MaterializerStatistics, tail: Tail, *, checked_s: float) -> MaterializerStatistics:
    """Return the statistics after a check of the tail, which began at `checked_s` on the daemon's clock.

    While the newest snapshot is the same, the oldest commit after it is, too: its age never falls, whatever clocks say.
    """
    before, since_s = counts.tail, checked_s - tail.age_s
    if before is not None and before.oldest_s is not None and before.number == tail.number and tail.commits:
        since_s = min(since_s, counts.since_s)
    return replace(counts, tail=tail, since_s=since_s, number=max(counts.number, tail.number))


def with_outcome(counts: MaterializerStatistics, outcome: RoundOutcome, *, duration_s: float) -> MaterializerStatistics:
    """Return the statistics after a round that ended well. It may end late, after newer ones: numbers never fall."""
    counts = replace(
        counts, failures_in_a_row=0, error="", last_duration_s=duration_s, number=max(counts.number, outcome.number)
    )
    match outcome:
        case CompletedRound():
            rates = counts.rates.after_download(outcome.size_bytes, outcome.read_back_s)
            return replace(
                counts,
                completed=counts.completed + 1,
                commits=counts.commits + outcome.commits,
                changes=counts.changes + outcome.changes,
                rows=counts.rows + outcome.rows,
                size_bytes=counts.size_bytes + outcome.size_bytes,
                position=max(counts.position, outcome.position),
                cleanup=outcome.cleanup,
                deletions=outcome.deletions,
                unpublished=counts.unpublished + bool(outcome.unpublished),
                rates=rates.after_replay(outcome.replayed_bytes, outcome.changes, outcome.replay_s),
            )
        case SkippedRound():
            position = max(counts.position, outcome.position)
            return replace(counts, skipped=counts.skipped + 1, position=position, deletions=outcome.deletions)
        case LostRound():
            return replace(counts, lost=counts.lost + 1)


def with_failure(counts: MaterializerStatistics, error: str) -> MaterializerStatistics:
    """Return the statistics after a round that failed with this error."""
    in_a_row = counts.failures_in_a_row + 1
    return replace(counts, failed=counts.failed + 1, failures_in_a_row=in_a_row, error=error)
