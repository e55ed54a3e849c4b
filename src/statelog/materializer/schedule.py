"""When a round begins, and why; and how long a restore would take now. Pure decisions over frozen values.

first round   after a delay that a hash of the log's name spreads over the interval. It is shorter if the newest
              snapshot is about an interval old: so a daemon that is restarted often still runs rounds
next round    a fixed delay after the last one ended, whatever its outcome; at once if its budget cut it short
in between    at once on request; early when a restore would take too long by now, unless the last round failed:
              failures are tolerated by number, so they must be an interval apart. Without a budget, early when
              the tail alone takes ten seconds, at most ten times in an interval

A restore downloads the newest snapshot's runs, then replays what was committed since. Both rates are measured in the
materializer's own rounds, which do the same work. So the estimate fits a machine like the materializer's that restores
the whole state. Small measurements are ignored: the wait for the first byte would dominate them.
"""

import math
import zlib
from dataclasses import dataclass, field, replace
from enum import StrEnum

from statelog.materializer.outcome import CompletedRound, RoundOutcome
from statelog.materializer.settings import MaterializerSettings, tuning_of

_CHECK_AT_LEAST_S = 0.05
_OVERDUE_S = 30.0
_CHECK_AT_MOST_S = 30.0
_CHECKS_PER_ALARM = 10
_CHECKS_PER_BUDGET = 20
_MEASURABLE_BYTES = 1 << 20
_CHUNKS_PER_SECOND = 25_000.0
"""A chunk costs 30 to 50 us, however few changes it holds: 400,000 of them took a dict 12 s and a table 21 s."""
_TAIL_S = 10.0
_EARLY_SHARE = 0.1
_DUE_SHARE = 0.8
"""The share of the budget at which a round is due: the round takes time itself, and so does opening a log."""


class RoundCause(StrEnum):
    """Why a round begins."""

    INTERVAL = "interval"
    TRIGGER = "trigger"
    RESTORE_BUDGET = "restore budget"


class RestoreOutlook(StrEnum):
    """The verdict of a budget for restores."""

    IN_TIME = "in time"
    ROUND_DUE = "a round is due"
    OUT_OF_REACH = "the snapshot alone exceeds the budget"


def cause_of_round(
    settings: MaterializerSettings,
    *,
    now_s: float,
    due_s: float,
    is_triggered: bool,
    outlook: RestoreOutlook,
    ended_s: float | None,
    lasted_s: float,
    has_failed: bool,
) -> RoundCause | None:
    """Return why a round begins now, or None. Times are on the daemon's clock.

    due_s       when the interval is over
    ended_s     when the last round ended, None before the first
    lasted_s    how long the last round that ended well took
    has_failed  whether a round failed since
    """
    if is_triggered:
        return RoundCause.TRIGGER
    if now_s >= due_s:
        return RoundCause.INTERVAL
    # With a budget that rounds cannot meet, they would follow each other without a pause.
    own_s = 0.0 if settings.restore_budget_s is not None else _EARLY_SHARE * settings.interval_s
    is_spaced = ended_s is None or now_s >= ended_s + max(tuning_of(settings).restore_spacing_s, lasted_s, own_s)
    is_early = outlook is RestoreOutlook.ROUND_DUE and not has_failed and is_spaced
    return RoundCause.RESTORE_BUDGET if is_early else None


def delay_after(outcome: RoundOutcome | None, settings: MaterializerSettings) -> float:
    """Return how long to wait after a round with this outcome (None: it failed)."""
    return 0.0 if isinstance(outcome, CompletedRound) and outcome.behind else settings.interval_s


def first_delay_s(log: str, settings: MaterializerSettings, *, due_s: float = math.inf) -> float:
    """Return how long a log's first round waits: the same at every start, and spread over many logs.

    `due_s`: when a round would be due without the restart. The first round is not later than that; if that time is
    over, it is within half a minute, spread as well.
    """
    share: float = zlib.crc32(log.encode()) / (1 << 32)
    usual_s = share * tuning_of(settings).jitter * settings.interval_s
    return min(usual_s, max(due_s, share * tuning_of(settings).jitter * _OVERDUE_S))


def check_every_s(settings: MaterializerSettings) -> float:
    """Return how often to check the tail: several times before an alarm, and before a budget is used up."""
    often_s = min(_CHECK_AT_MOST_S, settings.alarm_age_s / _CHECKS_PER_ALARM)
    if settings.restore_budget_s is not None:
        often_s = min(often_s, settings.restore_budget_s / _CHECKS_PER_BUDGET)
    return max(_CHECK_AT_LEAST_S, often_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """An amount, and the seconds that it took."""

    amount: float
    seconds: float

    @property
    def per_second(self) -> float:
        """The rate."""
        return self.amount / self.seconds

    def and_then(self, amount: float, seconds: float) -> "Speed":
        """Return it with a new measurement; the weight of all earlier ones is halved."""
        return Speed(amount=self.amount / 2 + amount, seconds=self.seconds / 2 + seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The measured rates: bytes of runs read, bytes of record values replayed, changes replayed.

    The defaults apply until something was measured. They are low, so that the first rounds come early rather than late:

        >>> from statelog.materializer import Rates
        >>> from statelog.materializer.schedule import Speed
        >>> Rates(download=Speed(amount=64e6, seconds=1.0)).download.per_second
        64000000.0
    """

    download: Speed = field(default_factory=lambda: Speed(amount=32e6, seconds=1.0))
    replay: Speed = field(default_factory=lambda: Speed(amount=16e6, seconds=1.0))
    changes: Speed = field(default_factory=lambda: Speed(amount=2e5, seconds=1.0))

    def after_download(self, size_bytes: int, seconds: float) -> "Rates":
        """Return the rates after so many bytes of runs were read."""
        if size_bytes < _MEASURABLE_BYTES or seconds <= 0:
            return self
        return replace(self, download=self.download.and_then(size_bytes, seconds))

    def after_replay(self, size_bytes: int, changes: int, seconds: float) -> "Rates":
        """Return the rates after so many bytes, and changes in them, were replayed."""
        if size_bytes < _MEASURABLE_BYTES or seconds <= 0:
            return self
        replay, of_changes = self.replay.and_then(size_bytes, seconds), self.changes.and_then(changes, seconds)
        return replace(self, replay=replay, changes=of_changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreEstimate:
    """How long a restore would take: the snapshot's part, and the tail's."""

    snapshot_s: float
    tail_s: float

    @property
    def total_s(self) -> float:
        """The sum of both parts."""
        return self.snapshot_s + self.tail_s


def estimate(
    rates: Rates, *, snapshot_bytes: int, tail_bytes: int, tail_changes: int, tail_chunks: int
) -> RestoreEstimate:
    """Estimate a restore that reads these bytes of the snapshot's runs, and replays these bytes, changes and chunks.

    The tail's time is the longest of three: chunks dominate in small commits, changes if they are small, else bytes.
    """
    return RestoreEstimate(
        snapshot_s=snapshot_bytes / rates.download.per_second,
        tail_s=max(
            tail_bytes / rates.replay.per_second,
            tail_changes / rates.changes.per_second,
            tail_chunks / _CHUNKS_PER_SECOND,
        ),
    )


def outlook(found: RestoreEstimate, budget_s: float | None) -> RestoreOutlook:
    """Return whether the budget is met, needs a round, or cannot be met by rounds.

    Without a budget, a tail of ten seconds needs a round, and nothing is OUT_OF_REACH. With one, a round is due once
    four fifths of it are used, or half of what the snapshot leaves if that is later. So a large snapshot does not cause
    rounds for a tiny tail.
    """
    if budget_s is None:
        return RestoreOutlook.ROUND_DUE if found.tail_s >= _TAIL_S else RestoreOutlook.IN_TIME
    if found.snapshot_s >= budget_s:
        return RestoreOutlook.OUT_OF_REACH
    due_s = max(_DUE_SHARE * budget_s, (found.snapshot_s + budget_s) / 2)
    return RestoreOutlook.ROUND_DUE if found.total_s >= due_s else RestoreOutlook.IN_TIME
