"""A materializer logs its events where its caller takes none."""

import logging
from dataclasses import asdict
from pathlib import Path

import pytest

from statelog.errors import BrokerUnavailable
from statelog.materializer import Event, EventKind, Materializer, run_round
from statelog.materializer.events import log_event
from statelog.materializer.outcome import Cleanup, CompletedRound, LostRound, RoundOutcome, SkippedRound
from statelog.materializer.schedule import RoundCause
from tests.support.rigs.log import TwinLog, settings_for

_LOGGER = "statelog.materializer"
_DONE = CompletedRound(
    number=2, position=9, commits=1, changes=1, rows=1, size_bytes=1, read_back_s=0.0, replayed_bytes=1, replay_s=0.0,
    snapshot_bytes=1, runs_merged=0, duration_s=0.0, behind=False, cleanup=Cleanup(held_back=""), unpublished="",
)  # fmt: skip


def _event(kind: EventKind, outcome: RoundOutcome | None = None, **facts: object) -> Event:
    ended = asdict(outcome) if outcome else {}
    return Event(kind=kind, log="l", at_s=0.0, facts={**ended, **facts}, outcome=outcome)


_FAILURE = {"failures_in_a_row": 2, "tolerated": True}
_EVENTS: tuple[tuple[Event, int, str], ...] = (
    (_event(EventKind.STARTED, first_round_s=5.0), logging.INFO, "first round in 5.0 s"),
    (_event(EventKind.ROUND_STARTED, cause=RoundCause.TRIGGER), logging.INFO, "round started (trigger)"),
    (_event(EventKind.ROUND_COMPLETED, _DONE), logging.INFO, "manifest 2 at position 9"),
    (_event(EventKind.ROUND_SKIPPED, SkippedRound(number=2, position=9)), logging.INFO, "position 9"),
    (_event(EventKind.ROUND_LOST, LostRound(number=3)), logging.INFO, "manifest 3"),
    (
        Event(kind=EventKind.ROUND_FAILED, log="l", at_s=0.0, facts=_FAILURE, error=BrokerUnavailable("away")),
        logging.WARNING,
        "2 in a row, going on: away",
    ),
    (_event(EventKind.ROUND_ENDED_LATE, counts=False), logging.INFO, "before its put"),
    (_event(EventKind.CLEANUP_HELD_BACK, reason="a run"), logging.WARNING, "held back, the log grows: a run"),
    (_event(EventKind.OFFSET_UNPUBLISHED, reason="no right"), logging.WARNING, "nothing else depends on it: no right"),
    (_event(EventKind.LOG_AGE_ALARM, age_s=70.0), logging.ERROR, "70.0 s ago"),
    (
        _event(EventKind.RESTORE_BUDGET_OUT_OF_REACH, snapshot_s=9.0, budget_s=8.0),
        logging.WARNING,
        "about 9.0 s of 8.0 s",
    ),
    (_event(EventKind.TOPICS_DELETE, reason="a setting"), logging.ERROR, "correct the topics at once: a setting"),
    (_event(EventKind.SUBSCRIPTION_CAPPED, reader="r", reason="idle"), logging.ERROR, "of reader r was ended: idle"),
    (
        _event(
            EventKind.NEED_AGING,
            topic="l",
            partition=0,
            offset=7,
            held_by="manifest 2",
            age_s=60.0,
            retention_s=100.0,
            is_gone=False,
        ),
        logging.ERROR,
        "manifest 2 needs a record of l[0] that is 60.0 s old, and Kafka deletes records after 100.0 s",
    ),
    (
        Event(
            kind=EventKind.LOG_SET_ASIDE, log="l", at_s=0.0, facts={"retry_s": 60.0}, error=BrokerUnavailable("away")
        ),
        logging.ERROR,
        "opened again in 60.0 s: away",
    ),
    (_event(EventKind.LOG_GONE), logging.INFO, "no such log"),
    (
        _event(
            EventKind.DRILLED, restored_s=3.0, rows=7, position=9, damaged_snapshots=1, compared_with="the log alone"
        ),
        logging.INFO,
        "7 rows restored in 3.0 s, compared with the log alone; damaged snapshots: 1",
    ),
    (
        Event(kind=EventKind.DRILL_FAILED, log="l", at_s=0.0, facts={}, error=BrokerUnavailable("away")),
        logging.ERROR,
        "so would a restore: away",
    ),
    (_event(EventKind.STOPPED), logging.INFO, "stopped"),
)


@pytest.mark.parametrize(
    ("event", "level", "text"), _EVENTS, ids=lambda value: value.kind.value if isinstance(value, Event) else ""
)
def test_an_event_is_a_line(event: Event, level: int, text: str, caplog: pytest.LogCaptureFixture) -> None:
    """Alarms are errors, important events warnings, and the rest information. Each line names the log."""
    with caplog.at_level(logging.INFO, logger=_LOGGER):
        log_event(event)
    ((name, found, line),) = caplog.record_tuples
    assert (name, found, line.startswith("l: "), text in line) == (_LOGGER, level, True, True), line


def test_every_event_has_its_line() -> None:
    """Every event has its own wording."""
    assert {event.kind for event, _, _ in _EVENTS} == set(EventKind)


def test_a_daemon_without_a_listener_logs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A daemon without a listener logs all its events."""
    daemon = Materializer(TwinLog(partitions=1).open(), settings_for(tmp_path))
    daemon.stop()
    with caplog.at_level(logging.INFO, logger=_LOGGER):
        daemon.run()
    assert [line.rpartition(": ")[2].partition(",")[0] for line in caplog.messages] == [
        "materializer started", "materializer stopped",
    ]  # fmt: skip


def test_a_round_logs_what_it_could_not_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round logs that the offsets for lag tools are behind, even if its caller drops the outcome."""
    twin = TwinLog(partitions=1)
    twin.write({b"a": b"1"})
    log = twin.open()

    def refused(*_: object) -> None:
        raise BrokerUnavailable("no group")

    monkeypatch.setattr(log.kafka, "publish_offset", refused)
    twin.environment.run(run_round, log, settings_for(tmp_path))
    ((name, level, line),) = caplog.record_tuples
    assert (name, level, "no group" in line) == (_LOGGER, logging.WARNING, True)
