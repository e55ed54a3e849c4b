"""The materializer: rolls the committed tail into snapshots and truncates the log below them. Serves no state."""

from statelog.materializer.control import Control, install_signal_handlers
from statelog.materializer.daemon import Materializer
from statelog.materializer.events import Event, EventKind
from statelog.materializer.outcome import CompletedRound, LostRound, SkippedRound
from statelog.materializer.publication import claim_root
from statelog.materializer.round import run_round
from statelog.materializer.schedule import Rates
from statelog.materializer.settings import MaterializerSettings
from statelog.materializer.tail import tail_now

__all__ = [
    "CompletedRound",
    "Control",
    "Event",
    "EventKind",
    "LostRound",
    "Materializer",
    "MaterializerSettings",
    "Rates",
    "SkippedRound",
    "claim_root",
    "install_signal_handlers",
    "run_round",
    "tail_now",
]
