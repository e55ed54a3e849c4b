"""The tail: the commits since the newest snapshot, checked between and during rounds, from the ledger alone.

A check asks the log's history for new commits; no chunk is read. `TailWatch` also compares the estimate for a restore
with the budget.

Invariants:
- Rounds do not depend on this for correctness.
- No more checks may hang than failures are tolerated. Beyond that none begins until one returns, and the age grows.
- A check counts only if no round ended meanwhile: else it started from an older manifest.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from statelog.environment import current_environment
from statelog.errors import OffsetGone, StoreRefused, Unavailable
from statelog.log import Log
from statelog.log.log import check_log
from statelog.materializer.control import BackgroundTask, begin_task
from statelog.materializer.schedule import RestoreEstimate, RestoreOutlook, check_every_s, outlook
from statelog.materializer.settings import MaterializerSettings
from statelog.schemas.ledger.fold import ValidCommit
from statelog.schemas.snapshot.manifest import Manifest
from statelog.schemas.topic_policy import ROUND


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """The commits between the manifest `number` and `position`, which no snapshot holds.

    oldest_s  when the oldest of them was committed, in seconds since 1970, by the broker, but not later than its first
              check; None without a commit
    looked_s  the time of the check, by this machine

        >>> from statelog.materializer import tail_now
        >>> tail_now(log).age_s
        0.0
    """

    number: int
    position: int
    snapshot_bytes: int
    looked_s: float = 0.0
    commits: int = 0
    changes: int = 0
    size_bytes: int = 0
    chunks: int = 0
    oldest_s: float | None = None

    @classmethod
    def behind(cls, manifest: Manifest | None) -> "Tail":
        """Return an empty tail after this manifest; None: there is none."""
        if manifest is None:
            return cls(number=0, position=0, snapshot_bytes=0)
        size_bytes = sum(run.size_bytes for run in manifest.runs)
        return cls(number=manifest.number, position=manifest.position, snapshot_bytes=size_bytes)

    @property
    def age_s(self) -> float:
        """How old the oldest of the commits was at the check; 0 without one."""
        return 0.0 if self.oldest_s is None else max(0.0, self.looked_s - self.oldest_s)

    def with_commits(self, commits: Sequence[ValidCommit], position: int, now_s: float) -> "Tail":
        """Return the tail with further commits, observed at `now_s`.

        A commit without a timestamp, or from the future, counts as committed at `now_s`. Timestamps are the broker's,
        not the writer's: see `kafka.Record`.
        """
        contents = [found.contents for found in commits]
        times = [min(now_s, found.timestamp_ms / 1000) if found.timestamp_ms >= 0 else now_s for found in commits]
        return replace(
            self,
            position=position,
            looked_s=now_s,
            commits=self.commits + len(commits),
            changes=self.changes + sum(one.changes for one in contents),
            size_bytes=self.size_bytes + sum(one.size_bytes for one in contents),
            chunks=self.chunks + sum(one.chunks for one in contents),
            oldest_s=min(times if self.oldest_s is None else [self.oldest_s, *times], default=None),
        )


def tail_of(log: Log, tail: Tail | None, now_s: float) -> Tail:
    """Return a tail with the commits since its check; None: the tail of the newest manifest.

    `now_s` is in seconds since 1970. Raises OffsetGone if the ledger was truncated past it, Damaged, Unavailable.
    """
    log.history.read_to(log.history.end())
    position = log.history.place.position
    commits = None if tail is None else log.history.commits(tail.position, position)
    if tail is not None and commits is not None:
        return tail.with_commits(commits, position, now_s)
    manifest = log.manifests.newest()
    tail = Tail.behind(manifest)
    with log.replay(manifest) as replay:
        for found in replay.commits(position):  # One by one: each may be large.
            tail = tail.with_commits([found], found.position, now_s)
    return tail.with_commits((), max(position, tail.position), now_s)


def tail_now(log: Log) -> Tail:
    """Return the whole tail up to the ledger's end now. Raises OffsetGone, Damaged, Unavailable.

    Reads the ledger, and the witnesses in the last chunks that no commit lists:

        >>> from statelog.materializer import tail_now
        >>> tail_now(log).commits
        0
    """
    check_log(log)
    log.verify(ROUND)
    log.evidence.check_ledger()
    return tail_of(log, None, current_environment().wall_clock())


class TailWatch:
    """The checks of the tail; belongs to the daemon's thread. `ring` is called on a check's thread when it ends."""

    def __init__(self, log: Log, settings: MaterializerSettings, *, ring: Callable[[], None]) -> None:
        self.outlook = RestoreOutlook.IN_TIME
        """The last check's verdict on the restore budget."""
        self._log = log
        self._settings = settings
        self._environment = current_environment()
        self._ring = ring
        self._over: deque[BackgroundTask[Tail]] = deque()
        self._in_flight: BackgroundTask[Tail] | None = None
        self._running = 0
        self._tail: Tail | None = None
        self._due_s = self._environment.clock()

    @property
    def is_any_over(self) -> bool:
        """Whether a check has ended that was not collected yet."""
        return bool(self._over)

    @property
    def checking_since_s(self) -> float | None:
        """When the check in flight began; None if there is none."""
        return None if self._in_flight is None else self._in_flight.started_s

    @property
    def due_s(self) -> float:
        """When the next check is due; never while one is in flight, or too many hang."""
        has_room = self._in_flight is None and self._running <= self._settings.failures_tolerated
        return self._due_s if has_room else math.inf

    def begin(self) -> None:
        """Begin a check."""
        log, tail, clock = self._log, self._tail, self._environment.wall_clock
        self._running += 1
        self._in_flight = begin_task(self._environment, lambda: tail_of(log, tail, clock()), self._on_end)

    def take_in(self) -> Iterator[tuple[Tail, float]]:
        """Yield the tails found since the last call, each with the start of its check. Raises Damaged."""
        while self._over:
            check = self._over.popleft()
            self._running -= 1
            if check is not self._in_flight:
                continue
            self._in_flight = None
            self._due_s = self._environment.clock() + check_every_s(self._settings)
            try:
                tail = self._tail = check.future.result()
            except (Unavailable, StoreRefused, OffsetGone):
                self.drop()  # If it is not transient, the next round or the watchdog reports it.
            else:
                yield tail, check.started_s

    def judge(self, found: RestoreEstimate, budget_s: float | None) -> bool:
        """Compare an estimate with the budget. Return whether it has just exceeded what a round can fix."""
        before, self.outlook = self.outlook, outlook(found, budget_s)
        return self.outlook is RestoreOutlook.OUT_OF_REACH and before is not RestoreOutlook.OUT_OF_REACH

    def start_over(self) -> None:
        """Make a check due now, because a round ended. It starts from the manifest that is newest then."""
        self.drop()
        self._due_s = self._environment.clock()

    def drop(self) -> None:
        """Forget the tail, and ignore the check in flight."""
        self._tail = self._in_flight = None
        if self.outlook is RestoreOutlook.ROUND_DUE:
            self.outlook = RestoreOutlook.IN_TIME

    def _on_end(self, check: BackgroundTask[Tail]) -> None:
        self._over.append(check)
        self._ring()
