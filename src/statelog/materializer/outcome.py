"""The outcome of a round: the three ways to end well. Failures are exceptions."""

from dataclasses import dataclass

from statelog.reading import AgingRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class CappedSubscription:
    """A subscription over the cap that the round ended, and why. Its reader gets an error."""

    reader: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleanup:
    """The removals of a winner.

    records_truncated  offsets of the data topic and the ledger
    records_left       offsets of the data topic between log start and log end afterwards
    records_overdue    those of them below the truncation floor: 0 unless the broker did not truncate
    held_by            names the reason of the floor
    held_back          why nothing was removed, or empty
    capped             the subscriptions that were ended; the next round truncates what they held
    oldest_need        the oldest record that is still needed, where Kafka deletes records by age; else None
    """

    manifests_dropped: int = 0
    files_deleted: int = 0
    records_truncated: int = 0
    records_left: int = 0
    records_overdue: int = 0
    held_by: str = ""
    held_back: str = ""
    capped: tuple[CappedSubscription, ...] = ()
    oldest_need: AgingRecord | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedRound:
    """The round put manifest `number` at `position`.

    commits, changes, rows    the commits rolled up, their changes, and the rows of the delta
    size_bytes, read_back_s   uploaded for the delta and merges, and the time to read that back
    replayed_bytes, replay_s  record values replayed for the delta, and the time that took
    snapshot_bytes            the size of the snapshot's runs
    runs_merged               runs merged into others, with a delta that was merged before it was written
    behind                    whether the budget ended the round with commits left to roll up
    unpublished               why the group offset for Kafka's lag tools was not published, or empty
    deletions                 the topic settings by which Kafka deletes committed records, unless they are waived.
                              Writers refuse them
    """

    number: int
    position: int
    commits: int
    changes: int
    rows: int
    size_bytes: int
    read_back_s: float
    replayed_bytes: int
    replay_s: float
    snapshot_bytes: int
    runs_merged: int
    duration_s: float
    behind: bool
    cleanup: Cleanup
    unpublished: str = ""
    deletions: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedRound:
    """Nothing was new beyond `position`, that of manifest `number` (0: none yet). `deletions`: see CompletedRound."""

    number: int
    position: int
    deletions: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostRound:
    """Another materializer put manifest `number` or a newer one first. This round has no effect; nothing is lost."""

    number: int


RoundOutcome = CompletedRound | SkippedRound | LostRound
"""How a round ended."""
