"""A materializer daemon on twins, and on a clock that only its waits move.

Rounds and checks finish at once on the daemon's own thread, unless the bench holds them. Then they wait for `release`,
as a hanging thread does.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from statelog.environment import Environment, Start
from statelog.materializer.control import Control
from statelog.materializer.daemon import Materializer
from statelog.materializer.events import Event, EventKind
from statelog.materializer.schedule import Rates
from statelog.testing.store import Fault
from tests.support.rigs.log import TwinLog, settings_for

__all__ = ["INTERVAL_S", "DaemonBench"]

INTERVAL_S = 100.0
_START_S = 1_000.0


class DaemonBench:
    """The daemon, its log and its clock. Without other settings the first round is due at 0, then every 100 seconds."""

    def __init__(self, tmp_path: Path, rates: Rates | None = None, **settings: Any) -> None:
        self.twin = TwinLog()
        self.now_s = 0.0
        self.events: list[Event] = []
        self.broken = False
        self.broken_method = ""
        self.is_holding = False
        self.start: Start = self._start
        self.log = self.twin.open(faults=self._fault)
        self._script: list[tuple[float, Callable[[], object]]] = []
        self._held: list[Callable[[], None]] = []
        defaults: dict[str, Any] = {"interval_s": INTERVAL_S, "jitter": 0.0}
        environment = Environment(
            clock=lambda: self.now_s, wall_clock=self.twin.clock, wait=self._wait, start=self._begin
        )
        self.control = environment.run(Control)
        self.daemon = environment.run(
            Materializer,
            self.log,
            settings_for(tmp_path, **defaults | settings),
            control=self.control,
            on_event=self.events.append,
            rates=rates,
        )

    def at(self, time_s: float, *actions: Callable[[], object]) -> None:
        """Schedule these actions for that time, while the daemon waits."""
        self._script += [(time_s, action) for action in actions]
        self._script.sort(key=lambda line: line[0])

    def run(self, until_s: float) -> None:
        """Run the daemon until that time, at which it is asked to stop."""
        self.at(until_s, self.control.stop)
        self.daemon.run()

    def hold(self) -> None:
        """Let rounds and checks hang from now on."""
        self.is_holding = True

    def go_on(self) -> None:
        """Let later rounds and checks finish again; the hanging ones still hang."""
        self.is_holding = False

    def release(self) -> None:
        """Let the hanging rounds and checks finish."""
        while self._held:
            self._held.pop(0)()

    @property
    def rounds(self) -> list[tuple[float, str]]:
        """The times at which rounds began, and the reasons."""
        return [
            (event.at_s, event.facts["cause"].value) for event in self.events if event.kind is EventKind.ROUND_STARTED
        ]

    @property
    def kinds(self) -> list[str]:
        """The names of the events, but for the starts of rounds and of the daemon."""
        return [
            event.kind.value for event in self.events if event.kind not in (EventKind.ROUND_STARTED, EventKind.STARTED)
        ]

    def _fault(self, method: str, _path: str) -> Fault | None:
        return Fault.BEFORE if self.broken or method == self.broken_method else None

    def _begin(self, work: Callable[[], None]) -> None:
        self.start(work)

    def _start(self, work: Callable[[], None]) -> None:
        if self.is_holding:
            self._held.append(work)
        else:
            work()

    def _wait(self, _bell: threading.Event, delay_s: float) -> None:
        """Advance the time until the delay is over, or an action is due before."""
        over_s = self.now_s + delay_s
        happens = bool(self._script) and self._script[0][0] <= over_s
        self._move(self._script[0][0] if happens else over_s)
        while self._script and self._script[0][0] <= self.now_s:
            self._script.pop(0)[1]()

    def _move(self, now_s: float) -> None:
        self.now_s = max(self.now_s, now_s)
        self.twin.now_s = _START_S + self.now_s
