"""The decision on a batch: new, a replay, or refused; and a history of batches, replays and take-overs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statelog.errors import CheckpointMismatch, Misuse
from statelog.log import Where
from statelog.schemas.changes.changes import change_schema
from statelog.schemas.changes.digest import StateDigest
from statelog.schemas.key_groups import KeyType
from statelog.schemas.ledger.handle import NO_CHECKPOINT, Checkpoint, Entry, Handle, Step
from statelog.schemas.ledger.place import LogIdentity
from statelog.schemas.ledger.state import LastCommit
from statelog.schemas.values.schema import OPAQUE, ValueSchema
from statelog.spark.option_texts import LogAddress
from statelog.spark.options import WriteOptions
from statelog.spark.ownership import NO_QUERY, BatchDecision, check_replay, decide_batch, decide_write, digest_metadata

_OPTIONS = WriteOptions(where=LogAddress("log", Where({"bootstrap.servers": "127.0.0.1:9"}, "/nowhere")), writer="w")


def after(decision: BatchDecision) -> LastCommit:
    """Return the writer's last commit once the decision was carried out."""
    return LastCommit(Checkpoint(decision.checkpoint_id, bytes(16)), 0, decision.metadata)


def batch(last: LastCommit | None, query: str, number: int, take_over_from: str | None = None) -> BatchDecision:
    """Return the decision for a micro-batch of writer `w`."""
    return decide_batch(last, replace(_OPTIONS, take_over_from=take_over_from), query, number)


def write(last: LastCommit | None, checkpoint_id: int | None, take_over_from: str | None = None) -> BatchDecision:
    """Return the decision for a plain write of writer `w`."""
    return decide_write(last, replace(_OPTIONS, checkpoint_id=checkpoint_id, take_over_from=take_over_from))


@given(steps=st.lists(st.integers(0, 3), max_size=20), shift=st.integers(0, 50))
@settings(deadline=None)
def test_every_batch_is_committed_once(steps: list[int], shift: int) -> None:
    """Each batch is committed once, in order and under growing ids, whatever is replayed.

    All its replays are recognised, whether or not the query took the writer over.
    """
    last = after(batch(None, "old", shift, take_over_from=NO_QUERY)) if shift else None
    ids = [last.checkpoint.id] if last else []
    for number, replays in enumerate(steps):
        decision = batch(last, "new", number, take_over_from="old")
        assert not decision.is_replay
        last = after(decision)
        ids.append(decision.checkpoint_id)
        for _ in range(replays):
            assert batch(last, "new", number, take_over_from="old").is_replay
    assert ids == sorted(set(ids))


def test_a_second_write_of_a_batch_is_no_replay() -> None:
    """A second write of a batch in the same run has other rows, and is refused.

    In another run, or without a run's name, it is Spark's replay.
    """

    def written(last: LastCommit | None, run_id: str | None) -> BatchDecision:
        return decide_batch(last, replace(_OPTIONS, run_id=run_id), "q", 0)

    last = after(written(None, "one"))
    with pytest.raises(Misuse, match="already written by this run"):
        written(last, "one")
    assert written(last, "two").is_replay
    assert written(last, None).is_replay
    assert written(after(written(None, None)), None).is_replay


def test_a_batch_is_the_last_one_or_the_next_one() -> None:
    """A first batch above 0, and one behind a gap, are refused with what is missing.

    A batch older than the last is a restored checkpoint.
    """
    with pytest.raises(CheckpointMismatch, match=r"batches 0 to 2 .*takeOverFrom=none.*allowGaps=true") as caught:
        batch(None, "q", 3)
    assert caught.value.facts == {"writer": "w", "query_id": "q"}
    last = after(batch(None, "q", 0))
    assert batch(last, "q", 1).checkpoint_id == 2
    with pytest.raises(CheckpointMismatch, match=r"batches 1 to 1 .*takeOverFrom=q"):
        batch(last, "q", 2)
    last = after(batch(last, "q", 1))
    with pytest.raises(CheckpointMismatch, match="older than the log"):
        batch(last, "q", 0)


def test_a_gap_is_taken_where_an_option_says_that_nothing_is_missing() -> None:
    """A gap is accepted by an option: once by the last committer's name, or always for a function that skips batches.

    Later batches must follow.
    """
    last = after(batch(None, "q", 3, take_over_from=NO_QUERY))
    assert last.checkpoint.id == 4
    with pytest.raises(CheckpointMismatch):
        batch(last, "q", 7, take_over_from=NO_QUERY)
    last = after(batch(last, "q", 7, take_over_from="q"))
    assert last.checkpoint.id == 8
    with pytest.raises(CheckpointMismatch):
        batch(last, "q", 9)
    for before, number in ((None, 2), (last, 12)):
        assert decide_batch(before, replace(_OPTIONS, allow_gaps=True), "q", number).checkpoint_id == number + 1


def told(*rows: tuple[str, str | None], schema: ValueSchema = OPAQUE) -> Mapping[str, Any]:
    """Return a commit's metadata for these rows, each from its own task. A value of None deletes."""
    return digest_metadata([digest_of([row]) for row in rows], schema)


def digest_of(rows: Sequence[tuple[str, str | None]]) -> StateDigest:
    """Return the digest of a task with these rows."""
    columns = {
        "key_group": [0] * len(rows),
        "op": [int(value is None) for _, value in rows],
        "key": [key.encode() for key, _ in rows],
        "value": [None if value is None else value.encode() for _, value in rows],
    }
    schema = change_schema(KeyType.BYTES)
    arrays = [pa.array(column, field.type) for column, field in zip(columns.values(), schema, strict=True)]
    return StateDigest().of_changes(pa.RecordBatch.from_arrays(arrays, schema=schema), OPAQUE)


def handle(*entries: tuple[int, int, bytes]) -> Handle:
    """Return a task's handle, by partition, number of changes and key groups."""
    identity = LogIdentity(cluster_id="c", data_topic_id="d", ledger_topic_id="l")
    found = tuple(Entry(partition, 1, 1, changes, 9, 0, 1, 0, groups) for partition, changes, groups in entries)
    steps = (Step(checkpoint_id=1, entries=found),)
    return Handle(identity=identity, writer="w", epoch=0, nonce=bytes(16), base=NO_CHECKPOINT, steps=steps)


def unread() -> Sequence[Handle]:
    """Fail: a comparable digest needs no read of the ledger."""
    raise AssertionError


def test_a_repetition_is_compared_with_what_was_committed() -> None:
    """A replay is compared by its rows, whichever task has them.

    Other rows are refused with both counts and the ways out.

    An option allows other rows.
    """
    rows = (("a", "1"), ("b", None), ("c", "3"))
    last = LastCommit(Checkpoint(1, bytes(16)), 0, told(*rows))
    check_replay(last, _OPTIONS, told(*reversed(rows)), (), unread)
    check_replay(last, _OPTIONS, digest_metadata([digest_of(rows)], OPAQUE), (), unread)
    handles = [handle((0, 2, b""))]
    for others in ([("a", "1")], [*rows[:2], ("c", "4")], [("a", "1"), ("b", ""), ("c", "3")], []):
        with pytest.raises(CheckpointMismatch, match=r"allowChangedReplay.*query_id.*takeOverFrom=none") as caught:
            check_replay(last, _OPTIONS, told(*others), handles, unread)
        assert (caught.value.facts["rows"], caught.value.facts["committed_rows"]) == (2, 3)
        check_replay(last, replace(_OPTIONS, allow_changed_replay=True), told(*others), handles, unread)


@pytest.mark.parametrize("metadata", [{}, {"digest": "0.0.3.abc"}, told(("a", "1"), schema=ValueSchema(id=4, avsc=""))])
def test_a_commit_whose_digest_does_not_compare_is_compared_by_its_change_sets(metadata: Mapping[str, Any]) -> None:
    """Digests of an earlier version or another value schema are not comparable.

    Change sets are compared instead, by partition.

    If the commit was truncated nothing is known, and the replay is skipped.
    """
    last = LastCommit(Checkpoint(1, bytes(16)), 0, metadata)
    committed = [handle((0, 2, b""), (1, 1, b"")), handle((0, 1, b""))]
    same, other = [handle((0, 3, b""), (1, 1, b""))], [handle((0, 3, b""), (1, 1, b""))]
    check_replay(last, _OPTIONS, told(("a", "1")), same, lambda: committed)
    check_replay(last, _OPTIONS, told(("a", "1")), other, lambda: None)
    with pytest.raises(CheckpointMismatch):
        check_replay(last, _OPTIONS, told(("a", "1")), other, lambda: ())
    with pytest.raises(CheckpointMismatch) as caught:
        check_replay(last, _OPTIONS, told(("a", "1")), other, lambda: committed)
    assert (caught.value.facts["rows"], caught.value.facts["committed_rows"]) == (4, 4)


def test_another_query_is_refused_with_its_way_out() -> None:
    """The refusal names the owner, or none for plain writes. Taking over works by that name only."""
    query = after(batch(None, "q", 5, take_over_from=NO_QUERY))
    plain = after(write(None, 9))
    for last, owner in ((query, "q"), (plain, NO_QUERY)):
        with pytest.raises(CheckpointMismatch, match=f"takeOverFrom={owner}"):
            batch(last, "other", 0)
        with pytest.raises(CheckpointMismatch):
            batch(last, "other", 0, take_over_from="somebody")
        assert batch(last, "other", 0, take_over_from=owner).checkpoint_id == last.checkpoint.id + 1
    with pytest.raises(CheckpointMismatch, match="takeOverFrom=q"):
        write(query, 6)
    assert write(query, None, take_over_from="q").checkpoint_id == 7


def test_a_plain_write_names_its_checkpoint_or_takes_the_next() -> None:
    """A plain write with the last id is a replay, with a lower one is refused, and without one takes the next."""
    assert write(None, None).checkpoint_id == 1
    last = after(write(None, 4))
    assert write(last, 4).is_replay
    assert write(last, None).checkpoint_id == 5
    assert write(last, 10).checkpoint_id == 10
    with pytest.raises(CheckpointMismatch, match="Give a greater id than the last one"):
        write(last, 3)
