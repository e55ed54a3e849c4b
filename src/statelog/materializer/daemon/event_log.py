"""Events in words: one wording for log lines and for screens, and how loud each is.

info     a round started, completed, was skipped or lost; the daemon started or stopped
warning  a round failed, or what it did is not all that it should
error    an alarm: changes stay out of every snapshot for too long; a reader's subscription was ended

A daemon logs its events under `statelog.materializer` unless its caller takes them.
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
    SubscriptionCapped,
)
from statelog.materializer.round.outcome import CompletedRound
from statelog.quantities import show_bytes, show_count, show_duration

__all__ = ["event_level", "event_text", "log_event"]

_LOG = logging.getLogger("statelog.materializer")


def log_event(event: Event) -> None:
    """Log an event, with the log's name."""
    _LOG.log(event_level(event), "%s: %s", event.log, event_text(event))


def event_level(event: Event) -> int:
    """The level of `logging` that suits an event."""
    match event:
        case LogAgeAlarm() | SubscriptionCapped():
            return logging.ERROR
        case RoundFailed() | CleanupHeldBack() | OffsetUnpublished() | RestoreBudgetOutOfReach():
            return logging.WARNING
        case _:
            return logging.INFO


def event_text(event: Event) -> str:
    """An event in one line, without the name of its log."""
    match event:
        case Started():
            return f"materializer started, first round in {show_duration(event.first_round_s)}"
        case RoundStarted():
            return f"round started ({event.cause})"
        case RoundCompleted():
            return f"round completed: {_completed(event.outcome)}"
        case RoundSkipped():
            return f"round skipped: nothing new since position {event.outcome.position}"
        case RoundLost():
            number = event.outcome.number
            return f"round lost: another materializer put manifest {number} first; is a second one running?"
        case RoundFailed():
            goes_on = "going on" if event.tolerated else "giving up"
            return f"round failed, {event.failures_in_a_row} in a row, {goes_on}: {event.error}"
        case RoundEndedLate():
            return "a round that was given up has ended " + ("well, and counts" if event.outcome else "before its put")
        case CleanupHeldBack():
            return f"cleanup held back, the log grows: {event.reason}"
        case OffsetUnpublished():
            return f"the position for Kafka's lag tools was not published; nothing else depends on it: {event.reason}"
        case SubscriptionCapped() | LogAgeAlarm():
            return _alarm(event)
        case RestoreBudgetOutOfReach():
            return (
                f"restore budget out of reach: the snapshot alone takes about {show_duration(event.snapshot_s)} of"
                f" {show_duration(event.budget_s)}; restore parts on several workers, or allow more time"
            )
        case _:
            return "materializer stopped"


def _completed(outcome: CompletedRound) -> str:
    return (
        f"manifest {outcome.number} at position {outcome.position}, {show_count(outcome.changes)} changes of"
        f" {show_count(outcome.commits)} commits, {show_bytes(outcome.size_bytes)} written,"
        f" {show_count(outcome.cleanup.records_truncated)} records truncated, in {show_duration(outcome.duration_s)}"
        f"{', more to do' if outcome.behind else ''}"
    )


def _alarm(event: SubscriptionCapped | LogAgeAlarm) -> str:
    if isinstance(event, LogAgeAlarm):
        return f"no snapshot holds what was committed {show_duration(event.age_s)} ago"
    return f"the subscription of reader {event.reader} was ended: {event.reason}"
