"""A stranger's unreadable batch in the data topic stops nobody.

A committed record of that kind is an error, and can be accepted as lost: on the twins and on a real broker.
"""

from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from statelog.errors import ConfigError, Unreadable
from statelog.log import accept_data_loss
from statelog.producer.writer import Writer
from statelog.recovery import plan_changes, read_changes, recover
from statelog.schemas.ledger.records import LossRange
from statelog.testing.kafka import MemoryKafka
from tests.support.rigs.attacked import commit, everybody_goes_on, roll_up, tables_go_on
from tests.support.rigs.kafka import spoil_memory
from tests.support.rigs.log import LogRig, TwinLog, TwinRig
from tests.support.services import stranger

Batch = Callable[[], bytes]
BOMB: Batch = partial(stranger.bomb, 1, 110 << 20)
THREE: Batch = partial(stranger.bomb, 3, 40 << 20)
JUNK: Batch = partial(stranger.junk_behind_a_frame, bytes(50))


def attack(rig: LogRig, batch: Batch) -> None:
    """Write a stranger's batch behind all others in partition 0."""
    if isinstance(rig, TwinRig):
        spoil_memory(MemoryKafka(cluster=rig.cluster), rig.name, 0, 1)
    else:
        stranger.send(rig.bootstrap, rig.name, 0, batch())


@pytest.mark.parametrize("batch", [BOMB, THREE, JUNK], ids=["bomb", "three-bombs", "junk"])
def test_it_stops_nobody(rig: LogRig, batch: Batch, tmp_path: Path) -> None:
    """An unreadable batch stops nobody, between commits and as the last record.

    Openers, recoveries, followers, changes and rounds go on.
    """
    everybody_goes_on(rig, partial(attack, rig, batch), tmp_path)


def test_a_table_opens_past_it(rig: LogRig) -> None:
    """A table opens past a batch between its commits, and behind them."""
    tables_go_on(rig, partial(attack, rig, BOMB))


@pytest.mark.usefixtures("busy_ledger")
def test_a_committed_record_is_told_and_given_up(tmp_path: Path) -> None:
    """A committed record in an unreadable batch is never skipped; the error names the command that accepts the loss.

    After that everything goes on without its changes.
    """
    twin = TwinLog(partitions=1)
    with twin.open() as log:
        for number in (1, 2, 3):
            commit(log, number)
        twin.cluster.spoil(log.data_topic, 0, 1, 2)
        for act in (lambda: recover(log).to_dict(), lambda: roll_up(log, tmp_path)):
            with pytest.raises(Unreadable) as told:
                act()
            assert "statelog accept-loss log --range 0:1-2" in told.value.hint
        facts = told.value.facts
        assert (facts["start_offset"], facts["end_offset"]) == (1, 2)
        accept_data_loss(log, [LossRange(0, 1, 2)], reason="a disk", operator="me")
        assert recover(log).to_dict() == {b"k1": b"v", b"k3": b"v"}
        commit(log, 4)
        roll_up(log, tmp_path)
        assert recover(log).to_dict() == {b"k1": b"v", b"k3": b"v", b"k4": b"v"}


@pytest.mark.usefixtures("busy_ledger")
def test_an_anchor_that_cannot_be_unpacked_is_told(tmp_path: Path) -> None:
    """An anchor that cannot be unpacked is reported: a snapshot was built on it, so it is not skipped."""
    twin = TwinLog(partitions=1)
    with twin.open() as log:
        commit(log, 1)
        roll_up(log, tmp_path)
        twin.cluster.spoil(log.data_topic, 0, 0, 1)
        for act in (lambda: recover(log).to_dict(), lambda: Writer(log, "w").close()):
            with pytest.raises(Unreadable):
                act()
        accept_data_loss(log, [LossRange(0, 0, 1)], reason="a disk", operator="me")
        assert recover(log).to_dict() == {b"k1": b"v"}
        commit(log, 2)


@pytest.mark.usefixtures("busy_ledger")
def test_what_nobody_committed_needs_no_acceptance(rig: LogRig) -> None:
    """Acceptance of uncommitted records is refused behind the committed position: it would hide later losses.

    Below the position it does no harm. Readers go on in either case.
    """
    with rig.create(partitions=1, key_groups=2) as log:
        commit(log, 1)
        attack(rig, BOMB)
        with pytest.raises(ConfigError, match="committed offsets"):
            accept_data_loss(log, [LossRange(0, 1, 2)], reason="junk", operator="me")
        model = commit(log, 2)
        accept_data_loss(log, [LossRange(0, 1, 2)], reason="junk", operator="me")
        assert recover(log).to_dict() == model


@pytest.mark.usefixtures("busy_ledger")
def test_far_away_junk_is_not_fetched() -> None:
    """A hundred records of strangers between two commits are left out of a read; a few are read over."""
    twin = TwinLog(partitions=1)
    with twin.open() as log:
        commit(log, 1)
        spoil_memory(MemoryKafka(cluster=twin.cluster), log.data_topic, 0, 5)
        commit(log, 2)
        spoil_memory(MemoryKafka(cluster=twin.cluster), log.data_topic, 0, 100)
        commit(log, 3)
        plan = plan_changes(log)
        assert plan.replay.ranges == {0: ((0, 7), (107, 108))}
        with closing(iter(read_changes(log, plan))) as changes:
            assert sum(batch.num_rows for batch in changes) == 3
