"""The examples with a consumer group on a real broker: a process is killed in the middle, and the end is exact."""

import faulthandler
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Self

import pytest
from confluent_kafka.admin import AdminClient

import statelog
from examples import orders, outbox, word_counts
from examples.topic import Place, main
from statelog.errors import NotFound, Unavailable
from tests.support.documents import ROOT
from tests.support.processes.starts import quick_start
from tests.support.services.broker import Broker
from tests.support.waiting import wait_for

pytestmark = pytest.mark.broker

KILLS = 3


@pytest.fixture
def place(broker: Broker, log_name: str, tmp_path: Path) -> Iterator[Place]:
    """Yield the place where an example finds its input and its log."""
    made = Place(name=log_name, bootstrap=broker.bootstrap, root=str(tmp_path))
    yield made
    made.clean()


class _Process:
    """The example's program as a person starts it; killed at the end of the block, if it is still alive."""

    def __init__(self, example: str, place: Place, name: str) -> None:
        self._output = Path(place.root, name)
        where = ["--name", place.name, "--bootstrap", place.bootstrap, "--root", place.root]
        with self._output.open("w", encoding="utf-8") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"examples.{example}", *where],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), *sys.path))},
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def said(self) -> str:
        """Its output so far."""
        return self._output.read_text(encoding="utf-8")

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def wait(self) -> int:
        """Wait until it has ended; return its exit code."""
        return self._process.wait(timeout=120)

    def kill(self) -> None:
        """Send SIGKILL."""
        self._process.kill()

    def end(self) -> int:
        """Ask it to end; return its exit code."""
        self._process.terminate()
        return self.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._process.wait()


def _committed(place: Place) -> int:
    """Return how many messages are in the state at least, by the progress of all last commits."""
    try:
        with statelog.open(place.name, place.where) as log:
            commits = statelog.recover(log).commits
            numbers = [value for commit in commits.values() for value in commit.metadata.values()]
            return sum(number for number in numbers if isinstance(number, int))
    except (NotFound, Unavailable):  # not yet, or not for now
        return 0


def _wait(place: Place, processed: int) -> None:
    """Wait until so many messages of the input are in the state."""
    wait_for(lambda: _committed(place) >= processed, tick_s=0.2)


def _work(place: Place) -> None:
    """Run a worker that dumps its stack if it is aborted."""
    faulthandler.enable()
    word_counts.work(place)


@pytest.mark.parametrize("check", [orders.check, word_counts.check])
@pytest.mark.parametrize("has_topic", [False, True])
def test_a_check_before_there_is_an_input_says_what_to_do(
    place: Place,
    check: Callable[[Place], bool],
    has_topic: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A missing topic or log is one line on standard error, and the check makes no topic."""
    if has_topic:
        place.fill([], partitions=1)
    where = ["--name", place.name, "--bootstrap", place.bootstrap, "--root", place.root]
    monkeypatch.setattr(sys, "argv", ["example", "check", *where])
    assert main("example", {"check": check}) == 1
    missing = f"log {place.name}" if has_topic else f"topic {place.topic}"
    assert capsys.readouterr().err == f"error: there is no {missing}; run the command `input` first\n"
    assert (place.topic in AdminClient(place.kafka).list_topics(timeout=10).topics) is has_topic


def test_an_error_of_an_example_is_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A refusal of statelog in an example is a line with its hint, without a traceback."""
    monkeypatch.setattr(sys, "argv", ["example", "--name", "no good", "--root", str(tmp_path)])
    assert main("example", {"open": lambda place: statelog.open(place.name, place.where)}) == 1
    assert capsys.readouterr().err.startswith("error: ")


def test_word_counts_are_exact_though_a_worker_is_killed(place: Place) -> None:
    """One of two workers dies in the middle; its next incarnation goes on at its progress."""
    words, context = word_counts.fill(place), quick_start()
    lives = [context.Process(target=_work, args=(replace(place, member=name),)) for name in ("a", "b", "a")]
    first, second, again = lives
    try:
        first.start()
        second.start()
        _wait(place, words // 8)
        first.kill()
        first.join(120)
        assert _committed(place) < words, "the kill came too late to show anything"
        again.start()
        _wait(place, words)
        assert word_counts.check(place)
        for process in (again, second):
            process.terminate()
            process.join(120)
        assert [process.exitcode for process in lives] == [-signal.SIGKILL, 0, 0]
    finally:
        for process in lives:
            if process.is_alive() and process.pid:
                os.kill(process.pid, signal.SIGABRT)


@pytest.mark.parametrize("program", [outbox.work, outbox.one_table])
def test_what_comes_out_is_exact_though_processes_are_killed(place: Place, program: Callable[[Place], None]) -> None:
    """Processes end at any moment, in the middle of a transaction, too: in the end each record came out once."""
    context, member = quick_start(), replace(place, member="a")
    try:
        for _ in range(KILLS):
            outbox.fill(place)
            committed, life = _committed(place), context.Process(target=program, args=(member,))
            life.start()
            wait_for(lambda: _committed(place) > committed, tick_s=0.05)  # noqa: B023 - it is called here alone
            time.sleep(random.random() / 2)
            life.kill()
            life.join(120)
        last = context.Process(target=program, args=(member,))
        last.start()
        wait_for(lambda: outbox.check(place), tick_s=0.5)
        last.terminate()
        last.join(120)
        assert last.exitcode == 0
        assert outbox.check(place)
    finally:
        outbox.clean(place)


@pytest.mark.soak  # The group detects a killed process after six seconds.
def test_a_standby_takes_over_the_orders(place: Place) -> None:
    """The owner is killed in the middle: the other process goes on with all its commits."""
    events = orders.fill(place)
    with _Process("orders", place, "a") as first, _Process("orders", place, "b") as second:
        _wait(place, events // 8)
        owner, standby = (first, second) if first.said else (second, first)
        owner.kill()
        assert not orders.check(place), "the kill came too late to show anything"
        _wait(place, events)
        assert orders.check(place)
        assert standby.end() == 0, standby.said
        assert int(standby.said.split()[3]) >= events // 8, standby.said


@pytest.mark.soak  # The group detects a stopped process after six seconds.
def test_an_owner_of_the_orders_that_wakes_up_too_late_ends(place: Place) -> None:
    """An owner that wakes up too late names the new one, and ends without an error and without a traceback."""
    events = orders.fill(place)
    with _Process("orders", place, "a") as first, _Process("orders", place, "b") as second:
        _wait(place, events // 8)
        owner = first if first.said else second
        owner.send(signal.SIGSTOP)
        _wait(place, events)
        owner.send(signal.SIGCONT)
        assert owner.wait() == 0, owner.said
        last = owner.said.splitlines()[-1]
        assert last in ("no longer the owner", "fenced: another process is the owner"), owner.said
        assert "Traceback" not in owner.said
        assert orders.check(place)
