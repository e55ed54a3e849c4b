"""The daemon on a real broker: a round that comes early because a restore would take too long, and its figures."""

import queue
import threading
from pathlib import Path
from typing import TypeVar

import pytest

from statelog.materializer import Event, Materializer, Rates, RoundCompleted, RoundSkipped, RoundStarted
from statelog.materializer.restore_time import Speed
from statelog.producer import Writer
from tests.support.broker import Broker
from tests.support.twin_log import settings_for, state_of
from tests.support.writer_rig import real_rig

pytestmark = pytest.mark.broker
_DEADLINE_S = 60.0
E = TypeVar("E")


def _next(events: "queue.Queue[Event]", kind: type[E]) -> E:
    """The next event of a kind."""
    while True:
        event = events.get(timeout=_DEADLINE_S)
        if isinstance(event, kind):
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
            assert _next(events, RoundStarted).cause == "interval"
            _next(events, RoundSkipped)
            with rig.open() as other, Writer(other, "w") as writer:
                for i in range(50):
                    writer.put(b"k%d" % i, b"v")
                writer.commit(1)
            started, completed = _next(events, RoundStarted), _next(events, RoundCompleted)
        finally:
            daemon.stop()
            thread.join(_DEADLINE_S)
        assert not thread.is_alive()
        assert started.cause == "restore budget"
        assert completed.outcome.changes == 50
        assert state_of(log) == model
        known = daemon.statistics()
        assert (known.started, known.completed, known.skipped, known.failed) == (2, 1, 1, 0)
