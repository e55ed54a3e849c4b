"""The statistics of a recovery."""

from dataclasses import dataclass

__all__ = ["RecoveryStatistics"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryStatistics:
    """One target that was filled. Times are in seconds; `plan_s` includes the ledger fold, the lease and the checks.

    `rows` is what came out, `run_rows` and `tail_changes` what was read; `tail_is_local` says that the tail was read
    from local copies of change sets, except for those that went away meanwhile, and not from Kafka. `plans` counts how
    often it was planned, `damaged_snapshots` how many were passed over; `has_lease` tells whether truncation waited.
    """

    position: int
    manifest: int
    rows: int
    run_rows: int
    run_bytes: int
    tail_changes: int
    tail_bytes: int
    tail_is_local: bool
    plan_s: float
    total_s: float
    plans: int
    damaged_snapshots: int
    has_lease: bool

    @property
    def changes_per_s(self) -> float:
        """Rows of runs and changes of the tail, per second of the whole recovery."""
        return (self.run_rows + self.tail_changes) / self.total_s if self.total_s > 0 else 0.0

    @property
    def bytes_per_s(self) -> float:
        """Bytes of runs and of the tail, per second of the whole recovery."""
        return (self.run_bytes + self.tail_bytes) / self.total_s if self.total_s > 0 else 0.0
