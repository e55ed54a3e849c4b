"""How a round ended. Failures are exceptions; these are the three ways to end well."""

from dataclasses import dataclass

__all__ = ["CleanUp", "Completed", "Lost", "RoundOutcome", "Skipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanUp:
    """What a winner removed. `held_back` says why it removed nothing, and is empty if nothing was in the way.

    `records_truncated` counts offsets, of the data topic and the ledger.
    """

    manifests_dropped: int = 0
    files_deleted: int = 0
    records_truncated: int = 0
    held_back: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """The manifest `number` stands, and it is ours.

    It rolled up `commits` commits with `changes` changes into a delta of `rows` rows; `size_bytes` were uploaded for
    the delta and for merges. `runs_merged` runs went into others. `behind`: the budget ended the round, and there are
    commits left to roll up.
    """

    number: int
    position: int
    commits: int
    changes: int
    rows: int
    size_bytes: int
    runs_merged: int
    duration_s: float
    behind: bool
    clean_up: CleanUp


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """There was nothing new beyond `position`, which manifest `number` (0: none yet) stands for."""

    number: int
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """Another materializer put `number`, or a newer one, first. Nothing of this round counts, and nothing is lost."""

    number: int


RoundOutcome = Completed | Skipped | Lost
