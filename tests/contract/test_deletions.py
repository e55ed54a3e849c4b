"""Kafka deletes the records of a log in use: open writers warn and go on, and no writer can be opened.

Rounds go on with an alarm, for their snapshots save the records that Kafka is about to delete.
"""

from pathlib import Path
from typing import Any

import pytest

from statelog.environment import Environment, inline
from statelog.errors import UnsafeTopic
from statelog.log import Log
from statelog.materializer import CompletedRound, Materializer, SkippedRound, run_round, tail_now
from statelog.materializer.events import Event, EventKind
from statelog.materializer.outcome import RoundOutcome
from statelog.producer.writer import Writer
from statelog.recovery import recover
from statelog.schemas.topic_policy import ROUND
from tests.support.rigs.log import LogRig, settings_for
from tests.support.told import lines, told

SETTINGS = [("retention.ms", "86400000"), ("retention.bytes", "1000000000")]


def reason_of(events: list[Event], outcome: RoundOutcome) -> Any:
    """Return the reason of a round's one alarm, which is its outcome's."""
    alarms = [event for event in events if event.kind is EventKind.TOPICS_DELETE]
    assert isinstance(outcome, CompletedRound | SkippedRound)
    assert [event.facts["reason"] for event in alarms] == [outcome.deletions] * bool(outcome.deletions)
    return outcome.deletions


@pytest.mark.parametrize(("setting", "value"), SETTINGS)
def test_a_writer_that_is_open_goes_on_and_says_so_within_a_minute(rig: LogRig, setting: str, value: str) -> None:
    """An open writer goes on and warns within a minute, then every minute until the setting is corrected.

    No commit fails for it.
    """
    now_s = [0.0]
    environment = Environment(clock=lambda: now_s[0], start=inline)
    with environment.run(rig.create) as log, environment.run(Writer, log, "w") as writer:

        def commit() -> None:
            now_s[0] += 1.0
            writer.put(b"k", b"%f" % now_s[0])
            writer.commit()

        commit()
        rig.set_topic_config(log.data_topic, {setting: value})
        for _ in range(2):
            with told(rf"{log.data_topic}: {setting} is {value} and must be -1") as texts:
                for _ in range(60):
                    commit()
            assert len(texts) == 1
        rig.set_topic_config(log.data_topic, {setting: "-1"})
        with lines() as texts:
            for _ in range(120):
                commit()
        assert texts == []


@pytest.mark.parametrize(("setting", "value"), SETTINGS)
@pytest.mark.parametrize("topic", ["data_topic", "ledger_topic"])
def test_a_round_goes_on_and_alarms(rig: LogRig, tmp_path: Path, topic: str, setting: str, value: str) -> None:
    """Every round goes on with an alarm, also one without work, for a log opened before or after the change."""
    events: list[Event] = []
    with rig.create() as log:
        daemon = Materializer(log, settings_for(tmp_path), on_event=events.append)
        with Writer(log, "w") as writer:
            writer.put(b"k", b"v")
            writer.commit()
        rig.set_topic_config(getattr(log, topic), {setting: value})
        found = reason_of(events, daemon.run_once())
        assert f"{getattr(log, topic)}: {setting} is {value} and must be -1" in found
        assert log.manifests.numbers() == [1]
        events.clear()
        assert reason_of(events, daemon.run_once()) == found == daemon.statistics().deletions
        for refused in (lambda: Writer(log, "w"), lambda: recover(log), rig.open):
            with pytest.raises(UnsafeTopic, match=setting):
                refused()
        with Log.open(rig.name, rig.where(), ROUND) as opened:
            assert tail_now(opened).commits == 0
            run_round(opened, settings_for(tmp_path))
        rig.set_topic_config(getattr(log, topic), {setting: "-1"})
        events.clear()
        assert reason_of(events, daemon.run_once()) == daemon.statistics().deletions == ""
        assert recover(log).to_dict() == {b"k": b"v"}


def test_what_no_snapshot_saves_stops_a_round(rig: LogRig, tmp_path: Path) -> None:
    """A round stops on a compacted topic: it could not truncate there, and compaction does not delete by age."""
    with rig.create() as log:
        rig.set_topic_config(log.data_topic, {"cleanup.policy": "compact"})
        with pytest.raises(UnsafeTopic, match=r"cleanup\.policy"):
            run_round(log, settings_for(tmp_path))
