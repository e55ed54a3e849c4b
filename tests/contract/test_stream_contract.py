"""The promises of a stream, on the in-memory twins and on a real broker with a local store alike."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest

from statelog.errors import NotFound, OffsetGone
from statelog.log import Log, LogOptions
from statelog.materializer.outcome import CompletedRound
from statelog.materializer.round import run_round
from statelog.materializer.settings import MaterializerSettings
from statelog.producer.writer import Writer
from statelog.reading.claims import list_leases
from statelog.recovery.changes import CommitFeed
from statelog.recovery.recover import recover
from statelog.recovery.settings import RecoverySettings, RecoveryTuning
from statelog.schemas.snapshot.retention import RetentionPolicy
from tests.support.rigs.history import HistoryRig, Reader, history_rig
from tests.support.rigs.log import where_at
from tests.support.services.broker import Broker

_BUDGET_BYTES = 64 * 1024
_PATIENCE_S = 120.0


@pytest.fixture(params=["twin", pytest.param("real", marks=pytest.mark.broker)])
def rig(request: pytest.FixtureRequest, log_name: str, tmp_path: Path) -> Iterator[HistoryRig]:
    """Yield an empty log of three partitions, in memory or real."""
    if request.param == "twin":
        yield history_rig(name=log_name)
        return
    kafka = {"bootstrap.servers": cast("Broker", request.getfixturevalue("broker")).bootstrap}
    with Log.create(
        log_name,
        where_at(kafka, tmp_path / "root"),
        LogOptions(partitions=3, key_groups=8),
    ) as log:
        yield HistoryRig(log)
        log.kafka.delete_topic(log.data_topic)
        log.kafka.delete_topic(log.ledger_topic)


@pytest.fixture
def settings(tmp_path: Path) -> RecoverySettings:
    """Return bounds that the states of these tests exceed many times, with segments in two directories."""
    directories = (tmp_path / "spill-a", tmp_path / "spill-b")
    for directory in directories:
        directory.mkdir()
    return RecoverySettings(
        memory_bytes=_BUDGET_BYTES,
        fold_bytes=_BUDGET_BYTES,
        spill_directories=directories,
        _tuning=RecoveryTuning(segment_bytes=100_000),
    )


def _files(settings: RecoverySettings) -> list[Path]:
    return [path for directory in settings.spill_directories for path in Path(directory).iterdir()]


def test_a_slow_reader_holds_neither_memory_nor_the_log(rig: HistoryRig, settings: RecoverySettings) -> None:
    """A state of many budgets is fetched whole, and its lease removed, while its reader has only its first portion.

    Memory stays within the budget all the time. Then log and snapshot may be deleted: the rest comes out of the spill.
    """
    with Writer(rig.log, "w") as writer:
        rig.commit(writer, 1, [(b"key-%d" % i, b"%04d" % i * 250) for i in range(600)])
        rig.snapshot()
        rig.commit(writer, 2, [(b"key-%d" % i, b"tail" * 250 if i % 3 else None) for i in range(500)])
    expected, end = rig.state_at(rig.end()), rig.end()
    size_bytes = sum(len(value) for value in expected.values())
    assert size_bytes > 4 * _BUDGET_BYTES
    reader = Reader()
    with recover(rig.log, settings=settings).stream() as stream:
        first = stream.take()
        assert first is not None
        assert stream.wait_fetched(_PATIENCE_S)
        assert list_leases(rig.log.store) == []
        assert (stream.cursor.applied.next_key_group, stream.cursor.applied.rows) == (0, 0)
        held = stream.statistics()
        assert held.peak_memory_bytes <= _BUDGET_BYTES
        assert held.disk_bytes > size_bytes - 2 * _BUDGET_BYTES
        assert held.segments > 2
        assert _files(settings) == []
        rig.truncate(rig.snapshot())
        for manifest in list(rig.manifests):
            rig.drop(manifest)
        reader.apply(first)
        for portion in stream:
            reader.apply(portion)
        drained = stream.statistics()
    assert (drained.disk_bytes, drained.memory_bytes) == (0, 0)
    assert drained.peak_memory_bytes <= _BUDGET_BYTES
    assert reader.state == expected
    assert reader.rows == sorted(reader.rows)
    assert (reader.cursor.position, reader.cursor.is_complete) == (end, True)


def test_a_state_that_is_only_in_the_log_is_spilled_while_it_is_sorted(
    rig: HistoryRig, settings: RecoverySettings
) -> None:
    """Without a snapshot, a tail of many budgets comes out sorted, its last change per key and no deletes."""
    with Writer(rig.log, "w") as writer:
        for number in range(1, 4):
            value = b"%d" % number * 500
            rig.commit(writer, number, [(b"k%d" % i, None if i % 5 == number else value) for i in range(400)])
    reader = Reader()
    end = recover(rig.log, settings=settings).stream().apply(reader.apply)
    assert reader.state == rig.state_at(rig.end())
    assert reader.rows == sorted(reader.rows)
    assert end == reader.cursor


def test_live_changes_come_after_the_state_in_order(rig: HistoryRig, settings: RecoverySettings) -> None:
    """A follower gets the whole state first, although commits came while it was fetched, and then each commit whole."""
    with Writer(rig.log, "w") as writer:
        rig.commit(writer, 1, [(b"key-%d" % i, b"1" * 1000) for i in range(300)])
        reader, start = Reader(), rig.end()
        with recover(rig.log, settings=settings).follow(poll_s=0.01) as stream:
            stream.wait_fetched(_PATIENCE_S)
            rig.commit(writer, 2, [(b"key-%d" % i, None) for i in range(0, 300, 2)])
            rig.commit(writer, 3, [(b"key-%d" % i, b"3" * 1000) for i in range(0, 300, 3)])
            writer.commit(checkpoint_id=4)  # A quiet commit changes nothing, and moves the position on.
            end = rig.end()
            for portion in stream:
                reader.apply(portion)
                if portion.cursor.is_complete:
                    assert reader.state == rig.state_at(portion.cursor.position)
                if portion.cursor.position == end:
                    break
                assert portion.cursor.position >= start
            assert stream.statistics().peak_memory_bytes <= _BUDGET_BYTES
            rig.commit(writer, 5, [(b"new", b"5")])
            last = stream.take(_PATIENCE_S)
            assert last is not None
            reader.apply(last)
            stream.stop()
            assert list(stream) == []
            assert stream.has_ended
    assert reader.state == rig.state_at(rig.end())
    assert list_leases(rig.log.store) == []


@pytest.mark.usefixtures("busy_ledger")
def test_truncation_stops_short_of_a_follower(rig: HistoryRig, settings: RecoverySettings) -> None:
    """While a follower lags, its lease names the first position and offsets that it still needs."""
    with Writer(rig.log, "w") as writer:
        position = rig.commit(writer, 1, [(b"key-%d" % i, b"1") for i in range(50)])
        ends = {p: offsets.end for p, offsets in rig.log.data_offsets().items()}
        with recover(rig.log, settings=settings).follow(poll_s=0.01) as stream:
            assert stream.wait_fetched(_PATIENCE_S)
            (held,) = list_leases(rig.log.store)
            assert (held.lease.manifest_number, held.lease.position) == (0, position)
            assert held.lease.next_offsets == ends
    assert list_leases(rig.log.store) == []


@pytest.mark.usefixtures("busy_ledger")
@pytest.mark.parametrize("resumed", [False, True])
def test_rounds_do_not_truncate_past_a_follower_that_began_before_the_first(
    rig: HistoryRig, settings: RecoverySettings, tmp_path: Path, *, resumed: bool
) -> None:
    """No manifest is there to pin, so the lease holds every wanted partition, also ones without a change so far."""
    policy = MaterializerSettings(scratch=tmp_path, retention=RetentionPolicy(keep=2, min_age_s=0.0))
    keys = [b"key-%d" % i for i in range(20)]
    reader = Reader()
    with Writer(rig.log, "w") as writer:
        rig.commit(writer, 1, [(keys[0], b"1")])
        if resumed:
            recover(rig.log, settings=settings).stream().apply(reader.apply)
        recovery = recover(rig.log, resume=reader.cursor if resumed else None, settings=settings)
        with recovery.follow(poll_s=0.01) as stream:
            for number in range(2, 6):
                rig.commit(writer, number, [(key, b"%d" % number) for key in keys])
                assert isinstance(run_round(rig.log, policy), CompletedRound)
            for portion in stream:
                reader.apply(portion)
                if portion.cursor.position == rig.end():
                    break
        assert reader.state == rig.state_at(rig.end())
        rig.commit(writer, 6, [(key, b"6") for key in keys])
        assert isinstance(run_round(rig.log, policy), CompletedRound)
    assert all(offsets.start > 0 for offsets in rig.log.data_offsets().values())


def test_a_reader_that_was_away_resumes_or_is_told(rig: HistoryRig, settings: RecoverySettings) -> None:
    """A follower goes on behind its last commit while the log reaches back, and then gets NotFound with a hint."""
    reader = Reader()
    with Writer(rig.log, "w") as writer:
        rig.commit(writer, 1, [(b"a", b"1"), (b"b", b"1")])
        recover(rig.log, settings=settings).stream().apply(reader.apply)
        before = reader.cursor
        rig.commit(writer, 2, [(b"a", None)])
        rig.commit(writer, 3, [(b"c", b"3")])
        with recover(rig.log, resume=before, settings=settings).follow(poll_s=0.01) as stream:
            for portion in stream:
                reader.apply(portion)
                if portion.cursor.position == rig.end():
                    break
        assert reader.state == rig.state_at(rig.end())
        assert len(reader.rows) == 4
        rig.truncate(rig.snapshot())
        rig.commit(writer, 4, [(b"d", b"4")])
    with pytest.raises(NotFound) as caught:
        recover(rig.log, resume=before, settings=settings)
    assert "empty target" in caught.value.hint


@pytest.mark.usefixtures("busy_ledger")
def test_a_feed_says_whose_each_commit_is(rig: HistoryRig, settings: RecoverySettings) -> None:
    """A feed gives writer, checkpoint, position and metadata of every commit, also of one that ended its writer."""
    recovery = recover(rig.log, settings=settings)
    with recovery, closing(CommitFeed(rig.log, recovery.plan, None, settings)) as live:
        with Writer(rig.log, "w") as writer:
            first = rig.commit(writer, 3, [(b"a", b"1"), (b"b", b"1")], {"offset": 7})
        with Writer(rig.log, "v") as writer:
            writer.commit(checkpoint_id=4)
            last = writer.commit(checkpoint_id=5, final=True).offset + 1
        found = live.commits()
    told = [(one.writer, one.checkpoint_id, dict(one.metadata)) for one in found]
    assert told == [("w", 3, {"offset": 7}), ("v", 4, {}), ("v", 5, {})]
    everywhere = range(rig.log.descriptor.partitions)
    assert [sum(entry.changes for entry in one.entries(everywhere)) for one in found] == [2, 0, 0]
    assert (found[0].position, found[2].position) == (first, last)


@pytest.mark.usefixtures("busy_ledger")
@pytest.mark.parametrize("what", ["ledger", "data"])
def test_a_log_that_is_truncated_past_a_follower_is_told(
    rig: HistoryRig, settings: RecoverySettings, what: str
) -> None:
    """Records that were truncated in spite of the lease are OffsetGone with a hint, never a gap."""
    with Writer(rig.log, "w") as writer:
        rig.commit(writer, 1, [(b"a", b"1")])
        recovery = recover(rig.log, settings=settings)
        with recovery, closing(CommitFeed(rig.log, recovery.plan, None, settings)) as live:
            rig.commit(writer, 2, [(b"a", b"2")])
            if what == "ledger":
                rig.log.kafka.delete_records(rig.log.ledger_topic, {0: rig.end()})
            with pytest.raises(OffsetGone) as caught:
                for commit in live.commits():
                    partition = rig.partition(b"a")
                    rig.log.kafka.delete_records(rig.log.data_topic, {partition: rig.log.data_offsets()[partition].end})
                    list(live.changes([commit], lambda: None))
    assert "empty target" in caught.value.hint
    assert list_leases(rig.log.store) == []
