"""The ledger client: what it returns after a failure half way, and what it notices when the ledger lost records."""

from collections.abc import Callable
from contextlib import closing

import pytest

from statelog.errors import BeyondEnd, BrokerUnavailable, ClosedError, DataLoss, OutcomeUnknown
from statelog.producer.epoch import open_epoch
from statelog.producer.writer import Writer
from statelog.schemas.ledger.fold import Folded, LedgerFold, Void, VoidReason
from statelog.schemas.ledger.handle import NO_CHECKPOINT, Checkpoint
from statelog.schemas.ledger.place import ORIGIN, Place
from statelog.schemas.ledger.records import Commit, LedgerRecord, Open, Restart
from statelog.storage.ledger_client import LedgerClient
from statelog.storage.ledger_tape import append_record
from tests.support.faults.breaking_kafka import BreakingKafka
from tests.support.rigs.log import TwinRig, twin_rig


@pytest.fixture
def rig() -> TwinRig:
    """A log with an Open at 0 and commits at 1, 2 and 3."""
    rig = twin_rig("l")
    with rig.create() as log, Writer(log, "w") as writer:
        for i in (1, 2, 3):
            writer.put(b"k", b"%d" % i)
            writer.commit(checkpoint_id=i)
    return rig


def test_a_read_that_failed_half_way_loses_no_commit(rig: TwinRig) -> None:
    """The same call again returns what was folded before the failure as well."""
    with rig.open() as log:
        broken = BreakingKafka(rig.cluster, 2, BrokerUnavailable("gone for a moment"))
        client = LedgerClient(broken, log.ledger_topic, log.descriptor.identity)
        with pytest.raises(BrokerUnavailable):
            client.read_end()

        assert [found.offset for found in client.read_end()] == [2, 3, 4]


class InterruptedFold(LedgerFold):
    """Ctrl-C right after the record at offset 2 was folded, before anybody else knows."""

    def apply(self, offset: int, record: LedgerRecord | None, record_hash: int = 0) -> Void | None:
        """Fold, then be interrupted."""
        void = super().apply(offset, record, record_hash)
        if offset == 2:
            raise KeyboardInterrupt
        return void


def test_an_interrupt_between_fold_and_list_ends_the_client(rig: TwinRig) -> None:
    """A commit that was folded and not handed on is never skipped: the client refuses to go on."""
    with rig.open() as log:
        client = log.ledger.client()
        client.fold = InterruptedFold(log.descriptor.identity)
        with pytest.raises(KeyboardInterrupt):
            client.read_end()
        with pytest.raises(ClosedError):
            client.read_end()


def test_an_interrupt_inside_a_verdict_ends_the_client(rig: TwinRig) -> None:
    """What is folded by then, and what is not, nobody knows: no other verdict rests on it, nor needs a read to."""
    with rig.open() as log:
        opened = open_epoch(log, "w")
        ledger, offset = opened.ledger, opened.ledger.position
        ledger.fold.apply = interrupted(ledger.fold.apply)  # type: ignore[method-assign]  # this once
        commit = commit_after(ledger, opened.grant.epoch, opened.grant.nonce, 4)
        assert append_record(opened.producer, log.ledger_topic, commit) == offset
        with pytest.raises(KeyboardInterrupt):
            ledger.verdict(offset, commit)
        again = commit_after(ledger, opened.grant.epoch, opened.grant.nonce, 5)
        assert append_record(opened.producer, log.ledger_topic, again) == offset + 1
        with pytest.raises(ClosedError):
            ledger.verdict(offset + 1, again)


def interrupted(apply: Callable[[int, LedgerRecord | None, int], Void | None]) -> Callable[..., Void | None]:
    """Ctrl-C right behind it, once."""
    left = [KeyboardInterrupt()]

    def call(offset: int, record: LedgerRecord | None, record_hash: int) -> Void | None:
        void = apply(offset, record, record_hash)
        if left:
            raise left.pop()
        return void

    return call


def test_a_ledger_that_lost_its_tail_is_noticed_at_its_end(rig: TwinRig) -> None:
    """What was folded and is not there any more is data loss, not an empty answer."""
    with rig.open() as log:
        client = log.ledger.client()
        client.fold_end()
        rig.cluster.lose_tail(log.ledger_topic, 0, 2)
        with pytest.raises(BeyondEnd):
            client.read_end()
        with pytest.raises(BeyondEnd):
            client.fold_end()


def commit_after(log_client: LedgerClient, epoch: int, nonce: bytes, checkpoint_id: int) -> Commit:
    """A quiet commit that continues what the client's fold shows."""
    base = log_client.fold.last_checkpoint("w")
    checkpoint = Checkpoint(checkpoint_id, nonce)
    return Commit.of(
        epoch=epoch, nonce=nonce, base=base, checkpoint=checkpoint, metadata={}, handles=[], witness=ORIGIN
    )


def test_a_record_below_the_folded_position_is_no_valid_one(rig: TwinRig) -> None:
    """After a lost tail our record lands below what was folded: nobody may call it valid."""
    with rig.open() as log:
        opened = open_epoch(log, "w")
        rig.cluster.lose_tail(log.ledger_topic, 0, 2)
        commit = commit_after(opened.ledger, opened.grant.epoch, opened.grant.nonce, 4)
        offset = append_record(opened.producer, log.ledger_topic, commit)
        assert offset == 2
        with pytest.raises(BeyondEnd):
            opened.ledger.verdict(offset, commit)


def test_a_record_of_somebody_else_at_our_offset_is_no_verdict_on_ours(rig: TwinRig) -> None:
    """If another record stands where ours was acknowledged, ours is lost, whatever the other one is."""
    with rig.open() as log, rig.open() as other:
        opened = open_epoch(log, "w", partitions=[0])
        with Writer(other, "x", partitions=[1]) as writer:
            writer.commit(checkpoint_id=1)
            commit = commit_after(opened.ledger, opened.grant.epoch, opened.grant.nonce, 4)
            offset = append_record(opened.producer, log.ledger_topic, commit)
            rig.cluster.lose_tail(log.ledger_topic, 0, offset)
        with Writer(other, "x", partitions=[1]):
            pass
        with pytest.raises(DataLoss):
            opened.ledger.verdict(offset, commit)


def test_a_base_right_behind_our_record_is_no_verdict(rig: TwinRig) -> None:
    """A fold that started anew behind our record has not seen it, so it must not be called valid."""
    with rig.open() as log, rig.open() as other:
        opened = open_epoch(log, "w")
        with Writer(other, "w"):
            commit = commit_after(opened.ledger, opened.grant.epoch, opened.grant.nonce, 4)
            offset = append_record(opened.producer, log.ledger_topic, commit)
            state = log.describe().state
            assert state.position == offset + 1
            rebased = LedgerClient(
                log.kafka,
                log.ledger_topic,
                log.descriptor.identity,
                opened.ledger.folded,
                rebase=lambda: Folded(state, Place(state.position)),
            )
            log.kafka.delete_records(log.ledger_topic, {0: offset + 1})
            with pytest.raises(OutcomeUnknown):
                rebased.verdict(offset, commit)


def test_a_proof_of_loss_ends_where_a_newer_base_begins(rig: TwinRig) -> None:
    """A person accepted the loss, and a round has truncated past that: who was told goes on with the round's state."""
    with rig.open() as log, closing(log.kafka.producer()) as producer:
        topic, identity = log.ledger_topic, log.descriptor.identity
        bases = list[Folded]()
        client = LedgerClient(log.kafka, topic, identity, rebase=lambda: bases[-1])
        seen = Open(
            writer="x",
            partitions=(0,),
            nonce=bytes(16),
            prior=-1,
            last=NO_CHECKPOINT,
            identity=identity,
            witness=Place(99),
        )
        append_record(producer, topic, seen)
        with pytest.raises(BeyondEnd, match="had seen the ledger up to 99"):
            client.read_end()
        append_record(
            producer,
            topic,
            Restart(digest=log.descriptor.digest, position=0, reason="a backup was put back", operator="me"),
        )
        with log.ledger.client() as accepting:
            accepting.fold_end()
            bases.append(accepting.folded)
        log.kafka.delete_records(topic, {0: bases[-1].place.position})
        client.fold_end()
        assert client.position == bases[-1].place.position


def test_void_records_are_told_with_their_reason(rig: TwinRig) -> None:
    """A verdict that needs a read names why the record is void."""
    with rig.open() as log, rig.open() as other:
        opened = open_epoch(log, "w")
        with Writer(other, "w"):
            commit = commit_after(opened.ledger, opened.grant.epoch, opened.grant.nonce, 4)
            void = opened.ledger.verdict(append_record(opened.producer, log.ledger_topic, commit), commit)

    assert void is not None
    assert void.reason is VoidReason.FENCED
