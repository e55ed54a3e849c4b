"""The materializer: rounds that roll the committed tail into snapshots, and truncate what they cover. Serves no state."""

from statelog.materializer.daemon import Materializer, MaterializerStatistics
from statelog.materializer.events import Event
from statelog.materializer.outcome import CleanUp, Completed, Lost, RoundOutcome, Skipped
from statelog.materializer.round import run_round
from statelog.materializer.settings import MaterializerSettings
from statelog.materializer.signals import install_signal_handlers

__all__ = [
    "CleanUp",
    "Completed",
    "Event",
    "Lost",
    "Materializer",
    "MaterializerSettings",
    "MaterializerStatistics",
    "RoundOutcome",
    "Skipped",
    "install_signal_handlers",
    "run_round",
]
