"""`Event`: a report of a daemon to its caller: a value with a text and a log level. The daemon's statistics count them.

`on_event` must be quick and must not raise. It is called on the daemon's thread, except for LOG_AGE_ALARM, which comes
from the watchdog's. By default events are logged under `statelog.materializer`.

    info     a round started, completed, was skipped or lost; the daemon started or stopped
    warning  a round failed, or could not do everything
    error    an alarm: changes stay out of every snapshot for too long; Kafka deletes committed records; a reader's
             subscription was ended
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from statelog.errors import StatelogError
from statelog.formatting import show_bytes, show_count, show_duration
from statelog.materializer.outcome import CompletedRound, LostRound, RoundOutcome

_LOG = logging.getLogger("statelog.materializer")


class EventKind(StrEnum):
    """The kinds of events, with their facts."""

    STARTED = "started"
    """The daemon runs; its first round begins in `first_round_s` seconds, or earlier on request."""
    ROUND_STARTED = "round-started"
    """A round begins; `cause` is a `RoundCause`."""
    ROUND_COMPLETED = "round-completed"
    """A round put its manifest; the facts are the fields of its `outcome`, a `CompletedRound`."""
    ROUND_SKIPPED = "round-skipped"
    """There was nothing new; the facts are the fields of its `outcome`, a `SkippedRound`."""
    ROUND_LOST = "round-lost"
    """Another materializer was faster; the `outcome` is a `LostRound`. If this is frequent, two are running."""
    ROUND_FAILED = "round-failed"
    """A round failed with `Event.error`, the `failures_in_a_row`-th in a row. The facts have the class of the `error`,
    its `message` and its `facts`; `tolerated` says whether the daemon continues.
    """
    ROUND_ENDED_LATE = "round-ended-late"
    """A round that was given up has ended. `counts` says whether it has an `outcome`, which is then reported, too."""
    CLEANUP_HELD_BACK = "cleanup-held-back"
    """A round completed but removed nothing, for this `reason`. The log grows until the reason is resolved."""
    SUBSCRIPTION_CAPPED = "subscription-capped"
    """A round ended the subscription of a `reader` that was over the cap, for this `reason`. The next rounds truncate
    what it held.
    """
    OFFSET_UNPUBLISHED = "offset-unpublished"
    """A round completed, but its position could not be published, for this `reason`. Only lag tools are affected."""
    NEED_AGING = "need-aging"
    """Kafka deletes records of the log's topics after `retention_s`. The record at `topic`, `partition` and `offset`,
    which `held_by` still needs, is `age_s` old, more than half of that, or it `is_gone`.
    """
    TOPICS_DELETE = "topics-delete"
    """Kafka deletes committed records, because of changed topic settings that this `reason` names. The round completed
    or was skipped; open writers warn, and none can be opened.
    """
    LOG_AGE_ALARM = "log-age-alarm"
    """Changes committed `age_s` seconds ago are in no snapshot, or the log has been unreachable for that long.
    Repeated each time another `alarm_age_s` has passed.
    """
    RESTORE_BUDGET_OUT_OF_REACH = "restore-budget-out-of-reach"
    """The newest snapshot alone takes `snapshot_s` to restore, longer than `budget_s`, so more rounds do not help. A
    larger budget, a faster store, less state, or several workers that each restore a part do. Reported once, and again
    if the budget could be met in between.
    """
    LOG_SET_ASIDE = "log-set-aside"
    """In a fleet, this log's rounds ended with `Event.error`, or it could not be opened. It is opened again after
    `retry_s`; the other logs continue. The facts have the class of the `error`, its `message` and its `facts`.
    """
    LOG_GONE = "log-gone"
    """In a fleet, this log was deleted, or does not exist yet."""
    DRILLED = "drilled"
    """A drill restored the newest state in `restored_s`: `rows` at a `position`. They are equal to the same state read
    another way, `compared_with`, if there is one. The drill skipped `damaged_snapshots`.
    """
    DRILL_FAILED = "drill-failed"
    """A drill ended with `Event.error`: a restore would fail, too, or two ways to read one state differ. The facts have
    the class of the `error`, its `message` and its `facts`.
    """
    STOPPED = "stopped"
    """The daemon ends. No round is in flight, except those that were given up and hang."""


_SHOWN = {
    EventKind.STARTED: (logging.INFO, "materializer started, first round in {first_round_s}"),
    EventKind.ROUND_STARTED: (logging.INFO, "round started ({cause})"),
    EventKind.ROUND_COMPLETED: (
        logging.INFO,
        "round completed: manifest {number} at position {position}, {changes} changes of {commits} commits,"
        " {size_bytes} written, {truncated} records truncated, in {duration_s}{more}",
    ),
    EventKind.ROUND_SKIPPED: (logging.INFO, "round skipped: nothing new since position {position}"),
    EventKind.ROUND_LOST: (
        logging.INFO,
        "round lost: another materializer put manifest {number} first; is a second one running?",
    ),
    EventKind.ROUND_FAILED: (logging.WARNING, "round failed, {failures_in_a_row} in a row, {goes_on}: {error}"),
    EventKind.ROUND_ENDED_LATE: (logging.INFO, "a round that was given up has ended {how}"),
    EventKind.CLEANUP_HELD_BACK: (logging.WARNING, "cleanup held back, the log grows: {reason}"),
    EventKind.SUBSCRIPTION_CAPPED: (logging.ERROR, "the subscription of reader {reader} was ended: {reason}"),
    EventKind.OFFSET_UNPUBLISHED: (
        logging.WARNING,
        "the position for Kafka's lag tools was not published; nothing else depends on it: {reason}",
    ),
    EventKind.NEED_AGING: (
        logging.ERROR,
        "{held_by} needs a record of {topic}[{partition}] that is {how}, and Kafka deletes records after {retention_s}",
    ),
    EventKind.TOPICS_DELETE: (logging.ERROR, "Kafka deletes what is committed, correct the topics at once: {reason}"),
    EventKind.LOG_AGE_ALARM: (logging.ERROR, "no snapshot holds what was committed {age_s} ago"),
    EventKind.RESTORE_BUDGET_OUT_OF_REACH: (
        logging.WARNING,
        "restore budget out of reach: the snapshot alone takes about {snapshot_s} of {budget_s}; restore parts on"
        " several workers, or allow more time",
    ),
    EventKind.LOG_SET_ASIDE: (logging.ERROR, "set aside, to be opened again in {retry_s}: {error}"),
    EventKind.LOG_GONE: (logging.INFO, "there is no such log any more, or not yet"),
    EventKind.DRILLED: (
        logging.INFO,
        "drill: {rows} rows restored in {restored_s}, compared with {compared_with};"
        " damaged snapshots: {damaged_snapshots}",
    ),
    EventKind.DRILL_FAILED: (logging.ERROR, "a drill failed, and so would a restore: {error}"),
    EventKind.STOPPED: (logging.INFO, "materializer stopped"),
}
"""The log level and the text of each kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event of one log, at so many seconds on the daemon's clock. `facts` are those of its kind.

    `outcome` is set if a round ended well, `error` if it failed.
    """

    kind: EventKind
    log: str
    at_s: float
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    outcome: RoundOutcome | None = None
    error: StatelogError | None = None

    @property
    def level(self) -> int:
        """The level for `logging`."""
        return _SHOWN[self.kind][0]

    @property
    def text(self) -> str:
        """The event in one line, without the name of its log."""
        facts: dict[str, Any] = {
            name: show_duration(fact) if name.endswith("_s") else fact for name, fact in self.facts.items()
        }
        match self.kind:
            case EventKind.ROUND_COMPLETED:
                facts |= {name: show_count(facts[name]) for name in ("changes", "commits")}
                facts["size_bytes"] = show_bytes(facts["size_bytes"])
                facts["truncated"] = show_count(facts["cleanup"]["records_truncated"])
                facts["more"] = ", more to do" if facts["behind"] else ""
            case EventKind.ROUND_FAILED:
                facts |= {"error": self.error, "goes_on": "going on" if facts["tolerated"] else "giving up"}
            case EventKind.LOG_SET_ASIDE | EventKind.DRILL_FAILED:
                facts["error"] = self.error
            case EventKind.NEED_AGING:
                facts["how"] = "gone" if facts["is_gone"] else f"{facts['age_s']} old"
            case EventKind.ROUND_ENDED_LATE:
                facts["how"] = "well, and counts" if facts["counts"] else "before its put"
            case _:
                pass
        return _SHOWN[self.kind][1].format(**facts)


def error_facts(error: StatelogError) -> dict[str, Any]:
    """Return the facts of an event that reports the error."""
    return {"error": type(error).__name__, "message": error.message, "facts": dict(error.facts)}


def shown_error(error: StatelogError) -> str:
    """Return an error in one line."""
    return f"{error.message} [{type(error).__name__}]"


def shortfalls(log: str, outcome: RoundOutcome, at_s: float) -> Iterator[Event]:
    """Yield events for the shortfalls of a round that ended well: Kafka's deletions, and an incomplete cleanup."""
    if not isinstance(outcome, LostRound) and outcome.deletions:
        yield Event(kind=EventKind.TOPICS_DELETE, log=log, at_s=at_s, facts={"reason": outcome.deletions})
    if isinstance(outcome, CompletedRound):
        if reason := outcome.cleanup.held_back:
            yield Event(kind=EventKind.CLEANUP_HELD_BACK, log=log, at_s=at_s, facts={"reason": reason})
        for one in outcome.cleanup.capped:
            yield Event(kind=EventKind.SUBSCRIPTION_CAPPED, log=log, at_s=at_s, facts=asdict(one))
        oldest = outcome.cleanup.oldest_need
        if oldest is not None and oldest.is_alarming:
            yield Event(kind=EventKind.NEED_AGING, log=log, at_s=at_s, facts=asdict(oldest))
        if reason := outcome.unpublished:
            yield Event(kind=EventKind.OFFSET_UNPUBLISHED, log=log, at_s=at_s, facts={"reason": reason})


def log_event(event: Event) -> None:
    """Log an event, with the log's name."""
    _LOG.log(event.level, "%s: %s", event.log, event.text)
