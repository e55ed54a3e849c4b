"""Changes that ledger records carry, mixed with those of the data topic in one partition: readers see no difference."""

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statelog.errors import AnchorMismatch, CorruptChunk
from statelog.history.following import LedgerRate
from statelog.log import Log
from statelog.materializer import run_round
from statelog.producer import Writer
from statelog.reading import planner
from statelog.reading.plan import AtPosition
from statelog.recovery import recover
from statelog.recovery.changes import newest_changes, read_changes, split_changes
from statelog.schemas.changes.due import DUE
from statelog.schemas.key_groups import partition_of
from statelog.schemas.ledger.inline import Inline
from statelog.schemas.ledger.records import Commit, decode, encode
from tests.support.rigs.log import TwinLog, settings_for, tail_of
from tests.support.samples.folds import apply_to_dict, put_all

_REPLAY = import_module("statelog.reading.replay")
Change = tuple[bytes, bytes | None]
_KEYS = st.integers(0, 30).map(lambda number: b"key-%d" % number)
_CHANGES = st.lists(st.tuples(_KEYS, st.none() | st.binary(max_size=8)), min_size=1, max_size=12)
_COMMITS = st.lists(st.tuples(st.booleans(), st.integers(0, 1), _CHANGES), max_size=14)


def _commit(writer: Writer, changes: Sequence[Change], *, is_carried: bool) -> int:
    put_all(writer, changes)
    with patch.object(LedgerRate, "is_low", is_carried):
        return writer.commit().offset


def _partition(log: Log, key: bytes) -> int:
    of = log.descriptor
    return partition_of(of.key_group_of(key), of.partitions, of.key_groups)


def _write(rig: TwinLog, commits: Sequence[tuple[bool, int, Sequence[Change]]]) -> list[tuple[int, Sequence[Change]]]:
    """Write by two writers, each on half of the partitions. Return each commit's position and changes."""
    found: list[tuple[int, Sequence[Change]]] = []
    with rig.open() as log:
        halves = [[0, 1], [2]]
        writers = [Writer(log, f"w{half}", partitions=mine) for half, mine in enumerate(halves)]
        for is_carried, half, changes in commits:
            mine = [one for one in changes if _partition(log, one[0]) in halves[half]]
            if mine:
                found.append((_commit(writers[half], mine, is_carried=is_carried) + 1, mine))
        for writer in writers:
            writer.close()
    return found


def _state(commits: Sequence[tuple[int, Sequence[Change]]]) -> dict[bytes, bytes]:
    state: dict[bytes, bytes] = {}
    for _, changes in commits:
        for key, value in changes:
            state.pop(key, None)
            if value is not None:
                state[key] = value
    return state


@settings(deadline=None, max_examples=60)
@given(commits=_COMMITS, portion_bytes=st.sampled_from([1, 900, 1 << 24]), rounds=st.integers(0, 14))
def test_every_reader_has_the_changes_in_the_order_of_the_commits(
    commits: list[tuple[bool, int, list[Change]]], portion_bytes: int, rounds: int
) -> None:
    """Every reader has the changes in the order of the commits: whole, by key group, commit by commit, folded, in
    parts.

    This holds behind a round's snapshot, too.
    """
    rig = TwinLog()
    with TemporaryDirectory() as scratch, patch.object(_REPLAY, "_PORTION_BYTES", portion_bytes):
        before = _write(rig, commits[:rounds])
        if rounds % 2:
            with rig.open() as log:
                rig.environment.run(run_round, log, settings_for(Path(scratch)))
        found = [*before, *_write(rig, commits[rounds:])]
        with rig.open() as log:
            assert recover(log).to_dict() == _state(found)
            for groups in ({0, 3}, {5}):
                mine = {
                    key: value for key, value in _state(found).items() if log.descriptor.key_group_of(key) in groups
                }
                assert recover(log, key_groups=groups).to_dict() == mine
            _compare_changes(log, found)


def _compare_changes(log: Log, found: Sequence[tuple[int, Sequence[Change]]]) -> None:
    plan = planner.plan_changes(log)
    assert plan.start_position is not None
    found = [one for one in found if one[0] > plan.start_position]
    history = [(key, value, position) for position, changes in found for key, value in changes]
    groups = log.descriptor.key_group_of
    told: list[tuple[Any, ...]] = []
    for part in split_changes(plan, 3, least_bytes=1):
        for batch in read_changes(log, part):
            told += zip(*(batch.column(name).to_pylist() for name in ("key", "value", "position")), strict=True)
    for group in range(log.descriptor.key_groups):
        assert [one for one in told if groups(one[0]) == group] == [one for one in history if groups(one[0]) == group]
    newest: dict[bytes, bytes] = {}
    for table in newest_changes(log, plan):
        apply_to_dict(table, newest)
    assert newest == _state(found)


def _carried(rig: TwinLog) -> int:
    with rig.open() as log, Writer(log, "w") as writer:
        return _commit(writer, [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")], is_carried=True)


def test_a_record_that_changed_behind_the_fold_is_a_loss() -> None:
    """A record that changed behind the fold is a loss: a second read must return the record that was folded."""
    rig = TwinLog()
    offset = _carried(rig)
    with rig.open() as log:
        plan = planner.plan_changes(log, AtPosition(offset), AtPosition(offset + 1))
        sent = rig.cluster.records(log.ledger_topic, 0)[offset].value
        rig.cluster.overwrite(log.ledger_topic, 0, offset, sent[:-1] + bytes([sent[-1] ^ 1]))
        with pytest.raises(AnchorMismatch):
            list(read_changes(log, plan))


@pytest.mark.parametrize("lie", ["partitions", "changes", "first_key_group"])
def test_changes_that_their_head_does_not_describe_stop_the_reader(lie: str) -> None:
    """Changes that their head does not describe stop the reader: the fold judged by the head.

    Only a client that may commit can write such a record, and nobody goes on from it.
    """
    rig = TwinLog()
    offset = _carried(rig)
    with rig.open() as log:
        record = decode(rig.cluster.records(log.ledger_topic, 0)[offset].value)
        assert isinstance(record, Commit)
        assert record.inline is not None
        value = rig.cluster.records(log.ledger_topic, 0)[offset].value
        changed: dict[str, Inline] = {
            "partitions": record.inline._replace(partitions=0b1),
            "changes": record.inline._replace(changes=2),
            "first_key_group": record.inline._replace(first_key_group=0, last_key_group=0),
        }
        lying = replace(record, inline=changed[lie], batch=value[record.batch_start :])
        rig.cluster.overwrite(log.ledger_topic, 0, offset, encode(lying))
    with rig.open() as log, pytest.raises(CorruptChunk):
        recover(log).to_dict()


_Timed = tuple[bytes, bytes | None, int | None]
_TIMED = st.lists(st.tuples(_KEYS, st.none() | st.binary(max_size=8), st.none() | st.integers(0, 1 << 40)), max_size=12)


def _write_timed(writer: Writer, changes: Sequence[_Timed], *, is_batch: bool) -> None:
    if is_batch and changes:
        keys, values, dues = zip(*changes, strict=True)
        columns = {"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}
        writer.append_batch(pa.table({**columns, "due": pa.array(dues, DUE.type)}))
    for key, value, due in () if is_batch else changes:
        writer.delete(key) if value is None else writer.put(key, value, None if due is None else due / 1000)


@settings(deadline=None, max_examples=60)
@given(
    commits=st.lists(st.tuples(st.booleans(), st.booleans(), _TIMED)),
    portion_bytes=st.sampled_from([1, 900, 1 << 24]),
    rounds=st.integers(0, 5),
)
def test_dues_come_with_their_changes(
    commits: list[tuple[bool, bool, list[_Timed]]], portion_bytes: int, rounds: int
) -> None:
    """Each change has its own due, whether a ledger record or the data topic has it, and however it came in.

    The newest change of a key decides, before a round and behind its snapshot.
    """
    rig, history, state = TwinLog(), list[_Timed](), dict[bytes, tuple[bytes, int | None]]()
    with (
        TemporaryDirectory() as scratch,
        rig.open() as log,
        Writer(log, "w") as writer,
        patch.object(_REPLAY, "_PORTION_BYTES", portion_bytes),
    ):
        for number, (is_carried, is_batch, changes) in enumerate(commits):
            own = [(key, value, None if value is None else due) for key, value, due in changes]
            history += own
            _write_timed(writer, own, is_batch=is_batch)
            with patch.object(LedgerRate, "is_low", is_carried):
                writer.commit()
            if number + 1 == rounds:
                rig.environment.run(run_round, log, settings_for(Path(scratch)))
        told = (
            [one for batch in tail_of(log, None)[1] for one in _timed_rows(batch, "key", "value")]
            if rounds == 0
            else []
        )
        for key, value, due in history:
            state.pop(key, None)
            if value is not None:
                state[key] = value, due
        with recover(log) as recovery:
            found = {key: (value, due) for key, value, due in _timed_rows(recovery.to_arrow(due=True), "key", "value")}
        groups = log.descriptor.key_group_of
    assert found == state
    for group in range(8) if rounds == 0 else ():
        assert [one for one in told if groups(one[0]) == group] == [one for one in history if groups(one[0]) == group]


def _timed_rows(changes: pa.Table | pa.RecordBatch, *names: str) -> list[Any]:
    """Return these columns and the dues of changes, by row."""
    columns = [changes.column(name).to_pylist() for name in names]
    is_timed = "due" in changes.schema.names
    dues = changes.column("due").cast(pa.int64()).to_pylist() if is_timed else [None] * changes.num_rows
    return list(zip(*columns, dues, strict=True))
