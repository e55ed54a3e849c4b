"""What a batch is to the log: new, a replay, or refused; and a history of batches, replays and take-overs."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statelog.errors import CheckpointMismatch, Misuse
from statelog.schemas.ledger.handle import Checkpoint
from statelog.schemas.ledger.state import LastCommit
from statelog.spark.option_texts import LogAddress
from statelog.spark.options import WriteOptions
from statelog.spark.ownership import NO_QUERY, BatchDecision, decide_batch, decide_write
from statelog.storage.log.where import Where

_OPTIONS = WriteOptions(where=LogAddress("log", Where({"bootstrap.servers": "127.0.0.1:9"}, "/nowhere")), writer="w")


def after(decision: BatchDecision) -> LastCommit:
    """The writer's last commit once the decision was carried out."""
    return LastCommit(Checkpoint(decision.checkpoint_id, bytes(16)), 0, decision.metadata)


def batch(last: LastCommit | None, query: str, number: int, take_over_from: str | None = None) -> BatchDecision:
    """The decision for a micro-batch of writer `w`."""
    return decide_batch(last, replace(_OPTIONS, take_over_from=take_over_from), query, number)


def write(last: LastCommit | None, checkpoint_id: int | None, take_over_from: str | None = None) -> BatchDecision:
    """The decision for a plain write of writer `w`."""
    return decide_write(last, replace(_OPTIONS, checkpoint_id=checkpoint_id, take_over_from=take_over_from))


@given(steps=st.lists(st.integers(0, 3), max_size=20), shift=st.integers(0, 50))
@settings(deadline=None)
def test_every_batch_is_committed_once(steps: list[int], shift: int) -> None:
    """Whatever is replayed, and whether or not the query took the writer over: each batch is committed once, in order,
    under growing ids, and all its replays are recognised.
    """
    last = after(batch(None, "old", shift)) if shift else None
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
    """What comes again in the same run of the query has other rows: refused, not dropped. In another run, or where a
    run has no name, it is Spark's replay.
    """

    def written(last: LastCommit | None, run_id: str | None) -> BatchDecision:
        return decide_batch(last, replace(_OPTIONS, run_id=run_id), "q", 3)

    last = after(written(None, "one"))
    with pytest.raises(Misuse, match="already written by this run"):
        written(last, "one")
    assert written(last, "two").is_replay
    assert written(last, None).is_replay
    assert written(after(written(None, None)), None).is_replay


def test_ids_may_skip_and_never_go_back() -> None:
    """A batch may be missing (Spark ran no task for it); one older than the last is a checkpoint that was set back."""
    last = after(batch(None, "q", 3))
    assert last.checkpoint.id == 4
    assert batch(last, "q", 7).checkpoint_id == 8
    with pytest.raises(CheckpointMismatch, match="older than the log"):
        batch(last, "q", 2)


def test_another_query_is_refused_with_its_way_out() -> None:
    """The refusal names the owner; the owner of plain writes is called none; taking over goes by that name only."""
    query = after(batch(None, "q", 5))
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
    """The last id again is a replay, a lower one is refused, none at all is the next one."""
    assert write(None, None).checkpoint_id == 1
    last = after(write(None, 4))
    assert write(last, 4).is_replay
    assert write(last, None).checkpoint_id == 5
    assert write(last, 10).checkpoint_id == 10
    with pytest.raises(CheckpointMismatch, match="Checkpoint ids of a writer must grow"):
        write(last, 3)
