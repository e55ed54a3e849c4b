"""The outcome of a round. Failures are exceptions; these are the three ways to end well."""

from dataclasses import dataclass

from statelog.reading import AgingRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class CappedSubscription:
    """A subscription that the round ended, and why: it was over the cap, and its reader will be told."""

    reader: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleanup:
    """What a winner removed. `held_back` says why it removed nothing, and is empty if nothing was in the way.

    `records_truncated` counts offsets, of the data topic and the ledger. `records_left` are offsets of the data topic
    between log start and log end afterwards; `records_overdue` those of them that lie below the truncation floor, which
    is not 0 only if the broker did not truncate as it was asked. `held_by` names what the floor follows from.
    `capped` are the subscriptions that were ended; the next round lets go what they held. `oldest_need` is the oldest
    record that is still needed, where Kafka deletes records by their age; None elsewhere, and where nothing is needed.
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
    """The round put manifest `number`.

    It rolled up `commits` commits with `changes` changes into a delta of `rows` rows; `size_bytes` were uploaded for
    the delta and for merges, and read back in `read_back_s`. To make the delta, `replayed_bytes` of record values were
    replayed in `replay_s`. `runs_merged` runs went into others, the delta among them also where it
    was merged before it was written. The snapshot's runs have `snapshot_bytes`. `behind`: the budget ended the round,
    and there are commits left to roll up. `unpublished` says why the group offset for Kafka's lag tools could not be
    published, and is empty if it was. `deletions` names the settings of the topics by which Kafka deletes what is
    committed; writers refuse them, and it is empty if there are none, or they are waived.
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
    """There was nothing new beyond `position`, that of manifest `number` (0: none yet). `deletions`: as in another."""

    number: int
    position: int
    deletions: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostRound:
    """Another materializer put `number`, or a newer one, first. Nothing of this round counts, and nothing is lost."""

    number: int


RoundOutcome = CompletedRound | SkippedRound | LostRound
"""How a round ended."""
