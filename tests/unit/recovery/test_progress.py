"""Progress never promises what it cannot know, and never goes past the end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statelog.recovery.reading.progress import Phase, Progress, ProgressTracker


def _tracker(*, bytes_total: int = 1000, interval_s: float = 1.0) -> ProgressTracker:
    return ProgressTracker(bytes_total=bytes_total, changes_total=10, started_s=100.0, interval_s=interval_s)


def _report(tracker: ProgressTracker, bytes_done: int, now_s: float, loaded: float = 0.0) -> Progress:
    return tracker.report(Phase.READ, bytes_done=bytes_done, changes_done=5, loaded=loaded, now_s=now_s)


def test_rate_and_remaining_time_follow_from_what_was_done() -> None:
    """Half of the bytes in two seconds is 250 bytes a second; loading is as much again, so six seconds are left."""
    progress = _report(_tracker(), 500, 102.0)
    assert (progress.rate_bytes_s, progress.eta_s, progress.fraction) == (250.0, 6.0, 0.25)


def test_what_was_read_is_not_done_before_it_was_loaded() -> None:
    """All bytes are half of the whole; with them, half of the key groups are three quarters."""
    assert (_report(_tracker(), 1000, 102.0).fraction, _report(_tracker(), 1000, 102.0).eta_s) == (0.5, 2.0)
    assert _report(_tracker(), 1000, 103.0, 0.5).fraction == pytest.approx(0.75)
    assert _report(_tracker(), 1000, 104.0, 1.0).eta_s == pytest.approx(0.0)


def test_before_the_first_byte_nothing_is_promised() -> None:
    """Without a byte or without time there is no remaining time."""
    assert _report(_tracker(), 0, 105.0).eta_s is None
    assert _report(_tracker(), 0, 100.0).eta_s is None


def test_an_empty_log_is_done_at_once() -> None:
    """With nothing to read and nothing to load, all of it is done and no time remains."""
    progress = _report(_tracker(bytes_total=0), 0, 100.0, 1.0)
    assert (progress.fraction, progress.eta_s) == (1.0, 0.0)


@given(st.integers(0, 5000), st.floats(-10, 1e6), st.floats(0, 2))
def test_a_report_is_never_past_the_end(bytes_done: int, elapsed_s: float, loaded: float) -> None:
    """Whatever is counted and whatever the clock does, done stays below the total and no time is negative."""
    progress = _report(_tracker(), bytes_done, 100.0 + elapsed_s, loaded)
    assert 0 <= progress.bytes_done <= progress.bytes_total
    assert 0 <= progress.fraction <= 1
    assert progress.rate_bytes_s >= 0
    assert progress.elapsed_s >= 0
    assert progress.eta_s is None or progress.eta_s >= 0


def test_reports_are_due_by_interval_and_by_phase() -> None:
    """A report is due after the interval, and at once when the phase changes."""
    tracker = _tracker()
    due = [tracker.due(Phase.READ, now_s) for now_s in (100.5, 101.0, 101.5, 102.0)]
    assert due == [False, True, False, True]
    assert tracker.due(Phase.LOAD, 102.1)
    assert not tracker.due(Phase.LOAD, 102.2)


def test_a_clock_that_stands_still_divides_by_nothing() -> None:
    """Bytes without elapsed time have no rate."""
    assert _report(_tracker(), 500, 100.0).rate_bytes_s == pytest.approx(0.0)
