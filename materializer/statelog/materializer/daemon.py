"""The materializer as a daemon: one round after the other, until told to stop or beyond help.

    first round   after a delay that a hash of the log's name spreads over the interval
    next round    a fixed delay after the last one ended, whatever its outcome; at once if its budget cut it short
    failure       tolerated while the world is in the way, up to a number in a row; anything else ends the daemon
    stop          between rounds: a round in flight is finished

Invariants:
- At most one round is in flight.
- Only a round that ended well (completed, skipped, lost) resets the count of failures in a row.
- Damage (DataLoss, Corrupt, UnknownFormat) and misuse are never tolerated.
"""

import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace

from statelog.materializer.events import (
    CleanUpHeldBack,
    Event,
    RoundCompleted,
    RoundFailed,
    RoundLost,
    RoundSkipped,
    RoundStarted,
    Stopped,
)
from statelog.materializer.outcome import Completed, Lost, RoundOutcome, Skipped
from statelog.materializer.round import new_random_nonce, run_round
from statelog.materializer.settings import MaterializerSettings
from statelog.materializer.verified import VerifiedRuns
from statelog.materializer.watchdog import Watchdog
from statelog.schemas.errors import StatelogError, Unavailable
from statelog.storage.log import Log

__all__ = ["Materializer", "MaterializerStatistics", "first_delay_s"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MaterializerStatistics:
    """Counts since the start. `position` and `number` are of the newest manifest that this process knows of.

    `age_s` is the time since the last round that ended well, or since the start.
    """

    completed: int = 0
    skipped: int = 0
    lost: int = 0
    failed: int = 0
    failures_in_a_row: int = 0
    commits: int = 0
    changes: int = 0
    rows: int = 0
    size_bytes: int = 0
    number: int = 0
    position: int = 0
    age_s: float = 0.0


def first_delay_s(log: str, settings: MaterializerSettings) -> float:
    """How long a log's first round waits: the same at every start, and spread over many logs."""
    share: float = zlib.crc32(log.encode()) / (1 << 32)
    return share * settings.jitter * settings.interval_s


def _ignore(_event: Event) -> None:
    """For callers that want no events."""


class Materializer:
    """Runs rounds on one log. `run` belongs to one thread; `statistics` may be asked from any.

    `stop` ends `run` after the round in flight. `clock` is monotonic and paces the daemon; `wall_clock` gives seconds
    since 1970 for manifests. `wait` waits so many seconds or until the stop, and says whether it is to stop.
    """

    def __init__(
        self,
        log: Log,
        settings: MaterializerSettings,
        *,
        stop: threading.Event,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        new_nonce: Callable[[], bytes] = new_random_nonce,
        on_event: Callable[[Event], None] = _ignore,
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        self._log = log
        self._settings = settings
        self._wait = wait or stop.wait
        self._clock = clock
        self._wall_clock = wall_clock
        self._new_nonce = new_nonce
        self._on_event = on_event
        self._verified = VerifiedRuns()
        self._counts = MaterializerStatistics()
        self._watchdog = Watchdog(log.name, settings.alarm_age_s, clock=clock, on_alarm=on_event)

    def statistics(self) -> MaterializerStatistics:
        """The counts at this moment."""
        return replace(self._counts, age_s=self._watchdog.age_s())

    def run(self) -> None:
        """Run rounds until the stop.

        Raises the last error when more rounds in a row failed than are tolerated, and at once for any error that
        trying again cannot mend: Damaged, Unsafe, Misuse.
        """
        try:
            with self._watchdog:
                delay_s = first_delay_s(self._log.name, self._settings)
                while not self._wait(delay_s):
                    delay_s = self._next_delay_s(self._round())
        finally:
            self._on_event(Stopped(log=self._log.name, at_s=self._clock()))

    def run_once(self) -> RoundOutcome:
        """Run one round now, counted and reported as any other. Raises whatever it fails with."""
        self._on_event(RoundStarted(log=self._log.name, at_s=self._clock()))
        try:
            outcome = run_round(
                self._log,
                self._settings,
                clock=self._wall_clock,
                new_nonce=self._new_nonce,
                verified=self._verified,
            )
        except StatelogError as error:
            self._failed(error)
            raise
        self._ended_well(outcome)
        return outcome

    def _round(self) -> RoundOutcome | None:
        """One round; None if it failed and that is tolerated."""
        try:
            return self.run_once()
        except Unavailable as error:
            if not self._tolerates(error):
                raise
            return None

    def _next_delay_s(self, outcome: RoundOutcome | None) -> float:
        return 0.0 if isinstance(outcome, Completed) and outcome.behind else self._settings.interval_s

    def _tolerates(self, error: StatelogError) -> bool:
        enough = self._counts.failures_in_a_row <= self._settings.failures_tolerated
        return isinstance(error, Unavailable) and enough

    def _failed(self, error: StatelogError) -> None:
        in_a_row = self._counts.failures_in_a_row + 1
        self._counts = replace(self._counts, failed=self._counts.failed + 1, failures_in_a_row=in_a_row)
        self._on_event(
            RoundFailed(
                log=self._log.name,
                at_s=self._clock(),
                error=error,
                failures_in_a_row=in_a_row,
                tolerated=self._tolerates(error),
            )
        )

    def _ended_well(self, outcome: RoundOutcome) -> None:
        self._watchdog.good_round()
        self._counts = _counted(replace(self._counts, failures_in_a_row=0), outcome)
        name, at_s = self._log.name, self._clock()
        match outcome:
            case Completed():
                self._on_event(RoundCompleted(log=name, at_s=at_s, outcome=outcome))
                if outcome.clean_up.held_back:
                    self._on_event(CleanUpHeldBack(log=name, at_s=at_s, reason=outcome.clean_up.held_back))
            case Skipped():
                self._on_event(RoundSkipped(log=name, at_s=at_s, outcome=outcome))
            case Lost():
                self._on_event(RoundLost(log=name, at_s=at_s, outcome=outcome))


def _counted(counts: MaterializerStatistics, outcome: RoundOutcome) -> MaterializerStatistics:
    match outcome:
        case Completed():
            return replace(
                counts,
                completed=counts.completed + 1,
                commits=counts.commits + outcome.commits,
                changes=counts.changes + outcome.changes,
                rows=counts.rows + outcome.rows,
                size_bytes=counts.size_bytes + outcome.size_bytes,
                number=outcome.number,
                position=outcome.position,
            )
        case Skipped():
            return replace(counts, skipped=counts.skipped + 1, number=outcome.number, position=outcome.position)
        case Lost():
            return replace(counts, lost=counts.lost + 1, number=max(counts.number, outcome.number))
