"""The materializer: rounds that roll the committed tail into snapshots and truncate below them. Serves no state."""

from statelog.materializer.daemon import Materializer, MaterializerStatistics
from statelog.materializer.events import (
    CleanUpHeldBack,
    Event,
    LogAgeAlarm,
    RoundCompleted,
    RoundFailed,
    RoundLost,
    RoundSkipped,
    RoundStarted,
    Stopped,
)
from statelog.materializer.outcome import CleanUp, Completed, Lost, RoundOutcome, Skipped
from statelog.materializer.round import CRASH_POINTS, run_round
from statelog.materializer.settings import MaterializerSettings
from statelog.materializer.signals import install_signal_handlers

__all__ = [
    "CRASH_POINTS",
    "CleanUp",
    "CleanUpHeldBack",
    "Completed",
    "Event",
    "LogAgeAlarm",
    "Lost",
    "Materializer",
    "MaterializerSettings",
    "MaterializerStatistics",
    "RoundCompleted",
    "RoundFailed",
    "RoundLost",
    "RoundOutcome",
    "RoundSkipped",
    "RoundStarted",
    "Skipped",
    "Stopped",
    "install_signal_handlers",
    "run_round",
]
