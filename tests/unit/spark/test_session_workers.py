"""Workers of a session distinguish logs of the same name and runs of the same query, on the twins."""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from statelog.environment import Environment
from statelog.errors import (
    AnchorMismatch,
    BeyondEnd,
    CheckpointMismatch,
    IdentityChanged,
    OverlappingTasks,
    ValueTooLarge,
)
from statelog.history import COMPARE_S
from statelog.log import Log, Where
from statelog.producer.committer import Committer
from statelog.producer.coordinator import TaskWriter
from statelog.producer.epoch import TaskGrant
from statelog.schemas.ledger.records import VOID_VALUE
from statelog.spark import epochs, sink, source
from statelog.spark.clients import IDLE_S, cached_log
from statelog.spark.epochs import plan_batch
from statelog.spark.options import WriteOptions
from statelog.spark.ownership import NO_QUERY
from statelog.spark.sink import TaskResult, commit_batch
from statelog.testing.faults import TRUE, Answer, Call, old
from tests.support.rigs.log import TwinRig
from tests.support.spark.workers import Place, become, new_worker, options_of, write, written

_AT = Where({"bootstrap.servers": "b:1"}, "memory://a")


def test_a_query_writes_to_two_logs_of_one_name(place: Place) -> None:
    """A query writes to two logs of one name, as in a move between clusters.

    Its epochs on one say nothing about the other.
    """
    old, new = place("memory://old"), place("memory://new")
    for batch in range(2):
        write(old, "memory://old", batch)
        write(new, "memory://new", batch)
    assert old.state() == new.state() == {b"alice": b"2"}


def test_a_query_begins_again_on_a_log_that_was_made_anew(place: Place) -> None:
    """A query with a new checkpoint begins again on a re-created log, in the same session, without a fencing error."""
    rig = place("memory://a")
    write(rig, "memory://a", 0)
    Log.delete("visits", rig.where())
    rig.create().close()
    write(rig, "memory://a", 0)
    assert rig.state() == {b"alice": b"1"}


def test_a_dataframe_of_an_older_log_ends_no_write_of_this_one(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write planned on the log's former topics is refused, and the log that the worker has open stays open."""
    rig = place("memory://a")
    write(rig, "memory://a", 0)
    result, where = written(rig, options_of("memory://a", 1)), options_of("memory://a", 1).where
    cached_log(where).recheck_s = 0.0
    older = replace(cached_log(where).descriptor.identity, ledger_topic_id="older")
    with pytest.raises(IdentityChanged, match="topics that the log had before"):
        cached_log(where, older)
    assert commit_batch(options_of("memory://a", 1), [result], 1)
    assert rig.state() == {b"alice": b"2"}


def _hide(rig: TwinRig, records: int) -> Iterator[int]:
    """Let a deposed leader, without the ledger's last records, answer the next three questions.

    Return an iterator over them.
    """
    numbers = iter(range(3))

    def answered(call: Call) -> Answer:
        is_asked = (call.method, call.topic) == ("offsets", "visits.ledger")
        return old(records) if is_asked and next(numbers, None) is not None else TRUE

    rig.cluster.questions = answered
    return numbers


def test_an_empty_batch_behind_a_commit_that_the_ledger_lost_is_no_commit(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty batch behind a lost commit is refused. Its plan has the ledger's position, although no chunk does."""
    rig, idle = place("memory://a"), new_worker()
    become(monkeypatch, idle)
    write(rig, "memory://a", 0)
    become(monkeypatch, new_worker())
    write(rig, "memory://a", 1)
    options = options_of("memory://a", 2)
    result = _written_empty(rig, options)
    rig.cluster.lose_tail("visits.ledger", 0, rig.cluster.log("visits.ledger", 0).end - 1)
    for worker in (new_worker(), idle):
        become(monkeypatch, worker)
        cached_log(options.where).patience_s = 0.0
        with pytest.raises(BeyondEnd):
            commit_batch(options, [result], 2)


def _written_empty(rig: TwinRig, options: WriteOptions) -> TaskResult:
    """Plan a batch, and run its only task without a row."""
    task = plan_batch(options)
    handle = TaskWriter(rig.kafka().producer(), task, slot=options.batch_id or 0).finish()
    return TaskResult(plan=task.grant, handle=handle.to_bytes(), query_id="q", run_id="run")


def test_a_batch_is_not_committed_behind_a_loss_that_its_planner_knew(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch is not committed behind a loss of a foreign record that only its planner had read."""
    rig, commits = place("memory://a"), new_worker()
    ledger = rig.cluster.log("visits.ledger", 0)
    become(monkeypatch, commits)
    write(rig, "memory://a", 0)
    ledger.append(VOID_VALUE)
    become(monkeypatch, new_worker())
    result = _written_empty(rig, options_of("memory://a", 1))
    rig.cluster.lose_tail("visits.ledger", 0, ledger.end - 1)
    ledger.append(b"somebody's")
    become(monkeypatch, commits)
    with pytest.raises(AnchorMismatch):
        commit_batch(options_of("memory://a", 1), [result], 1)


def test_a_worker_that_commits_for_two_queries_forgets_no_lost_commit(place: Place) -> None:
    """A worker that commits for two queries still notices that one's last commit was lost and replaced."""
    late_s = [0.0]

    def go() -> None:
        rig = place("memory://a")
        one, two = (
            [replace(options_of("memory://a", n), writer=w, partitions=(p,)) for n in (0, 1)]
            for p, w in ((0, "one"), (1, "two"))
        )
        for options in (one[0], two[0]):
            commit_batch(options, [_written_empty(rig, options)], 0)
        result = _written_empty(rig, two[1])
        commit_batch(one[1], [_written_empty(rig, one[1])], 1)
        ledger = rig.cluster.log("visits.ledger", 0)
        rig.cluster.lose_tail("visits.ledger", 0, ledger.end - 1)
        ledger.append(VOID_VALUE)
        late_s[0] = COMPARE_S
        with pytest.raises(AnchorMismatch):
            commit_batch(two[1], [result], 1)

    Environment(clock=lambda: time.monotonic() + late_s[0]).run(go)


def test_a_batch_behind_a_lost_commit_is_not_planned_where_that_was_made(place: Place) -> None:
    """A batch behind a lost commit is not planned, even by the worker that made the commit."""
    rig = place("memory://a")
    for batch in range(2):
        write(rig, "memory://a", batch)
    rig.cluster.lose_tail("visits.ledger", 0, rig.cluster.log("visits.ledger", 0).end - 1)
    options = options_of("memory://a", 2)
    cached_log(options.where).patience_s = 0.0
    with pytest.raises(BeyondEnd):
        plan_batch(options)


@pytest.mark.parametrize("hidden", [1, 2])
def test_a_worker_whose_first_question_meets_a_deposed_leader_commits(
    place: Place, monkeypatch: pytest.MonkeyPatch, hidden: int
) -> None:
    """A worker that first asks a deposed leader still commits: the plan has the ledger's position."""
    rig = place("memory://a")
    write(rig, "memory://a", 0)
    options = options_of("memory://a", 1)
    result = written(rig, options)
    become(monkeypatch, new_worker())
    numbers = _hide(rig, hidden)
    assert commit_batch(options, [result], 1)
    assert next(numbers, None) is None
    assert rig.state() == {b"alice": b"2"}


def test_a_commit_follows_one_that_was_made_as_long_ago_as_clients_may_rest(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit succeeds when the log's clients have idled too long, and those made a little later have not."""
    now_s = [0.0]
    rig, worker = place("memory://a"), new_worker(lambda: now_s[0])
    become(monkeypatch, worker)

    class Slow(Committer):
        """A committer that takes a second to open."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            now_s[0] += 1.0

    monkeypatch.setattr(epochs, "Committer", Slow)
    monkeypatch.setattr(Log, "recheck_s", 0.0)
    write(rig, "memory://a", 0)
    options = options_of("memory://a", 1)
    become(monkeypatch, new_worker())
    result = written(rig, options)
    become(monkeypatch, worker)
    now_s[0] = IDLE_S + 0.5
    assert commit_batch(options, [result], 1)
    assert rig.state() == {b"alice": b"2"}


@pytest.mark.parametrize("root", ["memory://a", "memory://b"])
def test_a_query_that_goes_on_elsewhere_is_refused(place: Place, root: str) -> None:
    """A query with a checkpoint is refused on another or a re-created log, which lacks its earlier rows.

    An option accepts that once.
    """
    rig = place("memory://a")
    for batch in range(3):
        write(rig, "memory://a", batch)
    if root == "memory://a":
        Log.delete("visits", rig.where())
        rig.create().close()
    there = rig if root == "memory://a" else place(root)
    options = options_of(root, 3)
    with pytest.raises(CheckpointMismatch, match="lacks its batches 0 to 2"):
        commit_batch(options, [written(there, options)], 3)
    assert there.state() == {}
    assert commit_batch(replace(options, take_over_from=NO_QUERY), [written(there, options)], 3)
    write(there, root, 4)
    assert there.state() == {b"alice": b"5"}


@pytest.mark.parametrize("is_old", [False, True])
def test_a_repetition_with_other_rows_is_refused(place: Place, is_old: bool) -> None:
    """A replay with other rows is refused, since skipping it would lose them.

    Commits of earlier versions are compared as well.

    It comes from a restored checkpoint or from another query of the same name.
    """
    rig = place("memory://a")
    options = options_of("memory://a", 0)

    def written(count: int, value: bytes) -> TaskResult:
        task = plan_batch(options)
        rows = pa.table({"key": [b"%d" % key for key in range(count)], "value": [value] * count})
        with TaskWriter(rig.kafka().producer(), task, slot=count, is_digested=not is_old) as writer:
            writer.append_batch(rows)
            handle = writer.finish().to_bytes()
        return TaskResult(plan=task.grant, handle=handle, query_id="q", digest=writer.digest)

    assert commit_batch(options, [written(4, b"one")], 0)
    assert not commit_batch(options, [written(4, b"one")], 0)
    with pytest.raises(CheckpointMismatch, match="not those that were committed") as caught:
        commit_batch(options, [written(5, b"one")], 0)
    assert (caught.value.facts["rows"], caught.value.facts["committed_rows"]) == (5, 4)
    if not is_old:
        with pytest.raises(CheckpointMismatch):
            commit_batch(options, [written(4, b"two")], 0)
    assert not commit_batch(replace(options, allow_changed_replay=True), [written(4, b"two")], 0)
    assert rig.state() == {b"%d" % key: b"one" for key in range(4)}


def test_a_commit_of_thousands_of_pieces_is_told_of(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A commit of thousands of pieces warns long before it exceeds a record, and names the helper that makes fewer."""
    rig = place("memory://a")
    options = replace(options_of("memory://a", 0), unique_keys=True)
    monkeypatch.setattr(sink, "MANY_PIECES", 2)

    def written(slot: int, task: TaskGrant) -> TaskResult:
        writer = TaskWriter(rig.kafka().producer(), task, slot=slot)
        writer.put(b"alice", b"%d" % slot)
        return TaskResult(plan=task.grant, handle=writer.finish().to_bytes(), query_id="q")

    task = plan_batch(options)
    both = [written(slot, task) for slot in range(2)]
    with pytest.raises(OverlappingTasks, match=r"repartition_by_key_group\(df, log\).*uniqueKeys=true"):
        commit_batch(replace(options, unique_keys=False), both, 0)
    with pytest.raises(OverlappingTasks) as caught:
        commit_batch(replace(options, unique_keys=False, sequence_by="seq"), both, 0)
    assert "uniqueKeys" not in caught.value.hint, "sequenceBy contradicts the hint"
    caplog.clear()
    assert commit_batch(options, both, 0)
    assert "2 pieces, of 2 tasks" in caplog.text
    assert "repartition_by_key_group(df, log)" in caplog.text
    monkeypatch.setattr("statelog.schemas.descriptor.Descriptor.record_bytes_max", 1024)
    task = plan_batch(options)
    results = [written(slot, task) for slot in range(2, 60)]
    with pytest.raises(ValueTooLarge, match="repartition_by_key_group") as too_large:
        commit_batch(replace(options, batch_id=1), results, 1)
    assert (too_large.value.facts["tasks"], too_large.value.facts["pieces"]) == (58, 58)


class _Reading:
    """A session that records the options of its read."""

    def __init__(self) -> None:
        self.given: dict[str, object] = {}
        self.read = self

    def format(self, _: str) -> "_Reading":
        return self

    def options(self, **given: object) -> "_Reading":
        self.given |= given
        return self

    def load(self) -> "_Reading":
        return self


def test_a_held_state_takes_numbers_and_flags_as_options(place: Place) -> None:
    """Numbers and flags are accepted as options of a held state, and become text as in Spark's own `options`."""
    rig = place("memory://a")
    write(rig, "memory://a", 0)
    session: Any = _Reading()
    with source.state(session, "visits", _AT, options={"atPosition": 2, "includeKeyGroup": True, "keyGroups": 3}):
        assert (session.given["atPosition"], session.given["includeKeyGroup"]) == ("2", "true")
        assert session.given["keyGroups"] == "3"
