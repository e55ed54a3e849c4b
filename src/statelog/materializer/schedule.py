"""When a round begins, and why; and how long a restore would take now. Pure decisions over frozen values.

first round   after a delay that a hash of the log's name spreads over the interval; less, where the newest snapshot is
              about an interval old, so that a daemon that is restarted again and again still runs rounds
next round    a fixed delay after the last one ended, whatever its outcome; at once if its budget cut it short
in between    at once on request; early when a restore would take too long by now, unless the last
              one failed: failures are tolerated by their number, and so they come an interval apart.
              Without a budget, when the tail alone takes ten seconds, as that of many small commits
              does, and at most ten times in an interval

A restore downloads the newest snapshot's runs, then replays what was committed since. Both rates are measured in the
materializer's own rounds, which do the same work. So the estimate is good for a machine like the materializer's, that
restores the whole state. A measurement of little data is left out, for waiting for the first byte outweighs it.
"""

import math
import zlib
from dataclasses import dataclass, field, replace
from enum import StrEnum

from statelog.materializer.outcome import CompletedRound, RoundOutcome
from statelog.materializer.settings import MaterializerSettings

_LOOK_AT_LEAST_S = 0.05
_OVERDUE_S = 30.0
_LOOK_AT_MOST_S = 30.0
_LOOKS_PER_ALARM = 10
_LOOKS_PER_BUDGET = 20
_MEASURABLE_BYTES = 1 << 20
_CHUNKS_PER_SECOND = 25_000.0
"""A chunk costs 30 to 50 us, however few changes it holds: 400,000 of them took a dict 12 s and a table 21 s."""
_TAIL_S = 10.0
_EARLY_SHARE = 0.1
_NEAR = 0.8
"""The share of the budget at which a round is due: it takes time itself, and opening a log does, too."""


class RoundCause(StrEnum):
    """Why a round begins."""

    INTERVAL = "interval"
    TRIGGER = "trigger"
    RESTORE_BUDGET = "restore budget"


class RestoreOutlook(StrEnum):
    """What a budget for restores asks for."""

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
    """Why a round begins now, or None. Times are on the daemon's clock; `due_s` is when the interval is over.

    `ended_s` is when the last round ended, None before the first; `lasted_s` is how long the last one that ended well
    took, and `has_failed` says that there was a failure since.
    """
    if is_triggered:
        return RoundCause.TRIGGER
    if now_s >= due_s:
        return RoundCause.INTERVAL
    # The last round is long enough ago: else a budget that rounds cannot keep would be rounds only.
    own_s = 0.0 if settings.restore_budget_s is not None else _EARLY_SHARE * settings.interval_s
    is_spaced = ended_s is None or now_s >= ended_s + max(settings.restore_spacing_s, lasted_s, own_s)
    is_early = outlook is RestoreOutlook.ROUND_DUE and not has_failed and is_spaced
    return RoundCause.RESTORE_BUDGET if is_early else None


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
        """With a new measurement, beside which all earlier ones count half as much as before."""
        return Speed(amount=self.amount / 2 + amount, seconds=self.seconds / 2 + seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What was measured: bytes of runs read, bytes of record values replayed, changes replayed.

    The defaults are used until something has been measured, and low, so that the first rounds come rather too early:

        >>> from statelog.materializer import Rates
        >>> from statelog.materializer.schedule import Speed
        >>> Rates(download=Speed(amount=64e6, seconds=1.0)).download.per_second
        64000000.0
    """

    download: Speed = field(default_factory=lambda: Speed(amount=32e6, seconds=1.0))
    replay: Speed = field(default_factory=lambda: Speed(amount=16e6, seconds=1.0))
    changes: Speed = field(default_factory=lambda: Speed(amount=2e5, seconds=1.0))

    def after_download(self, size_bytes: int, seconds: float) -> "Rates":
        """The rates after so many bytes of runs were read."""
        if size_bytes < _MEASURABLE_BYTES or seconds <= 0:
            return self
        return replace(self, download=self.download.and_then(size_bytes, seconds))

    def after_replay(self, size_bytes: int, changes: int, seconds: float) -> "Rates":
        """The rates after so many bytes, and changes in them, were replayed."""
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
        """Both."""
        return self.snapshot_s + self.tail_s


def estimate(
    rates: Rates, *, snapshot_bytes: int, tail_bytes: int, tail_changes: int, tail_chunks: int
) -> RestoreEstimate:
    """Of a restore that reads so many bytes of the snapshot's runs, and replays so many bytes, changes and chunks.

    A tail of small commits takes as long as its chunks do, one of many small changes as its changes, one of large
    values as its bytes.
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
    """Whether the budget is kept, asks for a round, or cannot be kept by rounds. Where nobody set one, a tail of ten
    seconds asks for a round, and nothing is out of reach.

    A round is due once four fifths of the budget are used, or half of what the snapshot leaves of it if that is later:
    the larger the snapshot, the later, lest rounds follow each other for a tail of next to nothing.
    """
    if budget_s is None:
        return RestoreOutlook.ROUND_DUE if found.tail_s >= _TAIL_S else RestoreOutlook.IN_TIME
    if found.snapshot_s >= budget_s:
        return RestoreOutlook.OUT_OF_REACH
    due_s = max(_NEAR * budget_s, (found.snapshot_s + budget_s) / 2)
    return RestoreOutlook.ROUND_DUE if found.total_s >= due_s else RestoreOutlook.IN_TIME
