"""The daemon on twins: its schedule, what it tolerates, what it reports, and how it stops. No test sleeps."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from statelog.materializer.daemon import Materializer
from statelog.materializer.events import (
    CleanUpHeldBack,
    Event,
    LogAgeAlarm,
    RoundCompleted,
    RoundFailed,
    RoundSkipped,
    RoundStarted,
    Stopped,
)
from statelog.materializer.signals import install_signal_handlers
from statelog.materializer.watchdog import Watchdog
from statelog.schemas.errors import CorruptManifest, StoreUnavailable
from statelog.storage.store_memory import Fault
from tests.support.twin_log import TwinLog, settings_for

INTERVAL_S = 100.0


class _Bench:
    """A daemon whose waits only move a clock; `before` runs in each wait, by its number, and may end the daemon."""

    def __init__(self, tmp_path: Path, **settings: Any) -> None:
        self.twin = TwinLog()
        self.now_s = 0.0
        self.waits: list[float] = []
        self.before: dict[int, Callable[[], None]] = {}
        self.events: list[Event] = []
        self.broken = False
        self.stop = threading.Event()
        self.log = self.twin.open(faults=lambda _method, _path: Fault.BEFORE if self.broken else None)
        defaults: dict[str, Any] = {"interval_s": INTERVAL_S, "jitter": 0.5}
        self.daemon = Materializer(
            self.log,
            settings_for(tmp_path, **defaults | settings),
            stop=self.stop,
            clock=lambda: self.now_s,
            wall_clock=self.twin.clock,
            on_event=self.events.append,
            wait=self.wait,
        )

    def wait(self, delay_s: float) -> bool:
        self.waits.append(delay_s)
        self.now_s += delay_s
        self.before.get(len(self.waits), lambda: None)()
        return self.stop.is_set()

    def kinds(self) -> list[type]:
        return [type(event) for event in self.events if not isinstance(event, RoundStarted)]


def test_rounds_follow_each_other_at_a_fixed_delay_whatever_their_outcome(tmp_path: Path) -> None:
    """The first wait is spread, every other is the interval; skipped rounds move the schedule on, counted apart."""
    bench = _Bench(tmp_path)
    bench.twin.write({b"a": b"1"})
    bench.before = {3: lambda: bench.twin.write({b"a": b"2"}), 5: bench.stop.set}
    bench.daemon.run()

    assert 0 <= bench.waits[0] < INTERVAL_S / 2
    assert bench.waits[1:] == [INTERVAL_S] * 4
    assert bench.kinds() == [RoundCompleted, RoundSkipped, RoundCompleted, RoundSkipped, Stopped]
    counts = bench.daemon.statistics()
    assert (counts.completed, counts.skipped, counts.failed, counts.commits) == (2, 2, 0, 2)
    assert counts.age_s == INTERVAL_S


def test_a_round_that_its_budget_cut_short_is_followed_at_once(tmp_path: Path) -> None:
    """While it is behind, the daemon does not wait: a backlog would never end otherwise."""
    bench = _Bench(tmp_path, budget_commits=1)
    for i in range(3):
        bench.twin.write({b"a": str(i).encode()})
    bench.before = {4: bench.stop.set}
    bench.daemon.run()

    assert bench.waits[1:] == [0.0, 0.0, INTERVAL_S]
    assert bench.daemon.statistics().completed == 3


def test_failures_are_tolerated_up_to_the_limit_and_then_raised(tmp_path: Path) -> None:
    """With two tolerated, the third failure in a row ends the daemon with the error itself."""
    bench = _Bench(tmp_path, failures_tolerated=2)
    bench.broken = True
    with pytest.raises(StoreUnavailable):
        bench.daemon.run()

    failed = [event for event in bench.events if isinstance(event, RoundFailed)]
    assert [event.failures_in_a_row for event in failed] == [1, 2, 3]
    assert [event.tolerated for event in failed] == [True, True, False]
    assert bench.kinds()[-1] is Stopped


def test_a_good_round_resets_the_count_of_failures(tmp_path: Path) -> None:
    """Only failures in a row count: with one tolerated, every other round may fail."""
    bench = _Bench(tmp_path, failures_tolerated=1)
    bench.twin.write({b"a": b"1"})

    def toggle() -> None:
        bench.broken = not bench.broken

    bench.before = dict.fromkeys(range(1, 7), toggle) | {7: bench.stop.set}
    bench.daemon.run()

    counts = bench.daemon.statistics()
    assert (counts.failed, counts.completed, counts.skipped, counts.failures_in_a_row) == (3, 1, 2, 0)


def test_damage_is_never_tolerated(tmp_path: Path) -> None:
    """A manifest that does not read ends the daemon in its first round."""
    bench = _Bench(tmp_path, failures_tolerated=100)
    bench.twin.write({b"a": b"1"})
    bench.daemon.run_once()
    bench.twin.disk.flip_byte("log/manifests/00000000000000000001.avro", -40)
    with pytest.raises(CorruptManifest):
        bench.daemon.run()
    assert len(bench.waits) == 1


def test_a_held_back_clean_up_is_reported(tmp_path: Path) -> None:
    """A run that only an old kept snapshot names and that is gone stops all removal, and somebody is told."""
    bench = _Bench(tmp_path, fanout=2)
    for i in range(2):
        bench.twin.write({b"a": str(i).encode()})
        bench.daemon.run_once()
    old = bench.log.manifests.read(1).manifest.runs[0].path
    bench.twin.disk.remove(f"log/{old}")
    bench.log = bench.twin.open()
    settings = settings_for(tmp_path, fanout=2, keep=3)
    restarted = Materializer(bench.log, settings, stop=bench.stop, on_event=bench.events.append)
    bench.twin.write({b"a": b"2"})
    restarted.run_once()

    held = [event for event in bench.events if isinstance(event, CleanUpHeldBack)]
    assert len(held) == 1
    assert old in held[0].reason
    assert bench.log.manifests.numbers() == [1, 2, 3]


def test_the_watchdog_alarms_once_per_age_and_a_good_round_calms_it() -> None:
    """It says how old the log is, repeats after each further age, and starts anew after a good round."""
    now_s = [0.0]
    alarms: list[LogAgeAlarm] = []
    dog = Watchdog("log", 10.0, clock=lambda: now_s[0], on_alarm=alarms.append)
    for now_s[0] in (9.0, 10.0, 11.0, 19.0, 20.0):
        dog.check()
    assert [alarm.age_s for alarm in alarms] == [10.0, 20.0]
    dog.good_round()
    for now_s[0] in (29.0, 30.0):
        dog.check()
    assert [alarm.age_s for alarm in alarms] == [10.0, 20.0, 10.0]


def test_the_watchdog_alarms_while_a_round_hangs(tmp_path: Path) -> None:
    """A round that never returns is what the watchdog is for: the alarm comes from its own thread."""
    alarmed = threading.Event()
    bench = _Bench(tmp_path)

    def on_event(event: Event) -> None:
        if isinstance(event, LogAgeAlarm):
            alarmed.set()

    def hang(_method: str, _path: str) -> None:
        assert alarmed.wait(30), "no alarm came while the round hung"
        bench.stop.set()

    settings = settings_for(tmp_path, interval_s=0.01, jitter=0.0, alarm_age_s=0.05)
    log = bench.twin.open()
    hanging = bench.twin.open(faults=lambda method, path: hang(method, path) if method == "list" else None)
    Materializer(hanging, settings, stop=bench.stop, on_event=on_event).run()
    assert log.manifests.numbers() == []


def test_sigterm_sets_the_flag_and_nothing_else(tmp_path: Path) -> None:
    """The signal handler only asks to stop: a round in flight ends well, and then the daemon returns."""
    bench = _Bench(tmp_path)
    bench.twin.write({b"a": b"1"})
    restore = install_signal_handlers(bench.stop)
    try:

        def on_event(event: Event) -> None:
            if isinstance(event, RoundStarted):
                os.kill(os.getpid(), signal.SIGTERM)
                assert bench.stop.wait(30)
            bench.events.append(event)

        settings = settings_for(tmp_path, interval_s=1.0, jitter=0.0)
        Materializer(bench.log, settings, stop=bench.stop, on_event=on_event).run()
    finally:
        restore()
    assert bench.kinds() == [RoundCompleted, Stopped]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
