"""A writer that was idle while the ledger was truncated past its position: it goes on from the newest manifest."""

from pathlib import Path

import pytest

from statelog.environment import Environment
from statelog.errors import Fenced, OutcomeUnknown
from statelog.log import Log
from statelog.materializer.round import run_round
from statelog.producer.writer import Writer
from statelog.schemas.key_groups import key_group_of, partition_of
from statelog.testing.faults import Fate
from tests.fault.test_settle import Clock, LedgerFaults
from tests.support.rigs.log import TwinLog, settings_for, state_of, twin_rig


def key_in(log: Log, partition: int) -> bytes:
    """Return a key of this partition."""
    shape = log.descriptor
    for i in range(1_000):
        group = key_group_of(b"k%d" % i, shape.key_type, shape.key_groups)
        if partition_of(group, shape.partitions, shape.key_groups) == partition:
            return b"k%d" % i
    raise AssertionError(partition)


def materialize_past(twin: TwinLog, log: Log, scratch: Path, epoch: int, partition: int) -> bytes:
    """Commit by another writer, and run rounds, until the ledger starts above `epoch`. Return the key that it wrote."""
    key = key_in(log, partition)
    for i in range(1, 10):
        with twin.open() as other, Writer(other, "busy", partitions=[partition]) as writer:
            writer.put(key, b"%d" % i)
            writer.commit(checkpoint_id=i)
        twin.apply({key: b"%d" % i})
        twin.environment.run(run_round, log, settings_for(scratch))
    assert log.kafka.offsets(log.ledger_topic, [0])[0].start > epoch
    return key


def test_idle_writer_commits_after_truncation(tmp_path: Path) -> None:
    """An idle writer's epoch is in the manifest's folded ledger, so its next commits are valid and visible."""
    twin = TwinLog()
    with twin.open() as log, twin.open() as daemon, Writer(log, "idle", partitions=[1, 2]) as writer:
        materialize_past(twin, daemon, tmp_path, writer.grant.epoch, partition=0)
        mine = key_in(daemon, 1)
        for i in (1, 2):
            writer.put(mine, b"mine %d" % i)
            writer.commit(checkpoint_id=i)

        assert state_of(daemon) == {**twin.model, mine: b"mine 2"}


def test_idle_writer_learns_that_it_was_fenced(tmp_path: Path) -> None:
    """An idle writer learns that it was fenced: the fencing Open is truncated, but the manifest knows."""
    twin = TwinLog()
    with twin.open() as log, twin.open() as daemon:
        writer = Writer(log, "idle")
        materialize_past(twin, daemon, tmp_path, writer.grant.epoch, partition=0)
        writer.put(key_in(daemon, 1), b"late")
        with pytest.raises(Fenced):
            writer.commit(checkpoint_id=1)
        writer.close()

        assert state_of(daemon) == twin.model


@pytest.mark.parametrize("fate", [Fate.DELIVER, Fate.APPEND_UNANSWERED])
@pytest.mark.parametrize("is_lost", [False, True])
def test_a_writer_that_stood_still_is_not_told_that_its_commit_came_too_late(
    tmp_path: Path, fate: Fate, *, is_lost: bool
) -> None:
    """A paused writer's valid commit is not called late, though rounds truncated it and its successor committed more.

    That the commit is no longer visible says nothing: Fenced would say that it does not count.
    """
    faults, clock = LedgerFaults(), Clock()
    rig = twin_rig("s", faults)
    rig.create().close()
    with rig.open() as log, rig.open() as daemon:
        writer = Environment(clock=clock).run(Writer, log, "w")
        writer.put(b"k", b"v")
        handle = writer.persist(1).result()
        faults.fates = [Fate.LOSE if is_lost else fate]
        committing = writer.confirm_async(handle)
        committing.done()
        for i in range(4):
            with rig.open() as other, Writer(other, "w") as newer:
                newer.put(b"l", b"%d" % i)
                newer.commit()
            run_round(daemon, settings_for(tmp_path))
        with pytest.raises(OutcomeUnknown):
            committing.result()
        writer.close()

        assert state_of(daemon) == ({} if is_lost else {b"k": b"v"}) | {b"l": b"3"}
