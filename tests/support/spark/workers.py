"""Workers of a session on the twins: each worker has its own cache, and a log is made at any root."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from statelog.producer.coordinator import TaskWriter
from statelog.spark import clients, sink
from statelog.spark.clients import ProcessCache
from statelog.spark.epochs import plan_batch
from statelog.spark.options import WriteOptions, write_options
from statelog.spark.sink import TaskResult, commit_batch
from tests.support.rigs.log import TwinRig

__all__ = ["CACHES", "Place", "become", "new_worker", "options_of", "write", "written"]

Place = Callable[..., TwinRig]
CACHES = ((clients, "_logs"), (sink, "_committers"))


def options_of(root: str, batch: int) -> WriteOptions:
    """Return the options of a batch of the query `q`, which writes as `job`."""
    where = {"log": "visits", "root": root, "kafka.bootstrap.servers": "b:1"}
    return write_options({**where, "writerId": "job", "queryId": "q", "batchId": str(batch)}, streaming=False)


def written(rig: TwinRig, options: WriteOptions, run_id: str | None = "run") -> TaskResult:
    """Plan the batch and run its only task; return the task's result."""
    task = plan_batch(options)
    writer = TaskWriter(rig.kafka().producer(), task, slot=options.batch_id or 0)
    writer.put(b"alice", b"%d" % task.checkpoint_id)
    return TaskResult(plan=task.grant, handle=writer.finish().to_bytes(), query_id="q", run_id=run_id)


def write(rig: TwinRig, root: str, batch: int) -> None:
    """Plan, write and commit the batch."""
    options = options_of(root, batch)
    assert commit_batch(options, [written(rig, options)], batch)


def new_worker(clock: Callable[[], float] = time.monotonic) -> list[ProcessCache[Any, Any]]:
    """Return the cache of another worker of the session, by this clock."""
    return [ProcessCache[Any, Any](clock=clock) for _ in CACHES]


def become(monkeypatch: pytest.MonkeyPatch, worker: list[ProcessCache[Any, Any]]) -> None:
    """Run all later steps in this worker."""
    for (module, name), cache in zip(CACHES, worker, strict=True):
        monkeypatch.setattr(module, name, cache)
