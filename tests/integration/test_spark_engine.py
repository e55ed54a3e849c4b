"""Spark as the materializer's engine: rows equal to the local engine's, typed errors, and orphans that are deleted."""

import pickle
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import statelog.spark
from statelog.environment import Environment
from statelog.errors import DataLoss, RoundGivenUp, Unavailable
from statelog.materializer.outcome import CompletedRound
from statelog.materializer.round import Round, run_round
from statelog.materializer.work import RoundWork
from statelog.reading.plan import AtPosition
from statelog.recovery.recover import recover
from statelog.schemas.key_groups import share
from statelog.spark.engine import SparkEngine, TaskDone, TaskWork
from statelog.spark.option_texts import log_address
from tests.support.services.broker import Broker
from tests.support.spark.engine_pair import EnginePair, change, run_paths, settings_at
from tests.support.spark.engine_tasks import Misfortune, StruckWork, engine_of, parts_of
from tests.support.spark.rig import SparkLog

pytestmark = [pytest.mark.spark, pytest.mark.broker]


def _work(rig: SparkLog, scratch: Path, go_on: Callable[[], None] = lambda: None) -> RoundWork:
    return RoundWork(log=rig.log, scratch=scratch / "round", go_on=go_on, environment=Environment())


def test_rows_equal_those_of_the_local_engine(
    spark: SparkSession, broker: Broker, log_name: str, tmp_path: Path
) -> None:
    """A random history, rolled up by both, has the same snapshots after every round, in runs of many ranges."""
    pair = EnginePair(log_name, broker.bootstrap, tmp_path)
    remote, rng = pair.remote, pair.rng
    ranges: set[tuple[int, int]] = set()
    for _ in range(4):
        for _ in range(rng.randint(1, 2)):
            pair.change()
        pair.roll_up_local()
        outcome = statelog.spark.materialize(
            spark,
            remote.log.name,
            remote.where,
            settings=settings_at(tmp_path, max_run_bytes=rng.choice((1, 4 << 30))),
            most_tasks=3,
            task_bytes=1,
        )
        assert isinstance(outcome, CompletedRound)
        assert not outcome.cleanup.held_back
        assert outcome.size_bytes > 0
        assert outcome.read_back_s > 0
        pair.expect_equal()
        manifest = remote.log.manifests.read(outcome.number)
        ranges |= {(run.first_key_group, run.end_key_group) for run in manifest.runs}
    assert len(ranges) > 3
    assert run_paths(remote) == pair.all_named(), "merged and duplicate runs are deleted"
    assert not list(tmp_path.glob("statelog-round-*")), "no scratch directory is left"


def test_repeated_tasks_and_errors(spark: SparkSession, broker: Broker, log_name: str, tmp_path: Path) -> None:
    """Tasks that run twice leave orphans, which are deleted; a missing run and a failing job keep their errors."""
    rig, rng = SparkLog.create(log_name, broker.bootstrap, tmp_path), random.Random(1)
    seen: list[TaskWork] = []

    class Speculating(SparkEngine):
        """A session that repeats every task in another attempt, as Spark does when a task is slow."""

        def do(self, work: TaskWork) -> dict[int, TaskDone]:
            seen.append(work)
            numbers = pa.RecordBatch.from_pydict({"id": list(range(len(work.tasks)))})
            (*_, last) = work.rows(iter([numbers]))
            assert isinstance(pickle.loads(last.column("done")[0].as_py()), TaskDone)
            return super().do(work)

    maker = partial(SparkEngine, spark=spark, where=log_address(rig.options), most_tasks=2, task_bytes=1)
    change(rng, [rig])
    outcome = Round(rig.log, settings_at(tmp_path), make_engine=partial(Speculating, **maker.keywords)).run()
    assert isinstance(outcome, CompletedRound)
    tasks = [work.task(number) for work in seen for number in range(len(work.tasks))]
    manifest = rig.log.manifests.read(1)
    assert len(tasks) == len(manifest.runs) == 2
    assert run_paths(rig) == {run.path for run in manifest.runs}, "the same round deleted the other attempts' runs"

    missing = next(run.path for run in manifest.runs if run.rows)
    rig.log.store.delete(missing)
    change(rng, [rig])
    with pytest.raises(DataLoss, match="are missing") as lost:
        statelog.spark.materialize(spark, rig.log.name, rig.where, settings=settings_at(tmp_path), task_bytes=1)
    assert lost.value.facts["path"] == missing

    broken = maker(_work(rig, tmp_path))
    with pytest.raises(Unavailable, match="Spark job"):
        broken.do(
            TaskWork(
                where=log_address(rig.options),
                identity=rig.log.descriptor.identity,
                scratch=tmp_path,
                tasks=(b"no task",),
            )
        )

    def given_up() -> None:
        raise RoundGivenUp("over")

    with pytest.raises(RoundGivenUp):
        maker(_work(rig, tmp_path, given_up)).write(tasks[:1])


def test_a_killed_worker_is_a_failed_round_at_worst(
    spark: SparkSession, broker: Broker, log_name: str, tmp_path: Path
) -> None:
    """A worker killed when its runs are uploaded fails the round at worst, in a session that repeats no task.

    There is no snapshot, and its runs are deleted with the round, though it reported none. The next round is right.
    """
    pair = EnginePair(log_name, broker.bootstrap, tmp_path)
    maker = partial(SparkEngine, spark=spark, where=log_address(pair.remote.options), most_tasks=2, task_bytes=1)
    misfortune = Misfortune(kind="worker", point="done", directory=tmp_path)

    def strike(_: int, work: TaskWork) -> TaskWork:
        return StruckWork(**parts_of(work), misfortune=misfortune)

    pair.change()
    with pytest.raises(Unavailable, match="Spark job"):
        Round(pair.remote.log, settings_at(tmp_path), make_engine=engine_of(maker, strike, [])).run()
    (orphans,) = misfortune.runs_by_attempt()
    assert orphans
    assert orphans.isdisjoint(run_paths(pair.remote))
    assert not pair.remote.log.manifests.numbers()
    pair.roll_up(maker)
    assert run_paths(pair.remote) == pair.named(1)
    assert not list(tmp_path.glob("statelog-round-*")), "the killed worker's files are deleted"


def test_a_state_as_parquet_by_key_group(spark: SparkSession, broker: Broker, log_name: str, tmp_path: Path) -> None:
    """Tasks with key groups of their own write a state from runs and a tail, while the log goes on.

    Each worker's share of the files is what it would recover at the position of the load.
    """
    rig, rng, path = SparkLog.create(log_name, broker.bootstrap, tmp_path), random.Random(3), tmp_path / "state"
    for _ in range(2):
        change(rng, [rig], 200)
        run_round(rig.log, settings_at(tmp_path))
    change(rng, [rig], 200)
    position = rig.ledger_end()
    read = spark.read.format("statelog").options(**rig.options, includeKeyGroup="true", minPartitions="8")
    state = read.load()
    change(rng, [rig], 200)
    state.write.partitionBy("key_group").parquet(str(path))
    groups = rig.log.descriptor.key_groups
    found: list[tuple[int, int]] = []
    for worker in range(3):
        mine = share(groups, worker=worker, workers=3)
        rows = pq.read_table(path, filters=[("key_group", "in", list(mine))])
        pairs = list(zip(rows["key"].to_pylist(), rows["n"].to_pylist(), strict=True))
        with recover(rig.log, key_groups=mine, at=AtPosition(position)) as recovery:
            assert dict(pairs) == {key: value["n"] for key, value in recovery.to_dict().items()}
        found += pairs
    assert len(found) == len(dict(found)) > 0
    assert dict(found) != rig.numbers(), "the state at the load, and not a later one"
    files = [len(list(folder.glob("*.parquet"))) for folder in path.glob("key_group=*")]
    assert len(files) > groups // 2
    assert set(files) == {1}, "no key group is in two tasks"
