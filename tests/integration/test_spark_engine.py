"""Spark as the materializer's engine: rows equal to the local engine's, typed errors, and orphans that go."""

import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import statelog.spark
from statelog.errors import DataLoss, RoundGivenUp, Unavailable
from statelog.materializer.engine.engine import RoundWork
from statelog.materializer.engine.tasks import Task
from statelog.materializer.round.outcome import CompletedRound
from statelog.materializer.round.round import Round, run_round
from statelog.materializer.settings import MaterializerSettings
from statelog.producer.writer import Writer
from statelog.recovery import recover_snapshot
from statelog.schemas.snapshot.retention import RetentionPolicy
from statelog.seams import REAL
from statelog.spark.engine.spark_engine import SparkEngine, SparkEngineMaker
from statelog.spark.engine.task_work import TaskDone, TaskWork
from statelog.spark.options.address import log_address
from statelog.storage.local.disk import no_faults
from tests.support.rigs.log import UNSAFE
from tests.support.services.broker import Broker
from tests.support.spark.rig import SparkLog

pytestmark = [pytest.mark.spark, pytest.mark.broker]


def _settings(scratch: Path, **changed: Any) -> MaterializerSettings:
    retention = RetentionPolicy(keep=2, min_age_s=0.0)
    return MaterializerSettings(scratch=scratch, fanout=2, retention=retention, **changed)


def _where(rig: SparkLog) -> dict[str, Any]:
    kafka = {"bootstrap.servers": rig.bootstrap}
    return {"kafka": kafka, "root": str(rig.root), "allow_unsafe": UNSAFE}


def _change(rng: random.Random, rigs: list[SparkLog]) -> None:
    """The same commit in every log."""
    rows = {rng.randrange(300): rng.random() < 0.3 for _ in range(rng.choice((3, 200)))}
    number = rng.randrange(1000)
    for rig in rigs:
        with Writer(rig.log, "w") as writer:
            for key, is_delete in rows.items():
                writer.delete(key) if is_delete else writer.put(key, {"n": number + key})
            writer.commit()


def _snapshot(rig: SparkLog) -> list[dict[str, Any]]:
    recovery = recover_snapshot(rig.log.name, root=str(rig.root))
    with recovery:
        return recovery.to_arrow().sort_by("key").to_pylist()


def _work(rig: SparkLog, scratch: Path, go_on: Callable[[], None] = lambda: None) -> RoundWork:
    return RoundWork(log=rig.log, scratch=scratch / "round", go_on=go_on, seams=REAL, disk=no_faults)


def _run_paths(rig: SparkLog) -> set[str]:
    return {info.path for info in rig.log.store.list("runs/")}


def test_rows_equal_those_of_the_local_engine(
    spark: SparkSession, broker: Broker, log_name: str, tmp_path: Path
) -> None:
    """A random history, rolled up by both: the same snapshots after every round, in runs of many key-group ranges."""
    rng = random.Random(7)
    local, remote = (SparkLog.create(f"{log_name}-{kind}", broker.bootstrap, tmp_path) for kind in "ab")
    ranges: set[tuple[int, int]] = set()
    for _ in range(4):
        for _ in range(rng.randint(1, 2)):
            _change(rng, [local, remote])
        run_round(local.log, _settings(tmp_path))
        outcome = statelog.spark.materialize(
            spark,
            remote.log.name,
            **_where(remote),
            settings=_settings(tmp_path, max_run_bytes=rng.choice((1, 4 << 30))),
            most_tasks=3,
            task_bytes=1,
        )
        assert isinstance(outcome, CompletedRound)
        assert not outcome.cleanup.held_back
        assert outcome.size_bytes > 0
        assert outcome.read_back_s > 0
        assert _snapshot(remote) == _snapshot(local)
        manifest = remote.log.manifests.read(outcome.number).manifest
        ranges |= {(run.first_key_group, run.end_key_group) for run in manifest.runs}
    assert len(ranges) > 3
    named = {run.path for n in remote.log.manifests.numbers() for run in remote.log.manifests.read(n).manifest.runs}
    assert _run_paths(remote) == named, "what was merged away, or done twice, is gone"
    assert not list(tmp_path.glob("statelog-round-*")), "no scratch directory is left"


def test_repeated_tasks_and_errors(spark: SparkSession, broker: Broker, log_name: str, tmp_path: Path) -> None:
    """Tasks that run twice leave orphans, which go; a missing run and a failing job come as what they are."""
    rig, rng = SparkLog.create(log_name, broker.bootstrap, tmp_path), random.Random(1)
    seen: list[TaskWork] = []

    class Speculating(SparkEngine):
        """As Spark does when a task is slow: every task is done once more, by another attempt."""

        def do(self, work: TaskWork) -> dict[int, TaskDone]:
            seen.append(work)
            numbers = pa.RecordBatch.from_pydict({"id": list(range(len(work.tasks)))})
            (*_, last) = work.rows(iter([numbers]))
            assert isinstance(pickle.loads(last.column("done")[0].as_py()), TaskDone)
            return super().do(work)

    maker = SparkEngineMaker(spark=spark, where=log_address(rig.options), most_tasks=2, task_bytes=1)
    _change(rng, [rig])
    outcome = Round(rig.log, _settings(tmp_path), make_engine=lambda work: Speculating(maker, work)).run()
    assert isinstance(outcome, CompletedRound)
    tasks: list[Task] = [pickle.loads(task) for work in seen for task in work.tasks]
    manifest = rig.log.manifests.read(1).manifest
    assert len(tasks) == len(manifest.runs) == 2
    assert _run_paths(rig) == {run.path for run in manifest.runs}, "the other attempts' runs went with the same round"

    rig.log.store.delete(manifest.runs[0].path)
    _change(rng, [rig])
    with pytest.raises(DataLoss, match="gone") as lost:
        statelog.spark.materialize(spark, rig.log.name, **_where(rig), settings=_settings(tmp_path), task_bytes=1)
    assert lost.value.facts["path"] == manifest.runs[0].path

    broken = SparkEngine(maker, _work(rig, tmp_path))
    with pytest.raises(Unavailable, match="Spark job"):
        broken.do(TaskWork(where=log_address(rig.options), scratch=tmp_path, tasks=(b"no pickle",)))

    def given_up() -> None:
        raise RoundGivenUp("over")

    with pytest.raises(RoundGivenUp):
        SparkEngine(maker, _work(rig, tmp_path, given_up)).write(tasks[:1])
