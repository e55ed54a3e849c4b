"""When a round begins, and why. Pure decisions over frozen values.

first round   after a delay that a hash of the log's name spreads over the interval; less, where the newest snapshot is
              about an interval old, so that a daemon that is restarted again and again still runs rounds
next round    a fixed delay after the last one ended, whatever its outcome; at once if its budget cut it short
in between    at once on request; early when a restore would take too long by now, unless the last
              one failed: failures are tolerated by their number, and so they come an interval apart
"""

import math
import zlib
from dataclasses import dataclass
from enum import StrEnum

from statelog.materializer.daemon.restore_time import RestoreOutlook
from statelog.materializer.round.outcome import CompletedRound, RoundOutcome
from statelog.materializer.settings import MaterializerSettings

__all__ = [
    "RoundCause",
    "ScheduleState",
    "cause_of_round",
    "delay_after",
    "first_delay_s",
    "look_every_s",
]

_LOOK_AT_LEAST_S = 0.05
_OVERDUE_S = 30.0
_LOOK_AT_MOST_S = 30.0
_LOOKS_PER_ALARM = 10
_LOOKS_PER_BUDGET = 20


class RoundCause(StrEnum):
    """Why a round begins."""

    INTERVAL = "interval"
    TRIGGER = "trigger"
    RESTORE_BUDGET = "restore budget"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleState:
    """Between two rounds. Times are on the daemon's clock; `due_s` is when the interval is over.

    `ended_s` is when the last round ended, None before the first; `lasted_s` is how long the last one that ended well
    took, and `has_failed` says that there was a failure since.
    """

    now_s: float
    due_s: float
    is_triggered: bool
    outlook: RestoreOutlook
    ended_s: float | None
    lasted_s: float
    has_failed: bool


def cause_of_round(now: ScheduleState, settings: MaterializerSettings) -> RoundCause | None:
    """Why a round begins now, or None."""
    if now.is_triggered:
        return RoundCause.TRIGGER
    if now.now_s >= now.due_s:
        return RoundCause.INTERVAL
    if now.outlook is RestoreOutlook.ROUND_DUE and not now.has_failed and _is_spaced(now, settings):
        return RoundCause.RESTORE_BUDGET
    return None


def _is_spaced(now: ScheduleState, settings: MaterializerSettings) -> bool:
    """Whether the last round is long enough ago: else a budget that rounds cannot keep would be rounds only."""
    return now.ended_s is None or now.now_s >= now.ended_s + max(settings.restore_spacing_s, now.lasted_s)


def delay_after(outcome: RoundOutcome | None, settings: MaterializerSettings) -> float:
    """How long to wait after a round that ended so (None: it failed)."""
    return 0.0 if isinstance(outcome, CompletedRound) and outcome.behind else settings.interval_s


def first_delay_s(log: str, settings: MaterializerSettings, *, due_s: float = math.inf) -> float:
    """How long a log's first round waits: the same at every start, and spread over many logs.

    `due_s`: then a round would be due if the daemon had not been restarted. It is not later than that, nor than half a
    minute (spread, too) if that is over.
    """
    share: float = zlib.crc32(log.encode()) / (1 << 32)
    usual_s = share * settings.jitter * settings.interval_s
    return min(usual_s, max(due_s, share * settings.jitter * _OVERDUE_S))


def look_every_s(settings: MaterializerSettings) -> float:
    """How often to look at the tail: several times before an alarm, and before a budget is used up; within bounds."""
    often_s = min(_LOOK_AT_MOST_S, settings.alarm_age_s / _LOOKS_PER_ALARM)
    if settings.restore_budget_s is not None:
        often_s = min(often_s, settings.restore_budget_s / _LOOKS_PER_BUDGET)
    return max(_LOOK_AT_LEAST_S, often_s)
