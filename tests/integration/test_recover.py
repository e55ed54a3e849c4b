"""Recovery on a real broker and the local file system."""

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from statelog.errors import IdentityChanged, NotFound, OffsetGone
from statelog.kafka.port import TopicSpec
from statelog.log import Log, LogOptions
from statelog.producer.writer import Writer
from statelog.reading.claims import list_leases
from statelog.reading.plan import AtCheckpoint, AtPosition
from statelog.recovery.recover import recover
from statelog.recovery.settings import RecoverySettings, RecoveryTuning
from statelog.schemas.ledger.place import shown_id
from statelog.schemas.topic_policy import TopicRole, topic_config
from tests.support.rigs.history import HistoryRig
from tests.support.rigs.log import where_at
from tests.support.services.broker import Broker
from tests.support.told import told

pytestmark = pytest.mark.broker
_KEYS = [b"key-%d" % i for i in range(500)]


@pytest.fixture
def log(broker: Broker, log_name: str, tmp_path: Path) -> Iterator[Log]:
    """Yield a log of four partitions, deleted at the end."""
    kafka, root = {"bootstrap.servers": broker.bootstrap}, str(tmp_path / "root")
    with Log.create(log_name, where_at(kafka, root), LogOptions(partitions=4, key_groups=16)) as log:
        yield log
        log.kafka.delete_topic(log.data_topic)
        log.kafka.delete_topic(log.ledger_topic)


def _fill(rig: HistoryRig, *, commits: int, snapshot_after: tuple[int, ...] = ()) -> None:
    with Writer(rig.log, "w") as writer:
        for number in range(1, commits + 1):
            changes = [(key, None if i % 7 == number else b"%d-%d" % (number, i)) for i, key in enumerate(_KEYS)]
            rig.commit(writer, number, changes[number:], {"offset": str(number)})
            if number in snapshot_after:
                rig.snapshot()


def test_snapshot_and_tail(log: Log) -> None:
    """A state of runs and tail is exact as dict and table, at the end, at every position and for some key groups."""
    rig = HistoryRig(log)
    _fill(rig, commits=5, snapshot_after=(2, 4))
    expected = rig.state_at(rig.end())
    recovery = recover(log)
    assert recovery.to_dict() == expected
    ordered = recovery.to_arrow(ordered=True)
    assert dict(zip(ordered.column("key").to_pylist(), ordered.column("value").to_pylist(), strict=True)) == expected
    assert recovery.plan.manifest_number == 2
    assert recover(log, key_groups=range(5)).to_dict() == rig.state_at(rig.end(), range(5))
    for commit in rig.history:
        assert recover(log, at=AtPosition(commit.position)).to_dict() == rig.state_at(commit.position)
        assert recover(log, at=AtCheckpoint("w", commit.checkpoint_id)).to_dict() == rig.state_at(commit.position)
    assert list_leases(log.store) == []


def test_after_truncation_only_what_is_held(log: Log) -> None:
    """Once the log is truncated, the newest state is exact, and older positions are NotFound."""
    rig = HistoryRig(log)
    _fill(rig, commits=4, snapshot_after=(1, 3))
    rig.drop(rig.manifests[0])
    rig.truncate(rig.manifests[0])
    assert recover(log).to_dict() == rig.state_at(rig.end())
    with pytest.raises(NotFound) as caught:
        recover(log, at=AtPosition(rig.history[0].position))
    assert caught.value.facts["oldest_position"] == rig.manifests[0].position


def test_an_offset_below_the_log_start_is_told(log: Log) -> None:
    """A log truncated by hand beyond every snapshot is OffsetGone: its recovery never waits or skips."""
    rig = HistoryRig(log)
    _fill(rig, commits=3, snapshot_after=(1,))
    end = log.data_offsets()[2].end
    log.kafka.delete_records(log.data_topic, {2: end})
    with pytest.raises(OffsetGone) as caught:
        recover(log, settings=RecoverySettings(_tuning=RecoveryTuning(attempts=2)))
    assert (caught.value.facts["partition"], caught.value.facts["log_start"]) == (2, end)


def test_a_lost_run_falls_back(log: Log, tmp_path: Path) -> None:
    """A missing run of the file system costs a warning and a longer replay."""
    rig = HistoryRig(log)
    _fill(rig, commits=4, snapshot_after=(1, 3))
    (tmp_path / "root" / log.name / rig.manifests[-1].runs[-1].path).unlink()
    with told():
        recovery = recover(log)
        assert recovery.to_dict() == rig.state_at(rig.end())
    assert recovery.plan.manifest_number == 1


def test_a_topic_made_anew_is_refused(log: Log) -> None:
    """A topic under the same name with another id is another log, and is refused."""
    rig = HistoryRig(log)
    _fill(rig, commits=1)
    old = log.kafka.describe_topic(log.data_topic)
    assert old is not None
    log.kafka.delete_topic(log.data_topic)
    config = topic_config(TopicRole.DATA, 1)
    log.kafka.create_topic(TopicSpec(name=old.name, partitions=old.partitions, replication_factor=1, config=config))
    with pytest.raises(IdentityChanged) as caught:
        recover(log)
    assert caught.value.facts["expected"] == shown_id(old.topic_id)


def test_truncation_between_plan_and_reading(log: Log) -> None:
    """A snapshot that is replaced and cleaned up after the plan costs one more plan, and no state."""
    rig = HistoryRig(log)
    _fill(rig, commits=3, snapshot_after=(1,))
    recovery = recover(log)
    recovery.close()
    rig.snapshot()
    rig.drop(rig.manifests[0])
    rig.truncate(rig.manifests[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert recovery.to_dict() == rig.state_at(rig.end())
    assert recovery.statistics().plans == 2
