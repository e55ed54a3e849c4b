"""Plans say what is read for which key groups, and whether the log still holds it."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statelog.errors import BeyondEnd, KeyGroupMismatch, Misuse, OffsetGone, UncommittedChanges
from statelog.kafka.port import OffsetRange
from statelog.log import accept_data_loss
from statelog.materializer.round import run_round
from statelog.producer import Writer
from statelog.reading import Snapshots, place_at, plan_changes
from statelog.reading.plan import AtTime, Plan, make_plan, wanted_key_groups
from statelog.reading.planner import LogOffsets, check_reach
from statelog.recovery.changes import read_changes
from statelog.schemas.descriptor import Descriptor, HashRule
from statelog.schemas.key_groups import KeyType, key_groups_of_partition
from statelog.schemas.ledger.fold import Folded
from statelog.schemas.ledger.handle import NO_CHECKPOINT, Entry, Handle, Step
from statelog.schemas.ledger.inline import CommitContents
from statelog.schemas.ledger.place import LogIdentity, Place
from statelog.schemas.ledger.records import LossRange
from statelog.schemas.ledger.state import LedgerState, PartitionState
from statelog.schemas.snapshot.manifest import Anchor, Manifest
from statelog.schemas.snapshot.run_ref import RunRef
from statelog.schemas.snapshot.runs import RowGroupSpan, RunIndex
from tests.support.rigs.log import TwinLog, key_in, settings_for

_IDENTITY = LogIdentity(cluster_id="c", data_topic_id="d", ledger_topic_id="l")
_LOG = Descriptor(
    name="log",
    identity=_IDENTITY,
    partitions=4,
    key_groups=16,
    hash_rule=HashRule.CRC32,
    key_type=KeyType.BYTES,
    value_schema_id=0,
    nonce=bytes(16),
)


def _run(number: int, start: int, end: int, spans: list[tuple[int, int]]) -> RunRef:
    """Return a run whose row groups span these key groups, with 10 rows and 100 bytes each."""
    groups = tuple(RowGroupSpan(first, stop, 10, 4 + 100 * i, 100, 0) for i, (first, stop) in enumerate(spans))
    return RunRef(
        path=f"runs/run-{number}.parquet",
        start_position=start,
        end_position=end,
        level=0,
        rows=10 * len(spans),
        size_bytes=1000,
        sha256=bytes(32),
        value_schema_id=0,
        index=RunIndex(row_groups=groups, footer_offset=4 + 100 * len(spans), footer_checksum=0),
    )


def _state(position: int, committed: Mapping[int, int], lost: tuple[LossRange, ...] = ()) -> LedgerState:
    rows = tuple(PartitionState(p, 0, end) for p, end in sorted(committed.items()))
    return LedgerState(position=position, partitions=rows, accepted=lost)


def _manifest() -> Manifest:
    return Manifest(
        number=1,
        previous_sha256=b"",
        nonce=bytes(16),
        identity=_IDENTITY,
        state=_state(10, {0: 5, 1: 5, 2: 5, 3: 5}),
        anchors=(*(Anchor("data", p, 4, 1) for p in range(4)), Anchor("ledger", 0, 9, 1)),
        runs=(_run(1, 0, 6, [(0, 8), (8, 16)]), _run(2, 6, 10, [(2, 3)])),
        created_s=0.0,
    )


def _commit(partition: int, first: int, end: int) -> CommitContents:
    entry = Entry(partition, 1, end - first, 7, 70, first, end, 0, b"\x01")
    handle = Handle(
        identity=_IDENTITY,
        writer="w",
        epoch=0,
        nonce=bytes(16),
        base=NO_CHECKPOINT,
        steps=(Step(checkpoint_id=1, entries=(entry,)),),
    )
    return CommitContents((handle,))


def _plan(key_groups: set[int] | None = None, lost: tuple[LossRange, ...] = ()) -> Plan:
    wanted = None if key_groups is None else frozenset(key_groups)
    folded = Folded(_state(12, {0: 8, 1: 5, 2: 5, 3: 9}, lost), Place(12))
    return make_plan(_LOG, _manifest(), folded, [_commit(0, 5, 8), _commit(3, 6, 9)], wanted)


def _offsets(
    starts: tuple[int, ...] = (5, 5, 5, 6), ends: tuple[int, ...] = (8, 5, 5, 9), ledger: tuple[int, int] = (10, 12)
) -> LogOffsets:
    return LogOffsets(
        {p: OffsetRange(*held) for p, held in enumerate(zip(starts, ends, strict=True))}, OffsetRange(*ledger)
    )


def test_all_key_groups_read_everything() -> None:
    """All key groups read every row group, and every committed range behind the snapshot."""
    plan = _plan()
    assert [(part.run.path, part.row_groups) for part in plan.runs] == [
        ("runs/run-1.parquet", (0, 1)),
        ("runs/run-2.parquet", (0,)),
    ]
    assert (plan.run_rows, plan.run_bytes) == (30, 300)
    assert (plan.changes, plan.size_bytes) == (30 + 14, 300 + 140)
    assert plan.next_offsets == {0: 5, 3: 6}
    assert (plan.position, plan.base_position, plan.manifest_number) == (12, 10, 1)


def test_key_groups_prune_runs_row_groups_and_partitions() -> None:
    """Key group 9 needs the second half of the first run, and partition 2, which has no tail."""
    plan = _plan({9})
    assert [(part.run.path, part.row_groups) for part in plan.runs] == [("runs/run-1.parquet", (1,))]
    assert plan.partitions == (2,)
    assert (plan.next_offsets, plan.replay.changes) == ({}, 0)


@settings(deadline=None)
@given(st.sets(st.integers(0, 15)))
def test_pruning_never_drops_what_is_wanted(wanted: set[int]) -> None:
    """The plan reads exactly the partitions and row groups that may hold a wanted key group."""
    plan = _plan(wanted)
    for partition in range(4):
        holds_one = bool(wanted & set(key_groups_of_partition(partition, 4, 16)))
        assert (partition in plan.partitions) == holds_one
    read = {(part.run.path, number) for part in plan.runs for number in part.row_groups}
    for run in _manifest().runs:
        for number, span in enumerate(run.index.row_groups):
            spans_one = bool(wanted & set(range(span.first_key_group, span.end_key_group)))
            assert ((run.path, number) in read) == spans_one


def test_a_plan_without_a_snapshot_reads_the_log() -> None:
    """Before the first manifest, the whole state is replayed."""
    plan = make_plan(_LOG, None, Folded(_state(3, {0: 2}), Place(3)), [_commit(0, 0, 2)], None)
    assert (plan.runs, plan.manifest_number, plan.base_position, plan.next_offsets) == ((), 0, 0, {0: 0})


def test_key_groups_of_another_log_are_refused() -> None:
    """Key groups are numbers below the log's count, in any order, also repeated. All others are refused."""
    assert wanted_key_groups(None, _LOG) is None
    assert wanted_key_groups([3, 3, 1], _LOG) == frozenset({1, 3})
    for strange in (-1, 16):
        with pytest.raises(KeyGroupMismatch):
            wanted_key_groups([0, strange], _LOG)


def test_a_log_that_holds_it_all_passes() -> None:
    """A log passes whose starts and ends cover what is read and committed."""
    check_reach(_plan(), _offsets(), "log")


def test_a_start_above_what_is_read_is_offset_gone() -> None:
    """A start above the first offset to read is OffsetGone, but only where a wanted key group has a tail."""
    with pytest.raises(OffsetGone) as caught:
        check_reach(_plan(), _offsets(starts=(6, 5, 5, 6)), "log")
    assert (caught.value.facts["partition"], caught.value.facts["needed_offset"]) == (0, 5)
    check_reach(_plan(), _offsets(starts=(5, 5, 5, 6)), "log")
    check_reach(_plan({9}), _offsets(starts=(8, 5, 5, 9)), "log")


def test_an_end_below_what_is_committed_is_beyond_the_end() -> None:
    """An end below a commit is BeyondEnd, in the ledger and each checked partition, unless the loss was accepted."""
    with pytest.raises(BeyondEnd):
        check_reach(_plan(), _offsets(ledger=(10, 11)), "log")
    short = _offsets(ends=(7, 5, 5, 9))
    with pytest.raises(BeyondEnd) as caught:
        check_reach(_plan(), short, "log")
    assert (caught.value.facts["end_offset"], caught.value.facts["committed_position"]) == (7, 8)
    check_reach(_plan({9}), short, "log")
    check_reach(_plan(lost=(LossRange(0, 7, 8),)), short, "log")
    with pytest.raises(BeyondEnd):
        check_reach(_plan(lost=(LossRange(0, 6, 7), LossRange(1, 7, 8))), short, "log")


def test_a_time_is_one_that_has_a_name() -> None:
    """A time must be one of the years 1970 to 9999. A number of microseconds would mean the newest state."""
    assert str(AtTime(0)) == "time 1970-01-01T00:00:00.000+00:00"
    assert str(AtTime(253_402_300_799_999)).startswith("time 9999-12-31T23:59:59.")
    for strange in (-1, 253_402_300_800_000, 1_769_860_800_000_000):
        with pytest.raises(Misuse):
            AtTime(strange)


def test_where_a_truncated_ledger_begins_a_snapshot_says_what_stood_below(tmp_path: Path) -> None:
    """Where the ledger was truncated, the snapshot knows the record below, so a re-created ledger is noticed."""
    twin = TwinLog()
    for number in range(4):
        twin.write({b"k": b"%d" % number})
        twin.now_s += 10_000.0
        twin.environment.run(run_round, twin.open(), settings_for(tmp_path))
    with twin.open() as log:
        start = log.ledger.range().start
        placed = [one.place for one in Snapshots(log).listed() if one.position == start]
        assert start
        assert placed[0].last is not None
        assert place_at(log, start) == placed[0]
        assert place_at(log, start - 1) == Place(start - 1)


@pytest.mark.usefixtures("busy_ledger")
@pytest.mark.parametrize(("is_committed", "is_accepted"), [(False, False), (True, True), (True, False)])
def test_changes_begin_where_nothing_is_missed(is_committed: bool, is_accepted: bool, tmp_path: Path) -> None:
    """Changes begin where none is missing.

    If a commit lists deleted records that nobody accepted as lost, there is no such position.
    """
    twin = TwinLog(partitions=2)
    with twin.open() as log:
        here, there = key_in(log, 0), key_in(log, 1)
    twin.write({here: b"1"})
    twin.environment.run(run_round, twin.open(), settings_for(tmp_path))
    if is_committed:
        twin.write({here: b"2"})
    else:
        with twin.open() as log, pytest.warns(UncommittedChanges), Writer(log, "writer") as writer:
            writer.put(here, b"2")
            writer.persist().result()
    twin.write({there: b"3"})
    with twin.open() as log:
        kept, end = log.manifests.read(1), log.data_offsets()[0].end
        twin.cluster.truncate("log", 0, end)
        if is_accepted:
            accept_data_loss(log, [LossRange(0, kept.next_offsets[0], end)], reason="aged", operator="me")
        if is_committed and not is_accepted:
            with pytest.raises(OffsetGone):
                plan_changes(log)
            return
        plan = plan_changes(log)
        assert plan.start_position == kept.position
        assert [key for changes in read_changes(log, plan) for key in changes.column("key").to_pylist()] == [there]
