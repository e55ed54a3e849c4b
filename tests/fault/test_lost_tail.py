"""Writers of a log whose brokers lost acknowledged records: an error comes before anything is built on the loss."""

from collections.abc import Callable

import pytest

from statelog.errors import BeyondEnd, ConfigError, Fenced
from statelog.log import Log, accept_data_loss
from statelog.materializer import tail_now
from statelog.producer.settings import WriterSettings, WriterTuning
from statelog.producer.writer import Writer
from statelog.recovery import recover
from statelog.schemas.ledger.records import LossRange
from tests.support.rigs.log import TwinRig, twin_rig

SMALL = WriterSettings(_tuning=WriterTuning(chunk_bytes=1, roll_bytes=1))


@pytest.fixture
def rig() -> TwinRig:
    """Return a log with three commits of one change each, in one partition."""
    rig = twin_rig("l")
    with rig.create(partitions=1, key_groups=2) as log, Writer(log, "w") as writer:
        for i in (1, 2, 3):
            writer.put(b"k%d" % i, b"v")
            writer.commit(checkpoint_id=i)
    return rig


@pytest.mark.usefixtures("busy_ledger")
def test_a_lost_tail_of_the_data_is_told_at_open(rig: TwinRig) -> None:
    """A lost tail of the data is refused at open with the offsets: commits below the committed end would be void."""
    rig.cluster.lose_tail("l", 0, 2)
    with rig.open() as log, pytest.raises(BeyondEnd) as caught:
        Writer(log, "w")

    assert (caught.value.facts["log_end"], caught.value.facts["committed_position"]) == (2, 3)


@pytest.mark.usefixtures("busy_ledger")
@pytest.mark.parametrize("ask", [Log.commits, Log.describe, tail_now])
def test_facts_of_a_ledger_that_lost_its_tail_are_not_told(rig: TwinRig, ask: Callable[[Log], object]) -> None:
    """Facts of a ledger that lost its tail raise: a rescaled job, a person and `statelog describe` rely on them."""
    rig.cluster.lose_tail("l.ledger", 0, 3)
    with rig.open() as log:
        log.patience_s = 0
        with pytest.raises(BeyondEnd):
            ask(log)


@pytest.mark.usefixtures("busy_ledger")
@pytest.mark.parametrize("lost_offsets", [1, 5_000])
def test_writers_go_on_after_a_loss_that_was_given_up(lost_offsets: int) -> None:
    """Writers go on after an accepted loss, however many offsets are missing; so does one concurrent with it."""
    rig = twin_rig("m")
    with rig.create(partitions=1, key_groups=2) as log, Writer(log, "w", settings=SMALL) as writer:
        writer.put(b"kept", b"v")
        writer.commit(checkpoint_id=1)
        for i in range(lost_offsets):
            writer.put(b"k%d" % i, b"lost")
        writer.commit(checkpoint_id=2)
        end = log.data_offsets()[0].end
    assert end > lost_offsets
    rig.cluster.lose_tail("m", 0, 1)
    with rig.open() as log:
        accept_data_loss(log, [LossRange(0, 1, end)], reason="a disk died", operator="me")
        with Writer(log, "w") as writer, rig.open() as other, Writer(other, "x"):
            assert log.data_offsets()[0].end == end
            with pytest.raises(Fenced):
                writer.commit(checkpoint_id=3)
        with Writer(log, "w", expect=2) as writer:
            writer.put(b"new", b"v")
            writer.commit(checkpoint_id=3)
        assert recover(log).to_dict() == {b"kept": b"v", b"new": b"v"}


@pytest.mark.parametrize("lost", [LossRange(0, 0, 4), LossRange(0, -1, 1), LossRange(0, 2, 2), LossRange(1, 0, 1)])
def test_only_committed_offsets_can_be_given_up(rig: TwinRig, lost: LossRange) -> None:
    """Only committed offsets can be accepted as lost: a range beyond them would hide later losses."""
    with rig.open() as log, pytest.raises(ConfigError):
        accept_data_loss(log, [lost], reason="a disk died", operator="me")


def test_a_ledger_that_lost_its_tail_is_told_at_commit(rig: TwinRig) -> None:
    """A writer whose commit gets an offset below its fold does not learn that it is committed."""
    with rig.open() as log:
        writer = Writer(log, "w")
        rig.cluster.lose_tail("l.ledger", 0, 2)
        writer.put(b"k4", b"v")
        with pytest.raises(BeyondEnd):
            writer.commit(checkpoint_id=4)
        writer.close()
