"""The materializer: rolls the committed tail into snapshots and truncates the log below them. Serves no state."""

from statelog.materializer.daemon.control import Control, install_signal_handlers
from statelog.materializer.daemon.daemon import Materializer
from statelog.materializer.daemon.events import Event, EventKind
from statelog.materializer.daemon.restore_time import Rates, RestoreEstimate, RestoreWork, Speed
from statelog.materializer.daemon.schedule import RoundCause
from statelog.materializer.daemon.statistics import MaterializerStatistics
from statelog.materializer.daemon.tail import Tail, tail_now
from statelog.materializer.engine.engine import Engine, EngineMaker, RoundWork, Written
from statelog.materializer.engine.tasks import FoldTask, MergeTask, Output, Task
from statelog.materializer.round.cleanup import claim_root
from statelog.materializer.round.outcome import (
    CappedSubscription,
    Cleanup,
    CompletedRound,
    LostRound,
    RoundOutcome,
    SkippedRound,
)
from statelog.materializer.round.roll_up import CRASH_POINTS
from statelog.materializer.round.round import run_round
from statelog.materializer.settings import MaterializerSettings

__all__ = [
    "CRASH_POINTS",
    "CappedSubscription",
    "Cleanup",
    "CompletedRound",
    "Control",
    "Engine",
    "EngineMaker",
    "Event",
    "EventKind",
    "FoldTask",
    "LostRound",
    "Materializer",
    "MaterializerSettings",
    "MaterializerStatistics",
    "MergeTask",
    "Output",
    "Rates",
    "RestoreEstimate",
    "RestoreWork",
    "RoundCause",
    "RoundOutcome",
    "RoundWork",
    "SkippedRound",
    "Speed",
    "Tail",
    "Task",
    "Written",
    "claim_root",
    "install_signal_handlers",
    "run_round",
    "tail_now",
]
