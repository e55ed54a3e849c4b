"""Statistics of a materializer: one frozen value, replaced as a whole. Pure."""

from dataclasses import dataclass, field, replace

from statelog.materializer.outcome import Cleanup, CompletedRound, LostRound, RoundOutcome, SkippedRound
from statelog.materializer.schedule import Rates, RestoreEstimate, estimate
from statelog.materializer.tail import Tail


@dataclass(frozen=True, slots=True, kw_only=True)
class MaterializerStatistics:
    """Counts since the start. `position` and `number` are of the newest manifest that this process knows of.

    Rounds: `started` = `completed` + `skipped` + `lost` + `failed`, but for the one in flight and for `late`: rounds
    that were counted as failed when they were given up, and ended well after all. `hanging` of those given up have not
    ended yet. `unpublished` rounds completed without publishing their group offset. `last_duration_s` is that of the
    last round that ended well, None before the first.

    `error` is what the last round failed with, empty once one has ended well. `deletions` is that of the last round
    that did. `late_s`: that long ago the daemon's loop should have turned; `silent_s`: that long ago the round in
    flight reached its last step. Both are 0 if all is well.

    `tail` is what stood in no snapshot at the last look, None before the first. `age_s`: that old, at this moment, is
    the oldest committed change that is in no snapshot; without one, that long ago was the last look. It grows from
    `since_s`, on the daemon's clock. `restore` is what a restore would take by `rates`. `cleanup` is the last one.
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
        """What a restore would take, None before the first look."""
        if self.tail is None:
            return None
        return estimate(
            self.rates,
            snapshot_bytes=self.tail.snapshot_bytes,
            tail_bytes=self.tail.size_bytes,
            tail_changes=self.tail.changes,
            tail_chunks=self.tail.chunks,
        )


def with_tail(counts: MaterializerStatistics, tail: Tail, *, looked_s: float) -> MaterializerStatistics:
    """A look at the tail came back; it began at `looked_s`, on the daemon's clock.

    While the newest snapshot is the same, so is the oldest commit behind it: it gets no younger, whatever a clock says.
    """
    before, since_s = counts.tail, looked_s - tail.age_s
    if before is not None and before.oldest_s is not None and before.number == tail.number and tail.commits:
        since_s = min(since_s, counts.since_s)
    return replace(counts, tail=tail, since_s=since_s, number=max(counts.number, tail.number))


def with_outcome(counts: MaterializerStatistics, outcome: RoundOutcome, *, duration_s: float) -> MaterializerStatistics:
    """A round ended well. One that was given up before may end late, after newer ones: numbers never go back."""
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
    """A round failed with this error."""
    in_a_row = counts.failures_in_a_row + 1
    return replace(counts, failed=counts.failed + 1, failures_in_a_row=in_a_row, error=error)
