"""Settings of a recovery, with defaults for one process that holds the state in memory."""

import math
from dataclasses import dataclass

from statelog.recovery.opener import NoCache, OpenerSettings
from statelog.schemas.errors import ConfigError

__all__ = ["RecoverySettings"]

_NO_CACHE = NoCache()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverySettings:
    """How a recovery goes about it; what it recovers never depends on them, except for `value_schema_id`.

    stall_timeout_s      give up when Kafka makes no progress for this long
    lease_ttl_s          how long truncation waits for this reader after its last sign of life
    holder               the reader's name in its lease, for people
    attempts             how often to plan when the log is truncated, or a snapshot fails, under our hands
    fold_bytes           changes of the tail held in memory before they are folded to the last one per key
    threads              how many slices are folded at the same time
    progress_interval_s  the least time between two progress reports
    value_schema_id      the value schema to convert to; None for the newest
    cache                how runs are opened: CacheSettings for local copies, NoCache for ranges of the store's files

    Raises ConfigError.
    """

    stall_timeout_s: float = 30.0
    lease_ttl_s: float = 120.0
    holder: str = "recovery"
    attempts: int = 5
    fold_bytes: int = 128 * 1024 * 1024
    threads: int = 2
    progress_interval_s: float = 0.2
    value_schema_id: int | None = None
    cache: OpenerSettings = _NO_CACHE

    def __post_init__(self) -> None:
        least = {"attempts": self.attempts, "fold_bytes": self.fold_bytes, "threads": self.threads}
        for name, value in least.items():
            if value < 1:
                raise ConfigError(f"{name} is {value} and must be at least 1")
        for name, seconds in (("stall_timeout_s", self.stall_timeout_s), ("lease_ttl_s", self.lease_ttl_s)):
            if not (math.isfinite(seconds) and seconds > 0):
                raise ConfigError(f"{name} is {seconds} and must be above 0")
