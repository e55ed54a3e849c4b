"""The daemon's start and end: second signals, grace, tolerance by time, restarts, rights, and a deleted log."""

import math
import os
import signal
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest

from statelog.environment import repeated
from statelog.errors import ConfigError, IdentityChanged, NotFound, RoundGivenUp, StoreUnavailable
from statelog.log import Log, Where
from statelog.materializer.beside_rounds import ask_first_delay_s
from statelog.materializer.control import Control, install_signal_handlers
from statelog.materializer.daemon import Materializer
from statelog.materializer.events import Event, EventKind
from statelog.materializer.round import run_round
from statelog.materializer.schedule import first_delay_s
from statelog.materializer.settings import MaterializerSettings
from tests.support.rigs.daemon import DaemonBench
from tests.support.rigs.log import TwinLog, settings_for
from tests.support.waiting import wait_for


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_gives_the_round_up_before_its_put(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first stop waits for the round, and the second abandons it: no manifest, no local file, no failed run."""
    twin, control, events = TwinLog(), Control(), list[Event]()
    twin.write({b"a": b"1"})
    log = twin.open()
    upload = log.store.upload

    def upload_slowly(local: Path, path: str) -> None:
        os.kill(os.getpid(), number)
        wait_for(lambda: control.is_stopped)
        assert not control.is_abandoned
        os.kill(os.getpid(), number)
        wait_for(lambda: control.is_abandoned)
        upload(local, path)

    monkeypatch.setattr(log.store, "upload", upload_slowly)
    restore = install_signal_handlers(control)
    try:
        settings = settings_for(tmp_path, jitter=0.0, failures_tolerated=0)
        Materializer(log, settings, control=control, on_event=events.append).run()
    finally:
        restore()
    assert [event.kind.value for event in events] == ["started", "round-started", "round-failed", "stopped"]
    failed = next(event for event in events if event.kind is EventKind.ROUND_FAILED)
    assert isinstance(failed.error, RoundGivenUp)
    assert log.manifests.numbers() == []
    assert list(tmp_path.iterdir()) == []


def test_a_stop_waits_for_the_grace_period_and_no_longer(tmp_path: Path) -> None:
    """A hanging round is abandoned shortly after its grace period, and the daemon ends normally."""
    bench = DaemonBench(tmp_path, stop_grace_s=60.0, failures_tolerated=0)
    bench.hold()
    bench.run(until_s=10)
    assert bench.kinds == ["round-failed", "stopped"]
    assert bench.now_s == 10 + 60 + 10


def test_failures_are_tolerated_for_a_time_whatever_their_number(tmp_path: Path) -> None:
    """Failures are tolerated by time as well.

    Ten of them at an interval of ten seconds bear an outage of eight minutes.
    """
    bench = DaemonBench(tmp_path, interval_s=10.0, failures_tolerated=2, failures_tolerated_s=600.0)
    bench.broken = True
    bench.at(480, lambda: setattr(bench, "broken", False), lambda: bench.twin.write({b"a": b"1"}))
    bench.at(500, lambda: setattr(bench, "broken", True))
    with pytest.raises(StoreUnavailable):
        bench.daemon.run()
    counts = bench.daemon.statistics()
    assert counts.completed == 1
    assert 1100 <= bench.now_s <= 1120
    assert bench.kinds[-1] == "stopped"


def test_no_failure_tolerated_means_none(tmp_path: Path) -> None:
    """A daemon that tolerates no failures ends with the first, whatever its duration."""
    bench = DaemonBench(tmp_path, failures_tolerated=0, failures_tolerated_s=600.0)
    bench.broken = True
    with pytest.raises(StoreUnavailable):
        bench.daemon.run()
    assert bench.now_s == 0


def test_a_daemon_that_is_restarted_again_and_again_runs_rounds(tmp_path: Path) -> None:
    """A daemon that restarts every two minutes runs a round when it is due at an interval of ten, or soon after."""
    twin = TwinLog(name="orders")
    settings = settings_for(tmp_path, interval_s=600.0, jitter=1.0)
    usual_s = first_delay_s("orders", settings)
    assert usual_s > 120
    rounds, log = [twin.now_s], twin.open()
    for life in range(60):
        twin.write({b"a": b"%d" % life})
        delay_s = ask_first_delay_s(log, settings)
        if delay_s < 120:
            twin.now_s += delay_s
            twin.environment.run(run_round, log, settings)
            rounds.append(twin.now_s)
            twin.now_s += 120 - delay_s
        else:
            twin.now_s += 120
    assert len(rounds) >= 10
    assert max(later - earlier for earlier, later in pairwise(rounds)) <= 600 + 120 + 30


def test_the_first_delay_is_never_later_than_usual() -> None:
    """An overdue first round waits for half a minute at most, also if the store does not tell the snapshot's age."""
    settings = MaterializerSettings()
    usual_s = first_delay_s("orders", settings)
    assert first_delay_s("orders", settings, due_s=math.inf) == usual_s
    assert first_delay_s("orders", settings, due_s=1.5 * usual_s) == usual_s
    assert first_delay_s("orders", settings, due_s=0.5 * usual_s) == 0.5 * usual_s
    assert 0 < first_delay_s("orders", settings, due_s=-1e6) <= 30


def test_it_says_when_the_first_round_begins(tmp_path: Path) -> None:
    """The daemon's first line says when the first round begins, or that one begins at once."""
    bench = DaemonBench(tmp_path, jitter=1.0)
    bench.run(until_s=0.5)
    started = bench.events[0]
    assert started.kind is EventKind.STARTED
    assert 0 < started.facts["first_round_s"] < 100
    wanted = DaemonBench(tmp_path, jitter=1.0)
    wanted.control.trigger()
    wanted.run(until_s=0.5)
    assert wanted.events[0].kind is EventKind.STARTED
    assert wanted.events[0].facts["first_round_s"] == 0


@pytest.mark.parametrize("topic", ["log", "log.ledger"])
def test_a_missing_right_to_truncate_is_found_before_the_first_manifest(
    topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing right to truncate is refused before the first manifest. Kafka would otherwise grow unnoticed."""
    bench = DaemonBench(tmp_path, failures_tolerated=5)
    bench.twin.write({b"a": b"1"})
    delete = bench.log.kafka.delete_records

    def refuse(asked: str, before: dict[int, int]) -> dict[int, int]:
        if asked == topic:
            raise ConfigError("TOPIC_AUTHORIZATION_FAILED", topic=asked)
        return delete(asked, before)

    monkeypatch.setattr(bench.log.kafka, "delete_records", refuse)
    with pytest.raises(ConfigError, match="AUTHORIZATION"):
        bench.daemon.run()
    assert bench.now_s == 0
    assert bench.log.manifests.numbers() == []
    assert bench.twin.run_paths() == set()


def test_the_proof_of_the_right_to_truncate_truncates_nothing(tmp_path: Path) -> None:
    """The check of the right to truncate truncates nothing, and happens once in a process."""
    twin = TwinLog()
    twin.write({b"a": b"1"})
    log = twin.open()
    twin.environment.run(run_round, log, settings_for(tmp_path))
    assert {there.start for there in log.data_offsets().values()} == {0}
    assert log.kafka.offsets(log.ledger_topic, [0])[0].start == 0


@pytest.mark.usefixtures("impatient")
def test_a_log_that_is_deleted_under_its_daemon_is_not_found(tmp_path: Path) -> None:
    """A log that is deleted under its daemon is reported as not found, although its topics disappear first."""
    bench = DaemonBench(tmp_path)
    bench.twin.write({b"a": b"1"})

    def delete_topics() -> None:
        for topic in ("log", "log.ledger"):
            bench.log.kafka.delete_topic(topic)

    def delete_the_rest() -> None:
        Log.delete("log", Where(bench.log.kafka, bench.log.store))

    bench.at(99.9, delete_topics)
    bench.at(103, delete_the_rest)
    with pytest.raises(NotFound):
        bench.daemon.run()


@pytest.mark.usefixtures("impatient")
def test_a_topic_that_went_alone_is_damage(tmp_path: Path) -> None:
    """A missing topic of a log that nobody deletes is reported as damage after some seconds."""
    bench = DaemonBench(tmp_path)
    bench.twin.write({b"a": b"1"})
    bench.at(99.9, lambda: bench.log.kafka.delete_topic("log"))
    with pytest.raises(IdentityChanged) as found:
        bench.daemon.run()
    assert bench.now_s < 120
    assert found.value.__cause__ is not found.value


def test_a_wait_may_be_longer_than_a_thread_can_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interval beyond a thread's longest wait works: requests end it, and work repeats as seldom as set."""
    failed: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    control = Control()
    threading.Timer(0.1, control.stop).start()
    assert control.wait(1e300)
    with repeated(lambda: failed.append("too early"), 1e300, "seldom"):
        pass
    assert failed == []


def test_a_signal_is_heard_while_the_main_thread_sleeps() -> None:
    """A signal wakes the main thread even if it arrives right before the thread's wait."""
    control, is_over = Control(), threading.Event()
    other = threading.Thread(target=is_over.wait, args=(60,))
    other.start()  # Before the signal is blocked here, so that this thread is interrupted.
    restore = install_signal_handlers(control)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
        began_s = time.monotonic()
        assert control.wait(30.0)
        assert time.monotonic() - began_s < 15.0
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        restore()
        is_over.set()
        other.join()
