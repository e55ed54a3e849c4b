"""The tail: what was committed since the newest snapshot, followed on the ledger alone, beside the rounds.

A look asks the log's history for what is new; no chunk is read. `TailWatch` looks at how long a restore would
take.

Invariants:
- Nothing here is needed for a round to be right.
- No more looks may hang than failures are tolerated; beyond that none begins until one returns, and the age grows.
- A look counts only if no round ended meanwhile: else it started from an older manifest.
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
from statelog.materializer.schedule import RestoreEstimate, RestoreOutlook, look_every_s, outlook
from statelog.materializer.settings import MaterializerSettings
from statelog.schemas.ledger.fold import ValidCommit
from statelog.schemas.snapshot.manifest import Manifest
from statelog.schemas.topic_policy import ROUND


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """What no snapshot holds, at one look: the commits between the manifest `number` and `position`.

    `oldest_s` is the time of the oldest of these commits, in seconds since 1970, and None if there is none: by the
    broker that appended it, and not later than its first look. `looked_s` is the time of the look, by this machine.

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
        """The one that nothing was seen of yet; None: there is no manifest."""
        if manifest is None:
            return cls(number=0, position=0, snapshot_bytes=0)
        size_bytes = sum(run.size_bytes for run in manifest.runs)
        return cls(number=manifest.number, position=manifest.position, snapshot_bytes=size_bytes)

    @property
    def age_s(self) -> float:
        """How old the oldest of the commits was at the look; 0 without one."""
        return 0.0 if self.oldest_s is None else max(0.0, self.looked_s - self.oldest_s)

    def with_commits(self, commits: Sequence[ValidCommit], position: int, now_s: float) -> "Tail":
        """The tail with further commits, seen at `now_s`. A commit without a timestamp is as old as its first look, and
        so is one from a time to come. A writer's clock tells nothing: see `kafka.Record`.
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
    """Return a tail with what was committed since it was looked at; None: that of the newest manifest.

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
        for found in replay.commits(position):  # One by one, for each may be large.
            tail = tail.with_commits([found], found.position, now_s)
    return tail.with_commits((), max(position, tail.position), now_s)


def tail_now(log: Log) -> Tail:
    """The whole tail up to the ledger's end at this moment. Raises OffsetGone, Damaged, Unavailable.

    It reads the ledger, and what the last chunks that no commit lists say of it:

        >>> from statelog.materializer import tail_now
        >>> tail_now(log).commits
        0
    """
    check_log(log)
    log.verify(ROUND)
    log.evidence.check_ledger()
    return tail_of(log, None, current_environment().wall_clock())


class TailWatch:
    """Belongs to the daemon's thread. `ring` is called on a look's own thread, once it is over."""

    def __init__(self, log: Log, settings: MaterializerSettings, *, ring: Callable[[], None]) -> None:
        self.outlook = RestoreOutlook.IN_TIME
        """What the last look says of the restore budget."""
        self._log = log
        self._settings = settings
        self._environment = current_environment()
        self._ring = ring
        self._over: deque[BackgroundTask[Tail]] = deque()
        self._under_way: BackgroundTask[Tail] | None = None
        self._out = 0
        self._tail: Tail | None = None
        self._due_s = self._environment.clock()

    @property
    def is_any_over(self) -> bool:
        """Whether a look has ended that was not collected yet."""
        return bool(self._over)

    @property
    def looking_since_s(self) -> float | None:
        """When the look that is under way began; None if none is."""
        return None if self._under_way is None else self._under_way.started_s

    @property
    def due_s(self) -> float:
        """When the next look is due; never while one is under way, or too many hang."""
        has_room = self._under_way is None and self._out <= self._settings.failures_tolerated
        return self._due_s if has_room else math.inf

    def begin(self) -> None:
        """Begin a look."""
        log, tail, clock = self._log, self._tail, self._environment.wall_clock
        self._out += 1
        self._under_way = begin_task(self._environment, lambda: tail_of(log, tail, clock()), self._came_back)

    def take_in(self) -> Iterator[tuple[Tail, float]]:
        """The tails found since the last call, each with the time its look began. Raises Damaged."""
        while self._over:
            look = self._over.popleft()
            self._out -= 1
            if look is not self._under_way:
                continue
            self._under_way = None
            self._due_s = self._environment.clock() + look_every_s(self._settings)
            try:
                tail = self._tail = look.future.result()
            except (Unavailable, StoreRefused, OffsetGone):
                self.drop()  # Transient or not: the next round finds out, or else the watchdog does.
            else:
                yield tail, look.started_s

    def judge(self, found: RestoreEstimate, budget_s: float | None) -> bool:
        """Compare an estimate with the budget; returns whether it has just gone beyond what a round can fix."""
        before, self.outlook = self.outlook, outlook(found, budget_s)
        return self.outlook is RestoreOutlook.OUT_OF_REACH and before is not RestoreOutlook.OUT_OF_REACH

    def start_over(self) -> None:
        """A round ended: the next look is due now, and starts from the manifest that is newest then."""
        self.drop()
        self._due_s = self._environment.clock()

    def drop(self) -> None:
        """Forget the tail. A look under way is not waited for, and not taken in."""
        self._tail = self._under_way = None
        if self.outlook is RestoreOutlook.ROUND_DUE:
            self.outlook = RestoreOutlook.IN_TIME

    def _came_back(self, look: BackgroundTask[Tail]) -> None:
        self._over.append(look)
        self._ring()
