"""Two clusters behind one name: every open or opening log is refused by another cluster's identity.

This holds also where that cluster has mirrored the topics, at other offsets. On the twins, and on a real broker.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from enum import Enum
from pathlib import Path

import pytest

from statelog.errors import IdentityChanged, PersistFailed
from statelog.history import COMPARE_S, history
from statelog.kafka.port import OffsetRange
from statelog.log import Log, accept_ledger_loss
from statelog.materializer import run_round
from statelog.producer.writer import Writer
from statelog.recovery import AtPosition, Cursor, plan_changes, recover
from tests.support.faults.mirror import mirror
from tests.support.rigs.copies import DOORS
from tests.support.rigs.log import LogRig, settings_for
from tests.support.rigs.table import TableRig
from tests.support.told import told

WAIT_S = 60.0


class Elsewhere(Enum):
    """The part of the log's topics that the other cluster has."""

    NOTHING = "no topics"
    MIRROR = "a byte mirror"
    LATER = "a mirror that began late: lower offsets"
    BESIDE = "a mirror behind other records: higher offsets"


def fail_over(rig: LogRig, elsewhere: Elsewhere) -> dict[str, dict[int, OffsetRange]]:
    """Let another cluster answer from now on; return its topics' offset ranges."""
    kafka, found = rig.kafka(), dict[str, dict[int, OffsetRange]]()
    for topic in (rig.name, f"{rig.name}.ledger"):
        if elsewhere is Elsewhere.NOTHING:
            kafka.delete_topic(topic)
        else:
            mirror(
                kafka, topic, missing=2 * (elsewhere is Elsewhere.LATER), foreign=3 * (elsewhere is Elsewhere.BESIDE)
            )
            spec = kafka.describe_topic(topic)
            assert spec is not None
            found[topic] = dict(kafka.offsets(topic, range(spec.partitions)))
    kafka.close()
    time.sleep(COMPARE_S)
    return found


def commit(writer: Writer) -> None:
    """Commit one more change."""
    writer.put(b"k", b"elsewhere")
    writer.commit()


BY_WHO_HAD_IT_OPEN: tuple[Callable[[Log, Path], object], ...] = (
    *DOORS,
    lambda log, _: plan_changes(log, AtPosition(0)),
    lambda log, _: accept_ledger_loss(log, reason="r", operator="o"),
)


@pytest.mark.parametrize("elsewhere", Elsewhere)
def test_another_cluster_is_refused_at_every_door(
    rig: LogRig, elsewhere: Elsewhere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another cluster is refused by its ids before anything is believed or written.

    The log that was open, a log being opened, and running work all refuse it.
    """
    tables = TableRig(rig, tmp_path / "state")
    with ExitStack() as opened:
        log = opened.enter_context(rig.create())
        writer = opened.enter_context(Writer(log, "w"))
        for number in range(3):
            writer.put(b"k%d" % number, b"v")
            writer.commit()
        run_round(log, settings_for(tmp_path))
        commit(writer)
        cursor = recover(log).stream().apply(lambda _: None)
        standby = opened.enter_context(tables.standby(writer="w"))
        follower = opened.enter_context(recover(log).follow(poll_s=0.01))
        follower.take(WAIT_S)
        before = fail_over(rig, elsewhere)
        for door in BY_WHO_HAD_IT_OPEN:
            with pytest.raises(IdentityChanged):
                door(log, tmp_path)
        with pytest.raises(IdentityChanged):
            recover(log, resume=Cursor.from_json(cursor.to_json()))
        with pytest.raises(IdentityChanged):
            recover(log, at_least=log.place)
        monkeypatch.setattr(history, "IDENTIFY_S", 0.0)  # As if a minute had passed.
        time.sleep(COMPARE_S)
        with told("has failed"), pytest.raises(IdentityChanged):
            standby.refresh()
        with pytest.raises(IdentityChanged):
            while follower.take(WAIT_S) is not None:
                pass
        for opening in (rig.open, tables.open):
            with pytest.raises(IdentityChanged):
                opening()
        kafka = opened.enter_context(closing(rig.kafka()))
        for topic, ends in before.items():
            assert kafka.offsets(topic, sorted(ends)) == ends
        with pytest.raises((IdentityChanged, PersistFailed)):  # The latter where there is nothing to write to.
            commit(writer)
