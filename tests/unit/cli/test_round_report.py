"""Events of a daemon on a screen: the words of its log, with the loud ones marked."""

import datetime

import pytest

from statelog.cli.round_report import event_line
from statelog.errors import BrokerUnavailable
from statelog.materializer import Event, LogAgeAlarm, RoundFailed, Stopped
from statelog.materializer.daemon.event_log import event_text

_NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
_FAILED = RoundFailed(log="l", at_s=0.0, error=BrokerUnavailable("away"), failures_in_a_row=1, tolerated=False)


@pytest.mark.parametrize(
    ("event", "mark"),
    [(Stopped(log="l", at_s=0.0), ""), (_FAILED, "WARNING: "), (LogAgeAlarm(log="l", at_s=0.0, age_s=9.0), "ERROR: ")],
)
def test_a_line_says_what_the_log_says(event: Event, mark: str) -> None:
    """Time and log stand before the words, and the level where a person should look."""
    assert event_line(event, _NOW) == f"2026-01-02T03:04:05+00:00 l: {mark}{event_text(event)}"
