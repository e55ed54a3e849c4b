"""What the workers of a session know of their logs and runs, on the twins: a log is told from another of its name."""

import pickle
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from statelog.environment import Environment
from statelog.errors import (
    AnchorMismatch,
    BeyondEnd,
    CheckpointMismatch,
    IdentityChanged,
    LogInUse,
    OverlappingTasks,
    ValueTooLarge,
)
from statelog.producer.coordinator import Coordinator, TaskWriter
from statelog.producer.epoch import open_epoch
from statelog.schemas.ledger.records import VOID_VALUE
from statelog.spark import clients, epochs, sink, source
from statelog.spark.clients import IDLE_S, ProcessCache, cached_log
from statelog.spark.epochs import give_up, plan_batch
from statelog.spark.option_texts import LogAddress
from statelog.spark.options import WriteOptions, write_options
from statelog.spark.ownership import NO_QUERY
from statelog.spark.query_run import sibling_nonce
from statelog.spark.sink import BatchWriter, TaskResult, commit_batch, commit_write
from statelog.storage import Where
from statelog.storage.kafka import Producer
from statelog.storage.log.log import Log
from statelog.testing.cluster import MemoryCluster
from statelog.testing.faults import TRUE, Answer, Call, Fate, Faults, SendAttempt, old
from tests.support.rigs.log import TwinRig, twin_rig

Place = Callable[..., TwinRig]


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Place:
    """Makes the log `visits` at a root. This process is a worker that knows nothing yet."""
    rigs: dict[object, TwinRig] = {}

    def make(root: str, faults: Faults | None = None) -> TwinRig:
        cluster = MemoryCluster(cluster_id=root, faults=faults, clock=time.time)
        rigs[root] = rig = twin_rig("visits", cluster=cluster)
        rig.create().close()
        return rig

    def open_log(where: LogAddress) -> Log:
        return rigs[where.where.root].open()

    @contextmanager
    def task_producer(where: LogAddress) -> Generator[Producer]:
        yield rigs[where.where.root].kafka().producer()

    monkeypatch.setattr(epochs, "task_producer", task_producer)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for module in (clients, source):
        monkeypatch.setattr(module, "open_log", open_log)
    for module, name in ((clients, "_logs"), (epochs, "_epochs"), (sink, "_coordinators")):
        monkeypatch.setattr(module, name, ProcessCache[Any, Any]())
    return make


_AT = Where({"bootstrap.servers": "b:1"}, "memory://a")


def _options(root: str, batch: int) -> WriteOptions:
    where = {"log": "visits", "root": root, "kafka.bootstrap.servers": "b:1"}
    return write_options({**where, "writerId": "job", "queryId": "q", "batchId": str(batch)}, streaming=False)


def _written(rig: TwinRig, options: WriteOptions) -> TaskResult:
    """The batch is planned, and its only task has run."""
    task = plan_batch(options)
    writer = TaskWriter(rig.kafka().producer(), task, slot=options.batch_id or 0)
    writer.put(b"alice", b"%d" % task.checkpoint_id)
    return TaskResult(grant=task.grant, base=task.base, handle=writer.finish().to_bytes(), query_id="q")


def _write(rig: TwinRig, root: str, batch: int) -> None:
    options = _options(root, batch)
    assert commit_batch(options, [_written(rig, options)], batch)


def test_a_query_writes_to_two_logs_of_one_name(place: Place) -> None:
    """As while a job moves from one cluster to another. What it has opened on the first it has not on the second, so
    nobody has taken that over.
    """
    old, new = place("memory://old"), place("memory://new")
    for batch in range(2):
        _write(old, "memory://old", batch)
        _write(new, "memory://new", batch)
    assert old.state() == new.state() == {b"alice": b"2"}


def test_a_query_begins_again_on_a_log_that_was_made_anew(place: Place) -> None:
    """With a new checkpoint, in the same session, as people do in a notebook: nobody took over what is not there."""
    rig = place("memory://a")
    _write(rig, "memory://a", 0)
    Log.delete("visits", rig.where())
    rig.create().close()
    _write(rig, "memory://a", 0)
    assert rig.state() == {b"alice": b"1"}


def test_a_dataframe_of_an_older_log_ends_no_write_of_this_one(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker that commits is asked for what was planned on topics that the log had before. It refuses, and keeps
    the log that it has open: what it made of that asks who answers before it believes a commit.
    """
    rig = place("memory://a")
    _write(rig, "memory://a", 0)
    result, where = _written(rig, _options("memory://a", 1)), _options("memory://a", 1).where
    cached_log(where).look_again_s = 0.0
    older = replace(cached_log(where).descriptor.identity, ledger_topic_id="older")
    with pytest.raises(IdentityChanged, match="topics that the log had before"):
        cached_log(where, older)
    assert commit_batch(_options("memory://a", 1), [result], 1)
    assert rig.state() == {b"alice": b"2"}


_CACHES = ((clients, "_logs"), (epochs, "_epochs"), (sink, "_coordinators"))


def _worker(clock: Callable[[], float] = time.monotonic) -> list[ProcessCache[Any, Any]]:
    """What another worker of the session keeps, by this clock."""
    return [ProcessCache[Any, Any](clock=clock) for _ in _CACHES]


def _become(monkeypatch: pytest.MonkeyPatch, worker: list[ProcessCache[Any, Any]]) -> None:
    """What goes on happens in this worker."""
    for (module, name), cache in zip(_CACHES, worker, strict=True):
        monkeypatch.setattr(module, name, cache)


def _hide(rig: TwinRig, records: int) -> Iterator[int]:
    """A deposed leader, which lacks the ledger's last records, answers the next three questions about its end. What is
    returned ends with them.
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
    """Of tasks without a row no chunk says what their planner saw of the ledger; their grant does, to a worker that
    has seen nothing, and to one that has not seen the lost commit.
    """
    rig, idle = place("memory://a"), _worker()
    _become(monkeypatch, idle)
    _write(rig, "memory://a", 0)
    _become(monkeypatch, _worker())
    _write(rig, "memory://a", 1)
    options = _options("memory://a", 2)
    result = _written_empty(rig, options)
    rig.cluster.lose_tail("visits.ledger", 0, rig.cluster.log("visits.ledger", 0).end - 1)
    for worker in (_worker(), idle):
        _become(monkeypatch, worker)
        cached_log(options.where).patience_s = 0.0
        with pytest.raises(BeyondEnd):
            commit_batch(options, [result], 2)


def _written_empty(rig: TwinRig, options: WriteOptions) -> TaskResult:
    """The batch is planned, and its only task has run, without a row."""
    task = plan_batch(options)
    handle = TaskWriter(rig.kafka().producer(), task, slot=options.batch_id or 0).finish()
    return TaskResult(grant=task.grant, base=task.base, handle=handle.to_bytes(), query_id="q")


def test_a_batch_is_not_committed_behind_a_loss_that_its_planner_knew(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker plans it, behind a record of somebody else, which the one that commits has never read."""
    rig, commits = place("memory://a"), _worker()
    ledger = rig.cluster.log("visits.ledger", 0)
    _become(monkeypatch, commits)
    _write(rig, "memory://a", 0)
    ledger.append(VOID_VALUE)
    _become(monkeypatch, _worker())
    result = _written_empty(rig, _options("memory://a", 1))
    rig.cluster.lose_tail("visits.ledger", 0, ledger.end - 1)
    ledger.append(b"somebody's")
    _become(monkeypatch, commits)
    with pytest.raises(AnchorMismatch):
        commit_batch(_options("memory://a", 1), [result], 1)


def test_a_worker_that_commits_for_two_queries_forgets_no_lost_commit(place: Place) -> None:
    """The ledger lost the last commit of one, and somebody wrote there: before the other's is put that is compared."""
    rig = place("memory://a")
    one, two = (
        [replace(_options("memory://a", n), writer=w, partitions=(p,)) for n in (0, 1)]
        for p, w in ((0, "one"), (1, "two"))
    )
    for options in (one[0], two[0]):
        commit_batch(options, [_written_empty(rig, options)], 0)
    result = _written_empty(rig, two[1])
    commit_batch(one[1], [_written_empty(rig, one[1])], 1)
    ledger = rig.cluster.log("visits.ledger", 0)
    rig.cluster.lose_tail("visits.ledger", 0, ledger.end - 1)
    ledger.append(VOID_VALUE)
    with pytest.raises(AnchorMismatch):
        commit_batch(two[1], [result], 1)


@pytest.mark.parametrize("keeps_epoch", [True, False])
def test_a_batch_behind_a_lost_commit_is_not_planned_where_that_was_made(
    place: Place, monkeypatch: pytest.MonkeyPatch, keeps_epoch: bool
) -> None:
    """The worker has committed it, and plans the next batch, under the epoch that it has, or finds. Whoever commits
    that has seen nothing.
    """
    rig = place("memory://a")
    for batch in range(2):
        _write(rig, "memory://a", batch)
    rig.cluster.lose_tail("visits.ledger", 0, rig.cluster.log("visits.ledger", 0).end - 1)
    options = _options("memory://a", 2)
    cached_log(options.where).patience_s = 0.0
    if not keeps_epoch:
        monkeypatch.setattr(epochs, "_epochs", ProcessCache[Any, Any]())
    with pytest.raises(BeyondEnd):
        plan_batch(options)


@pytest.mark.parametrize("hidden", [1, 2])
def test_a_worker_whose_first_question_meets_a_deposed_leader_commits(
    place: Place, monkeypatch: pytest.MonkeyPatch, hidden: int
) -> None:
    """The last records of the ledger are hidden from it: the last commit, and the Open of its own grant. That says how
    far the ledger reached when the batch was planned.
    """
    rig = place("memory://a")
    _write(rig, "memory://a", 0)
    options = _options("memory://a", 1)
    result = _written(rig, options)
    _become(monkeypatch, _worker())
    numbers = _hide(rig, hidden)
    assert commit_batch(options, [result], 1)
    assert next(numbers, None) is None
    assert rig.state() == {b"alice": b"2"}


def test_a_worker_whose_first_question_meets_a_deposed_leader_plans(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Open of its own run is hidden from it, and nobody has taken over."""
    rig = place("memory://a")
    plan_batch(_options("memory://a", 0))
    _become(monkeypatch, _worker())
    numbers = _hide(rig, 1)
    _write(rig, "memory://a", 0)
    assert next(numbers, None) is None
    assert rig.state() == {b"alice": b"1"}


def test_a_commit_follows_one_that_was_made_as_long_ago_as_clients_may_rest(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a query that is triggered every ten minutes: the log has rested for too long then, and what was made of it a
    little later has not.
    """
    now_s = [0.0]
    rig, worker = place("memory://a"), _worker(lambda: now_s[0])
    _become(monkeypatch, worker)

    class Slow(Coordinator):
        """One that takes a second to open."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            now_s[0] += 1.0

    monkeypatch.setattr(sink, "Coordinator", Slow)
    monkeypatch.setattr(Log, "look_again_s", 0.0)
    _write(rig, "memory://a", 0)
    options = _options("memory://a", 1)
    _become(monkeypatch, _worker())
    result = _written(rig, options)
    _become(monkeypatch, worker)
    now_s[0] = IDLE_S + 0.5
    assert commit_batch(options, [result], 1)
    assert rig.state() == {b"alice": b"2"}


@pytest.mark.parametrize("root", ["memory://a", "memory://b"])
def test_a_query_that_goes_on_elsewhere_is_refused(place: Place, root: str) -> None:
    """On another log, or on its own that was made anew: with the checkpoint that it has, its earlier rows would be
    missing there, silently. A sink that is new in the query says so, once.
    """
    rig = place("memory://a")
    for batch in range(3):
        _write(rig, "memory://a", batch)
    if root == "memory://a":
        Log.delete("visits", rig.where())
        rig.create().close()
    there = rig if root == "memory://a" else place(root)
    options = _options(root, 3)
    with pytest.raises(CheckpointMismatch, match="lacks its batches 0 to 2"):
        commit_batch(options, [_written(there, options)], 3)
    assert there.state() == {}
    assert commit_batch(replace(options, take_over_from=NO_QUERY), [_written(there, options)], 3)
    _write(there, root, 4)
    assert there.state() == {b"alice": b"5"}


@pytest.mark.parametrize("is_old", [False, True])
def test_a_repetition_with_other_rows_is_refused(place: Place, is_old: bool) -> None:
    """Of a checkpoint that was restored one batch old, or of another query of the same name: what Spark plans anew may
    be other rows, and to skip them would lose them. A commit of an earlier version, which has no digest, is read.
    """
    rig = place("memory://a")
    options = _options("memory://a", 0)

    def written(count: int, value: bytes) -> TaskResult:
        task = plan_batch(options)
        rows = pa.table({"key": [b"%d" % key for key in range(count)], "value": [value] * count})
        with TaskWriter(rig.kafka().producer(), task, slot=count, is_digested=not is_old) as writer:
            writer.append_batch(rows)
            handle = writer.finish().to_bytes()
        return TaskResult(grant=task.grant, base=task.base, handle=handle, query_id="q", digest=writer.digest)

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


def test_a_query_that_died_in_its_first_batch_bars_nobody(place: Place) -> None:
    """Spark aborts the batch: another job, under any name, need not wait until the dead one may be taken for dead, and
    the query itself, started again in its session, is told of no rival. Once it has committed, an abort ends nothing.
    """
    rig = place("memory://a")
    options, other = _options("memory://a", 0), replace(_options("memory://a", 0), writer="other", query_id="other")
    for one in (options, other, options):
        give_up(one, plan_batch(one).grant)
    task = plan_batch(options)
    with pytest.raises(LogInUse):
        plan_batch(other)
    assert commit_batch(options, [_written(rig, options)], 0)
    give_up(options, task.grant)
    with pytest.raises(LogInUse):
        plan_batch(other)
    _write(rig, "memory://a", 1)


def test_a_commit_of_thousands_of_pieces_is_told_of(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With the helper that makes fewer, as a warning, long before a commit is too large for a record; and in place of
    the hints that know nothing of Spark.
    """
    rig = place("memory://a")
    options = replace(_options("memory://a", 0), unique_keys=True)
    monkeypatch.setattr(sink, "MANY_PIECES", 2)

    def written(slot: int) -> TaskResult:
        task = plan_batch(options)
        writer = TaskWriter(rig.kafka().producer(), task, slot=slot)
        writer.put(b"alice", b"%d" % slot)
        return TaskResult(grant=task.grant, base=task.base, handle=writer.finish().to_bytes(), query_id="q")

    both = [written(0), written(1)]
    with pytest.raises(OverlappingTasks, match=r"repartition_by_key_group\(df, log\).*uniqueKeys=true"):
        commit_batch(replace(options, unique_keys=False), both, 0)
    with pytest.raises(OverlappingTasks) as caught:
        commit_batch(replace(options, unique_keys=False, sequence_by="seq"), both, 0)
    assert "uniqueKeys" not in caught.value.hint, "which sequenceBy contradicts"
    caplog.clear()
    assert commit_batch(options, both, 0)
    assert "2 pieces, of 2 tasks" in caplog.text
    assert "repartition_by_key_group(df, log)" in caplog.text
    monkeypatch.setattr("statelog.schemas.descriptor.Descriptor.record_bytes_max", 1024)
    results = [written(slot) for slot in range(2, 60)]
    with pytest.raises(ValueTooLarge, match="repartition_by_key_group") as too_large:
        commit_batch(replace(options, batch_id=1), results, 1)
    assert (too_large.value.facts["tasks"], too_large.value.facts["pieces"]) == (58, 58)


class _Unanswered:
    """Faults: the answer to the next record of a ledger is lost, once that is wanted."""

    is_wanted = False

    def fate(self, attempt: SendAttempt) -> Fate:
        """The record's fate."""
        if not (self.is_wanted and attempt.topic == "visits.ledger"):
            return Fate.DELIVER
        self.is_wanted = False
        return Fate.APPEND_UNANSWERED


def test_a_plain_write_whose_outcome_was_settled_bars_nobody(place: Place) -> None:
    """Its commit was there already, so the Open that settled it is behind it: that is no write under way."""
    faults = _Unanswered()
    rig = place("memory://a", faults)
    one, two = (replace(_options("memory://a", 0), writer=name, batch_id=None) for name in ("one", "two"))
    result = _written(rig, one)
    faults.is_wanted = True
    assert commit_write(one, [result])
    assert not faults.is_wanted
    assert commit_write(two, [_written(rig, two)])
    assert commit_write(one, [_written(rig, one)])
    assert rig.state() == {b"alice": b"2"}


def test_a_plain_write_that_failed_bars_nobody_by_what_was_to_settle_it(place: Place) -> None:
    """Its commit and the Open behind it went unanswered, and the Open landed."""
    rig = place("memory://a")
    one, two = (replace(_options("memory://a", 0), writer=name, batch_id=None) for name in ("one", "two"))
    grant = plan_batch(one).grant
    Environment(nonce=lambda: sibling_nonce(grant.nonce)).run(open_epoch, cached_log(one.where), "one").close()
    give_up(one, grant)
    assert commit_write(two, [_written(rig, two)])
    result = _written(rig, two)
    give_up(one, grant)
    assert commit_write(two, [result]), "and it ends nobody else's"


def test_a_plain_write_within_a_query_is_told_of(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """It is committed again with each repetition of its batch, unless it has a checkpoint id."""
    rig = place("memory://a")
    plain = replace(_options("memory://a", 0), batch_id=None)
    result = _written(rig, plain)
    assert commit_write(replace(plain, checkpoint_id=1), [result])
    assert "foreachBatch" not in caplog.text
    assert commit_write(plain, [_written(rig, plain)])
    assert "a plain write in foreachBatch is repeated with its batch: use upsert" in caplog.text


def test_a_plain_write_without_a_task_bars_nobody(place: Place) -> None:
    """Spark runs none for a DataFrame without a partition: nothing is committed, and the write is not under way."""
    rig = place("memory://a")
    given = {"log": "visits", "root": "memory://a", "kafka.bootstrap.servers": "b:1", "writerId": "one"}
    columns = StructType([StructField("key", BinaryType()), StructField("value", BinaryType())])
    planned: BatchWriter = pickle.loads(pickle.dumps(BatchWriter(given, columns, overwrite=False)))
    planned.commit([])
    two = replace(_options("memory://a", 0), writer="two", batch_id=None)
    assert commit_write(two, [_written(rig, two)])


class _Reading:
    """A session, and what it reads: all that is asked of it is which options it was given."""

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
    """As Spark's own `options` does, which turns them into text."""
    rig = place("memory://a")
    _write(rig, "memory://a", 0)
    session: Any = _Reading()
    with source.state(session, "visits", _AT, options={"atPosition": 2, "includeKeyGroup": True, "keyGroups": 3}):
        assert (session.given["atPosition"], session.given["includeKeyGroup"]) == ("2", "true")
        assert session.given["keyGroups"] == "3"
