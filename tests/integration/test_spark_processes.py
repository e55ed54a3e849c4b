"""The planning and the commit process of the Spark sinks without Spark: epochs, siblings, strangers, stale caches.

Spark may plan or commit with another worker than the last time. What the other one did is done here by hand.
"""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from statelog.producer.opening import open_epoch
from statelog.producer.tasks import Coordinator, TaskGrant, TaskWriter, resume_grant
from statelog.producer.writer import Writer
from statelog.schemas.errors import CheckpointMismatch, ConfigError, Fenced, OverlappingTasks
from statelog.spark import clients, committing, planning
from statelog.spark.clients import task_producer
from statelog.spark.committing import commit_batch, commit_write
from statelog.spark.options import WriteOptions, write_options
from statelog.spark.planning import plan_batch, sibling_nonces
from statelog.spark.task import TaskResult
from tests.support.broker import Broker
from tests.support.spark_rig import SparkLog

pytestmark = pytest.mark.broker


@pytest.fixture
def rig(broker: Broker, log_name: str, tmp_path: Path) -> Iterator[SparkLog]:
    """A small log of this test's own; what the processes cached for it goes with the test."""
    yield SparkLog.create(log_name, broker.bootstrap, tmp_path)
    for cache in (planning._epochs, committing._coordinators, clients._logs, clients._producers):  # pyright: ignore[reportPrivateUsage] # the worker's end
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


def test_one_epoch_for_all_batches(rig: SparkLog) -> None:
    """Batches of one run share the epoch and each continues the one before; a replay is seen in another process too."""
    options = stream_options(rig)
    epochs: set[int] = set()
    for batch in range(3):
        task = plan_batch(options)
        epochs.add(task.grant.epoch)
        assert task.base.id == batch
        assert commit_batch(options, [run_task(task, options, batch, {batch: batch})], batch)
    assert epochs == {0}
    task = plan_batch(options)
    committing._coordinators.clear()  # pyright: ignore[reportPrivateUsage] # as after the process has ended
    assert not commit_batch(options, [run_task(task, options, 9, {2: 2})], 2), "a replay"
    assert rig.numbers() == {0: 0, 1: 1, 2: 2}
    assert rig.ledger_end() == 4


def test_a_sibling_is_followed_and_a_stranger_is_not(rig: SparkLog) -> None:
    """An epoch that another worker of the run replaced is taken over; a stranger ends the query once."""
    options = stream_options(rig)
    first = plan_batch(options)
    open_epoch(rig.log, "job", new_nonce=sibling_nonces(first.grant.nonce)).close()
    second = plan_batch(options)
    assert second.grant.epoch > first.grant.epoch
    assert second.grant.nonce[:8] == first.grant.nonce[:8]
    with pytest.raises(Fenced, match="the grant is over"):
        commit_batch(options, [run_task(first, options, 0, {1: 1})], 0)
    assert commit_batch(options, [run_task(second, options, 1, {1: 1})], 0)

    Writer(rig.log, "job").close()
    with pytest.raises(Fenced, match="another writer took over"):
        plan_batch(options)
    third = plan_batch(options)
    assert third.base.id == 1, "started again, the query goes on"
    assert commit_batch(options, [run_task(third, options, 2, {2: 2})], 1)
    assert rig.numbers() == {1: 1, 2: 2}


def test_a_plain_batch_write_opens_anew_after_a_stranger(rig: SparkLog) -> None:
    """A batch job has no run to be fenced out of: its next write takes the writer again."""
    options = write_options({**rig.options, "writerId": "load"}, streaming=False)
    task = plan_batch(options)
    assert commit_write(options, [run_task(task, options, 0, {1: 1}, query="")])
    Writer(rig.log, "load").close()
    task = plan_batch(options)
    assert commit_write(options, [run_task(task, options, 1, {2: 2}, query="")])
    assert rig.numbers() == {1: 1, 2: 2}


def test_a_commit_by_a_sibling_is_noticed(rig: SparkLog) -> None:
    """A cached committer that missed a commit of the same epoch reads the ledger before it commits the next one."""
    options = stream_options(rig)
    assert commit_batch(options, [run_task(plan_batch(options), options, 0, {1: 1})], 0)
    task = plan_batch(options)
    with Coordinator(rig.log, "job", opened=resume_grant(rig.log, task.grant)) as sibling:
        sibling.commit(2, [], {"queryId": "q", "batchId": "1"})
    task = plan_batch(options)
    assert task.base.id == 2
    assert commit_batch(options, [run_task(task, options, 1, {3: 3})], 2)
    assert rig.numbers() == {1: 1, 3: 3}


def test_refusals_leave_the_ledger_alone(rig: SparkLog) -> None:
    """Overlapping tasks, a query that nobody names, an older batch are refused; the next good one goes through."""
    options = stream_options(rig)
    assert commit_batch(options, [run_task(plan_batch(options), options, 0, {1: 1})], 4)
    end = rig.ledger_end()
    task = plan_batch(options)
    both = [run_task(task, options, 1, {1: 2}), run_task(task, options, 2, {1: 3})]
    with pytest.raises(OverlappingTasks):
        commit_batch(options, both, 5)
    with pytest.raises(ConfigError, match="queryId"):
        commit_batch(options, [run_task(task, options, 3, {1: 4}, query="")], 5)
    with pytest.raises(CheckpointMismatch, match="older"):
        commit_batch(options, [run_task(task, options, 4, {1: 5})], 3)
    assert commit_batch(options, [], 5), "no task, no change, no commit"
    assert rig.ledger_end() == end
    assert commit_batch(options, [run_task(task, options, 5, {1: 6})], 6)
    assert rig.numbers() == {1: 6}
