"""The daemon on a real broker: early rounds and their figures, a broker that stalls, a log that is deleted."""

import queue
import threading
from pathlib import Path

import pytest

from statelog.errors import NotFound, StatelogError, Unavailable
from statelog.log import Log, Where
from statelog.materializer import Event, EventKind, Materializer, Rates
from statelog.materializer.schedule import Speed
from statelog.producer import Writer
from tests.support.rigs.log import real_rig, settings_for, state_of
from tests.support.services.broker import Broker, OwnBroker

pytestmark = pytest.mark.broker
_DEADLINE_S = 60.0


def _next(events: "queue.Queue[Event]", kind: EventKind) -> Event:
    """Return the next event of a kind."""
    while True:
        event = events.get(timeout=_DEADLINE_S)
        if event.kind is kind:
            return event


def test_a_round_starts_early_because_of_the_restore_budget(broker: Broker, log_name: str, tmp_path: Path) -> None:
    """With an interval of hours, a tail that nears the budget is rolled up at once; one that does not waits."""
    rig = real_rig(log_name, broker.bootstrap, tmp_path / "root")
    rig.create().close()
    events: queue.Queue[Event] = queue.Queue()
    slow = Rates(changes=Speed(amount=10, seconds=1))
    settings = settings_for(
        tmp_path, interval_s=1e5, jitter=0.0, alarm_age_s=1e6, restore_budget_s=4.0, restore_spacing_s=0.01
    )
    model: dict[object, object] = {b"k%d" % i: b"v" for i in range(50)}
    with rig.open() as log:
        daemon = Materializer(log, settings, on_event=events.put, rates=slow)
        thread = threading.Thread(target=daemon.run)
        thread.start()
        try:
            assert _next(events, EventKind.ROUND_STARTED).facts["cause"] == "interval"
            _next(events, EventKind.ROUND_SKIPPED)
            with rig.open() as other, Writer(other, "w") as writer:
                for i in range(50):
                    writer.put(b"k%d" % i, b"v")
                writer.commit(checkpoint_id=1)
            started, completed = _next(events, EventKind.ROUND_STARTED), _next(events, EventKind.ROUND_COMPLETED)
        finally:
            daemon.stop()
            thread.join(_DEADLINE_S)
        assert not thread.is_alive()
        assert started.facts["cause"] == "restore budget"
        assert completed.facts["changes"] == 50
        assert state_of(log) == model
        known = daemon.statistics()
        assert (known.started, known.completed, known.skipped, known.failed) == (2, 1, 1, 0)


def test_a_broker_that_stalls_for_longer_than_a_request_may_take_is_outlived(
    own_broker: OwnBroker, log_name: str, tmp_path: Path
) -> None:
    """A broker that answers nobody, with its connections open, fails rounds as unavailable, not damage; they resume."""
    rig = real_rig(log_name, own_broker.bootstrap, tmp_path / "root", {"socket.timeout.ms": "2000"})
    rig.create().close()
    events: queue.Queue[Event] = queue.Queue()
    settings = settings_for(tmp_path, interval_s=0.5, jitter=0.0, alarm_age_s=600.0, failures_tolerated=50)
    with rig.open() as log, rig.open() as other, Writer(other, "w") as writer:
        daemon = Materializer(log, settings, on_event=events.put)
        ended = list[BaseException]()
        thread = threading.Thread(target=lambda: _run(daemon, ended))
        thread.start()
        try:
            writer.put(b"k", b"1")
            writer.commit(checkpoint_id=1)
            _next(events, EventKind.ROUND_COMPLETED)
            own_broker.pause()
            try:
                failed = [_next(events, EventKind.ROUND_FAILED) for _ in range(2)]
            finally:
                own_broker.resume()
            writer.put(b"k", b"2")
            writer.commit(checkpoint_id=2)
            _next(events, EventKind.ROUND_COMPLETED)
        finally:
            daemon.stop()
            thread.join(_DEADLINE_S)
        assert ended == []
        assert all(isinstance(event.error, Unavailable) and event.facts["tolerated"] for event in failed)
        assert state_of(log) == {b"k": b"2"}


def test_a_log_deleted_under_its_daemon_ends_it_as_not_found(broker: Broker, log_name: str, tmp_path: Path) -> None:
    """A log deleted under its daemon ends it as NotFound: nobody is paged for damage."""
    rig = real_rig(log_name, broker.bootstrap, tmp_path / "root")
    rig.create().close()
    events: queue.Queue[Event] = queue.Queue()
    settings = settings_for(tmp_path, interval_s=0.2, jitter=0.0, alarm_age_s=600.0, failures_tolerated=50)
    with rig.open() as log:
        daemon = Materializer(log, settings, on_event=events.put)
        ended = list[BaseException]()
        thread = threading.Thread(target=lambda: _run(daemon, ended))
        thread.start()
        try:
            _next(events, EventKind.ROUND_SKIPPED)
            Log.delete(log_name, Where({"bootstrap.servers": broker.bootstrap}, str(tmp_path / "root")))
            thread.join(_DEADLINE_S)
        finally:
            daemon.stop()
            thread.join(_DEADLINE_S)
    assert [type(error) for error in ended] == [NotFound]


def _run(daemon: Materializer, ended: list[BaseException]) -> None:
    try:
        daemon.run()
    except StatelogError as error:
        ended.append(error)
