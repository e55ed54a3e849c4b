"""The planning and the commit process of the Spark sinks without Spark: runs, siblings, strangers, stale caches.

Spark may plan or commit with another worker than the last time. The test does the other one's work by hand.
"""

import pickle
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage

from statelog.environment import Environment
from statelog.errors import (
    CheckpointMismatch,
    CommitRefused,
    ConfigError,
    Fenced,
    IdentityChanged,
    KeyGroupMismatch,
    LogInUse,
    Misuse,
    OverlappingTasks,
)
from statelog.log import Log, Where
from statelog.producer.coordinator import TaskWriter
from statelog.producer.epoch import TaskGrant
from statelog.producer.writer import Writer
from statelog.schemas.key_groups import key_group_of, partition_of
from statelog.spark import clients, sink
from statelog.spark.clients import task_producer
from statelog.spark.data_source import StatelogSource
from statelog.spark.epochs import plan_batch
from statelog.spark.options import WriteOptions, write_options
from statelog.spark.ownership import NO_QUERY, RECENT_S
from statelog.spark.sink import TaskResult, commit_batch, commit_write
from tests.support.processes.starts import in_fork
from tests.support.services.broker import Broker
from tests.support.spark.rig import SparkLog

pytestmark = pytest.mark.broker


@pytest.fixture
def rig(broker: Broker, log_name: str, tmp_path: Path) -> Iterator[SparkLog]:
    """Yield a small log of this test's own; the processes' caches of it end with the test."""
    made = SparkLog.create(log_name, broker.bootstrap, tmp_path)
    with made.log:
        yield made
    for cache in (sink._committers, clients._logs, clients._producers):  # pyright: ignore[reportPrivateUsage] # the worker's end
        cache.clear()


def stream_options(rig: SparkLog, **changed: str) -> WriteOptions:
    """Return the options of a stream's writer `job`."""
    given = {**rig.options, "writerId": "job", "checkpointLocation": "/checkpoint", **changed}
    return write_options(given, streaming=True)


def run_task(
    task: TaskGrant, options: WriteOptions, slot: int, rows: dict[int, int], query: str = "q", run: str | None = "run"
) -> TaskResult:
    """Return the result of a task of this run of the query for these rows."""
    with task_producer(options.where) as producer:
        writer = TaskWriter(producer, task, slot=slot)
        writer.append_batch(pa.table({"key": list(rows), "n": list(rows.values())}))
        handle = writer.finish()
    return TaskResult(plan=task.grant, handle=handle.to_bytes(), query_id=query, run_id=run if query else None)


def test_one_epoch_for_all_batches(rig: SparkLog, caplog: pytest.LogCaptureFixture) -> None:
    """Batches of one run share the epoch and each continues the one before; planning writes nothing.

    Another process recognizes a replay, too.
    """
    options = stream_options(rig)
    begun = rig.ledger_end()
    for batch in range(3):
        task = plan_batch(options)
        assert (rig.opens(), task.base.id) == (min(batch, 1), batch)
        assert commit_batch(options, [run_task(task, options, batch, {batch: batch})], batch)
    task = plan_batch(options)
    sink._committers.clear()  # pyright: ignore[reportPrivateUsage] # as after the process has ended
    with caplog.at_level("INFO", logger="statelog.spark"):
        assert not commit_batch(options, [run_task(task, options, 9, {2: 2}, run="another")], 2), "a replay"
    assert "has checkpoint 3 already" in caplog.text
    assert rig.numbers() == {0: 0, 1: 1, 2: 2}
    assert rig.ledger_end() == begun + 4, "an Open and three Commits"


def test_of_two_jobs_that_start_at_once_one_is_refused(rig: SparkLog) -> None:
    """Of two jobs that start at once one is refused, and names the other's, without fencing it.

    The other job opens and commits between our check of the ledger and our Open. A writer outside of Spark is taken
    over from, as at any other moment.
    """
    ours, other = stream_options(rig), stream_options(rig, writerId="other")
    theirs = run_task(plan_batch(other), other, 0, {1: 1}, "p")
    result = run_task(plan_batch(ours), ours, 1, {1: 1})
    intruders: list[Callable[[], object]] = [
        lambda: commit_batch(other, [theirs], 0),
        lambda: Writer(rig.log, "plain").close(),
    ]

    def look_at_the_clock() -> float:
        if intruders:
            intruders.pop()()
        return time.time()

    with pytest.raises(LogInUse) as caught:
        Environment(wall_clock=look_at_the_clock).run(commit_batch, ours, [result], 0)
    assert caught.value.facts["writer"] == "other"
    assert not intruders
    assert rig.opens() == 2, "ours is not among them"


def in_a_worker(do: Callable[[], object], path: Path) -> Any:
    """Return the result of a worker that the session has just started, without any cache."""

    def go() -> None:
        forget()
        path.write_bytes(pickle.dumps(do()))

    assert in_fork(go) == 0
    return pickle.loads(path.read_bytes())


def test_all_workers_of_a_session_use_one_epoch(rig: SparkLog, tmp_path: Path) -> None:
    """Any worker that plans or commits a batch goes on with the epoch of its siblings."""
    options = stream_options(rig)
    for batch in range(4):
        task: TaskGrant = in_a_worker(lambda: plan_batch(options), tmp_path / "task")
        assert task.base.id == batch
        result = run_task(task, options, batch, {batch: batch})
        commit = partial(commit_batch, options, [result], batch)
        assert commit() if batch % 2 else in_a_worker(commit, tmp_path / "done")
    assert rig.opens() == 1
    assert rig.numbers() == {0: 0, 1: 1, 2: 2, 3: 3}


def forget() -> None:
    """Forget all, as after the end of workers that were idle for a minute."""
    sink._committers.clear()  # pyright: ignore[reportPrivateUsage] # as above


@pytest.mark.parametrize("forgets", [False, True])
@pytest.mark.parametrize(("stranger", "commits"), [("job", False), ("python", False), ("python", True)])
def test_a_run_that_was_taken_over_takes_nothing_back(
    rig: SparkLog, stranger: str, commits: bool, forgets: bool
) -> None:
    """A query that was taken over ends, whichever worker commits with any cache; started again, it goes on."""
    options = stream_options(rig)
    assert commit_batch(options, [run_task(plan_batch(options), options, 0, {1: 1})], 0)
    result = run_task(plan_batch(options), options, 1, {2: 2})
    with Writer(rig.log, stranger) as writer:
        if commits:
            writer.commit()
    for _ in range(2):
        if forgets:
            forget()
        with pytest.raises(Fenced, match="nother writer took over"):
            commit_batch(options, [result], 1)
    assert rig.opens() == 2, "the stranger still owns the log"
    assert commit_batch(options, [run_task(plan_batch(options), options, 1, {2: 2}, run="next")], 1)
    assert rig.numbers() == {1: 1, 2: 2}


def test_who_comes_second_fences_nobody(rig: SparkLog, caplog: pytest.LogCaptureFixture) -> None:
    """A second query with the writer's name or one of its own, and a plain write, are refused before an Open.

    The first query goes on, and only takeOver ends it.
    """
    first = stream_options(rig)
    assert commit_batch(first, [run_task(plan_batch(first), first, 0, {1: 1}, "qa")], 0)
    with pytest.raises(CheckpointMismatch, match="takeOverFrom=qa"):
        commit_batch(first, [run_task(plan_batch(first), first, 9, {1: 1}, "qb")], 0)
    other = stream_options(rig, writerId="other")
    load = write_options({**rig.options, "writerId": "load"}, streaming=False)
    for options in (other, load):
        with pytest.raises(LogInUse, match="another Spark job writes to this log") as caught:
            plan_batch(options)
        assert (caught.value.facts["writer"], caught.value.facts["query_id"]) == ("job", "qa")
    assert commit_batch(first, [run_task(plan_batch(first), first, 1, {2: 2}, "qa")], 1)
    assert rig.opens() == 1

    wanted = replace(other, take_over=True)
    assert commit_batch(wanted, [run_task(plan_batch(wanted), wanted, 2, {3: 3}, "qb")], 0)
    assert "writer other took over from job" in caplog.text
    with pytest.raises(LogInUse):
        plan_batch(first)
    with pytest.raises(Fenced):
        third = run_task(plan_batch(replace(first, take_over=True)), first, 3, {4: 4}, "qa")
        commit_batch(first, [third], 2)
    assert rig.numbers() == {1: 1, 2: 2, 3: 3}


def keys_of(rig: SparkLog, partitions: range) -> list[int]:
    """Return some keys in these partitions."""
    descriptor = rig.log.descriptor
    kind, groups, count = descriptor.key_type, descriptor.key_groups, descriptor.partitions
    return [key for key in range(200) if partition_of(key_group_of(key, kind, groups), count, groups) in partitions]


def test_jobs_share_a_log_by_partitions(rig: SparkLog) -> None:
    """Two queries and a plain write with partitions of their own never conflict.

    One that overlaps another's is refused before an Open, with its owner; a row outside of its share commits nothing.
    """
    one = stream_options(rig, writerId="one", partitions="0/2")
    two = stream_options(rig, writerId="two", partitions="2")
    load = write_options({**rig.options, "writerId": "load", "partitions": "3"}, streaming=False)
    low, high, last = (keys_of(rig, part) for part in (range(2), range(2, 3), range(3, 4)))
    for batch in range(2):
        for slot, (options, keys, query) in enumerate(((one, low, "qa"), (two, high, "qb"))):
            task = plan_batch(options)
            assert commit_batch(
                options, [run_task(task, options, 2 * batch + slot, {keys[batch]: batch}, query)], batch
            )
        assert commit_write(load, [run_task(plan_batch(load), load, batch, {last[batch]: batch}, query="")])
    assert rig.opens() == 3
    assert rig.numbers() == {keys[batch]: batch for keys in (low, high, last) for batch in range(2)}

    overlapping = stream_options(rig, writerId="three", partitions="1:3")
    with pytest.raises(LogInUse, match="by the option partitions") as in_use:
        plan_batch(overlapping)
    assert in_use.value.facts["partitions"] in ("0:2", "2")
    task = plan_batch(one)
    with pytest.raises(KeyGroupMismatch) as outside:
        run_task(task, one, 9, {low[5]: 5, high[5]: 5}, "qa")
    assert outside.value.facts["owned_partitions"] == "0:2"
    assert outside.value.facts["key_group"] == key_group_of(high[5], rig.log.descriptor.key_type, 16)

    wider = replace(one, share=None, partitions=(0,))
    assert commit_batch(wider, [run_task(plan_batch(wider), wider, 10, {}, "qa", run="next")], 2)
    assert rig.opens() == 4, "the same query, started with other partitions, opens again and waits for nobody"


def test_the_same_query_takes_over_at_once(rig: SparkLog) -> None:
    """A restarted query waits for nobody, before its first commit and after; its old run does not take it back."""
    options = stream_options(rig)
    plan_batch(options)
    for batch in range(2):
        forget()
        task = plan_batch(options)
        assert commit_batch(options, [run_task(task, options, batch, {1: batch}, "qa", run=f"run {batch}")], batch)
    assert rig.opens() == 2
    with pytest.raises(Fenced):
        commit_batch(options, [run_task(plan_batch(options), options, 2, {1: 2}, "qa", run="run 0")], 2)


def test_a_job_that_is_done_or_dead_stands_in_nobodys_way(rig: SparkLog) -> None:
    """A query bars others as long as it may be alive; a plain write, and a Writer, never."""
    load = write_options({**rig.options, "writerId": "load"}, streaming=False)
    task = plan_batch(load)
    query = stream_options(rig)
    assert commit_write(load, [run_task(task, load, 0, {1: 1}, query="")])
    assert commit_batch(query, [run_task(plan_batch(query), query, 1, {2: 2}, "qa")], 0)
    later = replace(load, writer="later")
    with pytest.raises(LogInUse):
        Environment(wall_clock=lambda: time.time() + RECENT_S - 600).run(plan_batch, later)
    assert Environment(wall_clock=lambda: time.time() + RECENT_S + 600).run(plan_batch, later)
    Writer(rig.log, "python").close()
    assert plan_batch(replace(load, writer="last"))


def test_plain_writes_beside_each_other_are_committed_in_their_order(rig: SparkLog) -> None:
    """Concurrent plain writes are committed in their order: no record of one is in the ledger before its commit.

    A write whose rows lie below another's commit is refused, and says that it is to be run again.
    """
    load = write_options({**rig.options, "writerId": "load"}, streaming=False)
    other = replace(load, writer="other", checkpoint_id=7)
    begun = rig.ledger_end()
    first, second = plan_batch(load), plan_batch(other)
    early = run_task(second, other, 0, {1: 1}, query="")
    result = run_task(first, load, 1, {1: 2}, query="")
    late = run_task(second, other, 2, {1: 3}, query="")
    assert rig.ledger_end() == begun
    assert commit_write(load, [result])
    with pytest.raises(CommitRefused, match="run the write, again"):
        commit_write(other, [early])
    assert commit_write(other, [late])
    assert rig.numbers() == {1: 3}
    assert not commit_write(other, [run_task(plan_batch(other), other, 3, {1: 4}, query="")]), "a replay"
    with pytest.raises(CheckpointMismatch, match="not those that were committed"):
        commit_write(other, [run_task(plan_batch(other), other, 4, {1: 4, 2: 4}, query="")])


def test_a_plain_batch_write_opens_anew_after_a_stranger(rig: SparkLog) -> None:
    """A batch job has no run to be fenced out of: its next write takes the writer again."""
    options = write_options({**rig.options, "writerId": "load"}, streaming=False)
    task = plan_batch(options)
    assert commit_write(options, [run_task(task, options, 0, {1: 1}, query="")])
    Writer(rig.log, "load").close()
    task = plan_batch(options)
    assert commit_write(options, [run_task(task, options, 1, {2: 2}, query="")])
    assert rig.numbers() == {1: 1, 2: 2}


def test_a_log_that_was_made_anew_is_opened_again(rig: SparkLog) -> None:
    """A log that was deleted and re-created while workers run is opened again by the next read, write and commit.

    They raise no error, and a DataFrame of the old log says that it is one.
    """
    load = write_options({**rig.options, "writerId": "load"}, streaming=False)

    def write(number: int) -> None:
        assert commit_write(load, [run_task(plan_batch(load), load, number, {number: number}, query="")])

    def read(kind: str) -> tuple[list[int], StatelogSource]:
        source = StatelogSource({**rig.options, "read": kind})
        reader = source.reader(source.schema())
        batches = [batch for part in reader.partitions() for batch in pickle.loads(pickle.dumps(reader)).read(part)]
        return sorted(row["key"] for batch in batches for row in batch.to_pylist()), source

    write(1)
    assert (read("state")[0], read("changes")[0]) == ([1], [1])
    _, old = read("state")
    columns = old.schema()
    Log.delete(rig.log.name, Where({"bootstrap.servers": rig.bootstrap}, str(rig.root)))
    SparkLog.create(rig.log.name, rig.bootstrap, rig.root.parent).log.close()
    for kind in ("commits", "state", "changes"):
        assert read(kind)[0] == []
    write(2)
    assert (read("state")[0], read("changes")[0]) == ([2], [2])
    with pytest.raises(IdentityChanged, match="topics that the log had before"):
        old.reader(columns).partitions()


def test_a_commit_by_a_sibling_is_noticed(rig: SparkLog, tmp_path: Path) -> None:
    """A cached committer that missed a commit of the same epoch reads the ledger before its next commit."""
    options = stream_options(rig)

    def commit(batch: int) -> bool:
        return commit_batch(options, [run_task(plan_batch(options), options, batch, {batch: batch})], batch)

    assert commit(0)
    assert in_a_worker(lambda: commit(1), tmp_path / "done")
    assert commit(2)
    assert rig.opens() == 1
    assert rig.numbers() == {0: 0, 1: 1, 2: 2}


def test_refusals_leave_the_ledger_alone(rig: SparkLog) -> None:
    """Overlapping tasks, an unnamed query, and an older batch are refused without a record; the next batch is valid."""
    options = stream_options(rig)
    first = replace(options, take_over_from=NO_QUERY)
    assert commit_batch(first, [run_task(plan_batch(options), options, 0, {1: 1})], 4)
    end = rig.ledger_end()
    task = plan_batch(options)
    both = [run_task(task, options, 1, {1: 2}), run_task(task, options, 2, {1: 3})]
    with pytest.raises(OverlappingTasks):
        commit_batch(options, both, 5)
    with pytest.raises(ConfigError, match="queryId"):
        commit_batch(options, [run_task(task, options, 3, {1: 4}, query="")], 5)
    with pytest.raises(CheckpointMismatch, match="older"):
        commit_batch(options, [run_task(task, options, 4, {1: 5})], 3)
    with pytest.raises(CheckpointMismatch, match="batches 5 to 5"):
        commit_batch(options, [run_task(task, options, 8, {1: 5})], 6)
    with pytest.raises(Misuse, match="no task"):
        commit_batch(options, [], 5)
    good = run_task(task, options, 6, {1: 7})
    stale = run_task(plan_batch(options), options, 7, {9: 7})
    for messages in (
        [good, None],
        [good, WriterCommitMessage()],
        [good, replace(good, query_id="other")],
        [good, stale],
        [good, replace(good, run_id=None)],
    ):
        with pytest.raises(Misuse, match="did not all return a handle"):
            commit_batch(options, messages, 5)
    assert rig.ledger_end() == end
    assert commit_batch(options, [run_task(task, options, 5, {1: 6})], 5)
    assert rig.numbers() == {1: 6}
