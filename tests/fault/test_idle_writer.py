"""A writer that was idle while the ledger was truncated past its place: it goes on from the newest manifest."""

from pathlib import Path

import pytest

from statelog.errors import Fenced
from statelog.materializer.round import run_round
from statelog.producer.writer import Writer
from statelog.schemas.key_groups import key_group_of, partition_of
from statelog.storage.log.log import Log
from tests.support.rigs.log import TwinLog, settings_for, state_of


def key_in(log: Log, partition: int) -> bytes:
    """A key of this partition."""
    shape = log.descriptor
    for i in range(1_000):
        group = key_group_of(b"k%d" % i, shape.key_type, shape.key_groups)
        if partition_of(group, shape.partitions, shape.key_groups) == partition:
            return b"k%d" % i
    raise AssertionError(partition)


def materialize_past(twin: TwinLog, log: Log, scratch: Path, epoch: int, partition: int) -> bytes:
    """Commits of another writer, and rounds, until the ledger starts above `epoch`. Returns the key that it wrote."""
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
    """Its epoch is in the manifest's folded ledger, so its next commits are valid and seen."""
    twin = TwinLog()
    with twin.open() as log, twin.open() as daemon, Writer(log, "idle", partitions=[1, 2]) as writer:
        materialize_past(twin, daemon, tmp_path, writer.grant.epoch, partition=0)
        mine = key_in(daemon, 1)
        for i in (1, 2):
            writer.put(mine, b"mine %d" % i)
            writer.commit(checkpoint_id=i)

        assert state_of(daemon) == {**twin.model, mine: b"mine 2"}


def test_idle_writer_learns_that_it_was_fenced(tmp_path: Path) -> None:
    """The Open that fenced it is truncated, but the manifest knows that its epoch is not live."""
    twin = TwinLog()
    with twin.open() as log, twin.open() as daemon:
        writer = Writer(log, "idle")
        materialize_past(twin, daemon, tmp_path, writer.grant.epoch, partition=0)
        writer.put(key_in(daemon, 1), b"late")
        with pytest.raises(Fenced):
            writer.commit(checkpoint_id=1)
        writer.close()

        assert state_of(daemon) == twin.model
