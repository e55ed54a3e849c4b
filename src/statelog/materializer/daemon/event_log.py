"""Events as log lines of `statelog.materializer`: what a daemon does with them unless its caller takes them.

info     a round started, completed, was skipped or lost; the daemon started or stopped
warning  a round failed, or what it did is not all that it should
error    an alarm: changes stay out of every snapshot for too long
"""

import logging

from statelog.materializer.daemon.events import (
    CleanupHeldBack,
    Event,
    LogAgeAlarm,
    OffsetUnpublished,
    RestoreBudgetOutOfReach,
    RoundCompleted,
    RoundEndedLate,
    RoundFailed,
    RoundLost,
    RoundSkipped,
    RoundStarted,
    Started,
)

__all__ = ["log_event"]

_LOG = logging.getLogger("statelog.materializer")


def log_event(event: Event) -> None:
    """Log an event, with the log's name."""
    _LOG.log(_level(event), "%s: %s", event.log, _text(event))


def _level(event: Event) -> int:
    match event:
        case LogAgeAlarm():
            return logging.ERROR
        case RoundFailed() | CleanupHeldBack() | OffsetUnpublished() | RestoreBudgetOutOfReach():
            return logging.WARNING
        case _:
            return logging.INFO


def _text(event: Event) -> str:
    match event:
        case Started():
            return f"materializer started, first round in {event.first_round_s:.0f} s"
        case RoundStarted():
            return f"round started ({event.cause})"
        case RoundCompleted():
            return f"round completed: manifest {event.outcome.number} at position {event.outcome.position}"
        case RoundSkipped():
            return f"round skipped: nothing new since position {event.outcome.position}"
        case RoundLost():
            return f"round lost: another materializer put manifest {event.outcome.number}"
        case RoundFailed():
            return f"round failed, {event.failures_in_a_row} in a row: {event.error}"
        case RoundEndedLate():
            return f"a round that was given up has ended: {event.outcome or 'without an outcome'}"
        case CleanupHeldBack():
            return f"cleanup held back, the log grows: {event.reason}"
        case OffsetUnpublished():
            return f"the position for Kafka's lag tools was not published: {event.reason}"
        case LogAgeAlarm():
            return f"no snapshot holds what was committed {event.age_s:.0f} s ago"
        case RestoreBudgetOutOfReach():
            return f"the snapshot alone takes {event.snapshot_s:.0f} s to restore, the budget is {event.budget_s:.0f} s"
        case _:
            return "materializer stopped"
