"""Settings of a materializer: small, frozen, checked once."""

import math
import os
import tempfile
from dataclasses import dataclass, field, fields
from pathlib import Path

from statelog.errors import ConfigError
from statelog.schemas.names import check_kind
from statelog.schemas.snapshot.claims import SubscriptionCap
from statelog.schemas.snapshot.retention import RetentionPolicy
from statelog.store.disk.disk import local_path

_THREADS_MAX = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class MaterializerTuning:
    """Settings that only the tests and benchmarks of this package change. Not checked.

    `jitter`: the share of the interval, 0 to 1, over which the first rounds of different logs are spread.
    `budget_commits`: as `budget_bytes`, by number, because each commit costs memory.
    `failures_tolerated_s`: any number of rounds may fail within this time, unless none is tolerated.
    `stop_grace_s`: how long the round in flight may run after a stop, before it is given up.
    `merge_bytes`: a round merges about so many bytes of runs, and leaves the rest to later ones. A daemon does a larger
    merge in the background, on half of the threads. Without a daemon, or with another engine, a round merges at least
    once.
    `max_run_bytes`: a larger run is cut into several files, at the end of a key group. The default is far below any
    store's limit, and is read, verified and merged in a minute.
    `lease_cap_s`: no lease holds anything back for longer.
    `restore_spacing_s`: a round starts early not sooner than this after the last one, nor sooner than that one took,
    nor after one that failed.
    """

    jitter: float = 1.0
    budget_commits: int = 50_000
    failures_tolerated_s: float = 900.0
    stop_grace_s: float = 60.0
    merge_bytes: int = 2 << 30
    max_run_bytes: int = 4 << 30
    lease_cap_s: float = 86_400.0
    restore_spacing_s: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MaterializerSettings:
    """The frequency of rounds, their size, and the retention of snapshots.

    interval_s          from the end of a round to the start of the next
    budget_bytes        a round ends at the last commit within it, metadata included, and takes at least one commit
    failures_tolerated  how many rounds in a row may fail because a store or broker is unavailable; one more ends the
                        daemon
    retention           which manifests are retained
    fanout              this many runs of one size are merged into one
    threads             how many files are written, merged, uploaded or read back at the same time; None: one for each
                        core that this process may use, four at most
    fold_bytes          changes of the tail that are sorted in memory at once, by all threads together, which takes
                        about three times as much; a larger tail goes through `scratch`
    scratch             where runs are written before they are uploaded: room for two copies of the state, and not
                        a RAM disk
    subscriptions       when a reader's subscription that holds something back is ended
    alarm_age_s         alarm once a committed change is this old and in no snapshot
    hang_s              the daemon is not live if its loop is so late, or a round makes no step for so long. Must
                        exceed the time of the largest upload
    round_timeout_s     a round that takes longer is given up and counts as failed. Must exceed the longest merge in
                        a round, because the next round repeats it
    restore_budget_s    a round starts early when the estimate for a restore (download the snapshot, replay the tail)
                        approaches this. None: when the tail alone takes ten seconds, as after many small commits, at
                        most ten times in an interval, and without alarms. A long one leaves it to the interval

    Raises ConfigError.

        >>> settings = MaterializerSettings(interval_s=30.0, restore_budget_s=10.0)
        >>> settings.retention.keep
        2
    """

    interval_s: float = 600.0
    budget_bytes: int = 512 << 20
    failures_tolerated: int = 3
    retention: RetentionPolicy = field(default_factory=RetentionPolicy)
    fanout: int = 4
    threads: int | None = None
    fold_bytes: int = 128 << 20
    scratch: Path = field(default_factory=lambda: Path(tempfile.gettempdir()))
    subscriptions: SubscriptionCap = field(default_factory=SubscriptionCap)
    alarm_age_s: float = 3600.0
    hang_s: float = 900.0
    round_timeout_s: float = 6 * 3600.0
    restore_budget_s: float | None = None
    _tuning: MaterializerTuning = field(default_factory=MaterializerTuning, repr=False)

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(one.default, int | float) or (one.default is None and value is not None):
                check_kind(one.name, value, int, float, example="a number")
        check_kind("scratch", self.scratch, Path, example='pathlib.Path("/var/tmp")')
        local_path(self.scratch)
        check_kind("retention", self.retention, RetentionPolicy, example="RetentionPolicy(keep=3)")
        check_kind("subscriptions", self.subscriptions, SubscriptionCap, example="SubscriptionCap(idle_s=86_400.0)")
        for name in ("interval_s", "alarm_age_s", "hang_s", "round_timeout_s"):
            _require(0 < getattr(self, name) < math.inf, name, getattr(self, name), "positive and finite")
        if self.restore_budget_s is not None:
            _require(
                0 < self.restore_budget_s < math.inf, "restore_budget_s", self.restore_budget_s, "positive and finite"
            )
        for name in ("budget_bytes", "fold_bytes"):
            _require(getattr(self, name) >= 1, name, getattr(self, name), "positive")
        _require(self.failures_tolerated >= 0, "failures_tolerated", self.failures_tolerated, "0 or more")
        _require(self.threads is None or self.threads >= 1, "threads", self.threads or 0, "positive, or None")
        _require(self.fanout >= 2, "fanout", self.fanout, "2 or more")
        if self.alarm_age_s <= self.interval_s:
            raise ConfigError(
                "alarm_age_s must exceed interval_s, or a healthy materializer would alarm",
                alarm_age_s=self.alarm_age_s,
                interval_s=self.interval_s,
                hint="Set alarm_age_s to several intervals",
            )

    @property
    def threads_used(self) -> int:
        """`threads`, or the default for this machine."""
        # macOS does not report the cores that this process may use.
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return self.threads or min(_THREADS_MAX, cores)

    @property
    def threads_beside(self) -> int:
        """How many threads the background merge uses."""
        return max(1, self.threads_used // 2)


def tuning_of(settings: MaterializerSettings) -> MaterializerTuning:
    """Return the tuning of these settings: the defaults, except in tests."""
    return settings._tuning  # pyright: ignore[reportPrivateUsage] # private to programs, not to this package


def _require(truth: bool, name: str, value: float, must: str) -> None:
    if not truth:
        raise ConfigError(f"{name} is {value} and must be {must}", setting=name)
