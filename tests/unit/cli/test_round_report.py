"""Events of a daemon appear on a screen in the words of its log, with the important ones marked."""

import datetime
import subprocess
import sys
from pathlib import Path

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
    """Time and log come before the words, and the level where a person should look."""
    assert event_line(event, _NOW) == f"2026-01-02T03:04:05+00:00 l: {mark}{event.text}"


def test_an_object_says_when_what_and_where_and_the_facts() -> None:
    """With `--json`, an event is an object with its kind, time, log and facts."""
    head = {"time": "2026-01-02T03:04:05.000+00:00", "log": "l"}
    assert event_fields(_ALARM, _NOW) == {**head, "event": "log-age-alarm", "age_s": 9.0}
    assert event_fields(_STOPPED, _NOW) == {**head, "event": "stopped"}


_FULL = """
import sys, threading
from statelog.cli.materialize import EventLines
from statelog.cli.output import CliOutput
from statelog.materializer import Control, Event, EventKind

control = Control()
lines = EventLines(CliOutput(as_json=False), control)
told = threading.Thread(target=lines.tell, args=(Event(kind=EventKind.STOPPED, log="l", at_s=0.0),))
told.start()
told.join()
assert control.is_stopped
lines.check()
"""


def test_a_full_disk_behind_its_events_stops_a_daemon() -> None:
    """A full disk behind the events stops the daemon, whichever thread reports one.

    A silent watchdog would alarm no more.
    """
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", _FULL], stdout=full, stderr=subprocess.PIPE, check=False, timeout=60
        )
    assert done.stderr.endswith(b"OSError: [Errno 28] No space left on device\n")
    assert done.stderr.count(b"Traceback") == 1, done.stderr
