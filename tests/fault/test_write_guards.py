"""Guards of the write path that no other test reaches: each one meets a broken client, broker or caller."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from statelog.errors import CheckpointMismatch, ClosedError, Fenced, IncompleteChangeSet, PersistFailed
from statelog.kafka.port import Delivery
from statelog.log import Log
from statelog.log.producers import append_all
from statelog.materializer.round import run_round
from statelog.producer.coordinator import Coordinator, TaskWriter
from statelog.producer.outbox import Outbox
from statelog.producer.settings import WriterSettings, WriterTuning
from statelog.producer.writer import Writer
from statelog.schemas.ledger.handle import Handle, Step
from statelog.schemas.ledger.records import Restart, encode
from statelog.testing.kafka import MemoryProducer
from tests.support.rigs.log import TwinRig, settings_for, twin_rig

pytestmark = pytest.mark.filterwarnings("ignore::statelog.errors.UncommittedChanges")


@pytest.fixture
def rig() -> TwinRig:
    """Return a log's two places, in memory."""
    return twin_rig("l")


@pytest.fixture
def log(rig: TwinRig) -> Iterator[Log]:
    """Yield a new log of one partition."""
    with rig.create(partitions=1, key_groups=2) as created:
        yield created


def _persisted(log: Log, name: str, key: bytes = b"k") -> Handle:
    """Return a handle that an incarnation of this writer persisted and did not commit."""
    with Writer(log, name) as writer:
        writer.put(key, b"v")
        return writer.persist(1).result()


def test_an_adopted_handle_whose_chunk_is_another_is_refused(rig: TwinRig, log: Log) -> None:
    """An adopted handle's chunk is read back before the commit, not believed from the handle."""
    handle = _persisted(log, "w")
    rig.cluster.overwrite("l", 0, handle.entries[0].first_offset, b"somebody else's")
    with Writer(log, "w") as writer, pytest.raises(IncompleteChangeSet):
        writer.adopt(handle)
    with Writer(log, "w") as writer:
        assert writer.last_commit is None


def test_another_writers_handle_is_refused(rig: TwinRig, log: Log) -> None:
    """Another writer's handle is refused by the committer: the ledger does not check a handle's writer."""
    handle = _persisted(log, "first")
    with Writer(log, "second") as writer:
        with pytest.raises(CheckpointMismatch, match="another writer"):
            writer.adopt(handle)
        writer.commit(checkpoint_id=1)
    with Coordinator(log, "third") as coordinator, pytest.raises(CheckpointMismatch, match="another writer"):
        coordinator.commit([handle], checkpoint_id=1)
    assert rig.state() == {}


@pytest.mark.parametrize("quiet", [False, True])
def test_another_checkpoints_handle_is_refused(rig: TwinRig, log: Log, quiet: bool) -> None:
    """Another checkpoint's handle is refused, under its own id and any other, also if it is empty."""
    handle = _persisted(log, "w")
    if quiet:
        handle = replace(handle, steps=(Step(checkpoint_id=1),))
    with Coordinator(log, "w") as coordinator:
        with pytest.raises(CheckpointMismatch, match="another checkpoint"):
            coordinator.commit([handle], checkpoint_id=2)
        coordinator.commit([handle], checkpoint_id=1)
    assert rig.state() == ({} if quiet else {b"k": b"v"})


def test_handles_of_two_lives_are_not_one_commit(rig: TwinRig, log: Log) -> None:
    """Handles of two incarnations are never one checkpoint, which has one nonce."""
    earlier = _persisted(log, "w")
    with Coordinator(log, "w") as coordinator:
        task = TaskWriter(log.kafka.producer(), coordinator.task(1), slot=0)
        task.put(b"other", b"w")
        with pytest.raises(CheckpointMismatch, match="different lives"):
            coordinator.commit([earlier, task.finish()], checkpoint_id=1, unique_keys=True)
    assert rig.state() == {}


def test_offsets_that_do_not_ascend_fail_the_change_set(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports whose offsets do not ascend in the order of sending fail the change set."""
    send = MemoryProducer.send

    def backwards(
        self: MemoryProducer, topic: str, partition: int, value: bytes, on_delivery: Callable[[Delivery], None]
    ) -> bool:
        return send(self, topic, partition, value, lambda found: on_delivery(found._replace(offset=10 - found.offset)))

    with Writer(log, "w", settings=WriterSettings(_tuning=WriterTuning(chunk_bytes=100))) as writer:
        monkeypatch.setattr(MemoryProducer, "send", backwards)
        for i in range(4):
            writer.put(b"%d" % i, bytes(80))
        with pytest.raises(PersistFailed, match="out of order"):
            writer.persist(1).result()


def test_after_a_failure_nothing_more_is_sent(log: Log) -> None:
    """After a failure nothing more is sent: a change set behind a failed one can never count."""
    with Writer(log, "w") as writer:
        producer = log.kafka.producer()
        outbox = Outbox(producer, writer.grant, WriterSettings())
        outbox.fail(1, "the disk of a broker burns")
        with pytest.raises(PersistFailed):
            outbox.send(2, 0, b"chunk", lambda _: None)
        assert producer.in_flight == 0
        producer.close()


def test_a_failed_writer_says_why(log: Log) -> None:
    """The error that failed a writer is the cause of all later refusals, without its frames.

    A foreign error has already been raised by itself.
    """
    writer = Writer(log, "w")
    with Writer(log, "w") as newer:
        newer.commit()
    writer.put(b"k", b"v")
    with pytest.raises(Fenced) as fenced:
        writer.commit()
    for _ in range(2):
        with pytest.raises(ClosedError) as raised:
            writer.put(b"k", b"v")
        cause = raised.value.__cause__
        assert isinstance(cause, Fenced)
        assert (str(cause), cause.__traceback__) == (str(fenced.value), None)
    writer.close()
    with pytest.raises(ZeroDivisionError), Writer(log, "w") as writer:
        raise ZeroDivisionError
    with pytest.raises(ClosedError) as raised:
        writer.commit()
    assert raised.value.__cause__ is None


def test_a_writer_goes_on_behind_a_loss_that_was_accepted_to_be_told_that_it_is_over(
    rig: TwinRig, log: Log, tmp_path: Path
) -> None:
    """A writer goes on behind an accepted loss to Fenced: its fold continues from the snapshot behind that.

    It never raises that its client is closed.
    """
    with Writer(log, "idle") as idle, rig.open() as other:
        idle.commit()
        run_round(other, settings_for(tmp_path))
        position = other.ledger.end()
        restart = Restart(digest=log.descriptor.digest, position=position, reason="disk", operator="me")
        with closing(other.kafka.producer()) as producer:
            assert append_all(producer, log.ledger_topic, 0, encode(restart), 1) == [position]
        with Writer(other, "w") as writer:
            writer.commit()
        run_round(other, settings_for(tmp_path))
        with pytest.raises(Fenced):
            idle.commit()
