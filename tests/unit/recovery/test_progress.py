"""Progress never promises what it cannot know, and never goes past the end."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statelog.environment import Environment
from statelog.reading.replay import ReadCount
from statelog.recovery.plan_reader import Phase
from statelog.recovery.progress import Monitor, Progress


def _report(bytes_done: int, elapsed_s: float, loaded: float = 0.0, *, bytes_total: int = 1000) -> Progress:
    return Progress(
        phase=Phase.READ,
        bytes_done=bytes_done,
        bytes_total=bytes_total,
        changes_done=5,
        changes_total=10,
        loaded=loaded,
        elapsed_s=elapsed_s,
    )


def test_rate_and_remaining_time_follow_from_what_was_done() -> None:
    """Half of the bytes in two seconds are 250 bytes a second. Loading takes as much again, so six seconds remain."""
    progress = _report(500, 2.0)
    assert (progress.rate_bytes_s, progress.eta_s, progress.fraction) == (250.0, 6.0, 0.25)


def test_what_was_read_is_not_done_before_it_was_loaded() -> None:
    """Reading all bytes is half of the work. Loading half of the key groups makes three quarters."""
    assert (_report(1000, 2.0).fraction, _report(1000, 2.0).eta_s) == (0.5, 2.0)
    assert _report(1000, 3.0, 0.5).fraction == pytest.approx(0.75)
    assert _report(1000, 4.0, 1.0).eta_s == pytest.approx(0.0)


def test_before_the_first_byte_nothing_is_promised() -> None:
    """Without a byte or without time, no remaining time is given."""
    assert _report(0, 5.0).eta_s is None
    assert _report(0, 0.0).eta_s is None


def test_an_empty_log_is_done_at_once() -> None:
    """An empty log is done at once, and no time remains."""
    progress = _report(0, 0.0, 1.0, bytes_total=0)
    assert (progress.fraction, progress.eta_s) == (1.0, 0.0)


@given(st.integers(0, 5000), st.floats(-10, 1e6), st.floats(0, 2))
def test_a_report_is_never_past_the_end(bytes_done: int, elapsed_s: float, loaded: float) -> None:
    """Whatever the counts and the clock, done stays below the total and no time is negative."""
    progress = _report(bytes_done, elapsed_s, loaded)
    assert 0 <= progress.bytes_done <= progress.bytes_total
    assert 0 <= progress.fraction <= 1
    assert progress.rate_bytes_s >= 0
    assert progress.elapsed_s >= 0
    assert progress.eta_s is None or progress.eta_s >= 0


def test_reports_are_due_by_interval_and_by_phase() -> None:
    """A report is due after the interval, and at once when the phase changes."""
    now_s, told = [100.0], list[Phase]()
    held: Any = SimpleNamespace(environment=Environment(clock=lambda: now_s[0]))
    reader: Any = SimpleNamespace(
        runs_read=ReadCount(), tail_read=ReadCount(), plan=SimpleNamespace(size_bytes=1000, changes=10)
    )
    monitor = Monitor(held, lambda progress: told.append(progress.phase), 1.0)
    monitor.begin()
    due: list[bool] = []
    for now_s[0], phase in ((100.5, Phase.READ), (101.0, Phase.READ), (101.5, Phase.READ), (102.0, Phase.READ)):
        before = len(told)
        monitor.report(reader, phase, 0.0)
        due.append(len(told) > before)
    assert due == [False, True, False, True]
    for now_s[0] in (102.1, 102.2):
        monitor.report(reader, Phase.LOAD, 0.0)
    assert told == [Phase.READ, Phase.READ, Phase.LOAD]


def test_a_clock_that_stands_still_divides_by_nothing() -> None:
    """Bytes without elapsed time have no rate."""
    assert _report(500, 0.0).rate_bytes_s == pytest.approx(0.0)
