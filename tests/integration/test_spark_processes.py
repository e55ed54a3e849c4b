"""The planning and the commit process of the Spark sinks without Spark: epochs, siblings, strangers, stale caches.

Spark may plan or commit with another worker than the last time. What the other one did is done here by hand.
"""

import json
import os
import pickle
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import LongType, StructField, StructType

from statelog.environment import Environment
from statelog.errors import (
    CheckpointMismatch,
    ConfigError,
    Fenced,
    IdentityChanged,
    KeyGroupMismatch,
    LogInUse,
    Misuse,
    OverlappingTasks,
)
from statelog.producer.coordinator import Coordinator, TaskWriter
from statelog.producer.epoch import TaskGrant, open_epoch
from statelog.producer.writer import Writer
from statelog.schemas.key_groups import key_group_of, partition_of
from statelog.schemas.ledger.handle import Checkpoint
from statelog.spark import clients, epochs, query_run, sink
from statelog.spark.clients import task_producer
from statelog.spark.data_source import StatelogSource
from statelog.spark.epochs import plan_batch
from statelog.spark.options import WriteOptions, write_options
from statelog.spark.ownership import NO_QUERY, RECENT_S
from statelog.spark.query_run import (
    _space,  # pyright: ignore[reportPrivateUsage] # names marks as it does
    sibling_nonce,
)
from statelog.spark.sink import BatchWriter, TaskResult, commit_batch, commit_write
from statelog.storage.log.log import Log
from statelog.storage.log.where import Where
from tests.support.processes.starts import in_fork
from tests.support.services.broker import Broker
from tests.support.spark.rig import SparkLog

pytestmark = pytest.mark.broker


@pytest.fixture
def rig(broker: Broker, log_name: str, tmp_path: Path) -> Iterator[SparkLog]:
    """A small log of this test's own; what the processes cached for it goes with the test."""
    made = SparkLog.create(log_name, broker.bootstrap, tmp_path)
    with made.log:
        yield made
    for cache in (epochs._epochs, sink._coordinators, clients._logs, clients._producers):  # pyright: ignore[reportPrivateUsage] # the worker's end
        cache.clear()


def stream_options(rig: SparkLog, **changed: str) -> WriteOptions:
    """The options of a stream's writer `job`."""
    given = {**rig.options, "writerId": "job", "checkpointLocation": "/checkpoint", **changed}
    return write_options(given, streaming=True)


def run_task(task: TaskGrant, options: WriteOptions, slot: int, rows: dict[int, int], query: str = "q") -> TaskResult:
    """What a task of query `query` returns for these rows."""
    with task_producer(options.where) as producer:
        writer = TaskWriter(producer, task, slot=slot)
        writer.append_batch(pa.table({"key": list(rows), "n": list(rows.values())}))
        handle = writer.finish()
    return TaskResult(grant=task.grant, base=task.base, handle=handle.to_bytes(), query_id=query)


def test_one_epoch_for_all_batches(rig: SparkLog, caplog: pytest.LogCaptureFixture) -> None:
    """Batches of one run share the epoch and each continues the one before; a replay is seen in another process too."""
    options = stream_options(rig)
    begun = rig.ledger_end()
    opened: set[int] = set()
    for batch in range(3):
        task = plan_batch(options)
        opened.add(task.grant.epoch)
        assert task.base.id == batch
        assert commit_batch(options, [run_task(task, options, batch, {batch: batch})], batch)
    assert (len(opened), rig.opens()) == (1, 1)
    task = plan_batch(options)
    sink._coordinators.clear()  # pyright: ignore[reportPrivateUsage] # as after the process has ended
    with caplog.at_level("INFO", logger="statelog.spark"):
        assert not commit_batch(options, [run_task(task, options, 9, {2: 2})], 2), "a replay"
    assert "has checkpoint 3 already" in caplog.text
    assert rig.numbers() == {0: 0, 1: 1, 2: 2}
    assert rig.ledger_end() == begun + 4, "an Open and three Commits"


def test_a_sibling_is_followed_and_a_stranger_is_not(rig: SparkLog) -> None:
    """An epoch that another worker of the run replaced is taken over; a stranger ends the query once."""
    options = stream_options(rig)
    first = plan_batch(options)
    Environment(nonce=lambda: sibling_nonce(first.grant.nonce)).run(open_epoch, rig.log, "job").close()
    second = plan_batch(options)
    assert second.grant.epoch > first.grant.epoch
    assert second.grant.nonce[:8] == first.grant.nonce[:8]
    with pytest.raises(Fenced, match="the grant has expired"):
        commit_batch(options, [run_task(first, options, 0, {1: 1})], 0)
    assert commit_batch(options, [run_task(second, options, 1, {1: 1})], 0)

    Writer(rig.log, "job").close()
    with pytest.raises(Fenced, match="another writer took over"):
        plan_batch(options)
    third = plan_batch(options)
    assert third.base.id == 1, "started again, the query goes on"
    assert commit_batch(options, [run_task(third, options, 2, {2: 2})], 1)
    assert rig.numbers() == {1: 1, 2: 2}


@pytest.mark.parametrize("has_history", [False, True])
def test_of_two_jobs_that_start_at_once_one_is_refused(rig: SparkLog, has_history: bool) -> None:
    """The other job opens between our look at the ledger and our Open, on a fresh log too: we fence nobody and hear
    whose it is. A writer that is no job of Spark's is taken over from, as at any other moment.
    """
    if has_history:
        with Writer(rig.log, "before") as writer:
            writer.put(1, {"n": 1, "note": None})
            writer.commit()
    ours, other = stream_options(rig), stream_options(rig, writerId="other", checkpointLocation="/other")
    intruders: list[Callable[[], object]] = [lambda: plan_batch(other), lambda: Writer(rig.log, "plain").close()]

    def look_at_the_clock() -> float:
        if intruders:
            intruders.pop()()
        return time.time()

    opens = rig.opens()
    with pytest.raises(LogInUse) as caught:
        Environment(wall_clock=look_at_the_clock).run(plan_batch, ours)
    assert caught.value.facts["writer"] == "other"
    assert rig.opens() == opens + 2, "ours is not among them"
    assert commit_batch(other, [run_task(plan_batch(other), other, 0, {1: 1})], 0)


def planned_in_a_worker(options: WriteOptions, path: Path) -> TaskGrant:
    """What a worker plans that the session has just started: it knows its parent, and nothing else."""

    def plan() -> None:
        path.write_bytes(pickle.dumps(plan_batch(options)))

    assert in_fork(plan) == 0
    task = pickle.loads(path.read_bytes())
    assert isinstance(task, TaskGrant)
    return task


def test_all_workers_of_a_session_use_one_epoch(rig: SparkLog, tmp_path: Path) -> None:
    """Whichever worker plans a batch, it goes on with the epoch of its siblings; commits may come from any, too."""
    options = stream_options(rig)
    for batch in range(4):
        task = planned_in_a_worker(options, tmp_path / "task")
        assert task.base.id == batch
        result = run_task(task, options, batch, {batch: batch})
        if batch % 2:
            assert commit_batch(options, [result], batch)
        else:
            assert in_fork(lambda: _assert(commit_batch(options, [result], batch))) == 0  # noqa: B023 - called at once
    assert rig.opens() == 1
    assert rig.numbers() == {0: 0, 1: 1, 2: 2, 3: 3}


def _assert(holds: bool) -> None:
    assert holds


def forget(rig: SparkLog) -> None:
    """As after the workers were ended, because they were idle for a minute."""
    for cache in (epochs._epochs, sink._coordinators):  # pyright: ignore[reportPrivateUsage] # as above
        cache.clear()


def test_a_stranger_is_not_fenced_by_a_worker_that_forgot(rig: SparkLog) -> None:
    """A run that another writer fenced while all its workers were idle ends too; started again, it goes on."""
    options = stream_options(rig)
    assert commit_batch(options, [run_task(plan_batch(options), options, 0, {1: 1})], 0)
    forget(rig)
    Writer(rig.log, "job").close()
    with pytest.raises(Fenced, match="another writer took over"):
        plan_batch(options)
    assert rig.opens() == 2, "the stranger still owns the log"
    assert commit_batch(options, [run_task(plan_batch(options), options, 1, {2: 2})], 1)


def test_a_mark_that_was_swept_away_takes_nothing_back(rig: SparkLog) -> None:
    """Somebody cleans the temporary directory up, and a stranger takes over: the ledger says that this run had an
    epoch, so the query ends, once; started again, it goes on.
    """
    options = stream_options(rig)
    assert commit_batch(options, [run_task(plan_batch(options), options, 0, {1: 1})], 0)
    forget(rig)
    query_run.run_of(options, rig.log.descriptor.identity).mark.unlink()
    Writer(rig.log, "python").close()
    with pytest.raises(Fenced, match="another writer took over"):
        plan_batch(options)
    assert rig.opens() == 2, "the stranger still owns the log"
    assert commit_batch(options, [run_task(plan_batch(options), options, 1, {2: 2})], 1)


@pytest.mark.parametrize(("commits_first", "stranger"), [(False, "python"), (True, "job")])
def test_without_mark_and_commit_the_open_tells(rig: SparkLog, commits_first: bool, stranger: str) -> None:
    """The temporary directory is swept, and no last commit is the run's: it had none yet, or strangers of its writer's
    name have committed since. Its Open, which theirs name, says that the query was fenced: it takes nothing back.
    """
    options = stream_options(rig, takeOverFrom="none")
    task = plan_batch(options)
    if commits_first:
        assert commit_batch(options, [run_task(task, options, 0, {1: 1})], 0)
    forget(rig)
    query_run.run_of(options, rig.log.descriptor.identity).mark.unlink()
    for number in range(2):
        with Writer(rig.log, stranger) as writer:
            writer.put(2, {"n": number, "note": None})
            writer.commit()
    with pytest.raises(Fenced, match="another writer took over"):
        plan_batch(options)
    assert rig.opens() == 3, "the stranger still owns the log"
    assert plan_batch(options), "started again, the query goes on"


def test_marks_of_others_are_left_alone(rig: SparkLog) -> None:
    """Of a process of another container that shares the directory nobody here knows whether it lives; what was not
    touched for a month goes. A query touches its own with every batch, and makes it again.
    """
    options = stream_options(rig)
    mark = query_run.run_of(options, rig.log.descriptor.identity).mark
    other, dead, old = (mark.with_name(name) for name in ("1-999999999-1-aa", f"{_space()}-999999999-1-aa", "1-7-1-bb"))
    for path in (other, dead, old):
        path.touch()
    long_ago_s = time.time() - 40 * 86_400
    os.utime(old, (long_ago_s, long_ago_s))
    plan_batch(options)
    assert [path.exists() for path in (other, dead, old, mark)] == [True, False, False, True]
    mark.unlink()
    plan_batch(options)
    assert mark.exists()
    other.unlink()


def test_a_stranger_is_told_once_and_not_by_every_worker(rig: SparkLog, tmp_path: Path) -> None:
    """A query that was told, and started again, is not told once more by a worker that still holds the old epoch."""
    options = stream_options(rig)

    def told() -> None:
        with pytest.raises(Fenced):
            plan_batch(options)

    assert commit_batch(options, [run_task(plan_batch(options), options, 0, {1: 1})], 0)
    Writer(rig.log, "job").close()
    session = query_run._session()  # pyright: ignore[reportPrivateUsage] # the other worker has the same parent
    assert in_fork(lambda: _as_sibling(session, told)) == 0
    assert plan_batch(options).base.id == 1


def _as_sibling(session: tuple[int, str], check: Callable[[], None]) -> None:
    """In a fork, as a worker of this session that knows nothing yet."""
    query_run._session = lambda: session  # pyright: ignore[reportPrivateUsage] # this process ends with the check
    check()


def query_options(rig: SparkLog, directory: Path, query: str, **changed: str) -> WriteOptions:
    """The options of a query whose checkpoint names it, as Spark writes it."""
    directory.mkdir(exist_ok=True)
    (directory / "metadata").write_text(json.dumps({"id": query}))
    return stream_options(rig, checkpointLocation=str(directory), **changed)


def test_who_comes_second_fences_nobody(rig: SparkLog, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Another query with the writer's name, one with a name of its own, and a plain write are refused before an Open;
    the query that they met goes on, and only takeOver ends it.
    """
    first = query_options(rig, tmp_path / "a", "qa")
    assert commit_batch(first, [run_task(plan_batch(first), first, 0, {1: 1}, "qa")], 0)
    with pytest.raises(CheckpointMismatch, match="takeOverFrom=qa"):
        plan_batch(query_options(rig, tmp_path / "b", "qb"))
    other = query_options(rig, tmp_path / "b", "qb", writerId="other")
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
    with pytest.raises(Fenced):
        plan_batch(first)
    with pytest.raises(LogInUse):
        plan_batch(first)
    assert rig.numbers() == {1: 1, 2: 2, 3: 3}


def keys_of(rig: SparkLog, partitions: range) -> list[int]:
    """Some keys in these partitions."""
    descriptor = rig.log.descriptor
    kind, groups, count = descriptor.key_type, descriptor.key_groups, descriptor.partitions
    return [key for key in range(200) if partition_of(key_group_of(key, kind, groups), count, groups) in partitions]


def test_jobs_share_a_log_by_partitions(rig: SparkLog, tmp_path: Path) -> None:
    """Two queries and a plain write with partitions of their own never meet; one that overlaps another's is refused
    before an Open, and told whose; a row outside of its share commits nothing.
    """
    one = query_options(rig, tmp_path / "a", "qa", writerId="one", partitions="0/2")
    two = query_options(rig, tmp_path / "b", "qb", writerId="two", partitions="2")
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

    overlapping = query_options(rig, tmp_path / "c", "qc", writerId="three", partitions="1:3")
    with pytest.raises(LogInUse, match="by the option partitions") as in_use:
        plan_batch(overlapping)
    assert in_use.value.facts["partitions"] in ("0:2", "2")
    task = plan_batch(one)
    with pytest.raises(KeyGroupMismatch) as outside:
        run_task(task, one, 9, {low[5]: 5, high[5]: 5}, "qa")
    assert outside.value.facts["owned_partitions"] == "0:2"
    assert outside.value.facts["key_group"] == key_group_of(high[5], rig.log.descriptor.key_type, 16)

    wider = replace(one, share=None, partitions=(0,))
    assert commit_batch(wider, [run_task(plan_batch(wider), wider, 10, {}, "qa")], 2)
    assert rig.opens() == 4, "the same query, started with other partitions, opens anew and waits for nobody"


def test_the_same_query_takes_over_at_once(rig: SparkLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Started again in another session, a query waits for nobody, before its first commit and after; the session that
    it left does not take it back.
    """
    options = query_options(rig, tmp_path / "a", "qa")
    plan_batch(options)
    here = query_run._session()  # pyright: ignore[reportPrivateUsage] # as above
    for batch, parent in enumerate((1_000_001, 1_000_002)):
        forget(rig)
        monkeypatch.setattr(query_run, "_session", lambda parent=parent: (parent, "x"))
        assert commit_batch(options, [run_task(plan_batch(options), options, batch, {1: batch}, "qa")], batch)
    assert rig.opens() == 3
    forget(rig)
    monkeypatch.setattr(query_run, "_session", lambda: here)
    with pytest.raises(Fenced):
        plan_batch(options)


def test_a_job_that_is_done_or_dead_stands_in_nobodys_way(rig: SparkLog, tmp_path: Path) -> None:
    """A plain write bars others until its commit; a query, as long as it may be alive; a Writer, never."""
    load = write_options({**rig.options, "writerId": "load"}, streaming=False)
    task = plan_batch(load)
    query = query_options(rig, tmp_path / "a", "qa")
    with pytest.raises(LogInUse):
        plan_batch(query)
    assert commit_write(load, [run_task(task, load, 0, {1: 1}, query="")])
    assert commit_batch(query, [run_task(plan_batch(query), query, 1, {2: 2}, "qa")], 0)
    later = replace(load, writer="later")
    with pytest.raises(LogInUse):
        Environment(wall_clock=lambda: time.time() + RECENT_S - 600).run(plan_batch, later)
    assert Environment(wall_clock=lambda: time.time() + RECENT_S + 600).run(plan_batch, later)
    Writer(rig.log, "python").close()
    assert plan_batch(replace(load, writer="last"))


def test_a_plain_write_bars_others_until_it_has_ended(rig: SparkLog) -> None:
    """The second write of a session bars others as the first did; one that failed, or found its checkpoint in the
    ledger, bars nobody, and its late tasks count for nothing.
    """
    load = write_options({**rig.options, "writerId": "load"}, streaming=False)
    other = replace(load, writer="other", checkpoint_id=7)
    assert commit_write(load, [run_task(plan_batch(load), load, 0, {1: 1}, query="")])
    second = plan_batch(load)
    with pytest.raises(LogInUse):
        plan_batch(other)
    assert rig.opens() == 1, "a void record says that the second is under way"
    assert commit_write(load, [run_task(second, load, 1, {2: 2}, query="")])
    failed = plan_batch(load)
    late = run_task(failed, load, 2, {3: 3}, query="")
    for _ in range(2):
        epochs.give_up(load, failed.grant)
    assert commit_write(other, [run_task(plan_batch(other), other, 3, {4: 4}, query="")])
    with pytest.raises(Fenced):
        commit_write(load, [late])
    schema = StructType([StructField("key", LongType()), StructField("n", LongType())])
    replayed = BatchWriter({**rig.options, "writerId": "other", "checkpointId": "7"}, schema, overwrite=False)
    pickle.dumps(replayed)
    assert replayed.task is not None
    with pytest.raises(CheckpointMismatch, match="not those that were committed"):
        replayed.commit([run_task(replayed.task, other, 4, {5: 5}, query="")])
    replayed.commit([run_task(replayed.task, other, 5, {4: 4}, query="")])
    assert commit_write(load, [run_task(plan_batch(load), load, 6, {6: 6}, query="")])
    assert rig.numbers() == {1: 1, 2: 2, 4: 4, 6: 6}


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
    """Deleted and created under its name while the session's workers live on: the next read, write and commit are of
    the new log, without an error, and a DataFrame of the old one says that it is one.
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


def test_a_commit_by_a_sibling_is_noticed(rig: SparkLog) -> None:
    """A cached committer that missed a commit of the same epoch reads the ledger before it commits the next one."""
    options = stream_options(rig)
    assert commit_batch(options, [run_task(plan_batch(options), options, 0, {1: 1})], 0)
    task = plan_batch(options)
    with Coordinator(rig.log, "job", grant=task.grant) as sibling:
        sibling.commit([], {"queryId": "q", "batchId": "1"}, checkpoint_id=2)
    task = plan_batch(options)
    assert task.base.id == 2
    assert commit_batch(options, [run_task(task, options, 1, {3: 3})], 2)
    assert rig.numbers() == {1: 1, 3: 3}


def test_refusals_leave_the_ledger_alone(rig: SparkLog) -> None:
    """Overlapping tasks, a query that nobody names, an older batch are refused; the next good one goes through."""
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
    stale = replace(run_task(task, options, 7, {9: 7}), base=Checkpoint(0, b""))
    for messages in (
        [good, None],
        [good, WriterCommitMessage()],
        [good, replace(good, query_id="other")],
        [good, stale],
    ):
        with pytest.raises(Misuse, match="did not all return a handle"):
            commit_batch(options, messages, 5)
    assert rig.ledger_end() == end
    assert commit_batch(options, [run_task(task, options, 5, {1: 6})], 5)
    assert rig.numbers() == {1: 6}
