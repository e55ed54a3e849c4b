"""The verdict on a log, for `list`, `describe` and the page: whether rounds keep up with it."""

from dataclasses import replace

import pytest

from statelog.formatting import show_counted
from statelog.materializer import MaterializerSettings
from statelog.materializer.tail import Tail
from statelog.operate.finding import Severity
from statelog.operate.log_checks import of_rounds
from statelog.operate.report import shown

_SETTINGS = MaterializerSettings(restore_budget_s=30.0)
_EMPTY = Tail(number=0, position=0, snapshot_bytes=0)
_ROLLED = Tail(number=3, position=9, snapshot_bytes=100)


def _with_commits(tail: Tail, age_s: float) -> Tail:
    return replace(tail, commits=2, changes=5, looked_s=10_000.0, oldest_s=10_000.0 - age_s)


@pytest.mark.parametrize(
    ("tail", "restore_s", "verdict"),
    [
        (_EMPTY, 0.0, (Severity.OK, "empty")),
        (_ROLLED, 0.1, (Severity.OK, "ok")),
        (_with_commits(_ROLLED, 3599.0), 29.9, (Severity.OK, "ok")),
        (_with_commits(_EMPTY, 5.0), 0.1, (Severity.NOTE, "no round was seen")),
        (_ROLLED, 30.0, (Severity.NOTE, "a restore takes 30.0 s")),
        (_with_commits(_EMPTY, 3600.0), 0.1, (Severity.REFUSED, "in no snapshot for 1 h 0 min")),
        (_with_commits(_ROLLED, 7200.0), 99.0, (Severity.REFUSED, "in no snapshot for 2 h 0 min")),
    ],
)
def test_a_log_that_nobody_rolls_up_is_not_ok(tail: Tail, restore_s: float, verdict: tuple[Severity, str]) -> None:
    """OK requires a snapshot, a tail younger than the alarm, and a restore within its budget.

    Otherwise there is a hint.
    """
    found = of_rounds(tail, restore_s, _SETTINGS)
    assert (found.severity, found.found) == verdict
    assert bool(found.hint) == (found.severity is not Severity.OK)


def test_limits_are_those_of_the_daemon() -> None:
    """The daemon's limits apply: with a longer alarm age and no budget, the same log is OK."""
    late = _with_commits(_ROLLED, 7200.0)
    assert of_rounds(late, 99.0, MaterializerSettings(alarm_age_s=7201.0)).found == "ok"


def test_an_estimate_is_not_shown_finer_than_it_is() -> None:
    """A restore estimate below a second is shown as that, since opening takes longer. Other durations are exact."""
    assert shown("restore_estimate_s", 0.000028) == "< 1 s"
    assert shown("restore_estimate_s", 1.5) == "1.5 s"
    assert shown("lag_age_s", 0.5) == "500 ms"


def test_times_of_reports_read_alike() -> None:
    """Times have one format for people. A text that is no time is unchanged."""
    text = "2026-11-24T23:22:57+00:00"
    assert shown("manifest_time", text) == shown("renewed", text) == "2026-11-24 23:22:57 UTC"
    assert shown("value", text) == text


def test_one_is_not_many() -> None:
    """A count of one is singular."""
    assert [show_counted(number, "change") for number in (0, 1, 2000)] == ["0 changes", "1 change", "2,000 changes"]
