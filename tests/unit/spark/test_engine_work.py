"""The Spark engine's tasks: their size, and the log that workers use."""

import json
import pickle
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import statelog
from statelog.environment import current_environment
from statelog.errors import IdentityChanged, StorageFull, StoreUnavailable
from statelog.log import Log, LogOptions, Where
from statelog.materializer import CompletedRound, MaterializerSettings, run_round
from statelog.materializer.tasks import Task, TaskOutput
from statelog.materializer.work import RoundWork
from statelog.producer.writer import Writer
from statelog.recovery.recover import recover
from statelog.schemas.changes.replay_plan import ListedBy, ReplayPlan
from statelog.schemas.ledger.handle import Entry
from statelog.schemas.ledger.place import LogIdentity
from statelog.schemas.snapshot.run_ref import Cuts
from statelog.spark.clients import cached_log
from statelog.spark.engine import SparkEngine, TaskDone, TaskWork
from statelog.spark.option_texts import LogAddress
from statelog.testing import Twin
from tests.support.rigs.log import settings_for

IDENTITY = LogIdentity(cluster_id="C", data_topic_id="D", ledger_topic_id="L")
_SETS = 100_000


def test_tasks_travel_whole_and_small() -> None:
    """The plan of 100,000 change sets of small commits arrives unchanged in less than 3 MB."""
    rng, nonce = random.Random(1), b"n" * 16
    listed: dict[Entry, ListedBy] = {}
    for number in range(_SETS):
        changes = rng.randrange(1, 50)
        entry = Entry(3, number, 1, changes, 130 * changes, number, number + 1, rng.getrandbits(64), b"\xff\x0f")
        listed[entry] = ListedBy(77, nonce, number)
    output = TaskOutput(
        start_position=0,
        end_position=_SETS + 1,
        key_groups=range(128),
        level=0,
        value_schema_id=1,
        drop_deletes=True,
        cuts=Cuts(max_bytes=1 << 30),
    )
    task = Task(output=output, replay=ReplayPlan(ranges={3: ((0, _SETS),)}, listed={3: listed}, accepted=()))
    where = LogAddress("planes", Where({"bootstrap.servers": "127.0.0.1:9"}, "/nowhere"))
    work = TaskWork.of(where, IDENTITY, Path("/nowhere"), [task, task])
    assert work.task(1) == task
    assert all(len(packed) < 3_000_000 for packed in work.tasks)


class _InPlace(SparkEngine):
    """An engine that does its tasks in this process, as a Spark worker would."""

    def do(self, work: TaskWork) -> dict[int, TaskDone]:
        numbers = pa.RecordBatch.from_pydict({"id": list(range(len(work.tasks)))})
        rows = [row for batch in work.rows(iter([numbers])) for row in batch.to_pylist()]
        return {row["task"]: pickle.loads(row["done"]) for row in rows}


def test_a_worker_that_knows_the_log_from_before_writes_runs_of_the_new_one(tmp_path: Path) -> None:
    """A worker that cached a deleted log does not confuse its fields with those of the re-created log."""
    twin = Twin()

    def made(*names: str) -> Log:
        fields = [{"name": name, "type": "long"} for name in names]
        schema = json.dumps({"type": "record", "name": "R", "fields": fields})
        return statelog.open("log", twin.where(), create=LogOptions(key_type="long", value_schema=schema))

    with twin.environment():
        made("a", "b").close()
        address = LogAddress("log", twin.where())
        cached_log(address).value_schemas.newest()
        Log.delete("log", twin.where())
        with made("b", "a") as log, Writer(log, "w") as writer:
            writer.put(1, {"a": 1, "b": 2})
            writer.commit()
            spark: Any = None
            engine = partial(_InPlace, spark=spark, where=address, most_tasks=2)
            run_round(log, MaterializerSettings(scratch=tmp_path), make_engine=engine)
            assert recover(log).to_dict() == {1: {"a": 1, "b": 2}}
        gone = replace(log.descriptor.identity, ledger_topic_id="another")
        with pytest.raises(IdentityChanged, match="topics that the log had before"):
            cached_log(address, gone)


@pytest.mark.parametrize("point", ["after-delta", "after-merge", "after-list"])
def test_what_workers_uploaded_goes_with_a_round_that_fails_behind_it(point: str, tmp_path: Path) -> None:
    """The uploads of workers are deleted if the round fails later. They would otherwise fill the store."""
    twin, merged = Twin(), list[int]()

    def fail(passed: str) -> None:
        if passed == point:
            raise StoreUnavailable("the job of the merge failed")

    engine, settings = _engine(twin), settings_for(tmp_path, fanout=2)
    with twin.environment(), statelog.open("log", twin.where(), create=True) as log:
        broken = replace(current_environment(), crash=fail)
        for _ in range(4):
            _write(log)
            before = _run_paths(log)
            with pytest.raises(StoreUnavailable):
                broken.run(run_round, log, settings, make_engine=engine)
            assert _run_paths(log) == before
            done = run_round(log, settings, make_engine=engine)
            merged += [done.runs_merged] if isinstance(done, CompletedRound) else []
        assert any(merged)


def test_what_is_known_goes_where_nothing_can_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs that workers reported are deleted even if the store cannot be listed."""
    twin, deleted = Twin(), list[str]()
    with twin.environment(), statelog.open("log", twin.where(), create=True) as log:
        _write(log)

        def fail(passed: str) -> None:
            if passed == "after-delta":
                monkeypatch.setattr(log.store, "list", _no_list)
                monkeypatch.setattr(log.store, "delete", deleted.append)
                raise StoreUnavailable("the job of the merge failed")

        broken = replace(current_environment(), crash=fail)
        with pytest.raises(StoreUnavailable, match="merge failed"):
            broken.run(run_round, log, MaterializerSettings(scratch=tmp_path), make_engine=_engine(twin))
        monkeypatch.undo()
        assert deleted and set(deleted) == _run_paths(log)


def _no_list(_: str = "") -> None:
    raise StoreUnavailable("no listing for now")


def test_what_workers_uploaded_goes_with_a_job_that_fails(tmp_path: Path) -> None:
    """The uploads of workers are deleted if a task of the job fails, although nothing is returned."""
    twin = Twin()
    round_of_two = partial(run_round, settings=MaterializerSettings(scratch=tmp_path), make_engine=_engine(twin))
    with twin.environment(), statelog.open("log", twin.where(), create=True) as log:
        _write(log)
        done = round_of_two(log)
        assert isinstance(done, CompletedRound)
        _write(log)
        before = _run_paths(log)
        for _ in range(3):
            twin.disk.capacity_bytes = twin.disk.used_bytes() + done.size_bytes * 2 // 3
            with pytest.raises(StorageFull, match="runs/"):
                round_of_two(log)
            assert _run_paths(log) == before
        twin.disk.capacity_bytes = None
        assert isinstance(round_of_two(log), CompletedRound)


def _engine(twin: Twin) -> Callable[[RoundWork], SparkEngine]:
    spark: Any = None
    return partial(_InPlace, spark=spark, where=LogAddress("log", twin.where()), most_tasks=2, task_bytes=1)


def _write(log: Log) -> None:
    with Writer(log, "w") as writer:
        for number in range(20):
            writer.put(b"%d" % number, b"1")
        writer.commit()


def _run_paths(log: Log) -> set[str]:
    return {info.path for info in log.store.list("runs/")}
