"""The last minutes of a run in several processes: what each of them ran, and the lines at which it waited.

A run of several processes is as long as the process that ends last. So the summary of a run lists its end, process by
process, and the groups that took longest. A thread of each process looks twice a second whether the main thread has
computed since. If not, it notes the line of a test, or else of the tests' support, that the main thread stands at.

Invariant: a report carries what was noted since the one before it. A run in one process notes nothing.
"""

import os
import sys
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest

from tests.support.sharing import group_of

__all__ = ["EVERY_S", "SHORT_S", "Phase", "ending"]

EVERY_S = 0.5
SHORT_S = 3.0
"""Tests that took less of the end are summed up; waits of a third of it are not listed."""
_TESTS = Path(__file__).parents[1]
_COMPUTES = 0.1
"""The share of its time from which on a thread computes, and does not wait."""
_LAST_S = 180.0
_MOST_LINES, _MOST_GROUPS = 3, 30
_WAITED, _GROUP = "waited", "group"

Seconds = dict[str, float]


class Phase(NamedTuple):
    """One phase of a test in one process: its group, its begin and end by the clock, and its waits by line."""

    process: str
    test: str
    group: str
    start_s: float
    stop_s: float
    waited: Mapping[str, float]


def pytest_configure(config: pytest.Config) -> None:
    """Register this process's half if the run has several."""
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(_Noting())
    elif getattr(config.option, "numprocesses", None):
        config.pluginmanager.register(_Listing())


class _Noting:
    """A process that runs tests, and notes where its main thread waits."""

    def __init__(self) -> None:
        self._waited = Seconds()
        threading.Thread(target=self._note, name="notes of waits", daemon=True).start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        waited, self._waited = self._waited, Seconds()
        report.user_properties += [(_GROUP, group_of(item)), (_WAITED, waited)]
        return report

    def _note(self) -> None:
        seen_s, used_s = time.monotonic(), _used_s()
        while True:
            time.sleep(EVERY_S)
            before_s, seen_s = seen_s, time.monotonic()
            had_s, used_s = used_s, _used_s()
            if used_s - had_s < _COMPUTES * (seen_s - before_s):
                frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]  # the one way
                line = _line(frames.get(threading.main_thread().ident or 0))
                if line:
                    _add(self._waited, line, seen_s - before_s)


def _used_s() -> float:
    """Return for how long the main thread has computed, or waited for a processor where the system counts that."""
    main = threading.main_thread()
    try:
        ran, queued, _ = Path(f"/proc/{os.getpid()}/task/{main.native_id}/schedstat").read_text("ascii").split()
    except OSError:
        return time.clock_gettime(time.pthread_getcpuclockid(main.ident or 0))
    return (int(ran) + int(queued)) / 1e9


def _line(frame: FrameType | None) -> str:
    """Return the innermost line of a test, or else of what tests share, or nothing between tests."""
    shared = ""
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.name.startswith("test_"):
            return f"{path.name}:{frame.f_lineno}"
        if not shared and path.is_relative_to(_TESTS):
            shared = f"{path.relative_to(_TESTS)}:{frame.f_lineno}"
        frame = frame.f_back
    return shared


def _add(sums: Seconds, name: str, took_s: float) -> None:
    sums[name] = sums.get(name, 0.0) + took_s


def _largest(sums: Seconds, least_s: float, most: int) -> list[tuple[str, float]]:
    """Return the largest sums, the largest one first."""
    found = sorted(sums.items(), key=lambda item: -item[1])[:most]
    return [(name, took_s) for name, took_s in found if took_s >= least_s]


class _Listing:
    """The process that starts the others, and lists the end of the run."""

    def __init__(self) -> None:
        self._phases: list[Phase] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        told: dict[str, Any] = dict(report.user_properties)
        process: str = getattr(report, "worker_id", "")
        self._phases.append(
            Phase(process, report.nodeid, told.get(_GROUP, ""), report.start, report.stop, told.get(_WAITED, {}))
        )

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._phases:
            terminalreporter.section(f"the last {_LAST_S:.0f} seconds, and the lines that were waited at")
            for line in ending(self._phases):
                terminalreporter.write_line(line)


def ending(phases: Sequence[Phase]) -> Iterator[str]:
    """Yield the lines about the end of a run, and about its longest groups."""
    end_s = max(phase.stop_s for phase in phases)
    for process in sorted({phase.process for phase in phases}):
        own = [phase for phase in phases if phase.process == process]
        idle_s = end_s - max(phase.stop_s for phase in own)
        yield f"{process}, idle for the last {idle_s:.0f} s" if idle_s >= SHORT_S else process
        yield from _tests([phase for phase in own if phase.stop_s > end_s - _LAST_S], end_s - _LAST_S)
    groups = Seconds()
    for phase in phases:
        _add(groups, phase.group, phase.stop_s - phase.start_s)
    longest = _largest(groups, 0.0, _MOST_GROUPS)
    yield "longest groups: " + ", ".join(f"{group} {took_s:.0f} s" for group, took_s in longest)


def _tests(phases: Sequence[Phase], from_s: float) -> Iterator[str]:
    """Yield a line for each long test, in their order, and one for the short ones."""
    took, waited = Seconds(), dict[str, Seconds]()
    for phase in phases:
        _add(took, phase.test, phase.stop_s - max(phase.start_s, from_s))
        for line, waited_s in phase.waited.items():
            _add(waited.setdefault(phase.test, Seconds()), line, waited_s)
    for test, took_s in took.items():
        if took_s >= SHORT_S:
            at = _largest(waited.get(test, Seconds()), SHORT_S / 3, _MOST_LINES)
            lines = ", ".join(f"{waited_s:.0f} s at {line}" for line, waited_s in at)
            yield f"  {took_s:5.0f} s  {test}" + (f": {lines}" if lines else "")
    short = [took_s for took_s in took.values() if took_s < SHORT_S]
    if short:
        yield f"  {sum(short):5.0f} s  in {len(short)} shorter tests"
