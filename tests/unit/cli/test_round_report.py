"""Events of a daemon on a screen: the words of its log, with the loud ones marked."""

import datetime

import pytest

from statelog.cli.materialize import event_fields, event_line
from statelog.errors import BrokerUnavailable
from statelog.materializer import Event, EventKind

_NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
_FACTS = {"error": "BrokerUnavailable", "failures_in_a_row": 1, "tolerated": False}
_FAILED = Event(kind=EventKind.ROUND_FAILED, log="l", at_s=0.0, facts=_FACTS, error=BrokerUnavailable("away"))
_STOPPED = Event(kind=EventKind.STOPPED, log="l", at_s=0.0)
_ALARM = Event(kind=EventKind.LOG_AGE_ALARM, log="l", at_s=0.0, facts={"age_s": 9.0})


@pytest.mark.parametrize(
    ("event", "mark"),
    [(_STOPPED, ""), (_FAILED, "WARNING: "), (_ALARM, "ERROR: ")],
)
def test_a_line_says_what_the_log_says(event: Event, mark: str) -> None:
    """Time and log stand before the words, and the level where a person should look."""
    assert event_line(event, _NOW) == f"2026-01-02T03:04:05+00:00 l: {mark}{event.text}"


def test_an_object_says_when_what_and_where_and_the_facts() -> None:
    """What a program reads with `--json`."""
    head = {"time": "2026-01-02T03:04:05.000+00:00", "log": "l"}
    assert event_fields(_ALARM, _NOW) == {**head, "event": "log-age-alarm", "age_s": 9.0}
    assert event_fields(_STOPPED, _NOW) == {**head, "event": "stopped"}
