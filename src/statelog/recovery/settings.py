"""Settings of a recovery, with defaults for one process that holds the state in memory."""

import math
from dataclasses import dataclass, field
from numbers import Real
from os import PathLike
from pathlib import Path
from tempfile import gettempdir

from statelog.errors import ConfigError
from statelog.reading import ATTEMPTS, Terms, check_directory
from statelog.recovery.run_cache import CacheSettings
from statelog.schemas.names import check_kind, check_whole

_FRAME_BYTES = 4 * 1024 * 1024
_LEAST = {"fold_bytes": 1, "threads": 1, "memory_bytes": 64 * 1024}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryTuning:
    """Settings that only the tests and benchmarks of this package change. Not checked.

    `attempts`: how often to plan before giving up, if the log is truncated or a snapshot fails mid-read.
    `stall_timeout_s`: give up when Kafka makes no progress for this long.
    `segment_bytes`: of a stream, the size at which a spill segment is sealed and the next one begins.
    `progress_interval_s`: the least time between two progress reports.
    """

    attempts: int = ATTEMPTS
    stall_timeout_s: float = 30.0
    segment_bytes: int = 64 * 1024 * 1024
    progress_interval_s: float = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverySettings:
    """Settings of a recovery. The recovered state does not depend on them, except for `value_schema_id`.

        settings = RecoverySettings(holder="web", lease_ttl_s=300.0)
        recover(log, settings=settings).to_dict()

    lease_ttl_s        how long truncation waits for this reader after its last lease renewal
    lease              whether truncation waits for this reader. Without one it writes nothing to the store, and plans
                       again, or fails with OffsetGone, if truncation overtakes it
    holder             the reader's name in its lease, for people
    fold_bytes         changes of the tail held in memory before they are folded to the last one per key; a stream and
                       the sorted targets sort and spill the rest, and hold about three times as much then
    memory_bytes       of a stream: fetched and not yet applied changes held in memory; the rest is spilled
    spill_directories  of streams and sorted targets: existing directories for spilled data, used in turn
    threads            how many partitions of the tail are folded at the same time; with 1, runs on a local disk are
                       not read ahead either, which saves a third of the cost of reading them
    value_schema_id    the value schema to convert to; None for the newest
    local_copies       where writers keep local copies of change sets (`WriterSettings.local_copies`): the tail is
                       read there if all its change sets are there, else from Kafka, with a log line
    cache              how runs are opened: CacheSettings for local copies, None for ranges of the store's files

    Raises ConfigError.
    """

    lease_ttl_s: float = 120.0
    lease: bool = True
    holder: str = "recovery"
    fold_bytes: int = 128 * 1024 * 1024
    memory_bytes: int = 64 * 1024 * 1024
    spill_directories: tuple[str | PathLike[str], ...] = field(default_factory=lambda: (gettempdir(),))
    threads: int = 2
    value_schema_id: int | None = None
    local_copies: Path | None = None
    cache: CacheSettings | None = None
    _tuning: RecoveryTuning = field(default_factory=RecoveryTuning, repr=False)

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            check_whole(name, getattr(self, name), least)
        if self.value_schema_id is not None:
            check_whole("value_schema_id", self.value_schema_id, 0)
        check_kind("spill_directories", self.spill_directories, tuple, list, example='("/mnt/a", "/mnt/b")')
        object.__setattr__(self, "spill_directories", tuple(self.spill_directories))
        if self.cache is not None:
            check_kind("cache", self.cache, CacheSettings, example="CacheSettings(directory=...)")
        if self.local_copies is not None:
            check_directory(self.local_copies)
        if not (isinstance(self.lease_ttl_s, Real) and 0 < self.lease_ttl_s < math.inf):
            raise ConfigError(f"lease_ttl_s is {self.lease_ttl_s!r} and must be a number of seconds above 0")

    @property
    def frame_bytes(self) -> int:
        """The approximate size of a portion; several fit in the memory of a stream."""
        return min(self.memory_bytes // 8, _FRAME_BYTES)

    @property
    def directories(self) -> tuple[Path, ...]:
        """The spill directories, as paths."""
        return tuple(map(Path, self.spill_directories))


def tuning_of(settings: RecoverySettings) -> RecoveryTuning:
    """Return the tuning of these settings: the defaults, except in tests."""
    return settings._tuning  # pyright: ignore[reportPrivateUsage] # private to programs, not to this package


def terms_of(settings: RecoverySettings) -> Terms:
    """Return the lease terms of a reader with these settings."""
    return Terms(settings.holder, settings.lease_ttl_s, settings.lease)
