"""Rounds on screen: events and outcomes as lines for people and for programs; and the materializer's settings.

Pure: the command itself runs the daemon.
"""

import datetime
import logging
from typing import Any, cast

from statelog.cli.screen.output import Fact, Report, Unit
from statelog.materializer import CompletedRound, Event, LostRound, MaterializerSettings, SkippedRound
from statelog.materializer.outcome import RoundOutcome
from statelog.schemas.snapshot.claims import SubscriptionCap
from statelog.schemas.snapshot.retention import RetentionPolicy
from statelog.storage.config import Config

__all__ = ["event_fields", "event_line", "materializer_settings", "outcome_report"]

_INTERVALS_BEFORE_ALARM = 6


def materializer_settings(config: Config) -> MaterializerSettings:
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
    loud = f"{logging.getLevelName(event.level)}: " if event.level > logging.INFO else ""
    return f"{now.isoformat(timespec='seconds')} {event.log}: {loud}{event.text}"


def event_fields(event: Event, now: datetime.datetime) -> dict[str, object]:
    """An object for programs."""
    return {
        "time": now.isoformat(timespec="milliseconds"),
        "event": event.kind.value,
        "log": event.log,
        **event.facts,
    }
