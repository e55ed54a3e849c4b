"""Anchors on the in-memory cluster detect replaced records, and prove nothing about removed ones."""

import pytest

from statelog.errors import AnchorMismatch
from statelog.log import Log
from statelog.producer.writer import Writer
from statelog.schemas.changes.replay_plan import PartitionCheck, ReplayPlan
from statelog.schemas.ledger.place import LastRecord
from statelog.schemas.ledger.records import LossRange
from statelog.schemas.snapshot.manifest import Anchor
from tests.support.rigs.log import TwinRig, twin_rig


def written() -> tuple[TwinRig, Log, tuple[Anchor, ...]]:
    """Return a log with a commit in every partition, and the anchors of its present state."""
    rig = twin_rig("log")
    log = rig.create()
    with Writer(log, "w") as writer:
        for i in range(64):
            writer.put(b"k%d" % i, b"v")
        writer.commit(checkpoint_id=1)
    return rig, log, log.evidence.take_anchors(log.history.read().state, None)


def of(anchors: tuple[Anchor, ...], topic: str) -> list[Anchor]:
    """Return the anchors of one topic."""
    return [anchor for anchor in anchors if anchor.topic == topic]


@pytest.mark.usefixtures("busy_ledger")
def test_unchanged_records_pass() -> None:
    """Every partition and the ledger have an anchor that holds while nothing changes."""
    _, log, anchors = written()
    assert [anchor.partition for anchor in of(anchors, "data")] == [0, 1, 2, 3]
    assert len(of(anchors, "ledger")) == 1
    for topic in ("data", "ledger"):
        log.evidence.check_anchors(of(anchors, topic))


@pytest.mark.usefixtures("busy_ledger")
@pytest.mark.parametrize("topic", ["data", "ledger"])
def test_another_record_in_the_place_is_noticed(topic: str) -> None:
    """A topic that lost its tail and grew again has other records at the same offsets, which an anchor detects."""
    rig, log, anchors = written()
    anchor = of(anchors, topic)[-1]
    name = log.data_topic if topic == "data" else log.ledger_topic
    rig.cluster.overwrite(name, anchor.partition, anchor.offset, b"somebody else's")
    with pytest.raises(AnchorMismatch) as caught:
        log.evidence.check_anchors(of(anchors, topic))

    assert caught.value.facts["offset"] == anchor.offset


def test_one_that_is_read_with_what_follows_must_come() -> None:
    """A replay begins with the anchored record. Its absence at that offset is another history, too."""
    before = LastRecord.of(4, b"chunk")
    plan = ReplayPlan(ranges={0: ((5, 6), (40, 41))}, listed={0: {}}, accepted=(), before={0: before})
    check = PartitionCheck("log", 0, plan)
    assert check.ranges == ((4, 6), (40, 41))
    with pytest.raises(AnchorMismatch) as caught:
        check.finish()
    assert caught.value.facts["offset"] == 4

    with pytest.raises(AnchorMismatch):
        check.compare(5, b"chunk")
    check.compare(4, b"chunk")
    check.compare(5, b"void")
    check.finish()


@pytest.mark.usefixtures("busy_ledger")
def test_truncated_and_given_up_records_prove_nothing() -> None:
    """A truncated record, or one whose loss was accepted, is not compared."""
    rig, log, anchors = written()
    first, second = of(anchors, "data")[:2]
    rig.cluster.truncate(log.data_topic, first.partition, first.offset + 1)
    rig.cluster.overwrite(log.data_topic, second.partition, second.offset, b"somebody else's")
    lost = LossRange(second.partition, second.offset, second.offset + 1)

    log.evidence.check_anchors(of(anchors, "data"), (lost,))


def test_nothing_to_compare_asks_nobody() -> None:
    """Without anchors, the broker is not asked."""
    rig, log, _ = written()
    rig.cluster.set_down(is_down=True)

    log.evidence.check_anchors([])
