"""The age of the log: the oldest change in no snapshot, and the alarm that follows from its age."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from statelog.environment import Environment, inline
from statelog.errors import OffsetGone
from statelog.materializer.control import Control
from statelog.materializer.daemon import Materializer
from statelog.materializer.events import Event, EventKind
from statelog.materializer.round import run_round
from statelog.materializer.statistics import MaterializerStatistics
from statelog.materializer.tail import tail_of
from tests.support.rigs.daemon import DaemonBench
from tests.support.rigs.log import TwinLog, settings_for


@pytest.mark.usefixtures("busy_ledger")
def test_the_tail_is_what_was_committed_since_the_newest_snapshot(tmp_path: Path) -> None:
    """The tail accumulates commits, changes and bytes over checks and retains the oldest time. A round empties it."""
    twin = TwinLog()
    twin.write({b"a": b"1"})
    twin.environment.run(run_round, twin.open(), settings_for(tmp_path))
    log = twin.open()
    empty = tail_of(log, None, twin.clock())
    assert (empty.number, empty.commits, empty.changes, empty.size_bytes, empty.age_s) == (1, 0, 0, 0, 0.0)

    twin.now_s += 10
    twin.write({b"a": b"2", b"b": b"1"})
    twin.now_s += 10
    twin.write({b"c": None})
    twin.now_s += 10
    found = tail_of(log, empty, twin.clock())
    sizes = sum(len(record.value) for p in range(3) for record in twin.cluster.records(log.data_topic, p))
    assert (found.commits, found.changes, found.age_s) == (2, 3, 20.0)
    assert 0 < found.size_bytes < sizes
    newest = log.manifests.newest()
    assert newest is not None
    assert found.snapshot_bytes == sum(run.size_bytes for run in newest.runs)

    twin.environment.run(run_round, twin.open(), settings_for(tmp_path))
    after = tail_of(log, None, twin.clock())
    assert (after.number, after.commits, after.age_s) == (2, 0, 0.0)


def test_a_commit_without_a_timestamp_is_as_old_as_its_first_look(tmp_path: Path) -> None:
    """A commit without a timestamp is as old as its first check, and not as old as 1970."""
    twin = TwinLog(stamps=False)
    twin.write({b"a": b"1"})
    log = twin.open()
    first = tail_of(log, None, twin.clock())
    assert first.age_s == 0.0
    twin.now_s += 5
    assert tail_of(log, first, twin.clock()).age_s == 5.0


def test_a_commit_of_a_time_to_come_is_as_old_as_its_first_look() -> None:
    """A commit with a future timestamp is as old as its first check."""
    twin = TwinLog()
    twin.now_s += 3600
    twin.write({b"a": b"1"})
    twin.now_s -= 3600
    log = twin.open()
    first = tail_of(log, None, twin.clock())
    assert first.age_s == 0.0
    twin.now_s += 5
    assert tail_of(log, first, twin.clock()).age_s == 5.0


@pytest.mark.parametrize("skew_s", [-3600, 0, 3600])
def test_a_writers_clock_does_not_silence_the_alarm_or_sound_it(tmp_path: Path, skew_s: float) -> None:
    """Where the ledger has the writers' timestamps, a change ages from the daemon's first check on."""
    bench = DaemonBench(tmp_path, alarm_age_s=450.0, failures_tolerated=99)
    bench.twin.cluster.set_topic_config(f"{bench.twin.name}.ledger", {"message.timestamp.type": "CreateTime"})
    bench.at(50, lambda: _write_at(bench.twin, skew_s))
    bench.broken_method = "upload"
    ages: list[float] = []
    for time_s in (95, 595):
        bench.at(time_s, lambda: ages.append(bench.daemon.statistics().age_s))
    bench.run(until_s=600)
    assert ages[0] <= 45
    assert 500 <= ages[1] <= 545


def _write_at(twin: TwinLog, skew_s: float) -> None:
    """Write from a machine whose clock is wrong."""
    twin.now_s += skew_s
    twin.write({b"a": b"1"})
    twin.now_s -= skew_s


def test_the_watchdog_alarms_once_per_age_and_calms_when_the_age_falls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watchdog reports the log's age, repeats after each further age, and resets once the age falls."""
    bench, age_s = DaemonBench(tmp_path, interval_s=1.0, alarm_age_s=10.0), [0.0]
    monkeypatch.setattr(bench.daemon, "statistics", lambda: MaterializerStatistics(age_s=age_s[0]))
    for age_s[0] in (9.0, 10.0, 11.0, 19.0, 20.0, 29.0):
        bench.daemon.check_age()
    assert [alarm.facts for alarm in bench.events] == [{"age_s": 10.0}, {"age_s": 20.0}]
    for age_s[0] in (0.0, 9.0, 10.0):
        bench.daemon.check_age()
    assert [alarm.facts["age_s"] for alarm in bench.events] == [10.0, 20.0, 10.0]
    assert {alarm.kind for alarm in bench.events} == {EventKind.LOG_AGE_ALARM}


def test_the_age_is_that_of_the_oldest_change_in_no_snapshot(tmp_path: Path) -> None:
    """The age grows while a change is in no snapshot and is small otherwise. A restart does not reduce it."""
    bench = DaemonBench(tmp_path, interval_s=1000.0)
    ages: list[tuple[float, float]] = []
    for time_s in (90, 250):
        bench.at(time_s, lambda: ages.append((bench.now_s, bench.daemon.statistics().age_s)))
    bench.at(100, lambda: bench.twin.write({b"a": b"1"}))
    bench.run(until_s=300)
    assert ages[0][1] <= 30
    assert ages[1] == (250, 150.0)

    def end(_bell: threading.Event, _delay_s: float) -> None:
        control.stop()

    environment = Environment(clock=lambda: 0.0, wall_clock=bench.twin.clock, wait=end, start=inline)
    control = environment.run(Control)
    restarted = environment.run(
        Materializer,
        bench.log,
        settings_for(tmp_path, interval_s=1000.0, jitter=1.0),
        control=control,
    )
    restarted.run()
    assert restarted.statistics().age_s == 200.0


def test_rounds_that_are_skipped_by_mistake_do_not_calm_the_watchdog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A materialization that stopped without a failure alarms, since the log's age counts, and not the rounds."""

    def has_no_news(_newest: object, _target: object) -> bool:
        return False

    monkeypatch.setattr("statelog.materializer.round.Round._has_news", has_no_news)
    bench = DaemonBench(tmp_path, alarm_age_s=500.0)
    bench.at(50, lambda: bench.twin.write({b"a": b"1"}))
    bench.run(until_s=600)
    assert bench.daemon.statistics().skipped == 6
    assert bench.daemon.statistics().age_s == 550.0


def test_an_idle_log_stays_young_whatever_becomes_of_its_rounds(tmp_path: Path) -> None:
    """An idle log without committed changes never alarms, as long as the ledger is readable."""
    bench = DaemonBench(tmp_path, interval_s=1000.0, failures_tolerated=9)
    bench.run(until_s=5000)
    assert bench.daemon.statistics().age_s <= 30


def test_no_news_is_no_good_news(tmp_path: Path) -> None:
    """While the ledger is unreadable, the age counts from the last check: something may have been committed."""
    bench = DaemonBench(tmp_path, interval_s=1000.0)
    bench.at(100, lambda: bench.twin.cluster.set_down(is_down=True))
    bench.run(until_s=500)
    assert 400 <= bench.daemon.statistics().age_s <= 430


def test_a_look_that_hangs_delays_no_round_and_is_not_taken_in_after_it(tmp_path: Path) -> None:
    """A check that a newer round overtook is discarded: neither the age nor the tail follow from it."""
    bench = DaemonBench(tmp_path, interval_s=1000.0)
    bench.at(100, bench.hold)
    bench.at(150, bench.go_on, bench.daemon.trigger)
    bench.at(200, bench.release)
    ages: list[float] = []
    bench.at(205, lambda: ages.append(bench.daemon.statistics().age_s))
    bench.run(until_s=210)
    assert bench.rounds == [(0, "interval"), (150, "trigger")]
    assert ages[0] <= 30


class _HangingStart:
    """An environment that starts rounds and checks, and holds one kind until it is released."""

    def __init__(self, bench: DaemonBench, *, looks: bool) -> None:
        self.hanging: list[Callable[[], None]] = []
        self.most = 0
        self._bench = bench
        self._looks = looks
        self._rounds = 0

    def __call__(self, work: Callable[[], None]) -> None:
        """Run or hold the work. A round is noted before it begins, a check is not."""
        is_look, self._rounds = len(self._bench.rounds) == self._rounds, len(self._bench.rounds)
        if is_look != self._looks:
            work()
            return
        self.hanging.append(work)
        self.most = max(self.most, len(self.hanging))

    def release(self) -> None:
        """Let the held work run to its end."""
        while self.hanging:
            self.hanging.pop()()


def test_looks_that_hang_do_not_pile_up(tmp_path: Path) -> None:
    """At most as many checks hang as failures are tolerated, and one more. They resume once the first ends."""
    bench = DaemonBench(tmp_path, failures_tolerated=2)
    bench.start = start = _HangingStart(bench, looks=True)
    ages: list[float] = []
    for time_s in range(2000, 2100, 5):
        bench.at(time_s, start.release)
    bench.at(1990, lambda: ages.append(bench.daemon.statistics().age_s))
    bench.at(2095, lambda: ages.append(bench.daemon.statistics().age_s))
    bench.run(until_s=2100)
    assert (len(bench.rounds), start.most) == (21, 3)
    assert ages[0] == 1990
    assert ages[1] <= 40


def test_a_long_round_on_an_idle_log_does_not_age_it(tmp_path: Path) -> None:
    """A long round on an idle log does not age it, since checks continue while the round is in flight."""
    bench = DaemonBench(tmp_path, interval_s=1000.0)
    bench.start = start = _HangingStart(bench, looks=False)
    ages: list[float] = []
    bench.at(5000, lambda: ages.append(bench.daemon.statistics().age_s), start.release)
    bench.run(until_s=5010)
    assert bench.rounds == [(0, "interval")]
    assert ages[0] <= 30


def test_a_ledger_truncated_past_the_tail_is_looked_at_anew(tmp_path: Path) -> None:
    """A ledger that another materializer truncated past the tail is read from that one's manifest, without an error."""
    bench = DaemonBench(tmp_path, interval_s=1000.0)

    def others() -> None:
        for i in range(3):
            bench.twin.write({b"a": str(i).encode()})
            bench.twin.environment.run(run_round, bench.twin.open(), settings_for(tmp_path))

    bench.at(100, others)
    bench.run(until_s=200)
    tail = bench.daemon.statistics().tail
    assert tail is not None
    assert (tail.number, tail.commits) == (3, 0)


def test_a_tail_does_not_step_over_truncated_commits(tmp_path: Path) -> None:
    """A tail that misses truncated commits raises instead of skipping them."""
    twin = TwinLog()
    twin.write({b"a": b"0"})
    twin.environment.run(run_round, twin.open(), settings_for(tmp_path))
    log = twin.open()
    tail = tail_of(log, None, twin.clock())
    twin.write({b"a": b"1"})
    log.kafka.delete_records(log.ledger_topic, {0: log.kafka.offsets(log.ledger_topic, [0])[0].end})
    with pytest.raises(OffsetGone):
        tail_of(log, tail, twin.clock())


def test_the_watchdog_alarms_while_a_round_hangs(tmp_path: Path) -> None:
    """The alarm comes from the watchdog's own thread while a round hangs."""
    alarmed, twin = threading.Event(), TwinLog()
    twin.write({b"a": b"1"})

    def on_event(event: Event) -> None:
        if event.kind is EventKind.LOG_AGE_ALARM:
            alarmed.set()

    def hang(method: str, path: str) -> None:
        if method == "upload":
            assert alarmed.wait(60), "no alarm came while the round hung"
            daemon.stop()

    settings = settings_for(tmp_path, interval_s=0.01, jitter=0.0, alarm_age_s=0.05)
    daemon = Materializer(twin.open(faults=hang), settings, on_event=on_event)
    daemon.run()
    assert alarmed.is_set()
    assert twin.open().manifests.numbers() == [1]
