"""Events that a daemon reports to its caller, as frozen values. Its statistics count them.

Every event has `log` (the log's name) and `at_s` (seconds on the daemon's clock). `on_event` is called on the
daemon's thread, except for `LogAgeAlarm`, which comes from the watchdog's; it must be quick and must not raise.
"""

from dataclasses import dataclass

from statelog.errors import StatelogError
from statelog.materializer.daemon.schedule import RoundCause
from statelog.materializer.round.outcome import CompletedRound, LostRound, RoundOutcome, SkippedRound

__all__ = [
    "CleanupHeldBack",
    "Event",
    "LogAgeAlarm",
    "OffsetUnpublished",
    "RestoreBudgetOutOfReach",
    "RoundCompleted",
    "RoundEndedLate",
    "RoundFailed",
    "RoundLost",
    "RoundSkipped",
    "RoundStarted",
    "Started",
    "Stopped",
    "SubscriptionCapped",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The daemon runs; its first round begins in `first_round_s` seconds, or earlier on request."""

    log: str
    at_s: float
    first_round_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundStarted:
    """A round begins, and why."""

    log: str
    at_s: float
    cause: RoundCause


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCompleted:
    """A round put its manifest."""

    log: str
    at_s: float
    outcome: CompletedRound


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSkipped:
    """There was nothing new."""

    log: str
    at_s: float
    outcome: SkippedRound


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundLost:
    """Another materializer was faster. Often: two are running where one would do."""

    log: str
    at_s: float
    outcome: LostRound


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundFailed:
    """A round failed; it is the `failures_in_a_row`-th. `tolerated`: the daemon goes on."""

    log: str
    at_s: float
    error: StatelogError
    failures_in_a_row: int
    tolerated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundEndedLate:
    """A round that was given up has ended: with an outcome, which is reported and counted too, or without (None)."""

    log: str
    at_s: float
    outcome: RoundOutcome | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupHeldBack:
    """A round completed but removed nothing, for this reason. The log grows until the reason is gone."""

    log: str
    at_s: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionCapped:
    """A round ended a reader's subscription, because it was over the cap: what it held goes with the next rounds."""

    log: str
    at_s: float
    reader: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetUnpublished:
    """A round completed, but its position could not be published. Only lag tools are affected."""

    log: str
    at_s: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAgeAlarm:
    """Changes committed `age_s` seconds ago are in no snapshot, or the log has been unreachable for that long.

    Repeated each time another `alarm_age_s` has passed.
    """

    log: str
    at_s: float
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreBudgetOutOfReach:
    """The newest snapshot alone takes longer to restore than the budget, so more rounds do not help.

    What helps: a larger budget, a faster store, less state, or several workers that each restore a part. Reported once,
    and again if the budget was within reach in between.
    """

    log: str
    at_s: float
    snapshot_s: float
    budget_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """The daemon ends. No round is in flight, except those that were given up and hang."""

    log: str
    at_s: float


Event = (
    Started
    | RoundStarted
    | RoundCompleted
    | RoundSkipped
    | RoundLost
    | RoundFailed
    | RoundEndedLate
    | CleanupHeldBack
    | OffsetUnpublished
    | LogAgeAlarm
    | RestoreBudgetOutOfReach
    | SubscriptionCapped
    | Stopped
)
"""What a daemon tells its `on_event`."""
