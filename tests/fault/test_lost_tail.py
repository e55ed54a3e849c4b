"""Writers of a log whose brokers lost acknowledged records: told loudly, before anything is built on it."""

import pytest

from statelog.producer.writer import Writer
from statelog.schemas.errors import BeyondEnd, ConfigError
from statelog.schemas.ledger import LossRange
from tests.support.writer_rig import WriterRig, twin_rig


@pytest.fixture
def rig() -> WriterRig:
    """A log with three commits of one change each, in one partition."""
    rig = twin_rig("l")
    with rig.create(partitions=1, key_groups=2) as log, Writer(log, "w") as writer:
        for i in (1, 2, 3):
            writer.put(b"k%d" % i, b"v")
            writer.commit(i)
    return rig


def test_a_lost_tail_of_the_data_is_told_at_open(rig: WriterRig) -> None:
    """Commits would be void for ever, below the committed position; the writer is refused with the offsets instead."""
    assert rig.cluster is not None
    rig.cluster.lose_tail("l", 0, 2)
    with rig.open() as log, pytest.raises(BeyondEnd) as caught:
        Writer(log, "w")

    assert (caught.value.facts["log_end"], caught.value.facts["committed_position"]) == (2, 3)


def test_a_lost_tail_that_was_given_up_lets_the_writer_open(rig: WriterRig) -> None:
    """Once a person has accepted the loss, the writer goes on."""
    assert rig.cluster is not None
    rig.cluster.lose_tail("l", 0, 2)
    with rig.open() as log:
        log.accept_loss([LossRange(0, 2, 3)], reason="a disk died", operator="me")
        Writer(log, "w").close()


@pytest.mark.parametrize("lost", [LossRange(0, 0, 4), LossRange(0, -1, 1), LossRange(0, 2, 2), LossRange(1, 0, 1)])
def test_only_committed_offsets_can_be_given_up(rig: WriterRig, lost: LossRange) -> None:
    """A range beyond what is committed would hide losses that are yet to come."""
    with rig.open() as log, pytest.raises(ConfigError):
        log.accept_loss([lost], reason="a disk died", operator="me")


def test_a_ledger_that_lost_its_tail_is_told_at_commit(rig: WriterRig) -> None:
    """A writer whose commit lands below what it has folded is not told that it is committed."""
    assert rig.cluster is not None
    with rig.open() as log:
        writer = Writer(log, "w")
        rig.cluster.lose_tail("l.ledger", 0, 2)
        writer.put(b"k4", b"v")
        with pytest.raises(BeyondEnd):
            writer.commit(4)
        writer.close()
