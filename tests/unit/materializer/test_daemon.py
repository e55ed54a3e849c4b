"""The daemon on twins keeps its schedule, tolerates failures, reports events and stops. No test sleeps."""

import os
import signal
import threading
from pathlib import Path

import pytest

from statelog.errors import CorruptManifest, CorruptRun, StoreUnavailable
from statelog.materializer.control import Control, install_signal_handlers
from statelog.materializer.daemon import Materializer
from statelog.materializer.events import Event, EventKind
from statelog.materializer.round import run_round
from tests.support.rigs.daemon import INTERVAL_S, DaemonBench
from tests.support.rigs.log import TwinLog, settings_for


def test_rounds_follow_each_other_at_a_fixed_delay_whatever_their_outcome(tmp_path: Path) -> None:
    """The first wait is spread, and every other is the interval.

    Skipped rounds move the schedule on, counted separately.
    """
    bench = DaemonBench(tmp_path, jitter=0.5)
    bench.twin.write({b"a": b"1"})
    bench.at(150, lambda: bench.twin.write({b"a": b"2"}))
    bench.run(until_s=340)

    first_s = bench.rounds[0][0]
    assert 0 <= first_s < INTERVAL_S / 2
    assert bench.rounds == [(first_s + i * INTERVAL_S, "interval") for i in range(4)]
    assert bench.kinds == ["round-completed", "round-skipped", "round-completed", "round-skipped", "stopped"]
    counts = bench.daemon.statistics()
    assert (counts.started, counts.completed, counts.skipped, counts.failed, counts.commits) == (4, 2, 2, 0, 2)


def test_the_delay_counts_from_the_end_of_a_round(tmp_path: Path) -> None:
    """A round that takes longer than the interval is followed by a whole interval, not by a queue of rounds."""
    bench = DaemonBench(tmp_path)
    bench.hold()
    bench.at(250, bench.go_on, bench.release)
    bench.run(until_s=360)
    assert bench.rounds == [(0, "interval"), (350, "interval")]
    assert bench.daemon.statistics().last_duration_s == 0.0


def test_a_round_that_its_budget_cut_short_is_followed_at_once(tmp_path: Path) -> None:
    """A round that its budget cut short is followed at once: a backlog would never end otherwise."""
    bench = DaemonBench(tmp_path, budget_commits=1)
    for i in range(3):
        bench.twin.write({b"a": str(i).encode()})
    bench.run(until_s=50)
    assert [time_s for time_s, _ in bench.rounds] == [0, 0, 0]
    assert bench.daemon.statistics().completed == 3


def test_a_trigger_runs_a_round_now_and_starts_the_delay_anew(tmp_path: Path) -> None:
    """A trigger starts a round at once. The next scheduled one follows a whole interval after it."""
    bench = DaemonBench(tmp_path)
    bench.at(30, bench.daemon.trigger)
    bench.run(until_s=200)
    assert bench.rounds == [(0, "interval"), (30, "trigger"), (130, "interval")]


def test_triggers_during_a_round_cause_one_more_round_after_it(tmp_path: Path) -> None:
    """Triggers during a round cause one more round after it, which covers everything that was committed before them."""
    bench = DaemonBench(tmp_path)
    bench.hold()
    bench.at(10, bench.daemon.trigger, bench.daemon.trigger)
    bench.at(20, bench.daemon.trigger, lambda: bench.twin.write({b"a": b"1"}))
    bench.at(30, bench.go_on, bench.release)
    bench.run(until_s=120)
    assert bench.rounds == [(0, "interval"), (30, "trigger")]
    assert bench.log.manifests.newest() is not None


def test_a_trigger_before_the_start_is_not_lost(tmp_path: Path) -> None:
    """A trigger before the start makes the daemon begin with a round, without its first delay."""
    bench = DaemonBench(tmp_path, jitter=1.0)
    bench.daemon.trigger()
    bench.run(until_s=1)
    assert bench.rounds == [(0, "trigger")]


def test_failures_are_tolerated_up_to_the_limit_and_then_raised(tmp_path: Path) -> None:
    """With two tolerated failures, the third in a row ends the daemon with the error itself."""
    bench = DaemonBench(tmp_path, failures_tolerated=2)
    bench.broken = True
    with pytest.raises(StoreUnavailable):
        bench.daemon.run()

    failed = [event for event in bench.events if event.kind is EventKind.ROUND_FAILED]
    assert [event.facts["failures_in_a_row"] for event in failed] == [1, 2, 3]
    assert [event.facts["tolerated"] for event in failed] == [True, True, False]
    assert [time_s for time_s, _ in bench.rounds] == [0, 100, 200]
    assert bench.kinds[-1] == "stopped"


def test_a_good_round_resets_the_count_of_failures(tmp_path: Path) -> None:
    """A good round resets the count: with one tolerated failure, every other round may fail."""
    bench = DaemonBench(tmp_path, failures_tolerated=1)
    bench.twin.write({b"a": b"1"})

    def toggle() -> None:
        bench.broken = not bench.broken

    bench.broken = True
    for time_s in range(50, 550, 100):
        bench.at(time_s, toggle)
    bench.run(until_s=540)
    counts = bench.daemon.statistics()
    assert (counts.failed, counts.completed, counts.skipped, counts.failures_in_a_row) == (3, 1, 2, 0)


def test_damage_is_never_tolerated(tmp_path: Path) -> None:
    """A manifest that does not read ends the daemon before or in its first round."""
    bench = DaemonBench(tmp_path, failures_tolerated=100)
    bench.twin.write({b"a": b"1"})
    bench.daemon.run_once()
    bench.twin.disk.flip_byte("log/manifests/00000000000000000001.avro", -40)
    with pytest.raises(CorruptManifest):
        bench.daemon.run()
    assert bench.now_s == 0


def test_damage_that_a_round_finds_is_never_tolerated(tmp_path: Path) -> None:
    """A missing run, which no check reads, ends the daemon in the first round that meets it."""
    bench = DaemonBench(tmp_path, failures_tolerated=100)
    bench.twin.write({b"a": b"1"})
    bench.twin.environment.run(run_round, bench.twin.open(), settings_for(tmp_path))
    bench.twin.disk.remove(f"log/{bench.twin.run_paths().pop()}")
    bench.twin.write({b"a": b"2"})
    with pytest.raises(CorruptRun):
        bench.run(until_s=250)
    failed = next(event for event in bench.events if event.kind is EventKind.ROUND_FAILED)
    assert (failed.facts["failures_in_a_row"], failed.facts["tolerated"], bench.now_s) == (1, False, 0)
    assert bench.log.kafka.offsets(bench.log.ledger_topic, [0])[0].start == 0


def test_a_defect_of_the_program_is_never_tolerated(tmp_path: Path) -> None:
    """An exception that is none of ours ends the daemon unchanged, although the round ran on another thread."""
    bench = DaemonBench(tmp_path, failures_tolerated=100)
    bench.twin.write({b"a": b"1"})
    bench.log.store.upload = None  # type: ignore[assignment] # a defect: what is called is not a function
    with pytest.raises(TypeError):
        bench.daemon.run()


def test_a_stop_is_no_failure_and_waits_for_the_round(tmp_path: Path) -> None:
    """A stop during a round waits for the round, which counts."""
    bench = DaemonBench(tmp_path)
    bench.twin.write({b"a": b"1"})
    bench.hold()
    bench.at(10, bench.control.stop)
    bench.at(20, bench.release)
    bench.daemon.run()
    assert bench.kinds == ["round-completed", "stopped"]
    assert bench.daemon.statistics().failed == 0
    assert bench.now_s == 20


def test_a_held_back_cleanup_is_reported(tmp_path: Path) -> None:
    """A missing run that only an old retained snapshot names stops all removal, and is reported."""
    bench = DaemonBench(tmp_path, fanout=2)
    for i in range(2):
        bench.twin.write({b"a": str(i).encode()})
        bench.daemon.run_once()
    old = bench.log.manifests.read(1).runs[0].path
    bench.twin.disk.remove(f"log/{old}")
    bench.log = bench.twin.open()
    settings = settings_for(tmp_path, fanout=2, keep=3)
    restarted = Materializer(bench.log, settings, on_event=bench.events.append)
    bench.twin.write({b"a": b"2"})
    restarted.run_once()

    held = [event for event in bench.events if event.kind is EventKind.CLEANUP_HELD_BACK]
    assert len(held) == 1
    assert old in held[0].facts["reason"]
    assert bench.log.manifests.numbers() == [1, 2, 3]


def test_truncation_is_told_beside_what_is_left(tmp_path: Path) -> None:
    """A round reports how many records it truncated, how many are left, and the position that holds them."""
    bench = DaemonBench(tmp_path)
    for i in range(3):
        bench.twin.write({f"k{n}".encode(): str(i).encode() for n in range(9)})
        bench.daemon.run_once()
    done = bench.daemon.statistics().cleanup
    assert done is not None
    left = sum(end - start for start, end in bench.log.data_offsets().values())
    assert (done.records_left, done.records_overdue, done.held_by) == (left, 0, "manifest 2")
    assert done.records_truncated > 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_stop_sets_the_flag_and_nothing_else(number: signal.Signals, tmp_path: Path) -> None:
    """The signal handler only requests the stop. A round in flight ends normally, and then the daemon returns."""
    twin = TwinLog()
    twin.write({b"a": b"1"})
    control, kinds = Control(), list[str]()
    before = signal.getsignal(number)
    restore = install_signal_handlers(control)
    try:

        def on_event(event: Event) -> None:
            if event.kind is EventKind.ROUND_STARTED:
                os.kill(os.getpid(), number)
            else:
                kinds.append(event.kind.value)

        settings = settings_for(tmp_path, interval_s=1e6, jitter=0.0, alarm_age_s=1e7)
        Materializer(twin.open(), settings, control=control, on_event=on_event).run()
    finally:
        restore()
    assert kinds == ["started", "round-completed", "stopped"]
    assert signal.getsignal(number) is before


def test_sigusr1_triggers_a_round(tmp_path: Path) -> None:
    """SIGUSR1 starts a round without waiting for the interval."""
    twin = TwinLog()
    control, causes = Control(), list[str]()
    restore = install_signal_handlers(control)
    try:

        def on_event(event: Event) -> None:
            if event.kind is EventKind.ROUND_STARTED:
                causes.append(event.facts["cause"].value)
                # The trigger is recorded on another thread. The daemon may be stopped only after that.
                os.kill(os.getpid(), signal.SIGUSR1) if len(causes) == 1 else control.stop()

        settings = settings_for(tmp_path, interval_s=1e6, jitter=0.0, alarm_age_s=1e7)
        Materializer(twin.open(), settings, control=control, on_event=on_event).run()
    finally:
        restore()
    assert causes == ["interval", "trigger"]


def test_real_threads_do_what_the_bench_does(tmp_path: Path) -> None:
    """Real threads and the real clock behave as the bench: a round, another thread's trigger, another round, a stop."""
    twin = TwinLog()
    twin.write({b"a": b"1"})
    completed = threading.Semaphore(0)

    def on_event(event: Event) -> None:
        if event.kind.value == "round-completed":
            completed.release()

    settings = settings_for(tmp_path, interval_s=1e6, jitter=0.0, alarm_age_s=1e7)
    daemon = Materializer(twin.open(), settings, on_event=on_event)
    thread = threading.Thread(target=daemon.run)
    thread.start()
    try:
        assert completed.acquire(timeout=60)
        twin.write({b"a": b"2"})
        daemon.trigger()
        assert completed.acquire(timeout=60)
    finally:
        daemon.stop()
        thread.join(60)
    assert not thread.is_alive()
    assert twin.open().manifests.numbers() == [1, 2]
