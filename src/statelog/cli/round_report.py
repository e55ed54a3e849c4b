"""Rounds on screen: events and outcomes as lines for people and for programs; and the materializer's settings.

Pure: the command itself runs the daemon.
"""

import datetime
import logging
from dataclasses import asdict
from typing import Any, cast

from statelog.cli.config.merge import CliConfig
from statelog.cli.screen.output import Fact, Report, Unit
from statelog.materializer import CompletedRound, Event, LostRound, MaterializerSettings, RoundOutcome, SkippedRound
from statelog.materializer.daemon.event_log import event_level, event_text
from statelog.materializer.daemon.events import (
    CleanupHeldBack,
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
from statelog.schemas.snapshot.retention import RetentionPolicy
from statelog.schemas.snapshot.subscription import SubscriptionCap

__all__ = ["event_fields", "event_line", "materializer_settings", "outcome_report"]

_INTERVALS_BEFORE_ALARM = 6


def materializer_settings(config: CliConfig) -> MaterializerSettings:
    """The settings of the configuration. An alarm age that was not set follows a long interval. Raises ConfigError."""
    given = dict(config.materializer)
    given.pop("engine", None)  # Who works is no setting of the rounds.
    retention = {name: given.pop(name) for name in ("keep", "min_age_s") if name in given}
    if "alarm_age_s" not in given and "interval_s" in given:
        usual = MaterializerSettings().alarm_age_s
        given["alarm_age_s"] = max(usual, _INTERVALS_BEFORE_ALARM * cast("float", given["interval_s"]))
    cap = {name: given.pop(f"subscription_{name}") for name in ("idle_s", "records") if f"subscription_{name}" in given}
    return MaterializerSettings(
        **cast("dict[str, Any]", given),
        retention=RetentionPolicy(**cast("dict[str, Any]", retention)),
        subscriptions=SubscriptionCap(**cast("dict[str, Any]", cap)),
    )


def outcome_report(log: str, outcome: RoundOutcome) -> Report:
    """How one round ended."""
    match outcome:
        case CompletedRound():
            return Report(f"round on {log}", (Fact("outcome", "completed"), *_completed(outcome)))
        case SkippedRound():
            facts = (Fact("manifest", outcome.number, Unit.COUNT), Fact("position", outcome.position, Unit.COUNT))
            return Report(f"round on {log}: nothing new", (Fact("outcome", "skipped"), *facts))
        case LostRound():
            facts = (Fact("outcome", "lost"), Fact("manifest", outcome.number, Unit.COUNT))
            return Report(f"round on {log}: another materializer was faster", facts)


def _completed(outcome: CompletedRound) -> tuple[Fact, ...]:
    cleanup = outcome.cleanup
    return (
        Fact("manifest", outcome.number, Unit.COUNT),
        Fact("position", outcome.position, Unit.COUNT),
        Fact("commits", outcome.commits, Unit.COUNT),
        Fact("changes", outcome.changes, Unit.COUNT),
        Fact("rows", outcome.rows, Unit.COUNT),
        Fact("size_bytes", outcome.size_bytes, Unit.BYTES),
        Fact("runs_merged", outcome.runs_merged, Unit.COUNT),
        Fact("duration_s", outcome.duration_s, Unit.SECONDS),
        Fact("behind", outcome.behind),
        Fact("snapshot_bytes", outcome.snapshot_bytes, Unit.BYTES),
        Fact("records_truncated", cleanup.records_truncated, Unit.COUNT),
        Fact("records_left", cleanup.records_left, Unit.COUNT),
        Fact("held_by", cleanup.held_by or None),
        Fact("manifests_dropped", cleanup.manifests_dropped, Unit.COUNT),
        Fact("files_deleted", cleanup.files_deleted, Unit.COUNT),
        Fact("subscriptions_ended", ", ".join(one.reader for one in cleanup.capped) or None),
        Fact("cleanup_held_back", cleanup.held_back or None),
        Fact("unpublished", outcome.unpublished or None),
    )


def event_line(event: Event, now: datetime.datetime) -> str:
    """A line for people; WARNING or ERROR stands before what a person should look at."""
    level = event_level(event)
    loud = f"{logging.getLevelName(level)}: " if level > logging.INFO else ""
    return f"{now.isoformat(timespec='seconds')} {event.log}: {loud}{event_text(event)}"


def event_fields(event: Event, now: datetime.datetime) -> dict[str, object]:
    """An object for programs."""
    head: dict[str, object] = {"time": now.isoformat(timespec="milliseconds"), "event": _name(event), "log": event.log}
    match event:
        case Started():
            return {**head, "first_round_s": event.first_round_s}
        case RoundStarted():
            return {**head, "cause": event.cause.value}
        case RoundCompleted() | RoundSkipped() | RoundLost():
            return {**head, **asdict(event.outcome)}
        case RoundEndedLate():
            return {**head, "counts": event.outcome is not None}
        case RoundFailed():
            error = event.error
            return {
                **head,
                "error": type(error).__name__,
                "message": error.message,
                "facts": dict(error.facts),
                "failures_in_a_row": event.failures_in_a_row,
                "tolerated": event.tolerated,
            }
        case CleanupHeldBack() | OffsetUnpublished():
            return {**head, "reason": event.reason}
        case SubscriptionCapped():
            return {**head, "reader": event.reader, "reason": event.reason}
        case LogAgeAlarm():
            return {**head, "age_s": event.age_s}
        case RestoreBudgetOutOfReach():
            return {**head, "snapshot_s": event.snapshot_s, "budget_s": event.budget_s}
        case _:
            return head


def _name(event: Event) -> str:
    """`RoundCompleted` is `round-completed`."""
    name = type(event).__name__
    return "".join(f"-{one.lower()}" if one.isupper() else one for one in name).removeprefix("-")
