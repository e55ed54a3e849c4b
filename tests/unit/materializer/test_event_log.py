"""Events as log lines: what a materializer says where its caller takes no events."""

import logging
from pathlib import Path
from typing import get_args

import pytest

from statelog.errors import BrokerUnavailable
from statelog.materializer import (
    Cleanup,
    CleanupHeldBack,
    Event,
    LogAgeAlarm,
    Materializer,
    OffsetUnpublished,
    RestoreBudgetOutOfReach,
    RoundCause,
    RoundEndedLate,
    RoundFailed,
    RoundStarted,
    Started,
    Stopped,
    SubscriptionCapped,
    run_round,
)
from statelog.materializer.daemon.event_log import log_event
from statelog.materializer.daemon.events import RoundCompleted, RoundLost, RoundSkipped
from statelog.materializer.round.outcome import CompletedRound, LostRound, SkippedRound
from tests.support.rigs.log import TwinLog, settings_for

_LOGGER = "statelog.materializer"
_DONE = CompletedRound(
    number=2, position=9, commits=1, changes=1, rows=1, size_bytes=1, read_back_s=0.0, replayed_bytes=1, replay_s=0.0,
    snapshot_bytes=1, runs_merged=0, duration_s=0.0, behind=False, cleanup=Cleanup(held_back=""), unpublished="",
)  # fmt: skip
_EVENTS: tuple[tuple[Event, int, str], ...] = (
    (Started(log="l", at_s=0.0, first_round_s=5.0), logging.INFO, "first round in 5.0 s"),
    (RoundStarted(log="l", at_s=0.0, cause=RoundCause.TRIGGER), logging.INFO, "round started (trigger)"),
    (RoundCompleted(log="l", at_s=0.0, outcome=_DONE), logging.INFO, "manifest 2 at position 9"),
    (RoundSkipped(log="l", at_s=0.0, outcome=SkippedRound(number=2, position=9)), logging.INFO, "position 9"),
    (RoundLost(log="l", at_s=0.0, outcome=LostRound(number=3)), logging.INFO, "manifest 3"),
    (
        RoundFailed(log="l", at_s=0.0, error=BrokerUnavailable("away"), failures_in_a_row=2, tolerated=True),
        logging.WARNING,
        "2 in a row, going on: away",
    ),
    (RoundEndedLate(log="l", at_s=0.0, outcome=None), logging.INFO, "before its put"),
    (CleanupHeldBack(log="l", at_s=0.0, reason="a run"), logging.WARNING, "held back, the log grows: a run"),
    (OffsetUnpublished(log="l", at_s=0.0, reason="no right"), logging.WARNING, "nothing else depends on it: no right"),
    (LogAgeAlarm(log="l", at_s=0.0, age_s=70.0), logging.ERROR, "70.0 s ago"),
    (
        RestoreBudgetOutOfReach(log="l", at_s=0.0, snapshot_s=9.0, budget_s=8.0),
        logging.WARNING,
        "about 9.0 s of 8.0 s",
    ),
    (SubscriptionCapped(log="l", at_s=0.0, reader="r", reason="idle"), logging.ERROR, "of reader r was ended: idle"),
    (Stopped(log="l", at_s=0.0), logging.INFO, "stopped"),
)


@pytest.mark.parametrize(("event", "level", "text"), _EVENTS, ids=lambda value: type(value).__name__)
def test_an_event_is_a_line(event: Event, level: int, text: str, caplog: pytest.LogCaptureFixture) -> None:
    """Alarms are errors, what a person should know is a warning, the rest information; each names the log."""
    with caplog.at_level(logging.INFO, logger=_LOGGER):
        log_event(event)
    ((name, found, line),) = caplog.record_tuples
    assert (name, found, line.startswith("l: "), text in line) == (_LOGGER, level, True, True), line


def test_every_event_has_its_line() -> None:
    """None is left to the words of another."""
    assert {type(event) for event, _, _ in _EVENTS} == set(get_args(Event))


def test_a_daemon_without_a_listener_logs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing that it does goes unsaid because nobody asked for events."""
    daemon = Materializer(TwinLog(partitions=1).open(), settings_for(tmp_path))
    daemon.stop()
    with caplog.at_level(logging.INFO, logger=_LOGGER):
        daemon.run()
    assert [line.rpartition(": ")[2].partition(",")[0] for line in caplog.messages] == [
        "materializer started", "materializer stopped",
    ]  # fmt: skip


def test_a_round_logs_what_it_could_not_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever drops the outcome of a round finds in the log that lag tools are behind."""
    twin = TwinLog(partitions=1)
    twin.write({b"a": b"1"})
    log = twin.open()

    def refused(*_: object) -> None:
        raise BrokerUnavailable("no group")

    monkeypatch.setattr(log.kafka, "publish_offset", refused)
    run_round(log, settings_for(tmp_path), seams=twin.seams)
    ((name, level, line),) = caplog.record_tuples
    assert (name, level, "no group" in line) == (_LOGGER, logging.WARNING, True)
