"""Recovery against damage and races, on the twins: the state, a warned fallback, or a typed error with facts."""

from collections.abc import Callable

import pyarrow as pa
import pytest

from statelog.errors import (
    AnchorMismatch,
    BeyondEnd,
    CorruptChunk,
    CorruptManifest,
    CorruptRun,
    DataLoss,
    IdentityChanged,
    IncompleteChangeSet,
    NotFound,
    OffsetGone,
    StatelogError,
    StoreUnavailable,
)
from statelog.log import Log, accept_data_loss
from statelog.producer.settings import WriterSettings, WriterTuning
from statelog.producer.writer import Writer
from statelog.reading.claims import list_leases
from statelog.recovery import Recovery
from statelog.recovery.recover import recover
from statelog.recovery.settings import RecoverySettings, RecoveryTuning
from statelog.schemas.changes.chunk import VerifiedChunks, decode_batches, decode_head, encode_chunk
from statelog.schemas.changes.few import key_groups_in
from statelog.schemas.ledger.records import LossRange
from statelog.schemas.names import MANIFESTS
from statelog.store.files import ManifestChain
from tests.support.rigs.history import SnapshotTwins
from tests.support.rigs.log import twin_rig
from tests.support.told import told


def _fails(twins: SnapshotTwins, kind: type[StatelogError], attempts: int = 5) -> StatelogError:
    """Return the error of a recovery that must fail, and leave no trace."""
    with pytest.raises(kind) as caught:
        recover(twins.log, settings=RecoverySettings(_tuning=RecoveryTuning(attempts=attempts))).to_dict()
    assert type(caught.value) is kind
    assert caught.value.hint
    assert list_leases(twins.log.store) == []
    return caught.value


# ---- the tail


@pytest.mark.usefixtures("busy_ledger")
def test_a_damaged_chunk_stops_the_recovery() -> None:
    """A committed chunk with a flipped byte is CorruptChunk, and no state comes out."""
    twins = SnapshotTwins(truncate=True)
    record = twins.cluster.records("rig", 1)[-1]
    twins.cluster.overwrite("rig", 1, record.offset, record.value[:-1] + bytes([record.value[-1] ^ 1]))
    with pytest.raises(CorruptChunk) as caught:
        recover(twins.log).to_dict()
    assert (caught.value.facts["partition"], caught.value.facts["offset"]) == (1, record.offset)


def _with_value(chunk: bytes, log: Log, value: bytes | None) -> bytes:
    """Return a chunk of the same head and counts, with its own right checksum, in which each change has this value."""
    found = decode_head(chunk)
    assert found is not None
    head, at = found
    batch = decode_batches(VerifiedChunks.of(chunk, head, at), log.change_schema(0))
    forged = batch.set_column(3, "value", pa.array([value] * batch.num_rows, pa.binary()))
    return encode_chunk(
        epoch=head.epoch,
        nonce=head.nonce,
        sqn=head.sqn,
        index=head.index,
        value_schema_id=0,
        witness=head.place,
        key=b"",
        key_groups=key_groups_in(forged),
        body=memoryview(forged.serialize()),
    ).value


@pytest.mark.usefixtures("busy_ledger")
def test_of_many_small_chunks_the_corrupt_one_is_named() -> None:
    """One corrupt chunk of many small ones, decoded together, is named; a put without a value by its offset."""
    rig = twin_rig("log")
    with rig.create(partitions=1, key_groups=2) as log:
        with Writer(log, "w") as writer:
            for number in range(1, 9):
                writer.put(b"%d" % number, b"value")
                writer.commit(checkpoint_id=number)
        record = rig.cluster.records("log", 0)[4]
        rig.cluster.overwrite("log", 0, record.offset, _with_value(record.value, log, None))
        with pytest.raises(CorruptChunk, match="neither a put") as caught:
            recover(log).to_dict()
    assert (caught.value.facts["partition"], caught.value.facts["offset"]) == (0, record.offset)


@pytest.mark.usefixtures("busy_ledger")
def test_a_replaced_chunk_is_an_incomplete_change_set() -> None:
    """A stranger's record in the place of a committed chunk is reported with partition, offsets and counts."""
    twins = SnapshotTwins(truncate=True)
    record = twins.cluster.records("rig", 1)[-1]
    twins.cluster.overwrite("rig", 1, record.offset, b"a stranger's")
    error = _fails(twins, IncompleteChangeSet)
    assert (error.facts["partition"], error.facts["first_offset"]) == (1, record.offset)
    assert (error.facts["chunks_found"], error.facts["chunks_listed"]) == (0, 1)


@pytest.mark.usefixtures("busy_ledger")
def test_a_whole_chunk_in_the_place_of_another_is_noticed() -> None:
    """A chunk of the same head and counts, with its own right checksum, is not the one that the commit lists."""
    twins = SnapshotTwins(truncate=True)
    record = twins.cluster.records("rig", 1)[-1]
    twins.cluster.overwrite("rig", 1, record.offset, _with_value(record.value, twins.log, b"evil"))
    error = _fails(twins, IncompleteChangeSet)
    assert (error.facts["partition"], error.facts["offset"]) == (1, record.offset)
    assert "differ" in error.message


@pytest.mark.usefixtures("busy_ledger")
def test_chunks_that_changed_places_are_noticed() -> None:
    """At a listed offset lies the chunk of the listed index, or the error names the offset."""
    rig = twin_rig("log")
    with rig.create(partitions=1, key_groups=2) as log:
        with Writer(log, "w", settings=WriterSettings(_tuning=WriterTuning(chunk_bytes=300))) as writer:
            for i in range(8):
                writer.put(b"%d" % i, bytes(100))
            writer.commit(checkpoint_id=1)
        first, second = rig.cluster.records("log", 0)[:2]
        rig.cluster.overwrite("log", 0, first.offset, second.value)
        rig.cluster.overwrite("log", 0, second.offset, first.value)
        with pytest.raises(IncompleteChangeSet, match="another chunk") as caught:
            recover(log).to_dict()
    assert caught.value.facts["offset"] == first.offset


@pytest.mark.usefixtures("busy_ledger")
def test_an_accepted_loss_is_passed() -> None:
    """An accepted loss is not missed, and all the rest comes out."""
    twins = SnapshotTwins(truncate=True)
    record = twins.cluster.records("rig", 1)[-1]
    twins.cluster.overwrite("rig", 1, record.offset, b"a stranger's")
    accept_data_loss(twins.log, [LossRange(1, record.offset, record.offset + 1)], reason="test", operator="test")
    before = twins.rig.state_at(twins.rig.manifests[-1].position)
    kept = {key: before[key] if twins.rig.partition(key) == 1 else value for key, value in twins.expected.items()}
    assert recover(twins.log).to_dict() == kept


@pytest.mark.usefixtures("busy_ledger")
def test_a_lost_tail_of_the_data_is_beyond_the_end() -> None:
    """A partition that ends below its committed position is BeyondEnd with both numbers."""
    twins = SnapshotTwins(truncate=True)
    end = twins.log.data_offsets()[2].end
    twins.cluster.lose_tail("rig", 2, end - 1)
    error = _fails(twins, BeyondEnd)
    assert (error.facts["partition"], error.facts["end_offset"], error.facts["committed_position"]) == (2, end - 1, end)


@pytest.mark.usefixtures("at_once")
def test_a_lost_tail_of_the_ledger_is_beyond_the_end() -> None:
    """A ledger that ends below the newest snapshot is BeyondEnd, without a silent older snapshot."""
    twins = SnapshotTwins(truncate=True)
    position = twins.rig.manifests[-1].position
    twins.cluster.lose_tail("rig.ledger", 0, position - 1)
    error = _fails(twins, BeyondEnd)
    assert (error.facts["position"], error.facts["log_end"]) == (twins.log.position, position - 1)


@pytest.mark.usefixtures("busy_ledger")
@pytest.mark.parametrize("topic", ["rig", "rig.ledger"])
def test_another_record_below_the_snapshot_is_an_anchor_mismatch(topic: str) -> None:
    """A changed record that the snapshot was built on is reported with topic and offset."""
    twins = SnapshotTwins(truncate=False)
    anchor = next(a for a in twins.rig.manifests[-1].anchors if a.topic == ("data" if topic == "rig" else "ledger"))
    twins.cluster.overwrite(topic, anchor.partition, anchor.offset, b"another")
    error = _fails(twins, AnchorMismatch)
    assert (error.facts["topic"], error.facts["offset"]) == (topic, anchor.offset)


@pytest.mark.usefixtures("busy_ledger")
@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("topic", ["rig", "rig.ledger"])
def test_a_topic_made_anew_is_another_log(topic: str) -> None:
    """A topic that was deleted and re-created under its name is refused before any read."""
    twins = SnapshotTwins(truncate=False)
    twins.cluster.recreate_topic(topic)
    error = _fails(twins, IdentityChanged)
    assert error.facts["expected"] != error.facts["found"]


@pytest.mark.usefixtures("busy_ledger")
def test_a_log_that_starts_too_high_is_offset_gone() -> None:
    """If more was truncated than any snapshot covers, planning again is bounded and ends with the offsets."""
    twins = SnapshotTwins(truncate=True)
    end = twins.log.data_offsets()[0].end
    twins.cluster.truncate("rig", 0, end)
    plans: list[str] = []
    twins.hooked(lambda method, path: plans.append(path) if (method, path) == ("list", "manifests/") else None)
    error = _fails(twins, OffsetGone, attempts=3)
    assert (error.facts["partition"], error.facts["log_start"]) == (0, end)
    assert len(plans) == 3


# ---- the snapshot


def _damage_manifest(twins: SnapshotTwins) -> None:
    twins.disk.flip_byte(f"rig/{MANIFESTS.path(twins.rig.manifests[-1].number)}", -40)


def _damage_run(twins: SnapshotTwins) -> None:
    twins.disk.flip_byte(f"rig/{twins.run_of(-1)}", 30)


def _cut_run(twins: SnapshotTwins) -> None:
    twins.disk.truncate(f"rig/{twins.run_of(-1)}", 50)


def _lose_run(twins: SnapshotTwins) -> None:
    twins.disk.remove(f"rig/{twins.run_of(-1)}")


_DAMAGES = [
    (_damage_manifest, CorruptManifest),
    (_damage_run, CorruptRun),
    (_cut_run, CorruptRun),
    (_lose_run, NotFound),
]


@pytest.mark.parametrize(("damage", "_kind"), _DAMAGES)
@pytest.mark.parametrize("truncate", [False, True])
def test_a_damaged_newest_snapshot_falls_back_loudly(
    damage: Callable[[SnapshotTwins], None], _kind: type[StatelogError], truncate: bool
) -> None:
    """A damaged newest snapshot falls back to the one before, with the exact state, a warning and statistics."""
    twins = SnapshotTwins(truncate=truncate)
    damage(twins)
    found: list[Recovery] = []
    for _ in range(2):  # Each time warns.
        with told("falling back"):
            found.append(recover(twins.log))
            assert found[-1].to_dict() == twins.expected
    recovery = found[-1]
    assert recovery.plan.manifest_number == twins.rig.manifests[-2].number
    assert (len(recovery.warnings), recovery.statistics().damaged_snapshots) == (1, 1)
    assert recovery.position == twins.rig.end()


def test_a_manifest_that_is_damaged_once_it_was_read_falls_back_as_loudly() -> None:
    """A manifest that is damaged after its read falls back with the same warning: the check under the lease finds it.

    A listing shows the same file, so the plan trusts the read.
    """
    twins = SnapshotTwins(truncate=False)
    assert recover(twins.log).to_dict() == twins.expected
    _damage_manifest(twins)
    with told("falling back"):
        recovery = recover(twins.log)
        assert recovery.to_dict() == twins.expected
    assert recovery.plan.manifest_number == twins.rig.manifests[-2].number


@pytest.mark.usefixtures("busy_ledger")
@pytest.mark.parametrize(("damage", "kind"), _DAMAGES)
def test_a_damaged_snapshot_without_a_way_around_is_the_error(
    damage: Callable[[SnapshotTwins], None], kind: type[StatelogError]
) -> None:
    """The damage itself is the error if the log does not reach back to an older snapshot."""
    twins = SnapshotTwins(truncate=False)
    twins.rig.truncate(twins.rig.manifests[-1])
    damage(twins)
    with told():
        error = _fails(twins, kind)
    assert error.facts


def test_without_any_snapshot_left_the_log_itself_is_enough() -> None:
    """The whole log is replayed if all manifests are damaged and nothing was truncated."""
    twins = SnapshotTwins(truncate=False)
    for manifest in twins.rig.manifests:
        twins.disk.flip_byte(f"rig/{MANIFESTS.path(manifest.number)}", -40)
    with told():
        recovery = recover(twins.log)
        assert recovery.to_dict() == twins.expected
    assert recovery.plan.manifest is None
    assert len(recovery.warnings) == 3


@pytest.mark.usefixtures("busy_ledger")
def test_a_missing_manifest_folder_is_not_an_empty_log() -> None:
    """A truncated log without its manifests is OffsetGone, never an empty state; a client that read them knows more."""
    twins = SnapshotTwins(truncate=True)
    for manifest in twins.rig.manifests:
        twins.disk.remove(f"rig/{MANIFESTS.path(manifest.number)}")
    with pytest.raises(StoreUnavailable, match="went back"):
        recover(twins.log)
    twins.log.manifests = ManifestChain(twins.log.store, twins.log.descriptor)
    with pytest.raises(DataLoss):
        recover(twins.log)
