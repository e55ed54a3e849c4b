"""How long a restore would take now, and whether that makes a round due. Pure decisions over frozen values.

A restore downloads the newest snapshot's runs, then replays what was committed since. Both rates are measured in the
materializer's own rounds, which do the same work: every uploaded run is read back once, every tail is replayed once.
So the estimate is good for a machine like the materializer's, that restores the whole state.

Invariants:
- Before the first measurement the rates are low guesses, so that the first rounds come too early rather than too late.
- A measurement of little data is left out: waiting for the first byte outweighs it, so it says nothing about a rate.
- A round shortens the tail, never the snapshot: what the snapshot alone takes is never a reason for a round.
"""

from dataclasses import dataclass, field
from enum import StrEnum

__all__ = ["Rates", "RestoreEstimate", "RestoreOutlook", "RestoreWork", "Speed", "estimate", "outlook"]

_MEASURABLE_BYTES = 1 << 20
_NEAR = 0.8
"""The share of the budget at which a round is due: it takes time itself, and opening a log does, too."""


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

    The defaults are used until something has been measured:

        >>> from statelog.materializer import Rates
        >>> from statelog.materializer.daemon.restore_time import Speed
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
        return Rates(download=self.download.and_then(size_bytes, seconds), replay=self.replay, changes=self.changes)

    def after_replay(self, size_bytes: int, changes: int, seconds: float) -> "Rates":
        """The rates after so many bytes, and changes in them, were replayed."""
        if size_bytes < _MEASURABLE_BYTES or seconds <= 0:
            return self
        return Rates(
            download=self.download,
            replay=self.replay.and_then(size_bytes, seconds),
            changes=self.changes.and_then(changes, seconds),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreWork:
    """What a restore has to do: bytes of the snapshot's runs, bytes and changes of the committed tail."""

    snapshot_bytes: int
    tail_bytes: int
    tail_changes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreEstimate:
    """How long a restore would take: the snapshot's part, and the tail's."""

    snapshot_s: float
    tail_s: float

    @property
    def total_s(self) -> float:
        """Both."""
        return self.snapshot_s + self.tail_s


class RestoreOutlook(StrEnum):
    """What a budget for restores asks for."""

    IN_TIME = "in time"
    ROUND_DUE = "a round is due"
    OUT_OF_REACH = "the snapshot alone exceeds the budget"


def estimate(work: RestoreWork, rates: Rates) -> RestoreEstimate:
    """The estimate. A tail of many small changes takes as long as its changes do, one of large values as its bytes."""
    return RestoreEstimate(
        snapshot_s=work.snapshot_bytes / rates.download.per_second,
        tail_s=max(work.tail_bytes / rates.replay.per_second, work.tail_changes / rates.changes.per_second),
    )


def outlook(found: RestoreEstimate, budget_s: float) -> RestoreOutlook:
    """Whether the budget is kept, asks for a round, or cannot be kept by rounds.

    A round is due once four fifths of the budget are used, or half of what the snapshot leaves of it if that is later:
    the larger the snapshot, the later, lest rounds follow each other for a tail of next to nothing.
    """
    if found.snapshot_s >= budget_s:
        return RestoreOutlook.OUT_OF_REACH
    due_s = max(_NEAR * budget_s, (found.snapshot_s + budget_s) / 2)
    return RestoreOutlook.ROUND_DUE if found.total_s >= due_s else RestoreOutlook.IN_TIME
