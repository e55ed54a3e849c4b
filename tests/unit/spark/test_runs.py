"""Concurrent runs of queries and plain writes on the twins: their errors, and the log afterwards."""

import pickle
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from statelog.environment import Environment
from statelog.errors import (
    CheckpointMismatch,
    CommitRefused,
    Fenced,
    LogInUse,
)
from statelog.producer.writer import Writer
from statelog.schemas.ledger.handle import Handle
from statelog.spark.clients import cached_log
from statelog.spark.epochs import plan_batch
from statelog.spark.options import WriteOptions
from statelog.spark.sink import BatchWriter, TaskResult, commit_batch, commit_write
from statelog.testing.faults import Fate, SendAttempt
from tests.support.spark.workers import Place, become, new_worker, options_of, write, written


def test_a_query_that_died_in_its_first_batch_bars_nobody(place: Place) -> None:
    """A query bars others only after its first commit. An Open without a commit bars none."""
    rig = place("memory://a")
    options, other = options_of("memory://a", 0), replace(options_of("memory://a", 0), writer="other", query_id="other")
    begun = rig.cluster.log("visits.ledger", 0).end
    for one in (options, other, options):
        written(rig, one)
    assert rig.cluster.log("visits.ledger", 0).end == begun
    Writer(cached_log(options.where), "other").close()
    result = written(rig, options)
    assert commit_batch(options, [result], 0)
    with pytest.raises(LogInUse):
        plan_batch(other)
    write(rig, "memory://a", 1)


def test_a_run_that_was_taken_over_is_told_and_the_next_one_goes_on(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run whose epoch was fenced is refused for good, in every worker. A new run of the query continues."""
    rig = place("memory://a")
    write(rig, "memory://a", 0)
    Writer(cached_log(options_of("memory://a", 0).where), "job").close()
    result = written(rig, options_of("memory://a", 1))
    for _ in range(2):
        with pytest.raises(Fenced, match="another writer took over"):
            commit_batch(options_of("memory://a", 1), [result], 1)
        become(monkeypatch, new_worker())
    for batch in (1, 2):
        options = options_of("memory://a", batch)
        assert commit_batch(options, [written(rig, options, "newer")], batch)
    for batch in (1, 2, 3):
        options = options_of("memory://a", batch)
        with pytest.raises(Fenced, match="another writer took over"):
            commit_batch(options, [written(rig, options)], batch)
    assert commit_batch(options, [written(rig, options, "newer")], 3)


def test_a_batch_of_an_older_driver_fences_nobody(place: Place) -> None:
    """An older driver's first batch is skipped or refused after a newer driver has committed it or a later one.

    It fences no writer.
    """
    rig = place("memory://a")
    options = options_of("memory://a", 0)
    late = written(rig, options, "older")
    write(rig, "memory://a", 0)
    assert not commit_batch(options, [late], 0)
    write(rig, "memory://a", 1)
    with pytest.raises(CheckpointMismatch, match="older than the writer's last one"):
        commit_batch(options, [late], 0)
    write(rig, "memory://a", 2)
    assert rig.state() == {b"alice": b"3"}


@contextmanager
def _intruding(act: Callable[[], object]) -> Generator[Environment]:
    """Return an environment in which `act` runs once, between the check for competing writers and the Open."""
    left = [act]

    def look_at_the_clock() -> float:
        if left:
            left.pop()()
        return time.time()

    yield Environment(wall_clock=look_at_the_clock)
    assert not left


def test_a_batch_that_an_earlier_life_commits_before_our_open_is_skipped(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that an earlier incarnation commits between our check of the ledger and our Open is skipped."""
    rig, theirs, ours = place("memory://a"), new_worker(), new_worker()
    become(monkeypatch, theirs)
    write(rig, "memory://a", 0)
    options = options_of("memory://a", 1)
    early, late = written(rig, options), written(rig, options, "newer")

    def commit_theirs() -> None:
        become(monkeypatch, theirs)
        assert commit_batch(options, [early], 1)
        become(monkeypatch, ours)

    become(monkeypatch, ours)
    with _intruding(commit_theirs) as environment:
        assert not environment.run(commit_batch, options, [late], 1)
    options = options_of("memory://a", 2)
    assert commit_batch(options, [written(rig, options, "newer")], 2)


def test_of_two_queries_that_begin_at_once_one_is_refused(place: Place) -> None:
    """A query that another one precedes between check and Open is refused with the other's name, and fences none."""
    rig = place("memory://a")
    ours, other = options_of("memory://a", 0), replace(options_of("memory://a", 0), writer="other")
    theirs, result = written(rig, other), written(rig, ours)
    with (
        _intruding(lambda: commit_batch(other, [theirs], 0)) as environment,
        pytest.raises(LogInUse) as caught,
    ):
        environment.run(commit_batch, ours, [result], 0)
    assert caught.value.facts["writer"] == "other"
    other = replace(other, batch_id=1)
    assert commit_batch(other, [written(rig, other)], 1)


def test_an_older_plain_write_does_not_cover_a_newer_one(place: Place) -> None:
    """An older plain write, delayed behind its tasks, does not overwrite its repetition.

    Checkpoint ids tell which one is older.
    """
    rig = place("memory://a")
    options = replace(options_of("memory://a", 0), batch_id=None)
    late = written(rig, options)
    assert commit_write(options, [written(rig, options)])
    with pytest.raises(Fenced, match="planned later"):
        commit_write(options, [late])
    assert commit_write(options, [written(rig, options)])
    numbered = replace(options, checkpoint_id=1)
    with pytest.raises(CheckpointMismatch, match="not later"):
        commit_write(numbered, [late])
    assert rig.state() == {b"alice": b"2"}


def test_an_older_driver_does_not_take_over_once_more(place: Place) -> None:
    """An older driver's take-over does not apply again after a further take-over, which it had not observed."""
    rig = place("memory://a")
    first, second = (replace(options_of("memory://a", 0), query_id=name) for name in ("q", "p"))

    def tasks_of(options: WriteOptions, run: str) -> TaskResult:
        return replace(written(rig, options, run), query_id=options.query_id or "")

    taking = replace(second, take_over_from="q")
    assert commit_batch(first, [tasks_of(first, "run")], 0)
    late = tasks_of(taking, "older")
    assert commit_batch(taking, [tasks_of(taking, "newer")], 0)
    back = replace(first, take_over_from="p", batch_id=1)
    assert commit_batch(back, [tasks_of(back, "next")], 1)
    with pytest.raises(Fenced, match="planned later"):
        commit_batch(taking, [late], 0)
    assert rig.state() == {b"alice": b"3"}


@pytest.mark.usefixtures("busy_ledger")
def test_what_others_commit_meanwhile_is_not_overwritten_in_part(place: Place) -> None:
    """A batch during whose tasks a fenced writer committed is refused as a whole, and its repetition is committed."""
    rig = place("memory://a")
    options = options_of("memory://a", 0)
    with Writer(cached_log(options.where), "python") as writer:
        writer.put(b"alice", b"theirs")
        writer.commit()
        result = written(rig, options, "one")
        writer.put(b"alice", b"theirs, too")
        writer.commit()
        with pytest.raises(CommitRefused, match="it is fenced now"):
            commit_batch(options, [result], 0)
        writer.put(b"alice", b"late")
        with pytest.raises(Fenced):
            writer.commit()
    assert rig.state() == {b"alice": b"theirs, too"}
    assert commit_batch(options, [written(rig, options, "two")], 0)


class _Unanswered:
    """Faults that lose the answer to the next record of a ledger on request."""

    is_wanted = False

    def fate(self, attempt: SendAttempt) -> Fate:
        """Return the record's fate."""
        if not (self.is_wanted and attempt.topic == "visits.ledger"):
            return Fate.DELIVER
        self.is_wanted = False
        return Fate.APPEND_UNANSWERED


def test_a_plain_write_whose_outcome_was_settled_bars_nobody(place: Place) -> None:
    """A plain write whose outcome an Open resolved bars none: it is no longer under way."""
    faults = _Unanswered()
    rig = place("memory://a", faults)
    one, two = (replace(options_of("memory://a", 0), writer=name, batch_id=None) for name in ("one", "two"))
    result = written(rig, one)
    faults.is_wanted = True
    assert commit_write(one, [result])
    assert not faults.is_wanted
    assert commit_write(two, [written(rig, two)])
    assert commit_write(one, [written(rig, one)])
    assert rig.state() == {b"alice": b"2"}


def test_a_plain_write_within_a_query_is_told_of(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """A plain write within a query is committed again with each repetition of its batch, unless it has a checkpoint id.

    It warns.
    """
    rig = place("memory://a")
    plain = replace(options_of("memory://a", 0), batch_id=None)
    result = written(rig, plain)
    assert commit_write(replace(plain, checkpoint_id=1), [result])
    assert "foreachBatch" not in caplog.text
    assert commit_write(plain, [written(rig, plain)])
    assert "a plain write in foreachBatch is repeated with its batch: use upsert" in caplog.text


def test_a_plain_write_without_a_task_bars_nobody(place: Place) -> None:
    """A plain write of a DataFrame without partitions has no task, commits nothing and bars none."""
    rig = place("memory://a")
    given = {"log": "visits", "root": "memory://a", "kafka.bootstrap.servers": "b:1", "writerId": "one"}
    columns = StructType([StructField("key", BinaryType()), StructField("value", BinaryType())])
    planned: BatchWriter = pickle.loads(pickle.dumps(BatchWriter(given, columns, overwrite=False)))
    planned.commit([])
    two = replace(options_of("memory://a", 0), writer="two", batch_id=None)
    assert commit_write(two, [written(rig, two)])


def test_plain_writes_of_one_worker_share_an_epoch(place: Place) -> None:
    """Plain writes of one worker share an epoch until another writer opens.

    A write planned before another is committed does not overwrite it, and one to other partitions opens its own epoch.
    """
    rig = place("memory://a")
    options = replace(options_of("memory://a", 0), batch_id=None)
    for _ in range(3):
        assert commit_write(options, [written(rig, options)])
    ledger = rig.cluster.log("visits.ledger", 0)
    assert ledger.end == 5, "the mark, an Open and three Commits"
    early = written(rig, options)
    assert commit_write(options, [written(rig, options)])
    with pytest.raises(Fenced, match="planned later"):
        commit_write(options, [early])
    (partition,) = {entry.partition for entry in Handle.from_bytes(early.handle).entries}
    other = replace(options, partitions=(partition,))
    assert commit_write(other, [written(rig, other)])
    assert ledger.end == 8
    assert rig.state() == {b"alice": b"5"}
