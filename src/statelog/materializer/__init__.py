"""The materializer: rolls the committed tail into snapshots and truncates the log below them. Serves no state."""

from statelog.materializer.daemon.control import Control, install_signal_handlers
from statelog.materializer.daemon.daemon import Materializer
from statelog.materializer.daemon.events import Event, EventKind
from statelog.materializer.daemon.restore_time import Rates
from statelog.materializer.daemon.statistics import MaterializerStatistics
from statelog.materializer.daemon.tail import tail_now
from statelog.materializer.round.cleanup import claim_root
from statelog.materializer.round.outcome import (
    CompletedRound,
    LostRound,
    SkippedRound,
)
from statelog.materializer.round.round import run_round
from statelog.materializer.settings import MaterializerSettings

__all__ = [
    "CompletedRound",
    "Control",
    "Event",
    "EventKind",
    "LostRound",
    "Materializer",
    "MaterializerSettings",
    "MaterializerStatistics",
    "Rates",
    "SkippedRound",
    "claim_root",
    "install_signal_handlers",
    "run_round",
    "tail_now",
]
