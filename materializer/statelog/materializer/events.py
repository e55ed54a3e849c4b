"""What a materializer tells whoever runs it. Values only: the room prints nothing and logs nothing.

Every event has `log` (the log's name) and `at_s` (seconds on the daemon's clock). `on_event` is called on the
daemon's thread, except for `LogAgeAlarm`, which comes from the watchdog's; it must be quick and must not raise.
"""

from dataclasses import dataclass

from statelog.materializer.outcome import Completed, Lost, Skipped
from statelog.schemas.errors import StatelogError

__all__ = [
    "CleanUpHeldBack",
    "Event",
    "LogAgeAlarm",
    "RoundCompleted",
    "RoundFailed",
    "RoundLost",
    "RoundSkipped",
    "RoundStarted",
    "Stopped",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundStarted:
    """A round begins."""

    log: str
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCompleted:
    """A manifest of ours stands."""

    log: str
    at_s: float
    outcome: Completed


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSkipped:
    """There was nothing new."""

    log: str
    at_s: float
    outcome: Skipped


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundLost:
    """Another materializer was faster. Often: two are running where one would do."""

    log: str
    at_s: float
    outcome: Lost


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundFailed:
    """A round failed; it is the `failures_in_a_row`-th. `tolerated`: the daemon goes on."""

    log: str
    at_s: float
    error: StatelogError
    failures_in_a_row: int
    tolerated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanUpHeldBack:
    """A round completed, but removed nothing, and says why. The log grows until that is mended."""

    log: str
    at_s: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAgeAlarm:
    """No round has ended well for `age_s` seconds. Told again each time that another `alarm_age_s` has passed."""

    log: str
    at_s: float
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """The daemon ends. No round is in flight."""

    log: str
    at_s: float


Event = RoundStarted | RoundCompleted | RoundSkipped | RoundLost | RoundFailed | CleanUpHeldBack | LogAgeAlarm | Stopped
